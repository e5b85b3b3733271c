#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

// How collectives are timed, for Ductile and for the systems it is compared with alike (programs
// under bench/ that link nothing of Ductile include this file): standard library only.
namespace ductile::comm {

// What ranks first_rank .. last_rank contribute to the sum that checks an all-reduce: small whole
// numbers, repeated every kPeriod elements, so that sums are exact in whatever order.
struct Pattern {
  static constexpr size_t kPeriod = 1024;

  Pattern(int first_rank, int last_rank) : values(kPeriod, 0.0f) {
    for (int r = first_rank; r <= last_rank; ++r) {
      for (size_t i = 0; i < kPeriod; ++i) {
        values[i] += static_cast<float>((i * 7 + static_cast<size_t>(r) * 13) % kPeriod);
      }
    }
  }
  void fill(float* data, size_t n) const {
    for (size_t i = 0; i < n; i += kPeriod) {
      std::copy_n(values.data(), std::min(kPeriod, n - i), data + i);
    }
  }
  bool matches(const float* data, size_t n) const {
    for (size_t i = 0; i < n; i += kPeriod) {
      if (!std::equal(data + i, data + std::min(i + kPeriod, n), values.data())) return false;
    }
    return true;
  }

  std::vector<float> values;
};

// Seconds of one of `calls` calls back to back between two barriers, of the slowest rank.
// `largest(x)` gives every rank the largest x of all, and so is a barrier.
template <class Call, class Largest>
double burst(int calls, const Call& call, const Largest& largest) {
  using Clock = std::chrono::steady_clock;
  largest(0);
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  const std::chrono::duration<double> took = Clock::now() - start;
  return largest(took.count()) / calls;
}

// Bursts, and calls in each, that fill `seconds`: about fifteen bursts of more than one call; at
// least three.
struct BurstSizes {
  int calls = 1;
  int bursts = 3;

  template <class Call, class Largest>
  static BurstSizes make(double seconds, const Call& call, const Largest& largest) {
    const double first = std::max(burst(1, call, largest), 1e-7);
    const double rough = first < 0.05 ? std::max(burst(2, call, largest), 1e-7) : first;
    BurstSizes sizes;
    sizes.calls = std::clamp(static_cast<int>(seconds / 15 / rough), 1, 1000);
    sizes.bursts = std::clamp(static_cast<int>(seconds / rough / sizes.calls), 3, 15);
    return sizes;
  }
};

// Median and quartiles of times.
struct Spread {
  double median = 0, low = 0, high = 0;

  static Spread of(std::vector<double> times) {
    std::sort(times.begin(), times.end());
    const auto at = [&](double q) {
      return times[static_cast<size_t>(q * static_cast<double>(times.size() - 1))];
    };
    return {at(0.5), at(0.25), at(0.75)};
  }
};

}  // namespace ductile::comm
