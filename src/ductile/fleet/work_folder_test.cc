// Temporary folders of commands that were killed.
#include "ductile/cli/work_folder.h"

#include <cstdlib>
#include <optional>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/files.h"

namespace ductile::cli {
namespace {

// Where all temporary folders are while it lasts.
class TemporaryPlace {
 public:
  TemporaryPlace() {
    if (const char* text = std::getenv("TMPDIR")) before_ = text;
    ::setenv("TMPDIR", place_.path().c_str(), 1);
  }
  ~TemporaryPlace() {
    if (before_) {
      ::setenv("TMPDIR", before_->c_str(), 1);
    } else {
      ::unsetenv("TMPDIR");
    }
  }
  const fs::path& path() const { return place_.path(); }

 private:
  TempFolder place_;
  std::optional<std::string> before_;
};

void make_old(const fs::path& folder) {
  const timespec times[] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, folder.c_str(), times, 0), 0);
}

// The folder of a process that was killed while it had something in it.
fs::path left_over(const TemporaryPlace& place) {
  const pid_t child = ::fork();
  if (child == 0) {
    const WorkFolder folder;
    write_file_atomic(folder.path() / "plan.json", "{}");
    ::kill(::getpid(), SIGKILL);
  }
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  for (const fs::directory_entry& entry : fs::directory_iterator(place.path()))
    if (fs::exists(entry.path() / "plan.json")) return entry.path();
  ADD_FAILURE() << "nothing is left";
  return {};
}

TEST(WorkFolder, OfAKilledProcessIsRemovedByTheNextOne) {
  const TemporaryPlace place;
  const fs::path left = left_over(place);
  {
    const WorkFolder next;
    EXPECT_TRUE(fs::exists(left)) << "it may just be beginning";
  }
  make_old(left);
  const WorkFolder next;
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(next.path()));
}

TEST(WorkFolder, OfALivingProcessAndOfOthersStays) {
  const TemporaryPlace place;
  const WorkFolder first;
  const TempFolder other("ductile-other"), same_size("ductile-wonk");
  for (const fs::path& folder : {first.path(), other.path(), same_size.path()}) make_old(folder);
  const WorkFolder next;
  EXPECT_TRUE(fs::exists(first.path()));
  EXPECT_TRUE(fs::exists(other.path()));
  EXPECT_TRUE(fs::exists(same_size.path()));
}

TEST(WorkFolder, IsGoneWithItsObject) {
  const TemporaryPlace place;
  fs::path path;
  {
    const WorkFolder folder;
    path = folder.path();
    write_file_atomic(path / "plan.json", "{}");
  }
  EXPECT_FALSE(fs::exists(path));
}

}  // namespace
}  // namespace ductile::cli
