#pragma once

#include <memory>
#include <optional>
#include <span>

#include <ATen/core/Tensor.h>

// The number of floating-point operations of a model, counted while it runs once. Each multiply-add
// of convolutions, linear layers, matrix products and attention counts as two, computed from the
// sizes of the operands; the algorithm of a kernel (Winograd, for example) does not matter.
// Element-wise work, normalisation and pooling are not counted, as is usual in papers.
namespace at {
struct RecordFunction;
}

namespace ductile::nn {

class Model;

// Counts the operations of the model's forward pass over `sample`, a batch of one, in evaluation
// mode. There is no result if that throws, since a model need not work on a single sample. It does
// not see arithmetic outside libtorch that is not announced (KnownFlops), nor that of threads which
// the model starts.
//
// Afterwards the model's parameters and buffers, libtorch's CPU generator and that of this thread
// (generator.h) are unchanged, to the bit, and the model is in training mode. libtorch's generator
// is locked meanwhile: other threads may be drawing from it.
std::optional<double> forward_flops(Model& model, const at::Tensor& sample);
// The same for a model of several inputs.
std::optional<double> forward_flops(Model& model, std::span<const at::Tensor> inputs);

// Announces the operations of an operator that does not use libtorch's: everything that the calling
// thread does while this object lives, including libtorch operators, counts as that many. It costs
// almost nothing while nobody counts. It works across shared libraries that each have a copy of
// this code, because it uses libtorch's profiling hooks, which they share.
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
