#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/cluster/commit_queue.h"
#include "ductile/cluster/database.h"
#include "ductile/net/loop.h"

namespace ductile::cluster {

// Calls it in the loop's thread, from any thread, unless `alive` is gone by then.
using Poster = std::function<void(std::function<void()>)>;
Poster make_poster(net::Loop& loop, const std::weak_ptr<void>& alive);

// The service's own changes of the store: carried out in order, and again and again while the store
// takes nothing. One that fails for good (a damaged file, or a store that contradicts it) is the
// last: what follows builds upon it, so nothing more is written or called. The queue must outlive
// this object, which belongs to the loop's thread.
class StoreWriter {
 public:
  // What keeps a change from being written now.
  struct Refusal {
    net::Deadline since;
    StoreFault fault = StoreFault::none;
    std::string text;
  };

  StoreWriter(net::Loop& loop, CommitQueue& queue) : loop_(loop), queue_(queue) {}
  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;

  // `then` is called in the loop once the change is on the disk.
  void write(CommitQueue::Write write, std::function<void()> then = {});
  // The same for what is written again and again. While the store refuses changes and one with this
  // key waits, this one is written in its stead (last, and `then` of both is called), so that what
  // waits for a disk with no room does not grow. While it takes them, each is written.
  void write_newest(std::string key, CommitQueue::Write write, std::function<void()> then = {});

  bool idle() const { return writes_.empty() && !writing_; }
  size_t waiting() const { return writes_.size(); }  // changes
  const std::optional<Refusal>& refusal() const { return refusal_; }
  // Once, with what made the writer give up.
  void call_at_failure(std::function<void(const Error&)> failed) {
    on_failure_ = std::move(failed);
  }
  void call_when_idle(std::function<void()> on_idle) { on_idle_ = std::move(on_idle); }
  // When refusal() says something else.
  void call_on_refusal(std::function<void()> on_refusal) { on_refusal_ = std::move(on_refusal); }

 private:
  void write_next();
  void written(const std::optional<StoreError>& error);
  void refused(const StoreError& error);

  struct Pending {
    std::string key;  // empty: it is written in any case
    CommitQueue::Write write;
    std::vector<std::function<void()>> then;
  };
  using Writes = std::list<Pending>;
  net::Loop& loop_;
  CommitQueue& queue_;
  Writes writes_;
  std::map<std::string, Writes::iterator, std::less<>> by_key_;
  bool writing_ = false, failed_ = false;  // the first of them
  std::optional<Refusal> refusal_;
  std::function<void()> on_idle_, on_refusal_;
  std::function<void(const Error&)> on_failure_;
  net::Loop::Timer again_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ductile::cluster
