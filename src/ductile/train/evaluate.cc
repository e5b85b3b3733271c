#include "ductile/train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <span>

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

bool Evaluation::better_than(const Evaluation& other) const {
  return std::isnan(accuracy) ? loss < other.loss : accuracy > other.accuracy;
}

nlohmann::json Evaluation::to_json() const {
  nlohmann::json out = {{"loss", run::json_number(loss)}, {"samples", num_samples}};
  if (!std::isnan(accuracy)) out["accuracy"] = accuracy;
  for (const auto& [name, value] : metrics) out["metrics"][name] = run::json_number(value);
  if (classes) {
    out["calibration_error"] = run::json_number(classes->calibration_error);
    out["brier"] = run::json_number(classes->brier);
    out["class_samples"] = classes->samples;
    out["class_correct"] = classes->correct;
  }
  return out;
}

// States of earlier versions have no classes.
Evaluation Evaluation::from_json(const nlohmann::json& value) {
  Evaluation out;
  out.accuracy = value.value("accuracy", std::nan(""));
  value.at("samples").get_to(out.num_samples);
  run::number_from_json(value.at("loss"), out.loss);
  if (const auto metrics = value.find("metrics"); metrics != value.end()) {
    for (const auto& [name, metric] : metrics->items())
      run::number_from_json(metric, out.metrics[name]);
  }
  if (!value.contains("class_samples")) return out;
  ClassCounts& classes = out.classes.emplace();
  run::number_from_json(value.at("calibration_error"), classes.calibration_error);
  run::number_from_json(value.at("brier"), classes.brier);
  value.at("class_samples").get_to(classes.samples);
  value.at("class_correct").get_to(classes.correct);
  return out;
}

nlohmann::json Evaluation::describe(std::span<const std::string> class_names) const {
  nlohmann::json out = to_json();
  for (const char* key : {"class_samples", "class_correct"}) out.erase(key);
  if (const auto worst = classes ? classes->worst() : std::nullopt)
    out["worst_class"] = describe_class(*classes, *worst, class_names);
  return out;
}

nn::Tensors inputs_of(const data::Batch& batch) {
  if (batch.inputs.empty()) return {input_of(batch)};
  nn::Tensors out;
  for (const data::BatchInput& input : batch.inputs) {
    out.push_back(at::from_blob(const_cast<std::byte*>(input.data), input.shape,
                                input.dtype == DType::i64 ? at::kLong : at::kFloat));
  }
  return out;
}

at::Tensor forward(nn::Model& model, const data::Batch& batch) {
  return nn::forward(model, inputs_of(batch));
}

at::Tensor input_of(const data::Batch& batch) {
  if (!batch.inputs.empty()) return inputs_of(batch).front();
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
  if (batch.dtype == DType::i64 && batch.inputs.empty()) {
    return at::from_blob(data, batch.shape, at::kLong);
  }
  return at::from_blob(data, {batch.num_samples}, at::kLong);
}

at::Tensor class_logits(const at::Tensor& logits, int64_t num_samples) {
  if (logits.dim() != 2 || logits.size(0) != num_samples || logits.size(1) < 1) return {};
  return logits.to(at::kCPU, at::kFloat).contiguous();
}

namespace {

void count_classes(const at::Tensor& logits, const at::Tensor& labels, ClassScores& scores) {
  const auto num_logits = static_cast<size_t>(logits.size(1));
  const float* row = logits.data_ptr<float>();
  const int64_t* const label = labels.data_ptr<int64_t>();
  for (int64_t i = 0; i < labels.size(0); ++i, row += num_logits)
    scores.add({row, num_logits}, label[i]);
}

// A model of the user's may give a number for each sample that is no logit of its class.
bool has_each_label(const at::Tensor& logits, const at::Tensor& labels) {
  const std::span<const int64_t> all(labels.data_ptr<int64_t>(),
                                     static_cast<size_t>(labels.numel()));
  return std::ranges::all_of(all,
                             [&](int64_t label) { return label >= 0 && label < logits.size(1); });
}

// Adds the losses and hits of logits that are final.
struct Tally {
  ClassScores& scores;
  Evaluation result;
  int64_t predictions = 0, correct = 0;
  bool classifies = true;

  void add(nn::Model& model, const at::Tensor& logits, const at::Tensor& labels) {
    const nn::LossOutput loss = model.loss(logits, labels, 0);
    {
      const nn::OneThread alone;  // libtorch cuts a large sum by the number of threads
      result.loss += loss.losses.sum(at::kDouble).item<double>();
    }
    correct += loss.correct;
    predictions += loss.predictions;
    const at::Tensor rows = class_logits(logits, labels.size(0));
    classifies = classifies && rows.defined() && labels.dim() == 1 && has_each_label(rows, labels);
    if (classifies) count_classes(rows, labels, scores);
  }
};

}  // namespace

Evaluation evaluate(nn::Model& model, data::Loader& loader, const spec::EvalOptions& options,
                    ClassScores& scores, const std::function<void(int64_t)>& each,
                    const Forward& forward) {
  const at::NoGradGuard no_grad;
  const EvaluationMode mode(model);
  const Forward run =
      forward ? forward : [&model](const nn::Tensors& x) { return nn::forward(model, x); };
  Tally tally{scores, {}};
  Views views(run, options);
  while (const auto batch = loader.next()) {
    const at::Tensor labels = labels_of(*batch);
    const at::Tensor logits = run(inputs_of(*batch));
    if (options.views == "one") {
      tally.add(model, logits, labels);
    } else {
      views.take(*batch, input_of(*batch), logits, labels);
    }
    tally.result.num_samples += batch->num_samples;
    each(tally.result.num_samples);
  }
  if (tally.result.num_samples == 0)
    fail(ErrorCode::invalid_argument, "there is no held-out sample to evaluate on");
  if (options.views != "one") {
    views.finish(loader, [&] { each(tally.result.num_samples); });
    tally.add(model, views.logits(), views.labels());
  }
  Evaluation result = tally.result;
  result.loss /= static_cast<double>(result.num_samples);
  result.accuracy = static_cast<double>(tally.correct) / static_cast<double>(tally.predictions);
  if (tally.classifies) result.classes = scores.counts();
  return result;
}

}  // namespace ductile::train
