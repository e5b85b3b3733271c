#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <unordered_map>
#include <utility>

#include "ductile/base/descriptor.h"
#include "ductile/net/socket.h"

struct epoll_event;

namespace ductile::net {

// What a descriptor is watched for.
enum class Interest : uint8_t { none = 0, read = 1, write = 2, both = 3 };

// What a descriptor is ready for. Of a connection that was closed or broke, all that it is watched
// for is ready, since the next call tells what happened; `closed` says so, too.
struct Ready {
  bool readable = false;
  bool writable = false;
  bool closed = false;
  bool operator==(const Ready&) const = default;
};

// An event loop: descriptors, timers and posted functions, all called on the one thread that runs
// it. Every method belongs to that thread, except post(), stop() and Mailbox.
//
// One turn looks at the descriptors, then calls what is ready: descriptors first, then posted
// functions, then timers. Each is bounded, so none of the three keeps the others waiting: at most
// kMost descriptors, kMost posted functions, and the timers that were due before the first is
// called. A timer is called only after a look at the descriptors that began at or after its time:
// what had arrived by then was delivered before it (as far as kMost allows), however long this
// process was stopped.
//
// Callbacks may do everything except destroy the loop: end any watch or timer (also their own),
// close descriptors, and watch new ones that get the same numbers. What has ended is not called any
// more, not even within the same turn. A callback may be called without need, so descriptors should
// be non-blocking. An exception of a callback leaves turn() or run(); the loop can then be run
// again, and has lost nothing else.
class Loop {
  struct WatchEntry;
  struct TimerEntry;
  struct Post;

 public:
  using Callback = std::function<void()>;
  using OnReady = std::function<void(Ready)>;
  using Now = std::function<Deadline()>;

  static constexpr size_t kMost = 256;

  // Watches a descriptor for as long as it lives. End it before the descriptor is closed.
  class Watch {
   public:
    Watch() = default;
    Watch(Watch&&) noexcept = default;
    Watch& operator=(Watch&& other) noexcept {
      if (this != &other) {
        end();
        entry_ = std::move(other.entry_);
      }
      return *this;
    }
    ~Watch() { end(); }

    void end();
    // Throws, with the earlier interest still in force, if the kernel has no memory for it.
    void set(Interest interest);
    explicit operator bool() const { return entry_ != nullptr; }

   private:
    friend class Loop;
    explicit Watch(std::shared_ptr<WatchEntry> entry) : entry_(std::move(entry)) {}
    std::shared_ptr<WatchEntry> entry_;
  };

  // A call at a time, for as long as it lives and until it was called.
  class Timer {
   public:
    Timer() = default;
    Timer(Timer&&) noexcept = default;
    Timer& operator=(Timer&& other) noexcept {
      if (this != &other) {
        cancel();
        entry_ = std::move(other.entry_);
      }
      return *this;
    }
    ~Timer() { cancel(); }

    void cancel();
    bool armed() const;  // will still be called

   private:
    friend class Loop;
    explicit Timer(std::shared_ptr<TimerEntry> entry) : entry_(std::move(entry)) {}
    std::shared_ptr<TimerEntry> entry_;
  };

  // Where any thread leaves functions for the loop, even one that may outlive it.
  class Mailbox {
   public:
    // Functions of one thread are called in their order. False: the loop has gone, and the function
    // is not called. Functions that the loop did not come to call are destroyed with it.
    bool post(Callback callback) const;

   private:
    friend class Loop;
    explicit Mailbox(std::shared_ptr<Post> post) : post_(std::move(post)) {}
    std::shared_ptr<Post> post_;
  };

  // `now` is the clock of the timers. Tests give one of their own and call turn() without waiting.
  explicit Loop(Now now = Clock::now);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Throws conflict if this loop watches the descriptor already, and unavailable (or as the errno
  // says) if the kernel cannot watch it now.
  [[nodiscard]] Watch watch(int fd, Interest interest, OnReady on_ready);
  // Calls `callback` once. Of timers with the same time the one that was made first comes first.
  [[nodiscard]] Timer at(Deadline when, Callback callback);
  [[nodiscard]] Timer after(Clock::duration wait, Callback callback) {
    return at(now() + wait, std::move(callback));
  }
  // The same for a timer that is not armed; an armed one stays as it is. So it is called however
  // often it is asked for, where one that each request begins anew might never be due.
  void arm_once(Timer& timer, Clock::duration wait, Callback callback) {
    if (!timer.armed()) timer = after(wait, std::move(callback));
  }
  // Calls `callback` at now() + interval and then at every further multiple. Those that were missed
  // are left out: the calls neither pile up nor drift.
  [[nodiscard]] Timer every(Clock::duration interval, Callback callback);

  void post(Callback callback) { mailbox_.post(std::move(callback)); }
  Mailbox mailbox() const { return mailbox_; }

  Deadline now() const { return now_(); }

  // Turns until stop(). A stop() that came before is not lost: the next run ends at once.
  void run();
  // Also ends at the deadline, after one turn at least; true if stop() ended it.
  bool run_until(Deadline deadline);
  void stop();  // any thread, and signal handlers
  // One turn, which waits for something to call up to the deadline.
  void turn(Deadline deadline = Deadline::max());

 private:
  using TimerKey = std::pair<Deadline, uint64_t>;  // the number is that of its making

  void wake() const;
  int look(epoll_event* events, Deadline deadline);
  void call_ready(const epoll_event* events, int count);
  void call_posted();
  void call_timers(Deadline looked);
  void control(int operation, const WatchEntry& entry, Interest interest) const;
  void forget(WatchEntry& entry);
  void set(WatchEntry& entry, Interest interest);
  void arm(const std::shared_ptr<TimerEntry>& entry, Deadline when);
  void rebuild();

  Now now_;
  Descriptor epoll_;
  std::unordered_map<uint64_t, std::shared_ptr<WatchEntry>> watches_;  // by their numbers
  std::unordered_map<int, uint64_t> by_fd_;
  std::map<TimerKey, std::shared_ptr<TimerEntry>> timers_;
  uint64_t last_number_ = 0;
  Mailbox mailbox_;
};

// A loop that a thread of its own runs, for as long as it lives.
class LoopThread {
 public:
  LoopThread() : thread_([this] { loop_.run(); }) {}
  ~LoopThread() { loop_.stop(); }

  // To be used from within posted functions only; stop() is the destructor's.
  Loop& loop() { return loop_; }
  // Calls `what` on the thread and waits for it; rethrows what it throws.
  void call(const std::function<void()>& what);

 private:
  Loop loop_;
  std::jthread thread_;
};

}  // namespace ductile::net
