#pragma once

#include "ductile/base/error.h"

namespace ductile::cli {

// What the shell sees. The one place where failures become numbers.
enum ExitCode : int {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,      // the command line or the configuration is wrong
  kJobFailed = 3,  // the job itself died
  kNotFound = 4,   // a named thing does not exist, or its state or the user's rights forbid this
  kServerUnreachable = 5,  // no service or controller answers, or not in time
  kInterrupted = 130,      // 128 + SIGINT, as shells count
};

ExitCode exit_code(ErrorCode code);

}  // namespace ductile::cli
