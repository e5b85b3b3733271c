#pragma once

#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

// The floating-point operations of a model, counted while it runs once. Two for each multiply-add
// of convolutions, linear layers, matrix products and attention, by the sizes of their operands:
// how a kernel gets there (Winograd, say) changes nothing. Element-wise work, normalisation and
// pooling are not counted, as is usual in papers.
namespace at {
struct RecordFunction;
}

namespace ductile::nn {

class Model;

// Of the model's forward pass over `sample`, a batch of one, in evaluation mode. Nothing where that
// throws, since a model need not work on a single sample. What it cannot see: arithmetic that is
// neither libtorch's nor announced (KnownFlops), and that of threads which the model starts.
//
// The model's parameters and buffers and libtorch's CPU generator are afterwards as they were, to
// the bit, and the model is in training mode.
std::optional<double> forward_flops(Model& model, const at::Tensor& sample);

// An operator that computes by itself announces its operations: what the calling thread does while
// this lives counts as so many, the libtorch operators in it included. Costs nothing to speak of
// while nobody counts. Works across shared libraries, each with a copy of this code: it tells
// libtorch's profiling hooks, which they share.
class KnownFlops {
 public:
  explicit KnownFlops(double flops);
  ~KnownFlops();
  KnownFlops(const KnownFlops&) = delete;
  KnownFlops& operator=(const KnownFlops&) = delete;

 private:
  std::unique_ptr<at::RecordFunction> record_;  // null while nobody listens
};

// Of a convolution without bias that gives y: w [O, I / groups, ...].
double convolution_flops(const at::Tensor& y, const at::Tensor& w);

}  // namespace ductile::nn
