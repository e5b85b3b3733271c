#include "ductile/comm/benchmark.h"

#include <algorithm>

#include "ductile/comm/virtual_time.h"

namespace ductile::comm {
namespace {

constexpr double kNothing = 1e-15;

Fabric without(const Fabric& fabric, bool latency, bool transfer, bool reduction) {
  Fabric f = fabric;
  for (Link* link : {&f.inside, &f.between}) {
    if (latency) link->latency = link->overhead = 0;
    if (transfer) {
      link->bandwidth = 1 / kNothing;
      link->sustained = 0;
    }
  }
  if (reduction) f.reduce_bandwidth = 1 / kNothing;
  return f;
}

struct Candidate {
  CallOptions call;
  BurstSizes sizes;
  std::vector<double> times;
  size_t index = 0;  // in SizeTimes::algorithms
};

TimedAlgorithm timed(const Price& price, const Fabric& fabric, const Load& load) {
  TimedAlgorithm t;
  t.name = to_string(price.algorithm);
  t.pipeline = price.pipeline;
  t.predicted = price.seconds;
  t.note = price.note;
  t.parts = parts_of(price, Collective::all_reduce, fabric, load);
  return t;
}

}  // namespace

PriceParts parts_of(const Price& price, Collective collective, const Fabric& fabric,
                    const Load& load) {
  const auto seconds = [&](const Fabric& f) {
    return price_of(collective, price.algorithm, f, load, price.pipeline);
  };
  return {num_rounds(collective, price.algorithm, fabric),
          seconds(without(fabric, false, true, true)), seconds(without(fabric, true, false, true)),
          seconds(without(fabric, true, true, false))};
}

double SizeTimes::regret() const {
  if (chosen < 0 || best < 0) return 0;
  const double took = algorithms[static_cast<size_t>(chosen)].measured.median;
  const double least = algorithms[static_cast<size_t>(best)].measured.median;
  return took > 0 && least > 0 ? took / least - 1 : 0;
}

SizeTimes time_all_reduce(Communicator& comm, float* data, int64_t bytes,
                          const BenchmarkOptions& options) {
  const int64_t count = std::max<int64_t>(bytes / static_cast<int64_t>(sizeof(float)), 1);
  const auto n = static_cast<size_t>(count);
  const Fabric fabric = comm.fabric();
  const Load load{count, sizeof(float), 0};
  const Choice choice = comm.choice(Collective::all_reduce, count, DType::f32);
  SizeTimes result;
  result.bytes = bytes;
  result.reason = choice.reason;

  const auto wanted = [&](const BenchmarkOptions::Variant& v) {
    return options.variants.empty() ||
           std::any_of(options.variants.begin(), options.variants.end(), [&](const auto& w) {
             return w.algorithm == v.algorithm && w.pipeline == v.pipeline;
           });
  };
  std::vector<Candidate> candidates;
  const auto add = [&](TimedAlgorithm t, CallOptions call) {
    if (t.note.empty()) candidates.push_back({call, {}, {}, result.algorithms.size()});
    result.algorithms.push_back(std::move(t));
  };
  const bool shared = comm.uses_arena(Collective::all_reduce, DType::f32);
  if (shared && wanted({Algorithm::automatic, 0})) {
    TimedAlgorithm t;
    t.name = "shared_memory";
    t.predicted = shared_memory_price(fabric, load);
    result.chosen = 0;
    result.reason = "all ranks share memory: each sums a slice of it in place for all";
    add(std::move(t), {});
  }
  for (const Price& price : choice.prices) {
    if (!wanted({price.algorithm, 0})) continue;
    if (!shared && price.algorithm == choice.best.algorithm) {
      result.chosen = static_cast<int>(result.algorithms.size());
    }
    add(timed(price, fabric, load), {.algorithm = price.algorithm, .pipeline = price.pipeline});
  }
  for (const auto& v : options.variants) {
    if (v.pipeline == 0) continue;
    const Price price{v.algorithm,
                      v.pipeline,
                      price_of(Collective::all_reduce, v.algorithm, fabric, load, v.pipeline),
                      {}};
    add(timed(price, fabric, load), {.algorithm = v.algorithm, .pipeline = v.pipeline});
  }

  std::vector<double> all(static_cast<size_t>(comm.size()));
  const auto largest = [&](double mine) {
    comm.all_gather(&mine, all.data(), 1, DType::f64);
    return *std::max_element(all.begin(), all.end());
  };
  const auto run = [&](const Candidate& c) {
    comm.all_reduce(data, data, count, DType::f32, c.call);
  };
  const Pattern own(comm.rank(), comm.rank()), sum(0, comm.size() - 1);
  bool correct = true;
  int rounds = 0;
  for (Candidate& c : candidates) {
    own.fill(data, n);
    run(c);
    correct = correct && sum.matches(data, n);
    std::fill_n(data, n, 0.0f);
    c.sizes = BurstSizes::make(
        options.seconds, [&] { run(c); }, largest);
    rounds = std::max(rounds, c.sizes.bursts);
  }
  for (int round = 0; round < rounds; ++round) {
    for (Candidate& c : candidates) {
      if (round >= c.sizes.bursts) continue;
      c.times.push_back(burst(
          c.sizes.calls, [&] { run(c); }, largest));
    }
  }
  for (Candidate& c : candidates) {
    own.fill(data, n);
    run(c);
    correct = correct && sum.matches(data, n);
    TimedAlgorithm& t = result.algorithms[c.index];
    t.measured = Spread::of(std::move(c.times));
    if (result.best < 0 ||
        t.measured.median < result.algorithms[static_cast<size_t>(result.best)].measured.median) {
      result.best = static_cast<int>(c.index);
    }
  }
  result.correct = largest(correct ? 0 : 1) == 0;
  return result;
}

}  // namespace ductile::comm
