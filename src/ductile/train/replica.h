#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/ckpt/checkpoint.h"
#include "ductile/data/loader.h"
#include "ductile/noise/noise_scale.h"
#include "ductile/parallel/exchange.h"
#include "ductile/parallel/sharded_update.h"
#include "ductile/spec/job.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/online_tuner.h"
#include "ductile/train/rank_runner.h"
#include "ductile/train/stage_forward.h"
#include "ductile/train/state.h"
#include "ductile/train/step_method.h"

namespace ductile::train {

// One worker's copy of a job: its ingredients and its state between two steps. A step has two
// halves: the contributions of the hosted virtual ranks, and the change of the state by the sum
// over all of them. All workers that hold the state before step t hold the same bits, whichever
// worker computed which virtual ranks.
//
// One thread at a time. Every method may throw errors of the data and of the configuration.
class Replica {
 public:
  // Opens the data and makes the model in its first state.
  explicit Replica(const spec::JobOptions& job) : Replica(job, recipe_of(job)) {}
  // `may_be_blank`: it may leave the first weights out where a worker need not have all of them,
  // for make_blanks() or another worker's, since it does not know yet which it is to hold.
  Replica(const spec::JobOptions& job, const Recipe& recipe, bool may_be_blank = false);
  // Gives the blocks that are held their first weights, and averages, where these were left out.
  void make_blanks();

  const spec::JobOptions& job() const { return job_; }
  const data::DatasetInfo& train_info() const { return ingredients_.train_info(); }
  const data::DatasetInfo& test_info() const { return ingredients_.test_info(); }
  const std::vector<std::string>& class_names() const { return train_info().class_names; }
  const JobState& state() const { return state_; }
  JobState& state() { return state_; }
  Task* task() const { return ingredients_.task.get(); }  // null in a job that has none
  const optim::ParamLayout& layout() const { return state_.flat.layout(); }
  int64_t num_parameters() const { return layout().num_parameters(); }
  int64_t num_ranks() const { return job_.train.virtual_ranks; }
  // Virtual ranks, or whole pipelines, whose mean the update is made of.
  int64_t num_averaged() const { return spec::num_gradients(job_); }

  // The number of protocol steps committed; the number of weight updates among them, done and
  // planned (with the present batch size); and the number of passes over the training data.
  int64_t step() const { return state_.counters.step; }
  int64_t updates() const { return state_.counters.updates; }
  int64_t total_updates() const;
  double epoch() const { return epoch_at(progress().position); }
  // As many epochs as it is to begin: fewer than train.epochs where train.max_steps ends it before.
  int64_t num_epochs() const;
  // The hyperparameters of the last step; before the first step, those of the first.
  const optim::Hyper& hyper() const { return updates() > 0 ? state_.last_hyper : state_.hyper; }

  // Takes over the virtual ranks that worker `rank` of `layout` hosts, from the present step on.
  // Batch norm groups that the layout cuts sum through `exchange`, which lives until the next
  // host() or the last compute().
  void host(const parallel::ExchangeLayout& layout, int rank, parallel::Exchange* exchange) {
    tidy_for_.reset();
    by_stages_ = nullptr;  // of a generation that is over
    runner_.host(layout, rank, exchange);
  }
  // To be called when the exchange of host() is gone (rank_runner.h).
  void leave() { runner_.leave(); }
  // Takes over all of them.
  void host_all() { host({{0, num_ranks()}, vector_size()}, 0, nullptr); }
  data::LoaderStats loader_stats() const { return runner_.loader_stats(); }
  const parallel::Trace& trace_of(int64_t step) const { return runner_.trace_of(step); }

  // The size of the vectors that virtual ranks sum, and the first element of them that the present
  // step needs: 0, or in a step without a gradient the first figure.
  int64_t vector_size() const { return runner_.vector_size(); }
  int64_t figures_begin() const { return runner_.figures_begin(); }
  // What virtual ranks contribute to, where they are stages whose state lies where it is read
  // (ExchangeLayout::contributions); else nothing is said.
  std::vector<std::vector<parallel::FloatRange>> contributions() const;
  // ExchangeLayout::message_bytes, by the cut of the layout.
  size_t message_bytes(std::span<const int64_t> cut) { return runner_.message_bytes(cut); }
  int64_t sum_begin() const { return kind_.gradient ? 0 : runner_.figures_begin(); }
  // Sums the next `count` hosted virtual ranks of the present step into `out` (rank_runner.h).
  using Ready = RankRunner::Ready;
  // Throws invalid_argument for a step with a gradient in which all parameters are frozen.
  void compute(int64_t count, std::span<float> out, const Ready& ready = {});
  // With python.verify_every, and if the present step is one of these: computes a virtual rank of
  // it here and on another worker (or twice, on one that is alone). Throws conflict if the bits
  // differ, and names what does. All workers of the exchange call it.
  void verify(parallel::Exchange& exchange);
  // Somebody wishes batches of so many samples (0: nobody). If that may be, the present step says
  // so to all workers, and the next one obeys. Only for jobs with train.rate_control = "goodput".
  void wish_batch(int64_t samples);
  // Sums what all workers have computed, and gets everything that apply() needs from them.
  std::span<const float> reduce(parallel::Exchange& exchange);
  // Ends the present step with the sum over all virtual ranks, and lets the rate control choose the
  // hyperparameters of the next one. Throws conflict if the run diverged; the state is then the one
  // before the step.
  void apply(std::span<const float> sum);

  // ---- The parts of the state: the workers of a generation hold them together. Without
  // job.train.shard_optimizer each of them holds all parts. With it a job by stages keeps them
  // where they are read (ShardedUpdate::kept_where_read).
  parallel::ShardedUpdate& shards() { return shards_; }
  using Blocks = std::vector<parallel::BlockRange>;
  // Moves missing parts (ShardedUpdate::transfer).
  void transfer(parallel::Exchange& exchange, std::span<const Blocks> have,
                std::span<const Blocks> want);
  // Completes the weights that compute() reads on all workers.
  void gather_weights(parallel::Exchange& exchange);
  // What evaluate() needs of the others on the worker of rank 0: all weights and what belongs to
  // them; or, where the state lies where it is read, the others themselves, who then call
  // follow_evaluation() while that worker evaluates, or not, and then calls end_evaluation().
  void gather(parallel::Exchange& exchange);
  void follow_evaluation();
  void end_evaluation();
  // Gives back memory: of weights and averages that are not held, if nothing but compute() is to
  // read them, and what was freed since. Only where the state lies where it is read.
  void tidy();

  // The figures of the metric line that the last step completed, if it did.
  const std::optional<Window>& line() const { return state_.line; }
  // What is known of the noise of the gradients, in units of the job's train.batch_size: the
  // estimates of |G|^2 and tr(Sigma) of McCandlish et al. 2018, appendix A, from the squared norms
  // of the virtual ranks' gradients and of their mean. None before the first update, in a job
  // with one virtual rank, and in one that trains by stages.
  std::optional<noise::GradientNoise> noise() const;
  int64_t skipped_steps() const { return state_.scaler.state().skipped; }

  // How much of the budget of a search for hyperparameters is given out; nothing where none goes
  // on.
  std::optional<double> search_share() const {
    return tuner_ ? tuner_->search_share(state_) : std::nullopt;
  }

  // What is to be said of the search as the run begins; empty: nothing.
  std::string search_warning() const { return tuner_ ? tuner_->warning() : ""; }

  // Evaluates the weights that the optimiser names for it (JobState::evaluation_weights) on the
  // test set. `each(samples_done)` is called after each batch.
  Evaluation evaluate(const std::function<void(int64_t)>& each);
  // Records `result` as the evaluation of the present state. Throws conflict if its loss is not
  // finite: the run diverged.
  void record(const Evaluation& result);
  // Whether the present state is to be evaluated and has not been evaluated yet.
  bool evaluation_due() const;
  // Whether it is, may turn out to be the last one of the run, and can be made by this worker
  // alone.
  bool last_evaluation_due() const;
  bool evaluated() const { return state_.evaluated_at == updates(); }
  // After this very step; later steps may leave the weights as they were.
  bool evaluated_here() const { return state_.evaluated_step == step(); }
  const std::optional<Evaluation>& last() const { return state_.last; }
  const std::optional<Evaluation>& best() const { return state_.best; }
  double target_value() const;  // the last evaluation in the metric of the target
  bool target_reached() const;
  // Whether all updates are done and evaluated, or the target was reached.
  bool done() const;

  // The state without the tensors, and the job. Together with the tensors this is all that a
  // checkpoint needs.
  nlohmann::json values() const;
  // The model with the weights that are evaluated, of the present state; and the same as
  // safetensors: this is the file to deploy.
  JobState::Deployed deployed();
  void write_model(const fs::path& file, const JobState::Deployed& model) const;
  // What such a file says of itself.
  std::map<std::string, std::string> about_model(const std::string& weights_digest) const;
  // Whether a worker that holds a part of the state has that part of these weights: they are no
  // result of a pass over samples, and of no task.
  bool deploys_in_parts();
  // Throws conflict if the job of a saved state differs from this one (same_job.h).
  void check_same_job(const nlohmann::json& saved) const;
  // Restores the state of a checkpoint, all of it or these blocks. Throws conflict if it belongs to
  // another job.
  void restore(const ckpt::Checkpoint& checkpoint) {
    restore(checkpoint, {{0, shards_.num_blocks()}});
  }
  void restore(const ckpt::Checkpoint& checkpoint, const Blocks& blocks);
  // Sends the state without its parts to a worker that has none yet and calls receive_state(), with
  // the step. receive_state() throws conflict if the state comes from another job (job.toml was
  // edited while the job ran).
  void send_state(parallel::Exchange& exchange, int to);
  void receive_state(parallel::Exchange& exchange, int from, int64_t step);
  // Takes the state of an image of this job (JobState::fork).
  void take(const StateImage& image);

 private:
  void begin_step();
  void state_changed();
  nlohmann::json upgraded(const ckpt::Checkpoint& checkpoint) const;
  optim::Observed observed();
  Progress progress() const;
  Way way() const { return way_of(progress(), state_, job_, train_info().size); }
  Way way_with(int64_t batch);  // if the next batch has so many samples
  int64_t steps_per_epoch() const;
  double epoch_at(double position) const {
    return position / static_cast<double>(steps_per_epoch());
  }
  void choose_hyper();
  void obey();
  // What the sum of the present step comes to.
  struct Judgement {
    std::map<std::string, double> sums;
    Verdict verdict;
    float inverse_scale = 1;  // of the sum: by the loss scale that it was made with
    double norm = 0;  // of the gradient as the optimiser sees it, before clipping; where needed
    bool overflow = false;
  };
  void judge(std::span<const float> sum, parallel::Exchange* exchange);
  bool needs_norm() const;
  float inverse_scale(const Verdict& verdict) const {
    return 1.0f / (static_cast<float>(verdict.divisor) * static_cast<float>(state_.scaler.scale()));
  }
  double average_decay() const;
  double steps_in_tail() const;
  void count_tail(double decay);
  JobState::EvaluationWeights take_gathered();
  bool needs_statistics(const JobState::EvaluationWeights& evaluated) const;
  void add_statistics(JobState::EvaluationWeights& evaluated);
  void give_back_blocks(parallel::BlockRange blocks);
  std::optional<std::vector<parallel::FloatRange>> evaluated_ranges() const;
  optim::StepInput step_input(std::span<const float> sum, const Judgement& judgement);
  void update(std::span<const float> sum, const Judgement& judgement);
  void note_noise(std::span<const float> sum, const Judgement& judgement);
  void tell_tuner(double loss);

  const spec::JobOptions job_;
  // The job with the options that the present step brings (Hyper::options), and these.
  spec::JobOptions in_force_;
  std::map<std::string, double> obeyed_;
  Ingredients ingredients_;
  FigureList figures_;
  JobState state_;
  RankRunner runner_;
  parallel::ShardedUpdate shards_;
  std::optional<OnlineTuner> tuner_;
  StepKind kind_;                                        // of the present step
  std::optional<Samples> samples_;                       // of the present step, if chosen
  std::optional<Judgement> judgement_;                   // of the present step
  std::optional<JobState::EvaluationWeights> gathered_;  // for the next evaluate()
  std::unique_ptr<StageForward> by_stages_;              // while the workers evaluate together
  // What was held when all else was given back; nothing: there is something to give back.
  std::optional<Blocks> tidy_for_;
};

}  // namespace ductile::train
