// The controller's host, with real worker processes that are killed, stopped and started again.
#include <chrono>
#include <csignal>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/publish.h"
#include "ductile/link/addresses.h"
#include "ductile/net/socket.h"
#include "ductile/run/json_lines.h"
#include "ductile/server/job_host.h"
#include "ductile/server/testing/live_job.h"

namespace ductile::server::testing {
namespace {

using namespace control;
using namespace std::chrono_literals;
using nlohmann::json;

TEST(JobController, RunsWorkersToTheResultOfOne) {
  for (const int64_t workers : {1, 3}) {
    Live live({});
    live.start(workers);
    live.expect_result();
    EXPECT_NE(read_file(live.run() / "lines").find("step 60"), std::string::npos);
    EXPECT_NE(live.events().find("\"generation\""), std::string::npos);
    EXPECT_EQ(fs::status(live.run() / "secret").permissions(), fs::perms(0600));
  }
}

// As where a package was upgraded under a job that trains: the others go on.
TEST(JobController, AJoinerThatCannotEvenBeginEndsNoJob) {
  Live live({.steps = 150, .cannot_import = 3});
  live.start(2);
  live.wait_for_step(30);
  live.tell({{"request", "resize"}, {"workers", 3}});
  live.wait_for("the joiner", [&](const json&) {
    return live.ended() || live.events().find("cannot import torch") != std::string::npos;
  });
  live.expect_result();
}

// Where nobody has begun it is the job that is wrong.
TEST(JobController, AJobWhoseOnlyWorkerCannotBeginFailsAtOnce) {
  Live live({.cannot_import = 1});
  live.start(1);
  const json end = live.end();
  EXPECT_EQ(end.value("phase", ""), "failed");
  EXPECT_EQ(end.value("reason", ""), "cannot import torch");
}

TEST(JobController, ResizesALiveJob) {
  Live live({.steps = 300});
  live.start(1);
  live.wait_for_step(20);
  live.tell({{"request", "resize"}, {"workers", 3}});
  live.wait_for_members(3);
  live.tell({{"request", "resize"}, {"workers", 2}});
  live.wait_for_members(2);
  const json status = live.status();
  if (!live.ended()) {
    EXPECT_EQ(status.at("wanted"), 2);
    EXPECT_EQ(status.at("processes"), 2);
  }
  EXPECT_THROW(live.tell({{"request", "resize"}, {"workers", kVirtualRanks + 1}}), Error);
  live.expect_result();
  EXPECT_NE(live.events().find("\"resize\""), std::string::npos);
}

TEST(JobController, IsPreemptedAndResumedWithAnotherNumberOfWorkers) {
  Live live({.steps = 150, .checkpoint_steps = 0});
  live.start(2);
  live.wait_for_step(30);
  live.tell({{"request", "preempt"}});
  const json first = live.end();
  EXPECT_EQ(first.at("phase"), "preempted");
  EXPECT_GE(first.at("checkpoint"), 30);
  EXPECT_EQ(first.at("checkpoint"), first.at("step"));
  EXPECT_THROW(live.tell({{"request", "status"}}), Error);
  live.start(3);
  live.expect_result();
}

TEST(JobController, GoesOnWhenWorkersAreKilled) {
  Live live({.steps = 400});
  live.start(3);
  Rng rng(7);
  int kills = 0;
  for (int round = 0; round < 8 && !live.ended(); ++round) {
    live.wait_for_members(3);
    const std::vector<pid_t> pids = live.processes();
    if (pids.empty()) break;
    ::kill(pids[rng.below(static_cast<uint32_t>(pids.size()))], SIGKILL);
    ++kills;
    std::this_thread::sleep_for(std::chrono::milliseconds(rng.below(80)));
  }
  EXPECT_GE(kills, 3);
  live.expect_result();
}

TEST(JobController, GoesOnFromACheckpointWhenAllWorkersDie) {
  Live live({.steps = 150});
  live.start(2);
  live.wait_for("a checkpoint", [](const json& s) { return s.value("checkpoint", -1) >= 30; });
  for (const pid_t pid : live.processes()) ::kill(pid, SIGKILL);
  live.expect_result();
}

// The chunks of the newest checkpoint, and then those of the one before it.
std::vector<fs::path> chunks_of(const fs::path& checkpoints, int64_t step) {
  const json root =
      json::parse(read_file(checkpoints / "manifests" / fmt::format("step-{:012d}.json", step)));
  std::vector<fs::path> chunks;
  for (const json& chunk : root.at("manifest").at("chunks")) {
    const auto hex = chunk.at(0).get<std::string>();
    chunks.push_back(checkpoints / "chunks" / hex.substr(0, 2) / hex);
  }
  return chunks;
}

// Preempted behind step 30, with two checkpoints on disk; returns the newest.
int64_t preempt_with_checkpoints(Live& live) {
  live.start(2);
  live.wait_for_step(30);
  live.tell({{"request", "preempt"}});
  const json end = live.end();
  EXPECT_EQ(end.at("phase"), "preempted");
  EXPECT_EQ(ckpt::list(live.run() / "checkpoints").size(), 2u);
  return end.at("checkpoint");
}

// Where the generations since `from` bytes of the diary began.
std::vector<int64_t> starts_since(const Live& live, size_t from) {
  std::vector<int64_t> starts;
  std::istringstream lines(live.events().substr(from));
  for (std::string line; std::getline(lines, line);) {
    const json event = json::parse(line);
    if (event.value("event", "") != "generation") continue;
    const std::string text = event.at("text");
    starts.push_back(std::stoll(text.substr(text.find("from step ") + 10)));
  }
  return starts;
}

// A link to itself: it cannot be opened (ELOOP), as any file when no descriptor is free.
TEST(JobController, ACheckpointThatCannotBeReadNowIsKeptAndUsedWhenItCan) {
  Live live({.steps = 150});
  const int64_t newest = preempt_with_checkpoints(live);
  const fs::path chunk = chunks_of(live.run() / "checkpoints", newest).front();
  const std::string good = read_file(chunk);
  fs::remove(chunk);
  fs::create_symlink(chunk, chunk);
  size_t from = live.events().size();
  live.start(2);
  const json end = live.end();
  EXPECT_EQ(end.at("phase"), "failed");
  EXPECT_NE(end.at("reason").get<std::string>().find(chunk.filename()), std::string::npos) << end;
  for (const int64_t start : starts_since(live, from)) EXPECT_EQ(start, newest);
  EXPECT_EQ(ckpt::list(live.run() / "checkpoints").size(), 2u);
  fs::remove(chunk);
  write_file_atomic(chunk, good);
  from = live.events().size();
  live.start(2);
  live.expect_result();
  EXPECT_EQ(starts_since(live, from).front(), newest);
}

TEST(JobController, ADamagedCheckpointCostsThatOneAndAllOfThemEndTheJob) {
  Live live({.steps = 150});
  const int64_t newest = preempt_with_checkpoints(live);
  const fs::path checkpoints = live.run() / "checkpoints";
  const int64_t before = ckpt::list(checkpoints).back().step;
  const fs::path first = chunks_of(checkpoints, newest).front();
  const fs::path second = chunks_of(checkpoints, before).front();
  ASSERT_NE(first, second);
  const std::string good = read_file(second);
  write_file_atomic(first, std::string(fs::file_size(first), 'x'));
  fs::remove(second);
  live.start(2);
  const json end = live.end();
  EXPECT_EQ(end.at("phase"), "failed");
  for (const fs::path& chunk : {first, second})
    EXPECT_NE(end.at("reason").get<std::string>().find(chunk.filename()), std::string::npos) << end;
  EXPECT_EQ(ckpt::list(checkpoints).size(), 2u) << "nothing is removed";
  write_file_atomic(second, good);
  const size_t from = live.events().size();
  live.start(2);
  live.expect_result();
  EXPECT_EQ(starts_since(live, from), (std::vector<int64_t>{newest, before}));
}

TEST(JobController, AsksTheStoreAndNotItsMemoryWhichCheckpointsThereAre) {
  Live live({.steps = 150});
  const int64_t newest = preempt_with_checkpoints(live);
  const fs::path checkpoints = live.run() / "checkpoints";
  const int64_t before = ckpt::list(checkpoints).back().step;
  const fs::path manifest = checkpoints / "manifests" / fmt::format("step-{:012d}.json", newest);
  fs::rename(manifest, live.run() / "aside");
  fs::rename(checkpoints / "manifests", live.run() / "manifests");
  live.start(2);
  EXPECT_NE(live.end().at("reason").get<std::string>().find("now there is none"),
            std::string::npos);
  fs::rename(live.run() / "manifests", checkpoints / "manifests");
  const size_t from = live.events().size();
  live.start(2);
  live.expect_result();
  EXPECT_EQ(starts_since(live, from).front(), before);
}

TEST(JobController, AloneSaysHowTheRunEnded) {
  Live live({.steps = 80});
  preempt_with_checkpoints(live);
  live.start(1);
  live.expect_result();
  std::vector<std::string> ends;
  std::istringstream lines(live.events());
  for (std::string line; std::getline(lines, line);) {
    const json event = json::parse(line);
    if (event.at("kind") == "end") ends.push_back(event.at("status"));
  }
  EXPECT_EQ(ends, (std::vector<std::string>{"interrupted", "done"}));
  EXPECT_TRUE(fs::exists(live.run() / "report.html"));
  EXPECT_TRUE(fs::is_empty(live.run() / "checkpoints" / "pending"));
}

TEST(JobController, AStoppedWorkerIsReplacedAndHarmlessWhenItWakesUp) {
  Live live({.steps = 400});
  live.start(2);
  live.wait_for_step(30);
  const std::vector<pid_t> pids = live.processes();
  ASSERT_EQ(pids.size(), 2u);
  ::kill(pids.front(), SIGSTOP);
  const int64_t before = live.status().at("step");
  live.wait_for("progress without it", [&](const json& s) { return s.at("step") > before + 20; });
  ::kill(pids.front(), SIGCONT);
  live.expect_result();
}

TEST(JobController, AKilledControllerIsReplacedAndFindsTheWorkersAgain) {
  Live live({.steps = 400});
  live.start(2);
  for (int round = 0; round < 3; ++round) {
    live.wait_for_step(30 * (round + 1));
    if (live.ended()) break;
    const std::vector<pid_t> before = live.processes();
    live.kill_controller();
    std::this_thread::sleep_for(50ms);
    if (round == 1 && !before.empty()) ::kill(before.front(), SIGKILL);
    live.start(2);
    live.wait_for_members(2);
    if (round == 0) {
      EXPECT_EQ(live.processes(), before) << "workers were replaced for nothing";
    }
  }
  live.expect_result();
}

TEST(JobController, AControllerKilledWithAllItsWorkersGoesOnFromTheCheckpoint) {
  Live live({.steps = 120});
  live.start(2);
  live.wait_for("a checkpoint", [](const json& s) { return s.value("checkpoint", -1) >= 30; });
  live.kill_controller();
  for (const pid_t pid : live.processes()) ::kill(pid, SIGKILL);
  live.start(0);
  live.expect_result();
}

TEST(JobController, AFaultOfTheJobEndsItWithItsText) {
  Live live({.error_at = 17});
  live.start(2);
  const json last = live.end();
  EXPECT_EQ(last.at("phase"), "failed");
  EXPECT_NE(last.at("reason").get<std::string>().find("sample 17 cannot be read"),
            std::string::npos);
}

TEST(JobController, SaysInTheLogHowTheJobEndedAndWhatAllItsWorkersCost) {
  const auto last_end = [](const Live& live) {
    json end;
    run::for_each_json_line(live.run() / "events.jsonl", [&](json& line) {
      if (line.value("kind", "") == "end") end = line;
    });
    return end;
  };
  Live live({.steps = 150, .error_at = 100, .checkpoint_steps = 0});
  live.start(2);
  live.wait_for_step(30);
  live.tell({{"request", "preempt"}});
  live.end();
  const json first = last_end(live);
  EXPECT_EQ(first.value("status", ""), "interrupted");
  EXPECT_GT(first.at("cost").at("core_seconds"), 0);
  live.start(3);
  live.end();
  const json second = last_end(live);
  EXPECT_EQ(second.value("status", ""), "failed") << second;
  EXPECT_NE(second.value("message", "").find("sample 100 cannot be read"), std::string::npos);
  for (const char* key : {"core_seconds", "wall_seconds"})
    EXPECT_GT(second.at("cost").at(key), first.at("cost").at(key)) << key;
}

// A worker that cannot say what is wrong would be taken for a lost one, and launched again and
// again.
TEST(JobController, AFaultWhoseTextIsNotUtf8EndsItInTheSameWay) {
  Live live({.error_at = 17, .odd_error = true});
  live.start(2);
  const json last = live.end();
  EXPECT_EQ(last.at("phase"), "failed");
  EXPECT_NE(last.at("reason").get<std::string>().find("\xEF\xBF\xBDsample 17 cannot be read"),
            std::string::npos)
      << last;
}

TEST(JobController, WorkersThatCannotBeStartedEndTheJob) {
  Live live({.program = "/nonexistent/ductile-worker"});
  live.start(2);
  const json last = live.end();
  EXPECT_EQ(last.at("phase"), "failed");
  EXPECT_NE(last.at("reason").get<std::string>().find("/nonexistent/ductile-worker"),
            std::string::npos);
}

TEST(JobController, ThereIsOneAtATimeAndStrangersAreRefused) {
  Live live({.steps = 200});
  live.start(2);
  live.wait_for_step(5);
  try {
    net::Loop loop;
    live.make_host(loop);
    ADD_FAILURE() << "a second controller";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::conflict);
  }
  const link::Addresses at = link::read_addresses(live.run());
  for (const net::Address& address : {at.controller, at.store}) {
    net::Socket stranger = net::connect(address, {}, net::Clock::now() + 5s);
    const std::string noise(4000, '\x7f');
    try {
      stranger.write_all(std::as_bytes(std::span(noise)), net::Clock::now() + 5s);
    } catch (const Error&) {  // hung up on already
    }
  }
  live.expect_result();
  EXPECT_NE(live.events().find("\"connection\""), std::string::npos);
}

TEST(JobController, DecidesNothingWhileItsStateCannotBeSavedAndGoesOnAfter) {
  Live live({.steps = 400});
  live.start(2);
  live.wait_for_members(2);
  const fs::path state = live.run() / "membership.json";
  fs::rename(state, live.run() / "kept");
  fs::create_directory(state);  // nothing can be renamed over it
  const std::vector<pid_t> pids = live.processes();
  ASSERT_FALSE(pids.empty());
  ::kill(pids.front(), SIGKILL);
  const json waiting = live.wait_for("the disk", [](const json& s) {
    return s.value("why", "").find("could not be saved") != std::string::npos ||
           s.value("why", "").find("save its state") != std::string::npos;
  });
  EXPECT_EQ(waiting.at("generation").at("number"), 1);
  std::this_thread::sleep_for(700ms);
  fs::remove(state);
  live.expect_result();
}

TEST(JobController, AResultThatFindsNoRoomEndsTheJobWithTheReason) {
  Live live({.steps = 60, .step_ms = 20, .checkpoint_steps = 0, .small_disk = true});
  live.start(2);
  live.wait_for_step(5);
  if (!live.fill_disk()) GTEST_SKIP() << "a file system of its own cannot be made here";
  const json last = live.end();
  EXPECT_EQ(last.value("phase", ""), "failed") << last;
  const std::string reason = last.value("reason", "");
  EXPECT_NE(reason.find("all 60 steps are done"), std::string::npos) << reason;
  EXPECT_NE(reason.find("No space left"), std::string::npos) << reason;
  live.free_disk();
  live.start(2);
  live.expect_result();
}

// The result alone finds no room: the controller's own state is saved all the time.
TEST(JobController, AResultThatCannotBeWrittenEndsTheJobWithTheReason) {
  Live live({.steps = 60, .step_ms = 10, .checkpoint_steps = 0});
  live.start(2);
  live.wait_for_step(5);
  const fs::path folder = live.run() / "checkpoints";
  fs::rename(folder, live.run() / "kept");
  std::ofstream(folder) << "no folder";
  const json last = live.end();
  EXPECT_EQ(last.value("phase", ""), "failed") << last;
  EXPECT_NE(last.value("reason", "").find("could not be saved within"), std::string::npos) << last;
  fs::remove(folder);
  fs::rename(live.run() / "kept", folder);
  live.start(2);
  live.expect_result();
}

TEST(JobController, AControllerThatWasStoppedTakesNobodyForSilent) {
  Live live({.steps = 1500, .heartbeat_deadline = 2s, .lease = 20s});
  live.start(3);
  live.wait_for_members(3);
  const std::vector<pid_t> before = live.processes();
  for (int round = 0; round < 2 && !live.ended(); ++round) {
    live.signal_controller(SIGSTOP);
    std::this_thread::sleep_for(3s);  // longer than a heartbeat may take, shorter than a lease
    live.signal_controller(SIGCONT);
    live.wait_for_step(live.status().at("step").get<int64_t>() + 10);
  }
  if (!live.ended()) {
    EXPECT_EQ(live.processes(), before);
  }
  live.expect_result();
  EXPECT_EQ(live.events().find("no heartbeat"), std::string::npos) << live.events();
}

TEST(JobController, BeginsWithTheCheckpointsOfARunWithoutController) {
  Live live({.steps = 60});
  const State half = run_undisturbed(30, kVirtualRanks);
  write_checkpoint(live.run() / "checkpoints", half, "single");
  ckpt::publish(live.run() / "checkpoints", 30, "single");
  live.start(2);
  live.expect_result();
  EXPECT_EQ(read_file(live.run() / "lines").find("step 30\""), std::string::npos);
  EXPECT_NE(read_file(live.run() / "lines").find("step 31\""), std::string::npos);
}

// ---- On several hosts.

std::shared_ptr<EmulatedHosts> hosts_or_skip(int count) {
  auto hosts = std::make_shared<EmulatedHosts>(count);
  return hosts->why().empty() ? hosts : nullptr;
}

TEST(JobOnHosts, RunsWhereThePlacesAreAndEndsWithTheResultOfOne) {
  const auto hosts = hosts_or_skip(3);
  if (!hosts) GTEST_SKIP() << "network namespaces cannot be made here";
  Live live({.steps = 150, .hosts = hosts, .places = {1, 2}});
  live.start(3);
  const json status = live.wait_for_members(3);
  std::map<std::string, int> found;
  for (const json& worker : status.at("workers")) ++found[worker.value("host", "")];
  if (!found.empty()) {
    EXPECT_EQ(found, (std::map<std::string, int>{{hosts->name(1), 1}, {hosts->name(2), 2}}));
  }
  live.expect_result();
  EXPECT_NE(read_file(live.run() / "lines").find("step 150"), std::string::npos);
}

TEST(JobOnHosts, GoesOnWhenWorkersControllersAndAgentsAreKilled) {
  const auto hosts = hosts_or_skip(3);
  if (!hosts) GTEST_SKIP() << "network namespaces cannot be made here";
  Live live({.steps = 500, .hosts = hosts, .places = {2, 2}});
  live.start(3);
  Rng rng(5);
  for (int round = 0; round < 6 && !live.ended(); ++round) {
    live.wait_for_members(3);
    const std::vector<pid_t> pids = live.processes();
    if (!pids.empty()) ::kill(pids[rng.below(static_cast<uint32_t>(pids.size()))], SIGKILL);
    if (round == 2) {
      live.kill_controller();
      live.start(3);
    }
    if (round == 4)
      for (const pid_t agent : live.agents()) ::kill(agent, SIGKILL);
  }
  live.expect_result();
}

TEST(JobOnHosts, AHostThatIsCutOffIsDoneWithoutUntilItIsBack) {
  const auto hosts = hosts_or_skip(3);
  if (!hosts) GTEST_SKIP() << "network namespaces cannot be made here";
  Live live({.steps = 1200, .hosts = hosts, .places = {1, 1}});
  live.start(2);
  live.wait_for_members(2);
  ASSERT_TRUE(hosts->cut(2));
  const int64_t before = live.status().at("step");
  live.wait_for("progress without it",
                [&](const json& s) { return s.at("step") > before + 20 || live.ended(); });
  ASSERT_TRUE(hosts->restore(2));
  live.wait_for_members(2);
  live.expect_result();
}

TEST(JobOnHosts, AHostWhereNoWorkerCanBeginIsDoneWithout) {
  const auto hosts = hosts_or_skip(3);
  if (!hosts) GTEST_SKIP() << "network namespaces cannot be made here";
  for (const int sick : {1, 2}) {
    Live live({.steps = 400, .hosts = hosts, .places = {2, 2}, .sick_host = sick});
    live.slow_steps(true);
    live.start(3);
    const std::string text =
        fmt::format("on host {}: there are no samples here", hosts->name(sick));
    const auto is_told = [&] {
      return fs::exists(live.run() / "events.jsonl") &&
             live.events().find(text) != std::string::npos;
    };
    live.wait_for("what that host said", [&](const json&) { return is_told() || live.ended(); });
    live.slow_steps(false);
    live.expect_result();
    EXPECT_TRUE(is_told()) << live.events();
  }
}

TEST(JobOnHosts, HostsThatCannotTakePartAreNamedBeforeAnythingStarts) {
  const Live live({});
  const auto complaint = [&](const HostSetup& setup, const fs::path& run) {
    HostsLauncherOptions options;
    options.setup = setup;
    options.program = options.worker = DUCTILE_TEST_WORKER;
    options.patience = 5s;
    try {
      net::Loop loop;
      make_hosts_launcher(loop, options, run);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("none");
  };
  const HostSetup fails{{{"remote1", "", 1}}, "sh -c 'echo no route to {host} >&2; exit 255'", ""};
  EXPECT_NE(complaint(fails, live.run()).find("no route to remote1"), std::string::npos);
  const HostSetup absent{{{"remote1", "", 1}}, "no-such-launcher {host}", ""};
  EXPECT_NE(complaint(absent, live.run()).find("no program 'no-such-launcher'"), std::string::npos);
  // A host that sees another folder under the same path.
  const std::string command = fmt::format(
      "sh -c 'exec unshare -m sh -c \"mount -t tmpfs none {} && exec \\$0 \\$1\" $0 $1'",
      live.run().string());
  if (geteuid() == 0) {
    const HostSetup hidden{{{"remote1", "", 1}}, command, ""};
    const std::string text = complaint(hidden, live.run());
    EXPECT_NE(text.find("does not see"), std::string::npos) << text;
    EXPECT_NE(text.find("file system that all of them share"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace ductile::server::testing
