#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "ductile/cluster/database.h"
#include "ductile/cluster/store.h"

namespace ductile::cluster {

// For those who watch.
struct QueueFigures {
  uint64_t commits = 0;
  size_t waiting = 0;  // changes
};

// Commits changes on a thread of its own, so that nobody waits for a disk, and many in one
// transaction, so that a disk that commits a hundred times a second takes thousands of requests.
//
// A change is acknowledged by its `done` after the transaction is on the disk, never before.
// Changes are carried out in the order of post(). One that throws is undone alone; the others of
// its transaction are kept. If the disk fails, every change in the transaction is told so
// (unavailable, with the StoreFault): it is then absent, or, where it was the last write that
// failed, may be there as a whole after a restart. No program can know which. A request with a key
// (Change::answered) is simply sent again: it is carried out once either way.
class CommitQueue {
 public:
  // Which room on the disk a change may use: what is kept (Store::require_room) is for those that
  // lead to more of it, and are small.
  enum class Room : uint8_t { usual, kept };
  // May run more than once: a transaction that SQLite takes back is repeated change by change, and
  // only the last time counts. It must have no effect but on the Change.
  using Write = std::function<void(Change&)>;
  // Called on the queue's thread; null: committed. Must not throw.
  using Done = std::function<void(const StoreError*)>;

  // `most`: changes that may wait. The store must outlive this object.
  explicit CommitQueue(Store& store, size_t most = 10000);
  CommitQueue(const CommitQueue&) = delete;
  CommitQueue& operator=(const CommitQueue&) = delete;
  ~CommitQueue();  // carries out what waits

  // Throws unavailable if too many changes wait; nothing is then called.
  void post(Write write, Done done, Room room = Room::usual);
  // post() and wait; throws what went wrong. Not from `done`.
  void commit(const Write& write, Room room = Room::usual);

  // How many transactions were committed.
  uint64_t commits() const;
  QueueFigures figures() const;
  // `told` is called after each commit that commits() counts, on the queue's thread, which waits
  // for it: it may only ring a bell, and must neither throw nor call this object. Gives its number
  // for unfollow(), after which it is not called any more.
  uint64_t follow(std::function<void()> told);
  void unfollow(uint64_t number);

 private:
  struct Waiting {
    Write write;
    Done done;
    Room room;
    std::optional<StoreError> error;
  };

  void run();
  void carry_out(std::deque<Waiting>& batch);
  bool try_together(const std::vector<Waiting*>& changes, bool short_of_room);
  void try_alone(Waiting& change, bool short_of_room);

  Store& store_;
  const size_t most_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  uint64_t commits_ = 0, last_follower_ = 0;
  std::map<uint64_t, std::function<void()>> followers_;
  std::deque<Waiting> waiting_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ductile::cluster
