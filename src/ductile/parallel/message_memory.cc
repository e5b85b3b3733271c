#include "ductile/parallel/message_memory.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/ScalarType.h>

#include "ductile/parallel/stage_parts_impl.h"

namespace ductile::parallel {
namespace {

// Blocks lie one behind the other, aligned as what libtorch's allocator gives out: kernels may
// choose by the alignment.
size_t block_bytes(size_t bytes) { return (bytes + 63) / 64 * 64; }

// As libtorch's allocator does.
void report(void* block, int64_t bytes) {
  c10::reportMemoryUsageToProfiler(block, bytes, 0, 0, c10::Device(c10::DeviceType::CPU));
}

}  // namespace

struct MessageMemory::Blocks {
  explicit Blocks(ReceiveMemory given) : memory(std::move(given)) {}

  // nullptr where no room is left.
  std::byte* lend(size_t bytes) {
    const std::lock_guard lock(mutex);
    std::vector<std::byte*>& of_size = idle[bytes];
    std::byte* block = nullptr;
    if (!of_size.empty()) {
      block = of_size.back();
      of_size.pop_back();
    } else if (bytes <= memory.bytes.size() - taken_up) {
      block = memory.bytes.data() + taken_up;
      taken_up += bytes;
    } else {
      ++refused;
      return nullptr;
    }
    lent += bytes;
    return block;
  }
  void take_back(std::byte* block, size_t bytes) {
    const std::lock_guard lock(mutex);
    idle[bytes].push_back(block);
    lent -= bytes;
  }

  const ReceiveMemory memory;
  std::mutex mutex;
  size_t lent = 0, taken_up = 0;
  int64_t refused = 0;
  std::map<size_t, std::vector<std::byte*>> idle;  // by size
};

MessageMemory::MessageMemory(ReceiveMemory memory)
    : blocks_(std::make_shared<Blocks>(std::move(memory))) {}

at::Tensor MessageMemory::tensor(const TensorForm& form) {
  const size_t bytes = num_bytes(form);
  if (bytes == 0) return {};
  std::byte* const block = blocks_->lend(block_bytes(bytes));
  if (block == nullptr) return {};
  const auto counted = static_cast<int64_t>(bytes);
  report(block, counted);
  const auto give_back = [blocks = blocks_, counted](void* lent) {
    report(lent, -counted);
    blocks->take_back(static_cast<std::byte*>(lent), block_bytes(static_cast<size_t>(counted)));
  };
  return at::from_blob(block, form.sizes, form.strides, give_back, at::TensorOptions(form.type));
}

size_t MessageMemory::lent() const {
  const std::lock_guard lock(blocks_->mutex);
  return blocks_->lent;
}

size_t MessageMemory::taken_up() const {
  const std::lock_guard lock(blocks_->mutex);
  return blocks_->taken_up;
}

int64_t MessageMemory::refused() const {
  const std::lock_guard lock(blocks_->mutex);
  return blocks_->refused;
}

namespace {

// Of one pipeline, by rank and the size of a block; pieces count as blocks of their whole tensor.
std::map<int, std::map<size_t, size_t>> blocks_of(const nn::OperatorGraph& operators,
                                                  const Pipeline& pipeline,
                                                  const PipelineHost::Placement& placement) {
  const std::vector<Transfer> transfers = transfers_of(pipeline, operators);
  const auto form_at = [&](int stage, const nn::Source& source) -> const TensorForm& {
    const int replicas = pipeline.stages[static_cast<size_t>(stage)].replicas;
    return (replicas == 1 ? placement.forms : placement.shares.at(replicas)).at(source);
  };
  std::map<int, std::map<size_t, size_t>> out;
  std::set<std::tuple<size_t, int, bool>> counted;  // tensors of parts
  for (const Piece& piece : pieces_of(pipeline, transfers)) {
    const int maker = placement.hosts[static_cast<size_t>(piece.from)];
    const int reader = placement.hosts[static_cast<size_t>(piece.to)];
    if (maker == reader) continue;
    const Transfer& t = transfers[piece.transfer];
    // Pieces come into one tensor, or each into a block of its own.
    const auto add = [&](int rank, int part, int stage, bool gradient) {
      const size_t block = block_bytes(num_bytes(form_at(stage, t.source)));
      size_t all = block_bytes(1);
      if (counted.emplace(piece.transfer, part, gradient).second) all += block;
      out[rank][block] += all * static_cast<size_t>(pipeline.num_micro_batches);
    };
    add(reader, piece.to, t.to, false);
    // Whether a gradient comes back depends on which parameters are trained just now.
    if (c10::isFloatingType(form_at(t.from, t.source).type)) add(maker, piece.from, t.from, true);
  }
  return out;
}

}  // namespace

std::map<int, size_t> PipelineHost::receive_bytes(const nn::OperatorGraph& operators,
                                                  const Pipeline& pipeline,
                                                  std::span<const Placement> placements) {
  // A block is lent again to tensors of its size alone: of each size the most of any pipeline.
  std::map<int, std::map<size_t, size_t>> most;
  for (const Placement& placement : placements)
    for (const auto& [rank, blocks] : blocks_of(operators, pipeline, placement))
      for (const auto& [size, bytes] : blocks) most[rank][size] = std::max(most[rank][size], bytes);
  std::map<int, size_t> out;
  for (const auto& [rank, blocks] : most)
    for (const auto& [size, bytes] : blocks) out[rank] += bytes;
  return out;
}

}  // namespace ductile::parallel
