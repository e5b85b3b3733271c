#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

#include "ductile/nn/init.h"
#include "ductile/nn/model.h"
#include "ductile/nn/operators.h"

// Small inputs for the models that read several; nothing for the others.
namespace ductile::nn::testing {

inline std::vector<spec::SampleInput> inputs_for(std::string_view model) {
  if (model == "mmt") return spec::sample_inputs({"3*tokens:6:11"});
  if (model == "dlrm") return spec::sample_inputs({"2*vector:6", "2*indices:3:20"});
  if (model == "candle-uno") return spec::sample_inputs({"3*vector:6"});
  return {};
}

inline Tensors tensors_for(const std::vector<spec::SampleInput>& inputs, int64_t batch) {
  Tensors out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string name = "x" + std::to_string(i);
    const std::vector<int64_t> shape = {batch, inputs[i].length};
    if (inputs[i].is_numbers()) {
      out.push_back(init_uniform(shape, 0.5, 3, name)
                        .add(0.5)
                        .mul(static_cast<double>(inputs[i].range))
                        .floor()
                        .to(at::kLong)
                        .clamp_max(inputs[i].range - 1));
    } else {
      out.push_back(init_normal(shape, 1, 3, name));
    }
  }
  return out;
}

}  // namespace ductile::nn::testing
