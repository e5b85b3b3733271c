#pragma once

#include <optional>
#include <string>

#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/cli/job_config.h"
#include "ductile/spec/job.h"

namespace ductile::cli {

// Makes the job one that runs by the plan in `file`, as `ductile plan --json` writes it: the plan
// becomes the group train.pipelined, so the job needs the file no more. Returns the text of the
// file, which is read once. Throws not_found where there is no such file, and invalid_argument,
// naming file and stage, for what is no plan, does not fit the job, or cannot be run yet (sharded
// optimisers, unequal micro-batches, replicas that do not divide one, divided stages with unequal
// replicas), and for devices that are damaged. Which devices they are has no part in the job:
// PlanPlacement tells where a run has its stages.
std::string set_plan(spec::JobOptions& job, const fs::path& file);
// The same for the text of a plan that `file` names for messages.
std::string set_plan_text(spec::JobOptions& job, std::string text, const fs::path& file);

// As set_plan() for a job that is named on the command line, before it is known what else it has:
// what somebody asked for, and the plan says otherwise, is an error and not left out without a
// word. With it comes train.shard_optimizer, where nobody said anything of it and
// may_lie_by_stage(). `text`: set_plan_text() with it.
std::string read_planned(const JobRequest& request, const fs::path& file,
                         const std::optional<std::string>& text, const char* const* environment,
                         JobConfig& config);

// Throws invalid_argument, naming the option of the command line, for a Python job, of which there
// are no stages.
void require_stages(const JobRequest& request, const std::string& option);

// Seconds of a step with a device for each part of each stage, of the text of a plan's file; 0: it
// does not say.
double predicted_seconds(const std::string& text);

// The weights, gradients and optimiser state of a job beside those that its plan counts, whose
// graph may be one of another optimiser, or a captured one, which knows of none.
struct StateScale {
  double factor = 1;     // at least 1
  double has = 0;        // bytes for each byte of weights
  double planned = 0;    // the same, as the plan counts
  double optimizer = 0;  // so much `ductile plan --optimizer-state` has to count instead
};
// `evaluation`: of the plan, as `ductile plan --json` writes it. `where`: said before its errors.
// Throws invalid_argument for what is none.
StateScale state_scale(const spec::JobOptions& job, const nlohmann::json& evaluation,
                       const std::string& where);

// That a stage of a plan needs more memory than its devices have.
struct LackOfRoom {
  std::string text;   // names file and stage, and what to do
  double beside = 0;  // bytes of other stages' state that its worker holds; 0: it lacks room alone
};
// Once all options of the job are known: where a stage of the plan with this text lacks memory, by
// itself or with what its worker holds of other stages' state (train.shard_optimizer,
// train.shard_copies). Nothing where all have room.
std::optional<LackOfRoom> shortage_of(const spec::JobOptions& job, const std::string& text,
                                      const fs::path& file);
// The same; throws invalid_argument with its text.
void check_memory(const spec::JobOptions& job, const std::string& text, const fs::path& file);

// What has to be said of a plan with this text: that its figures are of another split of stages
// than the one that the job does. One line, which names the file and the stages; empty where no
// stage is divided, or the plan has no figures.
std::string note_on_split(const spec::JobOptions& job, const std::string& text,
                          const fs::path& file);

// Whether train.shard_optimizer = true gives the job by stages everything that it has without, in
// less memory: the bits, and a lost worker that costs one step. Not so with train.shard_copies = 1,
// train.pipeline_exact, whose ranks contribute -0 for the state that they do not hold, sums that no
// bits stay of, or a library's model, whose operators may not name the weights that they read.
// `asked_copies`: its user said how many copies there are, also 1, which says something of state by
// stage alone.
bool may_lie_by_stage(const spec::JobOptions& job, bool asked_copies = false);

}  // namespace ductile::cli
