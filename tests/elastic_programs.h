#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/files.h"
#include "ductile/base/rng.h"

// Jobs of several workers, started as a user does.
namespace ductile::testing {

// A program that is running; its output goes to a file. Killed where nobody waited for it.
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
  Program(Program&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), status_(other.status_), ended_(other.ended_) {}
  Program& operator=(Program&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(status_, other.status_);
    std::swap(ended_, other.ended_);
    return *this;
  }
  ~Program() {
    if (pid_ > 0 && running()) kill();
  }

  bool running() {
    if (!ended_) ended_ = ::waitpid(pid_, &status_, WNOHANG) != 0;
    return !ended_;
  }
  int wait() {
    if (!ended_) ::waitpid(pid_, &status_, 0);
    ended_ = true;
    return exit_code();
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    wait();
  }
  pid_t pid() const { return pid_; }
  int exit_code() const {
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

// Whether every number of workers is wanted, and not only one of each kind.
inline bool all_sizes() { return std::getenv("DUCTILE_ALL_SIZES") != nullptr; }

inline std::vector<std::string> ductile(std::vector<std::string> words) {
  words.insert(words.begin(), DUCTILE_BINARY_DIR "/bin/ductile");
  return words;
}

// `ductile train` of a small job with eight virtual ranks.
inline std::vector<std::string> train(const fs::path& out, const std::vector<std::string>& more,
                                      const std::vector<std::string>& sets = {}) {
  std::vector<std::string> words = ductile({"-q", "train", "--out", out.string()});
  std::vector<std::string> all = {"data.train_limit=512",     "data.test_limit=64",
                                  "optimizer.lr=0.02",        "train.batch_size=32",
                                  "train.virtual_ranks=8",    "train.epochs=10",
                                  "train.ema_decay=0.9",      "checkpoint.every_seconds=0",
                                  "checkpoint.every_steps=9", "model.name=resnet8"};
  all.insert(all.end(), sets.begin(), sets.end());
  for (const std::string& set : all) words.insert(words.end(), {"--set", set});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The processes of the run's workers.
inline std::vector<pid_t> workers_of(const fs::path& run) {
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

// Until the job `program` of `run` steps; false where it ended before.
inline bool wait_until_it_steps(Program& program, const fs::path& run) {
  std::error_code ignored;
  while (program.running() &&
         (!fs::exists(run / "metrics.jsonl") || fs::file_size(run / "metrics.jsonl", ignored) == 0))
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return program.running();
}

// The trained weights of `run`, short enough to be shown where two differ.
inline std::string model_of(const fs::path& run) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : read_file(run / "model.safetensors"))
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return std::to_string(hash);
}

// A small job, and what is done to it.
class SmallJob : public ::testing::Test {
 protected:
  // Token files with something to learn, and a small GPT that reads them.
  void use_gpt() {
    std::string tokens;  // little-endian words below 64
    for (int i = 0, state = 1; i < 40000; ++i) {
      state = (state * 5 + i % 7) % 64;
      tokens += {static_cast<char>(state), 0};
    }
    write_file_atomic(root_.path() / "train.bin", tokens);
    write_file_atomic(root_.path() / "test.bin", tokens.substr(0, 4096));
    sets_ = {"data.format=tokens",
             "data.path=" + (root_.path() / "train.bin").string(),
             "data.test_path=" + (root_.path() / "test.bin").string(),
             "data.tokens.sequence_length=32",
             "model.name=gpt",
             "model.layers=2",
             "model.heads=2",
             "model.vocab_size=64",
             "optimizer.lr=0.003",
             "train.batch_size=16"};
  }

  Program start(const fs::path& run, const std::vector<std::string>& more) {
    return Program(train(run, more, sets_), log_);
  }
  // The weights of one process, with as many threads as there are cores.
  std::string expected() {
    EXPECT_EQ(start(root_.path() / "one", {}).wait(), 0) << read_file(log_);
    return model_of(root_.path() / "one");
  }
  int command(const std::vector<std::string>& words) {
    return Program(ductile(words), log_).wait();
  }
  // Kills `count` workers at random times, `pause` apart at least, once the job steps.
  int kill_workers(Program& job, const fs::path& run, int count, uint64_t seed,
                   std::chrono::milliseconds pause) {
    Rng rng(seed);
    int kills = 0;
    while (job.running()) {
      std::this_thread::sleep_for(pause + std::chrono::milliseconds(rng.below(500)));
      if (kills >= count || !fs::exists(run / "metrics.jsonl")) continue;
      const std::vector<pid_t> workers = workers_of(run);
      if (workers.empty()) continue;
      ::kill(workers[rng.below(static_cast<uint32_t>(workers.size()))], SIGKILL);
      ++kills;
    }
    return kills;
  }

  TempFolder root_;
  fs::path log_ = root_.path() / "log";
  std::vector<std::string> sets_;
};

}  // namespace ductile::testing
