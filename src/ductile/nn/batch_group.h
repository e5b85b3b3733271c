#pragma once

#include <cstdint>
#include <span>

// Batch normalisation over more samples than one forward pass sees: by groups of virtual ranks
// (parallel/batch_groups.h), by workers that hold parts of the same images, or both. For the
// reasons see Ying et al., "Image classification at supercomputer scale" (2018), on distributed
// batch normalisation.
namespace ductile::nn {

// The group of members that normalise together, as one of them sees it. Each runs its own forward
// and backward pass. At each training-mode batch norm, in both passes, all members meet and sum one
// small vector. They meet in the same order, because they run the same model.
//
// One thread at a time uses a member, which must outlive the graphs that were made in it. Members
// may be in different threads, processes or hosts; this changes no bit of the result.
class BatchGroup {
 public:
  virtual ~BatchGroup() = default;

  // Replaces `values` by their sum over all members, with the same bits on each of them, in
  // whatever order they come and wherever they are. Returns once all members have come. The
  // generators (generator.h) are unchanged afterwards, whatever other members drew meanwhile.
  //
  // Throws the error that ends the step (peer_lost if a member is gone). Every member then gets an
  // error, and none waits for ever.
  void sum(std::span<double> values);

  // The number of sums that this member has made.
  int64_t num_sums() const { return num_sums_; }

  // Whether this member updates the model's running statistics; false if another member that shares
  // the same model does.
  virtual bool moves_running_statistics() const { return true; }

 protected:
  // Implements sum(), except for restoring the generators.
  virtual void all_reduce(std::span<double> values) = 0;

 private:
  int64_t num_sums_ = 0;
};

// The group in which forward passes on this thread normalise; nullptr: each pass normalises alone.
// A backward pass normalises in the group of its forward pass.
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
