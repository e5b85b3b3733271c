// Replica::verify(): the same virtual rank, computed twice.
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/parallel/exchange.h"
#include "ductile/train/replica.h"

namespace ductile::train {
namespace {

// Who hosts the rank, and who computes it once more: the next worker that hosts any.
std::pair<int, int> pair_for(const parallel::ExchangeLayout& layout, int64_t rank) {
  const int workers = layout.num_workers();
  const auto hosts = [&](int w) {
    const auto i = static_cast<size_t>(w);
    return layout.cut[i] < layout.cut[i + 1];
  };
  int owner = 0;
  while (layout.cut[static_cast<size_t>(owner) + 1] <= rank) ++owner;
  int checker = (owner + 1) % workers;
  while (!hosts(checker)) checker = (checker + 1) % workers;
  return {owner, checker};
}

struct Difference {
  std::string name;  // of the first that differs
  int64_t others = 0;
  float one = 0, other = 0;
};

// One after the other: parameters, statistics, figures.
class Comparison {
 public:
  Comparison(std::span<const float> one, std::span<const float> other) : one_(one), other_(other) {}

  void part(const std::string& name, int64_t offset, int64_t size) {
    for (int64_t i = offset; i < offset + size; ++i) {
      const auto at = static_cast<size_t>(i);
      if (std::bit_cast<uint32_t>(one_[at]) == std::bit_cast<uint32_t>(other_[at])) continue;
      if (found_) {
        ++found_->others;
      } else {
        found_ = Difference{name, 0, one_[at], other_[at]};
      }
      return;
    }
  }
  const std::optional<Difference>& found() const { return found_; }

 private:
  std::span<const float> one_, other_;
  std::optional<Difference> found_;
};

}  // namespace

void Replica::verify(parallel::Exchange& exchange) {
  const int64_t every = job_.python.verify_every;
  const int64_t turn = updates() + 1;  // looks at samples count with the update that they precede
  const bool probes = kind_.displaced && !kind_.update;
  if (every == 0 || !ingredients_.task || probes || turn % every != 0) return;
  const int64_t rank = turn / every % num_ranks();
  const auto [owner, checker] = pair_for(exchange.layout(), rank);
  const int self = exchange.rank();
  if (self != owner && self != checker) return;
  std::vector<float> here(static_cast<size_t>(vector_size())), there(here.size());
  const Samples* const samples = samples_ ? &*samples_ : nullptr;
  runner_.repeat(kind_, samples, rank, here);
  if (owner == checker) {
    runner_.repeat(kind_, samples, rank, there);
  } else if (self == owner) {
    exchange.send(checker, std::as_bytes(std::span(here)));
    return;
  } else {
    exchange.receive(owner, std::as_writable_bytes(std::span(there)));
  }
  Comparison compared(here, there);
  for (const FlatModel::Entry& p : state_.flat.parameters())
    compared.part("the gradient of parameter " + p.name, p.offset, p.size);
  const int64_t buffers = layout().total_size();
  for (const FlatModel::Entry& b : state_.flat.buffers())
    compared.part("buffer " + b.name, buffers + b.offset, b.size);
  int64_t figure = runner_.figures_begin();
  for (const std::string& name : figures_.names()) compared.part("figure " + name, figure++, 1);
  const int64_t carried = vector_size() - ingredients_.task->num_carried();
  compared.part("the loss of a sample", figure, carried - figure);
  compared.part("what state() or an integer buffer holds", carried, vector_size() - carried);
  if (const auto& found = compared.found()) {
    fail(ErrorCode::conflict,
         "step {}, virtual rank {}: computed twice{}, {} is not the same: {} and {} (and {} other "
         "tensors and figures differ), so results depend on where a rank runs. What usually "
         "causes it: the clock; the order of a set of objects; a generator that the loss or the "
         "data set makes itself and does not seed (torch.Generator, numpy.random.default_rng); a "
         "counter, an average or a cache outside of the model and of state(). It was found by "
         "--verify (python.verify_every)",
         step(), rank, owner == checker ? " by one worker" : " by two workers", found->name,
         found->other, found->one, found->others);
  }
}

}  // namespace ductile::train
