#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/nn/operators.h"
#include "ductile/parallel/tensor_split.h"

// Stages that are divided among parts, drawn at random.
namespace ductile::parallel {

// Each stage in up to four parts, if anything of it can be divided.
inline std::vector<int64_t> random_degrees(const nn::OperatorGraph& operators,
                                           const Pipeline& pipeline, Rng& rng) {
  std::vector<int64_t> out;
  for (size_t s = 0; s < pipeline.stages.size(); ++s) {
    std::vector<int64_t> alone(pipeline.stages.size(), 1);
    alone[s] = 1 + rng.below(4);
    try {
      split_tensors(operators, pipeline, alone);
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(
                    fmt::format("stage {} is to be divided among {} parts", s, alone[s])),
                std::string::npos)
          << e.what();
      alone[s] = 1;
    }
    out.push_back(alone[s]);
  }
  return out;
}

// Of the stages of the divided pipeline, by the hosts of its parts.
inline std::vector<int> hosts_of(const TensorSplit& split, const std::vector<int>& by_part) {
  std::vector<int> out;
  for (const int part : split.parts) out.push_back(by_part[static_cast<size_t>(part)]);
  return out;
}

}  // namespace ductile::parallel
