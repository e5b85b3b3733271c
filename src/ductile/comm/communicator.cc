#include "ductile/comm/communicator.h"

#include <utility>

#include "ductile/base/error.h"
#include "ductile/comm/canonical.h"

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
  engine_ = Engine::make(std::move(transport), options_.engine);
}

Communicator::~Communicator() { engine_->close(); }

std::shared_ptr<const Plan> Communicator::plan(Collective collective, Algorithm algorithm,
                                               const ScheduleOptions& options, bool aliased) {
  std::string key =
      fmt::format("{} {} {} {} {} {}", static_cast<int>(collective), static_cast<int>(algorithm),
                  options.pipeline, options.root, options.wire, aliased);
  for (const int64_t c : options.cut) key += fmt::format(" {}", c);
  std::lock_guard lock(plans_mutex_);
  constexpr size_t kKeep = 256;
  if (plans_.size() > kKeep) plans_.clear();
  auto& plan = plans_[key];
  if (plan == nullptr) {
    plan = std::make_shared<const Plan>(make_plan(
        make_schedule(collective, algorithm, options_.topology, rank(), options), aliased));
  }
  return plan;
}

Work Communicator::start(const Call& call, const CallOptions& options, bool waits) {
  check_count(call.count);
  ScheduleOptions list;
  list.wire = has_wire(options, call.type);
  list.root = call.root;
  list.pipeline = options.pipeline > 0 ? options.pipeline : 1;
  Algorithm algorithm = options.algorithm;
  if (algorithm == Algorithm::automatic) algorithm = algorithms_of(call.collective).front();
  const bool aliased = call.in == call.out && call.collective != Collective::all_gather &&
                       call.collective != Collective::all_to_all &&
                       call.collective != Collective::reduce_scatter;
  auto steps = plan(call.collective, algorithm, list, aliased);
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
  list.pipeline = options.pipeline > 0 ? options.pipeline : 1;
  const bool aliased = !partials.empty() && partials[0] == out;
  auto steps = plan(Collective::all_reduce, Algorithm::canonical, list, aliased);
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

void Communicator::send(int peer, uint32_t tag, std::span<const std::byte> bytes) {
  engine_->send(peer, tag, bytes, true).wait();
}
Work Communicator::start_send(int peer, uint32_t tag, std::span<const std::byte> bytes) {
  return engine_->send(peer, tag, bytes);
}
void Communicator::receive(int peer, uint32_t tag, std::span<std::byte> bytes) {
  engine_->receive(peer, tag, bytes, true).wait();
}
Work Communicator::start_receive(int peer, uint32_t tag, std::span<std::byte> bytes) {
  return engine_->receive(peer, tag, bytes);
}

}  // namespace ductile::comm
