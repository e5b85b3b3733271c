#include "ductile/sched/allocator.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ductile/base/error.h"

namespace ductile::sched {

Allocator::Allocator(std::vector<int64_t> capacity, AllocatorOptions options) : options_(options) {
  set_capacity(std::move(capacity));
}

void Allocator::set_capacity(std::vector<int64_t> capacity) {
  if (capacity.empty() || capacity.size() > kMaxTypes)
    fail(ErrorCode::invalid_argument, "allocator: {} accelerator types, 1 to {} are possible",
         capacity.size(), kMaxTypes);
  for (int64_t c : capacity)
    if (c < 0) fail(ErrorCode::invalid_argument, "allocator: a capacity of {} accelerators", c);
  if (capacity.size() != capacity_.size()) {
    DUCTILE_CHECK(jobs_.empty(), "the number of types cannot change once there are jobs");
    used_.assign(capacity.size(), 0);
    prices_.assign(capacity.size(), 0);
    prices_known_ = false;
  }
  if (capacity_ == capacity) return;
  // Below this neither the old nor the new capacity is in the way of a choice.
  std::vector<int64_t> least = capacity;
  for (size_t t = 0; t < capacity_.size(); ++t) least[t] = std::min(least[t], capacity_[t]);
  capacity_ = std::move(capacity);
  for (int i = 0; i < num_jobs(); ++i) {
    for (const Option& c : choices(i))
      if (c.gpus > least[static_cast<size_t>(c.type)]) {
        build_hulls(i);
        break;
      }
  }
}

void Allocator::set_job(int job, std::span<const Option> choices) {
  if (choices.size() > UINT16_MAX)
    fail(ErrorCode::invalid_argument, "allocator: {} choices for one job", choices.size());
  for (const Option& c : choices)
    if (c.type < 0 || c.type >= num_types())
      fail(ErrorCode::invalid_argument, "allocator: accelerator type {}, there are {}", c.type,
           num_types());
  if (job >= num_jobs()) jobs_.resize(static_cast<size_t>(job) + 1);
  Job& j = jobs_[static_cast<size_t>(job)];
  choose(j, -1);  // the choices it was made from are going
  if (choices.size() > j.room) {
    waste_ += j.room;
    j.room = static_cast<uint16_t>(choices.size());
    j.choice_begin = static_cast<uint32_t>(choices_.size());
    choices_.resize(choices_.size() + choices.size());
    hulls_.resize(choices_.size());
  }
  std::copy(choices.begin(), choices.end(), choices_.begin() + j.choice_begin);
  j.num_choices = static_cast<uint16_t>(choices.size());
  build_hulls(job);
  if (waste_ > 1024 && waste_ * 2 > choices_.size()) compact();
}

// Corners beyond what a type has at all would only loosen the bound.
void Allocator::build_hulls(int job) {
  Job& j = jobs_[static_cast<size_t>(job)];
  scratch_.clear();
  for (int t = 0; t < num_types(); ++t) {
    j.hull[static_cast<size_t>(t)] = static_cast<uint16_t>(scratch_.size());
    append_hull(choices(job), t, capacity_[static_cast<size_t>(t)], scratch_);
  }
  for (size_t t = static_cast<size_t>(num_types()); t < j.hull.size(); ++t)
    j.hull[t] = static_cast<uint16_t>(scratch_.size());
  std::copy(scratch_.begin(), scratch_.end(), hulls_.begin() + j.choice_begin);
  j.cursor.fill(0);
  if (!j.dirty) {
    j.dirty = true;
    dirty_.push_back(job);
  }
}

void Allocator::compact() {
  std::vector<Option> choices;
  std::vector<HullPoint> hulls;
  choices.reserve(choices_.size() - waste_);
  hulls.reserve(choices_.size() - waste_);
  for (Job& j : jobs_) {
    const auto begin = static_cast<uint32_t>(choices.size());
    choices.insert(choices.end(), choices_.begin() + j.choice_begin,
                   choices_.begin() + j.choice_begin + j.room);
    hulls.insert(hulls.end(), hulls_.begin() + j.choice_begin,
                 hulls_.begin() + j.choice_begin + j.room);
    j.choice_begin = begin;
  }
  choices_ = std::move(choices);
  hulls_ = std::move(hulls);
  waste_ = 0;
}

std::span<const Option> Allocator::choices(int job) const {
  const Job& j = jobs_[static_cast<size_t>(job)];
  return {choices_.data() + j.choice_begin, j.num_choices};
}

bool Allocator::allowed(const Job& job, int choice) const {
  const Option& c = choices_[job.choice_begin + static_cast<size_t>(choice)];
  return c.value > 0 && c.gpus > 0 && c.gpus <= capacity_[static_cast<size_t>(c.type)];
}

double Allocator::value_of(const Job& job, int choice) const {
  return choice < 0 ? 0 : choices_[job.choice_begin + static_cast<size_t>(choice)].value;
}

double Allocator::reduced_value(const Job& job, int choice, const double* prices) const {
  if (choice < 0) return 0;
  const Option& c = choices_[job.choice_begin + static_cast<size_t>(choice)];
  return c.value - prices[c.type] * c.gpus;
}

void Allocator::choose(Job& job, int choice) {
  const Option* all = choices_.data() + job.choice_begin;
  if (job.chosen >= 0) used_[static_cast<size_t>(all[job.chosen].type)] -= all[job.chosen].gpus;
  job.chosen = choice;
  if (choice >= 0) used_[static_cast<size_t>(all[choice].type)] += all[choice].gpus;
}

// The corner of all hulls with the best value less price: the job's answer to these prices. The
// last answer is the first guess, since prices move little between two calls.
int Allocator::best_response(Job& job, const double* prices, double& surplus) const {
  const HullPoint* hull = hulls_.data() + job.choice_begin;
  int best = -1;
  surplus = 0;
  for (int t = 0; t < num_types(); ++t) {
    const auto i = static_cast<size_t>(t);
    const HullPoint* corner = hull + job.hull[i];
    const int n = job.hull[i + 1] - job.hull[i];
    int k = job.cursor[i];
    while (k < n && corner[k].slope > prices[t]) ++k;
    while (k > 0 && corner[k - 1].slope <= prices[t]) --k;
    job.cursor[i] = static_cast<uint16_t>(k);
    if (k == 0) continue;
    const double s = corner[k - 1].value - prices[t] * corner[k - 1].gpus;
    if (s > surplus) {
      surplus = s;
      best = job.hull[i] + k - 1;
    }
  }
  return best;
}

// The dual function, and how much of each type the jobs ask for at these prices.
double Allocator::evaluate(const double* prices, int64_t* used) {
  ++result_.evaluations;
  double total = 0;
  for (int t = 0; t < num_types(); ++t) {
    total += prices[t] * static_cast<double>(capacity_[static_cast<size_t>(t)]);
    used[t] = 0;
  }
  for (Job& j : jobs_) {
    if (j.num_choices == 0) continue;
    double surplus;
    const int corner = best_response(j, prices, surplus);
    if (corner < 0) continue;
    total += surplus;
    const HullPoint& p = hulls_[j.choice_begin + static_cast<size_t>(corner)];
    used[choices_[j.choice_begin + static_cast<size_t>(p.choice)].type] += p.gpus;
  }
  return total;
}

// The lowest price at which a type alone, all others being out of reach, is not asked for beyond
// its capacity. An optimal price cannot be higher: dearer rivals only add to what is asked for.
double Allocator::highest_price(int type) {
  const auto t = static_cast<size_t>(type);
  const auto asked = [&](double price) {
    int64_t sum = 0;
    for (Job& j : jobs_) {
      const HullPoint* corner = hulls_.data() + j.choice_begin + j.hull[t];
      const int n = j.hull[t + 1] - j.hull[t];
      int k = std::min<int>(j.cursor[t], n);
      while (k < n && corner[k].slope > price) ++k;
      while (k > 0 && corner[k - 1].slope <= price) --k;
      j.cursor[t] = static_cast<uint16_t>(k);
      if (k > 0) sum += corner[k - 1].gpus;
    }
    return sum;
  };
  double low = 0;
  double high = 0;
  double least = HUGE_VAL;
  for (const Job& j : jobs_)
    for (int k = j.hull[t]; k < j.hull[t + 1]; ++k) {
      const double slope = hulls_[j.choice_begin + static_cast<size_t>(k)].slope;
      high = std::max(high, slope);
      least = std::min(least, slope);
    }
  const int64_t capacity = capacity_[t];
  if (high == 0 || asked(0) <= capacity) return 0;
  low = least / 2;
  // Geometric: values may spread over many powers of ten.
  while (high > low * (1 + 1e-9)) {
    const double middle = std::sqrt(low) * std::sqrt(high);
    if (middle <= low || middle >= high) break;
    ++result_.evaluations;
    if (asked(middle) > capacity)
      low = middle;
    else
      high = middle;
  }
  return high;
}

// Minimises the dual from the ellipsoid (centre, radius): Shor, Yudin and Nemirovski's method with
// deep cuts (Bland, Goldfarb and Todd, Operations Research 1981, section 4). Leaves the best
// prices met in prices_ and the bound in result_.
void Allocator::find_prices(const double* centre, const double* radius, double tolerance) {
  constexpr int kMax = kMaxTypes;
  const int n = num_types();
  std::array<double, kMax> x{};
  std::array<std::array<double, kMax>, kMax> p{};
  for (int i = 0; i < n; ++i) {
    x[static_cast<size_t>(i)] = centre[i];
    p[static_cast<size_t>(i)][static_cast<size_t>(i)] = radius[i] * radius[i] * n;
  }
  std::array<int64_t, kMax> used{};
  double lower = 0;
  for (int pass = 0; pass < options_.max_evaluations; ++pass) {
    std::array<double, kMax> g{};
    double depth = 0;  // how far the cut lies beyond the centre, in units of g
    int negative = -1;
    for (int i = 0; i < n; ++i)
      if (x[static_cast<size_t>(i)] < 0 &&
          (negative < 0 || x[static_cast<size_t>(i)] < x[static_cast<size_t>(negative)]))
        negative = i;
    double f = 0;
    if (negative >= 0) {
      g[static_cast<size_t>(negative)] = -1;
      depth = -x[static_cast<size_t>(negative)];
    } else {
      f = evaluate(x.data(), used.data());
      if (f < result_.bound) {
        result_.bound = f;
        std::copy_n(x.begin(), n, prices_.begin());
      }
      for (int i = 0; i < n; ++i)
        g[static_cast<size_t>(i)] =
            static_cast<double>(capacity_[static_cast<size_t>(i)] - used[static_cast<size_t>(i)]);
      depth = f - result_.bound;
    }
    std::array<double, kMax> pg{};
    double norm = 0;
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      for (size_t k = 0; k < static_cast<size_t>(n); ++k) pg[i] += p[i][k] * g[k];
      norm += pg[i] * g[i];
    }
    if (!(norm > 0)) return;  // the market clears, or the ellipsoid has shrunk to a point
    norm = std::sqrt(norm);
    if (negative < 0) {
      lower = std::max(lower, f - norm);
      if (result_.bound - lower <= tolerance * result_.bound) return;
    }
    const double alpha = depth / norm;
    if (alpha >= 1) return;  // nothing of the ellipsoid is left beyond the cut
    if (n == 1) {
      // The interval keeps what lies beyond the cut.
      const double half = std::sqrt(p[0][0]);
      x[0] -= (g[0] > 0 ? 1 : -1) * half * (1 + alpha) / 2;
      p[0][0] *= (1 - alpha) * (1 - alpha) / 4;
      continue;
    }
    const double m = n;
    const double step = (1 + m * alpha) / (m + 1) / norm;
    const double shrink = 2 * (1 + m * alpha) / ((m + 1) * (1 + alpha)) / (norm * norm);
    const double grow = m * m / (m * m - 1) * (1 - alpha * alpha);
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) x[i] -= step * pg[i];
    for (size_t i = 0; i < static_cast<size_t>(n); ++i)
      for (size_t k = 0; k < static_cast<size_t>(n); ++k)
        p[i][k] = grow * (p[i][k] - shrink * pg[i] * pg[k]);
  }
}

// Every job's surplus and, unless kept, choice at prices_.
void Allocator::take_prices(bool keep_choices) {
  double bound = 0;
  for (int t = 0; t < num_types(); ++t)
    bound +=
        prices_[static_cast<size_t>(t)] * static_cast<double>(capacity_[static_cast<size_t>(t)]);
  for (Job& j : jobs_) {
    const int corner = best_response(j, prices_.data(), j.surplus);
    bound += j.surplus;
    if (!keep_choices)
      choose(j, corner < 0 ? -1 : hulls_[j.choice_begin + static_cast<size_t>(corner)].choice);
  }
  result_.bound = bound;
}

void Allocator::refresh_dirty() {
  for (int i : dirty_) {
    Job& j = jobs_[static_cast<size_t>(i)];
    const int corner = best_response(j, prices_.data(), j.surplus);
    choose(j, corner < 0 ? -1 : hulls_[j.choice_begin + static_cast<size_t>(corner)].choice);
    j.dirty = false;
  }
  dirty_.clear();
  result_.bound = 0;
  for (int t = 0; t < num_types(); ++t)
    result_.bound +=
        prices_[static_cast<size_t>(t)] * static_cast<double>(capacity_[static_cast<size_t>(t)]);
  for (const Job& j : jobs_) result_.bound += j.surplus;
}

void Allocator::summarise() {
  result_.objective = 0;
  for (const Job& j : jobs_) result_.objective += value_of(j, j.chosen);
  // Rounding alone may put the sum above a bound that is met exactly.
  result_.bound = std::max(result_.bound, result_.objective);
}

const AllocatorResult& Allocator::solve() {
  if (!prices_known_) return solve_afresh();
  result_ = {};
  refresh_dirty();
  repair();
  if (result_.gap() <= options_.target_gap) return result_;

  // Prices near the last ones.
  std::array<double, kMaxTypes> centre{};
  std::array<double, kMaxTypes> radius{};
  int64_t devices = 0;
  for (int64_t c : capacity_) devices += c;
  const double mean = result_.bound / static_cast<double>(std::max<int64_t>(devices, 1));
  for (int t = 0; t < num_types(); ++t) {
    const auto i = static_cast<size_t>(t);
    centre[i] = prices_[i];
    radius[i] = 0.2 * prices_[i] + 0.02 * mean;
  }
  find_prices(centre.data(), radius.data(), options_.target_gap / 4);
  bool inside = true;
  for (size_t i = 0; i < prices_.size(); ++i)
    inside = inside && std::abs(prices_[i] - centre[i]) < 0.8 * radius[i];
  const auto afresh = [&]() -> const AllocatorResult& {
    const int evaluations = result_.evaluations;
    solve_afresh();
    result_.evaluations += evaluations;
    return result_;
  };
  if (!inside) return afresh();
  // The old choices stand where it was the bound alone that was loose.
  take_prices(true);
  repair();
  if (result_.gap() <= options_.target_gap) return result_;
  take_prices(false);
  repair();
  if (result_.gap() > options_.target_gap) improve_exactly();
  // Much worse than what a search from nothing last led to: the optimum has moved far away.
  if (!result_.exact && result_.gap() > 2 * fresh_gap_ + 0.01) return afresh();
  return result_;
}

const AllocatorResult& Allocator::solve_afresh() {
  result_ = {};
  result_.bound = HUGE_VAL;
  std::array<double, kMaxTypes> centre{};
  std::array<double, kMaxTypes> radius{};
  for (int t = 0; t < num_types(); ++t) {
    const auto i = static_cast<size_t>(t);
    const double high = highest_price(t);
    centre[i] = num_types() == 1 ? high : high / 2;
    radius[i] = high / 2 * (1 + 1e-9);
  }
  if (num_types() == 1) {
    prices_[0] = centre[0];
  } else {
    find_prices(centre.data(), radius.data(), options_.target_gap / 10);
    if (result_.bound == HUGE_VAL) std::fill(prices_.begin(), prices_.end(), 0.0);
  }
  for (int i : dirty_) jobs_[static_cast<size_t>(i)].dirty = false;
  dirty_.clear();
  prices_known_ = true;
  take_prices(false);
  repair();
  if (options_.exact_labels > 0) improve_exactly();
  fresh_gap_ = result_.gap();
  return result_;
}

}  // namespace ductile::sched
