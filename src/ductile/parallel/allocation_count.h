#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "ductile/nn/compat.h"

namespace ductile::parallel {

// Bytes that libtorch's allocator gives out in one thread while a Watch lives, by owner: whoever
// was at work when they were given out, such as an operator or a stage, by number.
class AllocationCount : public c10::MemoryReportingInfoBase {
 public:
  // In this thread.
  class Watch {
   public:
    explicit Watch(std::shared_ptr<AllocationCount> count)
        : guard_(c10::DebugInfoKind::PROFILER_STATE, std::move(count)) {}

   private:
    c10::DebugInfoGuard guard_;
  };

  // While it lives, what this thread is given belongs to kSums and not to who is at work; does
  // nothing where nobody watches.
  class OfSums {
   public:
    OfSums() : count_(current()) {
      if (count_ != nullptr) owner_ = std::exchange(count_->owner_, kSums);
    }
    ~OfSums() {
      if (count_ != nullptr) count_->owner_ = owner_;
    }
    OfSums(const OfSums&) = delete;
    OfSums& operator=(const OfSums&) = delete;

   private:
    AllocationCount* const count_;
    int owner_ = 0;
  };
  static constexpr int kSums = -1;  // of weights' gradients

  // The owner from now on.
  void begin(int owner) {
    owner_ = owner;
    begin_ = peak_ = live_;
  }
  // The most that was live, of all owners but kSums, beyond what was when begin() was called.
  int64_t peak() const { return peak_ - begin_; }
  // An owner has so many bytes more, or less, that this allocator has not given out.
  void add(int owner, int64_t bytes) {
    Bytes& own = owners_[owner];
    own.live += bytes;
    own.most = std::max(own.most, own.live);
    if (owner == kSums) return;
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  int64_t live_of(int owner) const { return of(owner).live; }
  // The most that was live of one owner at a time.
  int64_t most_of(int owner) const { return of(owner).most; }

  void reportMemoryUsage(void* where, int64_t size, nn::MemoryTotal /*allocated*/,
                         nn::MemoryTotal /*reserved*/, c10::Device /*device*/) override {
    if (size > 0) {
      blocks_[where] = {owner_, size};
      add(owner_, size);
    } else if (const auto found = blocks_.find(where); found != blocks_.end()) {
      add(found->second.first, -found->second.second);
      blocks_.erase(found);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

 private:
  struct Bytes {
    int64_t live = 0, most = 0;
  };

  static AllocationCount* current() {
    return dynamic_cast<AllocationCount*>(
        c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE));
  }
  Bytes of(int owner) const {
    const auto found = owners_.find(owner);
    return found == owners_.end() ? Bytes() : found->second;
  }

  int owner_ = 0;
  int64_t live_ = 0, begin_ = 0, peak_ = 0;
  std::unordered_map<void*, std::pair<int, int64_t>> blocks_;
  std::map<int, Bytes> owners_;
};

}  // namespace ductile::parallel
