#include "ductile/train/evaluate.h"

#include <cmath>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/nn/threads.h"
#include "ductile/run/json_lines.h"
#include "ductile/train/views_impl.h"

namespace ductile::train {

double Evaluation::perplexity() const { return std::exp(loss); }

nlohmann::json Evaluation::to_json() const {
  return {{"loss", run::json_number(loss)}, {"accuracy", accuracy}, {"samples", num_samples}};
}

Evaluation Evaluation::from_json(const nlohmann::json& value) {
  Evaluation out{0, value.at("accuracy"), value.at("samples")};
  run::number_from_json(value.at("loss"), out.loss);
  return out;
}

at::Tensor input_of(const data::Batch& batch) {
  void* data = const_cast<std::byte*>(batch.input);
  const Shape& shape = batch.shape;
  if (batch.dtype == DType::i64) return at::from_blob(data, shape, at::kLong);
  DUCTILE_CHECK(batch.dtype == DType::f32 && shape.size() == 4);
  if (!batch.channels_last) return at::from_blob(data, shape, at::kFloat);
  const int64_t c = shape[1], h = shape[2], w = shape[3];
  return at::from_blob(data, shape, {h * w * c, 1, w * c, c}, at::kFloat);
}

at::Tensor labels_of(const data::Batch& batch) {
  void* data = const_cast<int64_t*>(batch.labels);
  if (batch.dtype == DType::i64) return at::from_blob(data, batch.shape, at::kLong);
  return at::from_blob(data, {batch.num_samples}, at::kLong);
}

void update_statistics(nn::Model& model, data::Loader& loader, int64_t batches) {
  const at::NoGradGuard no_grad;
  model.train(true);
  for (int64_t i = 0; i < batches; ++i) model.forward(input_of(*loader.next()));
}

namespace {

// Adds the losses and hits of logits that are final.
struct Tally {
  Evaluation result;
  int64_t predictions = 0, correct = 0;

  void add(nn::Model& model, const at::Tensor& logits, const at::Tensor& labels) {
    const nn::LossOutput loss = model.loss(logits, labels, 0);
    const nn::OneThread alone;  // libtorch cuts a large sum by the number of threads
    result.loss += loss.losses.sum(at::kDouble).item<double>();
    correct += loss.correct;
    predictions += loss.predictions;
  }
};

}  // namespace

Evaluation evaluate(nn::Model& model, data::Loader& loader, const spec::EvalOptions& options,
                    const std::function<void(int64_t)>& each) {
  const at::NoGradGuard no_grad;
  model.train(false);
  Tally tally;
  Views views(model, options);
  while (const auto batch = loader.next()) {
    const at::Tensor images = input_of(*batch), labels = labels_of(*batch);
    const at::Tensor logits = model.forward(images);
    if (options.views == "one") {
      tally.add(model, logits, labels);
    } else {
      views.take(*batch, images, logits, labels);
    }
    tally.result.num_samples += batch->num_samples;
    each(tally.result.num_samples);
  }
  if (tally.result.num_samples == 0) {
    model.train(true);
    fail(ErrorCode::invalid_argument, "there is no held-out sample to evaluate on");
  }
  if (options.views != "one") {
    views.finish(loader);
    tally.add(model, views.logits(), views.labels());
  }
  model.train(true);
  Evaluation result = tally.result;
  result.loss /= static_cast<double>(result.num_samples);
  result.accuracy = static_cast<double>(tally.correct) / static_cast<double>(tally.predictions);
  return result;
}

}  // namespace ductile::train
