#pragma once

#include <string_view>

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"

namespace ductile::run {

// The right to train in a run directory: one controller has it, with requests or in one process.
// Held in the file `run.lock` from construction to destruction, or to the death of the process and
// of those that it gave fd() to, however they die.
class RunLock {
 public:
  static constexpr std::string_view kLocal = "local";
  static constexpr std::string_view kController = "controller";

  // `driver`: what this process will do, for the message that another one gets. Throws conflict,
  // naming the holder and what to do, where somebody else trains there. Changes nothing else.
  RunLock(const fs::path& run, std::string_view driver);

  // Closed on exec; a child that keeps it open holds the lock, too.
  int fd() const { return fd_.get(); }

 private:
  Descriptor fd_;
};

}  // namespace ductile::run
