#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "ductile/net/loop.h"

namespace ductile::link {

// Where the control of a job reads and writes the run directory. What it is given is done in that
// order.
class Disk {
 public:
  using Work = std::function<void()>;
  using Done = std::function<void(std::exception_ptr error)>;  // null: there was none

  virtual ~Disk() = default;
  // Does `work`, and then calls `done` on the thread of the caller. Without `done`, `work` throws
  // nothing.
  virtual void run(Work work, Done done = {}) = 0;
};

// On the calling thread, before run() returns.
class DiskHere final : public Disk {
 public:
  void run(Work work, Done done = {}) override;
};

// On a thread of its own, however long it takes; `done` is called by the loop, which waits for
// nothing.
class DiskThread final : public Disk {
 public:
  explicit DiskThread(net::Loop& loop);
  // Finishes what is under way, and drops the rest; no `done` is called any more. To be called on
  // the loop's thread.
  ~DiskThread() override;
  void run(Work work, Done done = {}) override;

 private:
  struct Job {
    Work work;
    Done done;
  };
  void serve(const std::stop_token& stop);

  const net::Loop::Mailbox mailbox_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // of the loop's thread
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Job> jobs_;
  std::jthread thread_;
};

}  // namespace ductile::link
