#pragma once

#include "ductile/base/table.h"

// What a step does: name, maker, help, as in optimizers.h; train/step_method.cc has the makers.
#define DUCTILE_STEP_METHODS(ROW)                                                                 \
  ROW("plain", make_plain_method, "forward and backward pass for every sample, then an update")   \
  ROW("selective", make_selective_method,                                                         \
      "Selective-Backprop: a forward pass shows losses, and samples with large ones are trained") \
  ROW("stale_selective", make_stale_selective_method,                                             \
      "Stale-SB: as selective, with losses of earlier epochs between forward passes")             \
  ROW("infobatch", make_infobatch_method,                                                         \
      "InfoBatch: half of the samples with small losses are skipped, and the rest counts double") \
  ROW("graded", make_graded_method,                                                               \
      "the smaller a sample's last loss, the likelier it is skipped, and the more it counts")     \
  ROW("pipelined", make_pipelined_method,                                                         \
      "the virtual ranks are stages of the model, through which micro-batches pass")

// What chooses the hyperparameters of each step; optim/rate_control.cc has the makers.
#define DUCTILE_RATE_CONTROLS(ROW)                                                                 \
  ROW("schedule", make_schedule_control,                                                           \
      "the learning rate follows [schedule]; the other values stay constant")                      \
  ROW("lrtuner", make_lrtuner_control,                                                             \
      "the learning rate is found while training, from probes of the loss along the updates")      \
  ROW("noise", make_noise_control,                                                                 \
      "as schedule, and the batch doubles as the measured noise of the gradients permits; the "    \
      "learning rate grows with it (sgd: by AdaScale's gain; others: by the square root)")         \
  ROW("goodput", make_goodput_control,                                                             \
      "as schedule, with the batch that batch.json of the run directory names; the learning rate " \
      "grows with it as under noise")

namespace ductile::spec {

Table<Named> step_methods();
Table<Named> rate_controls();

struct JobOptions;
// Whether the method trains on samples that a look has chosen (train.method = "selective" or
// "stale_selective"), and whether the epochs of such a run count its updates in place of the
// samples that it looks at (train.selective.length = "updates").
bool selects_samples(const JobOptions& job);
bool counts_updates(const JobOptions& job);
// Whether the method skips samples by their last losses, and weighs those that it keeps
// (train.method = "infobatch" or "graded").
bool weighs_samples(const JobOptions& job);
// Whether the rate control may choose larger batches than train.batch_size.
bool may_enlarge(const JobOptions& job);
// Whether somebody outside the job chooses its batches (train.rate_control = "goodput"), and the
// largest one: train.noise.max_batch, or eight times train.batch_size.
bool batch_is_ordered(const JobOptions& job);
int64_t most_batch(const JobOptions& job);
// The largest staleness of any step: train.staleness, or what a tuner may choose while training.
int64_t most_staleness(const JobOptions& job);

}  // namespace ductile::spec
