#include "ductile/process/inherited.h"

#include <csignal>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/machine.h"

namespace ductile::process {
namespace {

// Whether the text is another one after `change`, in a process of its own.
bool changes(const std::function<bool()>& change) {
  constexpr int kSame = 0, kAnother = 1, kCannot = 2;
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      const std::string before = inherited();
      if (change()) ::_exit(inherited() == before ? kSame : kAnother);
    } catch (const std::exception&) {  // below
    }
    ::_exit(kCannot);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != kCannot);
  return WEXITSTATUS(status) == kAnother;
}

TEST(Inherited, IsTheSameWhileNothingChanges) {
  EXPECT_FALSE(changes([] { return true; }));
  EXPECT_NE(inherited(), "");
}

TEST(Inherited, IsAnotherAfterEachChangeThatAProgramTakesOver) {
  EXPECT_TRUE(changes([] { return ::umask(0123) != 0123; }));
  EXPECT_TRUE(changes([] { return ::chdir("/proc") == 0; }));
  EXPECT_TRUE(changes([] {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
    --limit.rlim_cur;
    return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
  }));
  EXPECT_TRUE(changes([] { return ::setpriority(PRIO_PROCESS, 0, 19) == 0; }));
  EXPECT_TRUE(changes([] { return std::signal(SIGUSR2, SIG_IGN) != SIG_IGN; }));
  if (const std::vector<int> cores = usable_cores(); cores.size() > 1) {
    EXPECT_TRUE(changes([&] {
      run_on({cores.back()});
      return true;
    }));
  }
  if (::geteuid() == 0) {
    EXPECT_TRUE(changes([] { return ::setresuid(65534, 65534, 65534) == 0; }));
  }
}

TEST(Inherited, IsTheSameWhateverBecomesOfSignalsThatEveryWorkerIgnores) {
  EXPECT_FALSE(changes([] { return std::signal(SIGPIPE, SIG_IGN) != SIG_ERR; }));
  EXPECT_FALSE(changes([] { return std::signal(SIGXFSZ, SIG_IGN) != SIG_ERR; }));
}

}  // namespace
}  // namespace ductile::process
