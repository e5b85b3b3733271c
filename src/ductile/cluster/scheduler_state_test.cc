// The policy joined with jobs whose changes take their time, without a process.
#include <map>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/cluster/scheduler.h"

namespace ductile::cluster {
namespace {

using nlohmann::json;

spec::Cluster two_nodes() {
  spec::NodeGroup group;
  group.type = "cpu";
  group.devices = 4;
  group.count = 2;
  group.hosts = {"one", "two"};
  return {{group}, {}};
}

// Jobs that come, start late, give up late, measure, and go. Follows from the seed alone.
class World {
 public:
  World(std::string policy, uint64_t seed, uint32_t restarts)
      : policy_(std::move(policy)), rng_(seed, 0x10a7), restart_(seed, 2), restarts_(restarts) {}

  std::string run() {
    for (int i = 0; i < rounds(); ++i) {
      now_ += rng_.uniform(0.1, 12);
      arrive();
      restart();
      work();
      for (const Allotment& a : scheduler_->decide(now_)) take(a);
      check();
    }
    return log_;
  }

 private:
  struct Job {
    JobDemand demand;
    spec::Allocation held, coming;
    double due = -1, granted_at = 0;  // -1: nothing is on its way
    int64_t steps = 0;
  };

  // The genetic search takes a hundred times as long as the others.
  int rounds() const { return policy_ == "pollux" ? 25 : 120; }

  void arrive() {
    if (jobs_.size() > 6 || rng_.below(3) != 0) return;
    Job job;
    job.demand.id = ++last_;
    job.demand.name = fmt::format("job-{}", last_);
    job.demand.application = last_ % 2 == 0 ? "even" : "";
    job.demand.arrival = now_;
    job.demand.min_devices = 1 + static_cast<int32_t>(rng_.below(2));
    job.demand.max_devices = job.demand.min_devices + static_cast<int32_t>(rng_.below(5));
    job.demand.batch = 64;
    scheduler_->add(job.demand);
    jobs_.emplace(last_, job);
  }

  void restart() {
    if (restarts_ == 0 || restart_.below(restarts_) != 0) return;
    const std::string text = dump_json(scheduler_->state());
    scheduler_ = std::make_unique<Scheduler>(two_nodes(), policy_, 10);
    for (auto& [id, job] : jobs_) scheduler_->add(job.demand);
    scheduler_->restore(parse_json(text, "state", ErrorCode::data_loss), now_);
    for (auto& [id, job] : jobs_)
      if (!job.held.empty()) scheduler_->holds(id, job.held, now_);
  }

  void work() {
    for (auto at = jobs_.begin(); at != jobs_.end();) {
      auto& [id, job] = *at;
      if (job.due >= 0 && job.due <= now_) {
        job.due = -1;
        job.held = job.coming;
        scheduler_->holds(id, job.held, now_);
        if (!job.held.empty()) scheduler_->paused(id, static_cast<double>(id % 20), id % 3 == 0);
      }
      if (!job.held.empty()) {
        const int32_t k = sched::device_count(job.held);
        scheduler_->measured(id, 100.0 * k / (1 + 0.05 * k));
        job.steps += rng_.below(60);
        scheduler_->progress(id, job.steps, 1000);
      }
      if (job.steps < 1000) {
        ++at;
        continue;
      }
      scheduler_->remove(id);
      at = jobs_.erase(at);
    }
  }

  void take(const Allotment& a) {
    log_ +=
        fmt::format("{:.3f} {} {} {}\n", now_, a.job, sched::device_count(a.allocation), a.reason);
    Job& job = jobs_.at(a.job);
    EXPECT_TRUE(job.due < 0 || now_ - job.granted_at > 60 || job.coming.empty())
        << "job " << a.job << " at " << now_ << ": " << a.reason;
    job.coming = a.allocation;
    job.granted_at = now_;
    // With restarts nothing may be on its way: of that the next service knows nothing.
    job.due = restarts_ > 0 || only_prompt ? now_ : now_ + rng_.uniform(0, 50);
    if (job.due <= now_) {
      job.due = -1;
      job.held = job.coming;
      scheduler_->holds(a.job, job.held, now_);
      if (!job.held.empty())
        scheduler_->paused(a.job, static_cast<double>(a.job % 20), a.job % 3 == 0);
    }
  }

  // What is held and will be held fits at any time.
  void check() {
    int32_t sum = 0;
    for (const auto& [id, job] : jobs_)
      sum += sched::device_count(job.due >= 0 ? job.coming : job.held);
    EXPECT_LE(sum, 8) << "at " << now_;
    most_ = std::max(most_, sum);
  }

 public:
  bool only_prompt = false;
  int32_t most() const { return most_; }

 private:
  std::string policy_;
  Rng rng_, restart_;
  uint32_t restarts_;
  std::unique_ptr<Scheduler> scheduler_ = std::make_unique<Scheduler>(two_nodes(), policy_, 10);
  std::map<JobId, Job> jobs_;
  JobId last_ = 0;
  double now_ = 1e9;
  int32_t most_ = 0;
  std::string log_;
};

TEST(SchedulerState, ASlowStartIsNeitherGrantedTwiceNorTakenBack) {
  for (const std::string& policy : sched::policy_names())
    for (uint64_t seed = 0; seed < (policy == "pollux" ? 1 : 6) && !HasFailure(); ++seed) {
      SCOPED_TRACE(fmt::format("{}, seed {}", policy, seed));
      World world(policy, seed, 0);
      world.run();
      EXPECT_GT(world.most(), 4);
    }
}

TEST(SchedulerState, OneThatGoesOnFromWhatItHadLearntDecidesTheSame) {
  for (const std::string& policy : sched::policy_names())
    for (uint64_t seed = 0; seed < (policy == "pollux" ? 1 : 4); ++seed) {
      SCOPED_TRACE(fmt::format("{}, seed {}", policy, seed));
      World never(policy, seed, 0), often(policy, seed, 4);
      never.only_prompt = true;
      EXPECT_EQ(never.run(), often.run());
    }
}

// Nothing is gained or lost by a pause, also where another service goes on with the job.
TEST(SchedulerState, WhatAPausedJobHasLearntIsThereWhenItGoesOn) {
  JobDemand one;
  one.id = 1;
  one.name = "one";
  one.arrival = 100;
  one.max_devices = 4;
  one.batch = 64;
  Scheduler scheduler(two_nodes(), "ductile", 10);
  scheduler.add(one);
  for (const Allotment& a : scheduler.decide(100)) scheduler.holds(a.job, a.allocation, 100);
  scheduler.measured(1, 100);
  scheduler.paused(1, 7, true);
  scheduler.progress(1, 50, 1000);
  scheduler.decide(200);
  scheduler.holds(1, {}, 200);
  const json before = scheduler.state().at("jobs").at(0);
  EXPECT_GE(before.at("service").get<double>(), 100);
  scheduler.remove(1, false);
  EXPECT_FALSE(scheduler.knows(1));
  EXPECT_EQ(scheduler.state().at("jobs").at(0), before);
  scheduler.add(one);
  EXPECT_EQ(scheduler.state().at("jobs").at(0), before);
  scheduler.remove(1, false);

  Scheduler next(two_nodes(), "ductile", 10);
  next.set_aside(1);
  next.restore(scheduler.state(), 300);
  EXPECT_EQ(next.state().at("jobs").at(0), before);
  next.add(one);
  EXPECT_EQ(next.state().at("jobs").at(0), before);
  next.remove(1);
  EXPECT_TRUE(next.state().at("jobs").empty());

  // One that is cancelled while it is paused leaves nothing, and a damaged state is learnt anew.
  scheduler.remove(1);
  EXPECT_TRUE(scheduler.state().at("jobs").empty());
  json damaged = next.state();
  damaged["jobs"] = json::array({before});
  damaged["jobs"][0]["steps"] = "many";
  next.set_aside(1);
  next.restore(damaged, 300);
  next.add(one);
  EXPECT_TRUE(next.state().at("jobs").empty());
}

TEST(SchedulerState, AGrantThatIsOverdueOrWithdrawnIsDecidedAnew) {
  Scheduler s(two_nodes(), "fifo", 10);
  s.add({.id = 1, .name = "a", .min_devices = 2, .max_devices = 2, .batch = 8});
  ASSERT_EQ(s.decide(1).size(), 1u);
  ASSERT_TRUE(s.on_its_way(1));
  EXPECT_TRUE(s.decide(30).empty());
  EXPECT_NE(s.why(1).find("on its way"), std::string::npos) << s.why(1);
  s.withdrawn(1);
  EXPECT_FALSE(s.on_its_way(1));
  ASSERT_EQ(s.decide(40).size(), 1u);
  s.drain(s.on_its_way(1)->front().node, true);
  const std::vector<Allotment> moved = s.decide(50);
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_FALSE(moved[0].allocation.empty());
  s.holds(1, moved[0].allocation, 51);
  EXPECT_FALSE(s.on_its_way(1));
}

TEST(SchedulerState, ADamagedStateIsRefusedAndAllBeginsAnew) {
  World world("ductile", 1, 0);
  Scheduler s(two_nodes(), "ductile", 10);
  s.add({.id = 1, .name = "a", .max_devices = 4, .batch = 64});
  s.decide(1);
  s.holds(1, {{0, 1}}, 2);
  s.measured(1, 50);
  s.paused(1, 9, true);
  json good = s.state();
  const std::string fresh = [&] {
    Scheduler other(two_nodes(), "ductile", 10);
    other.add({.id = 1, .name = "a", .max_devices = 4, .batch = 64});
    return other.state().dump();
  }();
  for (const char* path : {"/memory/slots", "/jobs/0/agent/version", "/measured", "/types",
                           "/pause", "/jobs/0/pause"}) {
    json bad = good;
    bad[json::json_pointer(path)] = "x";
    Scheduler other(two_nodes(), "ductile", 10);
    other.add({.id = 1, .name = "a", .max_devices = 4, .batch = 64});
    try {
      other.restore(bad, 2);
      ADD_FAILURE() << path;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::data_loss) << e.what();
      EXPECT_NE(e.message().find("learnt anew"), std::string::npos) << e.what();
    }
    EXPECT_EQ(other.state().dump(), fresh) << path;
  }
  Scheduler sia(two_nodes(), "sia", 10);  // what another policy had learnt is of no use
  sia.restore(good, 2);
}

// The state was saved by a service whose clock was ahead.
TEST(SchedulerState, WhatWasLearntUnderAClockThatWasAheadIsNotLaterThanNow) {
  constexpr double kNow = 1e9, kAhead = kNow + 30 * 86400;
  const auto made = [](double arrival) {
    auto out = std::make_unique<Scheduler>(two_nodes(), "ductile", 10);
    for (JobId id = 1; id <= 3; ++id)
      out->add({.id = id, .name = "j", .arrival = arrival, .max_devices = 8, .batch = 64});
    return out;
  };
  const auto first = made(kAhead);
  first->decide(kAhead);
  first->holds(1, {{0, 4}, {1, 4}}, kAhead + 1);
  for (JobId id = 2; id <= 3; ++id) first->withdrawn(id);
  first->decide(kAhead + 10);
  const json saved = first->state();
  const auto next = made(kNow);
  next->restore(saved, kNow);
  next->holds(1, {{0, 4}, {1, 4}}, kNow);
  next->decide(kNow + 10);
  next->decide(kNow + 20);
  const json state = next->state();
  for (const json& job : state.at("jobs"))
    for (const char* key : {"started", "last_change", "accounted"})
      EXPECT_LE(job.at(key).get<double>(), kNow + 20) << key;
  const auto service = [](const json& of) {
    return of.at("jobs").at(0).at("service").get<double>();
  };
  EXPECT_GT(service(state), service(saved)) << "it is counted from now on";
  for (const json& job : state.at("memory").at("jobs")) {
    for (const json& time : job.at("times")) EXPECT_LE(time.get<double>(), kNow + 20) << job;
    EXPECT_GE(job.at("fair_progress").get<double>(), 0) << job;
  }
}

// Two days, in which the machine was off: under `srtf` a command keeps its devices from short jobs
// for about as long as it has run.
TEST(SchedulerState, TheTimeWithoutAServiceIsNoWorkOfItsJobs) {
  constexpr double kBegin = 1e9, kAgain = kBegin + 2 * 86400;
  const std::vector<spec::NodeShare> all = {{0, 4}, {1, 4}};
  const auto made = [] {
    auto out = std::make_unique<Scheduler>(two_nodes(), "srtf", 10);
    out->add({.id = 1, .name = "j", .arrival = kBegin, .max_devices = 8, .batch = 64});
    return out;
  };
  const auto first = made();
  first->decide(kBegin);
  first->holds(1, all, kBegin);
  first->decide(kBegin + 10);
  const json saved = first->state();
  const auto next = made();
  next->restore(saved, kAgain);
  next->holds(1, all, kAgain);
  next->decide(kAgain);
  const auto service = [](const json& of) {
    return of.at("jobs").at(0).at("service").get<double>();
  };
  EXPECT_LE(service(next->state()), service(saved) + 8 * 10.0);
}

// A command that finds no node with room for it is not shown to the policy in each round.
TEST(SchedulerState, WhatAJobHasWaitedForIsKeptWhileItIsHidden) {
  Scheduler scheduler(two_nodes(), "srtf", 10);
  for (JobId id = 1; id <= 2; ++id)
    scheduler.add({.id = id, .name = "j", .max_devices = 1, .batch = 64});
  scheduler.decide(0);
  scheduler.holds(1, {{0, 1}}, 0);
  scheduler.holds(2, {{1, 1}}, 0);
  scheduler.add({.id = 3,
                 .name = "c",
                 .arrival = 1,
                 .rigid = true,
                 .one_node = true,
                 .min_devices = 4,
                 .max_devices = 4,
                 .batch = 1});
  for (int round = 1; round <= 8; ++round) {
    scheduler.decide(10 * round);
    int found = 0;
    const json state = scheduler.state();
    for (const json& job : state.at("memory").at("jobs")) found += job.at(0) == 3;
    EXPECT_EQ(found, 1) << "round " << round;
  }
}

}  // namespace
}  // namespace ductile::cluster
