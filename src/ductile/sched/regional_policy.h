#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ductile/sched/policy.h"

namespace ductile::sched {

// A policy over regions. Each region has a policy of its own, which sees the nodes and the jobs of
// that region alone; every job belongs to one region at a time, and there alone it holds devices.
// So a round costs the sum of small rounds, and the number of regions has no limit.
//
// A job begins in the region of its data. It moves to another one if what it can expect there,
// after its restart and the transfer of its data (valuation.h), is a tenth more: its part of the
// region's devices, as the region's jobs ask for them, times the speed of its best type. A job that
// runs moves only to devices that are free. What may not be preempted, or may not move, stays. A
// region whose nodes are gone loses its jobs to the others. With one region it is that region's
// policy, to the byte. A team's quota holds over all regions.
class RegionalPolicy final : public Policy {
 public:
  using Make = std::function<std::unique_ptr<Policy>()>;
  explicit RegionalPolicy(Make make);
  ~RegionalPolicy() override;

  std::string_view name() const override { return "regional"; }
  PolicyTraits traits() const override;
  Decisions decide(const Round& round) override;
  std::string explain(JobId job) const override;
  void forget(JobId job) override;
  nlohmann::json state() const override;
  void restore(const nlohmann::json& state, const std::string& where) override;

  // The region that the job belongs to, of Cluster::regions; -1: it is not known.
  int32_t region_of(JobId job) const;

 private:
  struct Region;
  struct Outlook;

  void lay_out(const Cluster& cluster);
  void assign(const Round& round);
  void decide_region(const Round& round, int32_t region, Decisions& out);
  void keep_quotas(const Round& round, int32_t region);

  Make make_;
  std::vector<Region> regions_;
  std::vector<int32_t> node_region_, node_local_;  // of each node of the whole cluster
  std::unordered_map<JobId, int32_t> belongs_;
  std::vector<int64_t> team_held_;  // of each team with a quota, in a round
};

}  // namespace ductile::sched
