#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/ckpt/checkpoint.h"
#include "ductile/data/loader.h"
#include "ductile/parallel/exchange.h"
#include "ductile/parallel/sharded_update.h"
#include "ductile/spec/job.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/rank_runner.h"
#include "ductile/train/state.h"
#include "ductile/train/step_method.h"

namespace ductile::train {

// One worker's copy of a job: its ingredients, its state between two steps, and a step cut in two:
// what the hosted virtual ranks contribute, and what the sum over all of them does to the state.
// Everybody who holds the state before step t holds the same bits, whichever virtual ranks were
// computed where.
//
// One thread at a time. Errors of data and configuration throw from where they are met.
class Replica {
 public:
  // Opens the data and makes the model in its first state.
  explicit Replica(const spec::JobOptions& job) : Replica(job, recipe_of(job)) {}
  Replica(const spec::JobOptions& job, const Recipe& recipe);

  const spec::JobOptions& job() const { return job_; }
  const data::DatasetInfo& train_info() const { return ingredients_.train_set->info(); }
  const data::DatasetInfo& test_info() const { return ingredients_.test_set->info(); }
  const JobState& state() const { return state_; }
  JobState& state() { return state_; }
  const optim::ParamLayout& layout() const { return state_.flat.layout(); }
  int64_t num_parameters() const { return layout().num_parameters(); }
  int64_t num_ranks() const { return job_.train.virtual_ranks; }

  // Steps of the protocol that are committed; updates of the weights among them, done and planned
  // (with the present batch size); passes over the training data.
  int64_t step() const { return state_.counters.step; }
  int64_t updates() const { return state_.counters.updates; }
  int64_t total_updates() const;
  double epoch() const;
  // Of the last step, or of the first one before it.
  const optim::Hyper& hyper() const { return updates() > 0 ? state_.last_hyper : state_.hyper; }

  // Takes over the virtual ranks that worker `rank` of `layout` hosts, from the present step on.
  // Batch norm groups that the layout cuts sum through `exchange`, which lives until the next
  // host() or the last compute().
  void host(const parallel::ExchangeLayout& layout, int rank, parallel::Exchange* exchange) {
    runner_.host(layout, rank, exchange);
  }
  // Takes over all of them.
  void host_all() { host({{0, num_ranks()}, vector_size()}, 0, nullptr); }
  data::LoaderStats loader_stats() const { return runner_.loader_stats(); }

  // The vectors that virtual ranks sum, and the first element that the present step needs: 0, or of
  // a step without gradient that of the figures.
  int64_t vector_size() const { return runner_.vector_size(); }
  int64_t figures_begin() const { return runner_.figures_begin(); }
  int64_t sum_begin() const { return kind_.gradient ? 0 : runner_.figures_begin(); }
  // Sums the next `count` hosted virtual ranks of the present step into `out` (rank_runner.h).
  using Ready = RankRunner::Ready;
  void compute(int64_t count, std::span<float> out, const Ready& ready = {}) {
    runner_.compute(kind_, count, out, ready);
  }
  // Ends the present step by the sum over all virtual ranks, and has the hyperparameters of the
  // next one chosen. Throws conflict where the run diverged; the state is then that before the
  // step.
  void apply(std::span<const float> sum);

  // ---- Where the update is spread over workers (job.train.shard_optimizer): who holds what, and
  // its moves. All workers of a generation hold the state together; weights and averages are whole
  // on each after gather().
  bool spread() const { return shards_.has_value(); }
  parallel::ShardedUpdate& shards() { return *shards_; }
  // Sums what all have computed, and gets all that apply() needs from the others.
  std::span<const float> reduce(parallel::Exchange& exchange);
  void gather_weights(parallel::Exchange& exchange);
  // What evaluate() needs, too.
  void gather(parallel::Exchange& exchange);

  // Whether the figures of the updates since the last take are to become a metric line now.
  bool window_due() const {
    return state_.window.updates > 0 &&
           (state_.window.updates >= job_.train.log_every || updates() == total_updates());
  }
  Window take_window() { return std::exchange(state_.window, {}); }
  int64_t skipped_steps() const { return state_.scaler.state().skipped; }

  // Evaluates the weights that the optimiser names for it (JobState::evaluation_weights) on the
  // test set. `each(samples_done)` is called after each batch.
  Evaluation evaluate(const std::function<void(int64_t)>& each);
  // Makes `result` the evaluation of the present state.
  void record(const Evaluation& result);
  // Whether the present state is to be evaluated and has not been.
  bool evaluation_due() const;
  bool evaluated() const { return state_.evaluated_at == updates(); }
  const std::optional<Evaluation>& last() const { return state_.last; }
  const std::optional<Evaluation>& best() const { return state_.best; }
  double target_value() const;  // the last evaluation in the metric of the target
  bool target_reached() const;
  // All updates are done and evaluated, or the target was reached.
  bool done() const;

  // The state but for the tensors, and the job; with the tensors it is all that a checkpoint needs.
  nlohmann::json values() const;
  // The model alone as safetensors, with the weights that are evaluated: what is deployed.
  void write_model(const fs::path& file);
  // Throws conflict where a saved state's job is another one than this (same_job.h).
  void check_same_job(const nlohmann::json& saved) const;
  // Takes up the state that a checkpoint holds. Throws conflict if it is of another job.
  void restore(const ckpt::Checkpoint& checkpoint);
  // The state (all but what is in shards, where it is spread) from one worker to another that has
  // nothing yet; the other calls receive_state, with the step. Throws conflict where it comes from
  // another job (job.toml was edited while the job ran).
  void send_state(parallel::Exchange& exchange, int to);
  void receive_state(parallel::Exchange& exchange, int from, int64_t step);
  // Becomes the state of an image of this job (JobState::fork).
  void take(const StateImage& image);

 private:
  void begin_step();
  void state_changed();
  nlohmann::json upgraded(const ckpt::Checkpoint& checkpoint) const;
  optim::Observed observed() const;
  int64_t position() const;
  int64_t steps_per_epoch() const;
  void choose_hyper();
  // What the sum of the present step comes to.
  struct Judgement {
    std::map<std::string, double> sums;
    Verdict verdict;
    double norm = 0;  // of the gradient as the optimiser sees it, before clipping; where needed
    bool overflow = false;
  };
  Judgement judge(std::span<const float> sum) const;
  bool needs_norm() const { return job_.train.precision == "fp16" || state_.hyper.clip_norm > 0; }
  void set_norm(Judgement& judgement, double norm) const;
  float inverse_scale(const Verdict& verdict) const {
    return 1.0f / (static_cast<float>(verdict.divisor) * static_cast<float>(state_.scaler.scale()));
  }
  optim::StepInput step_input(std::span<const float> sum, const Judgement& judgement);
  void update(std::span<const float> sum, const Judgement& judgement);

  const spec::JobOptions job_;
  Ingredients ingredients_;
  FigureList figures_;
  JobState state_;
  RankRunner runner_;
  std::optional<parallel::ShardedUpdate> shards_;
  StepKind kind_;                                        // of the present step
  std::optional<Judgement> judgement_;                   // of the present step, from reduce()
  std::optional<JobState::EvaluationWeights> gathered_;  // for the next evaluate()
};

}  // namespace ductile::train
