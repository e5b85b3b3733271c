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

// Seconds of a restart that the published policy reckons with, by kind of job; of a change, where
// that is known to take less.
double restart_penalty(const JobView& job) {
  if (job.resize_seconds) return job.change_seconds();
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

// Nodes for the chosen configurations: what is unchanged stays; jobs of whole nodes take empty
// ones, moving smaller jobs out of the emptiest where they must; the rest goes where it fits
// best. Counts are powers of two or whole nodes, so packing anew from the largest always works.
class Placing {
 public:
  // `chosen`: of each job, nullptr where it waits.
  Placing(const Round& round, std::vector<const Config*> chosen,
          const std::vector<int32_t>& per_node)
      : round_(round),
        cluster_(round.cluster),
        chosen_(std::move(chosen)),
        per_node_(per_node),
        free_(round.cluster),
        out_(chosen_.size()) {}

  std::vector<Allocation> run(const std::vector<bool>& stays) {
    std::vector<size_t> order;
    for (size_t i = 0; i < chosen_.size(); ++i) {
      if (chosen_[i] == nullptr) continue;
      if (stays[i] && free_.take(round_.jobs[i].allocation)) {
        out_[i] = round_.jobs[i].allocation;
      } else {
        order.push_back(i);
      }
    }
    largest_first(order.begin(), order.end());
    for (const size_t i : order) {
      if (config(i).devices < per_node_[config(i).type])
        small_.push_back(i);
      else
        give_whole_nodes(i);
    }
    largest_first(small_.begin(), small_.end());
    for (const size_t i : small_) give_part(i);
    return std::move(out_);
  }

 private:
  using Iterator = std::vector<size_t>::iterator;

  const Config& config(size_t i) const { return *chosen_[i]; }
  void largest_first(Iterator begin, Iterator end) const {
    std::stable_sort(begin, end,
                     [&](size_t a, size_t b) { return config(a).devices > config(b).devices; });
  }
  // Holds part of a node of `type` and may be moved.
  bool movable(size_t i, int32_t type) const {
    return !out_[i].empty() && config(i).type == type && config(i).devices < per_node_[type] &&
           round_.jobs[i].pause_left <= 0 && round_.jobs[i].preemptible;
  }
  // Of `type`, and all of its devices work.
  bool is_whole(int32_t node, int32_t type) const {
    return cluster_.node_type[node] == type && cluster_.usable(node) >= per_node_[type];
  }

  // Empty nodes for the job, and the devices that they lack.
  std::pair<Allocation, int32_t> empty_nodes(size_t i) const {
    const Config& c = config(i);
    Allocation allocation;
    int32_t left = c.devices;
    for (int32_t n = 0; n < cluster_.nodes() && left >= per_node_[c.type]; ++n) {
      if (!is_whole(n, c.type) || free_.on_node(n) < cluster_.usable(n)) continue;
      allocation.push_back({n, per_node_[c.type]});
      left -= per_node_[c.type];
    }
    return {allocation, left};
  }

  // Empties the node of `type` that needs the fewest devices moved; false: there is none.
  bool empty_a_node(int32_t type) {
    int32_t best = -1;
    for (int32_t n = 0; n < cluster_.nodes(); ++n) {
      if (!is_whole(n, type) || free_.on_node(n) == cluster_.usable(n)) continue;
      int32_t fixed = cluster_.usable(n) - free_.on_node(n);
      for (size_t j = 0; j < out_.size(); ++j)
        if (movable(j, type) && out_[j].front().node == n) fixed -= out_[j].front().devices;
      if (fixed == 0 && (best < 0 || free_.on_node(n) > free_.on_node(best))) best = n;
    }
    if (best < 0) return false;
    for (size_t j = 0; j < out_.size(); ++j) {
      if (!movable(j, type) || out_[j].front().node != best) continue;
      free_.give_back(out_[j]);
      out_[j].clear();
      small_.push_back(j);
    }
    return true;
  }

  void give_whole_nodes(size_t i) {
    const int32_t type = config(i).type;
    auto [allocation, left] = empty_nodes(i);
    while (left >= per_node_[type] && empty_a_node(type))
      std::tie(allocation, left) = empty_nodes(i);
    if (left >= per_node_[type]) return;
    if (left > 0) {  // a rigid job's odd devices
      small_.push_back(i);
      return;
    }
    free_.take(allocation);
    out_[i] = std::move(allocation);
  }

  void give_part(size_t i) {
    const Config& c = config(i);
    if (free_.of_type(c.type) < c.devices) return;
    int32_t best = -1;
    for (int32_t n = 0; n < cluster_.nodes(); ++n)
      if (cluster_.node_type[n] == c.type && free_.on_node(n) >= c.devices &&
          (best < 0 || free_.on_node(n) < free_.on_node(best)))
        best = n;
    if (best >= 0) {
      out_[i] = {{best, c.devices}};
      free_.take(out_[i]);
    } else if (c.nodes > 1) {
      out_[i] = free_.take_most_free_first(c.type, c.devices);
    } else {
      pack_anew(i);
    }
  }

  // Its devices are scattered: packs the movable jobs of the type anew, the largest first.
  void pack_anew(size_t i) {
    const Config& c = config(i);
    std::vector<size_t> again = {i};
    for (size_t j = 0; j < out_.size(); ++j) {
      if (j == i || !movable(j, c.type) || config(j).devices >= c.devices) continue;
      free_.give_back(out_[j]);
      out_[j].clear();
      again.push_back(j);
    }
    largest_first(again.begin() + 1, again.end());
    for (const size_t j : again) {
      for (int32_t n = 0; n < cluster_.nodes(); ++n) {
        if (cluster_.node_type[n] != c.type || free_.on_node(n) < config(j).devices) continue;
        out_[j] = {{n, config(j).devices}};
        free_.take(out_[j]);
        break;
      }
    }
  }

  const Round& round_;
  const Cluster& cluster_;
  const std::vector<const Config*> chosen_;
  const std::vector<int32_t>& per_node_;
  FreeDevices free_;
  std::vector<Allocation> out_;
  std::vector<size_t> small_;  // that take parts of nodes, those moved away among them
};

class Sia : public ReasonedPolicy {
 public:
  std::string_view name() const override { return "sia"; }
  PolicyTraits traits() const override {
    return {.scales_pipelines = true, .fit_least_gain = 1e-5};
  }

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

  std::vector<Allocation> place(const Round& round, const std::vector<int32_t>& next,
                                const std::vector<int32_t>& held,
                                const std::vector<int32_t>& per_node) const {
    std::vector<const Config*> chosen(next.size(), nullptr);
    std::vector<bool> stays(next.size(), false);
    for (size_t i = 0; i < next.size(); ++i) {
      if (next[i] >= 0) chosen[i] = &own_.at(round.jobs[i].id)[next[i]];
      stays[i] = next[i] == held[i];
    }
    return Placing(round, std::move(chosen), per_node).run(stays);
  }

  std::unordered_map<JobId, std::vector<Config>> own_;  // during decide()
};

}  // namespace

std::unique_ptr<Policy> make_sia(const PolicyOptions&) { return std::make_unique<Sia>(); }

}  // namespace ductile::sched
