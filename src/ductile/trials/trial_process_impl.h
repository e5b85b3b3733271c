#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <signal.h>
#include <sys/types.h>

#include "ductile/base/files.h"

namespace ductile::trials {

// A trial that trains: `ductile train` in a process of its own, on a run directory of its own.
class TrialProcess {
 public:
  struct Launch {
    fs::path program;                  // ductile
    fs::path job;                      // of the session
    std::vector<std::string> options;  // KEY=VALUE of this trial
    fs::path folder;                   // of the run; one that holds a run is resumed
    fs::path log;
    std::vector<int> cpus;
    const sigset_t* mask = nullptr;
    bool trust = false;  // a run of another user is resumed, too
  };
  explicit TrialProcess(const Launch& launch);
  TrialProcess(const TrialProcess&) = delete;
  TrialProcess& operator=(const TrialProcess&) = delete;
  // Ends the process and waits for it: first so that it saves, and after a while by force.
  ~TrialProcess();

  // Whether the process has ended; it is reaped then.
  bool ended();
  // Its exit status as a shell has it; 128 + the signal that killed it.
  int exit_status() const { return *status_; }
  // Asks it to save and to end.
  void pause();

  // The last lines that it wrote into its log, which has those of earlier processes before them.
  std::string said(int lines) const;
  // Whether the run's events have grown since it was started.
  bool has_events() const;

 private:
  fs::path log_, events_;
  uintmax_t log_before_ = 0, events_before_ = 0;  // their sizes when it was started
  pid_t pid_ = -1;
  bool asked_ = false;
  std::optional<int> status_;
};

// The evaluations of a run by their epoch; of one that was done twice the later one.
std::map<double, double> evaluations(const fs::path& run, const std::string& metric);

// How a run ended, by its last event.
struct RunEnd {
  std::string status;   // done, target_reached, interrupted, failed; empty: it did not end
  std::string message;  // of a failed one
  double core_seconds = 0, wall_seconds = 0;
};
RunEnd end_of(const fs::path& run);

}  // namespace ductile::trials
