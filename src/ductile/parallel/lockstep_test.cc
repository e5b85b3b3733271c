#include "ductile/parallel/lockstep.h"

#include <atomic>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"

namespace ductile::parallel {
namespace {

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no error";
}

RC_GTEST_PROP(Lockstep, OneBodyAtATimeAndAllComeToEveryMeeting, ()) {
  Lockstep lockstep;
  for (int round = 0; round < 3; ++round) {
    const int n = *rc::gen::inRange(1, 7), meetings = *rc::gen::inRange(0, 6);
    std::atomic<int> inside = 0;
    int together = 0, shared = 0;  // unguarded: the thread sanitizer sees to it
    std::vector<int> passed(static_cast<size_t>(n), 0);
    lockstep.run(n, [&](int i) {
      RC_ASSERT(++inside == 1);
      for (int m = 0; m < meetings; ++m) {
        ++shared;
        --inside;
        lockstep.meet(i, [&] {
          RC_ASSERT(inside == 0);
          for (const int p : passed) RC_ASSERT(p == m);
          ++together;
        });
        RC_ASSERT(++inside == 1);
        ++passed[static_cast<size_t>(i)];
      }
      --inside;
    });
    RC_ASSERT(together == meetings);
    RC_ASSERT(shared == n * meetings);
    for (const int p : passed) RC_ASSERT(p == meetings);
  }
}

// Wherever it comes from: all bodies unwind, one at a time, and the next run works.
RC_GTEST_PROP(Lockstep, TheFirstErrorEndsAll, ()) {
  Lockstep lockstep;
  const int n = *rc::gen::inRange(1, 6), bad = *rc::gen::inRange(0, n);
  const int at = *rc::gen::inRange(0, 3);
  const bool in_meeting = *rc::gen::arbitrary<bool>();
  int begun = 0, unwound = 0;
  struct Count {
    int& n;
    ~Count() { ++n; }
  };
  const std::string text = error_of([&] {
    lockstep.run(n, [&](int i) {
      ++begun;
      const Count count{unwound};
      for (int m = 0; m < 3; ++m) {
        if (m == at && i == bad && !in_meeting) fail(ErrorCode::peer_lost, "first");
        lockstep.meet(i, [&] {
          if (m == at && in_meeting) fail(ErrorCode::peer_lost, "first");
        });
      }
    });
  });
  RC_ASSERT(text == "first");
  RC_ASSERT(unwound == begun);
  int calls = 0;
  lockstep.run(n, [&](int i) {
    lockstep.meet(i, [] {});
    ++calls;
  });
  RC_ASSERT(calls == n);
}

TEST(Lockstep, AnUnequalNumberOfMeetingsIsAnErrorNotAHang) {
  for (const int odd : {0, 1, 2}) {
    Lockstep lockstep;
    const std::string text = error_of([&] {
      lockstep.run(3, [&](int i) {
        for (int m = 0; m < (i == odd ? 1 : 2); ++m) lockstep.meet(i, [] {});
      });
    });
    EXPECT_NE(text.find("unequal numbers"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace ductile::parallel
