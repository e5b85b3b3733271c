#include "ductile/sim/service_run.h"

#include <algorithm>
#include <cmath>

#include "ductile/sched/queueing.h"
#include "ductile/sim/application.h"

namespace ductile::sim {
namespace {

constexpr double kStep = 15;  // s between two looks at the load

}  // namespace

double ServiceSpec::load_at(double since) const {
  if (load.size() == 1) return load.front().second;
  const double at = std::fmod(std::max(since, 0.0), load.back().first);
  size_t high = 1;
  while (load[high].first < at) ++high;
  const auto &a = load[high - 1], &b = load[high];
  return a.second + (b.second - a.second) * (at - a.first) / (b.first - a.first);
}

double ServiceSpec::peak(double from, double to) const {
  double most = std::max(load_at(from), load_at(to));
  if (load.size() == 1) return most;
  const double period = load.back().first;
  for (double base = std::floor(from / period) * period; base < to; base += period)
    for (const auto& [time, value] : load)
      if (base + time > from && base + time < to) most = std::max(most, value);
  return most;
}

ServiceRun::ServiceRun(const ServiceSpec& spec, const Application& app,
                       std::span<const std::string> types, double arrival, double start_seconds)
    : spec_(spec), arrival_(arrival), start_seconds_(start_seconds), now_(arrival) {
  double base = INFINITY;
  for (const auto& [type, profile] : app.profiles) base = std::min(base, profile.unit_rate());
  for (const std::string& type : types)
    rate_.push_back(spec.replica_rate * app.profile(type).unit_rate() / base);
}

void ServiceRun::set(double now, std::span<const sched::NodeShare> allocation, int32_t type) {
  pass(now);
  if (type != type_) parts_.clear();
  type_ = type;
  std::vector<Part> next;
  for (const sched::NodeShare& share : allocation) {
    int32_t left = share.devices / spec_.replica_devices;
    for (const Part& part : parts_) {
      if (part.node != share.node || left == 0) continue;
      next.push_back({part.node, std::min(part.replicas, left), part.ready_at});
      left -= next.back().replicas;
    }
    if (left > 0) next.push_back({share.node, left, now + start_seconds_});
  }
  // Where fewer are left on a node, those that are ready longest stay.
  std::stable_sort(next.begin(), next.end(), [](const Part& a, const Part& b) {
    return a.node != b.node ? a.node < b.node : a.ready_at < b.ready_at;
  });
  parts_ = std::move(next);
}

int32_t ServiceRun::ready(double now) const {
  int32_t sum = 0;
  for (const Part& part : parts_) sum += part.ready_at <= now ? part.replicas : 0;
  return sum;
}

void ServiceRun::pass(double until) {
  until = std::min(until, ends_at());
  while (now_ < until) {
    const auto hour = static_cast<size_t>((now_ - arrival_) / 3600);
    double next =
        std::min({until, now_ + kStep, arrival_ + 3600 * (static_cast<double>(hour) + 1)});
    for (const Part& part : parts_)
      if (part.ready_at > now_) next = std::min(next, part.ready_at);
    const double seconds = next - now_;
    const double load = spec_.load_at((now_ + next) / 2 - arrival_);
    const int32_t replicas = ready(now_);
    const double rate = type_ >= 0 ? rate_[type_] : 0;
    ServiceRecord part;
    part.requests = load * seconds;
    if (load > 0 && (replicas == 0 || load >= replicas * rate)) {
      part.overloaded_seconds = seconds;
    } else if (load > 0) {
      part.on_time = part.requests * sched::on_time_share(load, replicas, rate, spec_.latency);
      part.kept_up = part.requests;
      part.latency_sum = part.requests * sched::mean_latency(load, replicas, rate);
    }
    if (hours_.size() <= hour) hours_.resize(hour + 1);
    for (ServiceRecord* record : {&total_, &hours_[hour]}) {
      record->requests += part.requests;
      record->on_time += part.on_time;
      record->latency_sum += part.latency_sum;
      record->kept_up += part.kept_up;
      record->overloaded_seconds += part.overloaded_seconds;
    }
    now_ = next;
  }
}

sched::ServiceView ServiceRun::view(double now, double ahead, int32_t floor) const {
  sched::ServiceView view;
  view.load = spec_.load_at(now - arrival_);
  view.peak = spec_.peak(now - arrival_, now - arrival_ + ahead);
  view.target = spec_.latency;
  view.floor = floor;
  view.rate = rate_;
  return view;
}

}  // namespace ductile::sim
