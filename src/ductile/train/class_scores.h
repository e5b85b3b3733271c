#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace ductile::train {

// What a classifier got right, class by class, and how far its probabilities can be believed.
struct ClassCounts {
  // By class: the samples that belong to it, and how many of them were predicted as such.
  std::vector<int64_t> samples, correct;
  // The expected calibration error (Guo et al. 2017): the mean over all samples of the distance
  // between their bin's accuracy and its mean probability.
  double calibration_error = 0;
  // The Brier score of several classes: the mean over all samples of the squared distance between
  // the probabilities and the truth; from 0 to 2.
  double brier = 0;

  bool operator==(const ClassCounts&) const = default;

  // Of a class without samples 0.
  double accuracy(int64_t label) const;
  // The class of the lowest accuracy among those that have samples, the first of equal ones; none
  // if no class has any.
  std::optional<int64_t> worst() const;
};

// Counts samples. The sums are made in the order of the samples, by one thread, so that they have
// the same bits for every number of threads.
class ClassScores {
 public:
  // Bins of equal width, in which samples are put by the probability of their predicted class.
  static constexpr int kBins = 15;

  // Counts a sample by its logits and its class, which is below their number; all samples have the
  // same number of logits. The predicted class is the one of the largest logit.
  void add(std::span<const float> logits, int64_t label);

  ClassCounts counts() const;
  // The number of samples by their class and the predicted one, where there are any.
  const std::map<std::pair<int64_t, int64_t>, int64_t>& confusion() const { return confusion_; }

 private:
  struct Bin {
    int64_t correct = 0;
    double probability = 0;  // sum over its samples
  };

  int64_t num_samples_ = 0;
  std::vector<int64_t> class_samples_, class_correct_;
  std::map<std::pair<int64_t, int64_t>, int64_t> confusion_;
  std::vector<Bin> bins_ = std::vector<Bin>(kBins);
  double squared_distance_ = 0;  // sum over all samples
};

// The probabilities that the logits stand for (softmax), in double. A logit that is not a number
// makes all of them NaN.
std::vector<double> probabilities_of(std::span<const float> logits);
// The place of the largest value, the first of equal ones; of the first that is not a number, if
// there is one.
int64_t predicted_class(std::span<const float> logits);

// {"class": 3, "name": "cat", "accuracy": 0.5, "correct": 4, "samples": 8}; the name is left out
// where none is known.
nlohmann::json describe_class(const ClassCounts& counts, int64_t label,
                              std::span<const std::string> names);

}  // namespace ductile::train
