#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ductile/base/aligned_array.h"
#include "ductile/base/dtype.h"
#include "ductile/nn/model.h"
#include "ductile/optim/param_layout.h"
#include "ductile/parallel/float_range.h"
#include "ductile/spec/job.h"

namespace ductile::train {

// A model whose parameters are views into flat arrays: fp32 master weights, and in bf16/fp16 runs
// the rounded copy that forward and backward read. The optimiser, the reduction and the checkpoint
// see flat arrays; the model sees its own tensors. The model must outlive this object, which owns
// the memory its parameters point into.
class FlatModel {
 public:
  // One named range of a flat array, with the shape of the tensor it holds.
  struct Entry {
    std::string name;
    Shape shape;
    int64_t offset, size;
  };

  FlatModel(nn::Model& model, const spec::OptimizerOptions& options);

  const optim::ParamLayout& layout() const { return layout_; }
  const std::vector<Entry>& parameters() const { return parameter_entries_; }
  const std::vector<Entry>& buffers() const { return buffer_entries_; }

  std::span<float> weights() { return weights_.span(); }
  std::span<uint16_t> half_weights() { return half_weights_.span(); }  // empty in fp32
  DType half_type() const { return half_type_; }
  // Writes the rounded copy again, of these elements or of all. Call it after anything but the
  // optimiser has changed the weights.
  void refresh_half_weights(parallel::FloatRange range);
  void refresh_half_weights() { refresh_half_weights({0, layout_.total_size()}); }

  // Parameters whose first values were withheld (nn/first_values.h) are zero, and take no memory,
  // until they are set.
  bool is_blank(size_t parameter) const { return blank_[parameter]; }
  void set_blank(size_t parameter, const at::Tensor& value);
  void none_is_blank() { blank_.assign(blank_.size(), false); }

  // From now on only those parameters have gradients that are trained in a step that begins after
  // so many epochs (Segment::trained_epochs).
  void set_epoch(double epoch);
  bool is_trained() const;  // whether any parameter is, in this epoch

  // The floating-point buffers (running statistics): the model's own tensors are views into this.
  std::span<float> buffer_values() { return buffer_values_.span(); }

  // The gradients of `loss`, one per parameter, in the parameter's type; a gradient is undefined if
  // the loss does not depend on its parameter. The parameters' own .grad stays unchanged.
  std::vector<at::Tensor> gradients(const at::Tensor& loss) const;
  // Writes such gradients into `out` (layout().total_size() values, fp32); undefined gradients and
  // the gaps between parameters become zeros.
  void write_gradients(std::span<const at::Tensor> gradients, std::span<float> out) const;
  // The same for these elements alone, in ascending ranges that hold all that is not zero of every
  // gradient that is defined; `out` may be longer.
  void write_gradients(std::span<const at::Tensor> gradients,
                       std::span<const parallel::FloatRange> ranges, std::span<float> out) const;
  // Does both in one, with the same bits: during the backward pass `out` fills from its end to its
  // start. ready(begin) is called whenever `out` is complete from element `begin` on, with falling
  // values and finally with 0.
  void backward(const at::Tensor& loss, std::span<float> out,
                const std::function<void(int64_t begin)>& ready);

 private:
  struct Sink;
  optim::ParamLayout layout_;
  std::vector<nn::NamedTensor> parameters_, buffers_;
  std::vector<Entry> parameter_entries_, buffer_entries_;
  std::vector<bool> blank_;
  DType half_type_ = DType::bf16;
  AlignedArray<float> weights_, buffer_values_;
  AlignedArray<uint16_t> half_weights_;
  std::shared_ptr<Sink> sink_;  // of backward()
};

// While this object lives, the model computes with other weights and buffers (the moving averages);
// its destructor gives the model its own again, bit for bit. With empty spans nothing happens.
class WeightsSwap {
 public:
  // `ranges`: of the weights, those that are given; the others are of no use. Nothing: all of them.
  WeightsSwap(FlatModel& model, std::span<float> weights, std::span<float> buffers,
              std::optional<std::vector<parallel::FloatRange>> ranges = std::nullopt);
  WeightsSwap(const WeightsSwap&) = delete;
  WeightsSwap& operator=(const WeightsSwap&) = delete;
  ~WeightsSwap();

 private:
  void swap();

  FlatModel& model_;
  std::span<float> weights_, buffers_;
  const std::optional<std::vector<parallel::FloatRange>> ranges_;
};

}  // namespace ductile::train
