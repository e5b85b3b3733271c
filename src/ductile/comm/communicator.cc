#include "ductile/comm/communicator.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/comm/canonical.h"
#include "ductile/comm/reduce_kernels.h"
#include "ductile/comm/shm_collectives.h"

namespace ductile::comm {
namespace {

bool has_wire(const CallOptions& options, DType type) {
  if (!options.wire) return false;
  if (*options.wire != DType::f16 && *options.wire != DType::bf16) {
    fail(ErrorCode::invalid_argument, "wire format {}: f16 or bf16", to_string(*options.wire));
  }
  if (type != DType::f32) {
    fail(ErrorCode::invalid_argument, "wire format {} is for f32, the data are {}",
         to_string(*options.wire), to_string(type));
  }
  return true;
}

void check_count(int64_t count) {
  if (count < 0) fail(ErrorCode::invalid_argument, "count {}: at least 0", count);
}

}  // namespace

Communicator::Communicator(std::unique_ptr<Transport> transport, CommunicatorOptions options)
    : options_(std::move(options)) {
  options_.topology.num_ranks = transport->size();
  if (options_.topology.num_rails < 1 || options_.topology.num_rails > kMaxRails) {
    fail(ErrorCode::invalid_argument, "{} rails: 1 to {}", options_.topology.num_rails, kMaxRails);
  }
  fabric_ = options_.fabric.value_or(fabric_of(options_.topology));
  check_fabric(fabric_);
  EngineOptions engine = options_.engine;
  if (options_.arena != nullptr) {
    if (options_.arena->size() != transport->size() ||
        options_.arena->rank() != transport->rank()) {
      fail(ErrorCode::invalid_argument, "rank {} of {} has the arena of rank {} of {}",
           transport->rank(), transport->size(), options_.arena->rank(), options_.arena->size());
    }
    options_.arena->report_stalls(options_.engine.soft_deadline, options_.engine.on_stall);
    engine.on_failure = [arena = options_.arena,
                         then = options_.engine.on_failure](const std::string& reason) {
      arena->fail({{}, reason});
      if (then) then(reason);
    };
  }
  engine_ = Engine::make(std::move(transport), std::move(engine));
}

Communicator::Communicator(std::shared_ptr<Engine> engine, CommunicatorOptions options)
    : options_(std::move(options)),
      group_(true),
      engine_(std::move(engine)),
      fabric_(*options_.fabric) {}

Communicator::~Communicator() { engine_->close(); }

std::unique_ptr<Communicator> Communicator::split(std::span<const int> ranks) {
  std::shared_ptr<Arena> whole = options_.arena;
  if (whole != nullptr && whole->whole() != nullptr) whole = whole->whole();
  const bool shares = whole != nullptr && ranks.size() > 1;
  const auto take = [&] { return shares ? whole->take_group(static_cast<int>(ranks.size())) : -1; };
  Engine::Group group = engine_->split(ranks, take);
  CommunicatorOptions options;
  options.topology = part_of(options_.topology, ranks);
  options.engine = options_.engine;
  options.fabric = part_of(fabric(), ranks);
  if (shares && group.note >= 0) {
    const Members& members = group.engine->members();
    options.arena = Arena::group(std::move(whole), members.ranks, members.rank, group.note);
    options.arena->report_stalls(options.engine.soft_deadline, options.engine.on_stall);
  }
  return std::unique_ptr<Communicator>(
      new Communicator(std::move(group.engine), std::move(options)));
}

std::vector<int> Communicator::first_ranks() const {
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) ranks.push_back(engine_->members().on_transport(r));
  return ranks;
}

void Communicator::check_fabric(const Fabric& fabric) const {
  if (same_shape(fabric, fabric_of(options_.topology))) return;
  fail(ErrorCode::invalid_argument, "the fabric is that of {} ranks in another arrangement",
       fabric.ranks);
}

std::shared_ptr<const StepOrder> Communicator::step_order(Collective collective,
                                                          Algorithm algorithm,
                                                          const ScheduleOptions& options,
                                                          bool aliased) {
  std::string key =
      fmt::format("{} {} {} {} {} {}", static_cast<int>(collective), static_cast<int>(algorithm),
                  options.pipeline, options.root, options.wire, aliased);
  for (const int64_t c : options.cut) key += fmt::format(" {}", c);
  std::lock_guard lock(mutex_);
  constexpr size_t kKeep = 256;
  if (orders_.size() > kKeep) orders_.clear();
  auto& order = orders_[key];
  if (order == nullptr) {
    order = std::make_shared<const StepOrder>(make_step_order(
        make_schedule(collective, algorithm, options_.topology, rank(), options), aliased));
  }
  return order;
}

Fabric Communicator::fabric() const {
  std::lock_guard lock(mutex_);
  return fabric_;
}

void Communicator::set_fabric(Fabric fabric) {
  check_fabric(fabric);
  std::lock_guard lock(mutex_);
  fabric_ = std::move(fabric);
  decisions_.clear();
}

namespace {

// Calls of about the same size are done alike: bytes are rounded up to two binary digits.
Load load_of(int64_t count, DType type, const CallOptions& options) {
  const auto size = static_cast<int64_t>(size_of(type));
  const auto bytes = static_cast<uint64_t>(std::max<int64_t>(count * size, 1));
  const uint64_t half = std::max<uint64_t>(std::bit_floor(bytes) / 2, 1);
  const auto rounded = static_cast<int64_t>((bytes + half - 1) / half * half);
  return {std::max<int64_t>(rounded / size, 1), static_cast<size_t>(size),
          options.wire ? size_of(*options.wire) : 0};
}

}  // namespace

Choice Communicator::choice(Collective collective, int64_t count, DType type,
                            const CallOptions& options) {
  return choose(collective, fabric(), load_of(count, type, options));
}

Price Communicator::decide(Collective collective, int64_t count, DType type,
                           const CallOptions& options) {
  if (options.algorithm != Algorithm::automatic && options.pipeline > 0) {
    return {options.algorithm, options.pipeline, 0, {}};
  }
  if (collective == Collective::barrier) return {algorithms_of(collective).front(), 1, 0, {}};
  const Load load = load_of(count, type, options);
  const std::string key = fmt::format("{} {} {} {} {}", static_cast<int>(collective),
                                      static_cast<int>(options.algorithm), load.elements,
                                      load.element_size, load.wire_size);
  std::lock_guard lock(mutex_);
  auto it = decisions_.find(key);
  if (it == decisions_.end()) {
    const Price price = options.algorithm == Algorithm::automatic
                            ? choose(collective, fabric_, load).best
                            : comm::price(collective, options.algorithm, fabric_, load);
    it = decisions_.emplace(key, price).first;
  }
  Price price = it->second;
  if (options.pipeline > 0) price.pipeline = options.pipeline;
  return price;
}

bool Communicator::uses_arena(Collective collective, DType type, const CallOptions& options) const {
  if (options_.arena == nullptr || options.algorithm != Algorithm::automatic) return false;
  switch (collective) {
    case Collective::all_reduce:
      return can_sum(type) && options.reduction == Reduction::sum && !options.wire;
    case Collective::broadcast:
      return !options.wire;
    case Collective::barrier:
      return true;
    default:
      return false;
  }
}

std::optional<Work> Communicator::start_in_arena(const Call& call, const CallOptions& options,
                                                 bool waits) {
  if (!uses_arena(call.collective, call.type, options)) return std::nullopt;
  auto task = [arena = options_.arena, call] {
    const size_t n = static_cast<size_t>(call.count);
    auto* out = static_cast<std::byte*>(call.out);
    switch (call.collective) {
      case Collective::all_reduce:
        if (call.in != call.out && n > 0) std::memcpy(out, call.in, n * size_of(call.type));
        comm::all_reduce(*arena, call.type, out, n);
        break;
      case Collective::broadcast:
        comm::broadcast(*arena, out, n * size_of(call.type), call.root);
        break;
      default:
        comm::barrier(*arena);
    }
  };
  return engine_->run(std::move(task),
                      fmt::format("{} (shared memory) of {} {}", to_string(call.collective),
                                  call.count, to_string(call.type)),
                      waits);
}

Work Communicator::start(const Call& call, const CallOptions& options, bool waits) {
  check_count(call.count);
  if (call.root < 0 || call.root >= size()) {
    fail(ErrorCode::invalid_argument, "root {} of {} ranks", call.root, size());
  }
  ScheduleOptions list;
  list.wire = has_wire(options, call.type);
  list.root = call.root;
  if (auto work = start_in_arena(call, options, waits)) return *std::move(work);
  const Price how = decide(call.collective, call.count, call.type, options);
  list.pipeline = how.pipeline;
  const bool aliased = call.in == call.out && call.collective != Collective::all_gather &&
                       call.collective != Collective::all_to_all &&
                       call.collective != Collective::reduce_scatter;
  auto steps = step_order(call.collective, how.algorithm, list, aliased);
  Binding binding;
  binding.in = {static_cast<const std::byte*>(call.in)};
  binding.out = static_cast<std::byte*>(call.out);
  binding.block_elements = call.count;
  binding.type = call.type;
  binding.reduction = options.reduction;
  binding.wire = options.wire;
  std::string name =
      fmt::format("{} ({}) of {} {}", to_string(call.collective), to_string(steps->list.algorithm),
                  call.count, to_string(call.type));
  return engine_->start(std::move(steps), std::move(binding), std::move(name), waits);
}

Work Communicator::start_canonical(std::span<const void* const> partials, void* out, int64_t count,
                                   DType type, std::span<const int64_t> cut,
                                   const CallOptions& options, bool waits) {
  check_count(count);
  ScheduleOptions list;
  list.wire = has_wire(options, type);
  list.cut.assign(cut.begin(), cut.end());
  CallOptions direct = options;
  direct.algorithm = Algorithm::direct;
  list.pipeline = decide(Collective::all_reduce, count, type, direct).pipeline;
  const bool aliased = !partials.empty() && partials[0] == out;
  auto steps = step_order(Collective::all_reduce, Algorithm::canonical, list, aliased);
  if (static_cast<int>(partials.size()) != steps->list.in_blocks) {
    fail(ErrorCode::invalid_argument,
         "{} partial sums given; virtual ranks {} to {} of {} are covered by {}", partials.size(),
         cut[rank()], cut[rank() + 1] - 1, cut.back(), steps->list.in_blocks);
  }
  Binding binding;
  for (const void* p : partials) binding.in.push_back(static_cast<const std::byte*>(p));
  binding.out = static_cast<std::byte*>(out);
  binding.block_elements = count;
  binding.type = type;
  binding.reduction = options.reduction;
  binding.wire = options.wire;
  return engine_->start(std::move(steps), std::move(binding),
                        fmt::format("all_reduce (canonical) of {} {}", count, to_string(type)),
                        waits);
}

void Communicator::all_reduce(const void* in, void* out, int64_t count, DType type,
                              const CallOptions& options) {
  start({Collective::all_reduce, in, out, count, type}, options, true).wait();
}
Work Communicator::start_all_reduce(const void* in, void* out, int64_t count, DType type,
                                    const CallOptions& options) {
  return start({Collective::all_reduce, in, out, count, type}, options, false);
}

void Communicator::canonical_all_reduce(std::span<const void* const> partials, void* out,
                                        int64_t count, DType type, std::span<const int64_t> cut,
                                        const CallOptions& options) {
  start_canonical(partials, out, count, type, cut, options, true).wait();
}
Work Communicator::start_canonical_all_reduce(std::span<const void* const> partials, void* out,
                                              int64_t count, DType type,
                                              std::span<const int64_t> cut,
                                              const CallOptions& options) {
  return start_canonical(partials, out, count, type, cut, options, false);
}

void Communicator::reduce_scatter(const void* in, void* out, int64_t count, DType type,
                                  const CallOptions& options) {
  start({Collective::reduce_scatter, in, out, count, type}, options, true).wait();
}
Work Communicator::start_reduce_scatter(const void* in, void* out, int64_t count, DType type,
                                        const CallOptions& options) {
  return start({Collective::reduce_scatter, in, out, count, type}, options, false);
}

void Communicator::all_gather(const void* in, void* out, int64_t count, DType type,
                              const CallOptions& options) {
  start({Collective::all_gather, in, out, count, type}, options, true).wait();
}
Work Communicator::start_all_gather(const void* in, void* out, int64_t count, DType type,
                                    const CallOptions& options) {
  return start({Collective::all_gather, in, out, count, type}, options, false);
}

void Communicator::broadcast(void* data, int64_t count, DType type, int root,
                             const CallOptions& options) {
  start({Collective::broadcast, data, data, count, type, root}, options, true).wait();
}
Work Communicator::start_broadcast(void* data, int64_t count, DType type, int root,
                                   const CallOptions& options) {
  return start({Collective::broadcast, data, data, count, type, root}, options, false);
}

void Communicator::all_to_all(const void* in, void* out, int64_t count, DType type,
                              const CallOptions& options) {
  start({Collective::all_to_all, in, out, count, type}, options, true).wait();
}
Work Communicator::start_all_to_all(const void* in, void* out, int64_t count, DType type,
                                    const CallOptions& options) {
  return start({Collective::all_to_all, in, out, count, type}, options, false);
}

void Communicator::barrier() {
  start({Collective::barrier, &flag_, &flag_, 1, DType::u8}, {.reduction = Reduction::max}, true)
      .wait();
}
Work Communicator::start_barrier() {
  return start({Collective::barrier, &flag_, &flag_, 1, DType::u8}, {.reduction = Reduction::max},
               false);
}

std::optional<Stall> Communicator::oldest() const {
  auto stall = engine_->oldest();
  if (options_.arena != nullptr && (!stall || stall->ranks.empty())) {
    if (auto shared = options_.arena->stall()) return shared;
  }
  return stall;
}

void Communicator::run_list(Schedule list, const void* in, void* out, int64_t count, DType type) {
  check_count(count);
  for (const Step& step : list.steps) {
    if (step.rail >= kMaxRails) {
      fail(ErrorCode::invalid_argument, "rail {} in a list: 0 to {}", step.rail, kMaxRails - 1);
    }
  }
  Binding binding;
  binding.in = {static_cast<const std::byte*>(in)};
  binding.out = static_cast<std::byte*>(out);
  binding.block_elements = count;
  binding.type = type;
  engine_
      ->start(std::make_shared<const StepOrder>(make_step_order(std::move(list))),
              std::move(binding), fmt::format("a list of steps on {} {}", count, to_string(type)),
              true)
      .wait();
}

void Communicator::send(int peer, uint32_t tag, std::span<const std::byte> bytes, int rail) {
  engine_->send(peer, tag, bytes, true, rail).wait();
}
Work Communicator::start_send(int peer, uint32_t tag, std::span<const std::byte> bytes, int rail) {
  return engine_->send(peer, tag, bytes, false, rail);
}
Work Communicator::start_send_after(const Work& first, int peer, uint32_t tag,
                                    std::span<const std::byte> bytes) {
  return engine_->send_after(first, peer, tag, bytes);
}
void Communicator::receive(int peer, uint32_t tag, std::span<std::byte> bytes, int rail) {
  engine_->receive(peer, tag, bytes, true, rail).wait();
}
Work Communicator::start_receive(int peer, uint32_t tag, std::span<std::byte> bytes, int rail) {
  return engine_->receive(peer, tag, bytes, false, rail);
}

}  // namespace ductile::comm
