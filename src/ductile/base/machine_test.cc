#include "ductile/base/machine.h"

#include <gtest/gtest.h>
#include <sched.h>

namespace ductile {
namespace {

// A made-up root with the given files.
class Machine : public ::testing::Test {
 protected:
  void put(const std::string& path, std::string_view text) {
    const fs::path file = folder_.path() / path;
    fs::create_directories(file.parent_path());
    write_file_atomic(file, text);
  }
  const fs::path& root() const { return folder_.path(); }

 private:
  TempFolder folder_;
};

TEST_F(Machine, NoControlGroupsMeansNoQuota) {
  EXPECT_EQ(cpu_share(root()).quota, 0);
  EXPECT_EQ(memory_share(root()).limit, 0);
}

TEST_F(Machine, TheSmallestQuotaOfTheGroupAndItsParentsHolds) {
  put("proc/self/cgroup", "0::/batch/job7\n");
  put("sys/fs/cgroup/batch/job7/cpu.max", "400000 100000\n");
  put("sys/fs/cgroup/batch/cpu.max", "150000 100000\n");
  put("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_DOUBLE_EQ(cpu_share(root()).quota, 1.5);
}

TEST_F(Machine, AGroupPathThatIsNotMountedFallsBackToItsParent) {
  put("proc/self/cgroup", "0::/docker/0123\n");
  put("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_DOUBLE_EQ(cpu_share(root()).quota, 0.5);
}

TEST_F(Machine, VersionOneGroupsAreRead) {
  put("proc/self/cgroup", "4:memory:/a\n3:cpu,cpuacct:/a\n");
  put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "300000\n");
  put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n");
  put("proc/meminfo", "MemTotal:  4194304 kB\nMemAvailable:    2097152 kB\n");
  EXPECT_DOUBLE_EQ(cpu_share(root()).quota, 3);
  const MemoryShare memory = memory_share(root());
  EXPECT_EQ(memory.total, int64_t{4} << 30);
  EXPECT_EQ(memory.available, int64_t{2} << 30);
  EXPECT_EQ(memory.limit, int64_t{1} << 30);
}

TEST_F(Machine, AMemoryLimitAboveTheMachineIsNone) {
  put("proc/self/cgroup", "0::/\n");
  put("proc/meminfo", "MemTotal:  1048576 kB\n");
  put("sys/fs/cgroup/memory.max", "9223372036854771712\n");
  EXPECT_EQ(memory_share(root()).limit, 0);
}

TEST_F(Machine, UsableIsTheAffinityCutToTheQuotaRoundedUp) {
  EXPECT_EQ((CpuShare{8, 4, 0}.usable()), 4);
  EXPECT_EQ((CpuShare{8, 4, 1.5}.usable()), 2);
  EXPECT_EQ((CpuShare{8, 4, 2.0}.usable()), 2);
  EXPECT_EQ((CpuShare{8, 4, 0.1}.usable()), 1);
  EXPECT_EQ((CpuShare{8, 4, 64}.usable()), 4);
}

TEST_F(Machine, TheAffinityOfThisProcessCounts) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(cpu_share().affinity, 1);
  EXPECT_EQ(cpu_share().usable(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST_F(Machine, ThreadsAreAsManyAsTheCoresOrFewerWhereTheUserSaysSo) {
  EXPECT_EQ(threads_on(4, nullptr), 4);
  EXPECT_EQ(threads_on(4, "3"), 3);
  EXPECT_EQ(threads_on(4, "2,1"), 2);  // of nested regions: the outer one
  EXPECT_EQ(threads_on(4, "8"), 4);
  for (const char* nothing : {"", "0", "-1", "many"}) EXPECT_EQ(threads_on(4, nothing), 4);
  EXPECT_EQ(threads_on(0, "3"), 1) << "more workers than cores";
}

TEST_F(Machine, ProcessorFlagsAreWordsNotPartsOfWords) {
  put("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 avx512_bf16\n");
  const CpuModel model = cpu_model(root());
  EXPECT_EQ(model.name, "Some CPU");
  EXPECT_TRUE(model.has("avx2"));
  EXPECT_FALSE(model.has("avx"));
  EXPECT_TRUE(model.has("avx512_bf16"));
}

}  // namespace
}  // namespace ductile
