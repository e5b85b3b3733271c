#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include <torch/version.h>

#include "ductile/nn/model.h"
#include "ductile/nn/threads.h"

// A user's own model, by model.library of a job. Either a PyTorch module, in the file that
// `ductile capture --model` wrote (script_model_impl.h), or a shared library: derive from Model (or
// LayerModel, layers.h; or wrap a torch::nn::Module or a Sequential, torch_module.h and
// torch_sequential.h), write
//
//   std::unique_ptr<ductile::nn::Model> make(const ductile::nn::ModelArgs& args);
//   DUCTILE_EXPORT_MODEL(make)
//
// link ductile::nn into a CMake MODULE library and set model.library in job.toml to its path.
// examples/custom_model is a complete one.
namespace ductile::nn {

// The description that a library exports. Its first three fields never change, so that a library
// built against another version can be recognised and refused.
struct ModelExport {
  uint32_t abi;
  uint32_t args_bytes;
  const char* torch_version;
  Model* (*make)(const ModelArgs&);
  Threads threads;
};

// Raise this number whenever Model, ModelArgs, Operator or a type in them changes.
inline constexpr uint32_t kModelAbi = 7;
// What the macros below say where they are not told.
constexpr Threads threads_of(Threads threads = Threads::fixed) { return threads; }
inline constexpr const char* kModelSymbol = "ductile_model_export";

// Makes the model of a library. The library stays loaded until the process ends, since autograd
// may hold its code. Throws not_found for a missing file, invalid_argument for one that cannot be
// loaded, exports no model, or was built against another Ductile or libtorch; and, of a captured
// module, for a file that is damaged or no such file, and for a precision other than fp32.
std::unique_ptr<Model> load_model(const std::filesystem::path& library, const ModelArgs& args);

// What the library declares about the threads of its model; of a captured module, that their number
// is fixed. Throws as load_model does for a library that cannot be loaded.
Threads library_threads(const std::filesystem::path& library);

}  // namespace ductile::nn

// Exports the model that `maker`, a function (const ModelArgs&) -> std::unique_ptr<Model>, makes.
// Use it once per library, at global scope. A job keeps one number of compute threads for the model
// (train.threads, by default 1), unless a second argument, ductile::nn::Threads::any, declares that
// its bits do not depend on the number. This is true of models that use only ops.h.
#define DUCTILE_EXPORT_MODEL(maker, ...)                                              \
  extern "C" __attribute__((visibility("default"))) const ::ductile::nn::ModelExport* \
  ductile_model_export() {                                                            \
    static const ::ductile::nn::ModelExport kExport = {                               \
        ::ductile::nn::kModelAbi, sizeof(::ductile::nn::ModelArgs), TORCH_VERSION,    \
        [](const ::ductile::nn::ModelArgs& args) -> ::ductile::nn::Model* {           \
          return maker(args).release();                                               \
        },                                                                            \
        ::ductile::nn::threads_of(__VA_ARGS__)};                                      \
    return &kExport;                                                                  \
  }
