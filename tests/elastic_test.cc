// Jobs of several workers, started as a user does: whatever their number, the final weights are
// those of one process, bit for bit.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/files.h"

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
  int wait() {
    ::waitpid(pid_, &status_, 0);
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }

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
        "train.batch_size=32", "train.virtual_ranks=8", "train.epochs=6", "train.ema_decay=0.9",
        "checkpoint.every_seconds=0", "checkpoint.every_steps=9"}) {
    words.insert(words.end(), {"--set", set});
  }
  words.insert(words.end(), {"--set", "model.name=" + model});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(Elastic, AnyNumberOfWorkersGivesTheBitsOfOneProcess) {
  const TempFolder root;
  ASSERT_EQ(Program(train(root.path() / "one", {}), root.path() / "log").wait(), 0);
  const std::string expected = read_file(root.path() / "one" / "model.safetensors");
  for (const char* n : {"2", "3", "8"}) {
    const fs::path run = root.path() / n;
    ASSERT_EQ(Program(train(run, {"--workers", n}), root.path() / "log").wait(), 0)
        << read_file(root.path() / "log");
    EXPECT_EQ(read_file(run / "model.safetensors"), expected) << n << " workers";
  }
}

}  // namespace
}  // namespace ductile
