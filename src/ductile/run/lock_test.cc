#include "ductile/run/lock.h"

#include <string>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"

namespace ductile::run {
namespace {

std::string refusal(const fs::path& run) {
  try {
    const RunLock lock(run, RunLock::kLocal);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::conflict);
    return e.what();
  }
  return "";
}

TEST(RunLock, IsHeldByOneAtATimeAndNamesTheHolder) {
  const TempFolder run;
  {
    const RunLock lock(run.path(), RunLock::kLocal);
    const std::string text = refusal(run.path());
    EXPECT_NE(text.find(run.path().string()), std::string::npos) << text;
    EXPECT_NE(text.find(fmt::format("process {}", getpid())), std::string::npos) << text;
    EXPECT_NE(text.find("kill -INT"), std::string::npos) << text;
  }
  EXPECT_EQ(refusal(run.path()), "");
  const RunLock lock(run.path(), RunLock::kController);
  EXPECT_NE(refusal(run.path()).find("a controller runs this job already"), std::string::npos);
}

// Who may open it may hold it.
TEST(RunLock, CanBeHeldByNoOtherUser) {
  const auto mode = [](const fs::path& run) { return fs::status(lock_file(run)).permissions(); };
  const auto own = fs::perms::owner_read | fs::perms::owner_write;
  const TempFolder fresh, older;
  const RunLock lock(fresh.path(), RunLock::kLocal);
  EXPECT_EQ(mode(fresh.path()), own);
  write_file_atomic(lock_file(older.path()), "");
  fs::permissions(lock_file(older.path()), own | fs::perms::group_read | fs::perms::others_read);
  const RunLock again(older.path(), RunLock::kLocal);
  EXPECT_EQ(mode(older.path()), own);
}

TEST(RunLock, IsHeldForAsLongAsAChildKeepsIt) {
  const TempFolder run;
  int gone[2], stay[2];
  ASSERT_EQ(pipe(gone), 0);
  ASSERT_EQ(pipe(stay), 0);
  // A driver that is killed while its worker, which holds the lock as well, lives on.
  const pid_t driver = fork();
  if (driver == 0) {
    const RunLock lock(run.path(), RunLock::kLocal);
    if (fork() == 0) {
      close(stay[1]);
      close(gone[1]);
      char ignored;
      [[maybe_unused]] const ssize_t n = read(stay[0], &ignored, 1);
      _exit(0);
    }
    kill(getpid(), SIGKILL);
  }
  close(gone[1]);
  ASSERT_EQ(waitpid(driver, nullptr, 0), driver);
  const std::string text = refusal(run.path());
  EXPECT_NE(text.find("try again"), std::string::npos) << text;
  close(stay[0]);
  close(stay[1]);  // the worker ends
  while (!refusal(run.path()).empty()) usleep(1000);
  close(gone[0]);
}

}  // namespace
}  // namespace ductile::run
