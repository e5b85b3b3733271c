// Who takes GPUs from whom, and which nodes are kept for whom.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/testing/demands.h"
#include "ductile/cluster/testing/obedient_world.h"

namespace ductile::cluster {
namespace {

using sched::Tier;
using testing::demand;
using testing::kInterval;
using testing::ObedientWorld;
using testing::one_machine;
using testing::some_nodes;

JobDemand on_gpus(JobId id, int32_t gpus, Tier tier, int32_t devices = 1) {
  JobDemand out = demand(id, devices, devices, static_cast<double>(id), true);
  out.gpus = gpus;
  out.one_node = true;
  out.tier = tier;
  return out;
}

TEST(TakenGpus, AHigherTierTakesThemFromALowerOneUnderEachPolicy) {
  for (const std::string& policy : sched::policy_names()) {
    ObedientWorld world(one_machine(8), policy);
    world.scheduler.has_gpus(0, 2);
    world.add(on_gpus(1, 2, Tier::basic));
    world.decide(8);
    ASSERT_TRUE(world.runs(1)) << policy;
    world.add(on_gpus(2, 1, Tier::standard));
    world.decide(4);
    EXPECT_TRUE(world.runs(2)) << policy << ": " << world.scheduler.why(2);
    EXPECT_FALSE(world.runs(1)) << policy;
    EXPECT_EQ(world.reasons[1], "job 2 (job2) of tier standard needs its GPUs") << policy;
    EXPECT_FALSE(world.scheduler.claim()) << policy << ": it has what it waited for";
    world.remove(2);
    world.decide(8);
    EXPECT_TRUE(world.runs(1)) << policy << ": it goes on. " << world.scheduler.why(1);
  }
}

TEST(TakenGpus, NobodyTakesThemFromItsOwnTierOrFromAHigherOne) {
  for (const std::string& policy : sched::policy_names()) {
    for (const Tier tier : {Tier::premium, Tier::standard, Tier::basic}) {
      if (policy == "pollux" && tier != Tier::standard) continue;  // it takes its time
      ObedientWorld world(one_machine(8), policy);
      world.scheduler.has_gpus(0, 2);
      world.add(on_gpus(1, 2, Tier::standard));
      world.decide(8);
      ASSERT_TRUE(world.runs(1)) << policy;
      world.add(on_gpus(2, 2, tier));
      world.decide(20);
      EXPECT_EQ(world.runs(1), tier != Tier::premium) << policy;
    }
  }
}

TEST(TakenGpus, WhereTheyAreFreeNobodyIsStopped) {
  for (const std::string& policy : sched::policy_names()) {
    ObedientWorld world(some_nodes(2, 4), policy);
    world.scheduler.has_gpus(0, 2);
    world.scheduler.has_gpus(1, 2);
    world.add(on_gpus(1, 2, Tier::basic));
    world.decide(8);
    world.add(on_gpus(2, 2, Tier::premium));
    world.decide(8);
    EXPECT_TRUE(world.runs(1)) << policy;
    EXPECT_TRUE(world.runs(2)) << policy;
  }
}

TEST(TakenGpus, AsFewAsCanBeAreStoppedAndOfTheLowestTier) {
  ObedientWorld world(some_nodes(2, 8), "fifo");
  world.scheduler.has_gpus(0, 4);
  world.add(on_gpus(1, 3, Tier::basic));
  world.decide();
  world.add(on_gpus(2, 1, Tier::basic));
  world.decide();
  world.scheduler.has_gpus(1, 4);
  world.add(on_gpus(3, 4, Tier::standard));
  world.decide();
  ASSERT_EQ(world.held[3], (spec::Allocation{{1, 1}}));
  world.add(on_gpus(4, 3, Tier::premium));
  world.decide(4);
  EXPECT_EQ(world.held[4], (spec::Allocation{{0, 1}}));
  EXPECT_FALSE(world.runs(1));
  EXPECT_TRUE(world.runs(2)) << "its GPU would not have been enough, and is not needed";
  EXPECT_TRUE(world.runs(3)) << "its tier is higher than that of the others";
}

// The devices of its node are a service's, or those of a job that can do with fewer.
TEST(TakenGpus, DevicesAreTakenWithThemButNotFromServices) {
  for (const bool serves : {true, false}) {
    ObedientWorld world(some_nodes(1, 4), "ductile");
    world.scheduler.has_gpus(0, 1);
    JobDemand other = demand(1, serves ? 3 : 1, 3);
    other.tier = Tier::basic;
    if (serves) other.target = 1;
    world.add(other);
    world.add(on_gpus(2, 1, Tier::basic));
    world.decide(8);
    ASSERT_TRUE(world.runs(1));
    ASSERT_TRUE(world.runs(2)) << world.scheduler.why(2);
    world.add(on_gpus(3, 1, Tier::premium, 3));
    world.decide(8);
    EXPECT_EQ(world.runs(3), !serves);
    EXPECT_EQ(world.runs(2), serves) << "nobody is stopped for nothing";
    EXPECT_TRUE(world.runs(1));
  }
}

TEST(TakenGpus, ATeamAtItsQuotaTakesNone) {
  for (const bool full : {true, false}) {
    ObedientWorld world(one_machine(8, {{"a", full ? 1 : 2}}), "fifo");
    world.scheduler.has_gpus(0, 2);
    JobDemand own = on_gpus(1, 1, Tier::standard), other = on_gpus(2, 1, Tier::basic),
              more = on_gpus(3, 1, Tier::standard);
    own.team = more.team = 1;
    world.add(own);
    world.add(other);
    world.decide(4);
    ASSERT_TRUE(world.runs(1) && world.runs(2));
    world.add(more);
    world.decide(20);
    EXPECT_EQ(world.runs(2), full);
    EXPECT_EQ(world.runs(3), !full);
    const auto& claim = world.scheduler.claim();
    EXPECT_FALSE(claim && claim->job == 3) << "nothing is kept for who may not have it";
  }
}

// A GPU that its job has and that failed is free for nobody when the job has gone.
TEST(TakenGpus, OnesThatHaveFailedAreTakenFromNobody) {
  ObedientWorld world(one_machine(8), "fifo");
  world.scheduler.has_gpus(0, 2);
  world.add(on_gpus(1, 2, Tier::basic));
  world.decide(2);
  ASSERT_TRUE(world.runs(1));
  world.scheduler.has_gpus(0, 1, 1);
  world.add(on_gpus(2, 2, Tier::premium));
  world.decide(20);
  EXPECT_TRUE(world.runs(1));
}

// Where no other node has its GPUs it is stopped there all the same.
TEST(TakenGpus, AJobLeavesADrainedNodeAlsoWhereNoOtherOneHasItsGpus) {
  for (const std::string& policy : sched::policy_names()) {
    ObedientWorld world(some_nodes(2, 4), policy);
    world.scheduler.has_gpus(0, 1);
    world.add(on_gpus(1, 1, Tier::standard));
    world.decide(8);
    ASSERT_EQ(world.held[1], (spec::Allocation{{0, 1}})) << policy;
    world.scheduler.drain(0, true);
    world.decide(2);
    EXPECT_FALSE(world.runs(1)) << policy;
    world.scheduler.drain(0, false);
    world.decide(8);
    EXPECT_TRUE(world.runs(1)) << policy;
  }
}

// One that waits for all GPUs of a node where another one of its tier has one for ever.
class Claims : public ::testing::Test {
 protected:
  Claims() {
    world.scheduler.has_gpus(0, 4);
    world.add(on_gpus(1, 1, Tier::standard));
    world.decide();
    world.add(on_gpus(2, 4, Tier::standard));
    while (!world.scheduler.claim() && world.now < 1000) world.decide();
    EXPECT_EQ(world.scheduler.claim(), (Scheduler::Claim{2, 0, world.now - kInterval}));
  }
  ObedientWorld world{some_nodes(1, 8), "fifo"};
};

TEST_F(Claims, IsKeptFromTheSameTimeOnAsLongAsItsJobWaits) {
  const auto claim = world.scheduler.claim();
  world.decide(20);
  EXPECT_EQ(world.scheduler.claim(), claim);
  world.remove(1);
  world.decide(2);
  EXPECT_TRUE(world.runs(2));
  EXPECT_FALSE(world.scheduler.claim());
}

TEST_F(Claims, EndsWithItsJob) {
  world.remove(2);
  EXPECT_FALSE(world.scheduler.claim());
  world.add(on_gpus(3, 3, Tier::standard));
  world.decide(2);
  EXPECT_TRUE(world.runs(3)) << "what was kept is free";
}

TEST_F(Claims, EndsWhenItsJobIsHeld) {
  world.scheduler.remove(2, false);
  EXPECT_FALSE(world.scheduler.claim());
  world.add(on_gpus(2, 4, Tier::standard));  // it is to go on
  world.decide(2);
  EXPECT_FALSE(world.scheduler.claim()) << "it has not waited for long";
}

TEST_F(Claims, EndsWhenItsJobAsksForSomethingElse) {
  world.scheduler.set_bounds(2, 2, 2);
  EXPECT_FALSE(world.scheduler.claim());
  world.decide(2);
  EXPECT_FALSE(world.scheduler.claim());
  while (!world.scheduler.claim() && world.now < 1000) world.decide();
  EXPECT_TRUE(world.scheduler.claim());
}

TEST_F(Claims, EndsWhenItsJobCanFitNowhere) {
  world.scheduler.has_gpus(0, 2, 1);
  world.decide();
  EXPECT_FALSE(world.scheduler.claim());
  world.scheduler.has_gpus(0, 4);
  world.decide();
  EXPECT_TRUE(world.scheduler.claim());
  world.scheduler.drain(0, true);
  world.decide();
  EXPECT_FALSE(world.scheduler.claim());
}

// What others give up there is not taken by a job that could do without.
TEST(Scheduler, WhereRoomIsKeptNobodyGrows) {
  for (const char* policy : {"ductile", "sia"}) {
    ObedientWorld world(some_nodes(1, 4), policy);
    world.scheduler.has_gpus(0, 1);
    world.add(on_gpus(1, 1, Tier::standard, 2));
    world.decide(2);
    ASSERT_TRUE(world.runs(1)) << policy;
    world.add(demand(2, 1, 4, 5));
    world.decide(2);
    ASSERT_TRUE(world.runs(2)) << policy;
    world.add(on_gpus(3, 1, Tier::standard, 2));
    world.add(demand(4, 1, 4, 4));
    for (; !world.scheduler.claim() && world.now < 1000; world.decide())
      for (const JobId id : {2, 4})
        if (world.runs(id)) world.scheduler.measured(id, 100.0 * world.devices(id));
    ASSERT_TRUE(world.scheduler.claim()) << policy;
    world.remove(1);
    world.decide(4);
    EXPECT_TRUE(world.runs(3)) << policy << ": " << world.scheduler.why(3);
  }
}

// Jobs of all tiers that come and go, with and without GPUs, whose ends take a while; nodes that
// are drained. Held is what a job's processes have, granted what it is to have.
class RandomWorld {
 public:
  RandomWorld(std::string policy, uint64_t seed)
      : policy_(std::move(policy)),
        rng_(seed),
        scheduler_(some_nodes(kNodes, kDevices), policy_, kInterval) {
    for (int32_t node = 0; node < kNodes; node += 2) scheduler_.has_gpus(node, kGpus);
    JobDemand service = demand(1, 1, 1, 0);
    service.target = 1;
    service.tier = Tier::basic;
    add(service, 1 << 30);
    next_ = 2;
  }

  void run() {
    constexpr int kArrivals = 60, kMost = 700;
    for (int round = 0; round < kMost && !::testing::Test::HasFatalFailure(); ++round) {
      if (round >= kArrivals && jobs_.size() == 1) break;
      if (round < kArrivals) change_something();
      if (round == kArrivals)
        for (int32_t node = 0; node < kNodes; ++node) scheduler_.drain(node, false);
      turn(round * kInterval);
    }
    for (const auto& [id, job] : jobs_)
      EXPECT_EQ(id, 1) << policy_ << ": waits for ever: " << scheduler_.why(id);
  }
  int64_t taken() const { return taken_; }

 private:
  static constexpr int32_t kNodes = 4, kDevices = 4, kGpus = 3;
  struct Job {
    JobDemand demand;
    spec::Allocation granted, held;
    int lasts = 0, stops_in = -1;  // rounds; -1: it does not stop
  };

  void add(const JobDemand& demand, int lasts) {
    scheduler_.add(demand);
    Job& job = jobs_[demand.id];
    job.demand = demand;
    job.lasts = lasts;
  }

  void remove(JobId id, bool ended) {
    scheduler_.remove(id, ended);
    jobs_.erase(id);
  }

  void change_something() {
    if (rng_.below(3) != 0) {
      const auto tier = static_cast<Tier>(rng_.below(3));
      const auto gpus = static_cast<int32_t>(rng_.below(kGpus + 1));
      JobDemand job = gpus > 0 ? on_gpus(next_, gpus, tier, 1 + static_cast<int32_t>(rng_.below(3)))
                               : demand(next_, 1, 1 + static_cast<int32_t>(rng_.below(4)));
      job.tier = tier;
      job.arrival = static_cast<double>(next_);
      add(job, 1 + static_cast<int>(rng_.below(12)));
      ++next_;
    }
    // Cancelled, or held.
    if (rng_.below(8) == 0) {
      const auto id = static_cast<JobId>(2 + rng_.below(static_cast<uint32_t>(next_)));
      if (const auto found = jobs_.find(id); found != jobs_.end() && found->second.held.empty())
        remove(id, rng_.below(2) == 0);
    }
    if (rng_.below(10) == 0)
      scheduler_.drain(static_cast<int32_t>(rng_.below(kNodes)), rng_.below(2) == 0);
  }

  void turn(double now) {
    std::vector<JobId> done;
    for (auto& [id, job] : jobs_) {
      if (job.stops_in >= 0 && job.stops_in-- == 0) {
        job.held.clear();
        scheduler_.holds(id, {}, now);
      } else if (!job.held.empty() && job.stops_in < 0 && --job.lasts <= 0) {
        done.push_back(id);
      }
    }
    for (const JobId id : done) remove(id, true);
    for (const Allotment& a : scheduler_.decide(now)) obey(a, now);
    check();
    for (auto& [id, job] : jobs_) start(id, job, now);
  }

  void obey(const Allotment& a, double now) {
    Job& job = jobs_.at(a.job);
    job.granted = a.allocation;
    if (a.reason.find(" needs its ") != std::string::npos) {
      ++taken_;
      const auto& claim = scheduler_.claim();
      ASSERT_TRUE(claim) << policy_;
      EXPECT_LT(jobs_.at(claim->job).demand.tier, job.demand.tier) << policy_;
      EXPECT_FALSE(job.demand.target) << policy_ << ": from a service";
    }
    if (job.held.empty() || job.stops_in >= 0) return;
    if (!job.demand.one_node && !a.allocation.empty()) {  // it goes on with fewer or more
      if (!fits(job, a.allocation)) return;
      job.held = a.allocation;
      scheduler_.holds(a.job, job.held, now);
    } else if (a.allocation != job.held) {
      job.stops_in = static_cast<int>(rng_.below(3));
    }
  }

  bool fits(const Job& job, const spec::Allocation& wanted) const {
    std::map<int32_t, int32_t> devices, gpus;
    for (const auto& [id, other] : jobs_) {
      if (&other == &job) continue;
      for (const spec::NodeShare& share : other.held) devices[share.node] += share.devices;
      if (!other.held.empty()) gpus[other.held.front().node] += other.demand.gpus;
    }
    for (const spec::NodeShare& share : wanted)
      if (devices[share.node] + share.devices > kDevices) return false;
    return gpus[wanted.front().node] + job.demand.gpus <=
           std::max(job.demand.gpus == 0 ? kGpus : 0, gpus_of(wanted.front().node));
  }

  void start(JobId id, Job& job, double now) {
    if (job.granted == job.held || job.granted.empty() || job.stops_in >= 0) return;
    if (!job.held.empty() && job.demand.one_node) return;
    if (!fits(job, job.granted)) return;
    job.held = job.granted;
    scheduler_.holds(id, job.held, now);
  }

  static int32_t gpus_of(int32_t node) { return node % 2 == 0 ? kGpus : 0; }

  void check() {
    std::map<int32_t, int32_t> gpus;
    for (const auto& [id, job] : jobs_) {
      if (job.demand.gpus == 0 || job.granted.empty()) continue;
      ASSERT_EQ(job.granted.size(), 1u) << policy_;
      gpus[job.granted.front().node] += job.demand.gpus;
    }
    for (const auto& [node, count] : gpus)
      ASSERT_LE(count, gpus_of(node)) << policy_ << ": a GPU was given twice";
    if (const auto& claim = scheduler_.claim()) {
      ASSERT_TRUE(jobs_.contains(claim->job)) << policy_ << ": a claim outlives its job";
      ASSERT_TRUE(jobs_.at(claim->job).held.empty() || jobs_.at(claim->job).stops_in >= 0)
          << policy_ << ": a claim outlives its wait";
    }
  }

  const std::string policy_;
  Rng rng_;
  Scheduler scheduler_;
  std::map<JobId, Job> jobs_;
  JobId next_ = 1;
  int64_t taken_ = 0;
};

TEST(TakenGpus, InRandomWorldsNoneIsGivenTwiceNoClaimOutlivesItsJobAndNobodyWaitsForEver) {
  for (const std::string& policy : sched::policy_names()) {
    const uint64_t seeds = policy == "fifo" || policy == "ductile" ? 6 : policy == "pollux" ? 1 : 2;
    int64_t taken = 0;
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
      RandomWorld world(policy, seed);
      world.run();
      taken += world.taken();
    }
    EXPECT_GT(taken, 0) << policy;
  }
}

}  // namespace
}  // namespace ductile::cluster
