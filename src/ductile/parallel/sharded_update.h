#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ductile/optim/optimizer.h"
#include "ductile/parallel/exchange.h"
#include "ductile/parallel/shards.h"

namespace ductile::parallel {

// One worker's side of an update: it sums, updates and keeps the blocks that its generation gives
// it, which may be all of them. For any number of workers the result has the same bits as
// Optimizer::step() on one worker.
//
// A step is reduce(), gradient_norm() if it is needed, and prepare(); then, once nothing can stop
// the step any more, apply(), which does not communicate; then gather(), before weights are read
// that are not held.
// Between two steps each worker holds `weights`, `average` and the optimiser's state for the blocks
// of held(), and the workers together hold the whole state. The weights of other blocks are stale
// until they are gathered. If every worker keeps all blocks (ShardLayout::whole), only reduce()
// communicates.
//
// All workers of the exchange call the functions that take an exchange, in the same order. These
// throw the errors of the exchange; the held state is then unchanged. One thread.
class ShardedUpdate {
 public:
  // Flat buffers of the optimiser's layout; `average` may be empty. All outlive this object. Each
  // block is kept by `copies` workers. Before the first generation there is this worker alone.
  ShardedUpdate(optim::Optimizer& optimizer, std::span<float> weights, std::span<float> average,
                int copies);

  // The blocks for which this worker holds the state of the present step. In the beginning these
  // are all blocks, in their first state.
  const std::vector<BlockRange>& held() const { return optimizer_.held(); }
  int64_t num_blocks() const { return optimizer_.num_blocks(); }

  // To be called before the first generation: blocks are kept where they are read
  // (keep_where_read() of shards.h), and not spread evenly.
  void keep_where_read(std::vector<std::vector<BlockRange>> read);
  // Whether they are: a worker then holds all weights that its virtual ranks read.
  bool kept_where_read() const { return !read_.empty(); }

  // ---- A generation.
  // How blocks are spread over the workers of a generation; `cut` is as in ExchangeLayout. Unless
  // each of them keeps all blocks, their exchange is one in parts.
  ShardLayout spread(std::span<const int64_t> cut) const;
  // From now on blocks are spread in this way. The blocks held stay the same until apply().
  void enter(const ExchangeLayout& exchange, int rank);
  const ShardLayout& layout() const { return layout_; }
  // Holds these blocks from now on. State of blocks that were not held before is zero.
  void hold(std::vector<BlockRange> ranges) { optimizer_.hold(std::move(ranges)); }
  // Moves missing blocks: worker r has the blocks have[r], and afterwards also the blocks want[r].
  // Throws data_loss, on all workers, if nobody has a block that is wanted.
  void transfer(Exchange& exchange, std::span<const std::vector<BlockRange>> have,
                std::span<const std::vector<BlockRange>> want);

  // ---- A step. The exchange may be nullptr if every worker keeps all blocks.
  // The sum. It is valid for the gradient of the layout's blocks, and for the elements after the
  // gradient. Elements below `begin` are not needed.
  std::span<const float> reduce(Exchange& exchange, int64_t begin = 0);
  // The elements for which it is valid, of those from `begin` on.
  std::vector<FloatRange> needed_of(const ExchangeLayout& exchange, int64_t begin = 0) const {
    return needed_by(rank_, exchange, begin);
  }
  double gradient_norm(Exchange* exchange, std::span<const float> sum);
  // `in` as for Optimizer::step().
  void prepare(Exchange* exchange, const optim::StepInput& in);
  // Afterwards this worker holds the layout's blocks, in the state of the next step.
  void apply(const optim::StepInput& in);
  // The same for a step that leaves the state unchanged.
  void skip() { hold(to_hold()); }

  // Completes a flat buffer of the layout, such as the weights, on all workers: each worker sends
  // the values of the blocks that it holds. Returns false if nothing was missing.
  bool gather(Exchange& exchange, std::span<float> values);
  // The same on worker `at` alone. Returns false on the others, too.
  bool gather_at(Exchange& exchange, int at, std::span<float> values);

  // The elements of a flat buffer, or of a sum, that belong to blocks.
  FloatRange floats(BlockRange blocks) const;

 private:
  void share_scalars(Exchange& exchange, std::span<const std::vector<BlockRange>> have);
  std::vector<std::span<float>> contents(BlockRange blocks);
  const std::vector<BlockRange>& to_hold() const {
    return layout_.held[static_cast<size_t>(rank_)];
  }
  std::vector<FloatRange> needed_by(int rank, const ExchangeLayout& exchange, int64_t begin) const;
  std::vector<BlockRange> to_compute() const;
  template <class T, class PartOf>
  void complete(Exchange* exchange, std::span<T> values, const PartOf& part_of) const;

  optim::Optimizer& optimizer_;
  std::span<float> weights_, average_;
  int copies_;
  std::vector<std::vector<BlockRange>> read_;  // by virtual rank; empty: blocks are spread evenly
  int rank_ = 0;
  ShardLayout layout_;
};

}  // namespace ductile::parallel
