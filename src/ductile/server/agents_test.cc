// One agent on each host for all jobs, with real agents and workers. Each "host" is this machine
// under another name, since the launcher command `env` starts a program right here.
#include "ductile/server/agents.h"

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/base/machine.h"
#include "ductile/link/testing/test_model.h"
#include "ductile/link/worker_processes.h"
#include "ductile/run/lock.h"
#include "ductile/server/core_map.h"
#include "ductile/server/job_host.h"

namespace ductile::server {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr int64_t kRanks = 4;
constexpr auto kPatience = 60s;

// A folder with runs, its agents, and the jobs of one controller.
class Fleet {
 public:
  struct Job {
    fs::path run;
    int64_t steps = 0;
    std::unique_ptr<run::RunLock> lock;
    std::unique_ptr<JobHost> host;
    Launcher* launcher = nullptr;  // the host's
    std::optional<JobOutcome> outcome;
  };

  explicit Fleet(std::vector<Host> hosts = {{"one", "", 2}, {"two", "", 2}},
                 std::string launcher = "env", fs::path worker = DUCTILE_TEST_WORKER)
      : hosts_(std::move(hosts)), launcher_(std::move(launcher)), worker_(std::move(worker)) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    begin();
  }
  ~Fleet() {
    end();
    for (const auto& host : hosts_)
      for (const link::FoundWorker& worker : link::workers_below(folder_.path(), host.name))
        link::end_worker(DUCTILE_TEST_WORKER, worker.run, worker.worker);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) continue;
  }

  void begin() {
    AgentsOptions options;
    options.setup = {hosts_, launcher_, "127.0.0.1"};
    options.folder = folder_.path();
    options.program = DUCTILE_TEST_WORKER;
    options.worker = worker_;
    options.devices = true;
    agents = std::make_shared<Agents>(loop, options);
  }
  // As a controller does that ends: jobs end without saving.
  void end() {
    for (Job& job : jobs) job.host.reset();
    jobs.clear();
    agents.reset();
  }

  Job& make(const std::string& name, int64_t steps, int64_t step_ms = 5) {
    Job& job = jobs.emplace_back();
    job.run = folder_.path() / "runs" / name;
    job.steps = steps;
    for (const char* part : {"checkpoints", "tensorboard"}) fs::create_directories(job.run / part);
    write_file_atomic(job.run / "job.toml", "");
    write_file_atomic(job.run / "test.json", json{{"steps", steps},
                                                  {"step_ms", step_ms},
                                                  {"virtual_ranks", kRanks},
                                                  {"lease_ms", lease.count()}}
                                                 .dump());
    return job;
  }
  void start(Job& job, int64_t workers, const std::vector<HostShare>& shares, bool python = false) {
    job.lock = std::make_unique<run::RunLock>(job.run, run::RunLock::kController);
    JobHostOptions o;
    o.run = job.run;
    o.membership.virtual_ranks = kRanks;
    o.membership.heartbeat_deadline = heartbeat;
    o.membership.lease = lease;
    o.membership.reattach = 1500ms;
    o.membership.backoff_base = 20ms;
    o.membership.backoff_max = 200ms;
    o.membership.num_hosts = static_cast<int64_t>(hosts_.size());
    o.membership.checkpoint_steps = 10;
    auto launcher =
        make_hosts_launcher(agents, {.log = job.run / "worker.log", .python = python}, job.run);
    job.launcher = launcher.get();
    job.launcher->place(shares);
    job.host = std::make_unique<JobHost>(loop, *job.lock, std::move(o), std::move(launcher));
    job.host->start(workers, [&job](JobOutcome outcome) { job.outcome = std::move(outcome); });
  }

  bool turn_until(const std::function<bool()>& holds) {
    const auto deadline = loop.now() + kPatience;
    while (!holds() && loop.now() < deadline) loop.turn(loop.now() + 20ms);
    return holds();
  }
  void expect_result(Job& job) {
    ASSERT_TRUE(turn_until([&] { return job.outcome.has_value(); }))
        << job.host->status() << read_file(job.run / "events.jsonl");
    if (job.outcome->error) std::rethrow_exception(job.outcome->error);
    EXPECT_EQ(job.outcome->end.phase, control::Phase::finished) << job.outcome->end.reason;
    EXPECT_EQ(link::testing::read_checkpoint(job.run / "checkpoints", job.steps),
              link::testing::run_undisturbed(job.steps, kRanks));
  }
  int64_t step(const Job& job) const { return job.host->status().value("step", int64_t{0}); }

  // Of the workers of all jobs: process, and where it may run.
  std::map<pid_t, std::vector<int>> cores() const {
    std::map<pid_t, std::vector<int>> out;
    for (const Job& job : jobs) {
      for (const pid_t pid : link::workers_of(job.run)) {
        cpu_set_t set;
        CPU_ZERO(&set);
        if (::sched_getaffinity(pid, sizeof set, &set) != 0) continue;
        for (int c = 0; c < CPU_SETSIZE; ++c)
          if (CPU_ISSET(static_cast<size_t>(c), &set)) out[pid].push_back(c);
      }
    }
    return out;
  }
  // The agents: children of this process that the launcher command became.
  static std::vector<pid_t> agents_alive() {
    std::vector<pid_t> out;
    for (const pid_t pid : link::all_processes()) {
      try {
        const fs::path process = fs::path("/proc") / std::to_string(pid);
        const std::string stat = read_file(process / "stat");
        const std::string parent = " " + std::to_string(::getpid()) + " ";
        if (stat.substr(stat.rfind(')')).find(parent) == 3 &&
            read_file(process / "cmdline").find("host-agent") != std::string::npos)
          out.push_back(pid);
      } catch (const Error&) {  // gone
      }
    }
    return out;
  }
  const fs::path& folder() const { return folder_.path(); }

  net::Loop loop;
  std::shared_ptr<Agents> agents;
  std::list<Job> jobs;
  // A busy machine keeps a worker silent for a second.
  std::chrono::milliseconds heartbeat{5000}, lease{10000};

 private:
  TempFolder folder_;
  const std::vector<Host> hosts_;
  const std::string launcher_;
  const fs::path worker_;
};

// Programs of a folder: a ductile-worker, and that of Python's workers, which says that it was used
// and becomes the former.
class Programs {
 public:
  explicit Programs(const std::string& worker = "") {
    write(folder_.path() / "ductile-worker", worker);
    write(folder_.path() / "ductile-python-worker", "touch " + used().string() + "; ");
  }
  fs::path worker() const { return folder_.path() / "ductile-worker"; }
  fs::path used() const { return folder_.path() / "used"; }

 private:
  static void write(const fs::path& file, const std::string& text) {
    write_file_atomic(file, "#!/bin/sh\n" + text + "exec " DUCTILE_TEST_WORKER " \"$@\"\n");
    fs::permissions(file, fs::perms::owner_all);
  }
  TempFolder folder_;
};

TEST(Agents, AllJobsUseOneOnEachHost) {
  Fleet fleet;
  Fleet::Job& a = fleet.make("a", 150);
  Fleet::Job& b = fleet.make("b", 150);
  fleet.start(a, 2, {{"one", 1}, {"two", 1}});
  fleet.start(b, 2, {{"one", 1}, {"two", 1}});
  ASSERT_TRUE(fleet.turn_until([&] { return fleet.step(a) > 5 && fleet.step(b) > 5; }));
  EXPECT_EQ(Fleet::agents_alive().size(), 2u);
  const std::map<std::string, int64_t> one_each = {{"one", 1}, {"two", 1}};
  EXPECT_EQ(a.launcher->by_host(), one_each);
  EXPECT_EQ(b.launcher->by_host(), one_each);
  fleet.expect_result(a);
  fleet.expect_result(b);
}

// As srun does with stdout: what no newline has ended waits.
TEST(Agents, ALauncherNeedPassOnWholeLinesAlone) {
  const std::string pass_on = "grep --text --line-buffered \"\"";
  Fleet fleet({{"one", "", 2}, {"two", "", 2}},
              "sh -c '" + pass_on + " | \"$@\" | " + pass_on + "' sh");
  Fleet::Job& job = fleet.make("a", 50);
  fleet.start(job, 2, {{"one", 1}, {"two", 1}});
  fleet.expect_result(job);
}

TEST(Agents, TwoJobsNeverShareACore) {
  if (usable_cores().size() < 2) GTEST_SKIP() << "there is one core";
  Fleet fleet({{"one", "", 2}});
  Fleet::Job& a = fleet.make("a", 300);
  Fleet::Job& b = fleet.make("b", 1000000);
  fleet.start(a, 1, {{"one", 1}});
  fleet.start(b, 1, {{"one", 1}});
  ASSERT_TRUE(fleet.turn_until([&] { return fleet.step(a) > 5 && fleet.step(b) > 5; }));
  const auto disjoint = [&] {
    std::set<int> seen;
    const auto cores = fleet.cores();
    EXPECT_EQ(cores.size(), 2u);
    for (const auto& [pid, own] : cores)
      for (const int core : own) EXPECT_TRUE(seen.insert(core).second) << "core " << core;
  };
  disjoint();
  // As many threads as physical cores, where there are as many of these as devices.
  const bool whole = core_map().cores.size() >= 2;
  for (const auto& [pid, own] : fleet.cores()) {
    const std::string environment = read_file(fs::path("/proc") / std::to_string(pid) / "environ");
    const size_t threads = whole ? core_map(own).cores.size() : own.size();
    EXPECT_NE(environment.find(fmt::format("OMP_NUM_THREADS={}", threads) + '\0'),
              std::string::npos);
  }
  // A new agent knows whose cores are taken.
  for (const pid_t agent : Fleet::agents_alive()) ::kill(agent, SIGKILL);
  const std::vector<pid_t> killed = link::workers_of(a.run);
  for (const pid_t worker : killed) ::kill(worker, SIGKILL);
  ASSERT_TRUE(fleet.turn_until([&] {
    const std::vector<pid_t> now = link::workers_of(a.run);
    return now.size() == 1 && now != killed;
  }));
  disjoint();
  fleet.expect_result(a);
}

TEST(Agents, AKilledOneIsStartedAgainAndFindsTheWorkers) {
  Fleet fleet;
  Fleet::Job& job = fleet.make("a", 1000);
  fleet.start(job, 2, {{"one", 1}, {"two", 1}});
  ASSERT_TRUE(fleet.turn_until([&] { return fleet.step(job) > 5; }));
  const std::vector<pid_t> before = link::workers_of(job.run);
  for (const pid_t agent : Fleet::agents_alive()) ::kill(agent, SIGKILL);
  ASSERT_TRUE(fleet.turn_until([&] { return !fleet.agents->ready(0); }));
  ASSERT_TRUE(fleet.turn_until([&] { return fleet.agents->clean(0) && fleet.agents->clean(1); }));
  EXPECT_EQ(link::workers_of(job.run), before);
  EXPECT_EQ(job.launcher->running(), 2u);
  fleet.expect_result(job);
}

// The only worker of a busy machine says nothing for a while, and nobody knows whether it is gone;
// its place is not free before its lease has ended.
TEST(Agents, AJobWaitsForThePlaceOfAWorkerThatIsSilent) {
  Fleet fleet;
  fleet.heartbeat = 600ms;
  fleet.lease = 2s;
  Fleet::Job& job = fleet.make("a", 300);
  fleet.start(job, 1, {{"one", 1}});
  ASSERT_TRUE(fleet.turn_until([&] { return fleet.step(job) > 5; }));
  for (const pid_t worker : link::workers_of(job.run)) ::kill(worker, SIGSTOP);
  fleet.expect_result(job);
  const std::string events = read_file(job.run / "events.jsonl");
  EXPECT_NE(events.find("no host has room for a worker: one has 1"), std::string::npos) << events;
}

// Of a second controller of the same hosts.
AgentsOptions options_beside(const Fleet& fleet) {
  AgentsOptions options;
  options.setup = {{{"one", "", 2}}, "env", "127.0.0.1"};
  options.folder = fleet.folder();
  options.program = options.worker = DUCTILE_TEST_WORKER;
  return options;
}

bool has_ended(pid_t child) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid == child;
}

// The controller takes a stopped agent for one without a connection; when it wakes up, the new one
// has taken its place.
TEST(Agents, ANewOneEndsTheOneBeforeIt) {
  Fleet fleet({{"one", "", 2}});
  ASSERT_TRUE(fleet.turn_until([&] { return fleet.agents->clean(0); }));
  const std::vector<pid_t> before = Fleet::agents_alive();
  ASSERT_EQ(before.size(), 1u);
  ::kill(before[0], SIGSTOP);
  Agents next(fleet.loop, options_beside(fleet));
  next.meet(true);
  EXPECT_TRUE(fleet.turn_until([&] { return has_ended(before[0]); }));
}

// Whoever likes may call it, as any user of the host, and it accepts nobody any more.
TEST(Agents, ANewOneEndsTheOneBeforeItThoughItsQueueIsFull) {
  Fleet fleet({{"one", "", 2}});
  ASSERT_TRUE(fleet.turn_until([&] { return fleet.agents->clean(0); }));
  const std::vector<pid_t> before = Fleet::agents_alive();
  ASSERT_EQ(before.size(), 1u);
  ::kill(before[0], SIGSTOP);
  std::vector<Descriptor> callers;
  std::istringstream sockets(read_file("/proc/net/unix"));
  for (std::string line; std::getline(sockets, line);) {
    const size_t at = line.find("@ductile-agent-");
    if (at == std::string::npos) continue;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string name = line.substr(at + 1);
    ASSERT_LT(name.size(), sizeof address.sun_path);
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    bool room = true;
    while (room && callers.size() < 10'000) {
      Descriptor caller(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      room = ::connect(caller.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0;
      callers.push_back(std::move(caller));
    }
  }
  ASSERT_GT(callers.size(), 10u);
  Agents next(fleet.loop, options_beside(fleet));
  next.meet(true);
  EXPECT_TRUE(fleet.turn_until([&] { return has_ended(before[0]); }));
}

TEST(Agents, WorkersThatNoJobKnowsAreEndedBeforeTheHostIsClean) {
  Fleet fleet({{"one", "", 2}});
  Fleet::Job& job = fleet.make("a", 100000);
  fleet.start(job, 2, {{"one", 2}});
  ASSERT_TRUE(fleet.turn_until([&] { return fleet.step(job) > 5; }));
  // The agent is gone when the job's end wants to have its workers killed.
  for (const pid_t agent : Fleet::agents_alive()) ::kill(agent, SIGKILL);
  ASSERT_TRUE(fleet.turn_until([&] { return !fleet.agents->ready(0); }));
  const std::vector<pid_t> workers = link::workers_of(job.run);
  EXPECT_EQ(workers.size(), 2u);
  for (const pid_t worker : workers) ::kill(worker, SIGSTOP);  // none ends by itself
  job.host.reset();
  EXPECT_FALSE(fleet.agents->clean(0));
  ASSERT_TRUE(fleet.turn_until([&] { return fleet.agents->clean(0); }));
  EXPECT_TRUE(link::workers_of(job.run).empty());
}

TEST(Agents, AJobMovesToOtherHosts) {
  Fleet fleet;
  Fleet::Job& job = fleet.make("a", 1000);
  fleet.start(job, 2, {{"one", 2}});
  ASSERT_TRUE(fleet.turn_until([&] { return fleet.step(job) > 5; }));
  const auto move = [&](const std::vector<HostShare>& shares, int64_t workers) {
    bool taken = false;
    job.host->request(control::ResizeJob{workers, job.launcher->place(shares)},
                      [&](const link::RequestAnswer& answer) { taken = answer.refused.empty(); });
    EXPECT_TRUE(fleet.turn_until([&] { return taken; }));
    std::map<std::string, int64_t> wanted;
    for (const HostShare& share : shares) wanted[share.host] = share.workers;
    EXPECT_TRUE(fleet.turn_until([&] { return job.launcher->by_host() == wanted; }));
  };
  move({{"two", 2}}, 2);
  move({{"one", 1}, {"two", 1}}, 2);
  move({{"one", 1}}, 1);
  fleet.expect_result(job);
  EXPECT_EQ(read_file(job.run / "events.jsonl").find("\"lost\""), std::string::npos);
}

// It cannot even reach the controller, and says so through its pipe, as a program does that lacks
// what it imports.
constexpr const char* kRefuses =
    R"(for word; do [ "$before" = --progress-fd ] && pipe=$word; before=$word; done; )"
    R"(echo '{"error": "no data here", "code": "invalid_argument"}' >/proc/self/fd/$pipe; exit 2; )";

TEST(Agents, AWorkerThatSaysWhyItCannotBeginIsAnErrorOfItsHostAlone) {
  const Programs programs(std::string(R"(case " $* " in *" --host two "*) )") + kRefuses +
                          ";; esac; ");
  Fleet fleet({{"one", "", 2}, {"two", "", 2}}, "env", programs.worker());
  Fleet::Job& job = fleet.make("a", 300);
  fleet.start(job, 2, {{"one", 1}, {"two", 1}});
  fleet.expect_result(job);
  const std::string events = read_file(job.run / "events.jsonl");
  EXPECT_NE(events.find("on host two: no data here"), std::string::npos) << events;
}

TEST(Agents, WhatEveryHostSaysEndsTheJobWithItsText) {
  const Programs programs(kRefuses);
  Fleet fleet({{"one", "", 2}, {"two", "", 2}}, "env", programs.worker());
  Fleet::Job& job = fleet.make("a", 300);
  fleet.start(job, 2, {{"one", 1}, {"two", 1}});
  ASSERT_TRUE(fleet.turn_until([&] { return job.outcome.has_value(); }));
  EXPECT_EQ(job.outcome->end.phase, control::Phase::failed);
  EXPECT_EQ(job.outcome->end.error_code, ErrorCode::invalid_argument);
  EXPECT_NE(job.outcome->end.reason.find(": no data here (an error on each of 2 hosts)"),
            std::string::npos)
      << job.outcome->end.reason;
}

TEST(Agents, APythonJobHasTheProgramBesideTheWorker) {
  const Programs programs;
  Fleet fleet({{"one", "", 2}}, "env", programs.worker());
  Fleet::Job& plain = fleet.make("plain", 50);
  fleet.start(plain, 1, {{"one", 1}});
  fleet.expect_result(plain);
  EXPECT_FALSE(fs::exists(programs.used()));
  Fleet::Job& job = fleet.make("python", 50);
  fleet.start(job, 1, {{"one", 1}}, /*python=*/true);
  fleet.expect_result(job);
  EXPECT_TRUE(fs::exists(programs.used()));
}

TEST(Agents, AHostWithoutPythonsProgramNamesIt) {
  const Programs programs;
  fs::remove(programs.worker().parent_path() / "ductile-python-worker");
  Fleet fleet({{"one", "", 2}}, "env", programs.worker());
  Fleet::Job& job = fleet.make("a", 50);
  fleet.start(job, 1, {{"one", 1}}, /*python=*/true);
  ASSERT_TRUE(fleet.turn_until([&] { return job.outcome.has_value(); }));
  EXPECT_NE(job.outcome->end.reason.find("host one: "), std::string::npos);
  EXPECT_NE(job.outcome->end.reason.find("ductile-python-worker: not there"), std::string::npos)
      << job.outcome->end.reason;
}

TEST(Agents, AUsersCodeRunsAsThatUserAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user's agent";
  const Programs programs;
  Fleet fleet({{"one", "", 2}}, "env", programs.worker());
  ASSERT_EQ(::chown((fleet.folder() / "secret").c_str(), 65534, 65534), 0);
  Fleet::Job& job = fleet.make("a", 50);
  fleet.start(job, 1, {{"one", 1}}, /*python=*/true);
  ASSERT_TRUE(fleet.turn_until([&] { return job.outcome.has_value(); }));
  EXPECT_NE(job.outcome->end.reason.find("the agent runs as user 0"), std::string::npos)
      << job.outcome->end.reason;
  EXPECT_FALSE(fs::exists(programs.used()));
}

// Of a Python worker, whose program is a script, only the owner and the command line are known.
TEST(Agents, PythonWorkersThatNoJobKnowsAreEndedToo) {
  const Programs programs;
  fs::remove(programs.worker());
  fs::create_symlink(DUCTILE_TEST_WORKER, programs.worker());
  Fleet fleet({{"one", "", 2}}, "env", programs.worker());
  int input[2];
  ASSERT_EQ(::pipe2(input, O_CLOEXEC), 0);
  const Descriptor reads(input[0]), writes(input[1]);
  const std::string run = (fleet.folder() / "runs" / "gone").string();
  const pid_t stray = ::fork();
  if (stray == 0) {
    ::dup2(input[0], STDIN_FILENO);
    ::execl("/bin/sh", "sh", "-c", "read line", "sh", "--run", run.c_str(), "--worker", "7",
            "--host", "one", nullptr);
    ::_exit(1);
  }
  ASSERT_TRUE(fleet.turn_until([&] { return fleet.agents->clean(0); }));
  int status = 0;
  ASSERT_EQ(::waitpid(stray, &status, 0), stray);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

// A login script, another program, or somebody who means harm: the other hosts' workers go on.
TEST(Agents, WhateverAHostSaysBeforeItProvedItselfEndsItsOwnLinkAlone) {
  const std::vector<std::string> sayings = {R"(echo {\"greet\":{\"nonce\":1}}; exec sleep 1000)",
                                            R"(echo {\"greet\":[]}; exec sleep 1000)",
                                            R"(echo {\"greet\":1}; exec sleep 1000)",
                                            R"(echo {\"error\":{}}; exec sleep 1000)",
                                            "exec yes",
                                            "exec yes >&2",
                                            "exec cat /dev/zero",
                                            "exec cat /dev/zero >&2"};
  std::vector<Host> hosts = {{"honest", "", 2}};
  std::string liars;
  for (const std::string& says : sayings) {
    hosts.push_back({"liar" + std::to_string(hosts.size()), "", 1});
    liars += hosts.back().name + ") " + says + ";; ";
  }
  Fleet fleet(hosts,
              "env NODE={host} sh -c 'case $NODE in " + liars + "*) exec \"$0\" \"$@\";; esac'");
  Fleet::Job& job = fleet.make("a", 200);
  fleet.start(job, 1, {{"honest", 1}});
  fleet.expect_result(job);
  for (size_t liar = 1; liar < hosts.size(); ++liar)
    EXPECT_FALSE(fleet.agents->ready(liar)) << sayings[liar - 1];
}

}  // namespace
}  // namespace ductile::server
