#include "ductile/parallel/sharded_update.h"

#include <algorithm>
#include <array>

#include "ductile/base/error.h"
#include "ductile/optim/elementwise.h"

namespace ductile::parallel {

ShardedUpdate::ShardedUpdate(optim::Optimizer& optimizer, std::span<float> weights,
                             std::span<float> average, int copies)
    : optimizer_(optimizer),
      weights_(weights),
      average_(average),
      copies_(copies),
      layout_(spread(std::array<int64_t, 2>{0, 1})) {}

FloatRange ShardedUpdate::floats(BlockRange blocks) const {
  const auto size = static_cast<int64_t>(weights_.size());
  return {std::min(size, blocks.begin * Optimizer::kBlock),
          std::min(size, blocks.end * Optimizer::kBlock)};
}

void ShardedUpdate::enter(const ExchangeLayout& exchange, int rank) {
  layout_ = spread(exchange.cut);
  rank_ = rank;
  DUCTILE_CHECK(exchange.in_parts != layout_.whole, "the exchange does not fit the spread");
}

// All there is of the blocks, which are held and follow each other.
std::vector<std::span<float>> ShardedUpdate::contents(BlockRange blocks) {
  const FloatRange range = floats(blocks);
  const auto begin = static_cast<size_t>(range.begin);
  const auto size = static_cast<size_t>(range.end - range.begin);
  std::vector<std::span<float>> parts{weights_.subspan(begin, size)};
  if (!average_.empty()) parts.push_back(average_.subspan(begin, size));
  for (const Optimizer::StateBuffer& buffer : optimizer_.state(blocks)) {
    parts.push_back(buffer.values);
  }
  return parts;
}

// A worker that held no block could not follow the numbers that a rule computes from all of them.
void ShardedUpdate::share_scalars(Exchange& exchange,
                                  std::span<const std::vector<BlockRange>> have) {
  const std::span<Optimizer::Scalar> scalars = optimizer_.scalars();
  const auto source =
      std::ranges::find_if(have, [](const auto& ranges) { return !ranges.empty(); });
  if (scalars.empty() || source == have.end()) return;
  std::vector<double> values;
  for (const Optimizer::Scalar& s : scalars) values.push_back(s.value);
  const auto from = static_cast<int>(source - have.begin());
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(values));
  if (rank_ != from) exchange.receive(from, bytes);
  for (int to = 0; rank_ == from && to < static_cast<int>(have.size()); ++to)
    if (to != from) exchange.send(to, bytes);
  for (size_t i = 0; i < scalars.size(); ++i) scalars[i].value = values[i];
}

void ShardedUpdate::transfer(Exchange& exchange, std::span<const std::vector<BlockRange>> have,
                             std::span<const std::vector<BlockRange>> want) {
  const std::vector<ShardTransfer> transfers = plan_transfers(have, want);
  share_scalars(exchange, have);
  const std::vector<BlockRange> before = held();
  std::vector<BlockRange> more = before;
  for (const ShardTransfer& t : transfers) {
    if (t.to == rank_) more.push_back(t.blocks);
  }
  hold(std::move(more));
  try {
    for (const ShardTransfer& t : transfers) {
      if (t.from != rank_ && t.to != rank_) continue;
      for (const std::span<float> part : contents(t.blocks)) {
        if (t.from == rank_) {
          exchange.send(t.to, std::as_bytes(part));
        } else {
          exchange.receive(t.from, std::as_writable_bytes(part));
        }
      }
    }
  } catch (...) {
    hold(before);  // what arrived in part is not held
    throw;
  }
}

std::span<const float> ShardedUpdate::reduce(Exchange& exchange, int64_t begin) {
  if (layout_.whole) return exchange.reduce_from(begin);
  std::vector<std::vector<FloatRange>> wanted;
  const FloatRange rest{static_cast<int64_t>(weights_.size()), exchange.layout().vector_size};
  for (const std::vector<BlockRange>& ranges : layout_.held) {
    std::vector<FloatRange>& of = wanted.emplace_back();
    for (const BlockRange& r : ranges) of.push_back(floats(r));
    const int64_t exact = exchange.layout().vector_size - exchange.layout().exact_tail;
    of.push_back({rest.begin, std::max(rest.begin, exact)});
    of.push_back({std::max(rest.begin, exact), rest.end});
    for (FloatRange& r : of) r.begin = std::max(r.begin, begin);
    std::erase_if(of, [](const FloatRange& r) { return r.begin >= r.end; });
  }
  return exchange.reduce_parts(wanted);
}

// The blocks whose sums of squares this worker computes: with the whole sum at hand, all.
BlockRange ShardedUpdate::to_compute() const {
  return layout_.whole ? BlockRange{0, num_blocks()} : layout_.own[static_cast<size_t>(rank_)];
}

// Each worker has the values of the blocks that it owns; those of a block range begin at
// begin_of(range). Afterwards it has all.
template <class T, class Begin>
void ShardedUpdate::complete(Exchange* exchange, std::span<T> values, const Begin& begin_of) const {
  if (layout_.whole) return;
  DUCTILE_CHECK(exchange != nullptr, "the others have parts of the state, and cannot be asked");
  std::vector<size_t> bounds;
  for (const BlockRange& r : layout_.own) {
    bounds.push_back(static_cast<size_t>(begin_of(r)) * sizeof(T));
  }
  bounds.push_back(values.size_bytes());
  exchange->all_gather(std::as_writable_bytes(values), bounds);
}

double ShardedUpdate::gradient_norm(Exchange* exchange, std::span<const float> sum) {
  const BlockRange blocks = to_compute();
  const FloatRange range = floats(blocks);
  const std::vector<double> here = optim::block_square_sums(
      sum.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.end - range.begin)));
  std::vector<double> all(static_cast<size_t>(num_blocks()));
  std::ranges::copy(here, all.begin() + blocks.begin);
  complete(exchange, std::span(all), [](const BlockRange& r) { return r.begin; });
  return optim::norm_of_block_sums(all);
}

void ShardedUpdate::prepare(Exchange* exchange, const optim::StepInput& in) {
  const std::span<double> sums = optimizer_.norm_sums();
  if (sums.empty()) return;
  for (int round = 0; round < optimizer_.num_rounds(); ++round) {
    // A worker that only hands parts over has none to update.
    if (!to_hold().empty()) optimizer_.prepare(in, to_compute(), round);
    complete(exchange, sums,
             [&](const BlockRange& r) { return optimizer_.norm_sums_of(r).data() - sums.data(); });
  }
}

void ShardedUpdate::apply(const optim::StepInput& in) {
  hold(to_hold());
  for (const BlockRange& range : held()) optimizer_.apply(in, range);
  optimizer_.finish(in);
}

bool ShardedUpdate::gather(Exchange& exchange, std::span<float> values) {
  complete(&exchange, values, [this](const BlockRange& r) { return floats(r).begin; });
  return !layout_.whole;
}

}  // namespace ductile::parallel
