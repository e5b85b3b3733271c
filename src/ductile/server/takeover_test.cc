// One run, controlled by the thread that trains and by a controller with processes, in turn.
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/json_value.h"
#include "ductile/link/addresses.h"
#include "ductile/link/local_control.h"
#include "ductile/link/saved_state.h"
#include "ductile/link/testing/test_loop.h"
#include "ductile/net/socket.h"
#include "ductile/server/testing/live_job.h"

namespace ductile::server::testing {
namespace {

using link::testing::Loop;

// In this thread, until its step loop ends.
link::JobEnd train_here(const Live& live, const Job& job, Loop& loop) {
  const run::RunLock lock(live.run(), run::RunLock::kLocal);
  link::LocalControlOptions options;
  options.run = live.run();
  options.membership = Live::membership(job);
  options.worker_program = job.program;
  link::LocalControl control(lock, std::move(options));
  loop.steps = job.steps;
  loop.published = [&](int64_t step) { return control.membership().checkpoint() >= step; };
  loop.run(control, live.run() / "checkpoints");
  return control.end();
}

TEST(Takeover, AControllerGoesOnWithARunOfOneThread) {
  const Job job{.steps = 60};
  Live live(job);
  Loop preempted{.before_step = [](link::CommandSource& source, int64_t step) {
    if (step == 23) source.tell(LeaveAsked{SIGTERM});
  }};
  EXPECT_EQ(train_here(live, job, preempted).phase, Phase::preempted);
  live.start(2);
  live.wait_for_step(30);
  EXPECT_EQ(live.status().at("workers").size(), 2u);
  live.expect_result();
}

TEST(Takeover, AControllerFollowsAThreadThatWasKilled) {
  const Job job{.steps = 60};
  Live live(job);
  const pid_t child = ::fork();
  if (child == 0) {
    Loop loop{.before_step = [](link::CommandSource&, int64_t step) {
      if (step == 35) ::kill(::getpid(), SIGKILL);
    }};
    train_here(live, job, loop);
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  live.start(2);
  live.expect_result();
}

TEST(Takeover, AThreadGoesOnWithARunOfAController) {
  const Job job{.steps = 150};
  Live live(job);
  live.start(2);
  live.wait_for_step(30);
  live.tell({{"request", "preempt"}});
  const int64_t step = live.end().at("step");
  Loop loop;
  const link::JobEnd end = train_here(live, job, loop);
  EXPECT_EQ(end.phase, Phase::finished) << end.reason;
  EXPECT_EQ(loop.steps_done, job.steps - step);
  EXPECT_EQ(read_checkpoint(live.run() / "checkpoints", job.steps),
            run_undisturbed(job.steps, kVirtualRanks));
}

TEST(Takeover, AControllerTakesOverOnAFullDiskAndWaitsForRoom) {
  Job job{.steps = 150};
  job.small_disk = true;
  Live live(job);
  live.start(2);
  live.wait_for_step(30);
  live.kill_controller();
  if (!live.fill_disk()) GTEST_SKIP() << "this user may not mount a file system to fill";
  live.start(0);
  live.wait_for("the full disk", [&](const json& s) {
    return live.ended() || s.dump().find("waits for room") != std::string::npos;
  });
  EXPECT_FALSE(live.ended());
  live.free_disk();
  live.expect_result();
}

// Other programs have its ports meanwhile, so its new ones have to be written down.
TEST(Takeover, AControllerThatCannotWriteItsAddressesEndsNoWorker) {
  Job job{.steps = 150};
  job.small_disk = true;
  Live live(job);
  live.start(2);
  live.wait_for_step(30);
  live.kill_controller();
  const link::Addresses before = link::read_addresses(live.run());
  const net::Listener one({before.controller.host, before.controller.port}),
      two({before.store.host, before.store.port});
  if (!live.fill_disk()) GTEST_SKIP() << "this user may not mount a file system to fill";
  const std::vector<pid_t> workers = live.processes();
  ASSERT_EQ(workers.size(), 2U);
  live.start(0);
  std::this_thread::sleep_for(1s);  // longer than it takes to be refused
  EXPECT_FALSE(live.ended());
  EXPECT_EQ(live.processes(), workers);
  live.free_disk();
  live.expect_result();
}

// What a controller on another machine finds of the workers here: nothing.
TEST(Takeover, AControllerOnAnotherMachineTakesNoWorkerForGone) {
  // What is elsewhere is waited for while nobody says that it is gone.
  const Job job{.steps = 150, .stop_deadline = 500ms};
  Live live(job);
  live.start(2);
  live.wait_for_step(30);
  live.kill_controller();
  for (const pid_t pid : live.processes()) ::kill(pid, SIGKILL);
  const fs::path file = link::state_file(live.run());
  json state = *link::read_state(file);
  for (json& worker : state.at("workers"))
    worker.at("report").at("address") = "10.0.0.2 another-boot/0/net:[1]/pid:[1]";
  write_file_atomic(file, link::sealed(state));
  live.start(0);
  live.expect_result();
  EXPECT_EQ(live.events().find("is gone"), std::string::npos) << "their leases were not awaited";
}

// Its workers' leases are far from their ends, and nobody waits for that: they are gone, or ended.
TEST(Takeover, AThreadFollowsAControllerThatWasKilledAtOnce) {
  for (const bool with_workers : {false, true}) {
    const Job job{.steps = 400, .lease = 5min};
    Live live(job);
    live.start(2);
    live.wait_for("a checkpoint", [](const json& s) { return s.value("checkpoint", -1) >= 20; });
    live.kill_controller();
    if (with_workers)
      for (const pid_t pid : live.processes()) ::kill(pid, SIGKILL);
    const auto begin = std::chrono::steady_clock::now();
    Loop loop;
    const link::JobEnd end = train_here(live, job, loop);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 2min);
    EXPECT_EQ(end.phase, Phase::finished) << end.reason;
    EXPECT_LE(loop.steps_done, job.steps - 20);
    EXPECT_TRUE(live.processes().empty()) << "a process was left behind";
    EXPECT_EQ(read_checkpoint(live.run() / "checkpoints", job.steps),
              run_undisturbed(job.steps, kVirtualRanks));
  }
}

}  // namespace
}  // namespace ductile::server::testing
