#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "board.h"
#include "ductile/base/rng.h"

// Where and how one job is disturbed.
namespace ductile::injection {

struct Point {
  std::string job;  // which of the small jobs
  Role role = kNobody;
  Call call = kOpen;
  uint64_t first = 1;  // the number of the first call that fails, from 1 on
  uint64_t times = 1;  // how many calls of this kind fail in a row
  int error = 0;       // an errno, or kShort
};

// "workers-resumed worker2 sync 14 x4 EIO", and back. Throws invalid_argument.
std::string to_text(const Point& point);
Point parse_point(std::string_view text);

// How many calls of each kind each role makes in an undisturbed job.
struct Counts {
  uint64_t calls[kNumRoles][kNumCalls] = {};
};

// Each (role, kind of call) that occurs is as likely as any other, and so is each call of it.
Point draw(Rng& rng, const std::string& job, const Counts& counts);

// How a call of this kind can fail.
const std::vector<int>& errors_of(Call call);

}  // namespace ductile::injection
