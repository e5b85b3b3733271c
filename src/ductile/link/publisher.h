#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"
#include "ductile/control/membership.h"

namespace ductile::link {

// Publishes checkpoints on a thread of its own, in order, so that a slow disk does not keep the
// controller from its workers.
class Publisher {
 public:
  Publisher(fs::path checkpoints, int64_t keep);
  ~Publisher();  // finishes the one under way

  void publish(const control::PublishCheckpoint& what);
  int fd() const { return ready_.get(); }  // readable while take() has something
  // Takes the results of publish(): one CheckpointPublished or PublishFailed per call.
  std::vector<control::Event> take();

 private:
  void run();
  control::Event carry_out(const control::PublishCheckpoint& what) const;

  const fs::path checkpoints_;
  const int64_t keep_;
  Descriptor ready_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<control::PublishCheckpoint> asked_;
  std::vector<control::Event> answers_;
  bool stopping_ = false;
  std::jthread thread_;
};

}  // namespace ductile::link
