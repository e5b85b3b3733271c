#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include <torch/version.h>

#include "ductile/nn/model.h"

// A model of one's own in a shared library: derive from Model (or LayerModel, layers.h; or wrap a
// torch::nn::Module, torch_module.h), write
//
//   std::unique_ptr<ductile::nn::Model> make(const ductile::nn::ModelArgs& args);
//   DUCTILE_EXPORT_MODEL(make)
//
// link ductile::nn into a CMake MODULE library and set model.library in job.toml to its path.
// examples/custom_model is a complete one.
namespace ductile::nn {

// What a library says of itself. The first three fields are the same for ever, so that a library
// built against another version can be told apart and refused.
struct ModelExport {
  uint32_t abi;
  uint32_t args_bytes;
  const char* torch_version;
  Model* (*make)(const ModelArgs&);
};

// To be raised whenever Model, ModelArgs or what they hold changes.
inline constexpr uint32_t kModelAbi = 1;
inline constexpr const char* kModelSymbol = "ductile_model_export";

// Makes the model of a library. The library stays loaded until the process ends, since autograd
// may hold its code. Throws not_found for a missing file, invalid_argument for one that cannot be
// loaded, exports no model, or was built against another Ductile or libtorch.
std::unique_ptr<Model> load_model(const std::filesystem::path& library, const ModelArgs& args);

}  // namespace ductile::nn

// Exports the model that `maker`, a function (const ModelArgs&) -> std::unique_ptr<Model>, makes.
// Once in a library, at global scope.
#define DUCTILE_EXPORT_MODEL(maker)                                                   \
  extern "C" __attribute__((visibility("default"))) const ::ductile::nn::ModelExport* \
  ductile_model_export() {                                                            \
    static const ::ductile::nn::ModelExport kExport = {                               \
        ::ductile::nn::kModelAbi, sizeof(::ductile::nn::ModelArgs), TORCH_VERSION,    \
        [](const ::ductile::nn::ModelArgs& args) -> ::ductile::nn::Model* {           \
          return maker(args).release();                                               \
        }};                                                                           \
    return &kExport;                                                                  \
  }
