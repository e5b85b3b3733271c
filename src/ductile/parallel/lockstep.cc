#include "ductile/parallel/lockstep.h"

#include <algorithm>

#include "ductile/base/error.h"

namespace ductile::parallel {

Lockstep::~Lockstep() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  for (std::condition_variable& c : wake_) c.notify_one();
  for (std::thread& t : threads_) t.join();
}

void Lockstep::run(int n, const std::function<void(int)>& body) {
  std::unique_lock lock(mutex_);
  states_.assign(static_cast<size_t>(n), State::ready);
  error_ = nullptr;
  turn_ = 0;
  if (n == 1) {
    lock.unlock();
    body(0);
    return;
  }
  while (static_cast<int>(threads_.size()) < n) {
    wake_.emplace_back();
    threads_.emplace_back([this, i = static_cast<int>(threads_.size())] { work(i); });
  }
  body_ = &body;
  ++run_;
  wake_[0].notify_one();
  all_done_.wait(
      lock, [&] { return std::ranges::all_of(states_, [](State s) { return s == State::done; }); });
  body_ = nullptr;
  if (error_) std::rethrow_exception(error_);
}

void Lockstep::work(int i) {
  const auto at = static_cast<size_t>(i);
  std::unique_lock lock(mutex_);
  uint64_t seen = 0;
  while (true) {
    wake_[at].wait(lock,
                   [&] { return stop_ || (run_ != seen && at < states_.size() && turn_ == i); });
    if (stop_) return;
    seen = run_;
    if (!error_) {
      std::exception_ptr error;
      lock.unlock();
      try {
        (*body_)(i);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error) fail_locked(error);
    }
    states_[at] = State::done;
    pass_locked();
  }
}

void Lockstep::meet(int i, const std::function<void()>& together) {
  std::unique_lock lock(mutex_);
  const auto at = static_cast<size_t>(i);
  const auto unwind = [&] {
    if (error_) fail(ErrorCode::unavailable, "another virtual rank's pass failed");
  };
  unwind();
  states_[at] = State::meeting;
  if (std::ranges::any_of(states_, [](State s) { return s != State::meeting; })) {
    pass_locked();
    wake_[at].wait(lock, [&] { return states_[at] == State::ready && turn_ == i; });
    unwind();
    return;
  }
  lock.unlock();
  try {
    together();
  } catch (...) {
    lock.lock();
    fail_locked(std::current_exception());
    throw;
  }
  lock.lock();
  // The last one keeps the baton: its data are warm.
  std::ranges::fill(states_, State::ready);
}

// Gives the baton to the first body that can go on.
void Lockstep::pass_locked() {
  const auto next = std::ranges::find(states_, State::ready);
  if (next != states_.end()) {
    turn_ = static_cast<int>(next - states_.begin());
    wake_[static_cast<size_t>(turn_)].notify_one();
    return;
  }
  if (std::ranges::all_of(states_, [](State s) { return s == State::done; })) {
    all_done_.notify_one();
    return;
  }
  fail_locked(std::make_exception_ptr(
      Error(ErrorCode::invalid_argument,
            "the virtual ranks of a batch norm group passed unequal numbers of batch norms; the "
            "model's path must not depend on its input")));
  pass_locked();
}

// Whoever meets goes on as soon as it has the baton, to unwind.
void Lockstep::fail_locked(std::exception_ptr error) {
  if (!error_) error_ = std::move(error);
  std::ranges::replace(states_, State::meeting, State::ready);
}

}  // namespace ductile::parallel
