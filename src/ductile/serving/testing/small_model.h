#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ductile/serving/model.h"

namespace ductile::serving::testing {

// In which way the bits of a sample depend on its batch, as those of real kernels may.
enum class Quirk {
  none,
  alone_differs,   // one sample by itself is summed in another order
  edges_differ,    // the last sample of an odd batch is
  places_differ,   // every other place
  always_differs,  // each place of each size has an order of its own
};

struct SmallModelOptions {
  bool tokens = false;
  Quirk quirk = Quirk::none;
  std::chrono::microseconds takes{0};  // each batch
  std::string name = "small";
  std::optional<float> dies_of;  // a sample that begins with it ends the process
};

// A layer of random weights, which the version draws: images of [1, 4, 4] to 3 classes, or prompts
// of at most 6 of 5 tokens. A file is an image if it is "good" and 16 characters.
std::unique_ptr<Model> make_small_model(const SmallModelOptions& options, int64_t version);

// Versions that tests add and damage; `newest` and `damaged` may be changed at any time.
struct SmallSource : ModelSource {
  struct State {
    std::atomic<int64_t> newest = 1, damaged = -1;
  };
  explicit SmallSource(SmallModelOptions options, std::shared_ptr<State> state)
      : options(std::move(options)), state(std::move(state)) {}

  std::unique_ptr<Model> load(std::optional<int64_t> version) override;
  std::optional<int64_t> newest() override { return state->newest.load(); }

  SmallModelOptions options;
  std::shared_ptr<State> state;
};

}  // namespace ductile::serving::testing
