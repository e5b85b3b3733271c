#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "ductile/optim/hyper.h"
#include "ductile/spec/job.h"
#include "ductile/spec/methods.h"

namespace ductile::optim {

// What a rate control sees of a job between two steps: the same on every worker, to the bit.
// Everything is counted up to the state before the step that it is asked for.
struct Observed {
  // Progress through the planned run, in steps of the present batch size: of a run whose batch size
  // never changed, the number of updates done and planned.
  int64_t position = 0;
  int64_t total = 1;
  int64_t steps_per_epoch = 1;

  int64_t updates = 0;  // done
  Hyper last;           // that the last step was done with; before the first one, the job file's
  // Of the last update: the mean loss of its batch, and every figure that the ranks summed, by
  // name. Empty before the first update.
  std::optional<double> loss;
  std::map<std::string, double> figures;
  // The last evaluation, and the number of updates it was made after.
  std::optional<double> eval_loss, eval_accuracy;
  int64_t evaluated_at = -1;
};

// Chooses the hyperparameters of the next step. It is asked exactly once for each step that was
// committed, with what all workers know, so its answer is part of that step: it is saved in the
// checkpoint, sent to joiners, and equal on all workers.
//
// What a control remembers from step to step lies in `memory`, a JSON object that belongs to the
// job's state and is saved, sent, forked and restored with it; the object itself is constant.
class RateControl {
 public:
  virtual ~RateControl() = default;

  // Throws invalid_argument where the job's options do not fit.
  virtual Hyper next(const Observed& observed, nlohmann::json& memory) const = 0;
};

// A row of the table of controls, which spec/methods.h holds.
struct RateControlEntry {
  std::string_view name;
  std::unique_ptr<RateControl> (*make)(const spec::JobOptions&);
  std::string_view help;
};
Table<RateControlEntry> rate_controls();

// The control named by job.train.rate_control. Throws invalid_argument for an unknown name.
std::unique_ptr<RateControl> make_rate_control(const spec::JobOptions& job);

#define DUCTILE_DECLARE_CONTROL(name, make, help) \
  std::unique_ptr<RateControl> make(const spec::JobOptions& job);
DUCTILE_RATE_CONTROLS(DUCTILE_DECLARE_CONTROL)
#undef DUCTILE_DECLARE_CONTROL

}  // namespace ductile::optim
