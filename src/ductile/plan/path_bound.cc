#include <cmath>
#include <limits>
#include <numeric>

#include "ductile/plan/infinity_impl.h"
#include "ductile/plan/path_bound_impl.h"

namespace ductile::plan {

namespace {

constexpr double kRounding = 1e-12;  // relative: sums of times differ in their last bits
constexpr size_t kManyStates = 300;  // from here on the second flow is left out where it is worse

}  // namespace

PathBound::PathBound(const SearchSpace& space, const StageTable& table,
                     std::span<const PathFlow> flows, const PlannerOptions& options)
    : space_(space),
      table_(table),
      flows_(flows),
      latency_(options.objective != Objective::throughput) {
  const int64_t micro_batch = options.batch / table.micro_batches();
  per_tau_ = latency_ ? 1.0 : static_cast<double>(micro_batch);
  make_work(micro_batch);
  least_tau_ = work_[0] / table.capacity() / per_tau_ * (1 - 1e-6);
}

void PathBound::make_work(int64_t micro_batch) {
  // Least seconds an operator can take for a micro-batch, times devices, over all cells: with r
  // replicas of a split by t, t (r fixed + b per_sample), least at the fewest replicas.
  const int n = static_cast<int>(space_.graph().ops.size());
  const double b = static_cast<double>(micro_batch);
  int fewest = std::numeric_limits<int>::max();
  for (const Cell& cell : table_.cells()) fewest = std::min(fewest, cell.replicas);
  // Without a cell there is no plan, and nothing to bound.
  std::vector<double> least(n, table_.cells().empty() ? 0 : kInfinity);
  std::vector<bool> seen(space_.variants().size());
  for (const Cell& cell : table_.cells()) {
    if (cell.replicas != fewest || seen[cell.keep]) continue;  // groups differ in nothing here
    seen[cell.keep] = true;
    const double share = b / fewest;
    for (OpId v = 0; v < n; ++v) {
      const graph::OpCost& c = space_.op_cost(v, cell.keep);
      const double t = cell.devices() * (c.forward.at(share) + c.backward_input.at(share) +
                                         c.backward_weight.at(share));
      least[v] = std::min(least[v], t);
    }
  }
  const auto states = space_.states();
  const int last = static_cast<int>(states.size()) - 1;
  work_.assign(states.size(), 0);
  if (space_.is_chain()) {
    for (int s = last - 1; s >= 0; --s) {
      work_[s] = work_[s + 1];
      for (int i = states[s + 1].size; i < states[s].size; ++i) {
        work_[s] += least[space_.chain()[i]];
      }
    }
    return;  // by length is by work
  }
  for (int s = 0; s < last; ++s) {
    for (OpId v : space_.stage_ops(s, last)) work_[s] += least[v];
  }
  const auto transitions = space_.transitions();
  sorted_.resize(transitions.size());
  std::iota(sorted_.begin(), sorted_.end(), 0);
  sorted_work_.resize(transitions.size());
  for (int s = 0; s < last; ++s) {
    const int first = states[s].first_transition;
    const int end = first + states[s].num_transitions;
    for (int t = first; t < end; ++t) sorted_work_[t] = work_[s] - work_[transitions[t].to];
    std::sort(sorted_.begin() + first, sorted_.begin() + end,
              [&](int x, int y) { return sorted_work_[x] < sorted_work_[y]; });
    std::sort(sorted_work_.begin() + first, sorted_work_.begin() + end);
  }
}

int PathBound::count_up_to(int state, double work) const {
  if (space_.is_chain()) {
    const auto begin = work_.begin() + state + 1;
    const double left = work_[state] - work;  // what such a stage leaves at least
    return static_cast<int>(
        std::partition_point(begin, work_.end(), [&](double rest) { return rest >= left; }) -
        begin);
  }
  const auto begin = sorted_work_.begin() + space_.states()[state].first_transition;
  const auto end = begin + space_.states()[state].num_transitions;
  return static_cast<int>(std::upper_bound(begin, end, work) - begin);
}

int PathBound::count_below(int state, double work) const {
  if (space_.is_chain()) {
    const auto begin = work_.begin() + state + 1;
    const double left = work_[state] - work;
    return static_cast<int>(
        std::partition_point(begin, work_.end(), [&](double rest) { return rest > left; }) - begin);
  }
  const auto begin = sorted_work_.begin() + space_.states()[state].first_transition;
  const auto end = begin + space_.states()[state].num_transitions;
  return static_cast<int>(std::lower_bound(begin, end, work) - begin);
}

// A longer stage never leaves more to do, so the longest that fits will do; where it ends falls
// with where it starts. Borders, workspace, ties and latencies are left out.
void PathBound::relax_chain(double most, bool in_all, bool keep) {
  const int num = static_cast<int>(space_.states().size());
  const auto& cells = table_.cells();
  std::vector<int> end(cells.size(), num - 1);
  need_.assign(num, kInfinity);
  need_[num - 1] = 0;
  if (keep) farthest_.resize(static_cast<size_t>(num) * cells.size());
  const double m = static_cast<double>(table_.micro_batches());
  const double limit = most * (1 + kRounding) * (in_all ? 1.0 : per_tau_);
  for (int s = num - 2; s >= 0; --s) {
    for (size_t k = 0; k < cells.size(); ++k) {
      const Cell& cell = cells[k];
      int& e = end[k];
      while (e > s) {
        const double busy = table_.least_tau(s, e, cell);
        const double seconds = in_all ? m * busy + table_.least_sync(s, e, cell) : busy;
        if (seconds <= limit && table_.least_memory(s, e, cell) <= cell.memory * (1 + 1e-11)) break;
        --e;
      }
      if (e > s) need_[s] = std::min(need_[s], cell.weight + need_[e]);
      if (keep) farthest_[static_cast<size_t>(s) * cells.size() + k] = e;
    }
  }
}

// Fewest devices for each rest, with one micro-batch in flight everywhere.
void PathBound::relax(double most, bool in_all) {
  const int last = static_cast<int>(space_.states().size()) - 1;
  need_.assign(last + 1, kInfinity);
  need_[last] = 0;
  const double m = static_cast<double>(table_.micro_batches());
  const double limit = most * (1 + kRounding) * (in_all ? 1.0 : per_tau_);
  for (int s = last - 1; s >= 0; --s) {
    for (const Cell& cell : table_.cells()) {
      if (cell.weight >= need_[s]) break;
      const int stop = count_up_to(s, cell.weight * limit * (1 + 1e-9) / (in_all ? m : 1));
      for (int i = stop; i-- > 0;) {
        const int to = space_.transitions()[transition(s, i)].to;
        const double total = cell.weight + need_[to];
        if (total >= need_[s]) continue;
        ++pairs_;
        const double busy = table_.least_tau(s, to, cell);
        const double seconds = in_all ? m * busy + table_.least_sync(s, to, cell) : busy;
        if (seconds > limit) continue;
        StageCost c;
        const int t = transition(s, i);
        if (!table_.cost_of_one(s, t, cell, cell.keep, c)) {
          if (cell.again < 0 || !table_.cost_of_one(s, t, cell, cell.again, c)) continue;
        }
        if (in_all || c.tau <= most * (1 + kRounding)) need_[s] = total;
      }
    }
  }
}

bool PathBound::fits(double tau) {
  if (space_.is_chain()) {
    relax_chain(tau, false, false);
  } else {
    relax(tau, false);
  }
  return need_[0] <= table_.capacity() * (1 + kRounding);
}

bool PathBound::fits_in_all(double seconds) {
  if (space_.is_chain()) {
    relax_chain(seconds, true, false);
  } else {
    relax(seconds, true);
  }
  return need_[0] <= table_.capacity() * (1 + kRounding);
}

PathBound::Values PathBound::least_of_block(int state, int e, const Cell& cell) const {
  const int nearest = e - kBlock + 1;
  const double busy = latency_ ? table_.least_round(state, nearest, cell) : 0;
  const int t = space_.states()[state].first_transition + nearest - state - 1;
  Values least = blocks_[e / kBlock];
  const double first = flows_[0].through(state, t, nearest).round_out * busy;
  for (int i = 0; i < kPrices - 1; ++i) least[i] += first;
  if (active_ == kPrices) {
    least[kPrices - 1] += flows_[1].through(state, t, nearest).round_out * busy;
  }
  return least;
}

// least_[state] from those after it.
void PathBound::price_stages(int state, double tau) {
  const auto& cells = table_.cells();
  const double limit = tau * (1 + kRounding);
  const bool second = active_ == kPrices;
  Values best = least_[state];
  const auto try_stage = [&](int t, const Cell& cell, const Values& price) {
    ++pairs_;
    StageCost c;
    if (!table_.cost_of_one(state, t, cell, cell.keep, c)) {
      if (cell.again < 0 || !table_.cost_of_one(state, t, cell, cell.again, c)) return;
    }
    if (c.tau > limit) return;
    const int to = space_.transitions()[t].to;
    const auto length = [&](const PathFlow& flow) {
      const PathFlow::Through f = flow.through(state, t, to);
      return f.round_out * c.round + f.forward_out * c.forward +
             (2 * f.in.round_trip + f.in.forward) * c.transfer + f.turns * c.sync;
    };
    const Values& after = least_[to];
    const double first = length(flows_[0]);
    for (int i = 0; i < kPrices - 1; ++i) best[i] = std::min(best[i], first + price[i] + after[i]);
    if (second) {
      constexpr int kLast = kPrices - 1;
      best[kLast] = std::min(best[kLast], length(flows_[1]) + price[kLast] + after[kLast]);
    }
  };
  // Whether a stage with these values behind it may be better than the best.
  const auto may_be_better = [&](const Values& price, const Values& after) {
    int worse = 0;
    for (int i = 0; i < kPrices; ++i) worse += price[i] + after[i] >= best[i];
    return worse < kPrices;
  };
  const auto prices_of = [&](const Cell& cell) {
    Values price;
    for (int i = 0; i < kPrices; ++i) price[i] = prices_[i] * cell.weight;
    if (!second) price[kPrices - 1] = 0;
    return price;
  };
  if (space_.is_chain()) {
    const int first = space_.states()[state].first_transition;
    const auto try_cell = [&](int k) {
      const Cell& cell = cells[k];
      const Values price = prices_of(cell);
      const double before = best[1];
      for (int e = farthest(state, k); e > state; --e) {
        if (!may_be_better(price, near_[e])) break;
        // Of a whole block, the nearest end has the shortest stage.
        const int nearest = e - kBlock + 1;
        if (e % kBlock == kBlock - 1 && nearest > state) {
          Values least = least_of_block(state, e, cell);
          for (int i = 0; i < kPrices; ++i) least[i] += price[i];
          if (!may_be_better(least, Values{})) {
            e = nearest;
            continue;
          }
        }
        try_stage(first + e - state - 1, cell, price);
      }
      if (best[1] < before) best_cell_ = k;
    };
    // First the one that was best for the state after, so that little is left to the others.
    const int guess = best_cell_;
    try_cell(guess);
    for (int k = 0; k < static_cast<int>(cells.size()); ++k) {
      if (k != guess) try_cell(k);
    }
  } else {
    for (const Cell& cell : cells) {
      const Values price = prices_of(cell);
      const int stop = count_up_to(state, cell.weight * limit * per_tau_ * (1 + 1e-9));
      for (int i = stop; i-- > 0;) {
        const int t = transition(state, i);
        if (may_be_better(price, least_[space_.transitions()[t].to])) try_stage(t, cell, price);
      }
    }
  }
  least_[state] = best;
}

void PathBound::run(double tau) {
  const int last = static_cast<int>(space_.states().size()) - 1;
  best_cell_ = 0;
  Values infinite;
  infinite.fill(kInfinity);
  if (active_ < kPrices) infinite[kPrices - 1] = 0;  // says nothing
  least_.assign(last + 1, infinite);
  least_[last].fill(0);
  near_ = least_;
  blocks_.assign(last / kBlock + 1, infinite);
  const auto note = [&](int s) {
    Values& block = blocks_[s / kBlock];
    for (int i = 0; i < kPrices; ++i) block[i] = std::min(block[i], least_[s][i]);
  };
  note(last);
  for (int s = last - 1; s >= 0; --s) {
    price_stages(s, tau);
    note(s);
    if (!space_.is_chain()) continue;
    near_[s] = least_[s];
    for (int e = s + 1; e <= last; ++e) {  // those farther on mostly have less already
      bool less = false;
      for (int i = 0; i < kPrices; ++i) {
        if (near_[e - 1][i] < near_[e][i]) near_[e][i] = near_[e - 1][i], less = true;
      }
      if (!less) break;
    }
  }
  // From here on, of all states before.
  if (!space_.is_chain()) return;
  near_ = least_;
  for (int e = 1; e <= last; ++e) {
    for (int i = 0; i < kPrices; ++i) near_[e][i] = std::min(near_[e][i], near_[e - 1][i]);
  }
}

double PathBound::bound() const {
  double most = 0;
  for (int i = 0; i < active_; ++i) {
    most = std::max(most, least_[0][i] - prices_[i] * table_.capacity());
  }
  return most;
}

double PathBound::solve(double tau) {
  if (space_.is_chain()) {
    relax_chain(tau, false, true);
  } else {
    relax(tau, false);
  }
  if (need_[0] > table_.capacity() * (1 + kRounding)) return kInfinity;
  if (!latency_) return 0;
  const double capacity = table_.capacity();
  const bool fresh = !priced_;
  if (fresh && !guessed_) {
    const double scale = std::max(work_[0] / capacity, 1e-30) / capacity;
    next_price_ = 4 * scale;
    next_ratio_ = 6;
  }
  double best = 0;
  for (int round = 0; round < (!fresh ? 1 : guessed_ ? 3 : 6); ++round) {
    prices_ = {next_price_ / next_ratio_, next_price_, next_price_ * next_ratio_, next_price_};
    run(tau);
    best = std::max(best, bound());
    Values value;
    for (int i = 0; i < 3; ++i) value[i] = least_[0][i] - prices_[i] * capacity;
    if (!(value[1] < kInfinity)) return kInfinity;  // no stage at all
    const int top =
        static_cast<int>(std::max_element(value.begin(), value.begin() + 3) - value.begin());
    // For the next time; the values at hand are those of these prices.
    next_price_ = prices_[top];
    if (top == 1 && next_ratio_ < 1.6) break;
    if (top == 1) next_ratio_ = std::sqrt(next_ratio_);
  }
  if (fresh && space_.states().size() > kManyStates) {
    const double second = least_[0][kPrices - 1] - prices_[kPrices - 1] * capacity;
    if (second < 0.9 * best) active_ = kPrices - 1;
  }
  priced_ = true;
  return best;
}

}  // namespace ductile::plan
