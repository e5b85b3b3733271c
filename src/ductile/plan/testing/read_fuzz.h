#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ductile/base/rng.h"

// What the two fuzzing programs share: inputs to begin with, changes to them, and the readers.
namespace ductile::plan {

inline constexpr size_t kMaxInput = 8192;

enum class Reader { graph, devices, plan };
inline constexpr int kNumReaders = 3;

struct Seed {
  Reader reader;
  std::string text;
};
std::vector<Seed> fuzz_seeds();

// One to four changes: bits, pieces left out or repeated, words and figures that mean something to
// some reader, pieces of other seeds.
std::string fuzz_mutate(std::string text, const std::vector<Seed>& all, Rng& rng);

// True where the text was read. Throws what the reader throws; DUCTILE_CHECK where what was read
// is not what its own text says.
bool fuzz_read(Reader reader, const std::string& text);

}  // namespace ductile::plan
