#include <algorithm>
#include <cstring>

#include "ductile/base/error.h"
#include "ductile/comm/engine_impl.h"
#include "ductile/comm/operation_impl.h"
#include "ductile/comm/reduce_kernels.h"

namespace ductile::comm {

StagingPool::Lease StagingPool::take(size_t bytes) {
  const auto it = free_.lower_bound(bytes);
  if (it != free_.end() && it->first <= 2 * bytes + 4096) {
    Lease lease{std::move(it->second), it->first};
    held_ -= lease.capacity;
    free_.erase(it);
    return lease;
  }
  const size_t capacity = (bytes + 4095) / 4096 * 4096;
  return {Buffer(new std::byte[capacity]), capacity};
}

void StagingPool::give(Lease lease) {
  constexpr size_t kKeep = 64 << 20;
  if (lease.memory == nullptr || held_ + lease.capacity > kKeep) return;
  held_ += lease.capacity;
  free_.emplace(lease.capacity, std::move(lease.memory));
}

Engine::Operation::Operation(std::shared_ptr<const StepOrder> order, Binding binding,
                             std::string name, Tag tag_base, std::shared_ptr<const Members> members)
    : name(std::move(name)),
      members(std::move(members)),
      began(std::chrono::steady_clock::now()),
      order_(std::move(order)),
      binding_(std::move(binding)),
      tag_base_(tag_base) {
  const Schedule& list = order_->list;
  waiting_ = order_->num_predecessors;
  remaining_ = static_cast<int>(list.steps.size());
  transfers_ = std::make_unique<Transfer[]>(list.steps.size());
  const size_t size = size_of(binding_.type);
  if (list.scratch_chunks > 0) {
    const int k = list.chunks_per_block;
    mirror_first_ = chunk_bounds(binding_.block_elements, size, k, list.mirror_begin).first;
    const int last = list.mirror_begin + list.mirror_count - 1;
    mirror_length_ = chunk_bounds(binding_.block_elements, size, k, last).second - mirror_first_;
    const int periods = (list.scratch_chunks + list.mirror_count - 1) / list.mirror_count;
    scratch_.resize(periods * mirror_length_ * size);
  }
  for (int32_t i = 0; i < remaining_; ++i) {
    if (staged(list.steps[i])) staged_.push_back(i);
    if (waiting_[i] == 0) become_ready(i);
  }
}

Engine::Operation::View Engine::Operation::view(const Chunks& chunks) {
  const Schedule& list = order_->list;
  const size_t size = size_of(binding_.type);
  const auto bounds = [&](int chunk) {
    return chunk_bounds(binding_.block_elements, size, list.chunks_per_block, chunk);
  };
  if (chunks.buffer == BufferName::scratch) {
    const auto at = [&](int i) { return i / list.mirror_count * mirror_length_ - mirror_first_; };
    const int first = chunks.begin;
    const int last = chunks.end() - 1;
    const int64_t begin = at(first) + bounds(list.mirror_begin + first % list.mirror_count).first;
    const int64_t end = at(last) + bounds(list.mirror_begin + last % list.mirror_count).second;
    return {scratch_.data() + begin * size, static_cast<size_t>(end - begin)};
  }
  const int k = list.chunks_per_block;
  const int block = chunks.begin / k;
  const int last_block = (chunks.end() - 1) / k;
  int64_t begin = bounds(chunks.begin % k).first;
  int64_t end = bounds((chunks.end() - 1) % k).second;
  end += (last_block - block) * binding_.block_elements;
  const auto elements = static_cast<size_t>(end - begin);
  if (chunks.buffer == BufferName::in) {
    const bool apart = binding_.in.size() > 1;
    if (!apart) begin += block * binding_.block_elements;
    // Never written: the step order sees to it.
    return {const_cast<std::byte*>(binding_.in[apart ? block : 0]) + begin * size, elements};
  }
  begin += block * binding_.block_elements;
  return {binding_.out + begin * size, elements};
}

size_t Engine::Operation::message_bytes(const Step& step, size_t elements) const {
  return elements * size_of(narrow_on_wire(step) ? *binding_.wire : binding_.type);
}

bool Engine::Operation::staged(const Step& step) const {
  return step.op == Op::receive_reduce || (step.op == Op::receive && narrow_on_wire(step));
}

Tag Engine::Operation::tag(int32_t step) const {
  const Step& s = order_->list.steps[step];
  const Tag context = members->context_of(s.op == Op::send ? s.peer : members->rank);
  return (static_cast<Tag>(s.rail) << kRailShift) | (context << kContextShift) |
         (tag_base_ + order_->message[step]);
}

void Engine::Operation::become_ready(int32_t step) {
  const Step& s = order_->list.steps[step];
  if (s.op == Op::send) {
    sends_[s.rail].ready.push(step);
  } else {
    ready_.push_back(step);
  }
}

void Engine::Operation::finish(int32_t step) {
  --remaining_;
  for (const int32_t s : order_->successors(step)) {
    if (--waiting_[s] == 0) become_ready(s);
  }
}

void Engine::Operation::execute(const Step& step) {
  const View dst = view(step.dst);
  if (dst.elements == 0) return;
  switch (step.op) {
    case Op::reduce:
      combine(binding_.reduction, binding_.type, dst.data, view(step.a).data, view(step.b).data,
              dst.elements);
      break;
    case Op::copy: {
      const std::byte* from = view(step.a).data;
      if (from != dst.data) std::memcpy(dst.data, from, dst.elements * size_of(binding_.type));
      break;
    }
    case Op::round:
      if (binding_.wire) {
        std::byte narrowed[2 * 1024];
        auto* values = reinterpret_cast<float*>(dst.data);
        for (size_t at = 0; at < dst.elements; at += 1024) {
          const size_t n = std::min<size_t>(1024, dst.elements - at);
          narrow(*binding_.wire, narrowed, values + at, n);
          widen(*binding_.wire, values + at, narrowed, n);
        }
      }
      break;
    default:
      break;
  }
}

// Takes a message out of staging to where it belongs.
void Engine::Operation::absorb(const Step& step, const std::byte* received) {
  const View dst = view(step.dst);
  if (!narrow_on_wire(step)) {
    combine(binding_.reduction, binding_.type, dst.data, view(step.a).data, received, dst.elements);
    return;
  }
  auto* values = reinterpret_cast<float*>(dst.data);
  if (step.op == Op::receive) {
    widen(*binding_.wire, values, received, dst.elements);
    return;
  }
  const std::byte* a = view(step.a).data;
  if (binding_.reduction == Reduction::sum) {
    if (a != dst.data) std::memcpy(dst.data, a, dst.elements * sizeof(float));
    widen_add(*binding_.wire, values, received, dst.elements);
    return;
  }
  float wide[256];
  for (size_t at = 0; at < dst.elements; at += 256) {
    const size_t n = std::min<size_t>(256, dst.elements - at);
    widen(*binding_.wire, wide, received + 2 * at, n);
    combine(binding_.reduction, DType::f32, dst.data + 4 * at, a + 4 * at,
            reinterpret_cast<std::byte*>(wide), n);
  }
}

// Without a transport, receives that are not posted stay undone.
void Engine::Operation::run_ready(Transport* transport, StagingPool& pool) {
  while (!ready_.empty()) {
    const int32_t i = ready_.back();
    ready_.pop_back();
    const Step& step = order_->list.steps[i];
    if (step.op != Op::receive && step.op != Op::receive_reduce) {
      execute(step);
      finish(i);
      continue;
    }
    const View dst = view(step.dst);
    if (dst.elements == 0) {  // no message: the sender knows it too
      finish(i);
    } else if (!staged(step)) {
      if (transport == nullptr) continue;
      const size_t bytes = message_bytes(step, dst.elements);
      open_.push_back({i, {}, bytes, false});
      transport->receive(peer(step), tag(i), {dst.data, bytes}, transfers_[i]);
    } else if (auto it = arrived_.find(i); it != arrived_.end()) {
      absorb(step, it->second.memory.get());
      pool.give(std::move(it->second));
      arrived_.erase(it);
      --num_staged_;
      staged_bytes_ -= message_bytes(step, dst.elements);
      finish(i);
    }
  }
}

bool Engine::Operation::post_staged(Transport& transport, const EngineOptions& options,
                                    StagingPool& pool) {
  bool moved = false;
  for (; next_staged_ < staged_.size(); ++next_staged_) {
    const int32_t i = staged_[next_staged_];
    const Step& step = order_->list.steps[i];
    const size_t elements = view(step.dst).elements;
    if (elements == 0) continue;
    const size_t bytes = message_bytes(step, elements);
    if (num_staged_ >= options.min_open_receives &&
        staged_bytes_ + bytes > options.open_receive_bytes) {
      break;
    }
    ++num_staged_;
    staged_bytes_ += bytes;
    open_.push_back({i, pool.take(bytes), bytes, false});
    transport.receive(peer(step), tag(i), {open_.back().staging.memory.get(), bytes},
                      transfers_[i]);
    moved = true;
  }
  return moved;
}

bool Engine::Operation::post_sends(Transport& transport, const EngineOptions& options,
                                   StagingPool& pool) {
  bool moved = false;
  for (auto& [rail, window] : sends_) {
    while (!window.ready.empty()) {
      const int32_t i = window.ready.top();
      const Step& step = order_->list.steps[i];
      const View source = view(step.a);
      const size_t bytes = message_bytes(step, source.elements);
      const bool full = static_cast<int>(window.open.size()) >= options.min_open_sends &&
                        window.bytes + bytes > options.open_send_bytes;
      // What comes earlier in the list than all that is open may always go: see the checker.
      if (full && i > *std::min_element(window.open.begin(), window.open.end())) break;
      window.ready.pop();
      moved = true;
      if (source.elements == 0) {
        finish(i);
        continue;
      }
      Open open{i, {}, bytes, true};
      const std::byte* data = source.data;
      if (narrow_on_wire(step)) {
        open.staging = pool.take(bytes);
        narrow(*binding_.wire, open.staging.memory.get(),
               reinterpret_cast<const float*>(source.data), source.elements);
        data = open.staging.memory.get();
      }
      window.open.push_back(i);
      window.bytes += bytes;
      open_.push_back(std::move(open));
      transport.send(peer(step), tag(i), {data, bytes}, transfers_[i]);
    }
  }
  return moved;
}

// Looks for transfers that are done.
bool Engine::Operation::collect(StagingPool& pool) {
  bool moved = false;
  for (size_t k = 0; k < open_.size();) {
    const auto state = transfers_[open_[k].step].state.load(std::memory_order_acquire);
    if (state != Transfer::State::done) {
      ++k;
      continue;
    }
    Open open = std::move(open_[k]);
    open_[k] = std::move(open_.back());
    open_.pop_back();
    moved = true;
    const Step& step = order_->list.steps[open.step];
    if (!open.is_send) heard_.insert(step.peer);
    if (open.is_send) {
      Window& window = sends_[step.rail];
      std::erase(window.open, open.step);
      window.bytes -= open.bytes;
      pool.give(std::move(open.staging));
      finish(open.step);
    } else if (!staged(step)) {
      finish(open.step);
    } else {
      arrived_.emplace(open.step, std::move(open.staging));
      if (waiting_[open.step] == 0) ready_.push_back(open.step);
    }
  }
  return moved;
}

bool Engine::Operation::advance(Transport& transport, const EngineOptions& options,
                                StagingPool& pool) {
  bool any = false;
  for (bool moved = true; moved;) {
    moved = collect(pool);
    if (!ready_.empty()) {
      moved = true;
      run_ready(&transport, pool);
    }
    moved |= post_staged(transport, options, pool);
    moved |= post_sends(transport, options, pool);
    any |= moved;
  }
  return any;
}

std::vector<int> Engine::Operation::waits_for() const {
  if (after) return after->waits_for();
  std::vector<int> silent;
  std::vector<int> receives;
  std::vector<int> sends;
  for (const Open& open : open_) {
    if (transfers_[open.step].settled()) continue;
    const int peer = order_->list.steps[open.step].peer;
    (open.is_send ? sends : receives).push_back(peer);
    if (!open.is_send && !heard_.contains(peer)) silent.push_back(peer);
  }
  std::vector<int>& ranks = !silent.empty() ? silent : !receives.empty() ? receives : sends;
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

bool Engine::Operation::any_settled() const {
  return std::any_of(open_.begin(), open_.end(),
                     [&](const Open& open) { return transfers_[open.step].settled(); });
}

void Engine::Operation::conclude(StagingPool& pool) {
  while (collect(pool) || !ready_.empty()) run_ready(nullptr, pool);
  abandon();
}

void Engine::Operation::abandon() {
  open_.clear();
  arrived_.clear();
}

}  // namespace ductile::comm
