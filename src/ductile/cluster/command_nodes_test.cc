// Commands on the nodes of a service, with real agents and keepers. Each node is this machine under
// another name, since the launcher command `env` starts a program right here.
#include <csignal>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/machine.h"
#include "ductile/cluster/command_impl.h"
#include "ductile/cluster/store.h"
#include "ductile/cluster/testing/commands.h"
#include "ductile/cluster/testing/live_nodes.h"
#include "ductile/link/worker_processes.h"
#include "ductile/server/core_pool.h"

namespace ductile::cluster {
namespace {

using namespace testing;

std::string the_node_of(const Json& job) {
  const std::set<std::string> nodes = nodes_of(job);
  return nodes.empty() ? "" : *nodes.begin();
}

std::string other(const std::string& node) { return node == "one" ? "two" : "one"; }

void wait_for_both(LiveService& service) {
  for (const char* name : {"one", "two"}) wait_for_node(service, name, "up");
}

// Also starts, and says where: NODE is of the agent's environment.
std::string here(const std::string& rest) { return "echo $NODE >> where\n" + alone(rest); }

TEST(CommandOnNodes, RunsOnAnyOfThemWithWhatItWasPromised) {
  LiveService service(on_nodes({"one", "two"}, 1));
  std::vector<JobId> jobs;
  for (const char* name : {"a", "b"})
    jobs.push_back(
        service.submit_command(name, "echo in $NODE; env; while [ ! -e go ]; do sleep 0.02; done",
                               {{"environment", {{"COLOUR", "red"}}}}));
  std::set<std::string> nodes;
  for (const JobId id : jobs) {
    const Json job = service.wait_for(id, "running");
    const fs::path log = fs::path(job.value("run", "")) / "worker.log";
    wait_for_lines(log, 5);
    nodes.insert(the_node_of(job));
  }
  EXPECT_EQ(nodes, (std::set<std::string>{"one", "two"}));
  write_file_atomic(service.folder() / "go", "");
  for (const JobId id : jobs) {
    const Json job = service.wait_for(id, "finished");
    const std::string log = "\n" + read_file(fs::path(job.value("run", "")) / "worker.log");
    for (const std::string line : {"COLOUR=red", "DUCTILE_DEVICES=1", "DUCTILE_RESTART=0"})
      EXPECT_NE(log.find("\n" + line + "\n"), std::string::npos) << line << " in" << log;
    EXPECT_EQ(job.at("reason"), "It ended with exit code 0.");
  }
  service.wait_for_no_workers();
}

TEST(CommandOnNodes, HasTheCoresOfItsDevices) {
  if (usable_cores().size() < 2) GTEST_SKIP() << "there is one core";
  LiveService service(on_nodes({"one"}, 2));
  const JobId one =
      service.submit_command("narrow", "nproc > narrow; echo $OMP_NUM_THREADS >> narrow");
  service.wait_for(one, "finished");
  const JobId two = service.submit_command("wide", "nproc > wide", {}, 2);
  service.wait_for(two, "finished");
  // nproc counts hardware threads, of which a physical core may have several.
  const server::CoreMap map = server::core_map();
  server::CorePool pool(2, map);
  const server::CorePool::Share half = pool.take();
  EXPECT_EQ(text_of(service.folder() / "narrow"),
            fmt::format("{}\n{}\n", half->threads.size(), half->cores));
  EXPECT_EQ(text_of(service.folder() / "wide"), fmt::format("{}\n", map.num_threads()));
}

TEST(CommandOnNodes, ItsEndAndItsLimitsAreThoseOfOneMachine) {
  LiveService service(on_nodes({"one", "two"}, 2));
  const auto ended = [&](const std::string& script, const Json& more = {}) {
    const JobId id = service.submit_command("job", script, more);
    return service.wait(id, [](const Json& j) { return !j.at("ended").is_null(); });
  };
  const Json late = ended("sleep 1000", {{"time_limit", 0.3}});
  EXPECT_EQ(late.at("phase"), "failed");
  EXPECT_NE(late.value("reason", "").find("time limit"), std::string::npos) << late;
  const Json failed = ended(alone("exit 7"), {{"retries", 1}});
  EXPECT_NE(failed.value("reason", "").find("exit code 7, after a retry"), std::string::npos)
      << failed;
  EXPECT_EQ(text_of(service.folder() / "starts"), "0\n1\n");
  const Json none = ended("true", {{"command", {"no-such-program"}}});
  EXPECT_NE(none.value("reason", "").find("no-such-program"), std::string::npos) << none;
  ended("(setsid sh -c 'sleep 1000 & setsid sleep 1000' &) ; sleep 0.2; exit 0");
  EXPECT_EQ(text_of(service.folder() / "twice"), "");
  service.wait_for_no_workers();
}

TEST(CommandOnNodes, IsPausedResumedAndCancelled) {
  LiveService service(on_nodes({"one", "two"}, 1));
  const JobId id = service.submit_command(
      "job", here("setsid sh -c 'echo >> detached; sleep 1000' &\n"
                  "trap 'echo saved >> saved; exit 1' TERM; while :; do sleep 0.05; done"));
  wait_for_lines(service.folder() / "detached", 1);
  service.act(id, "pause");
  service.wait_for(id, "paused");
  EXPECT_EQ(text_of(service.folder() / "saved"), "saved\n");
  service.wait_for_no_workers();
  service.act(id, "resume");
  wait_for_lines(service.folder() / "detached", 2);
  service.act(id, "cancel");
  service.wait_for(id, "cancelled");
  service.wait_for_no_workers();
  EXPECT_EQ(text_of(service.folder() / "twice"), "");
}

TEST(CommandOnNodes, OutlivesItsAgent) {
  LiveService service(on_nodes({"one", "two"}, 1));
  const JobId id =
      service.submit_command("job", here("while [ ! -e go ]; do sleep 0.02; done; exit 0"));
  wait_for_lines(service.folder() / "starts", 1);
  const std::string node = the_node_of(service.wait_for(id, "running"));
  for (int i = 0; i < 3; ++i) {
    wait_for_node(service, node, "up");
    service.kill_agent(node);
    wait_for_node(service, node, "away");
  }
  write_file_atomic(service.folder() / "go", "");
  EXPECT_EQ(service.wait_for(id, "finished").at("reason"), "It ended with exit code 0.");
  EXPECT_EQ(text_of(service.folder() / "starts"), "0\n");
  EXPECT_EQ(text_of(service.folder() / "twice"), "");
}

TEST(CommandOnNodes, OutlivesTheServiceAndIsFoundAgain) {
  LiveService service(on_nodes({"one", "two"}, 1));
  const JobId id =
      service.submit_command("job", here("while [ ! -e go ]; do sleep 0.02; done; exit 0"));
  const JobId endless = service.submit_command("endless", "exec sleep 1000", {{"grace", 0.1}});
  wait_for_lines(service.folder() / "starts", 1);
  service.wait_for(endless, "running");
  for (int i = 0; i < 4; ++i) {
    service.kill_service();
    service.start();
    if (i % 2 == 0) wait_for_both(service);
  }
  EXPECT_EQ(service.get("/v1/jobs/" + std::to_string(id)).at("phase"), "running");
  service.act(endless, "cancel");  // of a keeper that no agent of this service has started
  service.wait_for(endless, "cancelled");
  service.kill_service();
  write_file_atomic(service.folder() / "go", "");
  service.wait_for_no_workers();  // it ends while no service is there
  service.start();
  EXPECT_EQ(service.wait_for(id, "finished").at("reason"), "It ended with exit code 0.");
  EXPECT_EQ(text_of(service.folder() / "starts"), "0\n");
  EXPECT_EQ(text_of(service.folder() / "twice"), "");
}

// A folder in its place: reading it fails, and not because nothing is there.
void make_unreadable(const fs::path& file) {
  const std::string path = file.string();
  fs::create_hard_link(path, path + ".hidden");
  fs::create_directory_symlink(".", path + ".folder");
  fs::rename(path + ".folder", path);
}

void make_readable(const fs::path& file) { fs::rename(file.string() + ".hidden", file); }

TEST(CommandOnNodes, GoesOnThoughAServiceCannotReadItsOrdersAtFirst) {
  LiveService service(on_nodes({"one", "two"}, 1));
  const JobId id =
      service.submit_command("job", here("while [ ! -e go ]; do sleep 0.02; done; exit 0"));
  wait_for_lines(service.folder() / "starts", 1);
  const Json job = service.wait_for(id, "running");
  const std::string node = the_node_of(job);
  const fs::path orders = fs::path(job.value("run", "")) / "orders.json";
  service.kill_service();
  make_unreadable(orders);
  service.start();
  wait_for_node(service, other(node), "up");
  make_readable(orders);
  wait_for_node(service, node, "up");  // once nothing runs there of which nobody knows
  write_file_atomic(service.folder() / "go", "");
  EXPECT_EQ(service.wait_for(id, "finished").at("reason"), "It ended with exit code 0.");
  EXPECT_EQ(text_of(service.folder() / "starts"), "0\n");
  EXPECT_EQ(text_of(service.folder() / "twice"), "");
}

// At any instant of a start, again and again.
TEST(CommandOnNodes, AKilledServiceNeverRunsItTwice) {
  LiveService service(on_nodes({"one", "two"}, 1));
  run_once_though_the_service_is_killed(service, 8, 40ms);
}

TEST(CommandOnNodes, ADrainMovesItInGoodOrder) {
  LiveService service(on_nodes({"one", "two"}, 1));
  const JobId id = service.submit_command(
      "job", here("trap 'echo saved >> saved; exit 1' TERM\n"
                  "[ $DUCTILE_RESTART = 1 ] && exit 0\nwhile :; do sleep 0.05; done"));
  wait_for_lines(service.folder() / "starts", 1);
  const std::string before = the_node_of(service.wait_for(id, "running"));
  service.send("POST", "/v1/nodes/" + before + "/drain", "{}");
  service.wait_for(id, "finished");
  EXPECT_EQ(text_of(service.folder() / "saved"), "saved\n");
  EXPECT_EQ(text_of(service.folder() / "where"), before + "\n" + other(before) + "\n");
  EXPECT_EQ(text_of(service.folder() / "twice"), "");
  const std::string events = service.get("/v1/events?limit=1000").dump();
  EXPECT_NE(events.find("It leaves node " + before + ", and starts again elsewhere: node " +
                        before + " is drained."),
            std::string::npos)
      << events;
}

// Nodes to which nobody gets, while `away` has a file of their name.
auto that_may_be_away(const TempFolder& away, double lease = 2) {
  return [&away, lease](ServiceOptions& options) {
    on_nodes({"one", "two"}, 1, 0.5)(options);
    options.command_lease = lease;
    options.launcher = "env NODE={host} sh -c 'test ! -e " + away.path().string() +
                       "/{host} && exec \"$0\" \"$@\"'";
  };
}

// What runs there sees in the shared folder that it is to end; nothing begins before that.
TEST(CommandOnNodes, ALostNodesCommandBeginsElsewhereOnceItIsOver) {
  TempFolder away;
  LiveService service(that_may_be_away(away));
  const JobId id = service.submit_command(
      "job", here("[ $DUCTILE_RESTART = 1 ] && exit 0\n"
                  "setsid sh -c 'echo >> detached; exec sleep 1000' 9>&9 & sleep 1000"));
  wait_for_lines(service.folder() / "detached", 1);
  const std::string before = the_node_of(service.wait_for(id, "running"));
  write_file_atomic(away.path() / before, "");
  service.kill_agent(before);
  service.wait_for(id, "finished");
  EXPECT_EQ(text_of(service.folder() / "where"), before + "\n" + other(before) + "\n");
  EXPECT_EQ(text_of(service.folder() / "twice"), "");
  service.wait_for_no_workers();
  fs::remove(away.path() / before);
  wait_for_node(service, before, "up");
}

// Makes a paused job's orders those of an attempt that never began on its node, which goes away.
void leave_orders_where_nobody_gets(LiveService& service, const fs::path& run,
                                    const fs::path& away) {
  KeeperOrders orders = *read_orders(run);
  ++orders.attempt;
  ++orders.keeper;
  write_orders(run, orders);
  write_file_atomic(away / orders.node, "");
  service.kill_agent(orders.node);
  wait_for_node(service, orders.node, "lost");
}

TEST(CommandOnNodes, WhatIsCancelledWhileItsKeeperIsSoughtDoesNotBegin) {
  TempFolder away;
  LiveService service(that_may_be_away(away, 1000));
  const JobId id = service.submit_command("job", here("sleep 1000"));
  wait_for_lines(service.folder() / "starts", 1);
  const Json job = service.wait_for(id, "running");
  const std::string before = the_node_of(job);
  const fs::path run = job.value("run", "");
  service.act(id, "pause");
  service.wait_for(id, "paused");
  leave_orders_where_nobody_gets(service, run, away.path());
  service.act(id, "resume");
  service.wait_for(id, "running");
  service.act(id, "cancel");
  service.wait(id, [](const Json& waiting) {
    return waiting.value("why", "").find("it is being cancelled") != std::string::npos;
  });
  fs::remove(away.path() / before);  // now its node can say that there is no keeper
  service.wait_for(id, "cancelled");
  EXPECT_EQ(read_attempt(run).number, 1);
  EXPECT_EQ(text_of(service.folder() / "starts"), "0\n");
  service.wait_for_no_workers();
}

TEST(CommandOnNodes, AKeeperThatNeverBeganOnALostNodeIsNotSoughtForEver) {
  TempFolder away;
  LiveService service(that_may_be_away(away));
  const JobId id =
      service.submit_command("job", here("[ $DUCTILE_RESTART = 0 ] || exit 0\nsleep 1000"));
  wait_for_lines(service.folder() / "starts", 1);
  const Json job = service.wait_for(id, "running");
  const std::string before = the_node_of(job);
  service.act(id, "pause");
  service.wait_for(id, "paused");
  leave_orders_where_nobody_gets(service, job.value("run", ""), away.path());
  service.act(id, "resume");
  service.wait_for(id, "finished");
  EXPECT_EQ(text_of(service.folder() / "where"), before + "\n" + other(before) + "\n");
  EXPECT_EQ(text_of(service.folder() / "twice"), "");
}

// Neither a read that fails nor a service that is replaced shortens it. The keeper is stopped: it
// sees nothing until it goes on.
TEST(CommandOnNodes, TheWaitForALeaseIsNotForgotten) {
  TempFolder away;
  LiveService service(that_may_be_away(away, 1000));
  const JobId id =
      service.submit_command("job", here("[ $DUCTILE_RESTART = 0 ] || exit 0\nsleep 1000"));
  wait_for_lines(service.folder() / "starts", 1);
  const Json job = service.wait_for(id, "running");
  const std::string before = the_node_of(job);
  const fs::path run = job.value("run", "");
  const pid_t keeper = keeper_of(service);
  ASSERT_GT(keeper, 0);
  ::kill(keeper, SIGSTOP);
  make_unreadable(run / "attempt.json");
  write_file_atomic(away.path() / before, "");
  service.kill_agent(before);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!read_orders(run)->withdrawn && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(5ms);
  make_readable(run / "attempt.json");
  EXPECT_EQ(service.get("/v1/jobs/" + std::to_string(id)).at("phase"), "running");
  service.kill_service();
  service.start();
  const KeeperOrders orders = *read_orders(run);
  EXPECT_TRUE(orders.withdrawn);
  EXPECT_EQ(orders.attempt, 1);
  EXPECT_EQ(text_of(service.folder() / "where"), before + "\n");
  ::kill(keeper, SIGCONT);
  service.wait_for(id, "finished");
  EXPECT_EQ(text_of(service.folder() / "where"), before + "\n" + other(before) + "\n");
  EXPECT_EQ(text_of(service.folder() / "twice"), "");
}

TEST(CommandOnNodes, AKilledKeeperIsFollowedByAnotherAttempt) {
  LiveService service(on_nodes({"one", "two"}, 1));
  const JobId id = service.submit_command(
      "job", here("[ $DUCTILE_RESTART = 1 ] && exit 0\n"
                  "setsid sh -c 'echo >> detached; sleep 1000' & sleep 1000"));
  wait_for_lines(service.folder() / "detached", 1);
  const pid_t keeper = keeper_of(service);
  ASSERT_GT(keeper, 0);
  ::kill(keeper, SIGKILL);
  service.wait_for(id, "finished");
  EXPECT_EQ(text_of(service.folder() / "starts"), "0\n1\n");
  EXPECT_EQ(text_of(service.folder() / "twice"), "");
  service.wait_for_no_workers();
}

TEST(CommandOnNodes, ItsDevicesAreOnOneNode) {
  LiveService service(on_nodes({"one", "two"}, 2));
  const Json answer =
      service.send("POST", "/v1/jobs",
                   dump_json(Json{{"kind", "command"},
                                  {"min_devices", 3},
                                  {"max_devices", 3},
                                  {"spec", {{"command", {"true"}}, {"directory", "/"}}}}));
  EXPECT_EQ(answer.value("status", 0), 400) << answer;
  EXPECT_NE(answer.at("body").value("error", "").find("the largest has 2"), std::string::npos);
  // Each node becomes half full: three, of whom one of those that share a node ends.
  std::map<std::string, std::vector<JobId>> narrow;
  for (const char* name : {"a", "b", "c"}) {
    const JobId id = service.submit_command(
        name, "while [ ! -e go -a ! -e go$DUCTILE_JOB ]; do sleep 0.02; done");
    narrow[the_node_of(service.wait_for(id, "running"))].push_back(id);
  }
  ASSERT_EQ(narrow.size(), 2u);
  for (auto& [node, jobs] : narrow) {
    if (jobs.size() < 2) continue;
    write_file_atomic(service.folder() / ("go" + std::to_string(jobs.back())), "");
    service.wait_for(jobs.back(), "finished");
    jobs.pop_back();
  }
  const JobId wide = service.submit_command("wide", "echo $NODE >> where", {}, 2);
  const Json waits = service.wait(wide, [](const Json& job) {
    return job.value("why", "").find("no node has more than 1") != std::string::npos;
  });
  EXPECT_NE(waits.value("why", "").find("1 more is free on one of the nodes"), std::string::npos)
      << waits;
  write_file_atomic(service.folder() / "go", "");
  for (const auto& [node, jobs] : narrow) service.wait_for(jobs.front(), "finished");
  service.wait_for(wide, "finished");
  EXPECT_EQ(lines_of(service.folder() / "where"), 1);
}
}  // namespace
}  // namespace ductile::cluster
