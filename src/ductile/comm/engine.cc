#include "ductile/comm/engine.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/comm/operation_impl.h"

namespace ductile::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Tags below the rail byte: collectives count [54:24] and number their messages [23:0]; messages of
// send() carry bit 55, the user's tag [54:31] and their number [30:0].
constexpr Tag kPointToPoint = Tag{1} << 55;
constexpr uint64_t kCount = (uint64_t{1} << 31) - 1;
constexpr uint32_t kMaxUserTag = (1u << 24) - 1;

// How long one wait inside the transport may last before the engine looks around.
constexpr std::chrono::milliseconds kSlice{100};

constexpr std::chrono::nanoseconds kForEver = std::chrono::hours(24);

std::shared_ptr<const StepOrder> one_step(Op op, int peer, int rail) {
  Schedule list;
  const Chunks all{op == Op::send ? BufferName::in : BufferName::out, 0, 1};
  Step step{.op = op, .rail = static_cast<uint8_t>(rail), .peer = peer};
  (op == Op::send ? step.a : step.dst) = all;
  list.steps = {step};
  return std::make_shared<const StepOrder>(make_step_order(std::move(list)));
}

}  // namespace

struct Engine::Impl {
  std::unique_ptr<Transport> transport;
  EngineOptions options;
  StagingPool pool;                                // of the driver
  std::vector<std::shared_ptr<Operation>> active;  // of the driver

  mutable std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::vector<std::shared_ptr<Operation>> submitted;
  std::vector<std::shared_ptr<Operation>> unfinished;  // oldest first
  bool driving = false;
  bool closing = false;
  int num_waiting = 0;
  uint64_t sequence = 0;
  std::map<std::pair<int, uint32_t>, uint64_t> sent;
  std::map<std::pair<int, uint32_t>, uint64_t> received;
  std::exception_ptr error;
  std::optional<Stall> stall;
  Clock::time_point stall_noted;
  std::thread thread;  // started with the first operation that nobody waits for
  std::deque<std::shared_ptr<Operation>> tasks;  // the first may be running
  bool task_runs = false;
  // Somebody wants the driver to look around; set before wake(), since the driver's own polls may
  // use up the wake.
  std::atomic<bool> attention{false};
  std::thread task_thread;  // started with the first task that nobody waits for

  void throw_if_failed() const {
    if (error) std::rethrow_exception(error);
  }

  void end(const std::shared_ptr<Operation>& op, std::exception_ptr why) {
    op->error = why;
    op->state.store(why ? Operation::State::failed : Operation::State::done,
                    std::memory_order_release);
    std::erase(unfinished, op);
  }

  void call_driver() {
    attention.store(true);
    transport->wake();
  }

  // Under the lock.
  void latch(std::exception_ptr why, const std::string& text) {
    if (error) return;
    error = why;
    if (options.on_failure) options.on_failure(text);
  }

  // Under the lock, which is let go while the task runs.
  void run_first_task(std::unique_lock<std::mutex>& lock) {
    const auto op = tasks.front();
    task_runs = true;
    std::exception_ptr failure = error;
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
      if (failure && !error) {
        latch(failure, text);
        if (transport) transport->fail({{}, text});  // ends what the engine has under way
      }
    }
    task_runs = false;
    tasks.pop_front();
    end(op, failure);
    changed.notify_all();
  }

  void start_task_thread() {
    if (!task_thread.joinable() && !closing) task_thread = std::thread([this] { run_tasks(); });
  }

  void run_tasks() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return closing || (!tasks.empty() && !task_runs); });
      if (closing) return;
      run_first_task(lock);
    }
  }

  // One round of work by the driver, who waits for at most `patience`. Throws nothing.
  void drive(std::chrono::nanoseconds patience) {
    try {
      step(patience);
    } catch (...) {
      break_down(std::current_exception());
    }
  }

  void step(std::chrono::nanoseconds patience) {
    {
      std::lock_guard lock(mutex);
      for (auto& op : submitted) active.push_back(std::move(op));
      submitted.clear();
    }
    bool moved = false;
    bool ended = false;
    for (auto& op : active) {
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

  void wait_for_transfers(std::chrono::nanoseconds patience) {
    const auto until = Clock::now() + std::min(patience, options.spin);
    do {
      transport->progress(std::chrono::nanoseconds(0));
      if (patience.count() <= 0 || any_settled() || attention.exchange(false)) return;
    } while (Clock::now() < until);
    if (patience > options.spin) transport->progress(patience - options.spin);
  }

  bool any_settled() const {
    return std::any_of(active.begin(), active.end(),
                       [](const auto& op) { return op->any_settled(); });
  }

  void look_for_stalls() {
    const auto now = Clock::now();
    if (now - stall_noted < std::chrono::milliseconds(20)) return;
    stall_noted = now;
    const Operation& oldest = *active.front();
    Stall found{oldest.name, oldest.sequence, oldest.waits_for(),
                std::chrono::duration<double>(now - oldest.began).count()};
    {
      std::lock_guard lock(mutex);
      stall = found;
    }
    if (options.soft_deadline.count() <= 0 || !options.on_stall) return;
    for (auto& op : active) {
      if (op->reported || now - op->began < options.soft_deadline) continue;
      op->reported = true;
      options.on_stall({op->name, op->sequence, op->waits_for(),
                        std::chrono::duration<double>(now - op->began).count()});
    }
  }

  // Ends everything with `why`. What had all its messages by then is still finished.
  void break_down(std::exception_ptr why) {
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

  void background() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] {
        return closing || (!unfinished.empty() && num_waiting == 0 && !driving && !error);
      });
      if (closing) return;
      driving = true;
      while (!closing && num_waiting == 0 && !unfinished.empty() && !error) {
        lock.unlock();
        drive(kSlice);
        lock.lock();
      }
      driving = false;
      changed.notify_all();
    }
  }
};

bool Engine::Work::done() const {
  return operation_ == nullptr ||
         operation_->state.load(std::memory_order_acquire) != Operation::State::pending;
}

void Engine::Work::wait() const {
  while (!wait_for(kForEver)) {
  }
}

bool Engine::Work::wait_for(std::chrono::nanoseconds d) const {
  if (operation_ == nullptr) return true;
  const auto pending = [&] {
    return operation_->state.load(std::memory_order_acquire) == Operation::State::pending;
  };
  Impl& e = *engine_->impl_;
  std::unique_lock lock(e.mutex);
  if (pending()) {
    const auto deadline = Clock::now() + d;
    const bool drives = !operation_->task;
    if (drives) ++e.num_waiting;
    while (pending()) {
      const auto left = deadline - Clock::now();
      if (left.count() <= 0) break;
      if (e.closing) {
        e.changed.wait_for(lock, left, [&] { return !pending(); });
        continue;
      }
      if (operation_->task) {
        if (!e.task_runs && d == kForEver) {
          e.run_first_task(lock);
        } else {
          e.start_task_thread();
          e.changed.wait_for(lock, left, [&] { return !pending() || e.closing; });
        }
        continue;
      }
      if (e.driving) {
        if (e.num_waiting == 1) e.call_driver();  // the engine's thread steps aside
        e.changed.wait_for(lock, left, [&] { return !pending() || !e.driving || e.closing; });
        continue;
      }
      e.driving = true;
      lock.unlock();
      e.drive(std::min<std::chrono::nanoseconds>(left, kSlice));
      lock.lock();
      e.driving = false;
      if (e.closing) e.changed.notify_all();
    }
    if (drives) --e.num_waiting;
    // Another waiter, or the engine's thread, takes over.
    if (!e.unfinished.empty()) {
      if (!e.thread.joinable() && e.num_waiting == 0 && !e.closing) {
        e.thread = std::thread([&e] { e.background(); });
      }
      e.changed.notify_all();
    }
  }
  lock.unlock();
  switch (operation_->state.load(std::memory_order_acquire)) {
    case Operation::State::pending:
      return false;
    case Operation::State::done:
      return true;
    case Operation::State::failed:
      std::rethrow_exception(operation_->error);
  }
  return true;
}

Engine::Engine(std::unique_ptr<Transport> transport, EngineOptions options)
    : rank_(transport->rank()), size_(transport->size()), impl_(std::make_unique<Impl>()) {
  impl_->transport = std::move(transport);
  impl_->options = std::move(options);
}

std::shared_ptr<Engine> Engine::make(std::unique_ptr<Transport> transport, EngineOptions options) {
  DUCTILE_CHECK(transport != nullptr, "an engine needs a transport");
  std::shared_ptr<Engine> engine(new Engine(std::move(transport), std::move(options)));
  engine->self_ = engine;
  return engine;
}

Engine::~Engine() { close(); }

Work Engine::submit(std::shared_ptr<Operation> op, bool waits) {
  Impl& e = *impl_;
  Work work;
  work.engine_ = self_.lock();
  work.operation_ = op;
  e.submitted.push_back(op);
  e.unfinished.push_back(std::move(op));
  if (!waits) {
    if (!e.thread.joinable()) e.thread = std::thread([&e] { e.background(); });
    e.changed.notify_all();
  }
  if (e.driving && e.transport) e.call_driver();
  return work;
}

Work Engine::start(std::shared_ptr<const StepOrder> order, Binding binding, std::string name,
                   bool waits) {
  std::lock_guard lock(impl_->mutex);
  impl_->throw_if_failed();
  const uint64_t sequence = impl_->sequence++;
  auto op = std::make_shared<Operation>(std::move(order), std::move(binding), std::move(name),
                                        (sequence & kCount) << 24);
  op->sequence = sequence;
  return submit(std::move(op), waits);
}

Work Engine::send(int peer, uint32_t tag, std::span<const std::byte> bytes, bool waits, int rail) {
  check_message(peer, tag);
  std::lock_guard lock(impl_->mutex);
  impl_->throw_if_failed();
  const uint64_t number = impl_->sent[{peer, tag}]++;
  Binding binding;
  binding.in = {bytes.data()};
  binding.block_elements = static_cast<int64_t>(bytes.size());
  return submit(
      std::make_shared<Operation>(one_step(Op::send, peer, rail), std::move(binding),
                                  fmt::format("send of {} bytes to rank {}", bytes.size(), peer),
                                  kPointToPoint | (Tag{tag} << 31) | (number & kCount)),
      waits);
}

Work Engine::receive(int peer, uint32_t tag, std::span<std::byte> bytes, bool waits, int rail) {
  check_message(peer, tag);
  std::lock_guard lock(impl_->mutex);
  impl_->throw_if_failed();
  const uint64_t number = impl_->received[{peer, tag}]++;
  Binding binding;
  binding.out = bytes.data();
  binding.block_elements = static_cast<int64_t>(bytes.size());
  return submit(std::make_shared<Operation>(
                    one_step(Op::receive, peer, rail), std::move(binding),
                    fmt::format("receive of {} bytes from rank {}", bytes.size(), peer),
                    kPointToPoint | (Tag{tag} << 31) | (number & kCount)),
                waits);
}

Work Engine::run(std::function<void()> task, std::string name, bool waits) {
  std::lock_guard lock(impl_->mutex);
  impl_->throw_if_failed();
  Work work;
  work.engine_ = self_.lock();
  work.operation_ = std::make_shared<Operation>(std::move(task), std::move(name));
  impl_->tasks.push_back(work.operation_);
  if (!waits) {
    impl_->start_task_thread();
    impl_->changed.notify_all();
  }
  return work;
}

void Engine::check_message(int peer, uint32_t tag) const {
  if (peer < 0 || peer >= size_ || peer == rank_) {
    fail(ErrorCode::invalid_argument, "rank {} of {} has no peer {}", rank_, size_, peer);
  }
  if (tag > kMaxUserTag) {
    fail(ErrorCode::invalid_argument, "tag {}: at most {}", tag, kMaxUserTag);
  }
}

std::optional<Stall> Engine::oldest() const {
  std::lock_guard lock(impl_->mutex);
  if (impl_->unfinished.empty()) {
    if (impl_->tasks.empty()) return std::nullopt;
    const Operation& task = *impl_->tasks.front();
    return Stall{
        task.name, 0, {}, std::chrono::duration<double>(Clock::now() - task.began).count()};
  }
  const Operation& op = *impl_->unfinished.front();
  Stall stall{op.name, op.sequence, {}, 0};
  if (impl_->stall && impl_->stall->operation == op.name && impl_->stall->sequence == op.sequence) {
    stall.ranks = impl_->stall->ranks;
  }
  stall.seconds = std::chrono::duration<double>(Clock::now() - op.began).count();
  return stall;
}

uint64_t Engine::num_started() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->sequence;
}

void Engine::report_loss(PeerLoss loss) {
  std::lock_guard lock(impl_->mutex);
  if (impl_->options.on_failure) impl_->options.on_failure(loss.reason);
  // An engine with nothing to do latches the loss at its next call.
  if (impl_->transport) impl_->transport->fail(std::move(loss));
}

void Engine::close() {
  Impl& e = *impl_;
  std::unique_lock lock(e.mutex);
  if (e.closing) return;
  e.closing = true;
  const std::string text = "the communicator was closed before this ended";
  if (e.task_runs || !e.tasks.empty() || !e.unfinished.empty()) {
    e.latch(std::make_exception_ptr(Error(ErrorCode::unavailable, text)), text);
  } else if (!e.error) {
    e.error = std::make_exception_ptr(Error(ErrorCode::unavailable, text));
  }
  e.changed.notify_all();
  if (e.driving && e.transport) e.call_driver();
  if (e.thread.joinable()) {
    lock.unlock();
    e.thread.join();
    lock.lock();
  }
  if (e.task_thread.joinable()) {
    lock.unlock();
    e.task_thread.join();
    lock.lock();
  }
  e.changed.wait(lock, [&] { return !e.driving && !e.task_runs; });
  e.driving = true;  // for good: nobody drives a closed engine
  auto transport = std::move(e.transport);
  lock.unlock();
  transport.reset();
  lock.lock();
  for (auto& op : e.active) op->abandon();
  e.active.clear();
  e.submitted.clear();
  for (auto& op : e.tasks) e.end(op, e.error);
  e.tasks.clear();
  while (!e.unfinished.empty()) e.end(std::shared_ptr(e.unfinished.front()), e.error);
  e.changed.notify_all();
}

}  // namespace ductile::comm
