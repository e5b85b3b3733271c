#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ductile/comm/engine.h"
#include "ductile/comm/operation_impl.h"

namespace ductile::comm {

using EngineClock = std::chrono::steady_clock;

// Tags below the rail: bit 59 tells messages from collectives, bits [58:47] are the context of the
// receiver, that is, which of its engines the message is for. Collectives count [46:22] and number
// their messages [21:0]; messages carry the user's tag [45:22] and their number [21:0]; bit 46 is
// for what engines say to each other, with the kind in place of the user's tag.
constexpr int kContextShift = 47;
constexpr uint32_t kMaxContexts = 1u << 12;
constexpr Tag kPointToPoint = Tag{1} << 59;
constexpr Tag kInternal = Tag{1} << 46;
constexpr int kCountShift = 22;
constexpr uint64_t kMaxCount = (uint64_t{1} << 25) - 1;
constexpr uint64_t kMaxNumber = (uint64_t{1} << 22) - 1;
constexpr uint32_t kMaxUserTag = (1u << 24) - 1;

// How long one wait inside the transport may last before the engine looks around.
constexpr std::chrono::milliseconds kSlice{100};

// What engines over one transport have in common.
struct Engine::Core {
  Core(std::unique_ptr<Transport> wire, EngineOptions opts)
      : transport(std::move(wire)), options(std::move(opts)) {}

  std::unique_ptr<Transport> transport;
  EngineOptions options;
  StagingPool pool;                                // of the driver
  std::vector<std::shared_ptr<Operation>> active;  // of the driver

  mutable std::mutex mutex;  // guards all below, and the lanes
  std::condition_variable changed;
  std::vector<std::shared_ptr<Operation>> submitted;
  std::vector<std::shared_ptr<Operation>> unfinished;  // oldest first
  std::vector<const Engine*> engines;                  // that are open
  std::set<uint32_t> contexts{0};                      // in use by them
  uint32_t last_context = 0;
  bool driving = false;
  bool closing = false;
  int num_waiting = 0;
  std::exception_ptr error;
  EngineClock::time_point stall_noted;
  std::thread thread;  // started with the first operation that nobody waits for
  // Somebody wants the driver to look around; set before wake(), since the driver's own polls may
  // use up the wake.
  std::atomic<bool> attention{false};

  // Under the lock.
  void throw_if_failed() const {
    if (error) std::rethrow_exception(error);
  }
  void end(const std::shared_ptr<Operation>& op, std::exception_ptr why);
  void call_driver();
  void latch(std::exception_ptr why, const std::string& text);
  // As latch, and ends what is under way: by the driver, or else by whoever waits next.
  void give_up(std::exception_ptr why, const std::string& text);
  uint32_t take_context();
  void start_thread();

  // Waits, and works while nobody else does, until this is no longer pending(), at most until then.
  void wait_while(std::unique_lock<std::mutex>& lock, const std::function<bool()>& pending,
                  EngineClock::time_point until);
  // Another waiter, or the engine's thread, takes over what is left.
  void hand_over();

  // One round of work by the driver, who waits for at most `patience`. Throws nothing. Not under
  // the lock.
  void drive(std::chrono::nanoseconds patience);
  void background();

 private:
  void step(std::chrono::nanoseconds patience);
  bool may_begin(Operation& op);
  void wait_for_transfers(std::chrono::nanoseconds patience);
  bool any_settled() const;
  void look_for_stalls();
  void break_down(std::exception_ptr why);
};

// What one engine has of its own; guarded by the core's mutex.
struct Engine::Lane {
  Core& core;
  bool closed = false;
  uint64_t sequence = 0;
  std::map<std::pair<int, uint32_t>, uint64_t> sent;
  std::map<std::pair<int, uint32_t>, uint64_t> received;
  std::map<int, uint64_t> meetings;  // splits so far that this rank and another are both in
  std::deque<std::shared_ptr<Operation>> tasks;  // the first may be running
  bool task_runs = false;
  std::thread thread;  // started with the first task that nobody waits for

  explicit Lane(Core& of) : core(of) {}

  // Under the lock, which is let go while the task runs.
  void run_first_task(std::unique_lock<std::mutex>& lock);
  void start_thread();
  void run_tasks();
};

}  // namespace ductile::comm
