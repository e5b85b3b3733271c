// Jobs on several emulated hosts, started as a user does.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/server/testing/emulated_hosts.h"
#include "elastic_programs.h"

namespace ductile::testing {
namespace {

using server::testing::EmulatedHosts;
using std::chrono::milliseconds;

const std::vector<std::string> kSets = {"augment.pad=2", "train.epochs=6"};

class Hosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.why().empty()) GTEST_SKIP() << hosts_.why();
    ASSERT_EQ(Program(train(root_.path() / "one", {}, kSets), log_).wait(), 0) << read_file(log_);
    weights_ = model_of(root_.path() / "one");
  }

  // "NAME=ADDRESS:PLACES,..." of hosts 1, 2 ...
  std::string list(const std::vector<int>& places) const {
    std::string text;
    for (size_t h = 0; h < places.size(); ++h) {
      if (places[h] == 0) continue;
      const int host = static_cast<int>(h) + 1;
      text += fmt::format("{}{}={}:{}", text.empty() ? "" : ",", hosts_.name(host),
                          EmulatedHosts::address(host), places[h]);
    }
    return text;
  }
  // On host 0, where the user sits.
  Program at_home(std::vector<std::string> words) const {
    const std::vector<std::string> prefix = hosts_.prefix(0);
    words.insert(words.begin(), prefix.begin(), prefix.end());
    return Program(words, log_);
  }
  Program start(const fs::path& run, const std::vector<int>& places) const {
    return at_home(
        train(run, {"--hosts", list(places), "--launcher", EmulatedHosts::launcher()}, kSets));
  }
  Program resume(const fs::path& run, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"-q", "train", "--resume", run.string()});
    return at_home(ductile(more));
  }
  void expect_end(Program& job, const fs::path& run) const {
    EXPECT_EQ(job.wait(), 0) << read_file(log_) << read_file(run / "events.jsonl");
    EXPECT_EQ(model_of(run), weights_);
    EXPECT_TRUE(workers_of(run).empty());
  }

  TempFolder root_;
  fs::path log_ = root_.path() / "log";
  fs::path run_ = root_.path() / "run";
  EmulatedHosts hosts_{4};
  std::string weights_;
};

TEST_F(Hosts, GiveTheBitsOfOneProcess) {
  std::vector<std::vector<int>> all = {{2, 1}};
  if (all_sizes()) all.insert(all.end(), {{1, 1}, {2, 2, 1}});
  for (const std::vector<int>& places : all) {
    const fs::path run = root_.path() / std::to_string(places.size() * 10 + places[0]);
    Program job = start(run, places);
    expect_end(job, run);
  }
}

// A gradient large enough to travel in pieces while the backward pass goes on.
TEST_F(Hosts, SumEarlyWithTheBitsOfOneProcess) {
  const std::vector<std::string> sets = {"model.name=mlp", "model.hidden=[1024]", "train.epochs=2"};
  ASSERT_EQ(Program(train(root_.path() / "wide", {}, sets), log_).wait(), 0) << read_file(log_);
  weights_ = model_of(root_.path() / "wide");
  Program job = at_home(
      train(run_, {"--hosts", list({1, 2}), "--launcher", EmulatedHosts::launcher()}, sets));
  expect_end(job, run_);
}

TEST_F(Hosts, LoseWorkersAndControllersWithoutATrace) {
  Program job = start(run_, {2, 1});
  ASSERT_TRUE(wait_until_it_steps(job, run_)) << read_file(log_);
  const std::vector<pid_t> workers = workers_of(run_);
  ASSERT_FALSE(workers.empty());
  ::kill(workers.front(), SIGKILL);
  std::this_thread::sleep_for(milliseconds(700));
  if (job.running()) {
    job.kill();
    job = resume(run_);  // it remembers its hosts
  }
  expect_end(job, run_);
}

TEST_F(Hosts, ThatAreCutOffAreDoneWithoutUntilTheyAreBack) {
  Program job = start(run_, {1, 1});
  ASSERT_TRUE(wait_until_it_steps(job, run_)) << read_file(log_);
  ASSERT_TRUE(hosts_.cut(2));
  std::this_thread::sleep_for(milliseconds(2500));
  ASSERT_TRUE(hosts_.restore(2));
  expect_end(job, run_);
}

TEST_F(Hosts, ThatReachTheControllerButNotEachOtherDoNotHoldUpTheJob) {
  Program job = start(run_, {1, 1});
  ASSERT_TRUE(wait_until_it_steps(job, run_)) << read_file(log_);
  ASSERT_TRUE(hosts_.separate(1, 2));
  const auto lines = [&] { return fs::file_size(run_ / "metrics.jsonl"); };
  std::this_thread::sleep_for(milliseconds(1000));
  const auto before = lines();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (job.running() && lines() == before && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(milliseconds(100));
  EXPECT_GT(lines(), before) << read_file(run_ / "events.jsonl");
  ASSERT_TRUE(hosts_.reunite(1, 2));
  expect_end(job, run_);
}

TEST_F(Hosts, AreOthersAfterPreemption) {
  Program job = start(run_, {1, 1});
  ASSERT_TRUE(wait_until_it_steps(job, run_)) << read_file(log_);
  EXPECT_EQ(Program(ductile({"preempt", run_.string()}), log_).wait(), 0) << read_file(log_);
  EXPECT_EQ(job.wait(), 130) << read_file(log_);
  job = resume(run_, {"--hosts", list({0, 1, 2})});
  expect_end(job, run_);
}

}  // namespace
}  // namespace ductile::testing
