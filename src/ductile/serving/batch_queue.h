#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/serving/model.h"

namespace ductile::serving {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

// Samples that a client wants predicted, and what becomes of them.
struct Work {
  std::vector<Sample> samples;
  std::shared_ptr<const std::string> memory;  // in which the samples' bytes lie
  Time arrived{}, deadline = Time::max();
  bool idle = false;  // nothing else ran or waited when it came, so it does not wait for others

  // With which weights; the queue's user sets it with the first batch, so that one answer is of one
  // step even if the weights change meanwhile.
  Deployment deployment;
  std::vector<float> out;          // the outputs of the samples that are done
  size_t taken = 0, finished = 0;  // samples
  std::optional<Error> error;      // it failed as a whole
};
using WorkPtr = std::shared_ptr<Work>;

// Samples of one request, as a part of a batch.
struct Piece {
  WorkPtr work;
  size_t first = 0, count = 0;
};

struct BatchRules {
  int64_t max_batch = 32;                  // samples
  std::chrono::microseconds max_delay{0};  // that a sample waits for others
  int64_t max_waiting = 1024;              // samples; more are refused
};

// Who is predicted next, with whom. A pure state machine: time is an argument.
class BatchQueue {
 public:
  explicit BatchQueue(BatchRules rules) : rules_(rules) {}

  // False: the queue is full. Work that has its weights already is always taken.
  bool push(WorkPtr work);

  struct Next {
    std::vector<Piece> batch;       // to be run now; they share the weights of the first one
    std::vector<WorkPtr> expired;   // whose deadline passed while they waited
    Time look_again = Time::max();  // no batch: when there is one, if nothing else comes
  };
  // In order of arrival. A batch is due when it is full, when its oldest sample has waited for
  // max_delay, or at once if that sample found nothing else to do here. A request that is larger
  // than a batch, or than what is left of one, is divided.
  Next next(Time now);

  int64_t waiting() const { return waiting_; }  // samples

 private:
  BatchRules rules_;
  std::deque<WorkPtr> queue_;
  int64_t waiting_ = 0;
};

}  // namespace ductile::serving
