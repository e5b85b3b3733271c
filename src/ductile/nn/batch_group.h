#pragma once

#include <span>

// Batch normalisation over more samples than one forward pass sees: by groups of virtual ranks
// (parallel/lockstep.h), by workers that hold parts of the same images, or both. Ying et al.,
// "Image classification at supercomputer scale" (2018), section 2.2 has the why.
namespace ductile::nn {

// The members that normalise together, as one of them sees it. Each runs its own forward and
// backward pass; at each training-mode batch norm, in both directions, all members meet and sum
// one small vector. They meet in the same order, since they run the same model.
//
// One thread at a time uses a member. The members of a group may lie in one thread each, in
// processes, or on hosts: who lies where changes no bit.
class BatchGroup {
 public:
  virtual ~BatchGroup() = default;

  // Replaces `values` by their sum over all members: the same bits on each of them, whoever comes
  // first and wherever they are. Returns once all members have come. Throws what ends the step
  // (peer_lost where a member is gone); every member then gets an error, and none waits for ever.
  virtual void all_reduce(std::span<double> values) = 0;

  // Whether this member is to move the model's running statistics. False where another member that
  // shares the same model does.
  virtual bool moves_running_statistics() const { return true; }
};

// The group that forward passes on this thread normalise in; nullptr: each by itself. A backward
// pass normalises in the group of its forward pass, which must live until then.
BatchGroup* current_batch_group();

// Makes `group` (nullptr: none) the current one of this thread for the life of the scope.
class BatchGroupScope {
 public:
  explicit BatchGroupScope(BatchGroup* group);
  BatchGroupScope(const BatchGroupScope&) = delete;
  BatchGroupScope& operator=(const BatchGroupScope&) = delete;
  ~BatchGroupScope();

 private:
  BatchGroup* before_;
};

}  // namespace ductile::nn
