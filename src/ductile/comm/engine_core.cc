#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/comm/engine_impl.h"

namespace ductile::comm {

using Clock = EngineClock;

void Engine::Core::end(const std::shared_ptr<Operation>& op, std::exception_ptr why) {
  op->error = why;
  op->state.store(why ? Operation::State::failed : Operation::State::done,
                  std::memory_order_release);
  std::erase(unfinished, op);
}

void Engine::Core::call_driver() {
  attention.store(true);
  transport->wake();
}

void Engine::Core::latch(std::exception_ptr why, const std::string& text) {
  if (error) return;
  error = why;
  if (options.on_failure) options.on_failure(text);
}

void Engine::Core::give_up(std::exception_ptr why, const std::string& text) {
  if (error) return;
  latch(why, text);
  if (transport) transport->fail({{}, text});
}

uint32_t Engine::Core::take_context() {
  if (contexts.size() >= kMaxContexts) {
    fail(ErrorCode::unavailable,
         "{} sub-groups of this rank are alive: destroy those that are no longer needed",
         contexts.size() - 1);
  }
  do {
    last_context = (last_context + 1) % kMaxContexts;
  } while (contexts.contains(last_context));
  contexts.insert(last_context);
  return last_context;
}

void Engine::Core::start_thread() {
  if (!thread.joinable() && !closing) thread = std::thread([this] { background(); });
}

void Engine::Core::wait_while(std::unique_lock<std::mutex>& lock,
                              const std::function<bool()>& pending, Clock::time_point until) {
  ++num_waiting;
  while (pending()) {
    const auto left = until - Clock::now();
    if (left.count() <= 0) break;
    if (closing) {
      changed.wait_for(lock, left, [&] { return !pending(); });
    } else if (driving) {
      if (num_waiting == 1) call_driver();  // the engine's thread steps aside
      changed.wait_for(lock, left, [&] { return !pending() || !driving || closing; });
    } else {
      driving = true;
      lock.unlock();
      drive(std::min<std::chrono::nanoseconds>(left, kSlice));
      lock.lock();
      driving = false;
      if (closing) changed.notify_all();
    }
  }
  --num_waiting;
}

void Engine::Core::hand_over() {
  if (unfinished.empty()) return;
  if (num_waiting == 0) start_thread();
  changed.notify_all();
}

void Engine::Core::drive(std::chrono::nanoseconds patience) {
  try {
    step(patience);
  } catch (...) {
    break_down(std::current_exception());
  }
}

void Engine::Core::step(std::chrono::nanoseconds patience) {
  {
    std::lock_guard lock(mutex);
    for (auto& op : submitted) active.push_back(std::move(op));
    submitted.clear();
  }
  bool moved = false;
  bool ended = false;
  for (auto& op : active) {
    if (op->after && !may_begin(*op)) continue;
    moved |= op->advance(*transport, options, pool);
    ended |= op->finished();
  }
  if (ended) {
    std::lock_guard lock(mutex);
    std::erase_if(active, [&](const auto& op) {
      if (!op->finished()) return false;
      end(op, nullptr);
      return true;
    });
    changed.notify_all();
  }
  if (ended || active.empty()) return;
  look_for_stalls();
  wait_for_transfers(moved ? std::chrono::nanoseconds(0) : patience);
}

// One that is to come after another.
bool Engine::Core::may_begin(Operation& op) {
  if (op.after->state.load(std::memory_order_acquire) == Operation::State::pending) return false;
  op.after = nullptr;
  std::lock_guard lock(mutex);
  op.began = Clock::now();
  return true;
}

void Engine::Core::wait_for_transfers(std::chrono::nanoseconds patience) {
  const auto until = Clock::now() + std::min(patience, options.spin);
  do {
    transport->progress(std::chrono::nanoseconds(0));
    if (patience.count() <= 0 || any_settled() || attention.exchange(false)) return;
  } while (Clock::now() < until);
  if (patience > options.spin) transport->progress(patience - options.spin);
}

bool Engine::Core::any_settled() const {
  return std::any_of(active.begin(), active.end(),
                     [](const auto& op) { return op->any_settled(); });
}

void Engine::Core::look_for_stalls() {
  const auto now = Clock::now();
  if (now - stall_noted < std::chrono::milliseconds(20)) return;
  stall_noted = now;
  std::set<const void*> seen;  // the oldest of each engine is what oldest() may be asked for
  for (auto& op : active) {
    if (op->quiet || !seen.insert(op->members.get()).second) continue;
    std::vector<int> waits = op->waits_for();
    std::lock_guard lock(mutex);
    op->waits = std::move(waits);
  }
  if (options.soft_deadline.count() <= 0 || !options.on_stall) return;
  for (auto& op : active) {
    if (op->quiet || op->reported || op->after || now - op->began < options.soft_deadline) continue;
    op->reported = true;
    options.on_stall({op->name, op->sequence, op->members->on_transport(op->waits_for()),
                      std::chrono::duration<double>(now - op->began).count()});
  }
}

// Ends everything with `why`. What had all its messages by then is still finished.
void Engine::Core::break_down(std::exception_ptr why) {
  std::string text = "the engine broke down";
  try {
    std::rethrow_exception(why);
  } catch (const std::exception& e) {
    text = e.what();
  } catch (...) {
  }
  try {  // settles every transfer, if the transport was not what failed
    transport->fail({{}, text});
    transport->progress(std::chrono::nanoseconds(0));
  } catch (const Error&) {
  }
  for (auto& op : active) op->conclude(pool);
  std::lock_guard lock(mutex);
  latch(why, text);
  for (auto& op : active) end(op, op->finished() ? nullptr : error);
  active.clear();
  for (auto& op : submitted) end(op, error);
  submitted.clear();
  changed.notify_all();
}

void Engine::Core::background() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock,
                 [&] { return closing || (!unfinished.empty() && num_waiting == 0 && !driving); });
    if (closing) return;
    driving = true;
    while (!closing && num_waiting == 0 && !unfinished.empty()) {
      lock.unlock();
      drive(kSlice);
      lock.lock();
    }
    driving = false;
    changed.notify_all();
  }
}

void Engine::Lane::run_first_task(std::unique_lock<std::mutex>& lock) {
  const auto op = tasks.front();
  task_runs = true;
  std::exception_ptr failure = core.error;
  if (!failure) {
    lock.unlock();
    std::string text;
    try {
      op->task();
    } catch (const std::exception& e) {
      failure = std::current_exception();
      text = e.what();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure) core.give_up(failure, text);
  }
  task_runs = false;
  tasks.pop_front();
  core.end(op, failure);
  core.changed.notify_all();
}

void Engine::Lane::start_thread() {
  if (!thread.joinable() && !closed) thread = std::thread([this] { run_tasks(); });
}

void Engine::Lane::run_tasks() {
  std::unique_lock lock(core.mutex);
  while (true) {
    core.changed.wait(lock, [&] { return closed || (!tasks.empty() && !task_runs); });
    if (closed) return;
    run_first_task(lock);
  }
}

}  // namespace ductile::comm
