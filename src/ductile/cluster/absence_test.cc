// Nobody serves for a while: what runs goes on, what ends meanwhile is known afterwards, and what
// cannot go on waits.
//
//   DUCTILE_AWAY_SECONDS=n  for so long (6)
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "ductile/ckpt/checkpoint.h"
#include "ductile/cluster/store.h"
#include "ductile/cluster/testing/live_nodes.h"
#include "ductile/cluster/testing/live_service.h"
#include "ductile/link/worker_processes.h"
#include "ductile/server/client.h"

namespace ductile::cluster {
namespace {

using namespace testing;

constexpr double kLeastStep = 0.005;  // seconds: the workers' steps take at least so long

double away_seconds() {
  const char* text = std::getenv("DUCTILE_AWAY_SECONDS");
  return text != nullptr ? std::atof(text) : 6;
}

std::set<pid_t> workers_of(const fs::path& run) {
  const std::vector<pid_t> pids = link::workers_of(run);
  return {pids.begin(), pids.end()};
}

// What the job's controller says once all of its workers have reported to it.
Json told_by_all(const fs::path& run, size_t workers) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    try {
      const Json status = server::ask(run, {{"request", "status"}});
      size_t connected = 0;
      if (status.contains("workers"))
        for (const Json& worker : status["workers"])
          connected += worker.value("connected", false) && worker.contains("ranks") ? 1 : 0;
      if (connected == workers) return status;
    } catch (const Error&) {  // nobody serves yet
    }
    std::this_thread::sleep_for(5ms);
  }
  ADD_FAILURE() << run << ": waited in vain for " << workers << " workers";
  return {{"step", 0}, {"generation", {{"number", 0}}}};
}

TEST(Absence, JobsGoOnWithoutAServiceAndTheNextOneFindsThem) {
  const double away = away_seconds();
  LiveService service(on_nodes({"one", "two"}, 4));
  const auto begin = [&](const std::string& name, int64_t steps, int64_t devices) {
    const JobId id = service.submit(name, steps, devices, devices);
    service.wait_for_workers(id);
    return std::pair(id, fs::path(service.get("/v1/jobs/" + std::to_string(id)).value("run", "")));
  };
  const auto [lasting, run] = begin("lasting", static_cast<int64_t>(away / kLeastStep) * 10, 2);
  const auto [broken, broken_run] = begin("broken", 1500, 2);
  const auto [ending, ending_run] = begin("ending", 700, 2);
  const fs::path count = service.folder() / "count";
  const JobId command = service.submit_command("command", "sleep 1; echo once >> count");
  service.wait(command, [](const Json& job) { return job.at("phase") == "running"; });
  const Json before = told_by_all(run, 2);
  told_by_all(broken_run, 2);
  const std::set<pid_t> pids = workers_of(run);
  ASSERT_EQ(pids.size(), 2u);

  service.kill_service();
  const std::set<pid_t> others = workers_of(broken_run);
  ASSERT_FALSE(others.empty());
  ::kill(*others.begin(), SIGKILL);
  std::this_thread::sleep_for(std::chrono::duration<double>(away));
  EXPECT_EQ(workers_of(run), pids) << "somebody ended them";
  service.start();

  const Json after = told_by_all(run, 2);
  EXPECT_EQ(workers_of(run), pids);
  EXPECT_EQ(after.at("generation").at("number"), before.at("generation").at("number"));
  // A twentieth of what they could have done.
  EXPECT_GT(after.at("step").get<double>(),
            before.at("step").get<double>() + away / kLeastStep / 20);
  for (const JobId id : {broken, ending}) service.expect_result(id);
  service.wait_for(command, "finished");
  EXPECT_EQ(read_file(count), "once\n");
  // It was not to end before the service was back; it has the bits of its step.
  service.act(lasting, "pause");
  service.wait_for(lasting, "paused");
  const int64_t step = ckpt::list(run / "checkpoints").front().step;
  EXPECT_GE(step, after.at("step"));
  EXPECT_EQ(link::testing::read_checkpoint(run / "checkpoints", step),
            link::testing::run_undisturbed(step, kRanks));
  service.act(lasting, "cancel");
  service.wait_for(lasting, "cancelled");
  EXPECT_EQ(service.stop(), 0);
  EXPECT_TRUE(service.workers().empty());
  EXPECT_TRUE(Reader(service.folder() / "store.db").check().empty());
}

// As systemd sends it to all processes of a unit.
TEST(Nodes, TheSignalThatStopsAServiceIsNoNotice) {
  LiveService service([](ServiceOptions& options) {
    on_nodes({"one"}, 1)(options);
    options.cluster->groups.front().notice = 1000;
  });
  wait_for_node(service, "one", "up");
  const std::set<pid_t> agents = service.agents("one");
  service.kill_agent("one", SIGTERM);
  EXPECT_EQ(service.stop(), 0);
  for (const pid_t pid : agents) ::waitpid(pid, nullptr, 0);  // they are ours now
  service.start();
  wait_for_node(service, "one", "up");
}

// It is held up when the signal comes to both, for longer than a signal takes.
TEST(Nodes, TheSignalThatStopsAServiceLateIsNoNotice) {
  LiveService service([](ServiceOptions& options) {
    on_nodes({"one"}, 1)(options);
    options.cluster->groups.front().notice = 1000;
  });
  wait_for_node(service, "one", "up");
  const std::set<pid_t> agents = service.agents("one");
  ::kill(service.process(), SIGSTOP);
  service.kill_agent("one", SIGTERM);
  const fs::path notice = service.folder() / "server" / "leaving" / "one";
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!fs::exists(notice) && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(fs::exists(notice));
  std::this_thread::sleep_for(6s);
  ::kill(service.process(), SIGTERM);
  ::kill(service.process(), SIGCONT);
  EXPECT_EQ(service.stop(), 0);
  for (const pid_t pid : agents) ::waitpid(pid, nullptr, 0);  // they are ours now
  EXPECT_FALSE(fs::exists(notice));
}

}  // namespace
}  // namespace ductile::cluster
