#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "ductile/base/files.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/tensor.h"

// What the tests of this module share: a training state that owns its bytes.
namespace ductile::ckpt::testing {

struct OwnedTensor {
  DType dtype = DType::u8;
  Shape shape;
  std::vector<std::byte> bytes;

  bool operator==(const OwnedTensor&) const = default;
};

using State = std::map<std::string, OwnedTensor>;

// For tests that make thousands of saves: a folder in memory where there is one, since an fsync of
// a disk takes milliseconds.
struct FastFolder {
  FastFolder() {
    if (::access("/dev/shm", W_OK) == 0) ::setenv("TMPDIR", "/dev/shm", 1);
    folder.emplace("ckpt");
    ::unsetenv("TMPDIR");
  }
  const fs::path& path() const { return folder->path(); }

  std::optional<TempFolder> folder;
};

inline std::vector<std::byte> random_bytes(size_t n, uint64_t seed) {
  Rng rng(seed, n);
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng.next());
  return bytes;
}

inline OwnedTensor random_tensor(size_t n, uint64_t seed) {
  return {DType::u8, {static_cast<int64_t>(n)}, random_bytes(n, seed)};
}

inline std::vector<TensorView> views(const State& state) {
  std::vector<TensorView> all;
  for (const auto& [name, t] : state) all.push_back({name, t.dtype, t.shape, t.bytes});
  return all;
}

inline State load(const Checkpoint& checkpoint) {
  State state;
  for (const TensorInfo& info : checkpoint.tensors()) {
    OwnedTensor t{info.dtype, info.shape,
                  std::vector<std::byte>(static_cast<size_t>(info.num_bytes))};
    checkpoint.read(info.name, t.bytes);
    state.emplace(info.name, std::move(t));
  }
  return state;
}

// The state of step s of a make-believe run: weights change every step, "frozen" never does,
// "slow/..." every third step. About a dozen chunks of 4096 bytes.
inline State state_of_step(int64_t step) {
  const auto s = static_cast<uint64_t>(step);
  return {{"model/conv", random_tensor(9000, s)},
          {"model/bias", random_tensor(40, s + 1000)},
          {"model/empty", {DType::f32, {3, 0}, {}}},
          {"frozen/table", random_tensor(13000, 5)},
          {"frozen/scale", random_tensor(16, 6)},
          {"slow/average", random_tensor(6000, s / 3 + 2000)}};
}

}  // namespace ductile::ckpt::testing
