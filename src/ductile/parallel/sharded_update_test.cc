#include "ductile/parallel/sharded_update.h"

#include <cstring>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/optim/elementwise.h"
#include "ductile/parallel/exchange_test_impl.h"

namespace ductile::parallel {
namespace {

constexpr int64_t kRanks = 8;

spec::OptimizerOptions options_of(const std::string& name) {
  spec::OptimizerOptions o;
  o.name = name;
  o.momentum = 0.9;
  o.weight_decay = 0.01;
  o.adam.eps = 1e-6;
  o.lars.eps = 1e-9;
  o.neumann.warmup_epochs = 0.1;  // the epochs of Side::input(): an SGD step, a reset, iterates
  o.neumann.reset_epochs = 0.2;
  return o;
}

optim::ParamLayout make_layout(int64_t size, const std::string& rule = "adam") {
  optim::ParamLayout layout(options_of(rule));
  layout.add("a.weight", {size / 7 + 1, 7}, false);
  layout.add("a.bias", {5}, false);
  layout.add("norm.weight", {17}, true);
  layout.add("b.weight", {3, size / 6 + 1}, false);
  return layout;
}

// A model and its optimiser in one worker.
struct Side {
  Side(const std::string& rule, const optim::ParamLayout& layout, int copies)
      : optimizer(optim::make_optimizer(options_of(rule), layout)),
        weights(static_cast<size_t>(layout.total_size())),
        half(weights.size()) {
    Rng rng(5);
    for (float& w : weights) w = 0.2F * rng.normal();
    average = weights;
    update.emplace(*optimizer, weights, average, copies);
  }

  optim::StepInput input(std::span<const float> gradient, double norm) {
    optim::StepInput in;
    in.weights = weights;
    in.gradient = gradient;
    in.hyper = optim::Hyper::of(options_of("any"));
    in.hyper.lr = 0.01;
    in.epoch = in.progress = 0.1 * static_cast<double>(optimizer->num_steps());
    in.loss = optimizer->num_steps() % 2 == 0 ? 2 : 3;
    in.gradient_scale = static_cast<float>(std::min(1.0, 100 / norm)) / kRanks;
    in.half_weights = half;
    in.ema = average;
    in.ema_decay = 0.75F;
    return in;
  }

  // The step of worker `exchange.rank()`.
  void step(Exchange& exchange, uint64_t number) {
    fill_partials(exchange, number);
    const std::span<const float> sum = update->reduce(exchange);
    const double norm = update->gradient_norm(&exchange, sum);
    const optim::StepInput in = input(sum.first(weights.size()), norm);
    update->prepare(&exchange, in);
    ASSERT_EQ(exchange.largest(3), 3U);
    update->apply(in);
    gather_and_compare(exchange);
    tail = sum.back();
  }

  // On all workers, and on the first one alone, which comes to the same.
  void gather_and_compare(Exchange& exchange) {
    Vec at_first(weights.size(), -1.0F);
    for (const BlockRange& blocks : update->held()) {
      const FloatRange range = update->floats(blocks);
      std::copy(weights.begin() + range.begin, weights.begin() + range.end,
                at_first.begin() + range.begin);
    }
    update->gather_at(exchange, 0, at_first);
    update->gather(exchange, weights);
    if (exchange.rank() > 0) return;
    EXPECT_EQ(std::memcmp(at_first.data(), weights.data(), weights.size() * sizeof(float)), 0);
  }

  std::unique_ptr<optim::Optimizer> optimizer;
  Vec weights;
  std::vector<uint16_t> half;
  Vec average;
  std::optional<ShardedUpdate> update;
  float tail = 0;
};

bool same_bits(const Vec& a, const Vec& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// By virtual rank, where the ranks are stages; nothing where they are not.
std::vector<std::vector<BlockRange>> random_reads(int64_t num_blocks) {
  std::vector<std::vector<BlockRange>> read;
  if (*rc::gen::arbitrary<bool>()) return read;
  for (int64_t v = 0; v < kRanks; ++v) {
    const int64_t begin = *rc::gen::inRange<int64_t>(0, num_blocks);
    read.push_back({{begin, *rc::gen::inRange<int64_t>(begin, num_blocks + 1)}});
  }
  return read;
}

// A job in several generations: in each, other workers take part; who stays keeps what it has, who
// comes has nothing, and (with two copies or more) one of those before may be gone for good.
// The twin is one process with everything.
RC_GTEST_PROP(ShardedUpdate, HasTheBitsOfOneWorkerInAnySpreadAndThroughChanges, ()) {
  const std::string rule = *rc::gen::elementOf(optim::optimizers().names());
  const Kind kind = *rc::gen::element(Kind::shared, Kind::messages);
  const int copies = *rc::gen::element(1, 2, kEverywhere);
  const int64_t size = *rc::gen::element<int64_t>(1, 40'003);
  const optim::ParamLayout layout = make_layout(size, rule);
  const int64_t vector_size = layout.total_size() + 4;
  Side whole(rule, layout, 1);
  const auto read = random_reads(whole.update->num_blocks());
  const auto make_worker = [&] {
    auto worker = std::make_unique<Side>(rule, layout, copies);
    if (!read.empty()) worker->update->keep_where_read(read);
    return worker;
  };
  std::vector<std::unique_ptr<Side>> workers;
  uint64_t step = 0;
  int hosts = 0;
  for (int generation = 0; generation < 2; ++generation) {
    // Who is there: those before, but for one that is lost, and new ones; of them the first host.
    const bool first = workers.empty();
    const bool loss = !first && copies > 1 && hosts > 1 && *rc::gen::arbitrary<bool>();
    if (loss) workers.erase(workers.begin() + *rc::gen::inRange<int>(0, int(workers.size())));
    const int joiners = first ? *rc::gen::inRange(1, 6) : *rc::gen::inRange(0, 3);
    for (int i = 0; i < joiners; ++i) {
      workers.push_back(make_worker());
      if (!first) {
        workers.back()->update->hold({});
        std::ranges::fill(workers.back()->weights, -1.0F);
        workers.back()->optimizer->set_num_steps(whole.optimizer->num_steps());
        std::ranges::copy(whole.optimizer->scalars(), workers.back()->optimizer->scalars().begin());
      }
    }
    const int members = static_cast<int>(workers.size());
    hosts = *rc::gen::inRange(1, std::min<int>(members, kRanks) + 1);
    ExchangeLayout exchange_layout{random_cut(kRanks, hosts), vector_size};
    exchange_layout.cut.insert(exchange_layout.cut.end(), static_cast<size_t>(members - hosts),
                               kRanks);
    // All who host virtual ranks hold the same.
    const bool alike = workers[0]->update->spread(exchange_layout.cut).whole;
    const bool is_read = !read.empty(), all_copies = copies >= hosts;
    RC_ASSERT(is_read || alike == all_copies);
    exchange_layout.in_parts = !alike;
    std::vector<std::vector<BlockRange>> have;
    for (const auto& w : workers) have.push_back(w->update->held());
    with_workers(kind, exchange_layout, [&](Exchange& exchange) {
      Side& self = *workers[static_cast<size_t>(exchange.rank())];
      self.update->enter(exchange.layout(), exchange.rank());
      self.update->transfer(exchange, have, self.update->layout().held);
      self.update->gather(exchange, self.weights);
      for (uint64_t i = 0; i < 2; ++i) self.step(exchange, step + i);
    });
    for (uint64_t i = 0; i < 2; ++i) {
      const Vec sum = serial_sum(kRanks, vector_size, step + i);
      const std::span<const float> gradient = std::span(sum).first(whole.weights.size());
      whole.optimizer->step(whole.input(gradient, optim::gradient_norm(gradient)));
      whole.tail = sum.back();
    }
    step += 2;
    size_t bytes = 0;
    for (int r = 0; r < members; ++r) {
      const auto& w = workers[static_cast<size_t>(r)];
      RC_ASSERT((r >= hosts && alike) || same_bits(w->weights, whole.weights));
      RC_ASSERT(w->tail == whole.tail);
      bytes += w->optimizer->state_bytes();
      for (const BlockRange& held : w->update->held()) {
        const auto begin = static_cast<size_t>(held.begin * Optimizer::kBlock);
        const auto end =
            std::min(whole.weights.size(), static_cast<size_t>(held.end * Optimizer::kBlock));
        RC_ASSERT(std::equal(w->average.begin() + begin, w->average.begin() + end,
                             whole.average.begin() + begin));
        RC_ASSERT(
            std::equal(w->half.begin() + begin, w->half.begin() + end, whole.half.begin() + begin));
      }
    }
    const size_t copied = whole.optimizer->state_bytes() * std::min(copies, hosts);
    RC_ASSERT(bytes >= copied);
    RC_ASSERT(is_read || bytes == copied);
  }
}

// A worker that fails in the middle leaves the others with what they held.
TEST(ShardedUpdate, AnExchangeThatFailsChangesNothingThatIsHeld) {
  const optim::ParamLayout layout = make_layout(100'003);
  ExchangeLayout exchange_layout{{0, 3, 6, 8}, layout.total_size() + 4};
  exchange_layout.in_parts = true;
  const int64_t num_blocks = make_layout(100'003).total_size() / Optimizer::kBlock + 1;
  std::vector<std::unique_ptr<Side>> workers;
  for (int i = 0; i < 3; ++i) workers.push_back(std::make_unique<Side>("adam", layout, 1));
  const std::vector<std::vector<BlockRange>> have{{{0, 4}}, {{4, num_blocks}}, {}};
  for (size_t i = 0; i < 3; ++i) workers[i]->update->hold(have[i]);
  with_workers(Kind::shared, exchange_layout, [&](Exchange& exchange) {
    Side& self = *workers[static_cast<size_t>(exchange.rank())];
    self.update->enter(exchange.layout(), exchange.rank());
    if (exchange.rank() == 1) return exchange.fail("a test");
    EXPECT_THROW(self.update->transfer(exchange, have, self.update->layout().held), Error);
  });
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(workers[i]->update->held(), have[i]) << i;
}

}  // namespace
}  // namespace ductile::parallel
