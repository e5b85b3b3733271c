#pragma once

#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "ductile/nn/memory.h"
#include "ductile/nn/model.h"
#include "ductile/nn/operators.h"
#include "ductile/spec/sample_inputs.h"

// What the benchmarks of the built-in models share.
namespace ductile {

inline double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

inline bool is_large(std::string_view model) { return model == "resnet18" || model == "resnet50"; }

// What the models of several inputs read: small texts, vectors and lists of indices.
inline std::vector<spec::SampleInput> zoo_inputs(std::string_view model) {
  if (model == "mmt") return spec::sample_inputs({"4*tokens:32:64"});
  if (model == "dlrm") return spec::sample_inputs({"7*vector:64", "7*indices:4:1000"});
  return spec::sample_inputs({"7*vector:64"});
}

// A model of the zoo and random samples for it: texts of 64 tokens, what zoo_inputs() says, or
// images of 32 pixels square, of 64 for large models.
struct ZooCase {
  std::unique_ptr<nn::Model> model;
  nn::Tensors inputs;
  at::Tensor labels;
};

inline ZooCase make_zoo_case(spec::ModelOptions options, int64_t batch) {
  nn::ModelArgs args;
  args.options = std::move(options);
  const std::string name = args.options.name;
  const spec::ModelInput input = nn::model_table().at(name).input;
  const int64_t side = is_large(name) ? 64 : 32;
  ZooCase out;
  at::manual_seed(1);
  if (input == spec::ModelInput::several) {
    args.info = {0, 0, 0, 10, 0, zoo_inputs(name)};
    for (const spec::SampleInput& i : args.info.inputs) {
      const std::vector<int64_t> shape = {batch, i.length};
      out.inputs.push_back(i.is_numbers() ? at::randint(i.range, shape, at::kLong)
                                          : at::randn(shape));
    }
    out.labels = at::randint(10, {batch}, at::kLong);
  } else if (input == spec::ModelInput::tokens) {
    args.info = {0, 0, 0, 256, 64};
    out.inputs = {at::randint(256, {batch, 64}, at::kLong)};
    out.labels = at::randint(256, {batch, 64}, at::kLong);
  } else {
    args.info = {3, side, side, 10, 0};
    out.inputs = {at::randn({batch, 3, side, side})};
    out.labels = name == "unet" ? at::randint(10, {batch, side, side}, at::kLong)
                                : at::randint(10, {batch}, at::kLong);
  }
  out.model = nn::make_model(args);
  return out;
}

// `program [rounds [model]]`: calls bench(name, rounds) for each model, or for the one, in one
// thread.
template <class Bench>
int bench_zoo(int argc, char** argv, const Bench& bench) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  const std::string only = argc > 2 ? argv[2] : "";
  at::set_num_threads(1);
  nn::keep_freed_memory();
  for (const nn::ModelEntry& entry : nn::model_table()) {
    if (only.empty() || only == entry.name) bench(entry.name, rounds);
  }
  return 0;
}

}  // namespace ductile
