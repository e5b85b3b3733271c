// Small jobs, in which calls to the system fail: whatever fails, and whenever, the job ends with
// the right bits, or with a documented exit code, a text that names what was wrong, and a folder
// from which a resume comes to the right bits. No committed step is lost, and nothing is left
// behind.
//
//   DUCTILE_INJECT_POINTS=n   so many calls are struck (50)
//   DUCTILE_INJECT_SEED=n     draws others, or the same again
//   DUCTILE_INJECT_POINT=...  one alone, as a failure prints it
//   DUCTILE_INJECT_JOBS=...   only jobs whose name is like this regular expression
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <regex>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "laboratory.h"

namespace ductile::injection {
namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

std::string text_from_environment(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : "";
}

// What ended wrongly once comes first. The numbers of calls drift with the code, which does no
// harm.
constexpr const char* kFoundBefore[] = {
    "workers-resumed controller listen 3 x1 EADDRINUSE",  // a socket was left behind
    "workers-resumed everybody descriptor 11 x1 ENFILE",  // the errno of another call was told
    "hosts controller socket 1 x1 ENOMEM",                // was called a usage error
    "workers controller epoll 13 x3 ENOMEM",              // ended the job, and left a worker
    "hosts-resumed controller epoll 25 x10 ENOMEM",       // terminate
    "workers-resumed everybody epoll 33 x3 ENOMEM",       // a segmentation fault
    "hosts controller stat 9 x3 ENOMEM",                  // was "unexpected"
    "hosts-resumed workers stat 10 x10 EIO",              // the job went back by a checkpoint
    "plain controller mkdir 3 x1 EIO",                    // a folder that was no run
    "plain controller sync 1 x1 ENOSPC",                  // another
};

struct Tally {
  int64_t struck = 0, tried = 0, failed = 0;
  std::map<int, int64_t> codes;
};

void try_one(Laboratory& laboratory, const Point& point, const std::string& again, Tally& tally,
             std::mutex& mutex) {
  const Verdict verdict = laboratory.try_point(point);
  const std::lock_guard lock(mutex);
  if (++tally.tried % 100 == 0) {
    std::printf("%ld points\n", static_cast<long>(tally.tried));
    std::fflush(stdout);
  }
  if (!verdict.struck && verdict.complaints.empty()) return;
  ++tally.struck;
  ++tally.codes[verdict.code];
  if (verdict.complaints.empty()) return;
  ++tally.failed;
  std::string text;
  for (const std::string& complaint : verdict.complaints) text += "\n  " + complaint;
  ADD_FAILURE() << "struck: " << (verdict.struck ? verdict.what : "nothing") << text
                << "\n  again: DUCTILE_INJECT_POINT='" << to_text(point) << "' (" << again << ")";
}

TEST(Injection, EveryFailingCallEndsInTheRightBitsOrInAnErrorThatCanBeGoneOnFrom) {
  Laboratory laboratory;
  const std::string one = text_from_environment("DUCTILE_INJECT_POINT");
  const std::string jobs = text_from_environment("DUCTILE_INJECT_JOBS");
  const std::regex only(jobs.empty() ? ".*" : jobs);
  std::vector<const JobKind*> urn;
  for (const JobKind& kind : job_kinds()) {
    const bool wanted =
        one.empty() ? std::regex_match(kind.name, only) : parse_point(one).job == kind.name;
    if (!wanted) continue;
    if (!laboratory.can(kind)) {
      std::printf("left out: %s (network namespaces cannot be made here)\n", kind.name);
      continue;
    }
    laboratory.prepare(kind);
    urn.insert(urn.end(), static_cast<size_t>(kind.weight), &kind);
  }
  ASSERT_FALSE(urn.empty());

  Tally tally;
  std::mutex mutex;
  if (!one.empty()) {
    try_one(laboratory, parse_point(one), "alone", tally, mutex);
    EXPECT_EQ(tally.struck, 1) << "the call did not come";
    return;
  }
  const int64_t points = from_environment("DUCTILE_INJECT_POINTS", 50);
  const auto seed = static_cast<uint64_t>(
      from_environment("DUCTILE_INJECT_SEED", static_cast<int64_t>(std::random_device()())));
  const std::string again = fmt::format("DUCTILE_INJECT_SEED={}", seed);
  std::printf("%s\n", again.c_str());
  std::fflush(stdout);

  const auto is_drawn = [&](const Point& point) {
    return std::any_of(urn.begin(), urn.end(),
                       [&](const JobKind* k) { return k->name == point.job; });
  };
  std::vector<Point> found_before;
  for (const char* text : kFoundBefore)
    if (const Point point = parse_point(text); is_drawn(point)) found_before.push_back(point);

  // A call that is counted in one run need not come in the next; some more are drawn for those.
  const auto before = static_cast<int64_t>(found_before.size());
  std::atomic<int64_t> next{-before};
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t) {
    threads.emplace_back([&] {
      for (int64_t i = next++; i < 2 * points; i = next++) {
        if (i < 0) {
          try_one(laboratory, found_before[static_cast<size_t>(before + i)], "found before", tally,
                  mutex);
          continue;
        }
        {
          const std::lock_guard lock(mutex);
          if (tally.struck >= points) return;
        }
        Rng rng(seed, static_cast<uint64_t>(i));
        const JobKind& kind = *urn[rng.below(static_cast<uint32_t>(urn.size()))];
        const Point point = draw(rng, kind.name, laboratory.counts(kind.name));
        try_one(laboratory, point, again, tally, mutex);
      }
    });
  }
  threads.clear();
  std::printf("%ld points tried, %ld struck, %ld of them wrongly ended; exit codes:",
              static_cast<long>(tally.tried), static_cast<long>(tally.struck),
              static_cast<long>(tally.failed));
  for (const auto& [code, count] : tally.codes)
    std::printf(" %d: %ld", code, static_cast<long>(count));
  std::printf("\n");
  EXPECT_GE(tally.struck, points) << "too few calls came";
}

}  // namespace
}  // namespace ductile::injection
