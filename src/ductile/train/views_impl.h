#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ductile/data/loader.h"
#include "ductile/spec/job.h"
#include "ductile/train/evaluate.h"

namespace ductile::train {

// The mean of a model's logits over several views of an image (spec::EvalOptions): of the image and
// its mirror image, and of both shifted by a pixel up and to the left, and down and to the right,
// with reflected borders. The four shifted views have half of the weight together.
//
// For a share below 1 these are computed for those images alone whose largest probability is
// smallest; of two equal ones, for the earlier. Which those are is known after the last batch.
class Views {
 public:
  // `forward` is a model's, in evaluation mode, and no gradients are kept.
  Views(Forward forward, const spec::EvalOptions& options)
      : forward_(std::move(forward)), options_(options) {}

  // A batch in the order of evaluation, with the logits of its images as they are.
  void take(const data::Batch& batch, const at::Tensor& images, const at::Tensor& logits,
            const at::Tensor& labels);
  // After the last batch; fetches images again, and calls `each` after each batch of them.
  void finish(data::Loader& loader, const std::function<void()>& each);

  const at::Tensor& logits() const { return logits_; }  // [N, K], of all samples
  const at::Tensor& labels() const { return labels_; }

 private:
  // `own` are the logits of the images.
  at::Tensor mean(const at::Tensor& images, const at::Tensor& own);
  at::Tensor with_mirrored(const at::Tensor& images, const at::Tensor& own);
  // The places among all samples, in ascending order.
  std::vector<int64_t> least_certain() const;

  const Forward forward_;
  spec::EvalOptions options_;
  int64_t batch_size_ = 1;
  std::vector<int64_t> samples_;  // of the data set
  std::vector<at::Tensor> parts_, label_parts_;
  at::Tensor logits_, labels_;
};

}  // namespace ductile::train
