// Pollux (Qiao et al., OSDI'21): every job's batch and devices together, for the harmonic mean of
// goodput against a fair share. Blind to device types, as published: of a mixed cluster it sees
// nodes of the smallest size and one model a job, and gives up what a job gets of the rarer type.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "ductile/base/rng.h"
#include "ductile/sched/policies_impl.h"
#include "ductile/sched/published/pollux_search_impl.h"
#include "ductile/sched/saved_state_impl.h"

namespace ductile::sched {
namespace {

constexpr double kRestart = 30;  // seconds, unless a change is known to take less
constexpr int32_t kMostReplicas = 64;

struct VirtualNode {
  int32_t node;
  int32_t devices;
};

class Pollux : public ReasonedPolicy {
 public:
  explicit Pollux(const PolicyOptions& options) : seed_(options.seed) {}
  std::string_view name() const override { return "pollux"; }
  PolicyTraits traits() const override { return {.sees_types = false}; }

  Decisions decide(const Round& round) override {
    ++rounds_;
    const size_t count = round.jobs.size();
    if (count == 0) return {};
    std::vector<size_t> order(count);
    for (size_t i = 0; i < count; ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      const JobView &x = round.jobs[a], &y = round.jobs[b];
      return x.attained_service != y.attained_service ? x.attained_service < y.attained_service
                                                      : x.arrival < y.arrival;
    });
    const std::vector<VirtualNode> nodes = virtual_nodes(round.cluster);
    PolluxProblem problem;
    for (const VirtualNode& node : nodes)
      problem.capacity.push_back(static_cast<int8_t>(node.devices));
    const int64_t total = round.cluster.usable_devices();
    if (total == 0)
      return decisions(round, std::vector<Allocation>(count),
                       std::vector<std::string>(count, "waits: no device is up"));
    const bool mixed = round.cluster.type_count() > 1;
    const auto fair = static_cast<int32_t>((total + static_cast<int64_t>(count) - 1) /
                                           static_cast<int64_t>(count));
    problem.most_replicas =
        static_cast<int32_t>(std::min<int64_t>(total, mixed ? 16 : kMostReplicas));
    problem.seed = mix(seed_, rounds_);
    for (const size_t i : order)
      problem.jobs.push_back(job_of(round, round.jobs[i], fair, problem.most_replicas,
                                    static_cast<int32_t>(nodes.size())));
    problem.base.assign(count * nodes.size(), 0);
    for (size_t row = 0; row < count; ++row) {
      for (const NodeShare& share : round.jobs[order[row]].allocation) {
        int32_t left = share.devices;
        for (size_t v = 0; v < nodes.size() && left > 0; ++v) {
          if (nodes[v].node != share.node) continue;
          // The parts of one node: each takes what fits beside the rows before.
          int32_t room = nodes[v].devices;
          for (size_t above = 0; above < row; ++above)
            room -= problem.base[above * nodes.size() + v];
          const int32_t here = std::min(left, room);
          problem.base[row * nodes.size() + v] = static_cast<int8_t>(here);
          left -= here;
        }
      }
    }
    const PolluxFront front = search(problem, seeds(round, order, nodes));
    remember(round, order, nodes, front);
    const PolluxState& chosen = front.states[front.best];
    std::vector<Allocation> next(count);
    std::vector<std::string> reasons(count);
    for (size_t row = 0; row < count; ++row) {
      const JobView& job = round.jobs[order[row]];
      Allocation allocation;
      for (size_t v = 0; v < nodes.size(); ++v) {
        const int32_t devices = chosen[row * nodes.size() + v];
        if (devices == 0) continue;
        if (!allocation.empty() && allocation.back().node == nodes[v].node) {
          allocation.back().devices += devices;
        } else {
          allocation.push_back({nodes[v].node, devices});
        }
      }
      if (mixed) keep_majority_type(round.cluster, allocation);
      if (device_count(allocation) < job.min_devices) allocation.clear();
      const int32_t devices = device_count(allocation);
      reasons[order[row]] =
          devices == 0
              ? fmt::format(
                    "waits: the best of 10,000 allocations (fitness {:.3f}) has none for it",
                    front.fitness)
              : fmt::format("{} devices, {:.2f} times its fair share of {}", devices,
                            problem.jobs[row]
                                .speedup[allocation.size() * (problem.most_replicas + 1) + devices],
                            fair);
      // The same devices in another order of ranks are the same devices.
      Allocation held = job.allocation;
      std::sort(held.begin(), held.end(),
                [](const NodeShare& a, const NodeShare& b) { return a.node < b.node; });
      next[order[row]] = held == allocation ? job.allocation : std::move(allocation);
    }
    Decisions out = decisions(round, std::move(next), std::move(reasons));
    out.objective = front.fitness;
    return out;
  }

  nlohmann::json state() const override {
    return {{"rounds", rounds_}, {"front", front_}, {"rows", rows_}, {"columns", columns_}};
  }

  void restore(const nlohmann::json& state, const std::string& where) override {
    as_data_loss([&] {
      const JsonFields f(state, where);
      f.only({"rounds", "front", "rows", "columns"});
      const int64_t rounds = f.integer("rounds", 0, INT64_MAX);
      const auto columns = static_cast<size_t>(f.integer("columns", 0, 1 << 20));
      std::vector<JobId> rows = jobs_from(f, "rows");
      std::vector<PolluxState> front;
      for (const nlohmann::json& item : f.array("front")) {
        PolluxState one;
        for (const double v : numbers_from(f, item, "front", 0, 127, rows.size() * columns)) {
          if (v != std::floor(v)) f.wrong("front", "lists of whole numbers", item);
          one.push_back(static_cast<int8_t>(v));
        }
        front.push_back(std::move(one));
      }
      rounds_ = static_cast<uint64_t>(rounds);
      columns_ = columns;
      rows_ = std::move(rows);
      front_ = std::move(front);
    });
  }

 private:
  // Nodes in pieces of the smallest node's size.
  static std::vector<VirtualNode> virtual_nodes(const Cluster& cluster) {
    int32_t smallest = 127;
    for (int32_t n = 0; n < cluster.nodes(); ++n)
      smallest = std::min<int32_t>(smallest, cluster.node_devices[n]);
    std::vector<VirtualNode> nodes;
    for (int32_t n = 0; n < cluster.nodes(); ++n)
      for (int32_t left = cluster.usable(n), whole = cluster.node_devices[n]; whole > 0;
           whole -= smallest) {
        const int32_t here = std::clamp(left, 0, std::min(smallest, whole));
        nodes.push_back({n, here});
        left -= here;
      }
    return nodes;
  }

  static PolluxJob job_of(const Round& round, const JobView& job, int32_t fair,
                          int32_t most_replicas, int32_t node_count) {
    PolluxJob out;
    // The type it knows best stands for all.
    const TypeModel* model = &job.types.front();
    int32_t profiled = 0;
    for (const TypeModel& type : job.types) {
      if (type.max_profiled > model->max_profiled) model = &type;
      profiled = std::max(profiled, type.max_profiled);
    }
    out.min_replicas = job.min_devices;
    out.max_replicas = std::min({std::max(2 * profiled, job.min_devices), most_replicas,
                                 job.max_devices, std::max(model->max_useful, 1)});
    const double age = round.now - job.arrival;
    const double restart = job.resize_seconds ? std::min(kRestart, job.change_seconds()) : kRestart;
    out.restart_factor = std::max(age - job.restarts * restart, 0.0) / (age + restart);
    const int32_t width = most_replicas + 1;
    out.speedup.assign(static_cast<size_t>(node_count + 1) * width, 0);
    const bool known = model->fitted && job.noise.has_value();
    double base = 0;
    if (known) {
      base = best_batch(model->perf, *job.noise, model->limits, 1, fair).goodput;
      if (base <= 0) base = best_batch(model->perf, *job.noise, model->limits, 1, 1).goodput;
    }
    // The model tells one node from several, no more.
    for (int32_t k = 1; k <= out.max_replicas; ++k) {
      double one = static_cast<double>(k) / fair, several = one;
      if (known) {
        one =
            base > 0 ? best_batch(model->perf, *job.noise, model->limits, 1, k).goodput / base : 0;
        several =
            base > 0 ? best_batch(model->perf, *job.noise, model->limits, 2, k).goodput / base : 0;
      }
      for (int32_t n = 1; n <= std::min(k, node_count); ++n)
        out.speedup[static_cast<size_t>(n) * width + k] =
            static_cast<float>(n == 1 ? one : several);
    }
    return out;
  }

  // Last round's front. Rows are matched in order of the jobs in both rounds, as published, so they
  // may change hands where the order of service has changed.
  std::vector<PolluxState> seeds(const Round& round, const std::vector<size_t>& order,
                                 const std::vector<VirtualNode>& nodes) const {
    std::vector<PolluxState> out;
    if (front_.empty() || columns_ != nodes.size()) return out;
    std::vector<size_t> from, to;
    std::unordered_map<JobId, bool> now, before;
    for (const JobView& job : round.jobs) now[job.id] = true;
    for (const JobId id : rows_) before[id] = true;
    for (size_t r = 0; r < rows_.size(); ++r)
      if (now.contains(rows_[r])) from.push_back(r);
    for (size_t r = 0; r < order.size(); ++r)
      if (before.contains(round.jobs[order[r]].id)) to.push_back(r);
    for (const PolluxState& state : front_) {
      PolluxState adapted(order.size() * columns_, 0);
      for (size_t k = 0; k < from.size(); ++k)
        std::copy_n(state.begin() + static_cast<ptrdiff_t>(from[k] * columns_), columns_,
                    adapted.begin() + static_cast<ptrdiff_t>(to[k] * columns_));
      out.push_back(std::move(adapted));
    }
    return out;
  }

  void remember(const Round& round, const std::vector<size_t>& order,
                const std::vector<VirtualNode>& nodes, const PolluxFront& front) {
    front_ = front.states;
    columns_ = nodes.size();
    rows_.clear();
    for (const size_t i : order) rows_.push_back(round.jobs[i].id);
  }

  static void keep_majority_type(const Cluster& cluster, Allocation& allocation) {
    std::vector<int32_t> of_type(cluster.type_count(), 0);
    for (const NodeShare& share : allocation)
      of_type[cluster.node_type[share.node]] += share.devices;
    const auto best = std::max_element(of_type.begin(), of_type.end()) - of_type.begin();
    std::erase_if(allocation,
                  [&](const NodeShare& s) { return cluster.node_type[s.node] != best; });
  }

  uint64_t seed_;
  uint64_t rounds_ = 0;
  std::vector<PolluxState> front_;
  std::vector<JobId> rows_;
  size_t columns_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_pollux(const PolicyOptions& options) {
  return std::make_unique<Pollux>(options);
}

}  // namespace ductile::sched
