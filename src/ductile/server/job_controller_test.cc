// The controller's host, with real worker processes that are killed, stopped and started again.
#include "ductile/server/job_controller.h"

#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/publish.h"
#include "ductile/link/addresses.h"
#include "ductile/net/socket.h"
#include "ductile/run/folder.h"
#include "ductile/run/json_lines.h"
#include "ductile/server/client.h"
#include "ductile/server/test_model_impl.h"

namespace ductile::server::testing {
namespace {

using namespace control;
using namespace std::chrono_literals;
using nlohmann::json;

constexpr int64_t kVirtualRanks = 4;
constexpr auto kPatience = 60s;

struct Job {
  int64_t steps = 60;
  int64_t step_ms = 5;
  int64_t error_at = -1;
  int64_t checkpoint_steps = 10;
  std::string program = DUCTILE_TEST_WORKER;
};

// A run directory, its controller in a process of its own, and whatever the test does to them.
class Live {
 public:
  explicit Live(const Job& job) : job_(job), run_(folder_.path() / "run-1") {
    // Orphans of a killed controller become children of this process, which can then reap them.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    fs::create_directories(run_ / "checkpoints");
    fs::create_directories(run_ / "tensorboard");
    write_file_atomic(run_ / "job.toml", "");
    const json test = {{"steps", job.steps},
                       {"step_ms", job.step_ms},
                       {"virtual_ranks", kVirtualRanks},
                       {"lease_ms", 2000},
                       {"error_at", job.error_at}};
    write_file_atomic(run_ / "test.json", test.dump());
  }
  ~Live() {
    if (controller_ > 0) kill_controller();
    for (const pid_t pid : processes()) ::kill(pid, SIGKILL);
    while (::waitpid(-1, nullptr, 0) > 0) continue;
  }

  const fs::path& run() const { return run_; }

  static MembershipOptions membership(const Job& job) {
    MembershipOptions m;
    m.virtual_ranks = kVirtualRanks;
    m.heartbeat_deadline = 600ms;
    m.lease = 2s;
    m.reattach = 1500ms;
    m.backoff_base = 20ms;
    m.backoff_max = 200ms;
    m.max_failures = 3;
    m.start_deadline = 20s;
    m.join_window = 200ms;
    m.checkpoint_steps = job.checkpoint_steps;
    return m;
  }

  std::unique_ptr<JobController> make_controller() const {
    JobControllerOptions o;
    o.run = run_;
    o.membership = membership(job_);
    o.on_line = [run = run_](WorkerId worker, std::string_view line) {
      const int fd = open((run / "lines").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
      const std::string text = fmt::format("{} {}\n", worker, line);
      [[maybe_unused]] const ssize_t n = write(fd, text.data(), text.size());
      close(fd);
    };
    return std::make_unique<JobController>(
        std::move(o), make_local_launcher({job_.program, run_ / "worker.log"}, run_));
  }

  void start(int64_t workers) {
    std::error_code ignored;
    fs::remove(run_ / "end.json", ignored);
    controller_ = ::fork();
    if (controller_ != 0) return;
    try {
      const JobEnd end = make_controller()->run(workers);
      const json value = {{"phase", to_string(end.phase)},
                          {"reason", end.reason},
                          {"step", end.step},
                          {"checkpoint", end.checkpoint}};
      write_file_atomic(run_ / "end.json", value.dump());
      ::_exit(0);
    } catch (const std::exception& e) {
      write_file_atomic(run_ / "end.json", json{{"phase", "error"}, {"reason", e.what()}}.dump());
      ::_exit(1);
    }
  }

  void kill_controller() {
    ::kill(controller_, SIGKILL);
    ::waitpid(controller_, nullptr, 0);
    controller_ = -1;
  }

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
  void wait_for_members(size_t count) const {
    wait_for("members", [&](const json& s) {
      size_t running = 0;
      for (const json& w : s.at("workers"))
        running += w.at("phase") == "running" && w.contains("ranks") ? 1 : 0;
      return (running == count && s.at("workers").size() == count) || ended();
    });
  }
  bool ended() const { return fs::exists(run_ / "end.json"); }

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
    return json::parse(read_file(run_ / "end.json"));
  }

  // It ran to its end, and the result is that of the undisturbed run.
  void expect_result() {
    const json last = end();
    ASSERT_EQ(last.value("phase", ""), "finished") << last << read_file(run_ / "events.jsonl");
    EXPECT_EQ(last.at("checkpoint"), job_.steps);
    EXPECT_EQ(read_checkpoint(run_ / "checkpoints", job_.steps),
              run_undisturbed(job_.steps, kVirtualRanks));
    EXPECT_TRUE(ckpt::verify(run_ / "checkpoints").ok());
  }

  std::string events() const { return read_file(run_ / "events.jsonl"); }

 private:
  TempFolder folder_;
  const Job job_;
  const fs::path run_;
  pid_t controller_ = -1;
};

TEST(JobController, runs_workers_to_the_result_of_one) {
  for (const int64_t workers : {1, 3}) {
    Live live({});
    live.start(workers);
    live.expect_result();
    EXPECT_NE(read_file(live.run() / "lines").find("step 60"), std::string::npos);
    EXPECT_NE(live.events().find("\"generation\""), std::string::npos);
    EXPECT_EQ(fs::status(live.run() / "secret").permissions(), fs::perms(0600));
  }
}

TEST(JobController, resizes_a_live_job) {
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

TEST(JobController, is_preempted_and_resumed_with_another_number_of_workers) {
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

TEST(JobController, goes_on_when_workers_are_killed) {
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

TEST(JobController, goes_on_from_a_checkpoint_when_all_workers_die) {
  Live live({.steps = 150});
  live.start(2);
  live.wait_for("a checkpoint", [](const json& s) { return s.value("checkpoint", -1) >= 30; });
  for (const pid_t pid : live.processes()) ::kill(pid, SIGKILL);
  live.expect_result();
}

TEST(JobController, a_stopped_worker_is_replaced_and_harmless_when_it_wakes_up) {
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

TEST(JobController, a_killed_controller_is_replaced_and_finds_the_workers_again) {
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

TEST(JobController, a_controller_killed_with_all_its_workers_goes_on_from_the_checkpoint) {
  Live live({.steps = 120});
  live.start(2);
  live.wait_for("a checkpoint", [](const json& s) { return s.value("checkpoint", -1) >= 30; });
  live.kill_controller();
  for (const pid_t pid : live.processes()) ::kill(pid, SIGKILL);
  live.start(0);
  live.expect_result();
}

TEST(JobController, a_fault_of_the_job_ends_it_with_its_text) {
  Live live({.error_at = 17});
  live.start(2);
  const json last = live.end();
  EXPECT_EQ(last.at("phase"), "failed");
  EXPECT_NE(last.at("reason").get<std::string>().find("sample 17 cannot be read"),
            std::string::npos);
}

TEST(JobController, workers_that_cannot_be_started_end_the_job) {
  Live live({.program = "/nonexistent/ductile-worker"});
  live.start(2);
  const json last = live.end();
  EXPECT_EQ(last.at("phase"), "failed");
  EXPECT_NE(last.at("reason").get<std::string>().find("/nonexistent/ductile-worker"),
            std::string::npos);
}

TEST(JobController, there_is_one_at_a_time_and_strangers_are_refused) {
  Live live({.steps = 200});
  live.start(2);
  live.wait_for_step(5);
  try {
    live.make_controller();
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

TEST(JobController, decides_nothing_while_its_state_cannot_be_saved_and_goes_on_after) {
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

TEST(JobController, begins_with_the_checkpoints_of_a_run_without_controller) {
  Live live({.steps = 60});
  const State half = run_undisturbed(30, kVirtualRanks);
  write_checkpoint(live.run() / "checkpoints", half, "single");
  ckpt::publish(live.run() / "checkpoints", 30, "single");
  live.start(2);
  live.expect_result();
  EXPECT_EQ(read_file(live.run() / "lines").find("step 30\""), std::string::npos);
  EXPECT_NE(read_file(live.run() / "lines").find("step 31\""), std::string::npos);
}

}  // namespace
}  // namespace ductile::server::testing
