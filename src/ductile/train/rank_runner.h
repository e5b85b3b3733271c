#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "ductile/base/aligned_array.h"
#include "ductile/comm/canonical.h"
#include "ductile/data/loader.h"
#include "ductile/parallel/batch_groups.h"
#include "ductile/parallel/exchange.h"
#include "ductile/parallel/gradient_tree.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/state.h"
#include "ductile/train/step_method.h"

namespace ductile::train {

// The virtual ranks that one worker hosts: brings each the samples of its part of a step, has the
// step method make its contribution, and sums these in the order of the canonical tree.
//
// The vectors that virtual ranks sum: [gradient | running statistics | figures]. Of a step without
// gradient the figures alone are filled.
//
// One thread at a time. Whatever ends a computation, the state is that before the step.
class RankRunner {
 public:
  // All outlive this object.
  RankRunner(const spec::JobOptions& job, Ingredients& ingredients, JobState& state,
             const FigureList& figures);

  // Takes over the virtual ranks that worker `rank` of `layout` hosts. Batch norm groups that the
  // layout cuts sum through `exchange`, which lives until the next host() or the last compute().
  void host(const parallel::ExchangeLayout& layout, int rank, parallel::Exchange* exchange);

  // The state is another one than the last step led to: what was loaded is not its.
  void state_changed() { loaded_cursor_ = -1; }

  int64_t vector_size() const;
  int64_t figures_begin() const;  // the place of the first figure

  // Sums the next `count` hosted virtual ranks of the step into `out`, of vector_size() values; in
  // the order of the canonical tree where they are one node of it. ready(begin), where given and
  // where the method allows it, is called during the last backward pass: `out` is final from
  // element `begin` on, which falls. Once it has thrown (peer_lost where a member of a batch norm
  // group is gone), host() comes next.
  using Ready = std::function<void(int64_t begin)>;
  void compute(const StepKind& kind, int64_t count, std::span<float> out, const Ready& ready);

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
  void run_part(size_t part, const Backward& backward);
  void run_rank(int64_t rank, const Backward& backward);
  const data::Batch& batch_of(int64_t rank);
  void advance();

  const spec::JobOptions& job_;
  Ingredients& ingredients_;
  JobState& state_;
  const FigureList& figures_;
  const bool channels_last_;
  int64_t num_batch_norms_ = 0;
  parallel::GradientTree tree_;
  AlignedArray<float> other_weights_;  // that a step computes with
  std::vector<float> buffers_before_;  // the state before the step, while its virtual ranks run

  comm::LeafRange hosted_;  // virtual ranks
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<parallel::BatchGroups> groups_;
  std::vector<comm::LeafRange> parts_;  // of groups_

  // The present step:
  StepKind kind_;
  // Where in the stream, and of which size, the step is whose batches are loaded; -1: none.
  int64_t loaded_cursor_ = -1, loaded_batch_size_ = 0;
  size_t next_part_ = 0;                                           // to run
  int64_t next_rank_ = 0;                                          // to be summed
  std::map<int64_t, std::shared_ptr<const data::Batch>> batches_;  // of the step, loaded
  std::map<int64_t, Contribution> contributions_;                  // run, not summed
};

}  // namespace ductile::train
