#include "ductile/spec/models.h"

namespace ductile::spec {
namespace {

constexpr std::string_view kGrey = "28x28x1, 10 classes";
constexpr std::string_view kCifar = "32x32x3, 10 classes";
constexpr std::string_view kImageNet = "224x224x3, 1000 classes";

constexpr ModelHelp kModels[] = {
    {"mlp", "dense layers with ReLU (model.hidden)", ModelInput::images, 101'770, kGrey},
    {"cnn", "two convolutions with batch norm and pooling, two dense layers", ModelInput::images,
     105'914, kGrey},
    {"resnet8", "CIFAR ResNet with 1 block a stage", ModelInput::images, 75'290, kCifar},
    {"resnet20", "CIFAR ResNet with 3 blocks a stage (He et al. 2015, section 4.2)",
     ModelInput::images, 269'722, kCifar},
    {"resnet32", "CIFAR ResNet with 5 blocks a stage", ModelInput::images, 464'154, kCifar},
    {"resnet56", "CIFAR ResNet with 9 blocks a stage", ModelInput::images, 853'018, kCifar},
    {"resnet18", "ImageNet ResNet of basic blocks; torchvision's names", ModelInput::images,
     11'689'512, kImageNet},
    {"resnet18-cifar", "ResNet-18 for small images: 3x3 stem, no pooling; torchvision's names",
     ModelInput::images, 11'173'962, kCifar},
    {"resnet50", "ImageNet ResNet of bottleneck blocks; torchvision's names", ModelInput::images,
     25'557'032, kImageNet},
    {"unet",
     "small U-Net: a class for each pixel; for programs, no data format has such labels yet",
     ModelInput::images, 450'644, "64x64x3, 4 classes"},
    {"gpt", "GPT-2 architecture (model.layers, heads, dim, dropout); Hugging Face's names",
     ModelInput::tokens, 842'496, "128 tokens, vocabulary 256"},
};

}  // namespace

std::span<const ModelHelp> models() { return kModels; }

}  // namespace ductile::spec
