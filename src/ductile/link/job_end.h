#pragma once

#include <cstdint>
#include <string>

#include "ductile/control/membership.h"

namespace ductile::link {

// How the control of a job came to its end; nothing of the job runs any more.
struct JobEnd {
  control::Phase phase = control::Phase::failed;  // finished, failed or preempted
  std::string reason;
  int64_t step = 0;
  int64_t checkpoint = -1;                     // the step of the newest published one; -1: none
  ErrorCode error_code = ErrorCode::internal;  // failed: of what kind
  bool result_unsaved = false;  // failed: all steps are done, and nothing took the result
  bool crashed = false;         // failed: workers ended again and again without a word
  // That were done since, and not saved though it ended on request: they will be done again.
  int64_t unsaved_steps = 0;
  bool killed = false;  // without saving, on request: the job is in whatever phase it was
};

}  // namespace ductile::link
