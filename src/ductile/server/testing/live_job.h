#pragma once

#include <chrono>
#include <csignal>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/link/testing/test_model.h"
#include "ductile/server/client.h"
#include "ductile/server/hosts.h"
#include "ductile/server/job_host.h"
#include "ductile/server/testing/emulated_hosts.h"
#include "ductile/server/testing/slow_steps.h"
#include "ductile/server/testing/small_disk.h"

// A job of torch-free workers for the tests of this module.
namespace ductile::server::testing {

using namespace control;
using namespace link::testing;
using namespace std::chrono_literals;
using nlohmann::json;

inline constexpr int64_t kVirtualRanks = 4;
inline constexpr auto kPatience = 60s;

struct Job {
  int64_t steps = 60;
  int64_t step_ms = 5;
  int64_t error_at = -1;
  bool odd_error = false;  // its text is not UTF-8, as a name of a file may be
  int64_t checkpoint_steps = 10;
  int64_t max_failures = 3;
  bool small_disk = false;  // a file system of its own for the run, which can be filled
  std::string program = DUCTILE_TEST_WORKER;
  // On hosts 1, 2 ... of these, with its controller on host 0; none: on this machine.
  std::shared_ptr<EmulatedHosts> hosts;
  std::vector<int> places;     // workers that hosts 1, 2 ... take
  int sick_host = 0;           // of these: no worker can begin there
  WorkerId cannot_import = 0;  // it ends before it has a link
  Time heartbeat_deadline = 600ms;
  Time lease = 2s;
  Time stop_deadline = 5s;
};

// A run directory, its controller in a process of its own, and whatever the test does to them.
class Live {
 public:
  explicit Live(const Job& job) : job_(job), run_(folder_.path() / "run-1") {
    // Orphans of a killed controller become children of this process, which can then reap them.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (job.small_disk) disk_ = SmallDisk(folder_.path(), "16m");
    fs::create_directories(run_ / "checkpoints");
    fs::create_directories(run_ / "tensorboard");
    write_file_atomic(run_ / "job.toml", "");
    const json test = {{"steps", job.steps},
                       {"step_ms", job.step_ms},
                       {"virtual_ranks", kVirtualRanks},
                       {"lease_ms", job.lease.count() / 1000},
                       {"error_at", job.error_at},
                       {"odd_error", job.odd_error},
                       {"cannot_import", job.cannot_import},
                       {"sick_host", job.sick_host > 0 ? job.hosts->name(job.sick_host) : ""}};
    write_file_atomic(run_ / "test.json", test.dump());
  }
  ~Live() {
    if (controller_ > 0) kill_controller();
    for (const pid_t pid : processes()) ::kill(pid, SIGKILL);
    reap();
  }

  const fs::path& run() const { return run_; }

  // Leaves no room in the run's file system, which takes root; false where that cannot be done.
  bool fill_disk() const { return disk_.fill(); }
  void free_disk() const { disk_.empty(); }

  static MembershipOptions membership(const Job& job) {
    MembershipOptions m;
    m.virtual_ranks = kVirtualRanks;
    m.heartbeat_deadline = job.heartbeat_deadline;
    m.lease = job.lease;
    m.reattach = 1500ms;
    m.backoff_base = 20ms;
    m.backoff_max = 200ms;
    m.max_failures = m.max_crashes_alone = job.max_failures;
    m.start_deadline = 20s;
    m.stop_deadline = job.stop_deadline;
    m.join_window = 200ms;
    m.finish_deadline = 1s;
    m.num_hosts = std::max<int64_t>(1, static_cast<int64_t>(job.places.size()));
    m.checkpoint_steps = job.checkpoint_steps;
    return m;
  }

  std::unique_ptr<JobHost> make_host(net::Loop& loop) {
    lock_.reset();
    lock_ = std::make_unique<run::RunLock>(run_, run::RunLock::kController);
    JobHostOptions o;
    o.run = run_;
    o.membership = membership(job_);
    o.on_line = [run = run_](WorkerId worker, std::string_view line) {
      const int fd = open((run / "lines").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
      const std::string text = fmt::format("{} {}\n", worker, line);
      [[maybe_unused]] const ssize_t n = write(fd, text.data(), text.size());
      close(fd);
    };
    if (!job_.hosts) {
      return std::make_unique<JobHost>(
          loop, *lock_, std::move(o),
          make_local_launcher(loop, {job_.program, run_ / "worker.log"}, run_));
    }
    HostsLauncherOptions hosts;
    hosts.setup = setup();
    hosts.program = hosts.worker = job_.program;
    hosts.log = run_ / "worker.log";
    hosts.all = false;
    o.listen = listen_address(hosts.setup);
    return std::make_unique<JobHost>(loop, *lock_, std::move(o),
                                     make_hosts_launcher(loop, std::move(hosts), run_));
  }

  static json to_json(const link::JobEnd& end) {
    return {{"phase", to_string(end.phase)},
            {"reason", end.reason},
            {"step", end.step},
            {"checkpoint", end.checkpoint}};
  }

  HostSetup setup() const {
    HostSetup setup;
    setup.launcher = EmulatedHosts::launcher();
    for (size_t h = 0; h < job_.places.size(); ++h) {
      const int host = static_cast<int>(h) + 1;
      setup.hosts.push_back({job_.hosts->name(host), EmulatedHosts::address(host), job_.places[h]});
    }
    return setup;
  }

  void start(int64_t workers) {
    std::error_code ignored;
    fs::remove(notes_.path() / "end.json", ignored);
    controller_ = ::fork();
    if (controller_ != 0) return;
    try {
      slow_steps_.announce();
      if (job_.hosts) job_.hosts->enter(0);
      net::Loop loop;
      auto host = make_host(loop);
      const link::JobEnd end = run_job(loop, *host, workers);
      host.reset();
      write_file_atomic(notes_.path() / "end.json", to_json(end).dump());
      ::_exit(0);
    } catch (const std::exception& e) {
      write_file_atomic(notes_.path() / "end.json",
                        json{{"phase", "error"}, {"reason", e.what()}}.dump());
      ::_exit(1);
    }
  }

  void kill_controller() {
    ::kill(controller_, SIGKILL);
    ::waitpid(controller_, nullptr, 0);
    controller_ = -1;
  }

  void signal_controller(int signal) const { ::kill(controller_, signal); }

  json status() const {
    try {
      return ask(run_, {{"request", "status"}}, 5s);
    } catch (const Error&) {  // none yet, or ended
      return {{"phase", "none"}, {"step", -1}, {"workers", json::array()}};
    }
  }
  void tell(const json& request) const { ask(run_, request); }

  template <class Predicate>
  json wait_for(const char* what, const Predicate& holds) const {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    json now;
    while (std::chrono::steady_clock::now() < deadline) {
      now = status();
      if (holds(now)) return now;
      std::this_thread::sleep_for(5ms);
    }
    ADD_FAILURE() << "waited in vain for " << what << ": " << now.dump() << "\n"
                  << read_file(run_ / "events.jsonl");
    return now;
  }
  void wait_for_step(int64_t step) const {
    wait_for("a step", [&](const json& s) { return s.at("step") >= step || ended(); });
  }
  json wait_for_members(size_t count) const {
    return wait_for("members", [&](const json& s) {
      size_t running = 0;
      for (const json& w : s.at("workers"))
        running += w.at("phase") == "running" && w.contains("ranks") ? 1 : 0;
      return (running == count && s.at("workers").size() == count) || ended();
    });
  }
  bool ended() const { return fs::exists(notes_.path() / "end.json"); }

  // Processes of this run, the controller left out.
  std::vector<pid_t> processes() const {
    std::vector<pid_t> pids;
    std::error_code error;
    for (auto it = fs::directory_iterator("/proc", error); !error && it != fs::directory_iterator();
         it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      try {
        const std::string line = read_file(it->path() / "cmdline");
        if (line.find(run_.string()) != std::string::npos) pids.push_back(std::stoi(name));
      } catch (const Error&) {  // gone
      }
    }
    return pids;
  }

  // The agents of its hosts.
  std::vector<pid_t> agents() const {
    std::vector<pid_t> pids;
    for (const pid_t pid : children_of(controller_)) pids.push_back(pid);
    return pids;
  }

  json end() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    int status = 0;
    pid_t done = 0;
    while ((done = ::waitpid(controller_, &status, WNOHANG)) == 0 &&
           std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(5ms);
    if (done == 0) {
      ADD_FAILURE() << "no end: " << this->status().dump() << "\n"
                    << read_file(run_ / "events.jsonl") << read_file(run_ / "worker.log");
      return {};
    }
    controller_ = -1;
    EXPECT_TRUE(processes().empty()) << "a process was left behind";
    EXPECT_FALSE(fs::exists(run_ / "control.sock"));
    return json::parse(read_file(notes_.path() / "end.json"));
  }

  // It ran to its end, and the result is that of the undisturbed run.
  void expect_result() { expect_result(end()); }
  void expect_result(const json& last) const {
    ASSERT_EQ(last.value("phase", ""), "finished") << last << read_file(run_ / "events.jsonl");
    EXPECT_EQ(last.at("checkpoint"), job_.steps);
    EXPECT_EQ(read_checkpoint(run_ / "checkpoints", job_.steps),
              run_undisturbed(job_.steps, kVirtualRanks));
    EXPECT_TRUE(ckpt::verify(run_ / "checkpoints").ok());
  }

  static std::vector<pid_t> children_of(pid_t parent) {
    std::vector<pid_t> pids;
    const auto children = fs::path("/proc") / std::to_string(parent) / "task";
    std::error_code error;
    for (const auto& thread : fs::directory_iterator(children, error)) {
      try {
        std::istringstream words(read_file(thread.path() / "children"));
        for (pid_t pid = 0; words >> pid;) pids.push_back(pid);
      } catch (const Error&) {  // gone
      }
    }
    return pids;
  }

  std::string events() const { return read_file(run_ / "events.jsonl"); }
  void slow_steps(bool slow) const { slow_steps_.set(slow); }

 private:
  // All children but the processes that hold the hosts.
  void reap() const {
    for (const pid_t pid : children_of(::getpid()))
      if (!job_.hosts || !job_.hosts->holds(pid)) ::waitpid(pid, nullptr, 0);
  }

  TempFolder folder_, notes_;
  const SlowSteps slow_steps_{notes_.path() / "slow"};
  SmallDisk disk_;  // over the folder
  const Job job_;
  const fs::path run_;
  std::unique_ptr<run::RunLock> lock_;  // in the controller's process
  pid_t controller_ = -1;
};

}  // namespace ductile::server::testing
