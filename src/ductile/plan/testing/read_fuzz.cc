// Feeds altered inputs to every reader of this half: graphs in four formats, devices, plans.
//
//   ductile_read_fuzz [COUNT] [SEED]
//
// An input is read, or refused with Error(invalid_argument); anything else (another exception, a
// crash, more than two seconds of CPU time, more memory than a small input can ask for, a graph
// that changes on its way through our own format) stops the run, prints the input and fails.
#include "ductile/plan/testing/read_fuzz.h"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <new>

#include <fmt/format.h>
#include <malloc.h>

#include "ductile/base/error.h"

namespace {

size_t live_bytes = 0, peak_bytes = 0;

void* counted(size_t n) {
  void* p = std::malloc(n);
  if (p == nullptr) throw std::bad_alloc();
  live_bytes += malloc_usable_size(p);
  peak_bytes = std::max(peak_bytes, live_bytes);
  return p;
}

void* counted_or_null(size_t n) noexcept {
  try {
    return counted(n);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void uncounted(void* p) {
  if (p != nullptr) live_bytes -= malloc_usable_size(p);
  std::free(p);
}

}  // namespace

void* operator new(size_t n) { return counted(n); }
void* operator new[](size_t n) { return counted(n); }
void* operator new(size_t n, const std::nothrow_t&) noexcept { return counted_or_null(n); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return counted_or_null(n); }
void operator delete(void* p) noexcept { uncounted(p); }
void operator delete[](void* p) noexcept { uncounted(p); }
void operator delete(void* p, size_t) noexcept { uncounted(p); }
void operator delete[](void* p, size_t) noexcept { uncounted(p); }

namespace ductile::plan {
namespace {

constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr double kMaxSeconds = 2;

int run(int64_t count, uint64_t seed) {
  const std::vector<Seed> all = fuzz_seeds();
  for (const Seed& s : all) fuzz_read(s.reader, s.text);  // throws where a seed is none
  int64_t accepted = 0;
  double slowest = 0;
  size_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    Rng rng(seed, static_cast<uint64_t>(i));
    const Seed& from = all[rng.below(static_cast<uint32_t>(all.size()))];
    const std::string input = fuzz_mutate(from.text, all, rng);
    const std::clock_t start = std::clock();  // CPU time: a busy machine is no hang
    const size_t before = peak_bytes = live_bytes;
    std::string failure;
    try {
      accepted += fuzz_read(from.reader, input);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::invalid_argument) failure = e.what();
    } catch (const std::exception& e) {
      failure = e.what();
    }
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    const size_t bytes = peak_bytes - before;
    slowest = std::max(slowest, seconds);
    largest = std::max(largest, bytes);
    if (failure.empty() && seconds > kMaxSeconds) failure = fmt::format("{} seconds", seconds);
    if (failure.empty() && bytes > kMaxBytes) failure = fmt::format("{} bytes", bytes);
    if (!failure.empty()) {
      fmt::print(stderr, "input {} of seed {}: {}\n{}\n", i, seed, failure, input);
      return 1;
    }
  }
  fmt::print("{} inputs, {} of them read; slowest {:.1f} ms, most memory {:.0f} KiB\n", count,
             accepted, slowest * 1e3, static_cast<double>(largest) / 1024);
  return 0;
}

}  // namespace
}  // namespace ductile::plan

int main(int argc, char** argv) {
  const int64_t count = argc > 1 ? std::atoll(argv[1]) : 20'000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  return ductile::plan::run(count, seed);
}
