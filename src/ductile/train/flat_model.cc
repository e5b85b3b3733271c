#include "ductile/train/flat_model.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "ductile/base/error.h"
#include "ductile/base/pages.h"
#include "ductile/nn/compat.h"
#include "ductile/optim/elementwise.h"

namespace ductile::train {
namespace {

constexpr size_t kMostFreed = 64 << 20;  // bytes that are kept until the system gets them back

bool is_half(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf;
}

// Of a gradient of which some elements alone are summed here, or none; the others are zero.
void write_part(const at::Tensor& gradient, const optim::Segment& segment,
                std::span<const parallel::FloatRange> ranges, std::span<float> out) {
  at::Tensor flat;
  int64_t written = 0;  // that are not zero
  for (const parallel::FloatRange& r : ranges) {
    const int64_t begin = std::max(r.begin, segment.offset);
    const int64_t end = std::min(r.end, segment.offset + segment.size);
    if (begin >= end) continue;
    if (!flat.defined()) flat = gradient.contiguous().view({-1});
    const at::Tensor part = flat.slice(0, begin - segment.offset, end - segment.offset);
    at::from_blob(out.data() + begin, {end - begin}, at::kFloat).copy_(part);
    written += part.count_nonzero().item<int64_t>();
  }
  DUCTILE_CHECK(written == gradient.count_nonzero().item<int64_t>(),
                "the gradient of parameter {} is outside of what is summed", segment.name);
}

Shape shape_of(const at::Tensor& t) { return t.sizes().vec(); }

at::Tensor view(float* data, const at::Tensor& like) {
  return at::from_blob(data, like.sizes(), at::kFloat);
}

// to = the parameter's gradient. A small one needs no operator of libtorch, whose call takes longer
// than the copy; it would use one thread, too.
void write_gradient(const at::Tensor& gradient, const at::Tensor& parameter, float* to) {
  constexpr int64_t kSmall = 32768;
  const bool plain = gradient.scalar_type() == at::kFloat && gradient.device().is_cpu() &&
                     gradient.layout() == at::kStrided && !gradient.is_neg() &&
                     !gradient._is_zerotensor();
  if (plain && gradient.numel() < kSmall && gradient.is_contiguous() &&
      gradient.sizes() == parameter.sizes()) {
    std::copy_n(gradient.data_ptr<float>(), gradient.numel(), to);
  } else {
    view(to, parameter).copy_(gradient);
  }
}

}  // namespace

// Takes the gradient of each parameter where autograd would add it to .grad.
struct FlatModel::Sink {
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;  // they carry the hooks
  std::span<float> out;
  const std::function<void(int64_t)>* ready = nullptr;
  std::vector<bool> written;
  size_t complete = 0;  // parameters from here on are written
  std::exception_ptr error;

  void take(const optim::ParamLayout& layout, size_t i, at::Tensor parameter) {
    if (ready == nullptr || error) return;
    const at::NoGradGuard no_grad;
    at::Tensor& gradient = parameter.mutable_grad();
    write_gradient(gradient, parameter, out.data() + layout.segments()[i].offset);
    gradient = at::Tensor();
    written[i] = true;
    const size_t before = complete;
    while (complete > 0 && written[complete - 1]) --complete;
    if (complete == before || complete == 0) return;
    try {
      (*ready)(layout.segments()[complete].offset);
    } catch (...) {
      error = std::current_exception();
    }
  }
};

FlatModel::FlatModel(nn::Model& model, const spec::OptimizerOptions& options)
    : layout_(options), parameters_(model.parameters()) {
  const at::NoGradGuard no_grad;
  bool any_half = false;
  for (const nn::NamedTensor& p : parameters_) {
    DUCTILE_CHECK(p.tensor.scalar_type() == at::kFloat || is_half(p.tensor),
                  "parameter {} is neither fp32 nor half", p.name);
    layout_.add(p.name, shape_of(p.tensor), p.is_norm, p.frozen || !p.tensor.requires_grad());
    any_half |= is_half(p.tensor);
    if (p.tensor.scalar_type() == at::kHalf) half_type_ = DType::f16;
  }
  // The model's own tensors are freed one after the other as they are copied, so that there is
  // never memory for all weights twice.
  weights_ = untouched_zeros<float>(layout_.total_size());
  size_t freed = 0;
  if (any_half) half_weights_ = untouched_zeros<uint16_t>(layout_.total_size());

  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& tensor = parameters_[i].tensor;
    const optim::Segment& segment = layout_.segments()[i];
    parameter_entries_.push_back(
        {parameters_[i].name, shape_of(tensor), segment.offset, segment.size});
    blank_.push_back(parameters_[i].blank);
    if (!blank_[i]) view(weights_.span().data() + segment.offset, tensor).copy_(tensor);
    tensor.set_data(is_half(tensor) ? at::from_blob(half_weights_.span().data() + segment.offset,
                                                    tensor.sizes(), tensor.scalar_type())
                                    : view(weights_.span().data() + segment.offset, tensor));
    if (!blank_[i]) refresh_half_weights({segment.offset, segment.offset + segment.size});
    freed += segment.size * sizeof(float);
    if (freed < kMostFreed) continue;
    give_back_freed();
    freed = 0;
  }

  int64_t buffer_size = 0;
  for (nn::NamedTensor& b : model.buffers()) {
    DUCTILE_CHECK(b.tensor.scalar_type() == at::kFloat, "buffer {} is not fp32", b.name);
    buffer_entries_.push_back({b.name, shape_of(b.tensor), buffer_size, b.tensor.numel()});
    buffers_.push_back(b);
    buffer_size += b.tensor.numel();
  }
  buffer_values_ = AlignedArray<float>(buffer_size);
  for (size_t i = 0; i < buffers_.size(); ++i) {
    at::Tensor place =
        view(buffer_values_.span().data() + buffer_entries_[i].offset, buffers_[i].tensor);
    place.copy_(buffers_[i].tensor);
    buffers_[i].tensor.set_data(place);
  }
}

void FlatModel::refresh_half_weights(parallel::FloatRange range) {
  if (half_weights_.span().empty()) return;
  const auto begin = static_cast<size_t>(range.begin);
  const auto size = static_cast<size_t>(range.end - range.begin);
  const std::span<uint16_t> half = half_weights_.span().subspan(begin, size);
  const std::span<const float> weights = weights_.span().subspan(begin, size);
  if (half_type_ == DType::bf16) {
    optim::to_bf16(half, weights);
  } else {
    optim::to_f16(half, weights);
  }
}

void FlatModel::set_blank(size_t parameter, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const Entry& entry = parameter_entries_.at(parameter);
  at::from_blob(weights_.span().data() + entry.offset, entry.shape, at::kFloat).copy_(value);
  refresh_half_weights({entry.offset, entry.offset + entry.size});
  blank_[parameter] = false;
}

void FlatModel::set_epoch(double epoch) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = parameters_[i].tensor;
    const bool trained = epoch < layout_.segments()[i].trained_epochs;
    if (parameter.requires_grad() == trained) continue;
    parameter.set_requires_grad(trained);
    sink_ = nullptr;  // its hooks belong to other parameters
  }
}

bool FlatModel::is_trained() const {
  return std::ranges::any_of(parameters_,
                             [](const nn::NamedTensor& p) { return p.tensor.requires_grad(); });
}

std::vector<at::Tensor> FlatModel::gradients(const at::Tensor& loss) const {
  std::vector<at::Tensor> inputs;
  for (const nn::NamedTensor& p : parameters_) {
    if (p.tensor.requires_grad()) inputs.push_back(p.tensor);
  }
  std::vector<at::Tensor> found =
      torch::autograd::grad({loss}, inputs, {}, nn::kNone, false, /*allow_unused=*/true);
  std::vector<at::Tensor> all(parameters_.size());
  for (size_t i = 0, next = 0; i < all.size(); ++i) {
    if (parameters_[i].tensor.requires_grad()) all[i] = std::move(found[next++]);
  }
  return all;
}

void FlatModel::write_gradients(std::span<const at::Tensor> gradients, std::span<float> out) const {
  const at::NoGradGuard no_grad;
  int64_t end = 0;  // of the segment before: what lies between two segments is a gap
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const optim::Segment& segment = layout_.segments()[i];
    std::fill(out.begin() + end, out.begin() + segment.offset, 0.0f);
    if (gradients[i].defined()) {
      write_gradient(gradients[i], parameters_[i].tensor, out.data() + segment.offset);
    } else {
      std::fill_n(out.begin() + segment.offset, segment.size, 0.0f);
    }
    end = segment.offset + segment.size;
  }
  std::fill(out.begin() + end, out.begin() + layout_.total_size(), 0.0f);
}

void FlatModel::write_gradients(std::span<const at::Tensor> gradients,
                                std::span<const parallel::FloatRange> ranges,
                                std::span<float> out) const {
  const at::NoGradGuard no_grad;
  for (const parallel::FloatRange& range : ranges) {
    const int64_t end = std::min(range.end, layout_.total_size());
    if (range.begin < end) std::fill(out.begin() + range.begin, out.begin() + end, 0.0f);
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const optim::Segment& segment = layout_.segments()[i];
    if (!gradients[i].defined() || segment.size == 0) continue;
    const bool inside = std::ranges::any_of(ranges, [&](const parallel::FloatRange& r) {
      return r.begin <= segment.offset && segment.offset + segment.size <= r.end;
    });
    if (inside) {
      write_gradient(gradients[i], parameters_[i].tensor, out.data() + segment.offset);
    } else {
      write_part(gradients[i], segment, ranges, out);
    }
  }
}

void FlatModel::backward(const at::Tensor& loss, std::span<float> out,
                         const std::function<void(int64_t)>& ready) {
  if (!sink_) {
    sink_ = std::make_shared<Sink>();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& parameter = parameters_[i].tensor;
      if (!parameter.requires_grad()) continue;
      sink_->accumulators.push_back(torch::autograd::impl::grad_accumulator(parameter));
      using Tensors = std::vector<at::Tensor>;
      // The hook belongs to the accumulator, which the sink holds.
      sink_->accumulators.back()->add_post_hook(
          std::make_unique<torch::autograd::utils::LambdaPostHook>(
              [this, sink = sink_.get(), i](const Tensors& outputs, const Tensors&) {
                sink->take(layout_, i, parameters_[i].tensor);
                return outputs;
              }));
    }
  }
  for (nn::NamedTensor& p : parameters_) p.tensor.mutable_grad() = at::Tensor();  // of a failed one
  int64_t end = 0;
  for (const optim::Segment& segment : layout_.segments()) {  // gaps
    std::fill(out.begin() + end, out.begin() + segment.offset, 0.0f);
    end = segment.offset + segment.size;
  }
  std::fill(out.begin() + end, out.begin() + layout_.total_size(), 0.0f);
  Sink& sink = *sink_;
  sink.out = out;
  sink.ready = &ready;
  sink.written.assign(parameters_.size(), false);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor.requires_grad()) continue;
    const optim::Segment& segment = layout_.segments()[i];
    std::fill_n(out.begin() + segment.offset, segment.size, 0.0f);
    sink.written[i] = true;
  }
  sink.complete = parameters_.size();
  sink.error = nullptr;
  torch::autograd::backward({loss});
  sink.ready = nullptr;
  if (sink.error) std::rethrow_exception(std::exchange(sink.error, nullptr));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const optim::Segment& segment = layout_.segments()[i];
    if (!sink.written[i]) std::fill_n(out.begin() + segment.offset, segment.size, 0.0f);
  }
  ready(0);
}

WeightsSwap::WeightsSwap(FlatModel& model, std::span<float> weights, std::span<float> buffers,
                         std::optional<std::vector<parallel::FloatRange>> ranges)
    : model_(model), weights_(weights), buffers_(buffers), ranges_(std::move(ranges)) {
  swap();
}

WeightsSwap::~WeightsSwap() { swap(); }

void WeightsSwap::swap() {
  if (weights_.empty()) return;
  const std::span<float> own = model_.weights();
  if (ranges_) {
    for (const parallel::FloatRange& r : *ranges_)
      std::swap_ranges(weights_.begin() + r.begin, weights_.begin() + r.end, own.begin() + r.begin);
  } else {
    std::ranges::swap_ranges(weights_, own);
  }
  std::ranges::swap_ranges(buffers_, model_.buffer_values());
  model_.refresh_half_weights();
}

}  // namespace ductile::train
