#include "ductile/sched/policy.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/sched/policies_impl.h"
#include "ductile/sched/saved_state_impl.h"

namespace ductile::sched {
namespace {

constexpr PolicyEntry kPolicies[] = {
    {"fifo", make_fifo, "in order of arrival", 60},
    {"srtf", make_srtf, "shortest remaining time first", 60},
    {"tiresias", make_tiresias, "least attained service first, in two queues", 60},
    {"optimus", make_optimus, "each device where it shortens the time left most", 60},
    {"gavel", make_gavel, "shares of time on each device type, for the most throughput", 360},
    {"pollux", make_pollux, "a genetic search for the best mean of goodput", 60},
    {"sia", make_sia, "an integer programme of goodput over device types", 60},
    {"queue", make_queue, "by tier, then in order of arrival, without preemption, over regions",
     60},
    {"priority", make_priority, "the same, but higher tiers stop jobs of lower ones", 60},
    {"fleet", make_fleet, "prices in each region by tiers and promises, for very many devices", 60},
    {"regional", make_regional, "`ductile` in each region, between which jobs move", 60},
    {"ductile", make_ductile,
     "prices and shadow costs, with a proven gap; also services and promises", 60},
};

// Lets a published policy see neither the jobs that run and may not be preempted nor the devices
// that they hold. Rounds without such jobs reach it as they are.
class Reserving final : public Policy {
 public:
  explicit Reserving(std::unique_ptr<Policy> inner) : inner_(std::move(inner)) {}
  std::string_view name() const override { return inner_->name(); }
  PolicyTraits traits() const override {
    PolicyTraits traits = inner_->traits();
    traits.keeps_fixed = true;
    return traits;
  }

  Decisions decide(const Round& round) override {
    fixed_.clear();
    for (const JobView& job : round.jobs)
      if (job.is_fixed()) fixed_.emplace(job.id, job.granted);
    if (fixed_.empty()) return inner_->decide(round);
    Cluster cluster = round.cluster;
    std::vector<JobView> jobs;
    for (const JobView& job : round.jobs) {
      if (!fixed_.contains(job.id)) {
        jobs.push_back(job);
        continue;
      }
      for (const NodeShare& share : job.allocation) {
        int16_t& left = cluster.node_devices[share.node];
        left = static_cast<int16_t>(left - share.devices);
        if (left <= 0) cluster.node_up[share.node] = left = 0;
      }
    }
    // A node without devices is down, of its full size.
    for (int32_t n = 0; n < cluster.nodes(); ++n)
      if (cluster.node_devices[n] == 0) cluster.node_devices[n] = round.cluster.node_devices[n];
    return inner_->decide({round.now, round.interval, cluster, jobs});
  }

  void forget(JobId job) override { inner_->forget(job); }
  nlohmann::json state() const override { return inner_->state(); }
  void restore(const nlohmann::json& state, const std::string& where) override {
    inner_->restore(state, where);
  }

  std::string explain(JobId job) const override {
    const auto found = fixed_.find(job);
    return found == fixed_.end() ? inner_->explain(job) : reason_of_fixed(found->second);
  }

 private:
  std::unique_ptr<Policy> inner_;
  std::unordered_map<JobId, bool> fixed_;  // and whether that is JobView::granted
};

}  // namespace

nlohmann::json Policy::state() const { return nlohmann::json::object(); }

void Policy::restore(const nlohmann::json& state, const std::string& where) {
  as_data_loss([&] { JsonFields(state, where).only({}); });
}

std::unique_ptr<Policy> reserve_fixed(std::unique_ptr<Policy> inner) {
  return std::make_unique<Reserving>(std::move(inner));
}

Table<PolicyEntry> policies() { return {"policy", kPolicies}; }

std::unique_ptr<Policy> make_policy(std::string_view name, const PolicyOptions& options) {
  std::unique_ptr<Policy> policy = policies().at(name).make(options);
  if (policy->traits().keeps_fixed) return policy;
  return reserve_fixed(std::move(policy));
}

std::vector<std::string> policy_names() { return policies().names(); }

double usual_interval(std::string_view policy) { return policies().at(policy).interval; }

void check_decisions(const Round& round, const Decisions& decisions) {
  std::unordered_map<JobId, const JobView*> jobs;
  for (const JobView& job : round.jobs) jobs.emplace(job.id, &job);
  std::vector<int32_t> used(round.cluster.nodes(), 0);
  std::unordered_set<JobId> decided;
  const auto take = [&](const JobView& job, const Allocation& allocation) {
    std::unordered_set<int32_t> nodes;
    int32_t type = -1;
    for (const NodeShare& share : allocation) {
      DUCTILE_CHECK(share.node >= 0 && share.node < round.cluster.nodes() && share.devices >= 1,
                    "job {}: {} devices of node {}", job.name, share.devices, share.node);
      DUCTILE_CHECK(nodes.insert(share.node).second, "job {}: node {} twice", job.name, share.node);
      const int32_t here = round.cluster.node_type[share.node];
      DUCTILE_CHECK(type < 0 || type == here, "job {}: two device types", job.name);
      type = here;
      used[share.node] += share.devices;
    }
  };
  for (const Decision& decision : decisions.changes) {
    const auto found = jobs.find(decision.job);
    DUCTILE_CHECK(found != jobs.end(), "a decision for job {}, which is not there", decision.job);
    DUCTILE_CHECK(decided.insert(decision.job).second, "two decisions for {}", found->second->name);
    const JobView& job = *found->second;
    DUCTILE_CHECK(!decision.reason.empty(), "job {}: no reason", job.name);
    DUCTILE_CHECK(!job.is_fixed() || decision.allocation == job.allocation,
                  "job {} must keep what it has", job.name);
    if (!decision.allocation.empty()) {
      const int32_t devices = device_count(decision.allocation);
      DUCTILE_CHECK(devices <= job.max_devices && devices >= job.min_devices,
                    "job {}: {} devices, allowed {} to {}", job.name, devices, job.min_devices,
                    job.max_devices);
    }
    if (job.service) {
      int32_t held = 0;
      for (const NodeShare& share : job.allocation)
        if (round.cluster.node_up[share.node]) held += share.devices;
      const int32_t floor =
          job.allocation.empty()
              ? 0
              : job.service->floor *
                    job.types[round.cluster.node_type[job.allocation[0].node]].unit;
      DUCTILE_CHECK(held < floor || !decision.allocation.empty(), "service {}: loses its floor",
                    job.name);
      if (held >= floor && !decision.allocation.empty()) {
        const int32_t type = round.cluster.node_type[decision.allocation[0].node];
        DUCTILE_CHECK(
            device_count(decision.allocation) >= job.service->floor * job.types[type].unit,
            "service {}: {} devices are less than its floor", job.name,
            device_count(decision.allocation));
      }
    }
    take(job, decision.allocation);
  }
  for (const JobView& job : round.jobs)
    if (!decided.contains(job.id)) take(job, job.allocation);
  for (int32_t n = 0; n < round.cluster.nodes(); ++n)
    DUCTILE_CHECK(used[n] <= round.cluster.usable(n), "node {}: {} devices given, {} usable", n,
                  used[n], round.cluster.usable(n));
}

}  // namespace ductile::sched
