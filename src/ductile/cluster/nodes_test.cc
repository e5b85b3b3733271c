// A service of several nodes, with real agents and workers. Each node is this machine under another
// name, since the launcher command `env` starts a program right here; in nodes_faults_test.cc each
// has a network of its own.
#include <algorithm>
#include <csignal>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>

#include "ductile/base/clock.h"
#include "ductile/base/machine.h"
#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/service_spec_impl.h"
#include "ductile/cluster/store.h"
#include "ductile/cluster/testing/live_nodes.h"
#include "ductile/cluster/testing/obedient_world.h"
#include "ductile/sched/policy.h"
#include "ductile/spec/cluster.h"

namespace ductile::cluster {
namespace {

using namespace testing;

// Events of this kind.
int64_t count_of(LiveService& service, JobId job, const std::string& kind) {
  const Json events = service.get("/v1/events?limit=1000&job=" + std::to_string(job)).at("events");
  return std::count_if(events.begin(), events.end(),
                       [&](const Json& event) { return event.at("kind") == kind; });
}

TEST(Nodes, JobsRunOnAllOfThem) {
  LiveService service(on_nodes({"one", "two"}, 1));
  const JobId wide = service.submit("wide", 600, 2, 2);
  const Json job = service.wait_for(wide, "running");
  EXPECT_EQ(nodes_of(job), (std::set<std::string>{"one", "two"}));
  for (const char* name : {"one", "two"}) {
    const Json node = node_of(service, name);
    EXPECT_EQ(node.at("state"), "up");
    EXPECT_EQ(node.at("devices"), 1);
    EXPECT_EQ(node.at("free"), 0);
    EXPECT_EQ(node.at("jobs"), (Json::array({{{"job", wide}, {"name", "wide"}, {"devices", 1}}})));
  }
  service.expect_result(wide);
  std::vector<JobId> jobs;
  for (int i = 0; i < 4; ++i) jobs.push_back(service.submit("job" + std::to_string(i), 60 + i));
  for (const JobId id : jobs) service.expect_result(id);
  EXPECT_EQ(service.stop(), 0);
  EXPECT_TRUE(service.workers().empty());
}

TEST(Nodes, TeamsWithNumbersAreRefusedAndTheTextSaysHowTheirQuotasAreSet) {
  ServiceOptions options;
  on_nodes({"one"}, 1)(options);
  options.cluster->teams.push_back({3, 0, 16});
  try {
    cluster_of(options);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(error.message().find("--quota NAME=16"), std::string::npos) << error.message();
  }
}

// They would end each other's agents and workers, each as those of nobody it knows.
TEST(Nodes, TwoServicesDoNotShareAFolder) {
  TempFolder shared;
  const auto choose = [&](ServiceOptions& options) {
    on_nodes({"one"}, 1)(options);
    options.shared = shared.path();
  };
  LiveService first(choose), second(choose);
  EXPECT_FALSE(second.lives());
  first.expect_result(first.submit("job", 50));
}

TEST(Nodes, TheReasonSaysWhatTheLauncherSaid) {
  LiveService service([](ServiceOptions& options) {
    on_nodes({"one"}, 1)(options);
    options.launcher = "env NODE={host} sh -c 'echo the door is shut >&2; exit 3'";
  });
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (node_of(service, "one").value("reason", "").find("the door is shut") ==
         std::string::npos) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << service.get("/v1/nodes");
    std::this_thread::sleep_for(5ms);
  }
}

TEST(Nodes, ADrainMovesWhatRunsThere) {
  LiveService service(on_nodes({"one", "two"}, 1));
  service.slow_steps(true);
  const JobId id = service.submit("job", 300);
  Json job = service.wait_for(id, "running");
  service.wait_for_workers(id);
  const std::string before = *nodes_of(job).begin(), after = before == "one" ? "two" : "one";
  service.send("POST", "/v1/nodes/" + before + "/drain", "{}");
  job = service.wait(id, [&](const Json& now) {
    return nodes_of(now) == std::set<std::string>{after} || now.at("phase") == "finished";
  });
  EXPECT_EQ(job.at("phase"), "running") << "it was to move before it ended";
  wait_for_node(service, before, "drained");
  EXPECT_EQ(node_of(service, before).at("free"), 0);
  service.slow_steps(false);
  service.expect_result(id);
  // It never lost a worker, and was never saved and started anew.
  const std::string events = read_file(fs::path(job.value("run", "")) / "events.jsonl");
  EXPECT_EQ(events.find("\"lost\""), std::string::npos) << events;
  EXPECT_EQ(events.find("preempt"), std::string::npos) << events;
}

// Planned maintenance: it begins at its time, and ends by itself, also where the service was
// started anew meanwhile.
TEST(Nodes, APlannedDrainBeginsAndEndsByItself) {
  LiveService service(on_nodes({"one", "two"}, 1));
  const JobId id = service.submit("job", 1'000'000);
  Json job = service.wait_for(id, "running");
  const std::string before = *nodes_of(job).begin(), after = before == "one" ? "two" : "one";
  const std::string path = "/v1/nodes/" + before + "/drain";
  service.send("POST", path, R"({"in": 3600, "reason": "a new disk"})");
  EXPECT_EQ(node_of(service, before).at("state"), "up");
  EXPECT_EQ(node_of(service, before).at("drained"), false);
  EXPECT_GT(node_of(service, before).at("drain_starts").get<double>(), wall_seconds() + 3000);
  EXPECT_EQ(nodes_of(service.get("/v1/jobs/" + std::to_string(id))), std::set{before});
  service.send("POST", path, R"({"in": 2, "for": 3600})");
  service.kill_service();
  service.start();
  service.wait(id, [&](const Json& now) { return nodes_of(now) == std::set{after}; });
  wait_for_node(service, before, "drained");
  EXPECT_TRUE(node_of(service, before).contains("drain_ends"));
  service.send("POST", path, R"({"for": 2})");
  service.kill_service();
  service.start();
  wait_for_node(service, before, "up");
  EXPECT_FALSE(node_of(service, before).contains("drain_ends"));
  // What is over counts no more at once; that it is over is written down by the next timer.
  const auto told = [&] {
    const Json events = service.get("/v1/events?newest=1000").at("events");
    return std::any_of(events.begin(), events.end(),
                       [](const Json& event) { return event.at("kind") == "undrain"; });
  };
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!told() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(20ms);
  EXPECT_TRUE(told());
  service.act(id, "cancel");
  service.wait_for(id, "cancelled");
}

// Its agent cannot be called, and its workers are killed with it.
TEST(Nodes, ALostNodesJobsGoOnElsewhere) {
  TempFolder away;
  LiveService service([&](ServiceOptions& options) {
    on_nodes({"one", "two"}, 1, 0.5)(options);
    options.launcher = "env NODE={host} sh -c 'test ! -e " + away.path().string() +
                       "/{host} && exec \"$0\" \"$@\"'";
  });
  service.slow_steps(true);
  const JobId id = service.submit("job", 300);
  Json job = service.wait_for(id, "running");
  service.wait(id, [](const Json& now) { return !nodes_of(now).empty(); });
  const std::string before = *nodes_of(service.get("/v1/jobs/" + std::to_string(id))).begin();
  const std::string after = before == "one" ? "two" : "one";
  write_file_atomic(away.path() / before, "");
  service.kill_agent(before);
  wait_for_node(service, before, "lost");
  job = service.wait(id, [&](const Json& now) {
    return nodes_of(now) == std::set<std::string>{after} || now.at("phase") == "finished";
  });
  EXPECT_EQ(nodes_of(job), std::set<std::string>{after});
  // The old worker lives, since nobody could end it; it is ended before its device is another's.
  fs::remove(away.path() / before);
  wait_for_node(service, before, "up");
  const JobId other = service.submit("other", 20);
  service.wait_for(other, "running");
  for (const pid_t pid : link::workers_of(job.value("run", ""))) {
    const std::string line = read_file(fs::path("/proc") / std::to_string(pid) / "cmdline");
    EXPECT_EQ(line.find(std::string("--host") + '\0' + before + '\0'), std::string::npos);
  }
  service.slow_steps(false);
  for (const JobId one : {id, other}) service.expect_result(one);
}

// What a host answers is waited for at first, but not for as long as a launcher may take.
TEST(Nodes, JobsDoNotWaitForAHostThatDoesNotAnswer) {
  LiveService service([&](ServiceOptions& options) {
    on_nodes({"dead", "live"}, 2, 1000)(options);
    options.launcher =
        "env NODE={host} sh -c 'test {host} != dead || exec sleep 1000; exec \"$0\" \"$@\"'";
  });
  service.slow_steps(true);
  const JobId one = service.submit("one", 300), two = service.submit("two", 300);
  for (const JobId id : {one, two}) {
    service.wait_for(id, "running");
    EXPECT_EQ(node_of(service, "dead").value("reason", ""), "it is being called");
  }
  service.slow_steps(false);
  for (const JobId id : {one, two}) service.expect_result(id);
}

// Its agent answers again, and says so.
void expect_is_leaving(LiveService& service, const std::string& node) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (service.agents(node).empty()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "no agent comes";
    std::this_thread::sleep_for(5ms);
  }
  // Long enough for an agent to be ready.
  for (int look = 0; look < 100; ++look, std::this_thread::sleep_for(20ms))
    EXPECT_NE(node_of(service, node).value("state", ""), "up");
  EXPECT_EQ(node_of(service, node).value("reason", ""),
            "its machine is taken back, within 1000 s of the notice");
}

// A spot machine: its agent is told, the job hands over, and only then the machine is gone.
TEST(Nodes, ANodeThatIsTakenBackWithANoticeLosesNoWorker) {
  TempFolder away;
  LiveService service([&](ServiceOptions& options) {
    on_nodes({"one", "two"}, 1, 0.5)(options);
    for (spec::NodeGroup& group : options.cluster->groups) group.notice = 1000;
    options.launcher = "env NODE={host} sh -c 'test ! -e " + away.path().string() +
                       "/{host} && exec \"$0\" \"$@\"'";
  });
  service.slow_steps(true);
  const JobId id = service.submit("job", 300);
  Json job = service.wait_for(id, "running");
  const std::string before = *nodes_of(job).begin(), after = before == "one" ? "two" : "one";
  service.wait_for_workers(id);
  service.kill_agent(before, SIGTERM);
  job = service.wait(id, [&](const Json& now) {
    return nodes_of(now) == std::set<std::string>{after} || now.at("phase") == "finished";
  });
  EXPECT_EQ(job.at("phase"), "running") << "it was to move before it ended";
  wait_for_node(service, before, "away");
  EXPECT_EQ(node_of(service, before).at("reason"),
            "its machine is taken back, within 1000 s of the notice");
  EXPECT_EQ(service.agents(before).size(), 1u) << "it goes on until it is killed";
  const fs::path kept = service.folder() / "server" / "leaving" / before;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!fs::exists(kept) && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(5ms);
  // The next agent knows it, too, and so does the next service, as long as the machine is there.
  service.kill_agent(before);
  expect_is_leaving(service, before);
  service.kill_service();
  service.start();
  expect_is_leaving(service, before);
  write_file_atomic(away.path() / before, "");
  service.kill_agent(before);
  wait_for_node(service, before, "lost");
  service.change_machine(before);
  service.slow_steps(false);
  service.expect_result(id);
  const std::string events = read_file(fs::path(job.value("run", "")) / "events.jsonl");
  EXPECT_EQ(events.find("\"lost\""), std::string::npos) << events;
  // The next machine of that name is as good as any.
  fs::remove(away.path() / before);
  wait_for_node(service, before, "up");
}

TEST(Nodes, AMachineThatIsNotTakenBackIsUsedAgain) {
  LiveService service([](ServiceOptions& options) {
    on_nodes({"one"}, 1)(options);
    options.cluster->groups.front().notice = 2;
  });
  wait_for_node(service, "one", "up");
  service.kill_agent("one", SIGTERM);
  wait_for_node(service, "one", "away");
  const std::set<pid_t> agent = service.agents("one");
  wait_for_node(service, "one", "up");
  EXPECT_EQ(service.agents("one"), agent);
  service.expect_result(service.submit("job", 20));
}

// Where there is no room elsewhere, the job is saved within the notice, and waits.
TEST(Nodes, ANoticeSavesWhatHasNoOtherPlace) {
  LiveService service([&](ServiceOptions& options) {
    on_nodes({"one"}, 1)(options);
    options.cluster->groups.front().notice = 30;
    options.cluster->groups.front().leave = 30;
  });
  service.slow_steps(true);
  const JobId id = service.submit("job", 300);
  service.wait_for_workers(id);
  service.kill_agent("one", SIGTERM);
  const Json job = service.wait_for(id, "queued");
  EXPECT_NE(job.value("why", "").find("its machine is taken back"), std::string::npos) << job;
  const std::string events = service.get("/v1/events?limit=1000").dump();
  EXPECT_NE(events.find("It had to leave: node one is about to go: its machine is taken back"),
            std::string::npos)
      << events;
  EXPECT_TRUE(service.workers().empty());
  service.slow_steps(false);
  service.change_machine("one");
  service.kill_agent("one");
  service.expect_result(id);
}

// Machines that are taken back, and that training jobs give up `leave` seconds before; 0: found.
auto on_spot_nodes(std::vector<std::string> names, double notice, double leave) {
  return [names = std::move(names), notice, leave](ServiceOptions& options) {
    on_nodes(names, 1)(options);
    for (spec::NodeGroup& group : options.cluster->groups) {
      group.notice = notice;
      group.leave = leave;
    }
  };
}

// Node "one", where the job runs, is about to go, and the job ends before it does.
void expect_uses_the_notice(LiveService& service, JobId id) {
  service.kill_agent("one", SIGTERM);
  wait_for_node(service, "one", "away");
  EXPECT_EQ(service.get("/v1/jobs/" + std::to_string(id)).at("phase"), "running");
  service.slow_steps(false);
  service.expect_result(id);
  EXPECT_EQ(count_of(service, id, "queued"), 0);
}

// Nobody else could use it.
TEST(Nodes, WhatHasNoOtherPlaceUsesTheNotice) {
  LiveService service(on_spot_nodes({"one"}, 1000, 1));
  service.slow_steps(true);
  const JobId id = service.submit("job", 300);
  service.wait_for_workers(id);
  expect_uses_the_notice(service, id);
}

// A job that runs on a device of node "one" and on one of node "two". It begins with both: whether
// the scheduler lets one that has a device grow depends on how long it was seen to stand still at
// its start, which is long where the machine is busy.
JobId begin_on_both(LiveService& service) {
  service.slow_steps(true);
  const JobId id = service.submit("job", 300, 2, 2);
  service.wait(id, [&](const Json& now) { return nodes_of(now).size() == 2; });
  service.wait_for_workers(id);
  return id;
}

void expect_keeps_both(LiveService& service, JobId id) {
  const int64_t before = count_of(service, id, "allocation");
  expect_uses_the_notice(service, id);
  EXPECT_EQ(count_of(service, id, "allocation"), before)
      << "it kept both: " << service.get("/v1/events?limit=1000&job=" + std::to_string(id));
}

// It could go on with the other one alone.
TEST(Nodes, WhatHasAPartOfItsDevicesThereUsesThemToo) {
  LiveService service(on_spot_nodes({"one", "two"}, 1000, 1));
  const JobId id = begin_on_both(service);
  // One whose speed on two is not known is given one device as soon as it may have one alone.
  service.wait(id, [&](const Json&) { return count_of(service, id, "speed") > 0; });
  const std::string job = "/v1/jobs/" + std::to_string(id);
  const Json answer =
      service.send("POST", job + "/resize", R"({"min_devices": 1, "max_devices": 2})");
  EXPECT_EQ(answer.value("status", 0), 200) << answer;
  service.wait(id, [](const Json& now) { return now.value("min_devices", 0) == 1; });
  expect_keeps_both(service, id);
}

// It could not, and nobody else wants the other one.
TEST(Nodes, WhatNeedsADeviceThereBesideOthersUsesAll) {
  LiveService service(on_spot_nodes({"one", "two"}, 1000, 1));
  expect_keeps_both(service, begin_on_both(service));
}

TEST(Nodes, WhatNeedsADeviceThereLeavesTheOthersToWhoeverCanUseThem) {
  LiveService service(on_spot_nodes({"one", "two"}, 1000, 1));
  const JobId id = begin_on_both(service);
  service.kill_agent("one", SIGTERM);
  wait_for_node(service, "one", "away");
  EXPECT_EQ(service.get("/v1/jobs/" + std::to_string(id)).at("phase"), "running");
  const JobId other = service.submit("other", 20);
  service.wait_for(id, "queued");
  EXPECT_EQ(nodes_of(service.wait_for(other, "running")), std::set<std::string>{"two"});
  for (const JobId one : {id, other}) {
    service.act(one, "cancel");
    service.wait_for(one, "cancelled");
  }
}

TEST(Nodes, WhatHasAnotherPlaceMovesAtTheNotice) {
  LiveService service(on_spot_nodes({"one", "two"}, 1000, 1));
  service.slow_steps(true);
  const JobId id = service.submit("job", 300);
  const std::string before = *nodes_of(service.wait_for(id, "running")).begin();
  service.wait_for_workers(id);
  service.kill_agent(before, SIGTERM);
  const std::set<std::string> other = {before == "one" ? "two" : "one"};
  const Json job = service.wait(
      id, [&](const Json& now) { return nodes_of(now) == other || now.at("phase") == "finished"; });
  EXPECT_EQ(job.at("phase"), "running") << "it was to move before it ended";
  service.slow_steps(false);
  service.expect_result(id);
}

TEST(Nodes, ShortlyBeforeItsEndTheNoticeIsNotUsedAnyMore) {
  LiveService service(on_spot_nodes({"one"}, 1000, 999));
  const JobId id = service.submit("job", 1'000'000);
  service.wait_for_workers(id);
  service.kill_agent("one", SIGTERM);
  const Json job = service.wait_for(id, "queued");
  EXPECT_NE(job.value("why", "").find("its machine is taken back"), std::string::npos) << job;
  EXPECT_TRUE(service.workers().empty());
  service.act(id, "cancel");
  service.wait_for(id, "cancelled");
}

// How long a job needs to leave is known once it has saved.
TEST(Nodes, HowMuchOfTheNoticeIsUsedIsFoundFromTheSaves) {
  LiveService service(on_spot_nodes({"one"}, 10'000, 0));
  service.slow_steps(true);
  const JobId id = service.submit("job", 300);
  service.wait(id, [&](const Json& job) {
    if (job.at("phase") != "running") return false;
    const fs::path events = fs::path(job.value("run", "")) / "events.jsonl";
    return fs::exists(events) &&
           read_file(events).find("\"kind\":\"checkpoint\"") != std::string::npos;
  });
  expect_uses_the_notice(service, id);
}

TEST(Nodes, WhoHasNotSavedYetLeavesAtTheNotice) {
  LiveService service(on_spot_nodes({"one"}, 10'000, 0));
  const JobId id =
      service.submit("job", 1'000'000, 1, 1,
                     {{"spec",
                       {{"job",
                         "[train]\nmax_steps = 1000000\nvirtual_ranks = 4\nbatch_size = 64\n"
                         "[checkpoint]\nevery_steps = 0\nevery_seconds = 0\n"}}}});
  service.wait_for_workers(id);
  service.kill_agent("one", SIGTERM);
  service.wait_for(id, "queued");
  service.act(id, "cancel");
  service.wait_for(id, "cancelled");
}

// Who runs it was told how long it may take to save, and nothing of `leave`.
TEST(Nodes, ACommandLeavesAtTheNotice) {
  LiveService service(on_spot_nodes({"one"}, 1000, 1));
  const JobId id = service.submit_command("command", "exec sleep 1000");
  service.wait_for(id, "running");
  service.wait(id, [&](const Json&) { return !service.workers().empty(); });
  service.kill_agent("one", SIGTERM);
  service.wait_for(id, "queued");
  service.act(id, "cancel");
  service.wait_for(id, "cancelled");
}

TEST(Nodes, JobsAndWorkersOutliveTheService) {
  LiveService service(on_nodes({"one", "two"}, 2));
  std::vector<JobId> jobs;
  for (int i = 0; i < 3; ++i) {
    jobs.push_back(service.submit("job" + std::to_string(i), 600 + 50 * i, 2));
    service.wait_for_workers(jobs.back());
    service.kill_service();
    service.start();
    for (const char* name : {"one", "two"}) wait_for_node(service, name, "up");
  }
  for (const JobId id : jobs) service.expect_result(id);
  EXPECT_EQ(service.stop(), 0);
  EXPECT_TRUE(service.workers().empty());
  EXPECT_TRUE(Reader(service.folder() / "store.db").check().empty());
}

TEST(Nodes, ANodeWhoseJobsRunIsNotForgotten) {
  LiveService service(on_nodes({"one", "two"}, 1));
  const JobId id = service.submit("job", 600, 2, 2);
  service.wait_for(id, "running");
  service.kill_service();
  service.choose(on_nodes({"one", "three"}, 1));
  service.start();
  EXPECT_FALSE(service.lives());
  service.choose(on_nodes({"one", "two"}, 1));
  service.start();
  service.expect_result(id);
}

// Also where there is no cluster file.
TEST(Nodes, JobsOfOneMachineNeverShareACore) {
  if (usable_cores().size() < 2) GTEST_SKIP() << "there is one core";
  LiveService service(2);
  for (const char* name : {"a", "b"}) service.wait_for_workers(service.submit(name, 100000));
  std::set<int> seen;
  for (const pid_t pid : service.workers()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    ASSERT_EQ(::sched_getaffinity(pid, sizeof set, &set), 0);
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(static_cast<size_t>(core), &set)) {
        EXPECT_TRUE(seen.insert(core).second) << "core " << core;
      }
  }
  EXPECT_EQ(service.workers().size(), 2u);
}

// A policy that looks ahead moves it while the node can still be used.
TEST(Scheduler, WhatRunsWhereADrainIsToComeMovesInTime) {
  Scheduler scheduler(nodes_named({"one", "two"}, 2), "ductile", 10);
  JobDemand demand;
  demand.id = 1;
  demand.name = demand.application = "job";
  demand.min_devices = demand.max_devices = 2;
  demand.batch = 64;
  demand.total_steps = 100'000;
  scheduler.add(demand);
  spec::Allocation holds;
  double now = 0;
  const auto decide = [&] {
    now += 10;
    for (const Allotment& allotment : scheduler.decide(now)) holds = allotment.allocation;
    scheduler.holds(1, holds, now);
    scheduler.measured(1, 64);  // a step per second
  };
  for (int round = 0; round < 20 && holds.empty(); ++round) decide();
  ASSERT_FALSE(holds.empty());
  const int32_t first = holds.front().node;
  scheduler.leaves(first, now + 1000);
  decide();
  EXPECT_EQ(holds.front().node, first) << "there is time";
  scheduler.leaves(first, now + 25);
  decide();
  ASSERT_FALSE(holds.empty());
  EXPECT_NE(holds.front().node, first);
}

// Whatever decides who runs where, a drained node becomes empty, and a job that fits elsewhere
// goes on there.
TEST(Scheduler, EveryPolicyLeavesADrainedNode) {
  for (const std::string& policy : sched::policy_names()) {
    Scheduler scheduler(nodes_named({"one", "two"}, 2), policy, 10);
    JobDemand demand;
    demand.id = 1;
    demand.name = demand.application = "job";
    demand.max_devices = 2;
    demand.batch = 64;
    scheduler.add(demand);
    spec::Allocation holds;
    double now = 0;
    const auto decide = [&] {
      now += 10;
      for (const Allotment& allotment : scheduler.decide(now)) holds = allotment.allocation;
      scheduler.holds(1, holds, now);
      if (!holds.empty()) scheduler.measured(1, 100);
    };
    for (int round = 0; round < 20 && holds.empty(); ++round) decide();
    ASSERT_FALSE(holds.empty()) << policy;
    const int32_t drained = holds.front().node;
    scheduler.drain(drained, true);
    const auto elsewhere = [&] {
      for (const spec::NodeShare& share : holds)
        if (share.node == drained) return false;
      return !holds.empty();
    };
    for (int round = 0; round < 20 && !elsewhere(); ++round) decide();
    EXPECT_TRUE(elsewhere()) << policy;
  }
}

// A node that does not answer now keeps what it has, and is granted nothing, also to whom has no
// other place; where there is another place, that is taken.
TEST(Scheduler, NothingIsGrantedWhereNobodyAnswers) {
  for (const std::string& policy : sched::policy_names()) {
    ObedientWorld world(nodes_named({"one", "two"}, 2), policy);
    world.add(demand(1, 1, 1, world.now));
    world.decide(20);
    ASSERT_TRUE(world.runs(1)) << policy;
    const spec::Allocation first = world.held.at(1);
    const int32_t away = first.front().node;
    world.scheduler.away(away, true, "it does not answer");
    world.add(demand(2, 1, 2, world.now));
    world.add(demand(3, 2, 2, world.now));
    for (int round = 0; round < 20; ++round) {
      world.decide();
      EXPECT_EQ(world.held.at(1), first) << policy;
      for (const JobId id : {2, 3})
        for (const spec::NodeShare& share : world.held.at(id))
          EXPECT_NE(share.node, away) << policy;
    }
    EXPECT_TRUE(world.runs(2) || world.runs(3)) << policy << " leaves free what it could use";
    world.scheduler.away(1 - away, true, "nor does it");
    world.add(demand(4, 1, 1, world.now));
    world.decide(20);
    EXPECT_FALSE(world.runs(4)) << policy;
    EXPECT_EQ(world.held.at(1), first) << policy;
    world.remove(2);
    world.remove(3);
    for (const int32_t node : {0, 1}) world.scheduler.away(node, false);
    world.decide(20);
    EXPECT_TRUE(world.runs(4)) << policy;
  }
}

}  // namespace
}  // namespace ductile::cluster
