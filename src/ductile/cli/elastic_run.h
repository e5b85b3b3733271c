#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/cli/commands.h"
#include "ductile/cli/devices_left.h"
#include "ductile/control/membership.h"
#include "ductile/process/zygote.h"
#include "ductile/run/folder.h"
#include "ductile/run/lock.h"
#include "ductile/run/progress.h"
#include "ductile/server/hosts.h"
#include "ductile/server/job_host.h"
#include "ductile/spec/job.h"

namespace ductile::cli {

struct ElasticRun {
  fs::path program;                                        // ductile-worker
  int64_t workers = 0;                                     // 0: as many as before
  server::HostSetup setup;                                 // no hosts: this machine alone
  bool every_host = true;                                  // must answer at the start
  std::function<void(std::string_view line)> on_line;      // of any worker's progress pipe
  std::function<void(const control::Note& note)> on_note;  // but that one worker begins
  int64_t fewest = 1;                                      // workers without which it waits
  // Once it has run, and fewer than that are there for so many seconds (0: never): called with
  // those, now and then; true ends the run without saving. Nothing is served meanwhile, so it does
  // not wait for anything.
  double patience = 0;
  std::function<bool(const WorkersLeft& left)> on_short = {};
  std::function<void()> on_interrupt = {};  // a signal asks for the end, before that is done
  // The host on which each virtual rank is wanted (PlanPlacement::Seats); empty: any order will do.
  std::vector<std::string> rank_hosts = {};
};

// Throws invalid_argument, naming the options, where the job cannot have that many workers there.
void check_workers(const spec::JobOptions& job, const server::HostSetup& setup, int64_t workers);

// The hosts that a request names, those of the run before it where it names none.
server::HostSetup host_setup_of(const HostsRequest& request, const server::HostSetup& before);

// Runs the job with a controller of its own in this process, until no worker is left.
//
// SIGINT, SIGTERM and SIGHUP of this process preempt the job: it finishes its step, saves and ends;
// one that comes more than a second later kills the workers. Call from a program's only thread,
// with the run's lock held. `loaded`: forks the workers of this machine (JobConfig::loaded); null:
// they begin one if need be.
link::JobEnd run_elastic(const run::RunLock& lock, const run::RunFolder& folder,
                         const spec::JobOptions& job, const ElasticRun& run,
                         std::shared_ptr<process::Zygote> loaded = nullptr);

}  // namespace ductile::cli
