#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json_fwd.hpp>

#include "ductile/noise/noise_scale.h"
#include "ductile/optim/hyper.h"
#include "ductile/spec/job.h"
#include "ductile/spec/methods.h"

namespace ductile::optim {

// What a rate control sees of a job between two steps; it is the same on every worker, to the bit.
// All values are those of the state before the step for which the control is asked.
struct Observed {
  // Progress through the planned run, in steps of the job's own train.batch_size. If the batch size
  // never changed, these are the numbers of updates done and planned; else they are fractions,
  // whose share is what a schedule goes by.
  double position = 0;
  double total = 1;
  int64_t steps_per_epoch = 1;
  // Position and total if the next batch has so many samples. They differ near the end of an epoch:
  // what is left of it fills a small batch, and not a large one.
  std::function<std::pair<double, double>(int64_t batch)> way_with;

  int64_t updates = 0;  // done
  Hyper last;           // that the last step was done with; before the first one, the job file's
  // The mean loss of the batch of the last update, and every figure that the ranks summed in it, by
  // name. Both are empty before the first update.
  std::optional<double> loss;
  std::map<std::string, double> figures;
  // The results of the last evaluation, and the number of updates done before it.
  std::optional<double> eval_loss, eval_accuracy;
  int64_t evaluated_at = -1;
  // The mean loss that the probe found, if the last step was a probe (RateControl::probe()); it may
  // be infinite or NaN.
  std::optional<double> probe_loss;
  // The noise of the gradients, in units of the job's train.batch_size; none while it is not known.
  std::optional<noise::GradientNoise> noise;
};

// Chooses the hyperparameters of the next step. It is asked exactly once per committed step, and
// sees only what all workers know. Its answer is therefore part of that step: it is saved in the
// checkpoint, sent to workers that join, and equal on all workers.
//
// A control keeps what it remembers from step to step in `memory`, a JSON object that belongs to
// the job's state and is saved, sent, forked and restored with it. The RateControl object itself is
// constant.
class RateControl {
 public:
  virtual ~RateControl() = default;

  // Throws invalid_argument if the job's options do not fit.
  virtual Hyper next(const Observed& observed, nlohmann::json& memory) const = 0;

  // A control may look at the loss between two updates, on the line through the present weights and
  // those that it had kept (train/probing.h). These three are asked with the memory that next()
  // left.
  //
  // How a control probes; nullopt if it never does.
  struct Probing {
    int64_t batches = 1;  // mini-batches per probe
  };
  virtual std::optional<Probing> probing() const { return std::nullopt; }
  // Whether the weights after the next update are to be kept; those kept before are dropped.
  virtual bool keeps_weights(const nlohmann::json& /*memory*/) const { return false; }
  // Where the next step probes: 0 is at the weights kept, 1 at the present ones, 2 is twice as
  // far. The next step is one of training if there is no answer. All probes between two updates see
  // the same samples.
  virtual std::optional<double> probe(const nlohmann::json& /*memory*/) const {
    return std::nullopt;
  }
};

// A row of the table of controls; the rows are in spec/methods.h.
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
