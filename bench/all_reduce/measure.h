#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

// The measuring loop, the same for all systems: one process a rank, a float32 sum in place.
namespace bench {

struct Plan {
  std::vector<size_t> bytes;
  double seconds = 0.15;  // for each size
};

// "4096,1048576" "0.15"
inline Plan read_plan(const char* sizes, const char* seconds) {
  Plan plan;
  for (const char* p = sizes; *p != 0;) {
    char* end = nullptr;
    plan.bytes.push_back(std::strtoull(p, &end, 10));
    p = *end == ',' ? end + 1 : end;
  }
  plan.seconds = std::atof(seconds);
  return plan;
}

constexpr size_t kPeriod = 1024;

// Small whole numbers, repeated: their sum is exact, whatever the order.
inline std::vector<float> pattern(int first_rank, int last_rank) {
  std::vector<float> values(kPeriod, 0.0f);
  for (int r = first_rank; r <= last_rank; ++r) {
    for (size_t i = 0; i < kPeriod; ++i) {
      values[i] += static_cast<float>((i * 7 + static_cast<size_t>(r) * 13) % kPeriod);
    }
  }
  return values;
}

// A burst = several calls back to back between two barriers; its time is that of the slowest rank.
// Prints on rank 0 one JSON line: the median over the bursts of the time of a call, and quartiles.
// `all_reduce()` sums in place; `largest(x)` is the largest x of all ranks, and a barrier.
template <class AllReduce, class Largest>
void measure(double seconds, int rank, int size, float* data, size_t n, const AllReduce& all_reduce,
             const Largest& largest) {
  using Clock = std::chrono::steady_clock;
  const std::vector<float> own = pattern(rank, rank), sum = pattern(0, size - 1);
  const auto fill = [&] {
    for (size_t i = 0; i < n; i += kPeriod) {
      std::copy_n(own.data(), std::min(kPeriod, n - i), data + i);
    }
  };
  const auto correct = [&] {
    for (size_t i = 0; i < n; i += kPeriod) {
      if (!std::equal(data + i, data + std::min(i + kPeriod, n), sum.data())) return false;
    }
    return true;
  };
  fill();
  largest(0);
  all_reduce();
  bool ok = correct();
  std::fill(data, data + n, 0.0f);
  const auto burst = [&](int calls) {
    largest(0);
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) all_reduce();
    const std::chrono::duration<double> took = Clock::now() - start;
    return largest(took.count()) / calls;
  };
  const double first = std::max(burst(1), 1e-7);
  const double rough = first < 0.05 ? std::max(burst(2), 1e-7) : first;
  // About fifteen bursts in the time allowed.
  const int calls = std::clamp(static_cast<int>(seconds / 15 / rough), 1, 1000);
  const int bursts = std::clamp(static_cast<int>(seconds / rough / calls), 3, 15);
  std::vector<double> times;
  for (int i = 0; i < bursts; ++i) times.push_back(burst(calls));
  fill();
  largest(0);
  all_reduce();
  ok = ok && correct();
  ok = largest(ok ? 0 : 1) == 0;
  std::sort(times.begin(), times.end());
  const auto at = [&](double q) {
    return 1e6 * times[static_cast<size_t>(q * (times.size() - 1))];
  };
  if (rank == 0) {
    std::printf(
        "{\"bytes\": %zu, \"us\": %.3f, \"low\": %.3f, \"high\": %.3f, \"calls\": %d, "
        "\"ok\": %s}\n",
        n * 4, at(0.5), at(0.25), at(0.75), calls * bursts, ok ? "true" : "false");
    std::fflush(stdout);
  }
}

}  // namespace bench
