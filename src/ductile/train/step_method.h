#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ductile/data/loader.h"
#include "ductile/nn/model.h"
#include "ductile/spec/job.h"
#include "ductile/spec/methods.h"
#include "ductile/train/state.h"

namespace ductile::train {

struct Ingredients;

// What the next protocol step is. Every worker decides it from the state before the step alone, so
// all decide alike.
struct StepKind {
  bool gradient = true;  // the ranks differentiate, and their gradients are summed; without it the
                         // step costs its forward passes and the sum of the figures
  bool update = true;  // it is a step of training: it uses up a batch of the stream, and ends in an
                       // update of the weights unless the method judges otherwise
  bool displaced = false;  // the ranks compute with StepMethod::weights() in place of the state's
  // The operations of a forward pass of the step, as a share of those of a whole one, for the count
  // of them.
  double forward_cost = 1;
};

// The samples of a step, if the method chooses them.
struct Samples {
  std::vector<int64_t> indices;  // of the training set, in order
  int64_t epoch = 0;             // as in which they are augmented
  // Virtual rank r has those from r * per_rank on. The last ranks may have fewer, or none.
  int64_t per_rank = 1;
  int64_t next_cursor = 0;  // the place in the stream (Counters::cursor) after the step
  bool of_stream = false;   // they are the stream's next ones, which the loader reads ahead
};

// How far a run is in its epochs, in updates with the present batch size.
struct Progress {
  double position = 0;      // a whole number while the batch has never changed
  int64_t left = 0;         // updates to be done, at most; 0: the run is over
  bool by_batches = false;  // every update is one batch of the stream
};

// How far a run is in its schedule, in updates with the job's own batch size: a step that changes
// the batch moves neither of the two.
struct Way {
  double done = 0;
  double total = 1;
};

// Names of the figures that every step has; a method adds its own.
inline constexpr std::string_view kLoss = "loss";  // as the method defines it; plain: a rank's mean
inline constexpr std::string_view kCorrect = "correct", kPredictions = "predictions";
inline constexpr std::string_view kSamplesForward = "samples_forward";
inline constexpr std::string_view kSamplesBackward = "samples_backward";
// The squared norm of a rank's gradient, from which the noise of the gradients is estimated. The
// runner sets it, in the steps that are measured (noise.h).
inline constexpr std::string_view kGradientSquare = "gradient_square";

// The names of a step's figures and their places in the tail of the vector that the ranks sum. Each
// figure is a float, which is exact for counts up to 2^24. Behind them stand the values that the
// ranks share (StepMethod::num_shared).
class FigureList {
 public:
  explicit FigureList(std::vector<std::string> more = {}, int64_t num_shared = 0);

  const std::vector<std::string>& names() const { return names_; }
  int64_t size() const { return static_cast<int64_t>(names_.size()) + num_shared_; }
  // Throws not_found.
  size_t place(std::string_view name) const;
  std::map<std::string, double> by_name(std::span<const float> tail) const;
  // The values without names, behind the figures.
  std::span<const float> shared(std::span<const float> tail) const {
    return tail.last(static_cast<size_t>(num_shared_));
  }
  int64_t num_shared() const { return num_shared_; }

 private:
  std::vector<std::string> names_;
  int64_t num_shared_ = 0;
};

// What a method sees of one hosted virtual rank while it computes the rank's part of a step. The
// model computes with the weights of the step (StepMethod::weights) and is in training mode; its
// running statistics are restored afterwards. The generators from which dropout draws are seeded
// for (job, step, rank).
class RankContext {
 public:
  virtual ~RankContext() = default;

  virtual const spec::JobOptions& job() const = 0;
  virtual const JobState& state() const = 0;
  virtual const StepKind& kind() const = 0;
  virtual int64_t rank() const = 0;
  virtual uint64_t seed() const = 0;       // of what the rank draws in this step
  virtual int64_t train_size() const = 0;  // samples of the training set
  virtual nn::Model& model() = 0;
  // The samples that this rank has in this step: its part of those that the method chose, or of the
  // stream. If this is not a step of training and the method chose none, the next step has the same
  // ones again.
  virtual const data::Batch& batch() = 0;
  // The place of the first of them among the samples of the step.
  virtual int64_t first() const = 0;
  // All samples of the step; nullptr: the method chose none.
  virtual const Samples* samples() const = 0;
  // Any samples of the training set, in the given order, augmented as in the given epoch
  // (Loader::fetch).
  virtual std::shared_ptr<const data::Batch> fetch(std::span<const int64_t> indices,
                                                   int64_t epoch) = 0;
  // Logits and losses of a batch. Counts its samples as forwarded.
  virtual nn::LossOutput forward(const data::Batch& batch) = 0;
  // The same in evaluation mode and without a gradient; at half the resolution in both directions
  // if `half`.
  virtual nn::LossOutput look(const data::Batch& batch, bool half) = 0;
  // The mean of a batch's losses, rounded in the same way for every number of threads.
  virtual at::Tensor mean(const at::Tensor& losses) = 0;
  // Sets one figure of this rank; figures that are not set are 0.
  virtual void figure(std::string_view name, double value) = 0;
  // The num_shared() values of this rank, 0 at first. Where one rank alone sets a value, every
  // worker gets it as it is.
  virtual std::span<float> shared() = 0;
};

// What the sum of a committed step means.
struct Verdict {
  bool update = true;
  // The gradient that the optimiser sees is the sum divided by this.
  double divisor = 1;
  double loss = 0;  // of the step; the run has diverged where an update's is not finite
};

// What a committed step came to; the same on every worker.
struct Outcome {
  const std::map<std::string, double>& sums;  // of the figures
  std::span<const float> shared;
  std::span<const float> gradient;  // the sum; empty if the step has none
  const Samples* samples;           // nullptr: the method chose none
  int64_t cursor = 0;               // before the step
};

// What one protocol step computes and what its sum means: plain training, training on selected
// samples, probes of the loss between updates, a pipeline stage. There is one object per worker and
// job. It keeps what it needs from step to step in the state (JobState::extra) only, so kills,
// resizes, resumes and forks need no code in a method.
//
// The methods are called in this order for each step: next(), samples(), weights() and contribute()
// for each hosted virtual rank, judge() (once or twice), and once the step is committed commit(). A
// step may be given up before commit(); it is then done again, with another spread of ranks over
// workers.
class StepMethod {
 public:
  virtual ~StepMethod() = default;

  // Called once, before the others. Throws invalid_argument if the method cannot work with this
  // model or this data. All parts but the method are complete.
  virtual void prepare(const spec::JobOptions&, Ingredients&) {}

  // Takes over the live options (spec/live_options.h) that the method reads, for the steps from
  // here on. All others are those that it was made with.
  virtual void set_options(const spec::JobOptions&) {}

  // The names of the figures that the method sums besides the standard ones, and the number of
  // further values that the ranks share; these never change.
  virtual std::vector<std::string> figures() const { return {}; }
  virtual int64_t num_shared() const { return 0; }
  virtual StepKind next(const JobState&) const { return {}; }
  // The samples of the step; without an answer they are those of the stream, which goes on if the
  // step is one of training.
  virtual std::optional<Samples> samples(const JobState&, const StepKind&) const { return {}; }
  // How far the run is; `by_stream` says it for a method that updates once for each batch of the
  // stream.
  virtual Progress progress(const JobState&, const Progress& by_stream) const { return by_stream; }
  // For a displaced step: writes the weights with which a virtual rank computes into `out`, a
  // buffer of the layout. The members of a batch norm group compute with those of its first hosted
  // one. The weights of the state are restored afterwards, to the bit.
  virtual void weights(JobState&, const StepKind&, int64_t /*rank*/,
                       std::span<float> /*out*/) const {}
  // Computes the part of one virtual rank: sets figures, and returns the loss to be differentiated,
  // which is undefined if the rank has no gradient. The result depends on the state, the data and
  // the rank alone.
  virtual at::Tensor contribute(RankContext& rank) = 0;
  // Whether the virtual ranks are stages of the model (stage_runner.h), which pass tensors to each
  // other within a step: contribute() is then not called.
  virtual bool runs_stages() const { return false; }
  // Judges the step by its sums. The default takes the mean over the virtual ranks.
  virtual Verdict judge(const JobState& state, const StepKind& kind,
                        const std::map<std::string, double>& sums, int64_t num_ranks) const;
  // Called after the step is committed, to change the method's own parts of the state. If the step
  // has an update, it has been applied, and the counters include the step.
  virtual void commit(JobState&, const StepKind&, const Outcome&) const {}
};

// How far a run of `epochs` over `num_samples` training samples is. The position never falls from
// one step to the next, whatever the batch becomes.
Progress progress_of(const StepMethod& method, const JobState& state, int64_t num_samples,
                     int64_t epochs);
// Where one that takes the samples of the stream will be after its next batch, as progress_of()
// says it then if the batch stays what it is.
Progress progress_after_batch(const JobState& state, int64_t num_samples, int64_t epochs);
// The position for the schedule of the job. Where train.max_steps ends the run before its epochs
// do, the share that is done is that of the updates.
Way way_of(const Progress& progress, const JobState& state, const spec::JobOptions& job,
           int64_t num_samples);

// A row of the table of methods; the rows are in spec/methods.h.
struct StepMethodEntry {
  std::string_view name;
  std::unique_ptr<StepMethod> (*make)(const spec::JobOptions&);
  std::string_view help;
};
Table<StepMethodEntry> step_methods();

// The method named by job.train.method. Throws invalid_argument for an unknown name.
std::unique_ptr<StepMethod> make_step_method(const spec::JobOptions& job);

#define DUCTILE_DECLARE_METHOD(name, make, help) \
  std::unique_ptr<StepMethod> make(const spec::JobOptions& job);
DUCTILE_STEP_METHODS(DUCTILE_DECLARE_METHOD)
#undef DUCTILE_DECLARE_METHOD

}  // namespace ductile::train
