#pragma once

#include <cstdint>
#include <string_view>

#include "ductile/base/table.h"

// The built-in models, simplest first: name, maker, whether the bits depend on the number of
// compute threads (nn/threads.h), help, and the members of ModelHelp from `input` on. A row here
// registers a model. `ductile models`, job files, `ductile config`, the schema and the reference
// page take the name and the help from it; nn/zoo.cc takes the maker, which no module below the
// torch line can link.
#define DUCTILE_MODELS(ROW)                                                                        \
  ROW("mlp", make_mlp, Threads::any, "dense layers with ReLU (model.hidden)", ModelInput::images,  \
      101'770, "28x28x1, 10 classes")                                                              \
  ROW("cnn", make_cnn, Threads::any,                                                               \
      "two convolutions with batch norm and pooling, two dense layers", ModelInput::images,        \
      105'914, "28x28x1, 10 classes")                                                              \
  ROW("airbench", make_airbench, Threads::any,                                                     \
      "whitened VGG-like network of CIFAR-10 speed records (Jordan 2024)", ModelInput::images,     \
      1'971'352, "32x32x3, 10 classes")                                                            \
  ROW("resnet8", make_resnet_cifar<1>, Threads::any, "CIFAR ResNet with 1 block per stage",        \
      ModelInput::images, 75'290, "32x32x3, 10 classes")                                           \
  ROW("resnet20", make_resnet_cifar<3>, Threads::any,                                              \
      "CIFAR ResNet with 3 blocks per stage (He et al. 2015, section 4.2)", ModelInput::images,    \
      269'722, "32x32x3, 10 classes")                                                              \
  ROW("resnet32", make_resnet_cifar<5>, Threads::any, "CIFAR ResNet with 5 blocks per stage",      \
      ModelInput::images, 464'154, "32x32x3, 10 classes")                                          \
  ROW("resnet56", make_resnet_cifar<9>, Threads::any, "CIFAR ResNet with 9 blocks per stage",      \
      ModelInput::images, 853'018, "32x32x3, 10 classes")                                          \
  ROW("resnet18", make_resnet18, Threads::any,                                                     \
      "ImageNet ResNet of basic blocks; torchvision's names", ModelInput::images, 11'689'512,      \
      "224x224x3, 1000 classes")                                                                   \
  ROW("resnet18-cifar", make_resnet18_cifar, Threads::any,                                         \
      "ResNet-18 for small images: 3x3 stem, no pooling; torchvision's names", ModelInput::images, \
      11'173'962, "32x32x3, 10 classes")                                                           \
  ROW("resnet50", make_resnet50, Threads::any,                                                     \
      "ImageNet ResNet of bottleneck blocks; torchvision's names", ModelInput::images, 25'557'032, \
      "224x224x3, 1000 classes")                                                                   \
  ROW("unet", make_unet, Threads::any,                                                             \
      "small U-Net, a class per pixel; only for programs, since no data format has such labels",   \
      ModelInput::images, 450'644, "64x64x3, 4 classes")                                           \
  ROW("gpt", make_gpt, Threads::any,                                                               \
      "GPT-2 architecture (model.layers, heads, dim, dropout); Hugging Face's names",              \
      ModelInput::tokens, 842'496, "128 tokens, vocabulary 256")                                   \
  ROW("mmt", make_mmt, Threads::any,                                                               \
      "multi-modal transformer: an encoder for each input (model.layers, heads, dim, dropout)",    \
      ModelInput::several, 3'226'634, "4 inputs of 32 tokens below 64, 10 classes")                \
  ROW("dlrm", make_dlrm, Threads::any,                                                             \
      "recommendation: dense layers and embedding tables side by side (model.hidden, dim)",        \
      ModelInput::several, 1'528'066, "7 vectors of 64, 7 of 4 indices below 1000, 2 classes")     \
  ROW("candle-uno", make_candle_uno, Threads::any,                                                 \
      "CANDLE-Uno: an encoder of dense layers for each input (model.hidden)", ModelInput::several, \
      174'346, "7 vectors of 64, 10 classes")

namespace ductile::spec {

// What a model reads.
enum class ModelInput { images, tokens, several };

// One built-in model, as `ductile models` lists it.
struct ModelHelp {
  std::string_view name;  // model.name in job.toml
  std::string_view help;
  ModelInput input;
  // The number of learnt scalars, with default options and the input that `reference` names.
  int64_t num_parameters;
  std::string_view reference;
};
Table<ModelHelp> models();

}  // namespace ductile::spec
