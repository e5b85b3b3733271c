// A real job on several emulated hosts, to which everything happens that may, at random, by a seed;
// it ends in the bits of an undisturbed process and leaves nothing behind. The same, many times
// faster, with workers without torch: src/ductile/server/chaos_test.cc.
//
//   DUCTILE_CHAOS_SEED=n      another course of events
//   DUCTILE_CHAOS_SECONDS=n   disturbed for so long (8)
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/server/testing/emulated_hosts.h"
#include "ductile/server/testing/small_disk.h"
#include "elastic_programs.h"

namespace ductile::testing {
namespace {

using server::testing::EmulatedHosts;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kHosts = 3;
constexpr int kPlaces = 2;  // on each
const std::vector<std::string> kSets = {"augment.pad=2", "train.epochs=60",
                                        "train.eval_every_epochs=25", "checkpoint.every_steps=50"};

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    names.insert(entry.path().filename().string());
  return names;
}

class Chaos : public ::testing::Test {
 protected:
  void SetUp() override {
    // A file system of the test's own, which it can fill; gone with this process.
    small_disk_ = server::testing::SmallDisk(disk_.path(), "48m");
    if (!hosts_->why().empty()) {
      std::printf("one host only, and no cut links: %s\n", hosts_->why().c_str());
      hosts_.reset();
    }
  }

  Program at_home(std::vector<std::string> words) const {
    if (hosts_) {
      const std::vector<std::string> prefix = hosts_->prefix(0);
      words.insert(words.begin(), prefix.begin(), prefix.end());
    }
    return Program(words, log_);
  }
  Program begin() const {
    if (!hosts_) return at_home(train(run_, {"--workers", "3"}, kSets));
    std::string list;
    for (int h = 1; h <= kHosts; ++h)
      list += fmt::format("{}{}={}:{}", h == 1 ? "" : ",", hosts_->name(h),
                          EmulatedHosts::address(h), kPlaces);
    return at_home(train(
        run_, {"--workers", "4", "--hosts", list, "--launcher", EmulatedHosts::launcher()}, kSets));
  }
  Program resume() const { return at_home(ductile({"-q", "train", "--resume", run_.string()})); }

  pid_t one_of(const std::vector<pid_t>& pids) {
    return pids.empty() ? -1 : pids[rng_.below(static_cast<uint32_t>(pids.size()))];
  }
  void kill_worker() {
    const pid_t pid = one_of(workers_of(run_));
    if (pid > 0 && ::kill(pid, SIGKILL) == 0) ++done_["worker killed"];
  }
  void stop_worker() {
    const pid_t pid = one_of(workers_of(run_));
    if (pid <= 0 || ::kill(pid, SIGSTOP) != 0) return;
    ++done_["worker stopped"];
    std::this_thread::sleep_for(milliseconds(300 + rng_.below(2500)));
    ::kill(pid, SIGCONT);
  }
  void kill_controller() {
    job_->kill();
    ++done_["controller killed"];
    std::this_thread::sleep_for(milliseconds(rng_.below(1000)));
    *job_ = resume();
  }
  void resize() {
    const std::string workers = std::to_string(2 + rng_.below(3));
    if (Program(ductile({"resize", run_.string(), workers}), fs::path("/dev/null")).wait() == 0)
      ++done_["resized"];
  }
  void cut_link() {
    if (!hosts_) return;
    const int host = 1 + static_cast<int>(rng_.below(kHosts));
    hosts_->cut(host);
    ++done_["link cut"];
    std::this_thread::sleep_for(milliseconds(500 + rng_.below(3000)));
    hosts_->restore(host);
  }
  void fill_disk() {
    if (!small_disk_.fill()) return;
    ++done_["disk filled"];
    std::this_thread::sleep_for(milliseconds(300 + rng_.below(1200)));
    small_disk_.empty();
  }

  void disturb() {
    const uint32_t dice = rng_.below(100);
    if (dice < 50) {
      kill_worker();
    } else if (dice < 60) {
      kill_worker();
      kill_worker();
    } else if (dice < 70) {
      stop_worker();
    } else if (dice < 80) {
      kill_controller();
    } else if (dice < 88) {
      resize();
    } else if (dice < 95) {
      cut_link();
    } else {
      fill_disk();
    }
  }

  TempFolder disk_, root_;
  const fs::path run_ = disk_.path() / "run", log_ = root_.path() / "log";
  std::unique_ptr<EmulatedHosts> hosts_ = std::make_unique<EmulatedHosts>(kHosts + 1);
  server::testing::SmallDisk small_disk_;  // over the first folder
  Rng rng_{static_cast<uint64_t>(from_environment("DUCTILE_CHAOS_SEED", 1))};
  std::unique_ptr<Program> job_;
  std::map<std::string, int> done_;
};

TEST_F(Chaos, ChangesNoBitAndLeavesNothingBehind) {
  // Tests beside this one keep files of their own there (ckpt-...).
  const auto shared_memory = [] {
    std::set<std::string> names = names_in("/dev/shm");
    std::erase_if(names, [](const std::string& name) { return name.starts_with("ckpt-"); });
    return names;
  };
  const std::set<std::string> shared = shared_memory();
  ASSERT_EQ(Program(train(root_.path() / "one", {}, kSets), log_).wait(), 0) << read_file(log_);
  job_ = std::make_unique<Program>(begin());
  ASSERT_TRUE(wait_until_it_steps(*job_, run_)) << read_file(log_);
  const auto calm =
      Clock::now() + std::chrono::seconds(from_environment("DUCTILE_CHAOS_SECONDS", 8));
  while (Clock::now() < calm) {
    disturb();
    std::this_thread::sleep_for(milliseconds(100 + rng_.below(900)));
    if (job_->running()) continue;
    if (job_->exit_code() == 0) break;
    // What a full disk ends it says so, and goes on with room again.
    EXPECT_EQ(job_->exit_code(), 3) << read_file(log_);
    EXPECT_NE(read_file(log_).find("No space left on device"), std::string::npos);
    ++done_["ended by a full disk"];
    *job_ = resume();
  }
  int code = job_->wait();
  if (code == 3 && done_["disk filled"] > 0) {
    *job_ = resume();
    code = job_->wait();
  }
  for (const auto& [what, count] : done_) std::printf("%s: %d\n", what.c_str(), count);
  EXPECT_EQ(code, 0) << read_file(log_) << read_file(run_ / "events.jsonl");
  EXPECT_EQ(model_of(run_), model_of(root_.path() / "one"));

  EXPECT_TRUE(workers_of(run_).empty());
  EXPECT_EQ(shared_memory(), shared);
  EXPECT_FALSE(fs::exists(run_ / "control.sock"));
  EXPECT_EQ(Program(ductile({"ckpt", "verify", run_.string()}), log_).wait(), 0) << read_file(log_);
  for (const auto& entry : fs::recursive_directory_iterator(run_)) {
    if (!entry.is_regular_file()) continue;
    const std::string within = fs::relative(entry.path(), run_).string();
    // A writer that was slow may end after another's checkpoint of the last step was published:
    // what it leaves in pending/ is no checkpoint, and the next save removes it (docs/design/005).
    for (const char* temporary : {".tmp", "checkpoints/tmp/"})
      EXPECT_EQ(within.find(temporary), std::string::npos) << within;
  }
}

}  // namespace
}  // namespace ductile::testing
