#include "ductile/serving/batch_queue.h"

#include <algorithm>
#include <utility>

namespace ductile::serving {

bool BatchQueue::push(WorkPtr work) {
  const auto samples = static_cast<int64_t>(work->samples.size());
  // What has its weights was accepted before, and goes on.
  const bool goes_on = work->deployment.model != nullptr;
  // A large one is taken where nothing waits: else it would be told to come again for ever.
  if (!goes_on && waiting_ > 0 && samples > rules_.max_waiting - waiting_) return false;
  waiting_ += samples;
  queue_.push_back(std::move(work));
  return true;
}

BatchQueue::Next BatchQueue::next(Time now) {
  Next out;
  std::erase_if(queue_, [&](const WorkPtr& work) {
    if (work->deadline > now && !work->error) return false;
    waiting_ -= static_cast<int64_t>(work->samples.size() - work->taken);
    if (!work->error) out.expired.push_back(work);
    return true;
  });
  if (queue_.empty()) return out;
  const Work& oldest = *queue_.front();
  const Time due =
      oldest.idle || oldest.taken > 0 ? Time::min() : oldest.arrived + rules_.max_delay;
  if (now < due && waiting_ < rules_.max_batch) {
    out.look_again = due;
    for (const WorkPtr& work : queue_) out.look_again = std::min(out.look_again, work->deadline);
    return out;
  }
  auto room = static_cast<size_t>(rules_.max_batch);
  const Model* const model = oldest.deployment.model.get();
  while (room > 0 && !queue_.empty()) {
    Work& work = *queue_.front();
    // Those that have begun go on with their weights, so they are alone with their like.
    if (!out.batch.empty() && work.deployment.model.get() != model) break;
    const size_t count = std::min(room, work.samples.size() - work.taken);
    out.batch.push_back({queue_.front(), work.taken, count});
    work.taken += count;
    room -= count;
    if (work.taken == work.samples.size()) queue_.pop_front();
  }
  waiting_ -= rules_.max_batch - static_cast<int64_t>(room);
  return out;
}

}  // namespace ductile::serving
