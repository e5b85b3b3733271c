#include "ductile/plan/interval_search_impl.h"

#include <algorithm>
#include <cmath>

namespace ductile::plan {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

Candidate to_candidate(const SearchSpace& space, const Solution& solution, int64_t micro_batch,
                       int64_t batch, bool several_fleets) {
  const graph::Graph& graph = space.graph();
  Candidate out;
  Plan& plan = out.plan;
  plan.graph = graph.name;
  plan.planner = "ductile";
  plan.batch = batch;
  for (const Choice& choice : solution.stages) {
    const Variant& variant = space.variants()[choice.shape.variant];
    Stage stage;
    stage.ops = space.stage_ops(choice.from, choice.to);
    stage.replicas = choice.shape.replicas;
    stage.tensor = choice.shape.tensor;
    stage.micro_batch = micro_batch;
    stage.shard_optimizer = choice.shape.shard;
    stage.in_flight = choice.in_flight * micro_batch;
    for (OpId v : stage.ops) {
      if (!variant.recompute) break;
      const int t = graph::allows(graph.ops[v], variant.tensor, false) ? variant.tensor : 1;
      if (graph::allows(graph.ops[v], t, true)) stage.recompute.push_back(v);
    }
    plan.stages.push_back(std::move(stage));
    if (several_fleets) out.fleets.push_back(choice.shape.group);
  }
  std::reverse(plan.stages.begin(), plan.stages.end());  // first stages first
  std::reverse(out.fleets.begin(), out.fleets.end());
  // The search may have overstated a stage's readers; the figure of the plan itself counts.
  const std::vector<int64_t> in_flight = in_flight_samples(stage_graph(graph, plan), plan);
  for (size_t i = 0; i < in_flight.size(); ++i) plan.stages[i].in_flight = in_flight[i];
  return out;
}

IntervalSearch::IntervalSearch(std::span<const SearchSpace> spaces, std::span<const Fleet> fleets,
                               const PlannerOptions& options,
                               std::span<const int64_t> micro_batches, int64_t steps,
                               Clock::time_point deadline)
    : fleets_(fleets),
      options_(options),
      deadline_(deadline),
      keep_(1 - options.tolerance),
      latency_(options.objective == Objective::time),
      steps_(steps) {
  double capacity = 0;
  for (const Fleet& f : fleets) capacity += f.devices * f.speed;
  for (const SearchSpace& space : spaces) {
    flows_.push_back({PathFlow::round_trip(space), PathFlow::by_parameters(space)});
  }
  for (size_t i = 0; i < spaces.size(); ++i) {
    for (int64_t b : micro_batches) {
      Size size;
      size.space = &spaces[i];
      size.flows = flows_[i];
      size.micro_batch = b;
      // The share of the work, each operator where it costs least.
      const double samples = static_cast<double>(b);
      double work = 0;
      const int variants = static_cast<int>(spaces[i].variants().size());
      for (OpId v = 0; v < static_cast<OpId>(spaces[i].graph().ops.size()); ++v) {
        double least = kInfinity;
        for (int k = 0; k < variants; ++k) {
          const graph::OpCost& c = spaces[i].op_cost(v, k);
          least = std::min(least, spaces[i].variants()[k].tensor *
                                      (c.forward.at(samples) + c.backward_input.at(samples) +
                                       c.backward_weight.at(samples)));
        }
        work += least;
      }
      const double m = static_cast<double>(options.batch / b);
      Item item;
      item.size = static_cast<int>(sizes_.size());
      item.low = -1;  // not begun
      item.bound = work / capacity * m * (1 - 1e-6);
      sizes_.push_back(std::move(size));
      items_.push(item);
    }
  }
}

Effort IntervalSearch::effort(const SearchSpace& space) const {
  Effort e;
  e.labels = options_.max_labels;
  e.steps = steps_;
  if (space.states().size() > 300 && options_.tolerance > 0) e.labels = std::min(e.labels, 6);
  return e;
}

int64_t IntervalSearch::labels() const {
  int64_t sum = 0;
  for (const Size& s : sizes_) sum += s.search ? s.search->labels() : 0;
  return sum;
}

int64_t IntervalSearch::steps() const {
  int64_t sum = 0;
  for (const Size& s : sizes_) sum += s.search ? s.search->steps() : 0;
  return sum;
}

void IntervalSearch::push(Item item) {
  const double factor = sizes_[item.size].search->factor();
  item.bound = std::max(item.bound,
                        factor * item.low + std::max(item.rest, latency_ ? item.low : 0.0));
  items_.push(item);
}

double IntervalSearch::run(double& best, std::vector<Candidate>& found) {
  while (!items_.empty()) {
    Item item = items_.top();
    if (is_done(item.bound, best) || timed_out_ || steps() > steps_) {
      settle(item.bound);
      break;
    }
    items_.pop();
    if (Clock::now() > deadline_) timed_out_ = true;
    if (item.low < 0 && !begin(item, best)) continue;
    look_at(item, best, found);
  }
  return bound_;
}

// Makes the search of a size; false where it is done with.
bool IntervalSearch::begin(Item& item, double best) {
  Size& size = sizes_[item.size];
  size.search = std::make_unique<LabelSearch>(*size.space, fleets_, size.flows, options_,
                                              effort(*size.space), size.micro_batch, deadline_);
  LabelSearch& search = *size.search;
  const double factor = search.factor();
  const double enough = best * keep_;
  item.low = search.bound().least_tau();
  item.rest = search.least_rest();
  item.high = kInfinity;
  if (latency_ && enough < kInfinity && !search.bound().fits_in_all(enough)) {
    settle(enough);
    return false;
  }
  double high = kInfinity;
  if (factor > 0 && enough < kInfinity) {
    high = (enough - item.rest) / factor;
    if (high <= item.low || !search.bound().fits(high)) {
      settle(enough);
      return false;
    }
  } else if (factor > 0) {
    for (high = std::max(item.low * 1.1, 1e-30); !search.bound().fits(high); high *= 2) {
      if (high > 1e30) return false;  // nothing fits
      item.low = high;
    }
  }
  if (factor > 0) {
    double up = high;
    while (up > item.low * 1.02) {
      const double middle = up > 2 * item.low ? std::sqrt(up * std::max(item.low, up * 1e-6))
                                              : (item.low + up) / 2;
      (search.bound().fits(middle) ? up : item.low) = middle;
    }
  }
  return true;
}

void IntervalSearch::look_at(Item item, double& best, std::vector<Candidate>& found) {
  Size& size = sizes_[item.size];
  LabelSearch& search = *size.search;
  const double factor = search.factor();
  const double enough = best * keep_;
  item.bound = std::max(item.bound,
                        factor * item.low + std::max(item.rest, latency_ ? item.low : 0.0));
  if (is_done(item.bound, best)) {
    settle(item.bound);
    return;
  }
  if (factor > 0 && enough < kInfinity) {
    const double high = (enough - item.rest) / factor * (1 + 1e-12);
    if (high < item.high) {
      settle(enough);
      item.stale = item.stale || high < item.high * 0.98;
      item.high = high;
      item.attained = false;
    }
  }
  if (item.high < kInfinity && item.high - item.low <= 1e-10 * item.high) {
    settle(item.bound);
    return;
  }
  if (item.stale && item.high < kInfinity && latency_) {
    item.stale = false;
    const double rest = search.bound().solve(item.high);
    if (rest == kInfinity) return;
    if (rest > item.rest) {
      item.rest = rest;
      push(item);
      return;
    }
  }
  // So narrow that halving it once more would not help: it is looked at once, and that is that.
  const bool last = factor == 0 || (options_.tolerance > 0 && best < kInfinity &&
                                    factor * (item.high - item.low) <=
                                        0.2 * options_.tolerance * best);
  double at = item.low + (item.high - item.low) / 2;
  if (factor == 0) {
    at = 1e30;
  } else if (last || options_.tolerance == 0) {
    // Between a solution and the next there is nothing.
    if (item.attained) {
      at = item.high * (1 - 1e-10);
    } else if (last) {
      at = item.high;
    }
  }
  if (factor > 0 && item.high == kInfinity) {
    at = item.low * (1 + size.step);
    if (at > 1e15) at = 1e30;
    size.step *= 2;
  }
  const double path_bound = search.bound().solve(at);
  Solution s = search.solve(at, path_bound, item.low, enough);
  timed_out_ = timed_out_ || search.timed_out();
  Item left = item;
  left.stale = false;
  left.attained = false;
  left.high = at;
  left.rest = std::max(item.rest, s.rest_bound);
  if (s.found) {
    const double seconds = factor * s.tau + s.rest;
    if (seconds < best) {
      best = seconds;
      found.push_back(to_candidate(*size.space, s, size.micro_batch, options_.batch,
                                   fleets_.size() > 1));
      found.back().seconds = seconds;
    }
    settle(factor * s.tau + left.rest);
    if (last) {
      settle(std::max(item.bound, factor * item.low + left.rest));
      return;
    }
    left.high = std::min(at, s.tau);
    left.attained = true;
    if (s.tau > item.low) push(left);
  } else if (left.rest < kInfinity) {
    if (last) {
      settle(std::max(item.bound, factor * item.low + left.rest));
    } else {
      push(left);
    }
  }
  if (last) return;
  if (item.attained && at >= item.high * (1 - 1e-9)) {
    settle(factor * at + item.rest);
  } else if (at < 1e30) {
    item.low = at;
    item.bound = 0;
    push(item);
  }
}

}  // namespace ductile::plan
