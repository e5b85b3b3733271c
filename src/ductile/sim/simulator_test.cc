#include "ductile/sim/simulator.h"

#include <cmath>
#include <cstdlib>
#include <map>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/noise/noise_scale.h"
#include "ductile/sim/job_run_impl.h"
#include "ductile/sim/metrics.h"
#include "ductile/sim/report.h"
#include "ductile/sim/testing/checked_run.h"

namespace ductile::sim {
namespace {

using testing::catalog;
using testing::run;

Workload small_workload(uint64_t seed, int64_t jobs) {
  SyntheticOptions options;
  options.seed = seed;
  options.jobs = jobs;
  options.hours = 0.05 * static_cast<double>(jobs);
  Workload workload = synthetic_workload(options, catalog());
  for (Submission& job : workload.jobs) {
    // Minutes long, whatever it is.
    const Application& app = catalog().find(job.application);
    Rng rng(seed, 2, static_cast<uint64_t>(&job - workload.jobs.data()));
    job.work = rng.uniform(120, 1500) /
               alone_seconds(job, app, catalog().rules, sched::homogeneous_cluster(2, 4), 2);
  }
  return workload;
}

// What holds at the end of any run.
void expect_sound(const Workload& workload, const SimResult& result,
                  const sched::Cluster& cluster) {
  ASSERT_EQ(result.jobs.size(), workload.jobs.size());
  std::vector<double> held(result.jobs.size(), 0);
  // Devices in use at each change, by node: never more than there are.
  std::map<std::pair<int32_t, double>, int32_t> change;
  for (const Segment& segment : result.timeline) {
    EXPECT_LT(segment.from, segment.to);
    held[segment.job] += (segment.to - segment.from) * sched::device_count(segment.allocation);
    for (const sched::NodeShare& share : segment.allocation) {
      change[{share.node, segment.from}] += share.devices;
      change[{share.node, segment.to}] -= share.devices;
    }
  }
  int32_t node = -1, used = 0;
  for (const auto& [at, devices] : change) {
    if (at.first != node) used = 0;
    node = at.first;
    used += devices;
    EXPECT_LE(used, cluster.node_devices[node]);
  }
  for (size_t j = 0; j < result.jobs.size(); ++j) {
    const JobResult& job = result.jobs[j];
    EXPECT_GE(job.start, job.arrival) << job.name;
    if (job.served)
      EXPECT_EQ(job.finish, job.arrival + workload.jobs[j].service->seconds) << job.name;
    else
      EXPECT_GT(job.finish, job.start) << job.name;
    // The account of device time sums up to what was held.
    EXPECT_NEAR(job.service, held[j], 1e-6 * (1 + held[j])) << job.name;
    EXPECT_GE(job.restarts, job.node_losses > 0 && !job.served ? 1 : 0);
    // Windows follow each other; none is granted more than was held.
    double granted = 0, from = job.arrival;
    for (const sched::SlaWindow& window : job.windows) {
      EXPECT_NEAR(window.from, from, 1e-6);
      EXPECT_LE(window.asked, (window.to - window.from) * workload.jobs[j].devices + 1e-6);
      granted += window.granted;
      from = window.to;
    }
    EXPECT_LE(granted, job.service * (1 + 1e-9) + 1e-6);
  }
}

TEST(Simulator, EveryPolicyFinishesTheSameWork) {
  const Workload workload = small_workload(1, 24);
  const sched::Cluster cluster = sched::homogeneous_cluster(4, 4);
  for (const std::string& policy : sched::policy_names()) {
    SCOPED_TRACE(policy);
    const SimResult result = run(policy, workload, cluster);
    expect_sound(workload, result, cluster);
    const Summary summary = summarise(result, workload, catalog(), cluster);
    EXPECT_EQ(summary.jobs, 24);
    EXPECT_GT(summary.utilisation, 0);
    EXPECT_LE(summary.utilisation, 1 + 1e-9);
    EXPECT_LE(summary.median, summary.p90);
    EXPECT_LE(summary.p90, summary.p99);
    for (const JobResult& job : result.jobs) EXPECT_LE(job.finish, summary.makespan);
  }
}

TEST(Simulator, WithAllDevicesGoneForGoodItSaysSoAtOnce) {
  const Workload workload = small_workload(1, 8);
  const sched::Cluster cluster = sched::homogeneous_cluster(2, 4);
  SimOptions options;
  options.scenario = parse_scenario(
      "[[fault]]\nkind = \"node_loss\"\nat = 300\nfor = 100\nevery = 500\ncount = 3\nnode = 0\n"
      "[[fault]]\nkind = \"node_loss\"\nat = 2000\nnode = 0\n"
      "[[fault]]\nkind = \"reclaim\"\nat = 2100\nnode = 1\n",
      "s.toml");
  int64_t rounds = 0;
  options.progress = [&](const SimProgress& at) { rounds = static_cast<int64_t>(at.now / 60); };
  for (const std::string& policy : sched::policy_names()) {
    SCOPED_TRACE(policy);
    try {
      run(policy, workload, cluster, options);
      ADD_FAILURE() << "it ended";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string_view(e.what()).find("all 2 nodes are gone for good"),
                std::string_view::npos)
          << e.what();
    }
    EXPECT_LT(rounds, 100) << "not after the longest time that a simulation may take";
  }
}

TEST(Simulator, ItWaitsForDevicesThatComeBackHoweverLate) {
  const Workload workload = small_workload(1, 8);
  const sched::Cluster cluster = sched::homogeneous_cluster(2, 4);
  SimOptions options;
  options.scenario = parse_scenario(
      "[[fault]]\nkind = \"node_loss\"\nat = 300\nfor = 90000\nnodes = [0, 1]\n", "s.toml");
  for (const std::string& policy : sched::policy_names()) {
    SCOPED_TRACE(policy);
    const SimResult result = run(policy, workload, cluster, options);
    expect_sound(workload, result, cluster);
    EXPECT_GT(result.end, 90300);
  }
}

TEST(Simulator, AScenarioMayEndBeforeItsJobs) {
  const Workload workload = small_workload(1, 24);
  const sched::Cluster cluster = sched::homogeneous_cluster(2, 4);
  const SimResult whole = run("fifo", workload, cluster);
  SimOptions options;
  options.scenario = parse_scenario("until = 5000\n", "s.toml");
  ASSERT_LT(workload.jobs.back().time, 5000);
  const SimResult cut = run("fifo", workload, cluster, options);
  EXPECT_EQ(cut.end, 5000);
  int64_t unfinished = 0;
  for (size_t j = 0; j < cut.jobs.size(); ++j) {
    EXPECT_EQ(cut.jobs[j].finished, whole.jobs[j].finish < 5000) << j;
    EXPECT_EQ(cut.jobs[j].finish, std::min(whole.jobs[j].finish, 5000.0)) << j;
    unfinished += !cut.jobs[j].finished;
  }
  const Summary summary = summarise(cut, workload, catalog(), cluster);
  ASSERT_GT(unfinished, 0);
  ASSERT_LT(unfinished, 24);
  EXPECT_EQ(summary.unfinished, unfinished);
  EXPECT_EQ(summary.tiers[0].finished + summary.tiers[1].finished + summary.tiers[2].finished,
            24 - unfinished);
  double sum = 0;
  for (const JobResult& job : cut.jobs) sum += job.finished ? job.jct() : 0;
  EXPECT_NEAR(summary.mean, sum / static_cast<double>(24 - unfinished), 1e-6);
  options.scenario = parse_scenario("until = 100\n", "s.toml");
  try {
    run("fifo", workload, cluster, options);
    ADD_FAILURE() << "a job arrives after the end";
  } catch (const Error& e) {
    EXPECT_NE(std::string_view(e.what()).find("the scenario ends at 100 s"), std::string_view::npos)
        << e.what();
  }
}

TEST(Simulator, WorkThatIsLostWithANodeIsCounted) {
  Workload workload = small_workload(1, 1);
  Submission& job = workload.jobs[0];
  job.application = "bert";  // which has two long epochs
  job.batch = 0;
  job.work = 1;
  job.work = 4000 / alone_seconds(job, catalog().find("bert"), catalog().rules,
                                  sched::homogeneous_cluster(1, 4), 1);
  SimOptions options;
  options.scenario = parse_scenario(
      "lost_work_seconds = 30\n[[fault]]\nkind = \"node_loss\"\nat = 600\nfor = 60\nnode = 0\n",
      "s.toml");
  const sched::Cluster cluster = sched::homogeneous_cluster(1, 4);
  const SimResult result = run("fifo", workload, cluster, options);
  ASSERT_EQ(result.jobs[0].node_losses, 1);
  const double devices = sched::device_count(result.timeline.front().allocation);
  EXPECT_NEAR(result.jobs[0].redone, 30 * devices, 1e-6);
  const Summary summary = summarise(result, workload, catalog(), cluster);
  EXPECT_EQ(summary.hits, 1);
  EXPECT_EQ(summary.starts, 2);
  EXPECT_NEAR(summary.redone_hours, 30 * devices / 3600, 1e-9);
}

TEST(Simulator, SameSeedSameBytes) {
  const Workload workload = small_workload(2, 16);
  const sched::Cluster cluster = sched::homogeneous_cluster(3, 4);
  SimOptions options;
  options.seed = 5;
  options.budget = 2;
  options.scenario = parse_scenario(
      "[[fault]]\nkind = \"node_loss\"\nat = 300\nfor = 400\nevery = 900\n"
      "[[fault]]\nkind = \"lost_decisions\"\nat = 100\nprobability = 0.3\n",
      "s.toml");
  for (const std::string& policy : sched::policy_names()) {
    SCOPED_TRACE(policy);
    const SimResult a = run(policy, workload, cluster, options),
                    b = run(policy, workload, cluster, options);
    EXPECT_EQ(to_json(a).dump(), to_json(b).dump());
    const Summary summary = summarise(a, workload, catalog(), cluster);
    EXPECT_EQ(report_html({{a, summary, 0}}, cluster), report_html({{b, summary, 0}}, cluster));
  }
  options.seed = 6;
  EXPECT_NE(to_json(run("sia", workload, cluster, options)).dump(),
            to_json(run("sia", workload, cluster, {})).dump());
}

// One job alone: its time is the sum of what each epoch takes, and the pause.
TEST(Simulator, OneJobTakesItsEpochs) {
  Workload workload;
  workload.jobs.push_back(
      {.name = "a", .application = "cifar10", .time = 30, .devices = 4, .batch = 512});
  const SimResult result = run("fifo", workload, sched::homogeneous_cluster(1, 4));
  const Application& app = catalog().find("cifar10");
  const StepTime step = app.profile("t4").at(std::vector<int32_t>{4}, 128);
  double expected = 60 + 30;  // the first round, the pause
  double before = 0;
  for (int e = 0; e < app.epochs; ++e) {
    const double gain = noise::gain(app.noise(512, e), 4);
    expected += (app.progress_at(e + 1) - before) / (gain / step.step);
    before = app.progress_at(e + 1);
  }
  EXPECT_NEAR(result.jobs[0].finish, expected, 0.5 * app.epochs);
  EXPECT_NEAR(result.jobs[0].service, 4 * (result.jobs[0].finish - 60), 1e-6);
  EXPECT_EQ(result.jobs[0].restarts, 0);
}

// Two jobs that need all devices, under a policy of rounds: a service begins each as soon as
// nothing runs, and not in the next round.
TEST(Simulator, RoundsOfAServiceBeginWhereNothingRuns) {
  Workload workload;
  for (const auto& [name, time] : {std::pair("a", 30.0), std::pair("b", 31.0)})
    workload.jobs.push_back(
        {.name = name, .application = "cifar10", .time = time, .devices = 4, .batch = 512});
  const sched::Cluster cluster = sched::homogeneous_cluster(1, 4);
  const SimResult rounds = run("tiresias", workload, cluster);
  const SimResult service = run("tiresias", workload, cluster, {.as_service = true});
  expect_sound(workload, service, cluster);
  EXPECT_EQ(rounds.jobs[0].start, 60);
  EXPECT_EQ(std::fmod(rounds.jobs[1].start, 60), 0);
  EXPECT_EQ(service.jobs[0].start, 30);
  EXPECT_GE(service.jobs[1].start, service.jobs[0].finish);
  EXPECT_LE(service.jobs[1].start, service.jobs[0].finish + 0.6);  // ends are noticed so late
  // Where something runs, it decides once per interval.
  workload.jobs[0].devices = workload.jobs[1].devices = 2;
  const SimResult beside = run("tiresias", workload, cluster, {.as_service = true});
  EXPECT_EQ(beside.jobs[0].start, 30);
  EXPECT_EQ(beside.jobs[1].start, 90);
  // One that is there from the start waits no longer than others.
  workload.jobs[0].time = 0;
  const SimResult first = run("tiresias", workload, cluster, {.as_service = true});
  EXPECT_EQ(first.jobs[0].start, 0);
  EXPECT_EQ(first.jobs[1].start, 60);
}

// A job that has the cluster for itself takes what finish-time fairness compares with, also where
// it keeps to a batch that is not the best.
TEST(Simulator, AJobAloneIsAsFairAsCanBe) {
  const sched::Cluster cluster = sched::homogeneous_cluster(1, 1);
  for (const sched::Scaling scaling : {sched::Scaling::rigid, sched::Scaling::strong}) {
    Workload workload;
    workload.jobs.push_back(
        {.name = "a", .application = "bert", .devices = 1, .batch = 384, .scaling = scaling});
    const SimResult result = run("fifo", workload, cluster);
    const Summary summary = summarise(result, workload, catalog(), cluster);
    EXPECT_GT(summary.worst_fairness, 0.99);
    EXPECT_LT(summary.worst_fairness, 1.01 + 60 / result.jobs[0].jct());
  }
}

TEST(Faults, ALostNodeCostsARestartAndNoMore) {
  Workload workload;
  workload.jobs.push_back(
      {.name = "a", .application = "cifar10", .time = 0, .devices = 4, .batch = 512});
  const sched::Cluster cluster = sched::homogeneous_cluster(2, 4);
  const double calm = run("fifo", workload, cluster).jobs[0].finish;
  SimOptions options;
  // In the round in which it is lost, on the node that it holds.
  options.scenario = parse_scenario("[[fault]]\nkind = \"node_loss\"\nnode = 0\nat = 600\n", "s");
  const SimResult result = run("fifo", workload, cluster, options);
  EXPECT_EQ(result.jobs[0].node_losses, 1);
  EXPECT_EQ(result.jobs[0].restarts, 1);
  // The rest of the round, a pause of 30 s; epochs are rounded to seconds.
  EXPECT_LE(result.jobs[0].finish - calm, 60 + 30 + 60);
  EXPECT_GE(result.jobs[0].finish - calm, 30 - 60);
}

TEST(Faults, StragglersAndNetworksSlowDown) {
  Workload workload;
  workload.jobs.push_back({.name = "a",
                           .application = "imagenet",
                           .time = 0,
                           .devices = 8,
                           .batch = 1600,
                           .work = 0.01});
  const sched::Cluster cluster = sched::homogeneous_cluster(2, 4);
  const double calm = run("fifo", workload, cluster).jobs[0].finish;
  SimOptions slow, net;
  slow.scenario =
      parse_scenario("[[fault]]\nkind = \"straggler\"\nnode = 1\nat = 0\nfactor = 3\n", "s");
  net.scenario = parse_scenario("[[fault]]\nkind = \"slow_network\"\nat = 0\nfactor = 50\n", "s");
  EXPECT_GT(run("fifo", workload, cluster, slow).jobs[0].finish, 1.5 * calm);
  EXPECT_GT(run("fifo", workload, cluster, net).jobs[0].finish, 1.02 * calm);
}

TEST(Faults, ReclaimIsAnnounced) {
  const sched::Cluster cluster = sched::homogeneous_cluster(2, 4);
  const Scenario scenario = parse_scenario(
      "[[fault]]\nkind = \"reclaim\"\nnode = 1\nat = 100\nnotice = 120\nfor = 50\n", "s");
  const auto events = plan_faults(scenario, cluster, 0, 1e6);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_TRUE(events[0].announce);
  EXPECT_EQ(events[0].value, 220);
  EXPECT_EQ(events[1].time, 220);
  EXPECT_EQ(events[2].time, 270);
}

// Two nodes after a trace of 2, 1, 0, 0 and 2 machines: the second leaves first and longest.
TEST(Faults, ReclaimsFollowATrace) {
  TempFolder folder;
  write_file_atomic(folder.path() / "zone.json",
                    R"({"metadata": {"gap_seconds": 300}, "data": [2, 1, 0, 0, 2]})");
  const std::string name = (folder.path() / "s.toml").string();
  const std::string head = "[[fault]]\nkind = \"reclaim\"\n";
  const Scenario scenario =
      parse_scenario(head + "trace = \"zone.json\"\nnodes = [0, 1]\nnotice = 60\n", name);
  const auto events = plan_faults(scenario, sched::homogeneous_cluster(2, 4), 0, 1e6);
  std::string said;
  for (const FaultEvent& e : events)
    said += fmt::format("{} {} {}; ", e.time, e.node,
                        e.announce ? "announced"
                        : e.start  ? "gone"
                                   : "back");
  EXPECT_EQ(said,
            "240 1 announced; 300 1 gone; 540 0 announced; 600 0 gone; 1200 0 back; 1200 1 back; ");
  for (const char* wrong :
       {"trace = \"zone.json\"\n", "trace = \"zone.json\"\nnodes = [0]\nat = 5\n",
        "trace = \"none.json\"\nnodes = [0]\n"})
    EXPECT_THROW(parse_scenario(head + wrong, name), Error) << wrong;
  write_file_atomic(folder.path() / "zone.json", "{}");
  EXPECT_THROW(parse_scenario(head + "trace = \"zone.json\"\nnodes = [0]\n", name), Error);
}

TEST(Budgets, WrongOnesStayWithinTheirFactor) {
  const Workload workload = small_workload(4, 30);
  struct Watcher : sched::Policy {
    std::unique_ptr<sched::Policy> inner = sched::make_policy("fifo");
    std::map<sched::JobId, double> first;
    std::string_view name() const override { return "watcher"; }
    sched::PolicyTraits traits() const override { return inner->traits(); }
    std::string explain(sched::JobId job) const override { return inner->explain(job); }
    sched::Decisions decide(const sched::Round& round) override {
      for (const sched::JobView& job : round.jobs)
        if (job.remaining && job.progress == 0) first.emplace(job.id, *job.remaining);
      return inner->decide(round);
    }
  } watcher;
  SimOptions options;
  options.budget = 2;
  simulate(workload, catalog(), sched::homogeneous_cluster(4, 4), watcher, options);
  ASSERT_EQ(watcher.first.size(), 30u);
  int wrong = 0;
  for (const auto& [id, remaining] : watcher.first) {
    const Submission& job = workload.jobs[static_cast<size_t>(id)];
    const double truth = catalog().find(job.application).total_progress() * job.work;
    EXPECT_LE(remaining, 2.0001 * truth);
    EXPECT_GE(remaining, truth / 2.0001);
    wrong += std::abs(remaining / truth - 1) > 0.1;
  }
  EXPECT_GT(wrong, 15);
  options.budget.reset();
  watcher.first.clear();
  simulate(workload, catalog(), sched::homogeneous_cluster(4, 4), watcher, options);
  EXPECT_TRUE(watcher.first.empty());
}

TEST(Budgets, ExactOnesAreTrueToTheEnd) {
  const Workload workload = small_workload(4, 12);
  struct Watcher : sched::Policy {
    const Workload& workload;
    explicit Watcher(const Workload& jobs) : workload(jobs) {}
    std::unique_ptr<sched::Policy> inner = sched::make_policy("fifo");
    double worst = 0, least = 1;
    std::string_view name() const override { return "watcher"; }
    sched::PolicyTraits traits() const override { return inner->traits(); }
    std::string explain(sched::JobId job) const override { return inner->explain(job); }
    sched::Decisions decide(const sched::Round& round) override {
      for (const sched::JobView& job : round.jobs) {
        const Submission& whole = workload.jobs[static_cast<size_t>(job.id)];
        const double length = catalog().find(whole.application).total_progress() * whole.work;
        worst = std::max(worst, std::abs((job.progress + *job.remaining) / length - 1));
        least = std::min(least, *job.remaining / length);
      }
      return inner->decide(round);
    }
  } watcher(workload);
  SimOptions options;
  options.interval = 5;
  simulate(workload, catalog(), sched::homogeneous_cluster(4, 4), watcher, options);
  EXPECT_LT(watcher.worst, 1e-9);
  EXPECT_GE(watcher.least, 0);
  EXPECT_LT(watcher.least, 0.015);
}

// What a policy with these traits was shown: decisions between rounds, and corrected step times.
std::pair<bool, bool> shown(const sched::PolicyTraits& traits, Information information) {
  struct Watcher : sched::Policy {
    std::unique_ptr<sched::Policy> inner = sched::make_policy("sia");
    sched::PolicyTraits what;
    bool between = false, corrected = false;
    std::string_view name() const override { return "watcher"; }
    sched::PolicyTraits traits() const override { return what; }
    std::string explain(sched::JobId job) const override { return inner->explain(job); }
    sched::Decisions decide(const sched::Round& round) override {
      between = between || std::fmod(round.now, round.interval) != 0;
      for (const sched::JobView& job : round.jobs)
        for (const sched::TypeModel& type : job.types) corrected = corrected || type.steps;
      return inner->decide(round);
    }
  } watcher;
  watcher.what = traits;
  SimOptions options;
  options.information = information;
  simulate(small_workload(4, 12), catalog(), sched::homogeneous_cluster(4, 4), watcher, options);
  return {watcher.between, watcher.corrected};
}

TEST(Simulator, ObeysWhatAPolicyAsksForUnlessToldOtherwise) {
  for (const bool on_events : {false, true})
    for (const bool measures : {false, true}) {
      const sched::PolicyTraits traits{.measures = measures, .on_events = on_events};
      EXPECT_EQ(shown(traits, Information::own), std::pair(on_events, measures));
      EXPECT_EQ(shown(traits, Information::published), std::pair(false, false));
      EXPECT_EQ(shown(traits, Information::full), std::pair(true, true));
    }
}

TEST(Simulator, APolicyThatNeverStartsAnythingIsNamed) {
  struct Lazy : sched::Policy {
    std::string_view name() const override { return "lazy"; }
    std::string explain(sched::JobId) const override { return "asleep"; }
    sched::Decisions decide(const sched::Round&) override { return {}; }
  } lazy;
  try {
    simulate(small_workload(1, 3), catalog(), sched::homogeneous_cluster(1, 4), lazy);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("policy lazy leaves"), std::string::npos);
    EXPECT_NE(e.message().find("asleep"), std::string::npos);
  }
}

TEST(Simulator, ADecisionThatBreaksARuleIsCaught) {
  struct Greedy : sched::Policy {
    std::string_view name() const override { return "greedy"; }
    std::string explain(sched::JobId) const override { return ""; }
    sched::Decisions decide(const sched::Round& round) override {
      sched::Decisions all;
      for (const sched::JobView& job : round.jobs)
        all.changes.push_back({job.id, {{0, 4}}, "mine"});
      return all;
    }
  } greedy;
  SimOptions options;
  options.check = true;
  EXPECT_THROW(
      simulate(small_workload(1, 8), catalog(), sched::homogeneous_cluster(1, 4), greedy, options),
      Error);
}

// Random clusters, workloads and faults under every policy; more in the long form. A failing seed
// is printed and replays.
TEST(Chaos, NoInvariantBreaks) {
  const uint64_t runs = std::getenv("DUCTILE_ALL_SIZES") != nullptr ? 10'000 : 4'000;
  const std::vector<std::string> policies = sched::policy_names();
  for (uint64_t seed = 0; seed < runs && !HasFailure(); ++seed) {
    Rng rng(seed, 77);
    sched::Cluster cluster;
    const uint32_t types = 1 + rng.below(2);
    for (uint32_t t = 0; t < types; ++t)
      cluster.add_nodes(t == 0 ? "t4" : "a100", 1 + static_cast<int32_t>(rng.below(3)),
                        rng.below(2) ? 4 : 8);
    Workload workload = small_workload(seed, 2 + rng.below(3));
    for (Submission& job : workload.jobs) {
      job.work *= 0.25;
      if (rng.below(5) == 0) job.scaling = sched::Scaling::rigid;
      if (rng.below(5) == 0) job.scaling = sched::Scaling::strong;
      job.tier = static_cast<sched::Tier>(rng.below(3));
      job.team = static_cast<int32_t>(rng.below(2));
      // Rarer than a policy preempts, and one that does not look at it never gets on.
      if (rng.below(6) == 0)
        job.checkpoint_every =
            10 + rng.below(seed % policies.size() == policies.size() - 1 ? 100 : 15);
      if (rng.below(6) != 0) continue;
      job.service = ServiceSpec{{{0, rng.uniform(0, 40)}, {400, rng.uniform(0, 40)}},
                                10,
                                0.3,
                                1 + static_cast<int32_t>(rng.below(2)),
                                500 + rng.uniform(0, 1500)};
      job.devices = std::min(job.devices, 2) * job.service->replica_devices;
    }
    if (rng.below(4) == 0) {  // a quota that each of its jobs fits in
      int64_t quota = rng.below(4);
      for (const Submission& job : workload.jobs) quota = std::max<int64_t>(quota, job.devices);
      cluster.teams = {{1, 0.3, quota}};
    }
    SimOptions options;
    options.seed = seed;
    if (rng.below(3) == 0) options.budget.reset();
    const char* kinds[] = {"node_loss",    "straggler", "slow_network", "lost_decisions",
                           "late_reports", "reclaim",   "maintenance"};
    std::string scenario;
    for (uint32_t faults = rng.below(4); faults > 0; --faults)
      scenario += "[[fault]]\nkind = \"" + std::string(kinds[rng.below(7)]) +
                  "\"\nat = " + std::to_string(rng.below(900)) +
                  "\nfor = " + std::to_string(60 + rng.below(600)) +
                  "\nprobability = 0.3\nnotice = 100\nevery = 700\ncount = 3\n";
    options.scenario = parse_scenario(scenario, "chaos");
    // The genetic search takes a hundred times as long as the others: it has its share of turns.
    std::string policy = policies[seed % policies.size()];
    if (policy == "pollux" && seed % 800 != 0) policy = "sia";
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + policy);
    try {
      expect_sound(workload, run(policy, workload, cluster, options), cluster);
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
  }
}

}  // namespace
}  // namespace ductile::sim
