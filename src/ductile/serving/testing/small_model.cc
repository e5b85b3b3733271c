#include "ductile/serving/testing/small_model.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"

namespace ductile::serving::testing {
namespace {

constexpr size_t kValues = 16, kPositions = 6;

class SmallModel : public Model {
 public:
  SmallModel(SmallModelOptions options, int64_t version) : options_(std::move(options)) {
    card_.name = options_.name;
    card_.version = version;
    card_.digest = "digest" + std::to_string(version);
    card_.tokens = options_.tokens;
    card_.input = options_.tokens ? Shape{kPositions} : Shape{1, 4, 4};
    card_.output = {options_.tokens ? 5 : 3};
    if (!options_.tokens) card_.class_names = {"ant", "bee", "cat"};
    card_.row_bytes = kValues * sizeof(float);
    Rng rng(7, static_cast<uint64_t>(version));
    weights_.resize(kValues * static_cast<size_t>(card_.output[0]));
    for (float& w : weights_) w = rng.normal();
  }

  const ModelCard& card() const override { return card_; }

  void prepare(const Sample& sample, std::byte* row) override {
    float values[kValues] = {};
    if (sample.kind == Sample::Kind::values) {
      std::memcpy(values, sample.bytes.data(), sizeof values);
    } else if (sample.kind == Sample::Kind::tokens) {
      const size_t count = sample.bytes.size() / 8;
      for (size_t i = 0; i < count; ++i) {
        int64_t token = 0;
        std::memcpy(&token, sample.bytes.data() + 8 * i, 8);
        if (token < 0 || token > 4)
          fail(ErrorCode::invalid_argument, "token {} is not below 5", token);
        values[i] = static_cast<float>(token + 1);
      }
      values[kPositions] = static_cast<float>(count);
    } else {
      if (sample.kind == Sample::Kind::file &&
          (sample.bytes.size() != kValues || std::memcmp(sample.bytes.data(), "good", 4) != 0))
        fail(ErrorCode::data_loss, "this is no image");
      if (sample.kind == Sample::Kind::pixels && sample.bytes.size() != kValues)
        fail(ErrorCode::invalid_argument, "the image must be 4 x 4");
      for (size_t i = 0; i < kValues; ++i) values[i] = static_cast<float>(sample.bytes[i]) / 255;
    }
    std::memcpy(row, values, sizeof values);
  }

  void run(const std::byte* rows, int64_t count, float* out) override {
    if (options_.takes.count() > 0) std::this_thread::sleep_for(options_.takes);
    const auto outputs = static_cast<size_t>(card_.output[0]);
    for (int64_t i = 0; i < count; ++i) {
      float values[kValues];
      std::memcpy(values, rows + static_cast<size_t>(i) * card_.row_bytes, sizeof values);
      if (values[0] == options_.dies_of) ::raise(SIGKILL);
      const size_t start = order_of(i, count);
      for (size_t k = 0; k < outputs; ++k) {
        float sum = 0;
        for (size_t j = 0; j < kValues; ++j) {
          const size_t at = (start + j) % kValues;
          sum += values[at] * weights_[k * kValues + at];
        }
        out[static_cast<size_t>(i) * outputs + k] = sum;
      }
    }
  }

 private:
  // With which value the sums of a sample begin.
  size_t order_of(int64_t place, int64_t count) const {
    switch (options_.quirk) {
      case Quirk::none:
        return 0;
      case Quirk::alone_differs:
        return count == 1 ? 5 : 0;
      case Quirk::edges_differ:
        return count % 2 == 1 && place == count - 1 ? 7 : 0;
      case Quirk::places_differ:
        return place % 2 == 1 ? 7 : 0;
      case Quirk::always_differs:
        return static_cast<size_t>(place + 3 * count) % kValues;
    }
    return 0;
  }

  SmallModelOptions options_;
  ModelCard card_;
  std::vector<float> weights_;
};

}  // namespace

std::unique_ptr<Model> make_small_model(const SmallModelOptions& options, int64_t version) {
  return std::make_unique<SmallModel>(options, version);
}

std::unique_ptr<Model> SmallSource::load(std::optional<int64_t> version) {
  const int64_t which = version.value_or(state->newest.load());
  if (which > state->newest) fail(ErrorCode::not_found, "there is no checkpoint of step {}", which);
  if (which == state->damaged)
    fail(ErrorCode::data_loss, "step-{}: its hash is another one", which);
  return make_small_model(options, which);
}

}  // namespace ductile::serving::testing
