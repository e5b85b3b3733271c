#include "ductile/train/class_scores.h"

#include <algorithm>
#include <cmath>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"

namespace ductile::train {

std::vector<double> probabilities_of(std::span<const float> logits) {
  std::vector<double> out(logits.size());
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = std::exp(static_cast<double>(logits[i]) - largest);
    sum += out[i];
  }
  for (double& p : out) p /= sum;
  return out;
}

// As at::argmax, for which what is not a number is larger than any number.
int64_t predicted_class(std::span<const float> logits) {
  const auto odd = std::ranges::find_if(logits, [](float x) { return std::isnan(x); });
  return (odd != logits.end() ? odd : std::ranges::max_element(logits)) - logits.begin();
}

void ClassScores::add(std::span<const float> logits, int64_t label) {
  if (num_samples_ == 0) {
    class_samples_.resize(logits.size());
    class_correct_.resize(logits.size());
  }
  DUCTILE_CHECK(logits.size() == class_samples_.size() && label >= 0 &&
                    label < static_cast<int64_t>(logits.size()),
                "class {} with {} logits, where {} were seen before", label, logits.size(),
                class_samples_.size());
  const std::vector<double> probabilities = probabilities_of(logits);
  const int64_t predicted = predicted_class(logits);
  ++num_samples_;
  ++class_samples_[static_cast<size_t>(label)];
  const bool right = predicted == label;
  class_correct_[static_cast<size_t>(label)] += right;
  ++confusion_[{label, predicted}];

  // The bins are ((b - 1) / kBins, b / kBins]. A probability that is not a number goes to the first
  // one, whose sum is then none; nor are the calibration error and the Brier score.
  const double confidence = probabilities[static_cast<size_t>(predicted)];
  const int bin = std::isnan(confidence) ? 0 : static_cast<int>(std::ceil(confidence * kBins)) - 1;
  Bin& b = bins_[static_cast<size_t>(std::clamp(bin, 0, kBins - 1))];
  b.correct += right;
  b.probability += confidence;
  for (size_t i = 0; i < probabilities.size(); ++i) {
    const double distance = probabilities[i] - (static_cast<int64_t>(i) == label ? 1.0 : 0.0);
    squared_distance_ += distance * distance;
  }
}

ClassCounts ClassScores::counts() const {
  ClassCounts out{class_samples_, class_correct_, 0, 0};
  if (num_samples_ == 0) return out;
  for (const Bin& b : bins_)
    out.calibration_error += std::abs(static_cast<double>(b.correct) - b.probability);
  out.calibration_error /= static_cast<double>(num_samples_);
  out.brier = squared_distance_ / static_cast<double>(num_samples_);
  return out;
}

double ClassCounts::accuracy(int64_t label) const {
  const auto i = static_cast<size_t>(label);
  return samples[i] == 0 ? 0 : static_cast<double>(correct[i]) / static_cast<double>(samples[i]);
}

std::optional<int64_t> ClassCounts::worst() const {
  std::optional<int64_t> worst;
  for (size_t c = 0; c < samples.size(); ++c) {
    if (samples[c] == 0) continue;
    const auto label = static_cast<int64_t>(c);
    if (!worst || accuracy(label) < accuracy(*worst)) worst = label;
  }
  return worst;
}

nlohmann::json describe_class(const ClassCounts& counts, int64_t label,
                              std::span<const std::string> names) {
  const auto i = static_cast<size_t>(label);
  nlohmann::json out = {{"class", label},
                        {"accuracy", counts.accuracy(label)},
                        {"correct", counts.correct[i]},
                        {"samples", counts.samples[i]}};
  if (i < names.size()) out["name"] = names[i];
  return out;
}

}  // namespace ductile::train
