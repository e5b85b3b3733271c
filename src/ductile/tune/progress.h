#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "ductile/tune/searcher.h"

// How MLtuner (Cui et al., "MLtuner: system support for automatic machine learning tuning", arXiv
// 1803.07445, as its authors' code has it) judges a trial by the loss of its clocks.
namespace ductile::tune {

enum class Verdict {
  diverged,  // a value is not finite, or the loss is ten times what it was
  // It rose by more than a tenth of what it gained, or gained nothing, or there is too little to
  // tell.
  unstable,
  converging,
};
std::string_view to_string(Verdict verdict);

struct Progress {
  Verdict verdict = Verdict::unstable;
  double gain = 0;   // R: last sample - first; below 0 where the loss fell
  double noise = 0;  // U: the largest rise from one sample to the next
  // (R + U) / time, the noise counted as a loss; more negative is better. None where that is above
  // 0: the trial makes no progress.
  std::optional<double> slope = {};
};

inline constexpr int64_t kProgressSamples = 10;

// `start` is where the trial began: its time, and the loss with a learning rate of 0. The clocks
// are averaged in blocks of a tenth of their number, at least of one; what is left over belongs to
// the last block.
Progress progress_of(Observation start, std::span<const Observation> clocks);

// Whether the best five slopes are within a tenth of the best one: the search has seen enough.
// `slopes` in any order.
bool has_settled(std::span<const double> slopes);

// Whether a loss that rose by `gain` is above ten times what it was at the start, written so that
// it says the same of measures below 0.
bool is_ten_times(double gain, double start);

// How many of the latest values are no new minimum; ties are none.
int64_t values_without_best(std::span<const double> values);

}  // namespace ductile::tune
