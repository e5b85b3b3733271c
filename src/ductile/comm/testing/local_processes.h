#pragma once

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ductile::comm {

// For tests: real processes of this host, one a rank, made by fork. A body that throws, or returns
// other than 0, ends its process with that code (100: an exception).
class LocalProcesses {
 public:
  LocalProcesses(int count, const std::function<int(int rank)>& body) {
    for (int r = 0; r < count; ++r) {
      const pid_t pid = fork();
      if (pid == 0) {
        int code = 100;
        try {
          code = body(r);
        } catch (const std::exception& e) {
          fmt::print(stderr, "process of rank {}: {}\n", r, e.what());
        }
        std::fflush(nullptr);
        _exit(code);
      }
      pids_.push_back(pid);
    }
  }
  LocalProcesses(const LocalProcesses&) = delete;
  LocalProcesses& operator=(const LocalProcesses&) = delete;
  ~LocalProcesses() {
    for (size_t r = 0; r < pids_.size(); ++r) {
      if (pids_[r] <= 0) continue;
      signal(static_cast<int>(r), SIGKILL);
      (void)wait(static_cast<int>(r));
    }
  }

  void signal(int rank, int number) { kill(pids_[rank], number); }
  // The exit code, or minus the number of the signal that ended it.
  int wait(int rank) {
    int status = 0;
    waitpid(pids_[rank], &status, 0);
    pids_[rank] = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  pid_t pid(int rank) const { return pids_[rank]; }

 private:
  std::vector<pid_t> pids_;
};

// A name that no other test uses at the same time.
inline std::string fresh_arena_name() {
  static int count = 0;
  return fmt::format("test-{}-{}", getpid(), ++count);
}

}  // namespace ductile::comm
