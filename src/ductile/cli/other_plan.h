#pragma once

#include <cstdint>
#include <string>

#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/run/folder.h"
#include "ductile/spec/job.h"

namespace ductile::cli {

// Another plan for a run that goes on (`ductile train --resume RUN --plan FILE`): with other
// numbers of stages, replicas, parts and micro-batches, another cut, another schedule.
struct OtherPlan {
  std::string text;         // of the file
  bool changes_job = true;  // else the job goes by this plan already
  bool same_stages = true;  // as many of them, replicas, parts and micro-batches as before
  bool same_result = true;  // spec::same_result()
  // The same result, but for rounding where three or more operators read a tensor, or several hold
  // a weight, across the cut of one of the two plans.
  bool may_round = false;
  // What is told of both: "stages", "replicas", "micro_batches", "ranks".
  nlohmann::json before, now;

  // Whether the controller goes on with its saved state, and workers with theirs (leave_state()).
  bool keeps_state() const { return same_stages && same_result; }
};

// Makes `job`, that of the run, one that goes on by the plan in the file. If the plan changes the
// result, the job says so (train.pipelined.replans). train.shard_optimizer stays, but where nobody
// could ask for it so far: the job has one stage, and no plan before had several, or parts
// (`had_parts`).
//
// Throws as set_plan() does; invalid_argument, too, for a plan of another model than the one that
// the run was planned for; conflict for a run that does not train by stages.
OtherPlan other_plan(spec::JobOptions& job, const fs::path& file, bool had_parts = false);

// By the run's events.
bool had_parts(const run::RunFolder& folder);

// Whether the run's last end left no step: its newest checkpoint is the state with which it ended,
// and a target that it reached is still the one that it is to reach. The record of a done run would
// say of another plan what was not so.
bool is_done(const run::RunFolder& folder);

// Once the lock of the run is held, and before anything in its folder is changed: throws conflict
// where no step is left that another plan could do (is_done()); and where only a plan of the same
// stages will do, and this is another one: a service has the run, which knows its stages and may
// start it at any time; or it repeats another run to the bit (`repeats`), and the result is another
// one.
void check_may_change(const run::RunFolder& folder, const OtherPlan& plan, bool repeats);

// The event `replan` of the change, from the newest checkpoint on.
nlohmann::json change_event(const run::RunFolder& folder, const OtherPlan& plan);
// It as a sentence, for whoever asked for it.
std::string change_text(const nlohmann::json& event);

}  // namespace ductile::cli
