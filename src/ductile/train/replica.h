#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/ckpt/checkpoint.h"
#include "ductile/comm/canonical.h"
#include "ductile/data/loader.h"
#include "ductile/nn/model.h"
#include "ductile/optim/loss_scaler.h"
#include "ductile/optim/optimizer.h"
#include "ductile/parallel/batch_groups.h"
#include "ductile/parallel/exchange.h"
#include "ductile/parallel/gradient_tree.h"
#include "ductile/parallel/sharded_update.h"
#include "ductile/spec/job.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/flat_model.h"
#include "ductile/train/snapshot.h"

namespace ductile::train {

// Training figures between two metric lines. Part of the state, so that the lines of a resumed run
// equal those of an undisturbed one.
struct Window {
  double loss = 0;  // sum over steps
  double correct = 0, predictions = 0;
  int64_t steps = 0;

  nlohmann::json to_json() const;
  static Window from_json(const nlohmann::json& value);
};

// The whole state of a job between two steps, and a step cut in two: what virtual ranks contribute,
// and the update from the sum over all of them. Everybody who holds the state before step t holds
// the same bits, whichever virtual ranks were computed where.
//
// One thread at a time. Errors of data and configuration throw from where they are met.
class Replica {
 public:
  // Opens the data and makes the model in its first state.
  explicit Replica(const spec::JobOptions& job);

  const spec::JobOptions& job() const { return job_; }
  const data::DatasetInfo& train_info() const { return train_set_->info(); }
  const data::DatasetInfo& test_info() const { return test_set_->info(); }
  const optim::ParamLayout& layout() const { return flat_->layout(); }
  int64_t num_parameters() const { return flat_->layout().num_parameters(); }
  int64_t num_ranks() const { return job_.train.virtual_ranks; }
  int64_t steps_per_epoch() const { return steps_per_epoch_; }
  int64_t total_steps() const { return total_steps_; }
  int64_t step() const { return step_; }  // steps done
  double epoch() const {
    return static_cast<double>(step_) / static_cast<double>(steps_per_epoch_);
  }
  // Of the last step, or of the first one before it.
  double learning_rate() const;

  // Takes over the virtual ranks that worker `rank` of `layout` hosts, from the present step on.
  // Batch norm groups that the layout cuts sum through `exchange`, which lives until the next
  // host() or the last compute().
  void host(const parallel::ExchangeLayout& layout, int rank, parallel::Exchange* exchange);
  // Takes over all of them.
  void host_all() { host({{0, num_ranks()}, vector_size()}, 0, nullptr); }
  data::LoaderStats loader_stats() const { return loader_->stats(); }

  // The vectors that virtual ranks sum: [gradient | running statistics | loss, correct,
  // predictions].
  int64_t vector_size() const;
  // Sums the next `count` hosted virtual ranks of the present step into `out`, of vector_size()
  // values; in the order of the canonical tree where they are one node of it. ready(begin), where
  // given and without batch norm groups, is called during the last backward pass: `out` is final
  // from element `begin` on, which falls. Once it has thrown (peer_lost where a member of a batch
  // norm group is gone), the state is that before the step, and host() comes next.
  using Ready = std::function<void(int64_t begin)>;
  void compute(int64_t count, std::span<float> out, const Ready& ready = {});
  // Ends the present step by the sum over all virtual ranks. Throws conflict where the run
  // diverged; the state is then that before the step.
  void apply(std::span<const float> sum);

  // ---- Where the update is spread over workers (job.train.shard_optimizer): who holds what, and
  // its moves. All workers of a generation hold the state together; weights and averages are whole
  // on each after gather().
  parallel::ShardedUpdate& shards() { return *shards_; }
  // Sums what all have computed, and gets all that apply() needs from the others.
  std::span<const float> reduce(parallel::Exchange& exchange);
  void gather_weights(parallel::Exchange& exchange);
  void gather(parallel::Exchange& exchange);  // averages too
  // Whether the figures of the steps since the last take are to become a metric line now.
  bool window_due() const { return window_.steps == job_.train.log_every || step_ == total_steps_; }
  Window take_window() { return std::exchange(window_, {}); }
  int64_t skipped_steps() const { return scaler_.state().skipped; }

  // Evaluates the present state (its moving averages, where averaging is on) on the test set.
  // `each(samples_done)` is called after each batch.
  Evaluation evaluate(const std::function<void(int64_t)>& each);
  // Makes `result` the evaluation of the present state.
  void record(const Evaluation& result);
  // Whether the present state is to be evaluated and has not been.
  bool evaluation_due() const;
  bool evaluated() const { return evaluated_step_ == step_; }
  const std::optional<Evaluation>& last() const { return last_; }
  const std::optional<Evaluation>& best() const { return best_; }
  double target_value() const;  // the last evaluation in the metric of the target
  bool target_reached() const;
  // All steps are done and evaluated, or the target was reached.
  bool done() const;

  // The state but for the tensors; with them it is all that a checkpoint or a peer needs.
  nlohmann::json state() const;
  // Where the state is spread, all of it has to be held.
  std::vector<ckpt::TensorView> tensors();
  // The model alone as safetensors (averaged, where averaging is on): what is deployed.
  void write_model(const fs::path& file);
  // Takes up the state that a checkpoint holds. Throws conflict if it is of another job.
  void restore(const ckpt::Checkpoint& checkpoint);
  // The state (all but what is in shards, where it is spread) from one worker to another that has
  // nothing yet; the other calls receive_state, with the step. Throws conflict where it comes from
  // another job (job.toml was edited while the job ran).
  void send_state(parallel::Exchange& exchange, int to);
  void receive_state(parallel::Exchange& exchange, int from, int64_t step);

 private:
  // Takes up `state` of step `step`, whose tensors have been written.
  void restore(int64_t step, const nlohmann::json& state);
  void check_same_job(const nlohmann::json& saved) const;
  std::vector<std::span<std::byte>> fed_tensors();
  Snapshot snapshot() { return {*flat_, *optimizer_, average_.span(), buffer_average_.span()}; }
  bool needs_norm() const { return job_.train.precision == "fp16" || job_.optimizer.clip_norm > 0; }
  bool overflows(double norm) const;
  float inverse_scale() const {
    return 1.0f / (static_cast<float>(num_ranks()) * static_cast<float>(scaler_.scale()));
  }
  optim::StepInput step_input(std::span<const float> sum, double norm);

  // Figures of one virtual rank in a step.
  struct Figures {
    float loss = 0, correct = 0, predictions = 0;
  };
  // What it contributes.
  struct Contribution {
    std::vector<at::Tensor> gradients;
    std::shared_ptr<const std::vector<float>> buffers;
    Figures figures;
  };
  // After its forward pass: what to differentiate.
  struct Forward {
    at::Tensor loss;
    Figures figures;
  };
  using Backward = std::function<void(int64_t rank, const Forward& forward)>;
  void run_part(size_t part, const Backward& backward);
  Forward forward(const data::Batch& batch, int64_t virtual_rank);
  void write(const Contribution& contribution, std::span<float> leaf) const;
  void write_tail(std::span<const float> buffers, const Figures& figures,
                  std::span<float> leaf) const;

  const spec::JobOptions job_;
  std::shared_ptr<const data::Dataset> train_set_, test_set_;
  spec::AugmentOptions augment_;
  std::unique_ptr<nn::Model> model_;
  std::unique_ptr<FlatModel> flat_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::LossScaler scaler_;
  AlignedArray<float> average_, buffer_average_;
  std::optional<parallel::ShardedUpdate> shards_;
  std::optional<double> norm_;  // of the present step's gradient, from reduce()
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<parallel::GradientTree> tree_;
  bool channels_last_ = true;

  int64_t steps_per_epoch_ = 0, total_steps_ = 0;
  int64_t step_ = 0;
  int64_t evaluated_step_ = -1;
  Window window_;
  std::optional<Evaluation> last_, best_;
  std::vector<float> buffers_before_;  // the state before the step, while its virtual ranks run

  int64_t num_batch_norms_ = 0;
  comm::LeafRange hosted_;  // virtual ranks
  std::unique_ptr<parallel::BatchGroups> groups_;
  std::vector<comm::LeafRange> parts_;  // of groups_
  // The present step:
  size_t next_part_ = 0;                                           // to run
  int64_t next_rank_ = 0;                                          // to be summed
  std::map<int64_t, std::shared_ptr<const data::Batch>> batches_;  // loaded, not run
  std::map<int64_t, Contribution> contributions_;                  // run, not summed
};

}  // namespace ductile::train
