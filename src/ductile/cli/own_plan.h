#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/pipeline_plan.h"

// A job that is measured and planned before it is trained: `ductile train --devices FILE`, and
// `ductile submit` likewise.
namespace ductile::cli {

// The graph of the job's model with times and bytes, measured by a worker with so many threads (0:
// the cores that this process may use); nothing where a signal ended it. `captured` gets the only
// numbers of samples that the model takes, if it does not take all. Throws invalid_argument for a
// Python job.
std::optional<nlohmann::json> measured_graph(const JobConfig& config,
                                             const std::vector<int64_t>& shares, int64_t rounds,
                                             int64_t threads, Console& console,
                                             std::vector<int64_t>* captured = nullptr);

// What a worker says is wrong with the stages of a job, whose options are `job` as TOML, for its
// model. Empty: nothing, or nobody can say it on this machine, as without its data. No text at all
// where a signal ended it.
std::optional<std::string> fault_of_plan(const std::string& job);

// Looks for the operators of stages before there is a run, or workers of one that goes on: a run
// that cannot begin would stay, as the latest, and each worker would come to the same error. A plan
// that was made for this command is of this model, but may give a captured one other micro-batches
// than it takes. Returns whether to go on: no signal came.
bool check_operators(const TrainCommand& command, JobConfig& config);

// The first plan found that has room for all that its workers hold. A search for the fastest plan
// knows nothing of what a worker holds of other stages, which depends on the plan: where that has
// no room, it searches again, a few times, with so much less memory on each device. `search` gets
// the bytes to leave free, and returns nothing where no plan fits then (for 0 it throws);
// `shortage` is shortage_of(). Throws invalid_argument with the first plan's shortage where none
// has room.
std::string plan_with_room(
    const std::function<std::optional<std::string>(double)>& search,
    const std::function<std::optional<LackOfRoom>(const std::string&)>& shortage);

struct OwnPlan {
  std::string text;   // as `ductile plan --json` writes it
  fs::path name;      // no file: what messages call it, by the devices that were given
  int64_t ranks = 1;  // devices that it takes
};
// Of the job as `ductile profile` measures it, for the machine that the cluster file `devices`
// describes, or for so many devices of this machine (describe_machine()), as `ductile plan
// --runnable` finds it, which is said, with room for what the job's workers hold of other stages;
// `replicas`: its --replicas. No file is left of it. Nothing where a signal ended it. Throws what
// profile, plan and read_planned() report, naming the devices, and invalid_argument for a Python
// job before it is run, and where no plan has room.
std::optional<OwnPlan> own_plan(const JobRequest& request, const std::string& devices,
                                std::optional<int64_t> replicas, const Context& context);

// The same command with --plan: own_plan() for command.devices. Without --workers and --hosts, as
// many workers as the plan has devices.
std::optional<TrainCommand> with_own_plan(const TrainCommand& command, const Context& context);

}  // namespace ductile::cli
