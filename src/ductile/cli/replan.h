#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ductile/base/files.h"
#include "ductile/cli/console.h"
#include "ductile/cli/job_config.h"
#include "ductile/run/folder.h"
#include "ductile/server/hosts.h"
#include "ductile/spec/job.h"

namespace ductile::cli {

class FleetCommand;  // other_commands.h

// Another plan of the job for so many workers, each on a device as those of `plan`, the text by
// which it runs so far: what `ductile plan --runnable --json` makes of the graph and the devices
// that this holds. A process of its own seeks it, which ends with this object.
class PlanSearch {
 public:
  // Throws conflict where the plan holds neither graph nor devices.
  PlanSearch(const spec::JobOptions& job, const std::string& plan, int64_t workers);
  ~PlanSearch();
  PlanSearch(const PlanSearch&) = delete;
  PlanSearch& operator=(const PlanSearch&) = delete;

  bool ended();        // whether plan() answers at once
  std::string plan();  // its text. Throws invalid_argument where none fits

 private:
  const TempFolder folder_;
  std::unique_ptr<FleetCommand> command_;
};

// Ends those workers of an earlier controller that are still at work on this machine, by the job as
// they read it. The caller holds the run's lock, so there is no controller.
void end_workers_here(const run::RunFolder& folder, const fs::path& program);

// A run by a plan, and what becomes of it where the memory of the workers that are left does not
// hold its stages: it is planned anew for these, and goes on from its last checkpoint. That changes
// its result, so it is an event (`replan`) and part of the job (train.pipelined.replans). The
// caller holds the run's lock.
class Replanner {
 public:
  // As many as the controller before wanted; 1 where there was none.
  static int64_t workers_before(const run::RunFolder& folder);

  // The arguments outlive this object; `program` is that of the workers.
  Replanner(JobConfig& config, const run::RunFolder& folder, const server::HostSetup& setup,
            const fs::path& program, Console& console);

  // Before a run goes on with so many workers (0: as many as before): plans anew where they have no
  // room. Returns their number. Throws as PlanSearch does.
  int64_t begin(int64_t workers);
  bool planned_anew() const { return planned_anew_; }  // since this object was made
  // So many workers have to be there at least; 1 where the plan says nothing of memory.
  int64_t fewest() const;

  // While the run waits for workers, of which so many are left: whether it is to be ended, since
  // there is a plan for these. It is sought beside the caller, who asks again later; it says once
  // why there is none.
  bool find_plan(int64_t workers);
  // The run is to end, or has: nothing is sought any more, and what was found is not put in place.
  void give_up();
  // When no worker is left: puts that plan in place. Returns the number of workers to go on with;
  // nothing where none was found.
  std::optional<int64_t> put_found();

 private:
  spec::JobOptions job_by(const std::string& plan) const;
  void put(const std::string& plan, int64_t workers);

  JobConfig& config_;
  const run::RunFolder& folder_;
  const server::HostSetup& setup_;
  const fs::path& program_;
  Console& console_;
  std::string plan_;  // text; empty: none
  std::unique_ptr<PlanSearch> search_;
  std::string found_;
  bool planned_anew_ = false;
  int64_t found_for_ = 0, tried_for_ = 0;  // workers
};

}  // namespace ductile::cli
