// Temporary folders of commands that were killed.
#include "ductile/cli/work_folder.h"

#include <cstdlib>
#include <iterator>
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

TEST(WorkFolder, OfALivingProcessStays) {
  const TemporaryPlace place;
  const WorkFolder first;
  make_old(first.path());
  int said[2];
  ASSERT_EQ(::pipe(said), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const WorkFolder folder;
    const std::string path = folder.path().string();
    if (::write(said[1], path.data(), path.size()) > 0)
      while (true) ::pause();
    ::_exit(1);
  }
  ::close(said[1]);
  std::string path(4096, '\0');
  const ssize_t size = ::read(said[0], path.data(), path.size());
  ::close(said[0]);
  ASSERT_GT(size, 0);
  path.resize(static_cast<size_t>(size));
  make_old(path);
  {
    const WorkFolder next;
    EXPECT_TRUE(fs::exists(path));
    EXPECT_TRUE(fs::exists(first.path()));
  }
  ::kill(child, SIGKILL);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  const WorkFolder next;
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::exists(first.path()));
}

// The file by which a folder is recognised.
fs::path mark_in(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.path().filename() != "plan.json") return entry.path();
  ADD_FAILURE() << folder << " has no mark";
  return {};
}

TEST(WorkFolder, OfTheUserStaysWhateverItsName) {
  const TemporaryPlace place;
  const fs::path left = left_over(place);
  const std::string name = left.filename().string();  // of which any six letters are the last
  const std::string begin = name.substr(0, name.size() - 6);
  for (const std::string& other :
       {std::string("ductile-workspace-1"), std::string("ductile-work-backup"),
        std::string("ductile-work-aB3dE6"), begin + "aB3dE6", begin + "backup", begin + "1", begin,
        begin.substr(0, begin.size() - 1), name + ".old", name + "1"}) {
    const fs::path folder = place.path() / other;
    fs::create_directory(folder);
    write_file_atomic(folder / "thesis.txt", "years of work");
    make_old(folder);
  }
  const auto with_mark = [&](const std::string& end, const std::string& text) {
    fs::create_directory(place.path() / (begin + end));
    write_file_atomic(place.path() / (begin + end) / mark_in(left).filename(), text);
    make_old(place.path() / (begin + end));
  };
  const std::string mark = read_file(mark_in(left));
  with_mark("copied", mark);  // of another folder
  with_mark("EmptyM", "");
  with_mark("longer", mark.substr(0, mark.find(name)) + begin + "longer.\nmine");
  fs::create_directory(place.path() / (begin + "linked"));  // its mark is a link to one
  fs::create_symlink(mark_in(left), place.path() / (begin + "linked") / mark_in(left).filename());
  make_old(place.path() / (begin + "linked"));
  write_file_atomic(place.path() / (begin + "a-file"), mark);
  const auto count = [&] {
    return std::distance(fs::directory_iterator(place.path()), fs::directory_iterator());
  };
  const auto before = count();
  make_old(left);
  {
    const WorkFolder next;
    EXPECT_FALSE(fs::exists(left));
    EXPECT_EQ(count(), before);  // one is gone, and one is there now
  }
  EXPECT_EQ(count(), before - 1);
  EXPECT_EQ(read_file(place.path() / "ductile-workspace-1" / "thesis.txt"), "years of work");
}

TEST(WorkFolder, IsNotFollowedWhereItIsALinkOrHasLinks) {
  const TemporaryPlace place;
  const TempFolder elsewhere;
  const fs::path kept = elsewhere.path() / "kept";
  fs::create_directory(kept);
  write_file_atomic(kept / "thesis.txt", "years of work");
  const fs::path left = left_over(place), moved = elsewhere.path() / left.filename();
  fs::create_directory_symlink(kept, left / "folder");
  fs::create_symlink(kept / "thesis.txt", left / "file");
  fs::create_directory(left / "in");
  fs::create_directory_symlink(kept, left / "in" / "folder");
  make_old(left);
  fs::rename(left, moved);
  fs::create_directory_symlink(moved, left);
  {
    const WorkFolder next;
    EXPECT_TRUE(fs::exists(moved / "plan.json"));
  }
  fs::remove(left);
  fs::rename(moved, left);
  const WorkFolder next;
  EXPECT_FALSE(fs::exists(left));
  EXPECT_EQ(read_file(kept / "thesis.txt"), "years of work");
}

TEST(WorkFolder, OfAnotherUserStays) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  const TemporaryPlace place;
  const fs::path left = left_over(place);
  ASSERT_EQ(::chown(left.c_str(), 1, 1), 0);
  make_old(left);
  {
    const WorkFolder next;
    EXPECT_TRUE(fs::exists(left));
  }
  ASSERT_EQ(::chown(left.c_str(), 0, 0), 0);
  make_old(left);
  const WorkFolder next;
  EXPECT_FALSE(fs::exists(left));
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
