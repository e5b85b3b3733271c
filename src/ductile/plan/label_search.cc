#include <algorithm>
#include <bit>
#include <cmath>

#include "ductile/plan/infinity_impl.h"
#include "ductile/plan/label_search_impl.h"

namespace ductile::plan {

namespace {

constexpr double kSlack = 1e-12;  // relative: sums of times differ in their last bits

}  // namespace

LabelSearch::LabelSearch(const SearchSpace& space, std::span<const Island> islands,
                         std::span<const PathFlow> flows, const PlannerOptions& options,
                         const Effort& effort, int64_t micro_batch, Clock::time_point deadline)
    : space_(space),
      islands_(islands),
      effort_(effort),
      num_micro_(options.batch / micro_batch),
      latency_(options.objective != Objective::throughput),
      compare_tau_(options.tolerance == 0),
      deadline_(deadline),
      table_(space, islands, options, micro_batch),
      bound_(space, table_, flows, options),
      made_(64) {
  factor_ = latency_ ? static_cast<double>(num_micro_ - 1) : static_cast<double>(options.batch);
  make_heads(options.objective == Objective::zero_bubble);
}

void LabelSearch::make_heads(bool zero_bubble) {
  // R of the longest path that ends at each operator, each at its fastest. An operator shares its
  // stage, so only times that depend on the samples at hand are sure: at the greatest degree.
  head_.assign(space_.groups().size(), 0);
  if (!latency_) return;
  const int n = static_cast<int>(space_.graph().ops.size());
  std::vector<double> path(n, 0);
  // Of each variant the cell with the fewest samples a device, on each group.
  std::vector<const Cell*> fastest;
  for (const Cell& cell : table_.cells()) {
    const auto same = std::find_if(fastest.begin(), fastest.end(), [&](const Cell* c) {
      return c->keep == cell.keep && c->group == cell.group;
    });
    if (same == fastest.end()) {
      fastest.push_back(&cell);
    } else if (cell.share < (*same)->share) {
      *same = &cell;
    }
  }
  for (OpId v : space_.topology().order()) {
    double least = kInfinity;
    for (const Cell* cell : fastest) {
      const graph::OpCost& c = space_.op_cost(v, cell->keep);
      double seconds = c.forward.at(cell->share);
      if (!zero_bubble) {
        seconds += c.backward_input.at(cell->share) + c.backward_weight.at(cell->share);
      }
      least = std::min(least, seconds / cell->speed);
    }
    double before = 0;
    for (OpId u : space_.topology().predecessors(v)) before = std::max(before, path[u]);
    path[v] = before + least;
    least_rest_ = std::max(least_rest_, path[v]);
  }
  for (size_t g = 0; g < head_.size(); ++g) {
    const SearchSpace::Group& group = space_.groups()[g];
    for (int i = 0; i < group.size; ++i) {
      head_[g] = std::max(head_[g], path[space_.member(group.first + i)]);
    }
  }
}

bool LabelSearch::out_of_time() {
  if (!timed_out_ && is_past(deadline_)) timed_out_ = true;
  return timed_out_;
}

// What is known of the flow's paths from the rest on, and of the devices left, at each price.
LabelSearch::Prices LabelSearch::paths_of(int state, const Label& label,
                                          const Value* values) const {
  const SearchSpace::State& s = space_.states()[state];
  const double left = label.weight - table_.capacity();
  Prices out;
  const auto sum = [&](const PathFlow& flow) {
    double p = 0;
    for (int g = 0; g < s.num_groups; ++g) {
      const PathFlow::Amount& a = flow.of_group(s.first_group + g);
      p += a.round_trip * values[g].r + a.forward * values[g].s;
    }
    return p;
  };
  const double first = sum(bound_.flow(0));
  for (int i = 0; i < bound_.num_prices(); ++i) {
    out[i] = (i + 1 < PathBound::kPrices ? first : sum(bound_.flow(i))) + bound_.price(i) * left;
  }
  return out;
}

// No solution that comes of the label has a smaller rest.
double LabelSearch::reach_of(int state, const Label& label, const Value* values) const {
  const SearchSpace::State& s = space_.states()[state];
  double reach = label.done;
  for (int g = 0; g < s.num_groups; ++g) {
    reach = std::max(reach, values[g].r + head_[s.first_group + g]);
  }
  const Prices paths = paths_of(state, label, values);
  for (int i = 0; i < bound_.num_prices(); ++i) {
    const double begins = bound_.flow(i).begins(state);
    if (begins > 1e-9) {
      reach = std::max(reach, (paths[i] + bound_.least(state)[i]) / begins * (1 - 1e-9));
    }
  }
  return reach;
}

// True if the label was kept.
bool LabelSearch::insert(int state, const Label& label, const Value* values, double reach) {
  const int num = space_.states()[state].num_groups;
  const size_t num_islands = islands_.size();
  std::vector<int32_t>& list = at_[state];
  for (size_t i = 0; i < list.size();) {
    const Label& other = pool_[list[i]];
    const Value* theirs = values_.data() + other.values;
    const double tau = compare_tau_ ? std::max(label.tau, tau_low_) : 0;
    const double their_tau = compare_tau_ ? std::max(other.tau, tau_low_) : 0;
    bool no_better = other.done <= label.done && their_tau <= tau;
    bool no_worse = label.done <= other.done && tau <= their_tau;
    for (size_t f = 0; f < num_islands; ++f) {
      no_better = no_better && other.devices[f] <= label.devices[f];
      no_worse = no_worse && label.devices[f] <= other.devices[f];
    }
    for (int g = 0; g < num && (no_better || no_worse); ++g) {
      const Value& a = theirs[g];
      const Value& b = values[g];
      no_better = no_better && a.w <= b.w && a.r <= b.r && a.s <= b.s;
      no_worse = no_worse && b.w <= a.w && b.r <= a.r && b.s <= a.s;
    }
    if (no_better) return false;
    if (no_worse) {
      list[i] = list.back();
      list.pop_back();
    } else {
      ++i;
    }
  }
  if (static_cast<int>(list.size()) >= most_labels_) {
    // Out goes the one that reaches least far, but never the one with the fewest devices.
    size_t fewest = 0;
    for (size_t i = 1; i < list.size(); ++i) {
      if (pool_[list[i]].weight < pool_[list[fewest]].weight) fewest = i;
    }
    size_t worst = list.size();
    double far = label.weight < pool_[list[fewest]].weight ? -1 : total(label.tau, reach);
    for (size_t i = 0; i < list.size(); ++i) {
      const double value = total(pool_[list[i]].tau, reach_[list[i]]);
      if (i != fewest && value > far) {
        worst = i;
        far = value;
      }
    }
    if (worst == list.size()) {
      drop(label.tau, reach);
      return false;
    }
    drop(pool_[list[worst]].tau, reach_[list[worst]]);
    list[worst] = list.back();
    list.pop_back();
  }
  Label kept = label;
  kept.values = static_cast<int32_t>(values_.size());
  values_.insert(values_.end(), values, values + num);
  list.push_back(static_cast<int32_t>(pool_.size()));
  pool_.push_back(kept);
  reach_.push_back(reach);
  ++num_labels_;
  return true;
}

Solution LabelSearch::solve(double tau, double path_bound, double tau_low, double enough,
                            int labels) {
  most_labels_ = std::min(labels, effort_.labels);
  Solution solution;
  solution.rest_bound = solution.bound = solution.bound_above = kInfinity;
  if (path_bound == kInfinity) return solution;
  // First what is near the bound: most labels are then seen to lead nowhere.
  const double least = factor_ * tau_low + path_bound;
  for (const double share : {0.01, 0.05, 0.25, kInfinity}) {
    const double near = latency_ ? std::min(enough, least * (1 + share)) : enough;
    if (near <= least && near < enough) continue;
    solution = run(tau, tau_low, near, false);
    if (solution.found || near >= enough || timed_out_ || steps() > effort_.steps) break;
  }
  // Where groups were merged, values are too large and prove nothing.
  if (space_.merges_groups()) solution.rest_bound = solution.bound = solution.bound_above = 0;
  solution.rest_bound = std::max(solution.rest_bound, path_bound);
  solution.bound = std::max(solution.bound, least);
  if (solution.found) {
    solution.rest_bound = std::min(solution.rest_bound, solution.rest);
    const double seconds = factor_ * solution.tau + solution.rest;
    solution.bound = std::min(solution.bound, seconds);
    solution.bound_above =
        std::min(std::max(solution.bound_above, factor_ * solution.tau + path_bound), seconds);
  }
  return solution;
}

Solution LabelSearch::fewest_devices() {
  most_labels_ = effort_.labels;
  return run(1e30, 0, kInfinity, true);
}

// `enough`: labels from which no solution with less comes are dropped.
Solution LabelSearch::run(double tau, double tau_low, double enough, bool fewest) {
  Solution nothing;
  nothing.rest_bound = nothing.bound = nothing.bound_above = kInfinity;
  tau_low_ = tau_low;
  if (fewest && bound_.solve(tau) == kInfinity) return nothing;
  Limits limits;
  limits.tau = tau * (1 + kSlack);
  limits.work_per_weight =
      limits.tau * (latency_ ? 1.0 : factor_ / static_cast<double>(num_micro_));
  limits.capacity = table_.capacity() * (1 + kSlack);
  limits.enough = enough;
  limits.fewest = fewest;
  limits.looks_ahead = latency_ && !fewest && enough < kInfinity;
  const int last = static_cast<int>(space_.states().size()) - 1;
  at_.assign(space_.states().size(), {});
  pool_.clear();
  values_.clear();
  reach_.clear();
  dropped_rest_ = dropped_ = kInfinity;
  pool_.push_back(Label{});
  reach_.push_back(0);
  at_[0].push_back(0);
  for (int s = 0; s < last; ++s) {
    if (at_[s].empty()) continue;
    if (out_of_time() || steps() > effort_.steps) {
      nothing.rest_bound = nothing.bound = nothing.bound_above = 0;
      return nothing;
    }
    const Front front = front_of(s);
    for (int k = 0; k < static_cast<int>(table_.cells().size()); ++k) {
      if (front.weight + table_.cells()[k].weight > limits.capacity) break;
      take_stages(s, k, front, limits);
    }
  }
  return best_of(at_[last], limits);
}

// The least of everything that the labels of a state need.
LabelSearch::Front LabelSearch::front_of(int state) const {
  Front front;
  front.weight = front.tau = kInfinity;
  front.paths.fill(kInfinity);
  for (const int32_t l : at_[state]) {
    const Label& label = pool_[l];
    front.weight = std::min(front.weight, label.weight);
    front.tau = std::min(front.tau, label.tau);
    const Prices paths = paths_of(state, label, values_.data() + label.values);
    for (int i = 0; i < bound_.num_prices(); ++i) {
      front.paths[i] = std::min(front.paths[i], paths[i]);
    }
  }
  for (int i = 0; i < bound_.num_prices(); ++i) {
    const double begins = bound_.flow(i).begins(state);
    front.per_begin[i] = begins > 1e-9 ? (1 - 1e-9) / begins : 0;
  }
  return front;
}

// Takes every stage that cell `k` can hold off the state's labels.
void LabelSearch::take_stages(int s, int k, const Front& front, const Limits& limits) {
  const Cell& cell = table_.cells()[k];
  const bool chain = space_.is_chain();
  // A stage does no more work than its devices can in tau, and leaves no more than the others.
  int lowest = 0;
  int stop = space_.states()[s].num_transitions;
  if (!limits.fewest && !chain) {
    const double leaves = (limits.capacity - front.weight - cell.weight) * limits.work_per_weight;
    lowest = bound_.count_below(s, bound_.work(s) - leaves - kSlack * bound_.work(0));
    stop = bound_.count_up_to(s, cell.weight * limits.work_per_weight * (1 + 1e-9));
  }
  if (chain) stop = std::min(stop, bound_.farthest(s, k) - s);
  for (int at = stop; at-- > lowest;) {
    const int t = bound_.transition(s, at);
    const int to = space_.transitions()[t].to;
    if (front.weight + cell.weight + bound_.need(to) > limits.capacity) {
      if (chain) break;
      continue;
    }
    if (limits.looks_ahead) {
      // Whatever the stage itself takes.
      if (leads_nowhere(front, cell, chain ? bound_.least_near(to) : bound_.least(to), limits)) {
        if (chain) break;  // nearer ends only leave more
        continue;
      }
      constexpr int kBlock = PathBound::kBlock;
      if (chain && to % kBlock == kBlock - 1 && to - kBlock + 1 > s &&
          leads_nowhere(front, cell, bound_.least_of_block(s, to, cell), limits)) {
        at -= kBlock - 1;
        continue;
      }
    }
    ++steps_;
    Trial trial{s, t, k, {}, {}, false};
    if (!table_.cost(s, t, cell, cell.keep, trial.keep) || trial.keep.tau > limits.tau) continue;
    if (limits.looks_ahead && leads_nowhere(front, cell, trial, limits)) continue;
    extend(trial, limits);
  }
}

// True, and noted as dropped, where no stage of this cell leads to less than is enough. `after`:
// what the rest takes at least.
inline bool LabelSearch::leads_nowhere(const Front& front, const Cell& cell, const Prices& after,
                                       const Limits& limits) {
  double reach = 0;
  for (int i = 0; i < bound_.num_prices(); ++i) {
    reach = std::max(
        reach, (front.paths[i] + bound_.price(i) * cell.weight + after[i]) * front.per_begin[i]);
  }
  if (total(front.tau, reach) < limits.enough) return false;
  drop(front.tau, reach);
  return true;
}

// The same with what this stage takes.
inline bool LabelSearch::leads_nowhere(const Front& front, const Cell& cell, const Trial& trial,
                                       const Limits& limits) {
  const CellCost& c = trial.keep;
  const int to = space_.transitions()[trial.transition].to;
  double reach = 0;
  for (int i = 0; i < bound_.num_prices(); ++i) {
    const PathFlow::Through f = bound_.flow(i).through(trial.state, trial.transition, to);
    const double length = f.round_out * c.round + f.forward_out * c.forward +
                          (2 * f.in.round_trip + f.in.forward) * c.transfer + f.turns * c.sync;
    reach = std::max(
        reach, (front.paths[i] + length + bound_.price(i) * cell.weight + bound_.least(to)[i]) *
                   front.per_begin[i]);
  }
  const double tau = std::max(front.tau, c.tau);
  if (total(tau, reach) < limits.enough) return false;
  drop(tau, reach);
  return true;
}

// Of these groups of a label, the most of each.
inline LabelSearch::Value LabelSearch::most_of(const Value* values, uint64_t groups) {
  Value most;
  for (; groups != 0; groups &= groups - 1) {
    const Value& v = values[std::countr_zero(groups)];
    most.w = std::max(most.w, v.w);
    most.r = std::max(most.r, v.r);
    most.s = std::max(most.s, v.s);
  }
  return most;
}

// The cost of the stage with recomputation, so that so many micro-batches in flight fit; nullptr
// where they do not even then.
const CellCost* LabelSearch::recomputed(Trial& trial, int64_t in_flight,
                                        const Limits& limits) const {
  const Cell& cell = table_.cells()[trial.cell];
  if (cell.again < 0) return nullptr;
  if (!trial.knows_again) table_.cost(trial.state, trial.transition, cell, cell.again, trial.again);
  trial.knows_again = true;
  if (in_flight > trial.again.most || trial.again.tau > limits.tau) return nullptr;
  return &trial.again;
}

// Puts the stage before those of each label of its state. Inlined by force: a call for each stage
// is two percent of the search.
[[gnu::always_inline]] inline void LabelSearch::extend(Trial& trial, const Limits& limits) {
  const SearchSpace::Transition& transition = space_.transitions()[trial.transition];
  const int to = transition.to;
  const Cell& cell = table_.cells()[trial.cell];
  const double weight = cell.weight, need = bound_.need(to), capacity = limits.capacity;
  const int group = cell.group, devices = cell.devices(), most = islands_[group].devices;
  const std::vector<int32_t>& labels = at_[trial.state];
  for (size_t i = 0; i < labels.size(); ++i) {
    const Label& before = pool_[labels[i]];
    if (before.weight + weight + need > capacity) continue;
    if (before.devices[group] + devices > most) continue;
    const Value* old = values_.data() + before.values;
    Value stage = most_of(old, transition.touched);
    stage.w = std::min(stage.w + 1, num_micro_);
    const CellCost* cost = &trial.keep;
    if (stage.w > cost->most) cost = recomputed(trial, stage.w, limits);
    if (cost == nullptr) continue;
    if (latency_) {
      stage.r += cost->round;
      stage.s = std::max(stage.r + cost->sync, stage.s + cost->forward);
    }
    Label label;
    label.done = std::max(before.done, stage.s);
    label.tau = std::max(before.tau, cost->tau);
    pass_on(transition, old, stage, *cost);
    label.devices = before.devices;
    label.devices[group] += devices;
    label.weight = before.weight + weight;
    double reach = label.weight;
    if (!limits.fewest) {
      reach = latency_ ? reach_of(to, label, made_.data()) : 0;
      if (total(label.tau, reach) >= limits.enough) {
        drop(label.tau, reach);
        continue;
      }
    }
    label.parent = labels[i];
    label.state = trial.state;
    label.transition = trial.transition;
    label.cell = trial.cell;
    label.variant = cost == &trial.keep ? cell.keep : cell.again;
    label.in_flight = stage.w;
    insert(to, label, made_.data(), reach);
  }
}

// made_: the values of the groups after the stage, of those before it and its own.
inline void LabelSearch::pass_on(const SearchSpace::Transition& transition, const Value* old,
                                 const Value& stage, const CellCost& cost) {
  for (int g = 0; g < space_.states()[transition.to].num_groups; ++g) {
    const SearchSpace::MapEntry& map = space_.maps()[transition.map + g];
    Value v = most_of(old, map.old);
    if (map.reads_stage) {
      v.w = std::max(v.w, stage.w);
      if (latency_) {
        v.r = std::max(v.r, stage.r + 2 * cost.transfer);
        v.s = std::max(v.s, stage.s + cost.transfer);
      }
    }
    made_[g] = v;
  }
}

// The best of the labels of whole plans, and what the search has shown of all plans.
Solution LabelSearch::best_of(std::span<const int32_t> labels, const Limits& limits) const {
  const Label* best = nullptr;
  double best_value = kInfinity;
  double least_rest = kInfinity;
  for (const int32_t l : labels) {
    const Label& label = pool_[l];
    const double value = limits.fewest ? label.weight : factor_ * label.tau + label.done;
    least_rest = std::min(least_rest, label.done);
    if (best == nullptr || value < best_value ||
        (value == best_value && label.weight < best->weight)) {
      best = &label;
      best_value = value;
    }
  }
  Solution solution;
  solution.rest_bound = std::min(dropped_rest_, least_rest);
  solution.bound = std::min(dropped_, compare_tau_ ? best_value : factor_ * tau_low_ + least_rest);
  solution.bound_above = kInfinity;
  if (best == nullptr) return solution;
  solution.found = true;
  solution.rest = best->done;
  solution.bound_above =
      std::min(dropped_, compare_tau_ ? best_value : factor_ * best->tau + least_rest);
  solution.tau = best->tau;
  for (int32_t d : best->devices) solution.devices += d;
  for (const Label* l = best; l->parent >= 0; l = &pool_[l->parent]) {
    solution.stages.push_back(
        {l->state, space_.transitions()[l->transition].to,
         table_.shape(l->state, l->transition, table_.cells()[l->cell], l->variant, l->in_flight),
         l->in_flight});
  }
  std::reverse(solution.stages.begin(), solution.stages.end());
  return solution;
}

}  // namespace ductile::plan
