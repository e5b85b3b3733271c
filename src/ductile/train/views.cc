#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>

#include <ATen/ATen.h>

#include "ductile/base/error.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/views_impl.h"

namespace ductile::train {
namespace {

at::Tensor shifted(const at::Tensor& padded, const at::Tensor& like, int64_t by) {
  return padded.narrow(2, by, like.size(2)).narrow(3, by, like.size(3));
}

}  // namespace

void Views::take(const data::Batch& batch, const at::Tensor& images, const at::Tensor& logits,
                 const at::Tensor& labels) {
  if (images.dim() != 4 || logits.dim() != 2) {
    fail(ErrorCode::invalid_argument,
         "eval.views = \"{}\" needs a model that gives an image one class; set eval.views = "
         "\"one\"",
         options_.views);
  }
  batch_size_ = std::max(batch_size_, batch.num_samples);
  samples_.insert(samples_.end(), batch.samples.begin(), batch.samples.end());
  const at::Tensor own = logits.to(at::kFloat);
  parts_.push_back(options_.views_share >= 1 ? mean(images, own) : own);
  label_parts_.push_back(labels.clone());  // the batch's memory goes on to another one
}

void Views::finish(data::Loader& loader, const std::function<void()>& each) {
  logits_ = at::cat(parts_);
  labels_ = at::cat(label_parts_);
  if (options_.views_share >= 1) return;
  const std::vector<int64_t> places = least_certain();
  for (size_t first = 0; first < places.size(); first += static_cast<size_t>(batch_size_)) {
    const size_t count = std::min(static_cast<size_t>(batch_size_), places.size() - first);
    std::vector<int64_t> indices;
    for (size_t i = first; i < first + count; ++i) {
      indices.push_back(samples_[static_cast<size_t>(places[i])]);
    }
    const auto batch = loader.fetch(indices, 0);
    const at::Tensor rows =
        at::tensor(at::ArrayRef<int64_t>(places.data() + first, count), at::kLong);
    logits_.index_copy_(0, rows, mean(input_of(*batch), logits_.index_select(0, rows)));
    each();
  }
}

at::Tensor Views::with_mirrored(const at::Tensor& images, const at::Tensor& own) {
  return (own + forward_({images.flip({3})}).to(at::kFloat)).mul_(0.5);
}

at::Tensor Views::mean(const at::Tensor& images, const at::Tensor& own) {
  const at::Tensor straight = with_mirrored(images, own);
  if (options_.views == "flip") return straight;
  const at::Tensor padded = at::reflection_pad2d(images.contiguous(), {1, 1, 1, 1});
  at::Tensor sum = at::zeros_like(straight);
  for (const int64_t by : {0, 2}) {
    const at::Tensor view = shifted(padded, images, by).contiguous();
    sum += with_mirrored(view, forward_({view}).to(at::kFloat));
  }
  return straight.mul_(0.5).add_(sum, 0.25);
}

std::vector<int64_t> Views::least_certain() const {
  const at::Tensor certainty = at::softmax(logits_, 1).amax({1}).contiguous();
  const float* const values = certainty.data_ptr<float>();
  std::vector<int64_t> places(samples_.size());
  std::iota(places.begin(), places.end(), 0);
  std::ranges::stable_sort(places, {}, [&](int64_t i) { return values[i]; });
  places.resize(static_cast<size_t>(
      std::llround(options_.views_share * static_cast<double>(samples_.size()))));
  std::ranges::sort(places);
  return places;
}

}  // namespace ductile::train
