#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "ductile/plan/label_search_impl.h"

namespace ductile::plan {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kNever = std::numeric_limits<int>::max() / 2;
constexpr double kSlack = 1e-12;  // relative: sums of times differ in their last bits

}  // namespace

namespace {

StageShape stage_shape(const Shape& shape, const Fleet& fleet, int64_t micro_batch) {
  StageShape how;
  how.replicas = shape.replicas;
  how.tensor = shape.tensor;
  how.micro_batch = micro_batch;
  how.shard_optimizer = shape.shard;
  how.speed = fleet.speed;
  how.tensor_link = fleet.among(shape.tensor);
  how.sync_link = fleet.among(shape.devices());
  return how;
}

}  // namespace

StageCost stage_cost(const StageSums& sums, const Boundary& boundary, const Shape& shape,
                     const graph::Graph& graph, const Fleet& fleet, int64_t micro_batch,
                     int64_t batch, Objective objective) {
  const int n = shape.devices();
  const StageShape how = stage_shape(shape, fleet, micro_batch);
  const StageTimes times = stage_times(sums, how);
  const Link link = fleet.between_stages();
  const double b = static_cast<double>(micro_batch);
  StageCost c;
  c.forward = times.forward;
  c.transfer = transfer_seconds(boundary.in * b, n, n, link);
  c.tau =
      std::max(times.micro_batch(), c.transfer + transfer_seconds(boundary.out * b, n, n, link));
  c.sync = times.sync;
  if (objective == Objective::throughput) {
    c.tau = c.tau / b + c.sync / static_cast<double>(batch);
    c.forward = c.transfer = c.sync = 0;
  }
  const double fixed = stage_fixed_memory(sums, boundary, how, graph);
  const double each = sums.activation_bytes * b / shape.replicas;
  const int64_t all = batch / micro_batch;
  const double room = fleet.memory * (1 - 1e-12) - fixed;
  if (room < 0) {
    c.most = 0;
  } else {
    c.most = each * static_cast<double>(all) <= room ? all : static_cast<int64_t>(room / each);
  }
  return c;
}

LabelSearch::LabelSearch(const SearchSpace& space, const Fleet& fleet,
                         const PlannerOptions& options, const Effort& effort, int64_t micro_batch,
                         Clock::time_point deadline)
    : space_(space),
      fleet_(fleet),
      options_(options),
      effort_(effort),
      micro_batch_(micro_batch),
      num_micro_(options.batch / micro_batch),
      latency_(options.objective == Objective::time),
      deadline_(deadline) {
  factor_ = latency_ ? static_cast<double>(num_micro_ - 1) : static_cast<double>(options.batch);
  make_shapes(fleet.devices);
  make_work();
  make_heads();
  least_tau_ =
      work_[0] / fleet.devices / (latency_ ? 1.0 : static_cast<double>(micro_batch_)) * (1 - 1e-6);
}

void LabelSearch::prepare() {
  make_prefixes();
  // Halving on the relaxation; it is monotone, so what fails is ruled out.
  double low = least_tau_;
  double high = low > 0 ? low * 1.01 : 1e-30;
  while (!relaxed_fits(high, fleet_.devices)) {
    low = high;
    high *= low < work_[0] ? 1.1 : 4.0;
    if (!(high < 1e30)) {
      least_tau_ = kInfinity;
      return;
    }
  }
  while (high - low > 5e-4 * high && high > 1e-29) {
    const double middle = (low + high) / 2;
    (relaxed_fits(middle, fleet_.devices) ? high : low) = middle;
  }
  least_tau_ = low;
  if (!latency_ || !space_.is_chain()) return;
  // Every stage keeps its devices busy for all micro-batches and its gradient sum.
  low = least_total_ = factor_ * least_tau_ + std::max(least_rest_, least_tau_);
  high = low * 1.05;
  for (relax_chain(prefix_total_, high); need_[0] > fleet_.devices && high < 1e30;
       relax_chain(prefix_total_, high)) {
    low = high;
    high *= 1.5;
  }
  while (high - low > 2e-3 * high) {
    const double middle = (low + high) / 2;
    relax_chain(prefix_total_, middle);
    (need_[0] <= fleet_.devices ? high : low) = middle;
  }
  least_total_ = low;
}

void LabelSearch::make_shapes(int max_devices) {
  shapes_.clear();
  for (int v = 0; v < static_cast<int>(space_.variants().size()); ++v) {
    const Variant& variant = space_.variants()[v];
    if (variant.recompute && !options_.recompute) continue;
    if (variant.tensor > 1 && !options_.split) continue;
    const int most = max_devices / variant.tensor;
    for (int64_t r = 1; r <= micro_batch_ && r <= most; ++r) {
      if (micro_batch_ % r != 0) continue;
      shapes_.push_back({static_cast<int>(r), variant.tensor, v, false});
      if (r > 1 && options_.shard_optimizer && space_.graph().optimizer_factor > 0) {
        shapes_.push_back({static_cast<int>(r), variant.tensor, v, true});
      }
    }
  }
  std::stable_sort(shapes_.begin(), shapes_.end(),
                   [](const Shape& a, const Shape& b) { return a.devices() < b.devices(); });
}

void LabelSearch::make_work() {
  // Least device-seconds an operator can take for a micro-batch, over all shapes: with r replicas
  // of a split by t, t (r fixed + b per_sample), least at r = 1.
  const int n = static_cast<int>(space_.graph().ops.size());
  const double b = static_cast<double>(micro_batch_);
  std::vector<double> least(n, kInfinity);
  for (const Shape& shape : shapes_) {
    if (shape.replicas != 1) continue;
    for (OpId v = 0; v < n; ++v) {
      const graph::OpCost& c = space_.op_cost(v, shape.variant);
      const double t = shape.tensor *
                       (c.forward.at(b) + c.backward_input.at(b) + c.backward_weight.at(b)) /
                       fleet_.speed;
      least[v] = std::min(least[v], t);
    }
  }
  const auto states = space_.states();
  work_.assign(states.size(), 0);
  for (size_t s = 0; s < states.size(); ++s) {
    if (space_.is_chain()) continue;
    for (OpId v : space_.stage_ops(static_cast<int>(s), static_cast<int>(states.size()) - 1)) {
      work_[s] += least[v];
    }
  }
  if (space_.is_chain()) {
    for (int s = static_cast<int>(states.size()) - 2; s >= 0; --s) {
      work_[s] = work_[s + 1];
      for (int i = states[s + 1].size; i < states[s].size; ++i) {
        work_[s] += least[space_.chain()[i]];
      }
    }
  }
  if (space_.is_chain()) return;  // by length is by work, and there are few costs to look up
  const auto transitions = space_.transitions();
  sorted_.resize(transitions.size());
  std::iota(sorted_.begin(), sorted_.end(), 0);
  sorted_work_.resize(transitions.size());
  for (size_t s = 0; s < states.size(); ++s) {
    const int first = states[s].first_transition;
    const int end = first + states[s].num_transitions;
    for (int t = first; t < end; ++t) {
      sorted_work_[t] = work_[s] - work_[transitions[t].to];
    }
    std::sort(sorted_.begin() + first, sorted_.begin() + end,
              [&](int x, int y) { return sorted_work_[x] < sorted_work_[y]; });
    std::sort(sorted_work_.begin() + first, sorted_work_.begin() + end);
  }
  if (static_cast<double>(transitions.size()) * static_cast<double>(shapes_.size()) <= 1.5e6) {
    StageCost unknown;
    unknown.most = -1;
    cache_.assign(transitions.size() * shapes_.size(), unknown);
  }
}

void LabelSearch::make_heads() {
  // R of the longest path that ends at each operator, each at its fastest. An operator shares its
  // stage, so only times that depend on the samples at hand are sure: at the greatest degree.
  head_.assign(space_.groups().size(), 0);
  least_rest_ = 0;
  if (!latency_) return;
  const int n = static_cast<int>(space_.graph().ops.size());
  std::vector<double> path(n, 0);
  for (OpId v : space_.topology().order()) {
    double fastest = kInfinity;
    for (const Shape& shape : shapes_) {
      const graph::OpCost& c = space_.op_cost(v, shape.variant);
      const double each = static_cast<double>(micro_batch_) / shape.replicas;
      fastest = std::min(
          fastest, (c.forward.at(each) + c.backward_input.at(each) + c.backward_weight.at(each)) /
                       fleet_.speed);
    }
    double before = 0;
    for (OpId u : space_.topology().predecessors(v)) before = std::max(before, path[u]);
    path[v] = before + fastest;
    least_rest_ = std::max(least_rest_, path[v]);
  }
  for (size_t g = 0; g < head_.size(); ++g) {
    const SearchSpace::Group& group = space_.groups()[g];
    for (int i = 0; i < group.size; ++i) {
      head_[g] = std::max(head_[g], path[space_.member(group.first + i)]);
    }
  }
}

StageCost LabelSearch::cost(int from, int transition, int shape) {
  const auto make = [&] {
    const SearchSpace::Transition& t = space_.transitions()[transition];
    if (!space_.can_split(from, t.to, shapes_[shape].variant)) return StageCost{};
    return stage_cost(space_.sums(from, transition, shapes_[shape].variant), {t.in, t.out},
                      shapes_[shape], space_.graph(), fleet_, micro_batch_, options_.batch,
                      options_.objective);
  };
  if (cache_.empty()) return make();
  StageCost& c = cache_[static_cast<size_t>(transition) * shapes_.size() + shape];
  if (c.most < 0) c = make();
  return c;
}

// Of a chain: bottleneck and memory of the rest as one stage, in every shape. Both are sums over
// operators, so a stage has at least the difference of two rests (boundaries, workspace and the
// latency of sums come on top, ties are left out).
void LabelSearch::make_prefixes() {
  if (!space_.is_chain()) return;
  const size_t num = space_.states().size();
  prefix_tau_.resize(shapes_.size() * num);
  prefix_memory_.resize(shapes_.size() * num);
  prefix_total_.resize(shapes_.size() * num);
  for (size_t k = 0; k < shapes_.size(); ++k) {
    const Shape& shape = shapes_[k];
    StageShape how = stage_shape(shape, fleet_, micro_batch_);
    how.tensor_link.latency = how.sync_link.latency = 0;
    for (size_t s = 0; s < num; ++s) {
      StageSums sums = space_.rest_sums(static_cast<int>(s), shape.variant);
      sums.workspace_bytes = {};
      if (space_.has_ties()) sums.parameter_bytes = 0;
      const StageTimes times = stage_times(sums, how);
      prefix_tau_[k * num + s] = latency_
                                     ? times.micro_batch()
                                     : times.micro_batch() / static_cast<double>(micro_batch_) +
                                           times.sync / static_cast<double>(options_.batch);
      prefix_total_[k * num + s] =
          times.micro_batch() * static_cast<double>(num_micro_) + times.sync;
      prefix_memory_[k * num + s] = stage_memory(sums, {0, 0}, how, space_.graph(), micro_batch_);
    }
  }
}

// A longer stage never leaves more to do, so the longest that fits will do; where it ends falls
// with where it starts.
void LabelSearch::relax_chain(const std::vector<double>& prefix, double most) {
  const int num = static_cast<int>(space_.states().size());
  std::vector<int> end(shapes_.size(), num - 1);
  need_.assign(num, kNever);
  need_[num - 1] = 0;
  for (int s = num - 2; s >= 0; --s) {
    for (size_t k = 0; k < shapes_.size(); ++k) {
      const double* t = prefix.data() + k * num;
      const double* m = prefix_memory_.data() + k * num;
      int& e = end[k];
      while (e > s &&
             (t[s] - t[e] > most * (1 + kSlack) || m[s] - m[e] > fleet_.memory * (1 + kSlack))) {
        --e;
      }
      if (e > s) need_[s] = std::min(need_[s], shapes_[k].devices() + need_[e]);
    }
  }
}

// Fewest devices for each rest, with one micro-batch in flight everywhere.
void LabelSearch::relax(double tau) {
  const auto states = space_.states();
  const int last = static_cast<int>(states.size()) - 1;
  need_.assign(states.size(), kNever);
  need_[last] = 0;
  if (space_.is_chain()) {
    relax_chain(prefix_tau_, tau);
    return;
  }
  for (int s = last - 1; s >= 0; --s) {
    const int first = states[s].first_transition;
    for (int k = 0; k < static_cast<int>(shapes_.size()); ++k) {
      const int n = shapes_[k].devices();
      if (n >= need_[s]) break;
      const double most =
          n * tau * (1 + kSlack) * (latency_ ? 1.0 : static_cast<double>(micro_batch_));
      for (int i = states[s].num_transitions - 1; i >= 0; --i) {
        if (sorted_work_[first + i] > most) continue;
        const int t = sorted_[first + i];
        const int total = n + need_[space_.transitions()[t].to];
        if (total >= need_[s]) continue;
        const StageCost c = cost(s, t, k);
        if (c.tau <= tau * (1 + kSlack) && c.most >= 1) need_[s] = total;
      }
    }
  }
}

bool LabelSearch::relaxed_fits(double tau, int devices) {
  if (out_of_time()) return true;
  relax(tau);
  return need_[0] <= devices;
}

bool LabelSearch::out_of_time() {
  if (!timed_out_ && Clock::now() > deadline_) timed_out_ = true;
  return timed_out_;
}

// True if the label was kept. `reach`: no solution that comes of it has a smaller rest.
bool LabelSearch::insert(int state, const Label& label, const Value* values, double reach) {
  const int num = space_.states()[state].num_groups;
  std::vector<int32_t>& list = at_[state];
  for (size_t i = 0; i < list.size();) {
    const Label& other = pool_[list[i]];
    const Value* theirs = values_.data() + other.values;
    bool no_better = other.devices <= label.devices && other.done <= label.done;
    bool no_worse = label.devices <= other.devices && label.done <= other.done;
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
  if (static_cast<int>(list.size()) >= effort_.labels) {
    // Out goes the one that reaches least far, but never the one with the fewest devices.
    size_t fewest = 0;
    for (size_t i = 1; i < list.size(); ++i) {
      if (pool_[list[i]].devices < pool_[list[fewest]].devices) fewest = i;
    }
    size_t worst = list.size();
    double far = label.devices < pool_[list[fewest]].devices ? -1 : reach;
    for (size_t i = 0; i < list.size(); ++i) {
      if (i != fewest && reach_[list[i]] > far) {
        worst = i;
        far = reach_[list[i]];
      }
    }
    if (worst == list.size()) {
      dropped_ = std::min(dropped_, reach);
      return false;
    }
    dropped_ = std::min(dropped_, reach_[list[worst]]);
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

Solution LabelSearch::solve(double tau, double tau_low, double enough) {
  return run(tau, tau_low, enough, fleet_.devices, false);
}

Solution LabelSearch::fewest_devices(int max_devices) {
  make_shapes(max_devices);
  make_prefixes();
  cache_.clear();
  return run(1e30, 0, kInfinity, max_devices, true);
}

Solution LabelSearch::run(double tau, double tau_low, double enough, int devices, bool fewest) {
  const auto states = space_.states();
  const int last = static_cast<int>(states.size()) - 1;
  Solution solution;
  solution.rest_bound = kInfinity;
  if (out_of_time()) {
    solution.rest_bound = least_rest_;
    return solution;
  }
  relax(tau);
  if (need_[0] > devices) return solution;
  at_.assign(states.size(), {});
  pool_.clear();
  values_.clear();
  reach_.clear();
  dropped_ = kInfinity;
  const double per_device =
      tau * (1 + kSlack) * (latency_ ? 1.0 : static_cast<double>(micro_batch_));
  const double limit = enough - factor_ * tau_low;  // on rest
  pool_.push_back(Label{});
  reach_.push_back(0);
  at_[0].push_back(0);
  const bool track = latency_;
  std::vector<Value> made(64);
  for (int s = 0; s < last; ++s) {
    const std::vector<int32_t>& labels = at_[s];
    if (labels.empty()) continue;
    int least = kNever;
    for (int32_t l : labels) least = std::min(least, pool_[l].devices);
    const int first = states[s].first_transition;
    // Number of stages from here with less work than w (or as much).
    const auto count_below = [&](double w, bool equal) {
      if (space_.is_chain()) {
        const auto begin = work_.begin() + s + 1;
        const double left = work_[s] - w;  // what such a stage leaves at least
        const auto it = std::partition_point(
            begin, work_.end(), [&](double rest) { return equal ? rest >= left : rest > left; });
        return static_cast<int>(it - begin);
      }
      const auto begin = sorted_work_.begin() + first;
      const auto end = begin + states[s].num_transitions;
      return static_cast<int>(
          (equal ? std::upper_bound(begin, end, w) : std::lower_bound(begin, end, w)) - begin);
    };
    for (int k = 0; k < static_cast<int>(shapes_.size()); ++k) {
      const int n = shapes_[k].devices();
      if (least + n > devices) break;
      if (out_of_time()) {
        solution.rest_bound = least_rest_;
        return solution;
      }
      // A stage does no more work than its devices can in tau, and leaves no more than the others.
      const double leaves = static_cast<double>(devices - least - n) * per_device;
      const int lowest = fewest ? 0 : count_below(work_[s] - leaves - kSlack * work_[0], false);
      const int stop = fewest ? states[s].num_transitions : count_below(n * per_device, true);
      int tried = 0;
      // The longest first: with few devices they are the better ones.
      for (int at = stop; at-- > lowest;) {
        const int t = space_.is_chain() ? first + at : sorted_[first + at];
        const SearchSpace::Transition& transition = space_.transitions()[t];
        const int to = transition.to;
        if (least + n + need_[to] > devices) {
          if (space_.is_chain()) break;
          continue;
        }
        const StageCost c = cost(s, t, k);
        if (c.most < 1 || c.tau > tau * (1 + kSlack)) continue;
        if (++tried > effort_.lengths) {
          dropped_ = std::min(dropped_, least_rest_);
          break;
        }
        const int num_groups = states[to].num_groups;
        const int group0 = states[to].first_group;
        for (size_t i = 0; i < labels.size(); ++i) {
          const Label& before = pool_[labels[i]];
          if (before.devices + n + need_[to] > devices) continue;
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
          if (w > c.most) continue;
          Label label;
          if (track) {
            r += c.tau;
            rest = std::max(r + c.sync, rest + c.forward);
          }
          label.done = std::max(before.done, rest);
          label.tau = std::max(before.tau, c.tau);
          double reach = label.done;
          for (int g = 0; g < num_groups; ++g) {
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
              if (track) {
                v.r = std::max(v.r, r + 2 * c.transfer);
                v.s = std::max(v.s, rest + c.transfer);
              }
            }
            reach = std::max(reach, v.r + head_[group0 + g]);
            made[g] = v;
          }
          if (track && !fewest && reach >= limit) {
            dropped_ = std::min(dropped_, reach);
            continue;
          }
          label.devices = before.devices + n;
          label.parent = labels[i];
          label.state = s;
          label.transition = t;
          label.shape = k;
          label.in_flight = w;
          insert(to, label, made.data(), fewest ? label.devices : reach);
        }
      }
    }
  }
  const Label* best = nullptr;
  for (int32_t l : at_[last]) {
    const Label& label = pool_[l];
    if (best == nullptr || (fewest ? label.devices < best->devices : label.done < best->done) ||
        (!fewest && label.done == best->done &&
         (label.tau < best->tau || (label.tau == best->tau && label.devices < best->devices)))) {
      best = &label;
    }
  }
  solution.rest_bound = latency_ && !fewest ? dropped_ : (dropped_ < kInfinity ? 0 : kInfinity);
  if (best == nullptr) return solution;
  solution.found = true;
  solution.rest = track ? best->done : 0;
  solution.tau = best->tau;
  solution.devices = best->devices;
  solution.rest_bound = std::min(solution.rest_bound, solution.rest);
  for (const Label* l = best; l->parent >= 0; l = &pool_[l->parent]) {
    solution.stages.push_back(
        {l->state, space_.transitions()[l->transition].to, shapes_[l->shape], l->in_flight});
  }
  std::reverse(solution.stages.begin(), solution.stages.end());
  return solution;
}

}  // namespace ductile::plan
