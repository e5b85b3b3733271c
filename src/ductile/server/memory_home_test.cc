#include <string>

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/files.h"
#include "ductile/process/spawn.h"
#include "ductile/server/memory_home_impl.h"

namespace ductile::server {
namespace {

// -1: this kernel does not say.
int policy() {
  int mode = -1;
  return ::syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0 ? mode : -1;
}

TEST(MemoryHome, HoldsForWhatIsStartedMeanwhileAndNoLonger) {
  if (policy() != MPOL_DEFAULT || !fs::exists("/proc/self/numa_maps"))
    GTEST_SKIP() << "this kernel has no NUMA";
  const TempFolder folder;
  const auto log = [&](const std::string& name) {
    process::SpawnOptions launch;
    launch.program = "/bin/sh";
    launch.arguments = {"-c", "cat /proc/self/numa_maps"};
    launch.log = folder.path() / name;
    const pid_t pid = process::spawn(launch);
    ::waitpid(pid, nullptr, 0);
    return read_file(folder.path() / name);
  };
  {
    const MemoryHome home(0);
    if (policy() == MPOL_DEFAULT) GTEST_SKIP() << "set_mempolicy is not allowed here";
    EXPECT_EQ(policy(), MPOL_PREFERRED);
    EXPECT_NE(log("with").find(" prefer:0 "), std::string::npos);
  }
  EXPECT_EQ(policy(), MPOL_DEFAULT);
  EXPECT_EQ(log("without").find("prefer"), std::string::npos);
}

TEST(MemoryHome, WhatSomebodyChoseStays) {
  const unsigned long first = 1;
  if (::syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, &first, 64) != 0)
    GTEST_SKIP() << "set_mempolicy is not allowed here";
  { const MemoryHome home(0); }
  EXPECT_EQ(policy(), MPOL_INTERLEAVE);
  ::syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
}

TEST(MemoryHome, OfANodeThatIsNotThereIsNone) {
  for (const int node : {-1, 1023, 1024, 1 << 30}) {
    const int before = policy();
    const MemoryHome home(node);
    EXPECT_EQ(policy(), before) << node;
  }
}

}  // namespace
}  // namespace ductile::server
