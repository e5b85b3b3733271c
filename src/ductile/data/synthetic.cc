#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/data/formats.h"

// Samples of several inputs, each a function of (seed, split, sample, input) alone: vectors of
// normal values, tokens uniform in their range, indices that are more often small (the cube of a
// uniform number, as few rows of a recommender's tables are read often). The label is the class
// with the largest sum of scores that a fixed random teacher gives: of a vector a linear map, of a
// number a score of its own for each class.
namespace ductile::data {
namespace {

constexpr int64_t kMostWeights = 1 << 25;
constexpr uint64_t kSampleStream = 0x73796e7468657469, kTeacherStream = 0x7465616368657273;

class SyntheticDataset final : public Dataset {
 public:
  SyntheticDataset(const spec::SyntheticOptions& options, Split split, int64_t size)
      : inputs_(spec::sample_inputs(options.inputs)),
        classes_(static_cast<size_t>(options.classes)),
        samples_(mix(mix(static_cast<uint64_t>(options.seed), kSampleStream),
                     static_cast<uint64_t>(split))),
        teacher_(mix(static_cast<uint64_t>(options.seed), kTeacherStream)) {
    if (inputs_.empty()) {
      fail(
          ErrorCode::invalid_argument,
          "data.format = \"synthetic\" needs data.synthetic.inputs, for example [\"7*vector:64\"]");
    }
    info_.format = "synthetic";
    info_.size = size;
    info_.num_classes = options.classes;
    for (int64_t c = 0; c < options.classes; ++c) info_.class_names.push_back(std::to_string(c));
    info_.inputs = inputs_;
    check_teacher();
    maps_.resize(inputs_.size());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      bytes_ += static_cast<size_t>(inputs_[i].length) *
                (inputs_[i].is_numbers() ? sizeof(int64_t) : sizeof(float));
      if (inputs_[i].is_numbers()) continue;
      for (int64_t j = 0; j < inputs_[i].length; ++j) add_scores(i, j, 1, maps_[i]);
    }
  }

  int64_t label(int64_t index) const override {
    std::vector<std::byte> scratch;
    const Sample sample = read(index, scratch);
    int64_t label = 0;
    std::memcpy(&label, sample.bytes.data() + bytes_, sizeof label);
    return label;
  }

  Sample read(int64_t index, std::vector<std::byte>& scratch) const override {
    scratch.resize(bytes_ + sizeof(int64_t));
    std::byte* out = scratch.data();
    std::vector<double> scores(classes_, 0.0);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      Rng rng(samples_, static_cast<uint64_t>(index), i);
      // So that each input weighs as much as every other.
      const double share = 1 / std::sqrt(static_cast<double>(inputs_[i].length));
      out = inputs_[i].is_numbers() ? draw_numbers(i, share, rng, scores, out)
                                    : draw_vector(i, share, rng, scores, out);
    }
    int64_t label = 0;
    for (size_t c = 1; c < classes_; ++c) {
      if (scores[c] > scores[static_cast<size_t>(label)]) label = static_cast<int64_t>(c);
    }
    std::memcpy(out, &label, sizeof label);
    return {Encoding::inputs, scratch, 0, 0, 0};
  }

  std::string where(int64_t index) const override {
    return fmt::format("synthetic sample {}", index);
  }
  bool in_memory() const override { return true; }

 private:
  // The teacher holds a weight for each value of a vector and each class.
  void check_teacher() const {
    int64_t values = 0;
    for (const spec::SampleInput& input : inputs_) {
      if (!input.is_numbers()) values += input.length;
    }
    const auto classes = static_cast<int64_t>(classes_);
    if (values * classes > kMostWeights) {
      fail(ErrorCode::invalid_argument,
           "data.synthetic: vectors of {} values in all and {} classes need a teacher of {} "
           "weights, "
           "and at most {} are drawn; use fewer classes or shorter vectors",
           values, classes, values * classes, kMostWeights);
    }
  }

  std::byte* draw_vector(size_t input, double share, Rng& rng, std::vector<double>& scores,
                         std::byte* out) const {
    const double* weight = maps_[input].data();
    for (int64_t j = 0; j < inputs_[input].length; ++j) {
      const float value = rng.normal();
      std::memcpy(out, &value, sizeof value);
      out += sizeof value;
      for (double& score : scores) score += share * *weight++ * static_cast<double>(value);
    }
    return out;
  }

  std::byte* draw_numbers(size_t input, double share, Rng& rng, std::vector<double>& scores,
                          std::byte* out) const {
    const auto range = static_cast<uint32_t>(inputs_[input].range);
    std::vector<double> own;
    for (int64_t j = 0; j < inputs_[input].length; ++j) {
      int64_t number = 0;
      if (inputs_[input].kind == spec::SampleInput::Kind::tokens) {
        number = rng.below(range);
      } else {
        const double u = rng.uniform(0, 1);
        number = static_cast<int64_t>(u * u * u * range);
      }
      std::memcpy(out, &number, sizeof number);
      out += sizeof number;
      own.clear();
      add_scores(input, number, share, own);
      for (size_t c = 0; c < classes_; ++c) scores[c] += own[c];
    }
    return out;
  }

  // The teacher's score for each class of one place of a vector, or of one number.
  void add_scores(size_t input, int64_t which, double share, std::vector<double>& out) const {
    Rng rng(teacher_, input, static_cast<uint64_t>(which));
    for (size_t c = 0; c < classes_; ++c) out.push_back(share * static_cast<double>(rng.normal()));
  }

  std::vector<spec::SampleInput> inputs_;
  size_t classes_;
  uint64_t samples_, teacher_;
  std::vector<std::vector<double>> maps_;  // of vectors: [length][class]
  size_t bytes_ = 0;                       // of all inputs of a sample
};

}  // namespace

std::shared_ptr<const Dataset> open_synthetic(const spec::DataOptions& options, Split split) {
  const spec::SyntheticOptions& o = options.synthetic;
  const int64_t size = split == Split::train ? o.samples : o.test_samples;
  return std::make_shared<SyntheticDataset>(o, split, limited(options, split, size));
}

}  // namespace ductile::data
