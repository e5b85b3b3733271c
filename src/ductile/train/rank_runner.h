#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ductile/base/aligned_array.h"
#include "ductile/comm/canonical.h"
#include "ductile/data/loader.h"
#include "ductile/parallel/batch_groups.h"
#include "ductile/parallel/exchange.h"
#include "ductile/parallel/gradient_tree.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/look_model.h"
#include "ductile/train/stage_runner.h"
#include "ductile/train/state.h"
#include "ductile/train/step_method.h"

namespace ductile::train {

// Runs the virtual ranks that one worker hosts: it gives each rank the samples of its part of a
// step, has the step method compute the rank's contribution, and sums the contributions in the
// order of the canonical tree.
//
// The vectors that virtual ranks sum are [gradient | running statistics | figures]. In a step
// without a gradient only the figures are filled.
//
// One thread at a time. However a computation ends, the state is the one before the step.
class RankRunner {
 public:
  // The arguments must outlive this object.
  RankRunner(const spec::JobOptions& job, Ingredients& ingredients, JobState& state,
             const FigureList& figures);

  // Takes over the virtual ranks that worker `rank` of `layout` hosts. Batch norm groups that the
  // layout cuts sum through `exchange`, which lives until the next host() or the last compute().
  void host(const parallel::ExchangeLayout& layout, int rank, parallel::Exchange* exchange);

  // To be called when the exchange of host() is gone: host() comes next. What was received lay in
  // its memory.
  void leave() {
    if (stages_) stages_->leave();
  }

  // To be called when the state is not the one that the last step led to: the loaded batch then
  // does not belong to it.
  void state_changed() { loaded_cursor_ = -1; }

  int64_t vector_size() const;
  int64_t figures_begin() const;  // the place of the first figure
  // Of virtual ranks that are stages: the blocks of weights that each reads (stage_runner.h), and
  // what each contributes to (ExchangeLayout::contributions). Of others: nothing.
  std::vector<StageRunner::Blocks> blocks_read() const;
  std::vector<std::vector<parallel::FloatRange>> contributions() const;
  // Where they are stages: what a worker receives of others at most (StageRunner::message_bytes).
  size_t message_bytes(std::span<const int64_t> cut) {
    return stages_ ? stages_->message_bytes(cut) : 0;
  }
  // The model as its stages run it, and their ranks in a pipeline, by operator (stage_runner.h).
  nn::OperatorGraph forward_operators() const;
  std::vector<int> ranks_of_operators() const;

  // Sums the next `count` hosted virtual ranks of the step into `out`, which has vector_size()
  // values, of which it fills those that the layout says (ExchangeLayout::filled). If these ranks
  // are one node of the canonical tree, the sum is in its order. During the last backward pass
  // ready(begin), if given and if the method allows it, is called with falling values of `begin`:
  // `out` is then final from element `begin` to the figures, and with 0 the figures are final, too.
  // After compute() has thrown (peer_lost if a member of a batch norm group is gone), host() must
  // be called next.
  using Ready = std::function<void(int64_t begin)>;
  // `samples` are those of the step if the method chose them, else nullptr.
  void compute(const StepKind& kind, const Samples* samples, int64_t count, std::span<float> out,
               const Ready& ready);

  // Computes a virtual rank of the present step of a job with a task, hosted or not, and writes
  // what it contributes into `out` (vector_size() values). Nothing else changes.
  void repeat(const StepKind& kind, const Samples* samples, int64_t rank, std::span<float> out);
  // What the next steps carry as figure kBatchOrder, where the job has it (optim/batch_order.h).
  void set_batch_order(int64_t batch) { batch_order_ = batch; }

  // What the hosted stages did in step `step`, where that was the last one and is recorded
  // (stage_trace.h); else nothing.
  const parallel::Trace& trace_of(int64_t step) const;

  bool channels_last() const { return channels_last_; }
  data::LoaderStats loader_stats() const {
    return loader_ ? loader_->stats() : data::LoaderStats();
  }

 private:
  class Context;
  // What a virtual rank contributes, run and not summed yet.
  struct Contribution {
    std::vector<at::Tensor> gradients;
    std::shared_ptr<const std::vector<float>> buffers;
    std::vector<float> figures;
  };
  using Backward =
      std::function<void(int64_t rank, const at::Tensor& loss, std::vector<float> figures)>;

  void begin_step();
  void compute_gradients(int64_t count, std::span<float> out, const Ready& ready);
  void compute_figures(int64_t count, std::span<float> out);
  Contribution next_contribution();
  void run_stages(int64_t pipeline);
  uint64_t step_seed() const;  // of what is drawn in this step
  void run_part(size_t part, const Backward& backward);
  void run_rank(int64_t rank, const Backward& backward);
  // The one that looks, with the weights that the trained one has.
  nn::Model& model_for_looks();
  // The samples have to be fetched; the stream is left alone.
  bool fetches() const { return samples_ != nullptr && !samples_->of_stream; }
  const data::Batch& batch_of(int64_t rank);
  void advance();

  const spec::JobOptions& job_;
  Ingredients& ingredients_;
  JobState& state_;
  const FigureList& figures_;
  const bool channels_last_;
  int64_t num_batch_norms_ = 0;
  parallel::GradientTree tree_;
  std::optional<LookModel> look_model_;  // where looks have a precision of their own
  AlignedArray<float> other_weights_;    // that a step computes with
  std::vector<float> buffers_before_;    // the state before the step, while its virtual ranks run

  parallel::ExchangeLayout layout_;       // of host()
  comm::LeafRange hosted_;                // virtual ranks
  std::unique_ptr<StageRunner> stages_;   // where the virtual ranks are stages
  std::unique_ptr<data::Loader> loader_;  // none where no hosted stage reads samples
  std::unique_ptr<parallel::BatchGroups> groups_;
  std::vector<comm::LeafRange> parts_;  // of groups_

  int64_t batch_order_ = 0;
  parallel::Trace trace_;
  int64_t traced_step_ = -1;  // whose trace it is

  // The present step:
  StepKind kind_;
  const Samples* samples_ = nullptr;
  bool looked_ = false;  // the model for looks has its weights
  // Where in the stream, and of which size, the step is whose batches are loaded; -1: none.
  int64_t loaded_cursor_ = -1, loaded_batch_size_ = 0;
  size_t next_part_ = 0;                                           // to run
  int64_t next_rank_ = 0;                                          // to be summed
  std::map<int64_t, std::shared_ptr<const data::Batch>> batches_;  // of the step, loaded
  std::map<int64_t, Contribution> contributions_;                  // run, not summed
};

}  // namespace ductile::train
