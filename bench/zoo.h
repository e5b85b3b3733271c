#pragma once

#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "ductile/nn/memory.h"
#include "ductile/nn/model.h"

// What the benchmarks of the built-in models share.
namespace ductile {

inline double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

inline bool is_large(std::string_view model) { return model == "resnet18" || model == "resnet50"; }

// A model of the zoo and random samples for it: texts of 64 tokens, or images of 32 pixels square,
// of 64 for large models.
struct ZooCase {
  std::unique_ptr<nn::Model> model;
  at::Tensor input, labels;
};

inline ZooCase make_zoo_case(spec::ModelOptions options, int64_t batch) {
  nn::ModelArgs args;
  args.options = std::move(options);
  const std::string name = args.options.name;
  const bool gpt = name == "gpt";
  const int64_t side = is_large(name) ? 64 : 32;
  args.info = gpt ? nn::ModelInfo{0, 0, 0, 256, 64} : nn::ModelInfo{3, side, side, 10, 0};
  ZooCase out;
  out.model = nn::make_model(args);
  at::manual_seed(1);
  out.input = gpt ? at::randint(256, {batch, 64}, at::kLong) : at::randn({batch, 3, side, side});
  out.labels = gpt              ? at::randint(256, {batch, 64}, at::kLong)
               : name == "unet" ? at::randint(10, {batch, side, side}, at::kLong)
                                : at::randint(10, {batch}, at::kLong);
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
    if (entry.input == spec::ModelInput::several) continue;  // a case has one input
    if (only.empty() || only == entry.name) bench(entry.name, rounds);
  }
  return 0;
}

}  // namespace ductile
