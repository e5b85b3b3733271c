#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ductile/sched/policy.h"

// What the policies of this module share.
namespace ductile::sched {

// Why a job that JobView::is_fixed() keeps what it has.
inline const char* reason_of_fixed(bool granted) {
  return granted ? "what it was granted is on its way"
                 : "it may not be preempted and keeps what it has";
}

std::unique_ptr<Policy> make_fifo(const PolicyOptions& options);
std::unique_ptr<Policy> make_srtf(const PolicyOptions& options);
std::unique_ptr<Policy> make_tiresias(const PolicyOptions& options);
std::unique_ptr<Policy> make_optimus(const PolicyOptions& options);
std::unique_ptr<Policy> make_gavel(const PolicyOptions& options);
std::unique_ptr<Policy> make_pollux(const PolicyOptions& options);
std::unique_ptr<Policy> make_sia(const PolicyOptions& options);
std::unique_ptr<Policy> make_ductile(const PolicyOptions& options);
std::unique_ptr<Policy> make_regional(const PolicyOptions& options);
std::unique_ptr<Policy> make_fleet(const PolicyOptions& options);
std::unique_ptr<Policy> make_queue(const PolicyOptions& options);
std::unique_ptr<Policy> make_priority(const PolicyOptions& options);

// A policy that decides as `inner` does, from which it hides the jobs that run and may not be
// preempted, and the devices that they hold.
std::unique_ptr<Policy> reserve_fixed(std::unique_ptr<Policy> inner);

// "1 device", "2 devices".
inline std::string devices_text(int32_t count) {
  return count == 1 ? "1 device" : std::to_string(count) + " devices";
}

// A policy that keeps a sentence for each job of its last round.
class ReasonedPolicy : public Policy {
 public:
  std::string explain(JobId job) const override {
    const auto found = reasons_.find(job);
    return found == reasons_.end() ? "" : found->second;
  }

 protected:
  // The decisions that turn what jobs hold into `next` (one a job of the round, in its order), with
  // the reasons kept for explain().
  Decisions decisions(const Round& round, std::vector<Allocation> next,
                      std::vector<std::string> reasons);

 private:
  std::unordered_map<JobId, std::string> reasons_;
};

// Free devices while a round is put together.
class FreeDevices {
 public:
  explicit FreeDevices(const Cluster& cluster);
  int64_t of_type(int32_t type) const { return of_type_[type]; }
  // False, with nothing taken, where not all of it is free.
  bool take(const Allocation& allocation);
  void give_back(const Allocation& allocation);
  // `devices` of the type, each time from the node with most free, the first such: as few nodes as
  // this finds. of_type() must suffice.
  Allocation take_most_free_first(int32_t type, int32_t devices);
  int32_t on_node(int32_t node) const { return on_node_[node]; }

 private:
  const Cluster& cluster_;
  std::vector<int32_t> on_node_;
  std::vector<int64_t> of_type_;
};

// Types in order of the job's speed on them, fastest first; those it may not use are left out.
std::vector<int32_t> types_by_speed(const JobView& job);

// The type of what the job holds; -1: nothing.
inline int32_t held_type(const Cluster& cluster, const JobView& job) {
  return job.allocation.empty() ? -1 : cluster.node_type[job.allocation.front().node];
}

}  // namespace ductile::sched
