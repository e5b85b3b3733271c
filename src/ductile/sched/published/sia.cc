// Sia (Jayaram Subramanya et al., SOSP'23): an integer programme a round over configurations, which
// are device counts that pack without two jobs of several nodes meeting on one. With p = -0.5 and a
// penalty of 1.1 for each job left out, as the authors ran it.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "ductile/sched/hetero.h"
#include "ductile/sched/policies_impl.h"
#include "ductile/sched/published/choices.h"

namespace ductile::sched {
namespace {

constexpr double kPower = -0.5;
constexpr double kLeftOut = 1.1;   // cost of a job without devices; one with some costs at most 1
constexpr double kNothing = 1e-4;  // goodput of a configuration that cannot run
constexpr int32_t kMostDevices = 64;  // of one job: what was profiled

struct Config {
  int32_t type, nodes, devices;
};

// Seconds of a restart that the published policy reckons with, by kind of job.
double restart_penalty(const JobView& job) {
  static constexpr std::array<std::pair<std::string_view, double>, 6> kKnown = {
      {{"deepspeech2", 25},
       {"imagenet", 250},
       {"cifar10", 30},
       {"bert", 120},
       {"yolov3", 45},
       {"ncf", 30}}};
  for (const auto& [name, seconds] : kKnown)
    if (job.application == name) return seconds;
  return job.restart_seconds;
}

class Sia : public ReasonedPolicy {
 public:
  std::string_view name() const override { return "sia"; }
  double fit_least_gain() const override { return 1e-5; }
  bool scales_pipelines() const override { return true; }

  Decisions decide(const Round& round) override {
    const size_t count = round.jobs.size();
    const Cluster& cluster = round.cluster;
    std::vector<int32_t> per_node, capacity;
    for (int32_t t = 0; t < cluster.type_count(); ++t) {
      per_node.push_back(cluster.devices_per_node(t));
      capacity.push_back(static_cast<int32_t>(cluster.usable_devices(t)));
    }
    const std::vector<Config> configs = configurations(cluster, per_node);
    std::vector<int32_t> held(count, -1), next(count, -1);
    std::vector<bool> frozen(count, false);
    std::vector<std::vector<Choice>> groups(count);
    std::vector<std::vector<int32_t>> group_configs(count);
    for (size_t i = 0; i < count; ++i) {
      const JobView& job = round.jobs[i];
      std::vector<Config> mine = job.scaling == Scaling::rigid ? rigid(job, per_node) : configs;
      held[i] = find_held(cluster, job, mine);
      if (held[i] >= 0 && (job.pause_left > 0 || !job.preemptible)) {
        // A restart under way is never broken off.
        frozen[i] = true;
        next[i] = held[i];
        capacity[mine[held[i]].type] -= mine[held[i]].devices;
        own_[job.id] = std::move(mine);
        continue;
      }
      const std::vector<double> values = goodputs(round, job, mine, held[i], per_node);
      const auto offer = [&](int32_t c) {
        const double cost = std::round(std::pow(values[c], kPower) * 100) / 100;
        // Rounding leaves many alike; of those the faster is taken.
        const double value = kLeftOut - std::min(cost, 3000.0) + 1e-7 * values[c];
        if (value <= 0) return;
        groups[i].push_back({value, mine[c].type, mine[c].devices});
        group_configs[i].push_back(c);
      };
      if (held[i] >= 0) offer(held[i]);  // first: wins ties
      for (int32_t c = 0; c < static_cast<int32_t>(mine.size()); ++c)
        if (c != held[i]) offer(c);
      own_[job.id] = std::move(mine);
    }
    for (int32_t& c : capacity) c = std::max(c, 0);
    const ChoiceResult solved = solve_choices(groups, capacity);
    for (size_t i = 0; i < count; ++i)
      if (!frozen[i] && solved.chosen[i] >= 0) next[i] = group_configs[i][solved.chosen[i]];
    std::vector<Allocation> allocations = place(round, next, held, per_node);
    std::vector<std::string> reasons(count);
    for (size_t i = 0; i < count; ++i) {
      const JobView& job = round.jobs[i];
      if (next[i] < 0) {
        reasons[i] = "waits: others gain more from every device it could use";
      } else if (allocations[i].empty()) {
        reasons[i] = "waits: its devices are scattered over nodes";
      } else {
        const Config& c = own_[job.id][next[i]];
        reasons[i] = frozen[i] ? "keeps what it has: its restart is under way"
                               : fmt::format("{} x {} on {} nodes, the best for all jobs together",
                                             c.devices, cluster.types[c.type], c.nodes);
      }
    }
    own_.clear();
    Decisions out = decisions(round, std::move(allocations), std::move(reasons));
    out.objective = solved.value;
    out.bound = solved.bound;
    return out;
  }

 private:
  // Powers of two up to a node, then whole nodes.
  static std::vector<Config> configurations(const Cluster& cluster,
                                            const std::vector<int32_t>& per_node) {
    std::vector<Config> out;
    for (int32_t t = 0; t < cluster.type_count(); ++t) {
      for (int32_t k = 1; k < per_node[t]; k *= 2) out.push_back({t, 1, k});
      const int32_t nodes = cluster.nodes_of_type(t);
      for (int32_t n = 1; n <= nodes && (n == 1 || n * per_node[t] <= kMostDevices); ++n)
        out.push_back({t, n, n * per_node[t]});
    }
    return out;
  }

  static std::vector<Config> rigid(const JobView& job, const std::vector<int32_t>& per_node) {
    std::vector<Config> out;
    for (int32_t t = 0; t < static_cast<int32_t>(per_node.size()); ++t)
      if (job.types[t].allowed && per_node[t] > 0)
        out.push_back(
            {t, (job.requested_devices + per_node[t] - 1) / per_node[t], job.requested_devices});
    return out;
  }

  static int32_t find_held(const Cluster& cluster, const JobView& job,
                           const std::vector<Config>& configs) {
    if (job.allocation.empty()) return -1;
    const int32_t type = held_type(cluster, job), devices = device_count(job.allocation);
    for (size_t c = 0; c < configs.size(); ++c)
      if (configs[c].type == type && configs[c].devices == devices) return static_cast<int32_t>(c);
    return -1;
  }

  // Goodput of each configuration against the least that runs, less what a restart would cost.
  static std::vector<double> goodputs(const Round& round, const JobView& job,
                                      const std::vector<Config>& configs, int32_t held,
                                      const std::vector<int32_t>& per_node) {
    std::vector<double> values(configs.size(), kNothing);
    const bool known =
        job.noise.has_value() && std::any_of(job.types.begin(), job.types.end(),
                                             [](const TypeModel& t) { return t.fitted; });
    int32_t most_units = 1;
    for (const TypeModel& type : job.types)
      most_units = std::max(most_units,
                            std::min({std::max(2 * type.max_profiled / type.unit, 1), kMostDevices,
                                      type.limits.max_batch / type.limits.min_local}));
    JobView limited = job;
    if (job.scaling == Scaling::adaptive && job.requested_batch > 0)
      for (TypeModel& type : limited.types)  // never a larger batch than was asked for
        if (type.unit_batch == 0)
          type.limits.max_batch = std::max(job.requested_batch, type.limits.init_batch);
    double least = 0;
    for (size_t c = 0; c < configs.size(); ++c) {
      const Config& config = configs[c];
      const TypeModel& type = job.types[config.type];
      if (!type.allowed || config.devices % type.unit != 0) continue;
      if (job.scaling == Scaling::rigid) {
        values[c] = type.requested_rate > 0 ? type.requested_rate : type.unit_rate;
      } else if (!known) {
        if (config.devices != type.unit) continue;
        values[c] = type.unit;
        continue;
      } else {
        if (config.devices > most_units * type.unit || config.devices > job.max_devices) continue;
        values[c] = estimated_goodput(limited, config.type, config.nodes, config.devices, per_node);
      }
      if (values[c] > kNothing && (least == 0 || values[c] < least)) least = values[c];
    }
    const double penalty = restart_penalty(job), age = round.now - job.arrival;
    const double factor =
        age < penalty ? 1 : std::max(age - job.restarts * penalty, 0.0) / (age + penalty);
    for (size_t c = 0; c < configs.size(); ++c) {
      if (values[c] <= kNothing) {
        values[c] = kNothing;
        continue;
      }
      if (least > 0) values[c] /= least;
      if (job.scaling == Scaling::rigid) values[c] *= job.requested_devices;
      if (held >= 0 && static_cast<int32_t>(c) != held) values[c] *= factor;
      values[c] = std::max(values[c], kNothing);
    }
    return values;
  }

  // Nodes for the chosen configurations: what is unchanged stays; jobs of whole nodes take empty
  // ones, moving smaller jobs out of the emptiest where they must; the rest goes where it fits
  // best. Counts are powers of two or whole nodes, so packing anew from the largest always works.
  std::vector<Allocation> place(const Round& round, const std::vector<int32_t>& next,
                                const std::vector<int32_t>& held,
                                const std::vector<int32_t>& per_node) const {
    const Cluster& cluster = round.cluster;
    const size_t count = next.size();
    std::vector<Allocation> out(count);
    FreeDevices free(cluster);
    std::vector<size_t> order;
    for (size_t i = 0; i < count; ++i) {
      if (next[i] < 0) continue;
      if (next[i] == held[i] && free.take(round.jobs[i].allocation)) {
        out[i] = round.jobs[i].allocation;
      } else {
        order.push_back(i);
      }
    }
    const auto config = [&](size_t i) { return own_.at(round.jobs[i].id)[next[i]]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return config(a).devices > config(b).devices; });
    // Those of `type` that hold part of a node and may be moved.
    const auto movable = [&](size_t i, int32_t type) {
      return !out[i].empty() && config(i).type == type && config(i).devices < per_node[type] &&
             round.jobs[i].pause_left <= 0 && round.jobs[i].preemptible;
    };
    std::vector<size_t> evicted;
    const auto whole_nodes = [&](size_t i) {
      const Config c = config(i);
      Allocation allocation;
      int32_t left = c.devices;
      for (int32_t n = 0; n < cluster.nodes() && left >= per_node[c.type]; ++n) {
        if (cluster.node_type[n] != c.type || cluster.usable(n) < per_node[c.type] ||
            free.on_node(n) < cluster.usable(n))
          continue;
        allocation.push_back({n, per_node[c.type]});
        left -= per_node[c.type];
      }
      return std::pair(allocation, left);
    };
    for (const size_t i : order) {
      const Config c = config(i);
      if (c.devices < per_node[c.type]) {
        evicted.push_back(i);
        continue;
      }
      auto [allocation, left] = whole_nodes(i);
      while (left >= per_node[c.type]) {
        // Empties the node that needs the fewest devices moved.
        int32_t best = -1;
        for (int32_t n = 0; n < cluster.nodes(); ++n) {
          if (cluster.node_type[n] != c.type || cluster.usable(n) < per_node[c.type] ||
              free.on_node(n) == cluster.usable(n))
            continue;
          int32_t fixed = cluster.usable(n) - free.on_node(n);
          for (size_t j = 0; j < count; ++j)
            if (movable(j, c.type) && out[j].front().node == n) fixed -= out[j].front().devices;
          if (fixed == 0 && (best < 0 || free.on_node(n) > free.on_node(best))) best = n;
        }
        if (best < 0) break;
        for (size_t j = 0; j < count; ++j) {
          if (!movable(j, c.type) || out[j].front().node != best) continue;
          free.give_back(out[j]);
          out[j].clear();
          evicted.push_back(j);
        }
        std::tie(allocation, left) = whole_nodes(i);
      }
      if (left >= per_node[c.type]) continue;
      if (left > 0) {  // a rigid job's odd devices
        evicted.push_back(i);
        continue;
      }
      free.take(allocation);
      out[i] = std::move(allocation);
    }
    std::stable_sort(evicted.begin(), evicted.end(),
                     [&](size_t a, size_t b) { return config(a).devices > config(b).devices; });
    for (size_t k = 0; k < evicted.size(); ++k) {
      const size_t i = evicted[k];
      const Config c = config(i);
      if (free.of_type(c.type) < c.devices) continue;
      int32_t best = -1;
      for (int32_t n = 0; n < cluster.nodes(); ++n)
        if (cluster.node_type[n] == c.type && free.on_node(n) >= c.devices &&
            (best < 0 || free.on_node(n) < free.on_node(best)))
          best = n;
      if (best >= 0) {
        out[i] = {{best, c.devices}};
        free.take(out[i]);
        continue;
      }
      if (c.nodes > 1) {
        out[i] = free.take_most_free_first(c.type, c.devices);
        continue;
      }
      // Scattered: packs the movable ones of the type anew, the largest first.
      std::vector<size_t> again = {i};
      for (size_t j = 0; j < count; ++j) {
        if (j == i || !movable(j, c.type) || config(j).devices >= c.devices) continue;
        free.give_back(out[j]);
        out[j].clear();
        again.push_back(j);
      }
      std::stable_sort(again.begin() + 1, again.end(),
                       [&](size_t a, size_t b) { return config(a).devices > config(b).devices; });
      for (const size_t j : again) {
        const Config cj = config(j);
        for (int32_t n = 0; n < cluster.nodes(); ++n) {
          if (cluster.node_type[n] != cj.type || free.on_node(n) < cj.devices) continue;
          out[j] = {{n, cj.devices}};
          free.take(out[j]);
          break;
        }
      }
    }
    return out;
  }

  std::unordered_map<JobId, std::vector<Config>> own_;  // during decide()
};

}  // namespace

std::unique_ptr<Policy> make_sia(const PolicyOptions&) { return std::make_unique<Sia>(); }

}  // namespace ductile::sched
