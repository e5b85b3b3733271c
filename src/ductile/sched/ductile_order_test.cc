// Whose turn it is among jobs that are alike, and who keeps what it runs on.
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/sched/ductile_policy.h"
#include "ductile/sched/hetero.h"
#include "ductile/sched/pools.h"

namespace ductile::sched {
namespace {

// As a service shows a command: nothing is known of its length, and nobody measures it.
JobView command(JobId id, double arrival, int32_t devices = 1) {
  JobView job;
  job.id = id;
  job.name = job.application = "command-" + std::to_string(id);
  job.arrival = arrival;
  job.scaling = Scaling::rigid;
  job.tier = Tier::standard;
  job.saves = false;
  job.requested_devices = job.min_devices = job.max_devices = devices;
  job.restart_seconds = 3;
  TypeModel type;
  type.unit_rate = 1;
  type.limits = {1, 1, 1, 1};
  type.max_useful = devices;
  job.types = {type};
  return job;
}

// Jobs on a machine by the clock, with a decision at each event and every ten seconds.
class Machine {
 public:
  explicit Machine(int32_t devices) : cluster_(homogeneous_cluster(1, devices)) {}

  struct Job {
    JobView view;
    double seconds = 0;  // that it has to run; at a stretch, if it cannot be saved
    double runs_since = 0;
    int stops = 0;
  };
  void submit(JobView view, double seconds) {
    view.arrival = now_;
    jobs_.push_back({std::move(view), seconds});
    decide();
  }
  // Until then, or until all have ended.
  void run(double until) {
    while (now_ < until) {
      double next = std::min(until, round_);
      for (const Job& job : jobs_)
        if (!job.view.allocation.empty()) next = std::min(next, job.runs_since + job.seconds);
      const bool is_round = next == round_;
      if (jobs_.empty()) {
        now_ = until;
        return;
      }
      for (Job& job : jobs_)
        if (!job.view.allocation.empty()) {
          job.view.attained_service += (next - now_) * device_count(job.view.allocation);
          if (job.view.remaining) *job.view.remaining -= next - now_;
        }
      now_ = next;
      const size_t ended = std::erase_if(jobs_, [&](const Job& job) {
        const bool ends =
            !job.view.allocation.empty() && now_ >= job.runs_since + job.seconds - 1e-9;
        if (ends) stops[job.view.id] = job.stops, ended_at[job.view.id] = now_;
        return ends;
      });
      if (ended > 0 || is_round) decide();
    }
  }
  double now() const { return now_; }
  size_t present() const { return jobs_.size(); }
  bool runs(JobId id) const {
    return std::ranges::any_of(
        jobs_, [&](const Job& job) { return job.view.id == id && !job.view.allocation.empty(); });
  }
  std::string why(JobId id) const { return policy_.explain(id); }

  std::vector<JobId> starts;   // in their order
  std::map<JobId, int> stops;  // of those that have ended
  std::map<JobId, double> ended_at;

 private:
  void decide() {
    round_ = now_ + 10;
    std::vector<JobView> views;
    for (const Job& job : jobs_) {
      views.push_back(job.view);
      if (!job.view.saves && !job.view.allocation.empty())
        views.back().unsaved_seconds = now_ - job.runs_since;
    }
    const Round round{now_, 10, cluster_, views};
    const Decisions decisions = policy_.decide(round);
    check_decisions(round, decisions);
    for (const Decision& change : decisions.changes) {
      Job& job = *std::ranges::find(jobs_, change.job, [](const Job& j) { return j.view.id; });
      if (change.allocation.empty()) {
        ++job.stops;
        if (job.view.saves) job.seconds -= now_ - job.runs_since;
      }
      if (!change.allocation.empty() && job.view.allocation.empty()) starts.push_back(change.job);
      job.view.allocation = change.allocation;
      job.view.last_change = job.runs_since = now_;
      if (!change.allocation.empty() && job.view.started < 0) job.view.started = now_;
    }
  }

  const Cluster cluster_;
  DuctilePolicy policy_;
  std::vector<Job> jobs_;
  double now_ = 0, round_ = 0;
};

std::vector<JobId> in_order(size_t count) {
  std::vector<JobId> out;
  for (size_t i = 1; i <= count; ++i) out.push_back(static_cast<JobId>(i));
  return out;
}

// Random arrivals on a random machine; all jobs of a world are alike. Commands run to their ends.
TEST(DuctileOrder, EqualJobsStartInTheOrderOfTheirArrivalAndNoneIsStopped) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed, 14);
    Machine machine(static_cast<int32_t>(1 + rng.below(6)));
    const size_t count = 5 + rng.below(60);
    const double length = rng.uniform(0.5, 90), apart = rng.uniform(0, 2) * length;
    for (size_t i = 0; i < count; ++i) {
      machine.submit(command(static_cast<JobId>(i + 1), machine.now()), length);
      machine.run(machine.now() + rng.uniform(0, 1) * apart);
    }
    machine.run(1e6);
    EXPECT_EQ(machine.starts, in_order(count)) << "seed " << seed;
    EXPECT_EQ(machine.present(), 0u) << "seed " << seed;
    for (const auto& [id, stops] : machine.stops)
      EXPECT_EQ(stops, 0) << "job " << id << ", seed " << seed;
  }
}

// The same of jobs whose length is declared, and of those that can be saved.
TEST(DuctileOrder, EqualJobsOfTrainingStartInTheOrderOfTheirArrival) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Rng rng(seed, 15);
    Machine machine(static_cast<int32_t>(1 + rng.below(4)));
    const double length = rng.uniform(5, 60);
    const bool declared = rng.below(2) == 0;
    const size_t count = 4 + rng.below(20);
    for (size_t i = 0; i < count; ++i) {
      JobView job = command(static_cast<JobId>(i + 1), machine.now());
      job.saves = true;
      if (declared) job.remaining = length;
      machine.submit(std::move(job), length);
      machine.run(machine.now() + rng.uniform(0, 1));
    }
    machine.run(1e6);
    EXPECT_EQ(machine.starts, in_order(count))
        << "seed " << seed << ": " << length << " s" << (declared ? ", declared" : "");
  }
}

// A steady stream of equal newer jobs, of which the machine could take each at once.
TEST(DuctileOrder, NobodyWaitsForEver) {
  Machine machine(1);
  machine.submit(command(1, 0), 4);
  machine.run(1.5);
  machine.submit(command(2, 1.5), 1);
  for (JobId id = 3; id < 200; ++id) {
    machine.submit(command(id, machine.now()), 1.3);
    machine.run(machine.now() + 1);
  }
  machine.run(1e5);
  EXPECT_EQ(machine.starts, in_order(199));
  EXPECT_LT(machine.ended_at[2], 6);
}

// Of random sizes, lengths and tiers: none that cannot be saved is stopped for its own tier or a
// lower one.
TEST(DuctileOrder, WhatCannotBeSavedIsStoppedForAHigherTierAlone) {
  const Cluster cluster = homogeneous_cluster(2, 4);
  int stopped = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed, 16);
    DuctilePolicy policy;
    std::vector<JobView> jobs;
    JobId next = 1;
    for (double now = 0; now < 600; now += 10) {
      for (uint32_t more = rng.below(4); more > 0 && jobs.size() < 16; --more) {
        jobs.push_back(command(next++, now, static_cast<int32_t>(1 << rng.below(3))));
        JobView& job = jobs.back();
        job.tier = static_cast<Tier>(rng.below(3));
        if (rng.below(3) == 0) job.remaining = rng.uniform(1, 1000);
        if (rng.below(4) == 0) job.saves = true;
        // Nothing of what it was promised has been kept yet.
        job.window = {now, now + 3600, 0, 600.0 * job.requested_devices};
      }
      const Round round{now, 10, cluster, jobs};
      const Decisions decisions = policy.decide(round);
      check_decisions(round, decisions);
      std::map<JobId, Allocation> after;
      for (const Decision& change : decisions.changes) after[change.job] = change.allocation;
      for (const JobView& job : jobs) {
        const auto found = after.find(job.id);
        if (job.saves || job.allocation.empty() || found == after.end()) continue;
        ++stopped;
        int32_t gained = 0;
        for (const JobView& other : jobs)
          if (other.tier < job.tier && after.contains(other.id))
            gained += std::max(0, device_count(after[other.id]) - device_count(other.allocation));
        EXPECT_GT(gained, 0) << "seed " << seed << ": " << job.name << ": " << found->second.size();
      }
      for (JobView& job : jobs) {
        if (const auto found = after.find(job.id); found != after.end()) {
          job.allocation = found->second;
          job.last_change = now;
        }
        job.attained_service += 10 * device_count(job.allocation);
      }
      std::erase_if(
          jobs, [&](const JobView& job) { return !job.allocation.empty() && rng.below(8) == 0; });
    }
  }
  RecordProperty("stopped", stopped);
}

// What stays leaves one device free on each node, and two would be faster.
TEST(DuctileOrder, AJobBeginsOnThePieceThatIsFree) {
  const Cluster cluster = homogeneous_cluster(2, 2);
  for (const bool serves : {false, true}) {
    DuctilePolicy policy;
    std::vector<JobView> jobs = {command(1, 0), command(2, 0), command(3, 0, 4)};
    for (int32_t node : {0, 1}) {
      JobView& job = jobs[static_cast<size_t>(node)];
      job.allocation = {{node, 1}};
      job.started = job.last_change = 0;
      if (!serves) continue;
      job.saves = true;
      job.service = ServiceView{.target = 0.1, .rate = {100}};
      job.service->load = job.service->peak = 10;
    }
    JobView& training = jobs[2];
    training.saves = true;
    training.scaling = Scaling::strong;
    training.min_devices = 1;
    training.remaining = 1e6;
    training.plans = {{0, 1, 4, 10}, {0, 2, 4, 20}, {0, 4, 4, 40}};
    const Round round{0, 10, cluster, jobs};
    const Decisions decisions = policy.decide(round);
    check_decisions(round, decisions);
    ASSERT_EQ(decisions.changes.size(), 1u) << policy.explain(3);
    EXPECT_EQ(decisions.changes[0].job, 3);
    EXPECT_EQ(device_count(decisions.changes[0].allocation), 1);
    // With both, nothing in one piece would do.
    training.min_devices = 2;
    DuctilePolicy other;
    EXPECT_TRUE(other.decide({0, 10, cluster, jobs}).changes.empty());
    EXPECT_NE(other.explain(3).find("only in pieces"), std::string::npos) << other.explain(3);
  }
}

// Pieces that are too small of the faster type, and one that would do of a slower one.
TEST(DuctileOrder, AJobBeginsOnThePieceOfAnotherType) {
  Cluster cluster = homogeneous_cluster(2, 2);
  cluster.add_nodes("slow", 1, 2);
  std::vector<JobView> jobs = {command(1, 0), command(2, 0), command(3, 0, 4)};
  for (JobView& job : jobs) job.types.push_back(job.types[0]);
  for (int32_t node : {0, 1}) {
    JobView& job = jobs[static_cast<size_t>(node)];
    job.allocation = {{node, 1}};
    job.started = job.last_change = 0;
  }
  JobView& training = jobs[2];
  training.saves = true;
  training.scaling = Scaling::strong;
  training.min_devices = 2;
  training.remaining = 1e6;
  training.plans = {{0, 2, 4, 40}, {0, 4, 4, 80}, {1, 2, 4, 10}};
  DuctilePolicy policy;
  const Round round{0, 10, cluster, jobs};
  const Decisions decisions = policy.decide(round);
  check_decisions(round, decisions);
  ASSERT_EQ(decisions.changes.size(), 1u) << policy.explain(3);
  EXPECT_EQ(decisions.changes[0].job, 3);
  EXPECT_EQ(decisions.changes[0].allocation, (Allocation{{2, 2}}));
}

// Services come before training, and nodes go: no device is given twice, whatever is kept.
TEST(DuctileOrder, ServicesAndNodesThatLeaveComeBeforeWhatIsKept) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed, 17);
    Cluster cluster = homogeneous_cluster(3, 4);
    DuctilePolicy policy;
    std::vector<JobView> jobs;
    for (JobId id = 1; id <= 14; ++id) {
      jobs.push_back(command(id, 0, static_cast<int32_t>(1 << rng.below(3))));
      jobs.back().tier = static_cast<Tier>(rng.below(3));
    }
    jobs[0].service = ServiceView{.target = 0.1, .rate = {100}};
    jobs[0].saves = true;
    jobs[0].requested_devices = jobs[0].min_devices = 1;
    jobs[0].max_devices = jobs[0].types[0].max_useful = 12;
    for (double now = 0; now < 300; now += 10) {
      jobs[0].service->load = jobs[0].service->peak = rng.uniform(0, 1200);
      const size_t node = rng.below(3);
      cluster.node_leaves_at[node] = rng.below(3) == 0 ? now + rng.below(60) : 1e9;
      const Round round{now, 10, cluster, jobs};
      const Decisions decisions = policy.decide(round);
      ASSERT_NO_THROW(check_decisions(round, decisions)) << "seed " << seed << " at " << now;
      for (const Decision& change : decisions.changes) {
        JobView& job = jobs[static_cast<size_t>(change.job - 1)];
        job.allocation = change.allocation;
        job.last_change = now;
        if (job.started < 0) job.started = now;
      }
    }
  }
}

TEST(DuctileOrder, WhoWaitsIsToldOfAllDevicesAndOfNoMoreThanThereAre) {
  Machine machine(2);
  for (JobId id = 1; id <= 40; ++id) machine.submit(command(id, machine.now()), 1000);
  EXPECT_EQ(machine.why(3),
            "waits: it can start on 1 t4. None of 2 are free: command-1 holds 1 and command-2 "
            "holds 1. It starts when 1 more is free");
  EXPECT_EQ(machine.why(40),
            "waits: it can start on 1 t4. None of 2 are free: command-1 holds 1 and command-2 "
            "holds 1; 37 other waiting jobs come before it. It starts after them");
}

}  // namespace
}  // namespace ductile::sched
