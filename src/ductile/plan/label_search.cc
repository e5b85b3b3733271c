#include <algorithm>
#include <bit>
#include <cmath>

#include "ductile/plan/label_search_impl.h"

namespace ductile::plan {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kSlack = 1e-12;  // relative: sums of times differ in their last bits

}  // namespace

LabelSearch::LabelSearch(const SearchSpace& space, std::span<const Island> islands,
                         std::span<const PathFlow> flows, const PlannerOptions& options,
                         const Effort& effort, int64_t micro_batch, Clock::time_point deadline)
    : space_(space),
      islands_(islands),
      effort_(effort),
      num_micro_(options.batch / micro_batch),
      latency_(options.objective == Objective::time),
      compare_tau_(options.tolerance == 0),
      deadline_(deadline),
      table_(space, islands, options, micro_batch),
      bound_(space, table_, flows, options),
      made_(64) {
  factor_ = latency_ ? static_cast<double>(num_micro_ - 1) : static_cast<double>(options.batch);
  make_heads();
}

void LabelSearch::make_heads() {
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
      least = std::min(least, (c.forward.at(cell->share) + c.backward_input.at(cell->share) +
                               c.backward_weight.at(cell->share)) /
                                  cell->speed);
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
  if (!timed_out_ && Clock::now() > deadline_) timed_out_ = true;
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
  const auto states = space_.states();
  const auto& cells = table_.cells();
  const int last = static_cast<int>(states.size()) - 1;
  Solution solution;
  solution.rest_bound = solution.bound = solution.bound_above = kInfinity;
  tau_low_ = tau_low;
  if (fewest && bound_.solve(tau) == kInfinity) return solution;
  at_.assign(states.size(), {});
  pool_.clear();
  values_.clear();
  reach_.clear();
  dropped_rest_ = dropped_ = kInfinity;
  const double capacity = table_.capacity() * (1 + kSlack);
  const double per_tau =
      tau * (1 + kSlack) * (latency_ ? 1.0 : factor_ / static_cast<double>(num_micro_));
  pool_.push_back(Label{});
  reach_.push_back(0);
  at_[0].push_back(0);
  for (int s = 0; s < last; ++s) {
    const std::vector<int32_t>& labels = at_[s];
    if (labels.empty()) continue;
    if (out_of_time() || steps() > effort_.steps) {
      solution.rest_bound = solution.bound = solution.bound_above = 0;
      return solution;
    }
    double least = kInfinity;
    double least_tau = kInfinity;
    paths_.clear();
    Prices nearest;
    nearest.fill(kInfinity);
    for (int32_t l : labels) {
      const Label& label = pool_[l];
      least = std::min(least, label.weight);
      least_tau = std::min(least_tau, label.tau);
      paths_.push_back(paths_of(s, label, values_.data() + label.values));
      for (int i = 0; i < bound_.num_prices(); ++i) {
        nearest[i] = std::min(nearest[i], paths_.back()[i]);
      }
    }
    Prices per_begin;
    for (int i = 0; i < bound_.num_prices(); ++i) {
      const double begins = bound_.flow(i).begins(s);
      per_begin[i] = begins > 1e-9 ? (1 - 1e-9) / begins : 0;
    }
    const bool prune = latency_ && !fewest && enough < kInfinity;
    for (int k = 0; k < static_cast<int>(cells.size()); ++k) {
      const Cell& cell = cells[k];
      if (least + cell.weight > capacity) break;
      // A stage does no more work than its devices can in tau, and leaves no more than the others.
      int lowest = 0;
      int stop = states[s].num_transitions;
      if (!fewest && !space_.is_chain()) {
        const double leaves = (capacity - least - cell.weight) * per_tau;
        lowest = bound_.count_below(s, bound_.work(s) - leaves - kSlack * bound_.work(0));
        stop = bound_.count_up_to(s, cell.weight * per_tau * (1 + 1e-9));
      }
      if (space_.is_chain()) stop = std::min(stop, bound_.farthest(s, k) - s);
      for (int at = stop; at-- > lowest;) {
        const int t = bound_.transition(s, at);
        const SearchSpace::Transition& transition = space_.transitions()[t];
        const int to = transition.to;
        if (least + cell.weight + bound_.need(to) > capacity) {
          if (space_.is_chain()) break;
          continue;
        }
        if (prune) {
          // Whatever the stage itself takes.
          double reach = 0;
          const Prices& after = space_.is_chain() ? bound_.least_near(to) : bound_.least(to);
          for (int i = 0; i < bound_.num_prices(); ++i) {
            reach = std::max(
                reach, (nearest[i] + bound_.price(i) * cell.weight + after[i]) * per_begin[i]);
          }
          if (total(least_tau, reach) >= enough) {
            drop(least_tau, reach);
            if (space_.is_chain()) break;  // nearer ends only leave more
            continue;
          }
          constexpr int kBlock = PathBound::kBlock;
          if (space_.is_chain() && to % kBlock == kBlock - 1 && to - kBlock + 1 > s) {
            const Prices block = bound_.least_of_block(s, to, cell);
            reach = 0;
            for (int i = 0; i < bound_.num_prices(); ++i) {
              reach = std::max(
                  reach, (nearest[i] + bound_.price(i) * cell.weight + block[i]) * per_begin[i]);
            }
            if (total(least_tau, reach) >= enough) {
              drop(least_tau, reach);
              at -= kBlock - 1;
              continue;
            }
          }
        }
        ++steps_;
        CellCost c, again;
        if (!table_.cost(s, t, cell, cell.keep, c) || c.tau > tau * (1 + kSlack)) continue;
        if (prune) {
          double reach = 0;
          for (int i = 0; i < bound_.num_prices(); ++i) {
            const PathFlow::Through f = bound_.flow(i).through(s, t, to);
            const double length = f.round_out * c.tau + f.forward_out * c.forward +
                                  (2 * f.in.round_trip + f.in.forward) * c.transfer +
                                  f.turns * c.sync;
            reach = std::max(
                reach, (nearest[i] + length + bound_.price(i) * cell.weight + bound_.least(to)[i]) *
                           per_begin[i]);
          }
          const double at_least = std::max(least_tau, c.tau);
          if (total(at_least, reach) >= enough) {
            drop(at_least, reach);
            continue;
          }
        }
        bool know_again = false;
        for (size_t i = 0; i < labels.size(); ++i) {
          const Label& before = pool_[labels[i]];
          if (before.weight + cell.weight + bound_.need(to) > capacity) continue;
          if (before.devices[cell.group] + cell.devices() > islands_[cell.group].devices) continue;
          const Value* old = values_.data() + before.values;
          int64_t w = 0;
          double r = 0;
          double rest = 0;
          for (uint64_t bits = transition.touched; bits != 0; bits &= bits - 1) {
            const Value& v = old[std::countr_zero(bits)];
            w = std::max(w, v.w);
            r = std::max(r, v.r);
            rest = std::max(rest, v.s);
          }
          w = std::min(w + 1, num_micro_);
          const CellCost* cost = &c;
          if (w > c.most) {
            if (cell.again < 0) continue;
            if (!know_again) table_.cost(s, t, cell, cell.again, again);
            know_again = true;
            if (w > again.most || again.tau > tau * (1 + kSlack)) continue;
            cost = &again;
          }
          Label label;
          if (latency_) {
            r += cost->tau;
            rest = std::max(r + cost->sync, rest + cost->forward);
          }
          label.done = std::max(before.done, rest);
          label.tau = std::max(before.tau, cost->tau);
          for (int g = 0; g < states[to].num_groups; ++g) {
            const SearchSpace::MapEntry& map = space_.maps()[transition.map + g];
            Value v;
            for (uint64_t bits = map.old; bits != 0; bits &= bits - 1) {
              const Value& o = old[std::countr_zero(bits)];
              v.w = std::max(v.w, o.w);
              v.r = std::max(v.r, o.r);
              v.s = std::max(v.s, o.s);
            }
            if (map.reads_stage) {
              v.w = std::max(v.w, w);
              if (latency_) {
                v.r = std::max(v.r, r + 2 * cost->transfer);
                v.s = std::max(v.s, rest + cost->transfer);
              }
            }
            made_[g] = v;
          }
          label.devices = before.devices;
          label.devices[cell.group] += cell.devices();
          label.weight = before.weight + cell.weight;
          double reach = label.weight;
          if (!fewest) {
            reach = latency_ ? reach_of(to, label, made_.data()) : 0;
            if (total(label.tau, reach) >= enough) {
              drop(label.tau, reach);
              continue;
            }
          }
          label.parent = labels[i];
          label.state = s;
          label.transition = t;
          label.cell = k;
          label.variant = cost == &c ? cell.keep : cell.again;
          label.in_flight = w;
          insert(to, label, made_.data(), reach);
        }
      }
    }
  }
  const Label* best = nullptr;
  double best_value = kInfinity;
  double least_rest = kInfinity;
  for (int32_t l : at_[last]) {
    const Label& label = pool_[l];
    const double value = fewest ? label.weight : factor_ * label.tau + label.done;
    least_rest = std::min(least_rest, label.done);
    if (best == nullptr || value < best_value ||
        (value == best_value && label.weight < best->weight)) {
      best = &label;
      best_value = value;
    }
  }
  solution.rest_bound = std::min(dropped_rest_, least_rest);
  solution.bound = std::min(dropped_, compare_tau_ ? best_value : factor_ * tau_low + least_rest);
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
         table_.shape(l->state, l->transition, cells[l->cell], l->variant, l->in_flight),
         l->in_flight});
  }
  std::reverse(solution.stages.begin(), solution.stages.end());
  return solution;
}

}  // namespace ductile::plan
