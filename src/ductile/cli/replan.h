#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/console.h"
#include "ductile/cli/devices_left.h"
#include "ductile/cli/job_config.h"
#include "ductile/cli/other_plan.h"
#include "ductile/cli/work_folder.h"
#include "ductile/link/plan_change.h"
#include "ductile/run/folder.h"
#include "ductile/server/hosts.h"
#include "ductile/spec/job.h"

namespace ductile::cli {

class FleetCommand;  // other_commands.h

// Another plan of the job for so many workers that have no room for `plan`, the text by which it
// runs so far. Processes of their own seek it, which end with this object.
//
// First the same stages, whose operators are all computed once more for the backward pass; then so
// that each stage also has one micro-batch at a time: the result is the same to the bit. If neither
// has room, what `ductile plan --runnable` makes, of the graph and the devices that `plan` holds,
// for those that these workers have of them (devices_left()): of an exact pipeline first one of as
// many parts of the batch as before, which keeps the bits; any; and where the job does not take
// that, as exact pipelines do not take all replicas, one of one replica.
class PlanSearch {
 public:
  struct Found {
    std::string plan;          // text
    bool same_stages = false;  // which leave the result as it is
  };
  // Throws conflict where the plan holds neither graph nor devices.
  PlanSearch(const spec::JobOptions& job, const std::string& plan, const WorkersLeft& left,
             const server::HostSetup& setup);
  ~PlanSearch();
  PlanSearch(const PlanSearch&) = delete;
  PlanSearch& operator=(const PlanSearch&) = delete;

  bool ended();   // whether found() answers at once; throws as it does
  Found found();  // that the job takes; throws invalid_argument where no plan fits

 private:
  void try_next();
  bool settle();
  bool has_room(const spec::JobOptions& job, const std::string& plan) const;

  const spec::JobOptions job_;
  const int64_t workers_;
  const double here_;         // memory_here()
  double device_memory_ = 0;  // of the devices that are left, that of the smallest
  const std::string what_;    // is sought, for errors
  const WorkFolder folder_;
  std::vector<fs::path> leaner_;  // plans of the same stages that are still to be judged
  bool judges_ = false;           // one of them
  std::vector<std::string> options_;
  // What is asked of plans of other stages, one after the other: of this one, and of the next ones.
  std::vector<std::string> asked_;
  std::vector<std::vector<std::string>> asks_;
  std::unique_ptr<FleetCommand> command_;
  std::optional<Found> kept_;  // the one that will do
};

// Ends those workers of an earlier controller that are still at work on this machine, by the job as
// they read it. The caller holds the run's lock, so there is no controller.
void end_workers_here(const run::RunFolder& folder, const fs::path& program);

// Where a run gets a plan of other stages: the controller that comes next has a state of its own,
// but for numbers of generations and workers, which go on, and for what the run has cost. It wants
// as many `workers`, unless it is told otherwise. Those that the saved state lists are of the plan
// before: one that is still at work somewhere is told to stop when it reports, and its number is
// given to nobody else. The caller holds the run's lock, and has ended those that are here.
void leave_state(const run::RunFolder& folder, int64_t workers);

// Puts a plan for the workers that are left in place, whose event says how many; and keeps
// `before`, the plan so far, unless nobody asked for that one either. A process that is killed
// meanwhile leaves the plan so far, or this one with its event, for the next command
// (finish_replan()). Where no step was done by the plan so far, a change is open, and this one
// stays open, too, until a step is done by it: the plan before both is within reach. The caller
// holds the run's lock, and has ended the workers that are here. Throws unavailable.
void put_anew(const run::RunFolder& folder, const std::string& before,
              link::PlanChange::New change);

// It as a sentence, of an event `replan` that nobody asked for.
std::string replan_text(const run::RunFolder& folder, const nlohmann::json& event);

// What was left open of a plan that a Replanner put in place, whose process was killed meanwhile,
// or before a step was done by it: it is told, and the controller's state is left where that was
// not done. Nothing for a change that the user asked for.
void finish_replan(const run::RunFolder& folder, const fs::path& program,
                   const link::PlanChange& change, Console& console);

// A run by a plan, and what becomes of it where the memory of the workers that are left does not
// hold its stages: it is planned anew for these, and goes on from its last checkpoint, which is an
// event (`replan`). Where that changes its result, it is part of the job, too
// (train.pipelined.replans). The plan that its user gave it last stays in its folder
// (plan_before.json). The caller holds the run's lock.
class Replanner {
 public:
  // As many as the controller before wanted; 1 where there was none.
  static int64_t workers_before(const run::RunFolder& folder);

  // The arguments outlive this object; `program` is that of the workers.
  Replanner(JobConfig& config, const run::RunFolder& folder, const server::HostSetup& setup,
            const fs::path& program, Console& console);

  // Before a run goes on with so many workers (0: as many as before; where nobody knows that and
  // one has no room, as many as the plan has stages, with all replicas): plans anew where they have
  // no room. Returns their number. `named`: this command says which hosts there are, so they are on
  // these; else some of those of before may be gone. Throws conflict, before anything is changed,
  // for a run that is done; and as PlanSearch does.
  int64_t begin(int64_t workers, bool named);
  bool planned_anew() const { return planned_anew_; }  // since this object was made
  // So many workers have to be there at least; 1 where the plan says nothing of memory.
  int64_t fewest() const;

  // While the run waits for workers, of which these are left: whether it is to be ended, since
  // there is a plan for these. It is sought beside the caller, who asks again later; it says once
  // why there is none.
  bool find_plan(const WorkersLeft& left);
  // The run is to end, or has: nothing is sought any more, and what was found is not put in place.
  void give_up();
  // When no worker is left: puts that plan in place. Returns the workers to go on with; nothing
  // where none was found.
  std::optional<WorkersLeft> put_found();

 private:
  void put(const PlanSearch::Found& found, int64_t workers);

  JobConfig& config_;
  const run::RunFolder& folder_;
  const server::HostSetup& setup_;
  const fs::path& program_;
  Console& console_;
  std::string plan_;  // text; empty: none
  std::unique_ptr<PlanSearch> search_;
  std::optional<PlanSearch::Found> found_;
  bool planned_anew_ = false;
  WorkersLeft found_for_, tried_for_;
};

// The text of the job of a run that goes on. One that is given a plan is compared with what it did
// its last step by: a plan that no step was done by has changed nothing, and is not counted.
std::string resumed_job(const run::RunFolder& folder, bool by_another_plan);
// Once its lock is held: throws conflict where another command has changed that job since.
void check_unchanged(const run::RunFolder& folder, const std::string& resumed,
                     bool by_another_plan);

// The other plan that a run which goes on is given, or was given by a command that was killed; its
// lock is held.
std::optional<link::PlanChange> changed_plan(const TrainCommand& command, const OtherPlan& plan,
                                             JobConfig& config, const run::RunFolder& folder,
                                             const fs::path& program, Console& console);

}  // namespace ductile::cli
