#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ductile::parallel {

// Runs several bodies that have to meet, on one core. Each has a thread of its own, so that it may
// stop anywhere, but only one thread runs at a time, so that the bodies may share objects that are
// not safe for threads. A baton passes from one to the next at the meetings. The threads are kept
// from run to run.
//
// One thread at a time calls run(); meet() is for its bodies.
class Lockstep {
 public:
  Lockstep() = default;
  Lockstep(const Lockstep&) = delete;
  Lockstep& operator=(const Lockstep&) = delete;
  ~Lockstep();

  // Calls body(i) for all i below n, each on its thread (with n = 1 on the caller's own), and
  // returns when all have returned. The first error ends all of them: a body that is in a meeting,
  // or comes to one, gets an error that unwinds it; bodies that have not begun are not run; and
  // run() throws the first error.
  void run(int n, const std::function<void(int)>& body);

  // Body i waits until every body of the run has come to a meeting. The last one to come calls its
  // `together`, alone, before any goes on. Throws invalid_argument if some body has already
  // returned, since all have to meet equally often.
  void meet(int i, const std::function<void()>& together);

 private:
  enum class State { ready, meeting, done };  // ready: goes on as soon as it has the baton

  void work(int i);
  void pass_locked();
  void fail_locked(std::exception_ptr error);

  std::mutex mutex_;  // guards what follows
  std::condition_variable all_done_;
  std::deque<std::condition_variable> wake_;  // a thread's own
  const std::function<void(int)>* body_ = nullptr;
  uint64_t run_ = 0;
  std::vector<State> states_;  // of the bodies of this run
  int turn_ = 0;
  std::exception_ptr error_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ductile::parallel
