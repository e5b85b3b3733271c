#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "ductile/base/error.h"
#include "ductile/cluster/commit_queue.h"
#include "ductile/net/loop.h"

namespace ductile::cluster {

// Calls it in the loop's thread, from any thread, unless `alive` is gone by then.
using Poster = std::function<void(std::function<void()>)>;
Poster make_poster(net::Loop& loop, const std::weak_ptr<void>& alive);

// The service's own changes of the store: carried out in order, and again and again while the disk
// is full. One that fails for good (a damaged file, or a store that contradicts it) is the last:
// what follows builds upon it, so nothing more is written or called. The queue must outlive this
// object, which belongs to the loop's thread.
class StoreWriter {
 public:
  StoreWriter(net::Loop& loop, CommitQueue& queue) : loop_(loop), queue_(queue) {}
  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;

  // `then` is called in the loop once the change is on the disk.
  void write(CommitQueue::Write write, std::function<void()> then = {});
  bool idle() const { return writes_.empty() && !writing_; }
  // When the disk began to refuse what is to be written; none: it does not.
  std::optional<net::Deadline> refused_since() const { return refused_since_; }
  // Once, with what made the writer give up.
  void call_at_failure(std::function<void(const Error&)> failed) {
    on_failure_ = std::move(failed);
  }
  void call_when_idle(std::function<void()> on_idle) { on_idle_ = std::move(on_idle); }

 private:
  void write_next();
  void written(const std::optional<Error>& error);

  struct Pending {
    CommitQueue::Write write;
    std::function<void()> then;
  };
  net::Loop& loop_;
  CommitQueue& queue_;
  std::deque<Pending> writes_;
  bool writing_ = false, failed_ = false;
  std::optional<net::Deadline> refused_since_;
  std::function<void()> on_idle_;
  std::function<void(const Error&)> on_failure_;
  net::Loop::Timer again_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ductile::cluster
