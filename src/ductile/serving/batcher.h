#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "ductile/base/aligned_array.h"
#include "ductile/serving/batch_queue.h"

namespace ductile::serving {

// One batch that was run, or requests that expired.
struct BatchReport {
  std::vector<WorkPtr> done;      // all of whose samples are done, or which failed
  int64_t samples = 0, size = 0;  // size: with those that only fill it up; 0: nothing was run
  double seconds = 0;
};

// Runs a model on a thread of its own, on the samples of many requests at a time.
class Batcher {
 public:
  using OnBatch = std::function<void(BatchReport)>;  // called on the batcher's thread

  // `prepare_thread` is called once, on the new thread.
  Batcher(BatchRules rules, Deployment deployment, OnBatch on_batch,
          std::function<void()> prepare_thread = {});
  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;
  ~Batcher();  // what waits is forgotten

  // Any thread. False: too many samples wait.
  bool submit(WorkPtr work);
  // Requests that have not begun are answered with these weights.
  void replace(Deployment deployment);
  Deployment deployment() const;
  int64_t waiting() const;

 private:
  void work();
  void run(const std::vector<Piece>& batch, BatchReport& report);
  void hand_out(const std::vector<Piece>& batch, const std::optional<Error>& broken,
                BatchReport& report);
  void prepare(const std::vector<Piece>& batch, size_t row);

  const OnBatch on_batch_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  BatchQueue queue_;
  Deployment deployment_;
  bool running_ = false, stop_ = false;
  AlignedArray<std::byte> rows_;  // of the batch; like the next one of the thread alone
  std::vector<float> out_;
  std::thread thread_;
};

}  // namespace ductile::serving
