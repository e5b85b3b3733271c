#pragma once

#include <cstdint>
#include <span>

// Batch normalisation over more samples than one forward pass sees: by groups of virtual ranks
// (parallel/batch_groups.h), by workers that hold parts of the same images, or both. Why: Ying et
// al., "Image classification at supercomputer scale" (2018), on distributed batch normalisation.
namespace ductile::nn {

// The members that normalise together, as one of them sees it. Each runs its own forward and
// backward pass; at each training-mode batch norm, in both directions, all members meet and sum
// one small vector. They meet in the same order, since they run the same model.
//
// One thread at a time uses a member, and it outlives the graphs that were made in it. The members
// of a group may lie in one thread each, in processes, or on hosts: who lies where changes no bit.
class BatchGroup {
 public:
  virtual ~BatchGroup() = default;

  // Replaces `values` by their sum over all members: the same bits on each of them, whoever comes
  // first and wherever they are. Returns once all members have come. libtorch's CPU generator is
  // afterwards as it was before, whatever other members drew from it meanwhile.
  //
  // Throws what ends the step (peer_lost where a member is gone); every member then gets an error,
  // and none waits for ever.
  void sum(std::span<double> values);

  // How often this member has summed.
  int64_t num_sums() const { return num_sums_; }

  // Whether this member is to move the model's running statistics. False where another member that
  // shares the same model does.
  virtual bool moves_running_statistics() const { return true; }

 protected:
  // What sum() promises, but for the generator.
  virtual void all_reduce(std::span<double> values) = 0;

 private:
  int64_t num_sums_ = 0;
};

// The group that forward passes on this thread normalise in; nullptr: each by itself. A backward
// pass normalises in the group of its forward pass.
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
