#include "ductile/comm/engine.h"

#include <algorithm>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/comm/engine_impl.h"

namespace ductile::comm {
namespace {

using Clock = EngineClock;

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

std::vector<int> Members::on_transport(std::vector<int> group) const {
  for (int& r : group) r = on_transport(r);
  std::sort(group.begin(), group.end());
  return group;
}

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
  Core& e = *engine_->core_;
  Lane& lane = *engine_->lane_;
  std::unique_lock lock(e.mutex);
  if (pending()) {
    const auto deadline = Clock::now() + d;
    if (!operation_->task) e.wait_while(lock, pending, deadline);
    while (operation_->task && pending()) {
      const auto left = deadline - Clock::now();
      if (left.count() <= 0) break;
      if (e.closing) {
        e.changed.wait_for(lock, left, [&] { return !pending(); });
      } else if (!lane.task_runs && d == kForEver && !lane.closed) {
        lane.run_first_task(lock);
      } else {
        lane.start_thread();
        e.changed.wait_for(lock, left, [&] { return !pending() || e.closing; });
      }
    }
    e.hand_over();
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

bool Engine::Work::wait_for_any(std::span<const Work> works, std::chrono::nanoseconds d) {
  const auto all_pending = [&] { return std::ranges::none_of(works, &Work::done); };
  if (!all_pending()) return true;
  DUCTILE_CHECK(!works.empty() && !works.front().operation_->task, "one waits for no task here");
  Core& e = *works.front().engine_->core_;
  std::unique_lock lock(e.mutex);
  e.wait_while(lock, all_pending, Clock::now() + d);
  e.hand_over();
  return !all_pending();
}

Engine::Engine(std::shared_ptr<Core> core, std::shared_ptr<const Members> members)
    : members_(std::move(members)), core_(std::move(core)), lane_(std::make_unique<Lane>(*core_)) {
  std::lock_guard lock(core_->mutex);
  core_->engines.push_back(this);
}

std::shared_ptr<Engine> Engine::make(std::shared_ptr<Core> core,
                                     std::shared_ptr<const Members> members) {
  std::shared_ptr<Engine> engine(new Engine(std::move(core), std::move(members)));
  engine->self_ = engine;
  return engine;
}

std::shared_ptr<Engine> Engine::make(std::unique_ptr<Transport> transport, EngineOptions options) {
  DUCTILE_CHECK(transport != nullptr, "an engine needs a transport");
  auto members = std::make_shared<Members>();
  members->rank = transport->rank();
  members->size = transport->size();
  return make(std::make_shared<Core>(std::move(transport), std::move(options)), std::move(members));
}

Engine::~Engine() { close(); }

// Under the lock, as the next two.
void Engine::throw_if_ended() const {
  core_->throw_if_failed();
  if (lane_->closed) fail(ErrorCode::unavailable, "the communicator was closed");
}

Work Engine::submit(std::shared_ptr<Operation> op, bool waits) {
  Core& e = *core_;
  Work work;
  work.engine_ = self_.lock();
  work.operation_ = op;
  e.submitted.push_back(op);
  e.unfinished.push_back(std::move(op));
  if (!waits) {
    e.start_thread();
    e.changed.notify_all();
  }
  if (e.driving && e.transport) e.call_driver();
  return work;
}

Work Engine::start(std::shared_ptr<const StepOrder> order, Binding binding, std::string name,
                   bool waits) {
  std::lock_guard lock(core_->mutex);
  throw_if_ended();
  const uint64_t sequence = lane_->sequence++;
  auto op = std::make_shared<Operation>(std::move(order), std::move(binding), name + members_->name,
                                        (sequence & kMaxCount) << kCountShift, members_);
  op->sequence = sequence;
  return submit(std::move(op), waits);
}

// Under the lock.
std::shared_ptr<Engine::Operation> Engine::new_send(int peer, uint32_t tag,
                                                    std::span<const std::byte> bytes, int rail) {
  const uint64_t number = lane_->sent[{peer, tag}]++;
  Binding binding;
  binding.in = {bytes.data()};
  binding.block_elements = static_cast<int64_t>(bytes.size());
  return std::make_shared<Operation>(
      one_step(Op::send, peer, rail), std::move(binding),
      fmt::format("send of {} bytes to rank {}{}", bytes.size(), peer, members_->name),
      kPointToPoint | (Tag{tag} << kCountShift) | (number & kMaxNumber), members_);
}

Work Engine::send(int peer, uint32_t tag, std::span<const std::byte> bytes, bool waits, int rail) {
  check_message(peer, tag, rail);
  std::lock_guard lock(core_->mutex);
  throw_if_ended();
  return submit(new_send(peer, tag, bytes, rail), waits);
}

Work Engine::send_after(const Work& first, int peer, uint32_t tag,
                        std::span<const std::byte> bytes) {
  check_message(peer, tag, 0);
  DUCTILE_CHECK(
      first.operation_ == nullptr || (first.engine_->core_ == core_ && !first.operation_->task),
      "one sends after a message or a collective of the same family");
  std::lock_guard lock(core_->mutex);
  throw_if_ended();
  auto op = new_send(peer, tag, bytes, 0);
  op->after = first.operation_;
  return submit(std::move(op), false);
}

Work Engine::receive(int peer, uint32_t tag, std::span<std::byte> bytes, bool waits, int rail) {
  check_message(peer, tag, rail);
  std::lock_guard lock(core_->mutex);
  throw_if_ended();
  const uint64_t number = lane_->received[{peer, tag}]++;
  Binding binding;
  binding.out = bytes.data();
  binding.block_elements = static_cast<int64_t>(bytes.size());
  return submit(
      std::make_shared<Operation>(
          one_step(Op::receive, peer, rail), std::move(binding),
          fmt::format("receive of {} bytes from rank {}{}", bytes.size(), peer, members_->name),
          kPointToPoint | (Tag{tag} << kCountShift) | (number & kMaxNumber), members_),
      waits);
}

Work Engine::run(std::function<void()> task, std::string name, bool waits) {
  std::lock_guard lock(core_->mutex);
  throw_if_ended();
  Work work;
  work.engine_ = self_.lock();
  work.operation_ = std::make_shared<Operation>(std::move(task), name + members_->name, members_);
  lane_->tasks.push_back(work.operation_);
  if (!waits) {
    lane_->start_thread();
    core_->changed.notify_all();
  }
  return work;
}

void Engine::check_message(int peer, uint32_t tag, int rail) const {
  if (peer < 0 || peer >= size() || peer == rank()) {
    fail(ErrorCode::invalid_argument, "rank {} of {}{} has no peer {}", rank(), size(),
         members_->name, peer);
  }
  if (tag > kMaxUserTag) {
    fail(ErrorCode::invalid_argument, "tag {}: at most {}", tag, kMaxUserTag);
  }
  if (rail < 0 || rail >= kMaxRails) {
    fail(ErrorCode::invalid_argument, "rail {}: 0 to {}", rail, kMaxRails - 1);
  }
}

std::optional<Stall> Engine::oldest() const {
  std::lock_guard lock(core_->mutex);
  const bool whole = members_->ranks.empty();
  const auto now = Clock::now();
  const auto stall_of = [&](const Operation& op) {
    return Stall{op.name, op.sequence, whole ? op.members->on_transport(op.waits) : op.waits,
                 std::chrono::duration<double>(now - op.began).count()};
  };
  for (const auto& op : core_->unfinished) {
    if (!op->quiet && (whole || op->members == members_)) return stall_of(*op);
  }
  const Operation* task = nullptr;
  for (const Engine* engine : core_->engines) {
    if (engine->lane_->tasks.empty() || (!whole && engine != this)) continue;
    const Operation& first = *engine->lane_->tasks.front();
    if (task == nullptr || first.began < task->began) task = &first;
  }
  if (task == nullptr) return std::nullopt;
  return stall_of(*task);
}

void Engine::report_loss(PeerLoss loss) {
  std::lock_guard lock(core_->mutex);
  loss.ranks = members_->on_transport(std::move(loss.ranks));
  if (core_->options.on_failure) core_->options.on_failure(loss.reason);
  // An engine with nothing to do latches the loss at its next call.
  if (core_->transport) core_->transport->fail(std::move(loss));
}

// Under the lock.
bool Engine::any_under_way() const {
  return lane_->task_runs || !lane_->tasks.empty() ||
         std::any_of(core_->unfinished.begin(), core_->unfinished.end(),
                     [&](const auto& op) { return op->members == members_; });
}

// Joins the lane's thread and ends its tasks.
void Engine::end_lane(std::unique_lock<std::mutex>& lock) {
  Core& e = *core_;
  e.changed.notify_all();
  if (lane_->thread.joinable()) {
    lock.unlock();
    lane_->thread.join();
    lock.lock();
  }
  e.changed.wait(lock, [&] { return !lane_->task_runs; });
  for (auto& op : lane_->tasks) e.end(op, e.error);
  lane_->tasks.clear();
  e.changed.notify_all();
}

void Engine::close() {
  Core& e = *core_;
  std::unique_lock lock(e.mutex);
  if (lane_->closed) return;
  lane_->closed = true;
  std::erase(e.engines, this);
  const bool last = e.engines.empty();
  if (any_under_way()) {
    const std::string text =
        fmt::format("the communicator{} was closed before its operations ended", members_->name);
    const auto why = std::make_exception_ptr(Error(ErrorCode::unavailable, text));
    last ? e.latch(why, text) : e.give_up(why, text);
  } else if (last && !e.error) {
    e.error = std::make_exception_ptr(
        Error(ErrorCode::unavailable, "the communicator was closed before this began"));
  }
  if (!last) {
    end_lane(lock);
    // What is left has failed: a round of work settles it.
    while (any_under_way()) {
      if (e.driving) {
        if (e.transport) e.call_driver();
        e.changed.wait(lock, [&] { return !any_under_way() || !e.driving; });
        continue;
      }
      e.driving = true;
      lock.unlock();
      e.drive(std::chrono::nanoseconds(0));
      lock.lock();
      e.driving = false;
      e.changed.notify_all();
    }
    e.contexts.erase(members_->context_of(members_->rank));
    return;
  }
  e.closing = true;
  if (e.driving && e.transport) e.call_driver();
  end_lane(lock);
  if (e.thread.joinable()) {
    lock.unlock();
    e.thread.join();
    lock.lock();
  }
  e.changed.wait(lock, [&] { return !e.driving; });
  e.driving = true;  // for good: nobody drives a closed engine
  auto transport = std::move(e.transport);
  lock.unlock();
  transport.reset();
  lock.lock();
  for (auto& op : e.active) op->abandon();
  e.active.clear();
  e.submitted.clear();
  while (!e.unfinished.empty()) e.end(std::shared_ptr(e.unfinished.front()), e.error);
  e.changed.notify_all();
}

}  // namespace ductile::comm
