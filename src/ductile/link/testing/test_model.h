#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/writer.h"

// The "training" of the test worker: a state that tells whether any contribution of any step was
// lost, doubled, or computed from another state.
namespace ductile::link::testing {

struct State {
  int64_t step = 0;
  uint64_t value = 1;
  bool operator==(const State&) const = default;
};

inline uint64_t leaf(uint64_t state, int64_t step, int64_t rank) {
  return mix(state, mix(static_cast<uint64_t>(step), static_cast<uint64_t>(rank)));
}
inline uint64_t reduce(std::span<const uint64_t> leaves) {
  uint64_t sum = 0;
  for (const uint64_t leaf : leaves) sum = mix(sum, leaf);
  return sum;
}
inline uint64_t apply(uint64_t state, uint64_t reduction) { return mix(state, reduction); }

// What an undisturbed run ends with.
inline State run_undisturbed(int64_t steps, int64_t virtual_ranks) {
  State state;
  for (; state.step < steps; ++state.step) {
    std::vector<uint64_t> leaves;
    for (int64_t r = 0; r < virtual_ranks; ++r) leaves.push_back(leaf(state.value, state.step, r));
    state.value = apply(state.value, reduce(leaves));
  }
  return state;
}

inline void write_checkpoint(const fs::path& folder, const State& state, const std::string& tag) {
  ckpt::WriterOptions options;
  options.pending_tag = tag;
  ckpt::CheckpointWriter writer(folder, options);
  const ckpt::TensorView view{
      "state", DType::u8, {sizeof state.value}, std::as_bytes(std::span(&state.value, 1))};
  writer.save(state.step, nullptr, std::span(&view, 1));
  writer.wait();
}

inline State read_checkpoint(const fs::path& folder, int64_t step) {
  State state{step, 0};
  ckpt::Checkpoint::open(folder, step)
      .read("state", std::as_writable_bytes(std::span(&state.value, 1)));
  return state;
}

}  // namespace ductile::link::testing
