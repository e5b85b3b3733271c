#include "ductile/sim/profile.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/sim/csv.h"
#include "ductile/sim/delaunay.h"

namespace ductile::sim {
namespace {

constexpr int64_t kMostLocal = 100'000'000;
constexpr double kMostSeconds = 1e6;

// The counts as decimal digits of a number, in the rotation that makes it smallest: ranks form a
// ring, so rotations are alike. Counts above 9 and more than 16 nodes have keys of another kind.
uint64_t placement_key(std::span<const int32_t> counts) {
  const size_t n = counts.size();
  size_t best = 0;
  for (size_t start = 1; start < n; ++start) {
    for (size_t i = 0; i < n; ++i) {
      const int32_t a = counts[(start + i) % n], b = counts[(best + i) % n];
      if (a == b) continue;
      if (a < b) best = start;
      break;
    }
  }
  bool digits = n <= 16;
  for (const int32_t count : counts) digits &= count <= 9;
  uint64_t key = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto count = static_cast<uint64_t>(counts[(best + i) % n]);
    key = digits ? key * 10 + count : mix(key, count) | (1ull << 63);
  }
  return key;
}

}  // namespace

StepTime interpolate_linear(std::span<const double> x, std::span<const StepTime> y, double at) {
  DUCTILE_CHECK(!x.empty() && x.size() == y.size());
  if (x.size() == 1 || at <= x.front()) return y.front();
  if (at >= x.back()) return y.back();
  const size_t high = std::clamp<size_t>(
      static_cast<size_t>(std::lower_bound(x.begin(), x.end(), at) - x.begin()), 1, x.size() - 1);
  const size_t low = high - 1;
  const double width = x[high] - x[low];
  return {(y[high].step - y[low].step) / width * (at - x[low]) + y[low].step,
          (y[high].sync - y[low].sync) / width * (at - x[low]) + y[low].sync};
}

Profile Profile::formula(const sched::PerfParams& perf, int32_t min_local, int32_t max_local) {
  DUCTILE_CHECK(min_local >= 1 && max_local >= min_local);
  Profile profile;
  profile.perf_ = perf;
  profile.min_local_ = min_local;
  profile.max_local_ = max_local;
  profile.unit_rate_ = max_local / sched::step_seconds(perf, 1, 1, max_local, 0);
  return profile;
}

Profile Profile::read(const fs::path& placements, const fs::path& scalability) {
  Profile profile;
  std::map<std::tuple<int32_t, int32_t, int32_t>, std::pair<StepTime, int>> grouped;
  const auto time_of = [](const Csv& csv, size_t row) {
    return StepTime{csv.number(row, "step_time", 0, kMostSeconds),
                    csv.number(row, "sync_time", 0, kMostSeconds)};
  };
  const Csv csv = Csv::read(placements);
  if (csv.rows() == 0) fail(ErrorCode::invalid_argument, "{}: no measurement", placements.string());
  double slowest_unit = 0;
  int32_t unit_local = 0, least_replicas = 1 << 30;
  for (size_t row = 0; row < csv.rows(); ++row) {
    const std::string digits = csv.text(row, "placement");
    std::vector<int32_t> counts;
    for (const char c : digits) {
      if (c < '1' || c > '9')
        fail(ErrorCode::invalid_argument, "{}: '{}' is not a row of digits 1 to 9, one a node",
             csv.where(row, "placement"), digits);
      counts.push_back(c - '0');
    }
    if (counts.empty() || counts.size() > 16)
      fail(ErrorCode::invalid_argument, "{}: a placement has 1 to 16 nodes",
           csv.where(row, "placement"));
    const auto local = static_cast<int32_t>(csv.whole(row, "local_bsz", 1, kMostLocal));
    const StepTime time = time_of(csv, row);
    int32_t replicas = 0;
    for (const int32_t count : counts) replicas += count;
    Line& line = profile.placements_[placement_key(counts)];
    line.local.push_back(local);
    line.times.push_back(time);
    auto& [sum, number] = grouped[{static_cast<int32_t>(counts.size()), replicas, local}];
    sum.step += time.step;
    sum.sync += time.sync;
    ++number;
    int32_t& most = profile.max_local_of_replicas_[replicas];
    most = std::max(most, local);
    profile.min_local_ = row == 0 ? local : std::min(profile.min_local_, local);
    profile.max_local_ = std::max(profile.max_local_, local);
    profile.most_nodes_ = std::max(profile.most_nodes_, static_cast<int32_t>(counts.size()));
    if (replicas < least_replicas) {
      least_replicas = replicas;
      slowest_unit = unit_local = 0;
    }
    if (replicas == least_replicas) {
      slowest_unit = std::max(slowest_unit, time.step);
      unit_local = std::max(unit_local, local);
    }
  }
  profile.unit_rate_ = unit_local / slowest_unit;
  for (auto& [key, line] : profile.placements_) {
    std::vector<size_t> order(line.local.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return line.local[a] < line.local[b]; });
    Line sorted;
    for (const size_t i : order) {
      sorted.local.push_back(line.local[i]);
      sorted.times.push_back(line.times[i]);
    }
    line = std::move(sorted);
  }
  for (const auto& [key, value] : grouped) {
    const auto& [nodes, replicas, local] = key;
    const auto& [sum, number] = value;
    profile.points_.push_back(
        {static_cast<double>(nodes), static_cast<double>(replicas), static_cast<double>(local)});
    profile.times_.push_back({sum.step / number, sum.sync / number});
  }
  if (!fs::exists(scalability)) {
    profile.delaunay_ = std::make_shared<Delaunay>(profile.points_, profile.times_);
    return profile;
  }
  const Csv more = Csv::read(scalability);
  for (size_t row = 0; row < more.rows(); ++row) {
    const Point3 point = {static_cast<double>(more.whole(row, "num_nodes", 1, 1 << 20)),
                          static_cast<double>(more.whole(row, "num_replicas", 1, 1 << 20)),
                          static_cast<double>(more.whole(row, "local_bsz", 1, kMostLocal))};
    profile.points_.push_back(point);
    profile.scalability_.push_back(point);
    profile.times_.push_back(time_of(more, row));
    profile.most_nodes_ = std::max(profile.most_nodes_, static_cast<int32_t>(point.nodes));
  }
  profile.delaunay_ = std::make_shared<Delaunay>(profile.points_, profile.times_);
  return profile;
}

Profile Profile::scaled(double compute, double network) const {
  Profile copy = *this;
  copy.compute_ *= compute;
  copy.network_ *= network;
  copy.unit_rate_ /= compute;
  return copy;
}

StepTime Profile::at(std::span<const int32_t> counts, int32_t local) const {
  StepTime time = unscaled(counts, local);
  if (compute_ == 1 && network_ == 1) return time;
  const double sync = time.sync * network_;
  return {(time.step - time.sync) * compute_ + sync, sync};
}

StepTime Profile::unscaled(std::span<const int32_t> counts, int32_t local) const {
  DUCTILE_CHECK(!counts.empty() && local >= 1);
  int32_t replicas = 0;
  for (const int32_t count : counts) replicas += count;
  const auto nodes = static_cast<int32_t>(counts.size());
  if (perf_) {
    const double grad = sched::gradient_seconds(*perf_, local);
    const double step = sched::step_seconds(*perf_, nodes, replicas, local, 0);
    return {step, step - grad};
  }
  const uint64_t placement = placement_key(counts);
  const uint64_t key = mix(placement, static_cast<uint64_t>(local));
  const auto known = remembered_.find(key);
  if (known != remembered_.end()) return known->second;
  StepTime time;
  const auto line = placements_.find(placement);
  if (line != placements_.end()) {
    time = interpolate_linear(line->second.local, line->second.times, local);
  } else {
    const Point3 at = {static_cast<double>(std::min(nodes, most_nodes_)),
                       static_cast<double>(replicas), static_cast<double>(local)};
    const auto inside = delaunay_->at(at);
    if (inside) {
      time = *inside;
    } else {
      // Outside the hull: the nearest measurement, the axes weighed by their logarithms.
      double least = INFINITY;
      for (size_t i = 0; i < points_.size(); ++i) {
        const double a = std::log(points_[i].nodes / at.nodes),
                     b = std::log(points_[i].replicas / at.replicas),
                     c = std::log(points_[i].local / at.local);
        const double distance = a * a + b * b + c * c;
        if (distance >= least) continue;
        least = distance;
        time = times_[i];
      }
    }
  }
  remembered_.emplace(key, time);
  return time;
}

int32_t Profile::max_local(std::span<const int32_t> counts) const {
  if (perf_) return max_local_;
  const auto line = placements_.find(placement_key(counts));
  if (line != placements_.end()) return static_cast<int32_t>(line->second.local.back());
  int32_t replicas = 0;
  for (const int32_t count : counts) replicas += count;
  double most = 0;
  for (const Point3& point : scalability_)
    if (point.nodes >= static_cast<double>(counts.size()) && point.replicas >= replicas)
      most = std::max(most, point.local);
  return most > 0 ? static_cast<int32_t>(most) : max_local_;
}

std::optional<int32_t> Profile::max_local_of_replicas(int32_t replicas) const {
  const auto found = max_local_of_replicas_.find(replicas);
  if (found == max_local_of_replicas_.end()) return std::nullopt;
  return found->second;
}

}  // namespace ductile::sim
