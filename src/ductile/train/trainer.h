#pragma once

#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "ductile/run/folder.h"
#include "ductile/spec/job.h"

namespace ductile::train {

// How a run ended.
enum class Ending {
  finished,        // all steps done
  target_reached,  // the evaluation metric asked for was reached
  interrupted,     // a signal; the state is saved and the run can be resumed
};
std::string_view to_string(Ending ending);

struct RunInput {
  run::RunFolder folder;  // holds job.toml
  spec::JobOptions job;   // resolved and checked
  bool resume = false;    // continue from the newest good checkpoint in the folder
  int progress_fd = -1;   // run::Progress lines go here; -1 = nowhere
};

// Trains one job in this process, hosting all of its virtual ranks, and writes the run directory:
// metrics, events, checkpoints, model.safetensors, report.html.
//
// The weights after step t depend on the job file, the data and t alone: not on interruptions,
// on when checkpoints were taken, or on how often the run was resumed. Throws Error for whatever
// ends a run early; the last good checkpoint then stays usable.
//
// Returns the ending; `summary` receives the figures of the run (documented in
// docs/reference/run-folder.md under the event "done").
Ending train(const RunInput& input, nlohmann::json& summary);

}  // namespace ductile::train
