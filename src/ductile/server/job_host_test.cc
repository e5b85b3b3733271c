// Several jobs in one loop: whatever happens to one of them, the others go on.
#include "ductile/server/job_host.h"

#include <chrono>
#include <condition_variable>
#include <ctime>
#include <exception>
#include <functional>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ductile/base/json_value.h"
#include "ductile/server/testing/live_job.h"

namespace {

// A disk that takes its time: what this process writes below a folder is not synced before the test
// lets it.
class SlowFolder {
 public:
  void stop(const std::string& folder) {
    const std::lock_guard lock(mutex_);
    folder_ = folder;
  }
  void go_on() {
    const std::lock_guard lock(mutex_);
    folder_.clear();
    changed_.notify_all();
  }
  size_t waiting() {
    const std::lock_guard lock(mutex_);
    return waiting_;
  }
  void pass(int fd) {
    std::unique_lock lock(mutex_);
    if (folder_.empty()) return;
    char path[4096];
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t n = ::readlink(link.c_str(), path, sizeof path);
    if (n < 0 || !std::string_view(path, static_cast<size_t>(n)).starts_with(folder_)) return;
    ++waiting_;
    changed_.wait(lock, [this] { return folder_.empty(); });
    --waiting_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string folder_;
  size_t waiting_ = 0;
};

SlowFolder slow;

}  // namespace

extern "C" int fsync(int fd) {
  slow.pass(fd);
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace ductile::server::testing {
namespace {

// Jobs whose hosts share one loop of this process.
class Together {
 public:
  ~Together() {
    slow.go_on();
    thread_.call([this] {
      for (Place& place : places_) place.host.reset();
    });
  }

  void start(Live& live, int64_t workers) {
    Place& place = places_.emplace_back();
    thread_.call([&] {
      place.host = live.make_host(thread_.loop());
      place.host->start(workers, [this, &place](JobOutcome outcome) {
        place.host.reset();  // as a server does with a job that has ended
        const std::lock_guard lock(mutex_);
        place.outcome = std::move(outcome);
        changed_.notify_all();
      });
    });
  }

  bool has_ended(size_t which) {
    const std::lock_guard lock(mutex_);
    return place(which).outcome.has_value();
  }

  json end(size_t which) {
    std::unique_lock lock(mutex_);
    Place& place = this->place(which);
    if (!changed_.wait_for(lock, kPatience, [&] { return place.outcome.has_value(); })) return {};
    try {
      if (place.outcome->error) std::rethrow_exception(place.outcome->error);
    } catch (const Error& e) {
      return {{"phase", "error"}, {"code", to_string(e.code())}, {"reason", e.what()}};
    }
    return Live::to_json(place.outcome->end);
  }

  void on_loop(size_t which, const std::function<void(JobHost&)>& what) {
    thread_.call([&] {
      if (place(which).host) what(*place(which).host);
    });
  }

 private:
  struct Place {
    std::unique_ptr<JobHost> host;  // the loop's
    std::optional<JobOutcome> outcome;
  };
  Place& place(size_t which) {
    auto it = places_.begin();
    std::advance(it, which);
    return *it;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Place> places_;
  net::LoopThread thread_;
};

void kill_one(const Live& live) {
  const std::vector<pid_t> pids = live.processes();
  ASSERT_FALSE(pids.empty());
  ::kill(pids.front(), SIGKILL);
}

TEST(JobHosts, ThreeInOneLoopLoseWorkersAndAllEndRight) {
  std::vector<std::unique_ptr<Live>> lives;
  Together together;
  for (int i = 0; i < 3; ++i) {
    lives.push_back(std::make_unique<Live>(Job{.steps = 150 + 25 * i, .step_ms = 10}));
    together.start(*lives.back(), 2 + i % 2);
  }
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 3; ++i)
      lives[static_cast<size_t>(i)]->wait_for_members(2 + static_cast<size_t>(i) % 2);
    for (const auto& live : lives) kill_one(*live);
    for (const auto& live : lives)
      live->wait_for_step(live->status().at("step").get<int64_t>() + 5);
  }
  for (size_t i = 0; i < 3; ++i) {
    lives[i]->expect_result(together.end(i));
    EXPECT_TRUE(lives[i]->processes().empty());
    EXPECT_FALSE(fs::exists(lives[i]->run() / "control.sock"));
    EXPECT_NE(lives[i]->events().find("SIGKILL (9)"), std::string::npos) << lives[i]->events();
  }
}

TEST(JobHosts, ADiskThatIsStuckHoldsUpItsOwnJobAlone) {
  // The free one is at work for at least eight seconds, until it is killed.
  Live stuck({.steps = 100, .step_ms = 10}), free({.steps = 800, .step_ms = 10});
  Together together;
  together.start(stuck, 2);
  together.start(free, 2);
  stuck.wait_for_members(2);
  free.wait_for_members(2);
  slow.stop(stuck.run().string());
  kill_one(stuck);  // a new generation, which has to be saved first
  stuck.wait_for("the disk", [](const json& s) {
    return s.at("why").get<std::string>().find("waits for its disk") != std::string::npos;
  });
  EXPECT_GT(slow.waiting(), 0u);
  const int64_t generation = stuck.status().at("generation").at("number");
  kill_one(free);
  free.expect_result(together.end(1));
  // It still answers, and has decided nothing that was not saved.
  const json status = stuck.status();
  EXPECT_EQ(status.at("generation").at("number"), generation);
  EXPECT_FALSE(together.has_ended(0));
  slow.go_on();
  stuck.expect_result(together.end(0));
}

// A request is answered when what it brings about is on disk, and not before.
TEST(JobHosts, ARequestWaitsForTheDiskAndIsAnsweredAfterIt) {
  Live live({.steps = 300, .step_ms = 10});
  Together together;
  together.start(live, 2);
  live.wait_for_members(2);
  slow.stop(live.run().string());
  try {
    ask(live.run(), {{"request", "resize"}, {"workers", 1}}, 1s);
    ADD_FAILURE() << "answered without the disk";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::deadline);
  }
  slow.go_on();
  EXPECT_EQ(ask(live.run(), {{"request", "resize"}, {"workers", 1}}).at("ok"), true);
  try {
    ask(live.run(), {{"request", "resize"}, {"workers", 1000}});
    ADD_FAILURE() << "1000 workers share 4 virtual ranks";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::conflict) << e.what();
  }
  live.expect_result(together.end(0));
}

// By the time on a processor, of which a loop that is woken again and again takes all.
#ifdef __SANITIZE_ADDRESS__
constexpr auto kRest = 300ms;
#else
constexpr auto kRest = 150ms;
#endif

void expect_rest(const char* when) {
  const auto used = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return std::chrono::milliseconds(time.tv_sec * 1000 + time.tv_nsec / 1'000'000);
  };
  const auto before = used();
  std::this_thread::sleep_for(600ms);
  EXPECT_LT(used() - before, kRest) << when;
}

TEST(JobHosts, RestWhileTheirDiskIsStuck) {
  Live live({.steps = 2000});
  live.start(2);
  live.wait_for_members(2);
  live.kill_controller();
  slow.stop(live.run().string());
  Together together;
  together.start(live, 0);  // its workers come, and nothing can be told to them
  while (slow.waiting() == 0) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(300ms);
  expect_rest("at the beginning");
  together.on_loop(0, [](JobHost& host) { host.kill(); });
  while (!live.processes().empty()) std::this_thread::sleep_for(1ms);
  expect_rest("at the end");
  EXPECT_FALSE(together.has_ended(0));
  slow.go_on();
  EXPECT_NE(together.end(0).value("phase", ""), "error") << together.end(0);
  together.start(live, 1);
  live.wait_for_step(5);
  together.on_loop(1, [](JobHost& host) { host.kill(); });
  EXPECT_NE(together.end(1).value("phase", ""), "error");
}

TEST(JobHosts, AWorkerThatIsStoppedHoldsUpItsOwnJobAlone) {
  Live hurt({.steps = 200, .step_ms = 10, .heartbeat_deadline = 5s}),
      whole({.steps = 60, .step_ms = 10});
  Together together;
  together.start(hurt, 2);
  together.start(whole, 2);
  hurt.wait_for_members(2);
  const std::vector<pid_t> pids = hurt.processes();
  ASSERT_FALSE(pids.empty());
  ::kill(pids.front(), SIGSTOP);
  whole.expect_result(together.end(1));
  EXPECT_FALSE(together.has_ended(0));
  hurt.expect_result(together.end(0));
}

TEST(JobHosts, AJobThatCannotBeginEndsAlone) {
  Live good({.steps = 60}), damaged({.steps = 60}), small({.steps = 60});
  write_file_atomic(damaged.run() / "membership.json", "{\"half\":");
  Together together;
  together.start(good, 2);
  together.start(damaged, 2);
  together.start(small, kVirtualRanks + 1);
  EXPECT_EQ(together.end(1).value("code", ""), "data_loss") << together.end(1);
  EXPECT_EQ(together.end(2).value("code", ""), "invalid_argument") << together.end(2);
  good.expect_result(together.end(0));
  EXPECT_TRUE(small.processes().empty());
}

TEST(JobHosts, OneThatIsKilledLeavesTheOthersAndGoesOnLater) {
  Live killed({.steps = 200, .step_ms = 10}), other({.steps = 100, .step_ms = 10});
  Together together;
  together.start(killed, 2);
  together.start(other, 2);
  killed.wait_for_step(15);
  together.on_loop(0, [](JobHost& host) { host.kill(); });
  EXPECT_NE(together.end(0).value("phase", ""), "finished");
  EXPECT_TRUE(killed.processes().empty());
  other.expect_result(together.end(1));
  together.start(killed, 1);
  killed.expect_result(together.end(2));
}

// What is asked before the job runs is done then.
TEST(JobHosts, ARequestThatComesBeforeTheBeginningIsNotLost) {
  Live live({.steps = 5000});
  Together together;
  together.start(live, 2);
  together.on_loop(0, [](JobHost& host) {
    host.request(PreemptJob{}, [](const link::RequestAnswer& answer) {
      EXPECT_EQ(answer.refused + answer.waits, "");
    });
  });
  EXPECT_EQ(together.end(0).value("phase", ""), "preempted");
}

}  // namespace
}  // namespace ductile::server::testing
