#include "ductile/train/training_loss.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "ductile/base/error.h"
#include "ductile/nn/operators.h"
#include "ductile/nn/threads.h"
#include "ductile/train/evaluate.h"

namespace ductile::train {
namespace {

at::Tensor losses_of(nn::Model& model, const data::Batch& batch) {
  return model.loss(forward(model, batch), labels_of(batch), 0).losses;
}

double sum_of(const at::Tensor& losses) {
  const nn::OneThread alone;  // libtorch cuts a large sum by the number of threads
  return losses.sum(at::kDouble).item<double>();
}

// The matrices [inputs, outputs], as those of GPT-2 are; others are [outputs, inputs].
std::set<std::string> matrices_by_columns(nn::Model& model) {
  std::set<std::string> out;
  const nn::OperatorGraph graph = nn::operators_of(model);
  for (const nn::Operator& op : graph.operators()) {
    for (size_t i = 0; i < op.columns.dims.size(); ++i) {
      const nn::NamedTensor& parameter = op.parameters[i];
      if (op.columns.dims[i] == 1 && parameter.tensor.dim() == 2) out.insert(parameter.name);
    }
  }
  return out;
}

}  // namespace

TrainingLoss::TrainingLoss(nn::Model& model, FlatModel& flat, Batches batches)
    : model_(model), flat_(flat), batches_(std::move(batches)) {
  const std::vector<nn::NamedTensor> tensors = model.parameters();
  const std::vector<FlatModel::Entry>& entries = flat.parameters();
  const std::set<std::string> by_columns = matrices_by_columns(model);
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!tensors[i].tensor.requires_grad()) continue;
    const FlatModel::Entry& entry = entries[i];
    const auto own = static_cast<int64_t>(weights_.size());
    ranges_.push_back({entry.offset, own, entry.size});
    const std::span<float> values =
        flat.weights().subspan(static_cast<size_t>(entry.offset), static_cast<size_t>(entry.size));
    weights_.insert(weights_.end(), values.begin(), values.end());
    if (entry.shape.size() < 2 || entry.size == 0) continue;
    const int64_t rows = entry.shape.front(), size = entry.size / rows;
    if (by_columns.contains(entry.name)) {
      for (int64_t column = 0; column < size; ++column)
        filters_.push_back({own + column, rows, size});
    } else {
      for (int64_t row = 0; row < rows; ++row) filters_.push_back({own + row * size, size});
    }
  }
  for (const auto& batch : batches_) num_samples_ += batch->num_samples;
  if (num_samples_ == 0)
    fail(ErrorCode::invalid_argument, "there is no training sample to measure on");
  if (weights_.empty())
    fail(ErrorCode::invalid_argument, "the model has no parameters that are trained");
  batch_gradient_ = AlignedArray<float>(flat.layout().total_size());
  sum_.resize(weights_.size());
  model.train(false);
}

TrainingLoss::~TrainingLoss() { move_to(weights_); }

void TrainingLoss::move_to(std::span<const float> at) {
  for (const Range& r : ranges_) {
    std::ranges::copy(at.subspan(static_cast<size_t>(r.own), static_cast<size_t>(r.size)),
                      flat_.weights().begin() + r.flat);
  }
  flat_.refresh_half_weights();
}

double TrainingLoss::loss(std::span<const float> at) {
  const at::NoGradGuard no_grad;
  move_to(at);
  double sum = 0;
  for (const auto& batch : batches_) sum += sum_of(losses_of(model_, *batch));
  return sum / static_cast<double>(num_samples_);
}

double TrainingLoss::gradient(std::span<const float> at, std::span<float> out) {
  const at::AutoGradMode differentiates(true);
  move_to(at);
  double sum = 0;
  std::ranges::fill(sum_, 0.0);
  for (const auto& batch : batches_) {
    if (batch->num_samples == 0) continue;
    const at::Tensor losses = losses_of(model_, *batch);
    sum += sum_of(losses.detach());
    at::Tensor total;
    {
      const nn::OneThread alone;
      total = losses.sum();
    }
    flat_.backward(total, batch_gradient_.span(), [](int64_t) {});
    for (const Range& r : ranges_) {
      const float* from = batch_gradient_.data() + r.flat;
      double* to = sum_.data() + r.own;
      for (int64_t i = 0; i < r.size; ++i) to[i] += static_cast<double>(from[i]);
    }
  }
  const auto count = static_cast<double>(num_samples_);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(sum_[i] / count);
  return sum / count;
}

}  // namespace ductile::train
