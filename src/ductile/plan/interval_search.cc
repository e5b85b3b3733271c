#include <algorithm>
#include <cmath>
#include <map>

#include "ductile/plan/infinity_impl.h"
#include "ductile/plan/interval_search_impl.h"
#include "ductile/plan/wait_bound_impl.h"

namespace ductile::plan {

namespace {

constexpr double kNarrow = 0.02;       // of the best: an interval that is looked at as a whole
constexpr double kWorthJudging = 1.1;  // of the best: what the evaluator may find to be better
constexpr double kBoundStep = 0.005;
constexpr int64_t kWaitSteps = 2'000'000;  // for what stages wait, in the bound of all schedules
constexpr size_t kOtherSizes = 6;
constexpr int kFirstLabels = 12;  // kept per state; more where they did not suffice
constexpr int kMoreLabels = 4;    // times as many
constexpr int kFewLabels = 3;     // where there are many states

// In the middle of the two; by their ratio, where that is large. Their product may be too small for
// a number, where times are.
double middle_of(double low, double high) {
  if (high <= 2 * low) return (low + high) / 2;
  const double least = std::max(low, high * 1e-6);
  return high * least > 1e-290 ? std::sqrt(high * least) : std::sqrt(high) * std::sqrt(least);
}

}  // namespace

Candidate to_candidate(const SearchSpace& space, const Solution& solution, int64_t micro_batch,
                       int64_t batch, bool several_islands) {
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
    if (several_islands) out.islands.push_back(choice.shape.group);
  }
  std::reverse(plan.stages.begin(), plan.stages.end());  // first stages first
  std::reverse(out.islands.begin(), out.islands.end());
  // The search may have overstated a stage's readers; the figure of the plan itself counts.
  const std::vector<int64_t> in_flight = in_flight_samples(stage_graph(graph, plan), plan);
  for (size_t i = 0; i < in_flight.size(); ++i) plan.stages[i].in_flight = in_flight[i];
  return out;
}

IntervalSearch::IntervalSearch(std::span<const SearchSpace> spaces, std::span<const Island> islands,
                               const PlannerOptions& options,
                               std::span<const int64_t> micro_batches, int64_t steps,
                               Clock::time_point deadline)
    : islands_(islands),
      options_(options),
      deadline_(deadline),
      keep_(1 - options.tolerance),
      latency_(options.objective != Objective::throughput),
      steps_(steps) {
  double capacity = 0;
  for (const Island& f : islands) capacity += f.devices * f.speed;
  for (const SearchSpace& space : spaces) {
    flows_.push_back({PathFlow::round_trip(space), PathFlow::by_parameters(space)});
  }
  for (size_t i = 0; i < spaces.size(); ++i) {
    for (int64_t b : micro_batches) {
      const auto has_room = [&](const Island& island) {
        return island.devices >= options.replicas;
      };
      if (options.replicas > 0 &&
          (b % options.replicas != 0 || std::ranges::none_of(islands, has_room))) {
        continue;
      }
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
      item.labels = options.tolerance > 0 ? std::min(kFirstLabels, most_labels(spaces[i]))
                                          : options.max_labels;
      item.bound = size.share = work / capacity * m * (1 - 1e-6);
      sizes_.push_back(std::move(size));
      items_.push(item);
    }
  }
}

int IntervalSearch::most_labels(const SearchSpace& space) const {
  const bool few = options_.tolerance > 0 && space.states().size() > 300;
  return few ? std::min(options_.max_labels, kFewLabels) : options_.max_labels;
}

void IntervalSearch::add_others(double best, double worth, std::vector<Candidate>& found) {
  std::vector<Size*> near;
  for (Size& size : sizes_) {
    if (size.search) near.push_back(&size);
  }
  std::stable_sort(near.begin(), near.end(),
                   [](const Size* a, const Size* b) { return a->found < b->found; });
  if (near.size() > kOtherSizes) near.resize(kOtherSizes);
  for (Size* size : near) {
    LabelSearch& search = *size->search;
    double low = search.bound().least_tau();
    const double most = most_tau(search, search.least_rest(), (worth - 0.1) * best);
    double tau = low;
    for (const double share : {0.1, 0.2, 0.3, 0.4, 0.6, 1.0}) {
      if (timed_out_ || is_past(deadline_)) return;
      low = tau;
      tau = low + (most - low) * share;
      const double path_bound = search.bound().solve(tau);
      const Solution s = search.solve(tau, path_bound, low, worth * best, kFirstLabels);
      if (!s.found) continue;
      found.push_back(
          to_candidate(*size->space, s, size->micro_batch, options_.batch, islands_.size() > 1));
      found.back().seconds = search.factor() * s.tau + s.rest;
    }
  }
}

void IntervalSearch::guess_prices(const IntervalSearch& other) {
  for (Size& size : sizes_) {
    for (const Size& theirs : other.sizes_) {
      if (theirs.micro_batch != size.micro_batch || !theirs.search) continue;
      size.price = std::max(size.price, theirs.search->bound().best_price());
    }
  }
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
  item.bound =
      std::max(item.bound, factor * item.low + std::max(item.rest, latency_ ? item.low : 0.0));
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
    if (is_past(deadline_)) timed_out_ = true;
    if (item.low < 0 && !begin(item, best)) continue;
    look_at(item, best, found);
  }
  return bound_;
}

void IntervalSearch::make_search(Size& size) {
  if (size.search) return;
  size.search = std::make_unique<LabelSearch>(*size.space, islands_, size.flows, options_,
                                              Effort{options_.max_labels, steps_}, size.micro_batch,
                                              deadline_);
}

double IntervalSearch::schedule_bound(double seconds) {
  double bound = seconds;
  int64_t steps = kWaitSteps;
  std::map<const SearchSpace*, Gates> gates_of;
  const auto narrow = [this](double& low, double high, const auto& fits) {
    while (high - low > kBoundStep * high && !is_past(deadline_)) {
      const double middle = (low + high) / 2;
      if (middle <= low || middle >= high) break;
      (fits(middle) ? high : low) = middle;
    }
  };
  std::vector<Size*> order;
  for (Size& size : sizes_) order.push_back(&size);
  std::stable_sort(order.begin(), order.end(),
                   [](const Size* a, const Size* b) { return a->share < b->share; });
  for (Size* size : order) {
    if (size->share >= bound) break;
    if (is_past(deadline_)) return size->share;
    make_search(*size);
    PathBound& paths = size->search->bound();
    const double high = bound * (1 - kBoundStep);
    if (!paths.fits_in_all(high)) continue;
    const Gates& gates = gates_of.try_emplace(size->space, *size->space).first->second;
    WaitBound waits(*size->space, size->search->table(), size->flows[0], gates, paths);
    if (!waits.fits(high, steps)) continue;
    double low = size->share;
    narrow(low, high, [&](double most) { return paths.fits_in_all(most); });
    narrow(low, high, [&](double most) { return waits.fits(most, steps); });
    bound = low;
  }
  return bound < seconds ? bound : bound * (1 - kBoundStep);
}

// Makes the search of a size; false where it is done with.
bool IntervalSearch::begin(Item& item, double best) {
  Size& size = sizes_[item.size];
  make_search(size);
  LabelSearch& search = *size.search;
  if (size.price == 0) {
    // That of the nearest size known: it grows as the seconds of a micro-batch do.
    double nearest = kInfinity;
    for (const Size& other : sizes_) {
      const double price = other.search ? other.search->bound().best_price() : 0;
      if (price == 0) continue;
      const double ratio =
          static_cast<double>(size.micro_batch) / static_cast<double>(other.micro_batch);
      if (std::abs(std::log(ratio)) >= nearest) continue;
      nearest = std::abs(std::log(ratio));
      size.price = price * ratio;
    }
  }
  if (size.price > 0) search.bound().guess_price(size.price);
  const double enough = best * keep_;
  item.low = search.bound().least_tau();
  item.rest = search.least_rest();
  item.high = kInfinity;
  if (latency_ && enough < kInfinity && !search.bound().fits_in_all(enough)) {
    settle(enough);
    return false;
  }
  double high = kInfinity;
  if (enough < kInfinity) high = most_tau(search, item.rest, enough);
  if (enough < kInfinity) {
    if (high <= item.low || !search.bound().fits(high)) {
      settle(enough);
      return false;
    }
  } else {
    for (high = std::max(item.low * 1.1, 1e-30); !search.bound().fits(high); high *= 2) {
      if (high > 1e30) return false;  // nothing fits
      item.low = high;
    }
  }
  while (high > item.low * 1.02) {
    const double middle = middle_of(item.low, high);
    if (middle <= item.low || middle >= high) break;  // no number is
    (search.bound().fits(middle) ? high : item.low) = middle;
    if (is_past(deadline_)) {
      timed_out_ = true;
      break;
    }
  }
  return true;
}

// Beyond this bottleneck no solution takes less than `enough`.
double IntervalSearch::most_tau(const LabelSearch& search, double rest, double enough) const {
  const double factor = search.factor();
  if (!latency_) return enough / factor;
  const double m = static_cast<double>(search.micro_batches());  // the rest is a tau at least
  return std::min(enough / m, factor > 0 ? (enough - rest) / factor : kInfinity);
}

void IntervalSearch::look_at(Item item, double& best, std::vector<Candidate>& found) {
  Size& size = sizes_[item.size];
  LabelSearch& search = *size.search;
  const double factor = search.factor();
  const double enough = best * keep_;
  item.bound =
      std::max(item.bound, factor * item.low + std::max(item.rest, latency_ ? item.low : 0.0));
  if (is_done(item.bound, best)) {
    settle(item.bound);
    return;
  }
  if (enough < kInfinity) {
    const double high = most_tau(search, item.rest, enough) * (1 + 1e-12);
    if (high < item.high) {
      settle(enough);
      item.high = high;
    }
  }
  if (item.high <= item.low * (1 + 1e-10)) {
    settle(item.bound);
    return;
  }
  // A narrow interval is looked at as a whole; of a wide one the lower part, where the least
  // bottlenecks are.
  const double width = factor * (item.high - item.low);
  const bool narrow = factor == 0 || width <= kNarrow * best;
  const bool last =
      item.labels >= most_labels(*size.space) &&
      (factor == 0 || (options_.tolerance > 0 && width <= 0.2 * options_.tolerance * best));
  double at = item.high;
  if (!narrow || (item.solved && factor > 0)) {
    at = std::min(item.low + (item.high - item.low) / 2, item.low * size.step);
    if (best == kInfinity) size.step *= size.step;
    if (item.low <= 0) at = item.high < kInfinity ? item.high / 2 : 1e30;
  }
  const double path_bound = search.bound().solve(at);
  const bool skip = !narrow && best < kInfinity && most_labels(*size.space) < options_.max_labels;
  Solution s;
  s.rest_bound = path_bound;
  s.bound = factor * item.low + path_bound;
  if (!skip) s = search.solve(at, path_bound, item.low, enough, item.labels);
  timed_out_ = timed_out_ || search.timed_out();
  if (s.found) {
    const double seconds = factor * s.tau + s.rest;
    best = std::min(best, seconds);
    size.found = std::min(size.found, seconds);
    if (seconds <= kWorthJudging * best) {
      found.push_back(
          to_candidate(*size.space, s, size.micro_batch, options_.batch, islands_.size() > 1));
      found.back().seconds = seconds;
    }
  }
  Item left = item;
  left.high = at;
  left.solved = !skip;
  if (!skip)
    left.labels = static_cast<int>(
        std::min<int64_t>(int64_t{kMoreLabels} * item.labels, most_labels(*size.space)));
  left.rest = std::max(item.rest, s.rest_bound);
  left.bound = std::max(item.bound, s.bound);
  if (s.found && s.tau < at) {
    Item above = left;
    above.bound = std::max(item.bound, s.bound_above);
    above.low = s.tau;
    if (last || is_done(above.bound, best)) {
      settle(above.bound);
    } else {
      push(above);
    }
    left.high = s.tau;
  }
  if (last || is_done(left.bound, best)) {
    settle(left.bound);
  } else {
    push(left);
  }
  if (at < item.high) {
    item.low = at;
    item.solved = false;
    push(item);
  }
}

}  // namespace ductile::plan
