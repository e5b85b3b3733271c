#include "ductile/process/spawn.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/machine.h"
#include "ductile/process/file_limit.h"
#include "ductile/process/find_program.h"
#include "ductile/process/line_reader.h"
#include "ductile/process/worker.h"

namespace ductile::process {
namespace {

TEST(FindProgram, TakesTheFirstOnPathThatMayBeRun) {
  const TempFolder folder;
  const fs::path first = folder.path() / "first", second = folder.path() / "second";
  for (const fs::path& place : {first, second}) {
    fs::create_directory(place);
    write_file_atomic(place / "tool", "#!/bin/sh\n");
  }
  fs::permissions(second / "tool", fs::perms::owner_all);
  const std::string before = std::getenv("PATH");
  ::setenv("PATH", (first.string() + "::" + second.string()).c_str(), 1);
  const auto found = find_program("tool"), other = find_program("nothing");
  ::setenv("PATH", before.c_str(), 1);
  EXPECT_EQ(found, second / "tool");
  EXPECT_EQ(other, std::nullopt);
}

TEST(LogTail, IsTheLastLines) {
  const TempFolder folder;
  const fs::path log = folder.path() / "log";
  EXPECT_EQ(log_tail(log, 3), "");
  write_file_atomic(log, "one");
  EXPECT_EQ(log_tail(log, 3), "one");
  write_file_atomic(log, "1\n2\n3\n4\n\n");
  EXPECT_EQ(log_tail(log, 2), "3\n4");
  EXPECT_EQ(log_tail(log, 9), "1\n2\n3\n4");
  EXPECT_EQ(log_tail(log, 9, 4), "3\n4");
  EXPECT_EQ(log_tail(log, 1, 4), "4");
  EXPECT_EQ(log_tail(log, 9, 9), "");
  EXPECT_EQ(log_tail(log, 9, 90), "");
}

TEST(WorkerEnvironment, IsSetUnlessTheUserDid) {
  unsetenv("GLIBC_TUNABLES");
  unsetenv("OMP_WAIT_POLICY");
  unsetenv("GOMP_SPINCOUNT");
  unsetenv("OMP_NUM_THREADS");
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  Pairs always = {{"OMP_DYNAMIC", "FALSE"},
                  {"OPENBLAS_NUM_THREADS", "1"},
                  {"GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"}};
  const auto with = [&](Pairs more) {
    more.insert(more.begin(), always.begin(), always.end());
    return more;
  };
  EXPECT_EQ(
      worker_environment(3),
      with({{"OMP_WAIT_POLICY", "PASSIVE"}, {"GOMP_SPINCOUNT", "1000"}, {"OMP_NUM_THREADS", "3"}}));
  EXPECT_EQ(worker_environment(0).back().second, std::to_string(cpu_share().usable()));
  setenv("OMP_WAIT_POLICY", "ACTIVE", 1);
  setenv("OMP_NUM_THREADS", "5", 1);
  EXPECT_EQ(worker_environment(0), always);
  EXPECT_EQ(worker_environment(2), with({{"OMP_NUM_THREADS", "2"}}));
  setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0", 1);
  always.pop_back();
  EXPECT_EQ(worker_environment(0), always);
  unsetenv("GLIBC_TUNABLES");
  setenv("OMP_WAIT_POLICY", "PASSIVE", 1);
  unsetenv("OMP_NUM_THREADS");
}

TEST(CoreShare, PartsAreDisjointAndCoverAllCores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  const int cores = CPU_COUNT(&set);
  for (int workers = 2; workers <= cores; ++workers) {
    std::vector<int> all;
    for (int place = 0; place < workers; ++place) {
      const std::vector<int> share = core_share(place, workers, usable_cores());
      EXPECT_FALSE(share.empty());
      all.insert(all.end(), share.begin(), share.end());
    }
    EXPECT_EQ(static_cast<int>(all.size()), cores);
    for (size_t i = 1; i < all.size(); ++i) EXPECT_LT(all[i - 1], all[i]);
  }
  EXPECT_TRUE(core_share(0, 1, usable_cores()).empty());
  EXPECT_TRUE(core_share(0, cores + 1, usable_cores()).empty());
}

TEST(Spawn, GivesTheChildItsEnvironmentLogPipeAndCores) {
  const TempFolder folder;
  const fs::path log = folder.path() / "log";
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Descriptor read_end(ends[0]), write_end(ends[1]);
  const pid_t pid = spawn({.program = "/bin/sh",
                           .arguments = {"-c", "echo $ANSWER", "name"},
                           .environment = {{"ANSWER", "42"}},
                           .log = log});
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(log_tail(log, 1), "42");
  const pid_t other = spawn({.program = "/bin/sh",
                             .arguments = {"-c", "eval \"echo line >&$2\"", "name"},
                             .environment = {},
                             .log = log,
                             .progress_fd = write_end.get(),
                             .cpus = {core_share(0, 1, usable_cores())}});
  write_end.close();
  ASSERT_EQ(waitpid(other, &status, 0), other);
  std::vector<std::string> lines;
  LineReader reader;
  while (reader.read(read_end.get(), [&](std::string_view l) { lines.emplace_back(l); })) continue;
  EXPECT_EQ(lines, std::vector<std::string>{"line"});
  EXPECT_THROW(spawn({.program = folder.path() / "none", .log = log}), Error);
}

TEST(Spawn, AProgramHasTheFileLimitThatThisProcessWasGiven) {
  const TempFolder folder;
  const fs::path log = folder.path() / "log";
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_GT(limit.rlim_max, 200u);
  const pid_t child = fork();  // the limit is a whole process's
  if (child == 0) {
    limit.rlim_cur = 200;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(1);
    raise_file_limit();
    raise_file_limit();  // once more changes nothing
    rlimit now{};
    if (getrlimit(RLIMIT_NOFILE, &now) != 0 || now.rlim_cur != limit.rlim_max) _exit(2);
    const pid_t pid =
        spawn({.program = "/bin/sh", .arguments = {"-c", "ulimit -Sn; ulimit -Hn"}, .log = log});
    int status = 0;
    _exit(waitpid(pid, &status, 0) == pid && status == 0 ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(log_tail(log, 2),
            "200\n" + (limit.rlim_max == RLIM_INFINITY ? std::string("unlimited")
                                                       : std::to_string(limit.rlim_max)));
}

}  // namespace
}  // namespace ductile::process
