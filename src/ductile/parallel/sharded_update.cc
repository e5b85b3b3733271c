#include "ductile/parallel/sharded_update.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ductile/base/aligned_array.h"
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

void ShardedUpdate::keep_where_read(std::vector<std::vector<BlockRange>> read) {
  read_ = std::move(read);
  layout_ = spread(std::array<int64_t, 2>{0, static_cast<int64_t>(read_.size())});
}

ShardLayout ShardedUpdate::spread(std::span<const int64_t> cut) const {
  const auto may_cut = [this](int64_t block) { return optimizer_.may_cut(block); };
  return read_.empty() ? spread_shards(num_blocks(), cut, copies_, may_cut)
                       : parallel::keep_where_read(num_blocks(), cut, copies_, read_, may_cut);
}

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

// In ranges that lie on one side of the exact tail each.
std::vector<FloatRange> ShardedUpdate::needed_by(int rank, const ExchangeLayout& exchange,
                                                 int64_t begin) const {
  if (layout_.whole) return {{begin, exchange.vector_size}};
  std::vector<FloatRange> out;
  for (const BlockRange& r : layout_.held[static_cast<size_t>(rank)]) out.push_back(floats(r));
  const auto rest = static_cast<int64_t>(weights_.size());
  const int64_t exact = std::max(rest, exchange.vector_size - exchange.exact_tail);
  out.push_back({rest, exact});
  out.push_back({exact, exchange.vector_size});
  for (FloatRange& r : out) r.begin = std::max(r.begin, begin);
  std::erase_if(out, [](const FloatRange& r) { return r.begin >= r.end; });
  return out;
}

std::span<const float> ShardedUpdate::reduce(Exchange& exchange, int64_t begin) {
  if (layout_.whole) return exchange.reduce_from(begin);
  std::vector<std::vector<FloatRange>> wanted;
  for (int r = 0; r < layout_.num_workers(); ++r) {
    wanted.push_back(needed_by(r, exchange.layout(), begin));
  }
  return exchange.reduce_parts(wanted);
}

// The blocks whose sums of squares this worker computes: with the whole sum at hand, all.
std::vector<BlockRange> ShardedUpdate::to_compute() const {
  if (layout_.whole) return {{0, num_blocks()}};
  return layout_.own[static_cast<size_t>(rank_)];
}

// Each worker has the values of the blocks that it owns; those of a block range are
// part_of(range), a part of `values`. Afterwards it has all.
template <class T, class PartOf>
void ShardedUpdate::complete(Exchange* exchange, std::span<T> values, const PartOf& part_of) const {
  if (layout_.whole) return;
  DUCTILE_CHECK(exchange != nullptr, "the others have parts of the state, and cannot be asked");
  std::vector<std::span<T>> parts;  // of all workers, one after the other
  std::vector<size_t> bounds{0}, first_part{0};
  bool in_order = true;  // the values lie as they travel
  for (const std::vector<BlockRange>& own : layout_.own) {
    size_t end = bounds.back() / sizeof(T);
    for (const BlockRange& r : own) {
      const std::span<T> part = part_of(r);
      in_order = in_order && part.data() == values.data() + end;
      end += part.size();
      parts.push_back(part);
    }
    bounds.push_back(end * sizeof(T));
    first_part.push_back(parts.size());
  }
  if (in_order) return exchange->all_gather(std::as_writable_bytes(values), bounds);
  auto packed = AlignedArray<T>::uninitialized(static_cast<int64_t>(values.size()));
  const std::span<T> travels = packed.span();
  const auto own = static_cast<size_t>(rank_);
  // Calls visit(part, its place while it travels) for the parts begin .. end - 1.
  const auto each = [&](size_t begin, size_t end, size_t at, const auto& visit) {
    for (size_t i = begin; i < end; ++i) {
      visit(parts[i], travels.subspan(at, parts[i].size()));
      at += parts[i].size();
    }
  };
  each(first_part[own], first_part[own + 1], bounds[own] / sizeof(T),
       [](std::span<T> part, std::span<T> place) { std::ranges::copy(part, place.begin()); });
  exchange->all_gather(std::as_writable_bytes(travels), bounds);
  each(0, parts.size(), 0,
       [](std::span<T> part, std::span<T> place) { std::ranges::copy(place, part.begin()); });
}

double ShardedUpdate::gradient_norm(Exchange* exchange, std::span<const float> sum) {
  std::vector<double> all(static_cast<size_t>(num_blocks()));
  for (const BlockRange& blocks : to_compute()) {
    const FloatRange range = floats(blocks);
    const std::vector<double> here = optim::block_square_sums(sum.subspan(
        static_cast<size_t>(range.begin), static_cast<size_t>(range.end - range.begin)));
    std::ranges::copy(here, all.begin() + blocks.begin);
  }
  complete(exchange, std::span(all), [&](const BlockRange& r) {
    return std::span(all).subspan(static_cast<size_t>(r.begin),
                                  static_cast<size_t>(r.end - r.begin));
  });
  return optim::norm_of_block_sums(all);
}

void ShardedUpdate::prepare(Exchange* exchange, const optim::StepInput& in) {
  const std::span<double> sums = optimizer_.norm_sums();
  if (sums.empty()) return;
  for (int round = 0; round < optimizer_.num_rounds(); ++round) {
    // A worker that only hands parts over has none to update.
    if (!to_hold().empty()) {
      for (const BlockRange& blocks : to_compute()) optimizer_.prepare(in, blocks, round);
    }
    complete(exchange, sums, [&](const BlockRange& r) { return optimizer_.norm_sums_of(r); });
  }
}

void ShardedUpdate::apply(const optim::StepInput& in) {
  hold(to_hold());
  for (const BlockRange& range : held()) optimizer_.apply(in, range);
  optimizer_.finish(in);
}

bool ShardedUpdate::gather(Exchange& exchange, std::span<float> values) {
  complete(&exchange, values, [&](const BlockRange& r) {
    const FloatRange range = floats(r);
    return values.subspan(static_cast<size_t>(range.begin),
                          static_cast<size_t>(range.end - range.begin));
  });
  return !layout_.whole;
}

bool ShardedUpdate::gather_at(Exchange& exchange, int at, std::span<float> values) {
  if (layout_.whole) return false;
  std::vector<std::vector<BlockRange>> wanted = layout_.held;
  wanted[static_cast<size_t>(at)] = {{0, num_blocks()}};
  for (const ShardTransfer& t : plan_transfers(layout_.held, wanted)) {
    const FloatRange range = floats(t.blocks);
    const std::span<float> part = values.subspan(static_cast<size_t>(range.begin),
                                                 static_cast<size_t>(range.end - range.begin));
    if (t.from == rank_) exchange.send(t.to, std::as_bytes(part));
    if (t.to == rank_) exchange.receive(t.from, std::as_writable_bytes(part));
  }
  return rank_ == at;
}

}  // namespace ductile::parallel
