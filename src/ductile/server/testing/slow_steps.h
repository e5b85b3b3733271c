#pragma once

#include <cstdlib>
#include <utility>

#include "ductile/base/files.h"

namespace ductile::server::testing {

// Steps of test workers (test_worker.cc) that are slow for a while. So a job is not done before a
// test has seen what it waits for, however busy the machine, and takes no longer than that needs.
class SlowSteps {
 public:
  explicit SlowSteps(fs::path file) : file_(std::move(file)) {}
  // For workers of processes that this one starts, or becomes, from now on.
  void announce() const { ::setenv("DUCTILE_TEST_SLOW_WHILE", file_.c_str(), /*overwrite=*/1); }
  void set(bool slow) const {
    if (slow) {
      write_file_atomic(file_, "");
    } else {
      fs::remove(file_);
    }
  }

 private:
  const fs::path file_;
};

}  // namespace ductile::server::testing
