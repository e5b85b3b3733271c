#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>
#include <unordered_set>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/sched/published/pollux_search_impl.h"

namespace ductile::sched {
namespace {

// xoshiro256** (Blackman, Vigna 2018), seeded from Philox: a round takes some ten million draws,
// which a counter-based generator makes too slowly.
class FastRandom {
 public:
  explicit FastRandom(uint64_t seed) {
    Rng rng(seed);
    for (uint64_t& word : state_) word = rng.next64() | 1;
  }
  uint64_t next() {
    const uint64_t result = rotate(state_[1] * 5, 7) * 9, t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = rotate(state_[3], 45);
    return result;
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(((next() >> 32) * n) >> 32); }

 private:
  static uint64_t rotate(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
  uint64_t state_[4];
};

struct Individual {
  PolluxState state;
  double f[2] = {0, 0};  // -fitness, -utility: less is better
  int32_t rank = 0;
  double crowding = 0;
};

bool dominates(const Individual& a, const Individual& b) {
  return a.f[0] <= b.f[0] && a.f[1] <= b.f[1] && (a.f[0] < b.f[0] || a.f[1] < b.f[1]);
}

class Search {
 public:
  explicit Search(const PolluxProblem& problem)
      : p_(problem),
        jobs_(problem.jobs.size()),
        nodes_(problem.capacity.size()),
        total_(std::accumulate(problem.capacity.begin(), problem.capacity.end(), 0)),
        random_(problem.seed) {}

  PolluxFront run(std::vector<PolluxState> seeds);
  void repair(PolluxState& state);
  void evaluate(std::span<const int8_t> state, double& fitness, double& utility) const;

 private:
  void mutate(PolluxState& state);
  void make_offspring(const std::vector<Individual>& parents, std::vector<Individual>& offspring);
  void survive(std::vector<Individual>& population, size_t count);
  const Individual& tournament(const std::vector<Individual>& parents, size_t a, size_t b);

  const PolluxProblem& p_;
  size_t jobs_, nodes_;
  int total_;
  FastRandom random_;
  std::vector<int> order_;               // scratch
  mutable std::vector<uint8_t> active_;  // scratch
};

void Search::evaluate(std::span<const int8_t> state, double& fitness, double& utility) const {
  constexpr double kShift = 1e-3;  // keeps the harmonic mean finite where a job has nothing
  const double scale = static_cast<double>(nodes_) / total_;
  double inverse = 0, sum = 0;
  active_.assign(nodes_, 0);
  for (size_t j = 0; j < jobs_; ++j) {
    const int8_t *row = state.data() + j * nodes_, *base = p_.base.data() + j * nodes_;
    int replicas = 0, spread = 0;
    bool same = true;
    for (size_t n = 0; n < nodes_; ++n) {
      replicas += row[n];
      spread += row[n] > 0;
      active_[n] |= row[n] > 0;
      same &= row[n] == base[n];
    }
    const double speedup =
        p_.jobs[j].speedup[static_cast<size_t>(spread) * (p_.most_replicas + 1) + replicas];
    sum += speedup;
    inverse += 1 / (speedup * scale * (same ? 1 : p_.jobs[j].restart_factor) + kShift);
  }
  int used = 0;
  for (size_t n = 0; n < nodes_; ++n) used += active_[n] ? p_.capacity[n] : 0;
  fitness = static_cast<double>(jobs_) / inverse;
  utility = used > 0 ? sum / used : 0;
}

void Search::repair(PolluxState& state) {
  std::vector<uint8_t> shared(nodes_, 0);
  for (size_t j = 0; j < jobs_; ++j) {
    int8_t* row = state.data() + j * nodes_;
    int spread = 0, replicas = 0;
    for (size_t n = 0; n < nodes_; ++n) spread += row[n] > 0;
    if (spread > 1) {
      for (size_t n = 0; n < nodes_; ++n) {
        if (row[n] == 0) continue;
        if (shared[n]) row[n] = 0;
        shared[n] = 1;
      }
    }
    spread = 0;
    for (size_t n = 0; n < nodes_; ++n) {
      spread += row[n] > 0;
      replicas += row[n];
    }
    if (replicas <= p_.jobs[j].max_replicas && spread <= p_.most_nodes_per_job) continue;
    // Too many: keeps the first in a random order of nodes.
    order_.resize(nodes_);
    std::iota(order_.begin(), order_.end(), 0);
    for (size_t n = nodes_; n > 1; --n)
      std::swap(order_[n - 1], order_[random_.below(static_cast<uint32_t>(n))]);
    int left = p_.jobs[j].max_replicas, nodes_left = p_.most_nodes_per_job;
    for (const int n : order_) {
      row[n] = static_cast<int8_t>(std::min<int>(row[n], nodes_left > 0 ? left : 0));
      left -= row[n];
      nodes_left -= row[n] > 0;
    }
  }
  for (size_t n = 0; n < nodes_; ++n) {
    int left = p_.capacity[n];
    for (size_t j = 0; j < jobs_; ++j) {
      int8_t& cell = state[j * nodes_ + n];
      cell = static_cast<int8_t>(std::min<int>(cell, left));
      left -= cell;
    }
  }
  for (size_t j = 0; j < jobs_; ++j) {
    int8_t* row = state.data() + j * nodes_;
    if (std::accumulate(row, row + nodes_, 0) < p_.jobs[j].min_replicas)
      std::fill(row, row + nodes_, 0);
  }
}

void Search::mutate(PolluxState& state) {
  for (size_t j = 0; j < jobs_; ++j) {
    int8_t* row = state.data() + j * nodes_;
    if (random_.uniform() < 0.1) std::copy_n(p_.base.data() + j * nodes_, nodes_, row);
    if (random_.uniform() < 0.1)
      for (size_t n = 0; n < nodes_; ++n)
        if (random_.uniform() < 0.1) row[n] = 0;
  }
  // Raises about one job a node that has devices free, and one more of those already there.
  for (size_t n = 0; n < nodes_; ++n) {
    int used = 0, present = 0;
    for (size_t j = 0; j < jobs_; ++j) {
      used += state[j * nodes_ + n];
      present += state[j * nodes_ + n] > 0;
    }
    if (used >= p_.capacity[n]) continue;
    const double any = 1.0 / static_cast<double>(jobs_), there = present > 0 ? 1.0 / present : 0;
    for (size_t j = 0; j < jobs_; ++j) {
      int8_t& cell = state[j * nodes_ + n];
      const double probability = cell > 0 ? any + there - any * there : any;
      if (random_.uniform() >= probability) continue;
      cell = static_cast<int8_t>(
          cell + random_.below(static_cast<uint32_t>(std::max(p_.capacity[n] - cell, 0) + 1)));
    }
  }
}

const Individual& Search::tournament(const std::vector<Individual>& parents, size_t a, size_t b) {
  const Individual &x = parents[a], &y = parents[b];
  if (dominates(x, y)) return x;
  if (dominates(y, x)) return y;
  if (x.crowding != y.crowding) return x.crowding > y.crowding ? x : y;
  return random_.next() & (1ull << 40) ? x : y;
}

void Search::make_offspring(const std::vector<Individual>& parents,
                            std::vector<Individual>& offspring) {
  constexpr int kTries = 100;
  constexpr double kCrossover = 0.9;
  const auto wanted = static_cast<size_t>(p_.population);
  const auto text = [](const PolluxState& s) {
    return std::string_view(reinterpret_cast<const char*>(s.data()), s.size());
  };
  offspring.clear();
  offspring.reserve(wanted);  // what `known` points at stays where it is
  std::unordered_set<std::string_view> known;
  for (const Individual& parent : parents) known.insert(text(parent.state));
  for (int attempt = 0; attempt < kTries && offspring.size() < wanted; ++attempt) {
    for (size_t pair = (wanted - offspring.size() + 1) / 2; pair > 0; --pair) {
      const auto pick = [&]() -> const Individual& {
        const auto n = static_cast<uint32_t>(parents.size());
        const size_t a = random_.below(n), b = random_.below(n);
        return tournament(parents, a, b);
      };
      PolluxState one = pick().state, two = pick().state;
      if (random_.uniform() < kCrossover) {
        const size_t point = random_.below(static_cast<uint32_t>(jobs_)) * nodes_;
        std::swap_ranges(one.begin(), one.begin() + static_cast<ptrdiff_t>(point), two.begin());
      }
      for (PolluxState* child : {&one, &two}) {
        mutate(*child);
        repair(*child);
        if (offspring.size() == wanted || known.contains(text(*child))) continue;
        offspring.emplace_back();
        Individual& made = offspring.back();
        made.state = std::move(*child);
        known.insert(text(made.state));
        double fitness, utility;
        evaluate(made.state, fitness, utility);
        made.f[0] = -fitness;
        made.f[1] = -utility;
      }
    }
  }
}

void Search::survive(std::vector<Individual>& population, size_t count) {
  // Fronts of two objectives: in order of the first, each belongs to the first front whose last
  // member does not dominate it.
  std::vector<size_t> order(population.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const Individual &x = population[a], &y = population[b];
    if (x.f[0] != y.f[0]) return x.f[0] < y.f[0];
    if (x.f[1] != y.f[1]) return x.f[1] < y.f[1];
    return a < b;
  });
  std::vector<std::vector<size_t>> fronts;
  for (const size_t i : order) {
    size_t low = 0, high = fronts.size();
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (dominates(population[fronts[middle].back()], population[i])) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low == fronts.size()) fronts.emplace_back();
    fronts[low].push_back(i);
    population[i].rank = static_cast<int32_t>(low);
  }
  std::vector<size_t> kept;
  for (std::vector<size_t>& front : fronts) {
    // Each front is in order of both objectives, one rising and one falling.
    const Individual &first = population[front.front()], &last = population[front.back()];
    const double range[2] = {last.f[0] - first.f[0], first.f[1] - last.f[1]};
    for (size_t k = 0; k < front.size(); ++k) {
      double& crowding = population[front[k]].crowding;
      crowding = 0;
      if (k == 0 || k + 1 == front.size()) {
        crowding = std::numeric_limits<double>::infinity();
        continue;
      }
      const Individual &before = population[front[k - 1]], &after = population[front[k + 1]];
      if (range[0] > 0) crowding += (after.f[0] - before.f[0]) / range[0] / 2;
      if (range[1] > 0) crowding += (before.f[1] - after.f[1]) / range[1] / 2;
    }
    if (kept.size() + front.size() > count)
      std::stable_sort(front.begin(), front.end(), [&](size_t a, size_t b) {
        return population[a].crowding > population[b].crowding;
      });
    for (const size_t i : front)
      if (kept.size() < count) kept.push_back(i);
    if (kept.size() >= count) break;
  }
  std::vector<Individual> next;
  next.reserve(kept.size());
  for (const size_t i : kept) next.push_back(std::move(population[i]));
  population = std::move(next);
}

PolluxFront Search::run(std::vector<PolluxState> seeds) {
  if (seeds.empty()) seeds.push_back(p_.base);
  std::vector<Individual> population;
  std::vector<PolluxState> seen;
  for (PolluxState& state : seeds) {
    DUCTILE_CHECK(state.size() == jobs_ * nodes_);
    repair(state);
    if (std::find(seen.begin(), seen.end(), state) != seen.end()) continue;
    seen.push_back(state);
    Individual made;
    double fitness, utility;
    evaluate(state, fitness, utility);
    made.state = std::move(state);
    made.f[0] = -fitness;
    made.f[1] = -utility;
    population.push_back(std::move(made));
  }
  survive(population, population.size());
  std::vector<Individual> offspring;
  for (int generation = 1; generation < p_.generations; ++generation) {
    make_offspring(population, offspring);
    for (Individual& child : offspring) population.push_back(std::move(child));
    survive(population, static_cast<size_t>(p_.population));
  }
  PolluxFront front;
  front.fitness = -std::numeric_limits<double>::infinity();
  for (Individual& one : population) {
    if (one.rank > 0) continue;
    if (-one.f[0] > front.fitness) {
      front.fitness = -one.f[0];
      front.utility = -one.f[1];
      front.best = front.states.size();
    }
    front.states.push_back(std::move(one.state));
  }
  return front;
}

}  // namespace

PolluxFront search(const PolluxProblem& problem, std::vector<PolluxState> seeds) {
  return Search(problem).run(std::move(seeds));
}

double pollux_fitness(const PolluxProblem& problem, std::span<const int8_t> state) {
  double fitness, utility;
  Search(problem).evaluate(state, fitness, utility);
  return fitness;
}

double pollux_utility(const PolluxProblem& problem, std::span<const int8_t> state) {
  double fitness, utility;
  Search(problem).evaluate(state, fitness, utility);
  return utility;
}

void pollux_repair(const PolluxProblem& problem, uint64_t seed, PolluxState& state) {
  PolluxProblem seeded = problem;
  seeded.seed = seed;
  Search(seeded).repair(state);
}

}  // namespace ductile::sched
