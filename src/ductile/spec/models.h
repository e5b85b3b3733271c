#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace ductile::spec {

// What a model reads.
enum class ModelInput { images, tokens };

// One built-in model, as `ductile models` lists it; nn/zoo.cc holds the makers.
struct ModelHelp {
  std::string_view name;  // model.name in job.toml
  std::string_view help;
  ModelInput input;
  // Scalars learnt with default options at the input of `reference`.
  int64_t num_parameters;
  std::string_view reference;
};

// Every built-in model, simplest first. Torch-free, so that the command line can list them.
std::span<const ModelHelp> models();

}  // namespace ductile::spec
