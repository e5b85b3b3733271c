// Every way a save can be cut short: an operation that fails, a process that is killed, a machine
// that loses power. Whatever happens, the newest checkpoint that opens must be one that was saved,
// whole.
#include <cerrno>
#include <csignal>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/testing/faulty_disk.h"
#include "ductile/ckpt/testing/training_state.h"
#include "ductile/ckpt/writer.h"

namespace ductile::ckpt {
namespace {

using testing::FastFolder;
using testing::FaultyDisk;
using testing::ForgetfulDisk;
using testing::in_child;
using testing::load;
using testing::state_of_step;
using testing::views;

constexpr int64_t kChunk = 4096;

void save(const fs::path& folder, int64_t step, Disk* disk = nullptr) {
  CheckpointWriter writer(folder, {.chunk_bytes = kChunk, .disk = disk});
  writer.save(step, step, views(state_of_step(step)));
  writer.wait();
}

// The newest checkpoint is whole and at least `at_least`; returns its step.
int64_t check_latest(const fs::path& folder, int64_t at_least) {
  const LatestResult latest = open_latest(folder);
  EXPECT_TRUE(latest.refused.empty()) << latest.refused.front();
  if (!latest.checkpoint) {
    EXPECT_LT(at_least, 0) << "no checkpoint left";
    return -1;
  }
  EXPECT_GE(latest.checkpoint->step(), at_least);
  EXPECT_EQ(latest.checkpoint->state(), latest.checkpoint->step());
  EXPECT_EQ(load(*latest.checkpoint), state_of_step(latest.checkpoint->step()));
  return latest.checkpoint->step();
}

// After any fault a new process saves as if nothing had been, and leaves no leftovers.
void check_recovers(const fs::path& folder, int64_t step) {
  save(folder, step);
  EXPECT_EQ(check_latest(folder, step), step);
  const VerifyResult result = verify(folder);
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.unused_chunks, 0);
  EXPECT_EQ(result.temporaries, 0);
}

int64_t count_operations() {
  const FastFolder folder;
  save(folder.path(), 1);
  save(folder.path(), 2);
  FaultyDisk disk;
  save(folder.path(), 3, &disk);
  return disk.operations;
}

void fail_at_every_operation(int error, int64_t times) {
  const int64_t operations = count_operations();
  ASSERT_GT(operations, 20);
  for (int64_t n = 1; n <= operations; ++n) {
    SCOPED_TRACE(n);
    const FastFolder folder;
    save(folder.path(), 1);
    save(folder.path(), 2);
    FaultyDisk disk;
    disk.at = n;
    disk.times = times;
    disk.strike = [error] { return -error; };
    try {
      CheckpointWriter writer(folder.path(), {.chunk_bytes = kChunk, .disk = &disk});
      bool saved = true;
      try {
        writer.save(3, 3, views(state_of_step(3)));
        writer.wait();
      } catch (const Error& e) {
        saved = false;
        EXPECT_EQ(e.code(), ErrorCode::unavailable);
        EXPECT_NE(std::string(e.what()).find(folder.path().string()), std::string::npos);
        if (error == ENOSPC) {
          EXPECT_NE(std::string(e.what()).find("disk full"), std::string::npos) << e.what();
        }
      }
      check_latest(folder.path(), saved ? 3 : 2);
      EXPECT_EQ(writer.take_result()->error.empty(), saved);
      if (times == 1) {  // the fault has passed: the same writer goes on
        writer.save(4, 4, views(state_of_step(4)));
        writer.wait();
        EXPECT_EQ(check_latest(folder.path(), 4), 4);
      }
    } catch (const Error& e) {  // the constructor
      EXPECT_EQ(e.code(), ErrorCode::unavailable);
      check_latest(folder.path(), 2);
    }
    check_recovers(folder.path(), 5);
  }
}

TEST(Faults, ADiskThatIsFullOnceAtAnyOperationCostsAtMostThatSave) {
  fail_at_every_operation(ENOSPC, 1);
}

TEST(Faults, ADiskThatStaysBrokenFromAnyOperationOnKeepsTheLastCheckpoint) {
  fail_at_every_operation(EIO, INT64_MAX);
}

void save_and_die(const fs::path& folder, int64_t step, int64_t at) {
  FaultyDisk disk;
  disk.at = at;
  disk.strike = [] {
    ::raise(SIGKILL);
    return -EIO;
  };
  save(folder, step, &disk);
}

TEST(Faults, AProcessKilledAtAnyOperationAndAgainInRecoveryLosesNothing) {
  const int64_t operations = count_operations();
  Rng rng(1);
  for (int64_t n = 1; n <= operations; ++n) {
    SCOPED_TRACE(n);
    const FastFolder folder;
    save(folder.path(), 1);
    save(folder.path(), 2);
    const int status = in_child([&] { save_and_die(folder.path(), 3, n); });
    ASSERT_TRUE(WIFSIGNALED(status));
    const int64_t latest = check_latest(folder.path(), 2);
    const int64_t again = rng.below(static_cast<uint32_t>(operations)) + 1;
    in_child([&] { save_and_die(folder.path(), 4, again); });
    check_latest(folder.path(), latest);
    check_recovers(folder.path(), 5);
  }
}

TEST(Faults, AProcessKilledAtAnyTimeLosesAtMostTheSaveUnderWay) {
  const FastFolder folder;
  Rng rng(2);
  int64_t latest = -1;
  for (int round = 0; round < 10; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      CheckpointWriter writer(folder.path(), {.chunk_bytes = kChunk});
      for (int64_t step = latest + 1;; ++step) writer.save(step, step, views(state_of_step(step)));
    }
    ::usleep(1000 + rng.below(60000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    latest = check_latest(folder.path(), latest);
  }
  check_recovers(folder.path(), latest + 1);
}

TEST(Faults, PowerLostAtAnyOperationKeepsTheLastDurableCheckpoint) {
  for (int64_t n = 1;; ++n) {
    bool died = false;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE(fmt::format("operation {}, seed {}", n, seed));
      const FastFolder folder;
      ForgetfulDisk disk(n, seed);
      int64_t durable = -1;
      try {
        CheckpointWriter writer(folder.path(), {.chunk_bytes = kChunk, .disk = &disk});
        for (int64_t step = 0; step < 4; ++step) {
          writer.save(step, step, views(state_of_step(step)));
          writer.wait();
          durable = step;
        }
      } catch (const Error&) {
      }
      died = disk.died();
      disk.forget();
      check_latest(folder.path(), durable);
      check_recovers(folder.path(), 5);
      if (::testing::Test::HasFailure()) return;
    }
    if (!died) return;
  }
}

TEST(Faults, AFullDiskIsToldWithFolderAndMissingBytes) {
  const FastFolder folder;
  // In a mount namespace of the child's own: nobody else sees the small file system.
  const int status = in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, "") != 0 ||
        ::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=900k") != 0) {
      ::_exit(77);
    }
    CheckpointWriter writer(folder.path(), {.chunk_bytes = kChunk});
    writer.save(1, 1, views(state_of_step(1)));
    writer.wait();
    const std::vector<std::byte> big = testing::random_bytes(1 << 20, 1);
    const std::vector<TensorView> too_much = {{"big", DType::u8, {1 << 20}, big}};
    writer.save(2, 2, too_much);
    try {
      writer.wait();
      ::_exit(2);
    } catch (const Error& e) {
      const std::string what = e.what();
      if (what.find(folder.path().string()) == what.npos) ::_exit(3);
      if (what.find("are missing") == what.npos) ::_exit(4);
    }
    if (check_latest(folder.path(), 1) != 1) ::_exit(5);
    writer.save(3, 3, views(state_of_step(3)));
    writer.wait();
    if (check_latest(folder.path(), 3) != 3 || verify(folder.path()).unused_chunks != 0) ::_exit(6);
  });
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "only root can mount a small file system";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace ductile::ckpt
