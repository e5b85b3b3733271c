#pragma once

#include <memory>

#include "ductile/nn/model.h"

// The makers of the built-in models; zoo.cc puts them into the table.
namespace ductile::nn {

// Dense layers fc1 .. fcN of options.hidden with ReLU between, on the flattened image.
std::unique_ptr<Model> make_mlp(const ModelArgs& args);

// conv 3x3 - BN - ReLU - pool 2, twice (16 and 32 channels, or width and twice that), then dense
// layers of 4 * width and K.
std::unique_ptr<Model> make_cnn(const ModelArgs& args);

// The whitened network of KellerJordan/cifar10-airbench: three groups of width (or 64), 4 * width
// and 4 * width channels.
std::unique_ptr<Model> make_airbench(const ModelArgs& args);

// He et al., "Deep residual learning for image recognition" (2015), section 4.2: 6 * blocks + 2
// layers, three stages of 16, 32, 64 channels, option-A (parameter-free) shortcuts.
template <int64_t kBlocks>
std::unique_ptr<Model> make_resnet_cifar(const ModelArgs& args);

// The same paper, section 4.1, as torchvision builds them (stride on the 3x3 of a bottleneck).
std::unique_ptr<Model> make_resnet18(const ModelArgs& args);
std::unique_ptr<Model> make_resnet18_cifar(const ModelArgs& args);
std::unique_ptr<Model> make_resnet50(const ModelArgs& args);

// A small U-Net (Ronneberger, Fischer and Brox, "U-Net: convolutional networks for biomedical image
// segmentation", 2015) with padded convolutions and batch norm: four levels of width (or 16), 2, 4
// and 8 times that; nearest-neighbour upsampling. Images [B, C, H, W] with sides in multiples of 8
// -> logits [B, K, H, W]; labels [B, H, W].
std::unique_ptr<Model> make_unet(const ModelArgs& args);

// Radford et al., "Language models are unsupervised multitask learners" (2019): pre-norm decoder,
// learnt positions, tied head; parameters as Hugging Face's GPT-2 names and lays them out.
std::unique_ptr<Model> make_gpt(const ModelArgs& args);

// The models of GraphPipe's evaluation (arXiv 2406.17145, appendix A.2), whose branches, one for
// each input, a pipeline runs side by side; K logits in place of the paper's single output.
//
// Multi-modal transformer: for each input an embedding with learnt positions and options.layers
// blocks of Vaswani et al. 2017, as PyTorch's TransformerEncoderLayer with norm_first and four
// times the width inside; the means over their tokens, joined, are one linear layer's input.
std::unique_ptr<Model> make_mmt(const ModelArgs& args);
// DLRM (Naumov et al., arXiv 1906.00091): for each vector dense layers of options.hidden with ReLU,
// for each input of indices the rows of a table, options.dim wide; joined, again dense layers of
// options.hidden, and one without ReLU.
std::unique_ptr<Model> make_dlrm(const ModelArgs& args);
// CANDLE-Uno (Wozniak et al., BMC Bioinformatics 19, 2018): the same of vectors alone.
std::unique_ptr<Model> make_candle_uno(const ModelArgs& args);

// Throws invalid_argument unless the data gives images of at least `side` pixels each way.
void require_images(const ModelArgs& args, int64_t side);

}  // namespace ductile::nn
