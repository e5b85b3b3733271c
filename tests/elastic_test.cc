// Jobs of several workers, started as a user does: whatever their number, and whoever is killed on
// the way, the final weights are those of one undisturbed process, bit for bit.
#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/files.h"
#include "ductile/base/rng.h"

namespace ductile {
namespace {

// A program that is running; its output goes to a file.
class Program {
 public:
  Program(std::vector<std::string> words, const fs::path& output) {
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      [[maybe_unused]] FILE* out = std::freopen(output.c_str(), "a", stdout);
      [[maybe_unused]] FILE* err = std::freopen(output.c_str(), "a", stderr);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }
  bool running() { return ::waitpid(pid_, &status_, WNOHANG) == 0; }
  int wait() {
    ::waitpid(pid_, &status_, 0);
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }
  int exit_code() const { return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1; }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
};

std::vector<std::string> train(const fs::path& out, std::vector<std::string> more,
                               const std::string& model = "resnet8") {
  std::vector<std::string> words = {DUCTILE_BINARY_DIR "/bin/ductile", "-q", "train", "--out",
                                    out.string()};
  for (const char* set :
       {"data.train_limit=512", "data.test_limit=64", "augment.pad=2", "optimizer.lr=0.02",
        "train.batch_size=32", "train.virtual_ranks=8", "train.epochs=10", "train.ema_decay=0.9",
        "checkpoint.every_seconds=0", "checkpoint.every_steps=9"}) {
    words.insert(words.end(), {"--set", set});
  }
  words.insert(words.end(), {"--set", "model.name=" + model});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The processes of the run's workers.
std::vector<pid_t> workers_of(const fs::path& run) {
  std::vector<pid_t> pids;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "cmdline");
    const std::string line((std::istreambuf_iterator<char>(file)), {});
    if (line.find("ductile-worker") != std::string::npos &&
        line.find(run.string()) != std::string::npos) {
      pids.push_back(std::stoi(name));
    }
  }
  return pids;
}

// 1, 2, 3 and 8 workers; the options are those of `more`.
void expect_equal_for_every_number(const std::vector<std::string>& more) {
  const TempFolder root;
  ASSERT_EQ(Program(train(root.path() / "one", more), root.path() / "log").wait(), 0)
      << read_file(root.path() / "log");
  const std::string expected = read_file(root.path() / "one" / "model.safetensors");
  for (const char* n : {"2", "3", "8"}) {
    const fs::path run = root.path() / n;
    std::vector<std::string> words = {"--workers", n};
    words.insert(words.end(), more.begin(), more.end());
    ASSERT_EQ(Program(train(run, words), root.path() / "log").wait(), 0)
        << read_file(root.path() / "log");
    EXPECT_EQ(read_file(run / "model.safetensors"), expected) << n << " workers";
  }
}

// Three workers, killed at random; the options are those of `more`.
void expect_equal_through_kills(const std::vector<std::string>& more, int most_kills) {
  const TempFolder root;
  ASSERT_EQ(Program(train(root.path() / "one", more), root.path() / "log").wait(), 0);
  const fs::path run = root.path() / "killed";
  std::vector<std::string> words = {"--workers", "3"};
  words.insert(words.end(), more.begin(), more.end());
  Program job(train(run, words), root.path() / "log");
  Rng rng(3);
  int kills = 0;
  while (job.running()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200 + rng.below(500)));
    if (kills >= most_kills) continue;
    // Once the workers step: before that a kill is a start that failed.
    if (!fs::exists(run / "metrics.jsonl")) continue;
    const std::vector<pid_t> workers = workers_of(run);
    if (workers.empty()) continue;
    ::kill(workers[rng.below(static_cast<uint32_t>(workers.size()))], SIGKILL);
    ++kills;
  }
  EXPECT_EQ(job.exit_code(), 0) << read_file(root.path() / "log");
  EXPECT_GT(kills, 0) << read_file(root.path() / "log");
  testing::Test::RecordProperty("kills", kills);
  EXPECT_EQ(read_file(run / "model.safetensors"),
            read_file(root.path() / "one" / "model.safetensors"));
  EXPECT_TRUE(workers_of(run).empty());
}

TEST(Elastic, AnyNumberOfWorkersGivesTheBitsOfOneProcess) { expect_equal_for_every_number({}); }

TEST(Elastic, KilledWorkersChangeNothing) { expect_equal_through_kills({}, 10); }

// Faster sums depend on the number of workers, but on nothing else.
TEST(Elastic, FastReductionRepeatsItselfForTheSameNumberOfWorkers) {
  const TempFolder root;
  const fs::path log = root.path() / "log";
  for (const char* name : {"a", "b"}) {
    ASSERT_EQ(Program(train(root.path() / name, {"--workers", "3", "--set", "train.reduction=fast",
                                                 "--set", "train.epochs=2"}),
                      log)
                  .wait(),
              0)
        << read_file(log);
  }
  EXPECT_EQ(read_file(root.path() / "a" / "model.safetensors"),
            read_file(root.path() / "b" / "model.safetensors"));
}

// Groups of four virtual ranks, which three workers cut: they meet in every batch norm.
std::vector<std::string> in_groups(const std::string& steps) {
  return {"--set", "train.bn_group=4", "--set", "train.max_steps=" + steps,
          "--set", "train.log_every=2"};
}

TEST(Elastic, BatchNormGroupsAreTheSameForAnyNumberOfWorkers) {
  expect_equal_for_every_number(in_groups("32"));
}

TEST(Elastic, KilledWorkersChangeNothingInBatchNormGroups) {
  expect_equal_through_kills(in_groups("60"), 3);
}

TEST(Elastic, ResizedPreemptedAndResumedItIsTheSameJob) {
  const TempFolder root;
  const fs::path log = root.path() / "log", run = root.path() / "run";
  ASSERT_EQ(Program(train(root.path() / "one", {}), log).wait(), 0);
  const auto command = [&](std::vector<std::string> words) {
    words.insert(words.begin(), DUCTILE_BINARY_DIR "/bin/ductile");
    return Program(words, log).wait();
  };
  Program job(train(run, {"--workers", "2"}), log);
  while (job.running() && !fs::exists(run / "metrics.jsonl")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(command({"resize", run.string(), "3"}), 0) << read_file(log);
  EXPECT_EQ(command({"preempt", run.string()}), 0) << read_file(log);
  EXPECT_EQ(job.wait(), 130) << read_file(log);
  EXPECT_TRUE(workers_of(run).empty());
  ASSERT_EQ(command({"-q", "train", "--resume", run.string(), "--workers", "1"}), 0)
      << read_file(log);
  EXPECT_EQ(read_file(run / "model.safetensors"),
            read_file(root.path() / "one" / "model.safetensors"));
}

}  // namespace
}  // namespace ductile
