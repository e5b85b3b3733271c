#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ductile/optim/optimizer.h"
#include "ductile/parallel/exchange.h"
#include "ductile/parallel/shards.h"

namespace ductile::parallel {

// One worker's side of an update that is spread over workers: it sums, updates and keeps the blocks
// that its generation gives it. The same bits as Optimizer::step() on one worker, for any number of
// workers.
//
// A step: reduce(), gradient_norm() where needed, prepare(); then, once nothing can stop it any
// more, apply(), which says nothing to anybody; then gather() before weights are read. The
// state between two steps is what the workers hold together: `weights`, `average` and the
// optimiser's state of held(). Outside of it weights are leftovers until they are gathered.
//
// All workers of the exchange call the same functions in the same order, but for those without an
// exchange. Errors of the exchange come through; the held state is then what it was. One thread.
class ShardedUpdate {
 public:
  // Flat buffers of the optimiser's layout; `average` may be empty. All outlive this object. Each
  // block is kept by `copies` workers.
  ShardedUpdate(optim::Optimizer& optimizer, std::span<float> weights, std::span<float> average,
                int copies);

  // The blocks whose state of the present step is here; in the beginning, all of the first state.
  const std::vector<BlockRange>& held() const { return optimizer_.held(); }
  int64_t num_blocks() const { return optimizer_.num_blocks(); }

  // ---- A generation.
  // From now on this is the spread; what is held stays, until apply().
  void enter(const ExchangeLayout& exchange, int rank);
  const ShardLayout& layout() const { return layout_; }
  // Holds these from now on: more (zeroes where there was nothing), or less.
  void hold(std::vector<BlockRange> ranges) { optimizer_.hold(std::move(ranges)); }
  // Moves what is missing: worker r has `have[r]` and in the end `want[r]` too. Throws data_loss,
  // on all, where nobody has a block that is wanted.
  void transfer(Exchange& exchange, std::span<const std::vector<BlockRange>> have,
                std::span<const std::vector<BlockRange>> want);

  // ---- A step.
  // The sum; valid for the gradient of the blocks of the layout, and for what follows the gradient.
  // Elements below `begin` are not needed.
  std::span<const float> reduce(Exchange& exchange, int64_t begin = 0);
  double gradient_norm(Exchange& exchange, std::span<const float> sum);
  // `in` as for Optimizer::step().
  void prepare(Exchange& exchange, const optim::StepInput& in);
  // From now on the layout's blocks are held, of the next step.
  void apply(const optim::StepInput& in);
  // The same, of a step that leaves the state as it was.
  void skip() { hold(layout_.held[static_cast<size_t>(rank_)]); }

  // Makes the values of all blocks (of a flat buffer of the layout, such as the weights), which
  // each worker has right for the blocks it holds, known to all.
  void gather(Exchange& exchange, std::span<float> values);

 private:
  FloatRange floats(BlockRange blocks) const;
  std::vector<std::span<float>> contents(BlockRange blocks);

  optim::Optimizer& optimizer_;
  std::span<float> weights_, average_;
  int copies_;
  int rank_ = 0;
  ShardLayout layout_;
};

}  // namespace ductile::parallel
