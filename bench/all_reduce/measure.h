#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ductile/comm/burst.h"

// The measuring loop, the same for all systems: one process a rank, a float32 sum in place. Its
// parts are those of `ductile bench all-reduce`; burst.h needs nothing else of Ductile.
namespace bench {

struct Sweep {
  std::vector<size_t> bytes;
  double seconds = 0.15;  // for each size
};

// "4096,1048576" "0.15"
inline Sweep read_sweep(const char* sizes, const char* seconds) {
  Sweep sweep;
  for (const char* p = sizes; *p != 0;) {
    char* end = nullptr;
    sweep.bytes.push_back(std::strtoull(p, &end, 10));
    p = *end == ',' ? end + 1 : end;
  }
  sweep.seconds = std::atof(seconds);
  return sweep;
}

// Prints on rank 0 one JSON line: the median over the bursts of the time of a call, and quartiles.
// `all_reduce()` sums in place; `largest(x)` is the largest x of all ranks, and a barrier.
template <class AllReduce, class Largest>
void measure(double seconds, int rank, int size, float* data, size_t n, const AllReduce& all_reduce,
             const Largest& largest) {
  using namespace ductile::comm;
  const Pattern own(rank, rank), sum(0, size - 1);
  own.fill(data, n);
  largest(0);
  all_reduce();
  bool ok = sum.matches(data, n);
  std::fill(data, data + n, 0.0f);
  const BurstSizes sizes = BurstSizes::make(seconds, all_reduce, largest);
  std::vector<double> times;
  for (int i = 0; i < sizes.bursts; ++i) times.push_back(burst(sizes.calls, all_reduce, largest));
  own.fill(data, n);
  largest(0);
  all_reduce();
  ok = ok && sum.matches(data, n);
  ok = largest(ok ? 0 : 1) == 0;
  const Spread took = Spread::of(times);
  if (rank == 0) {
    std::printf(
        "{\"bytes\": %zu, \"us\": %.3f, \"low\": %.3f, \"high\": %.3f, \"calls\": %d, "
        "\"ok\": %s}\n",
        n * 4, took.median * 1e6, took.low * 1e6, took.high * 1e6, sizes.calls * sizes.bursts,
        ok ? "true" : "false");
    std::fflush(stdout);
  }
}

}  // namespace bench
