#include "ductile/base/files.h"

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/paths.h"

namespace ductile {
namespace {

TEST(Files, AtomicWriteReplacesAndLeavesNothingBeside) {
  const TempFolder folder;
  const fs::path file = folder.path() / "a";
  write_file_atomic(file, "one");
  write_file_atomic(file, "two");
  EXPECT_EQ(read_file(file), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

TEST(Files, FailedWriteKeepsTheOldFileAndNamesThePath) {
  const TempFolder folder;
  const fs::path file = folder.path() / "gone" / "a";
  try {
    write_file_atomic(file, "x");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::not_found);
    EXPECT_NE(std::string(e.what()).find("gone"), std::string::npos);
  }
}

TEST(Files, TextThatHasNoEndIsRefused) {
  const TempFolder folder;
  const fs::path file = folder.path() / "a";
  write_file_atomic(file, "four");
  EXPECT_EQ(read_text(file, 4), "four");
  for (const fs::path& path : {file, fs::path("/dev/zero")}) {
    try {
      read_text(path, 3);
      FAIL() << path;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(e.what()).find(path.string()), std::string::npos) << e.what();
    }
  }
}

// As the shell's <(COMMAND) does; and a FIFO with a name, which nobody may ever write to.
TEST(Files, APipeThatEndsIsReadAndAFifoIsNotWaitedFor) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::thread writer([end = ends[1]] {
    for (const char letter : std::string("slow")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_EQ(::write(end, &letter, 1), 1);
    }
    ::close(end);
  });
  EXPECT_EQ(read_text("/dev/fd/" + std::to_string(ends[0])), "slow");
  writer.join();
  ::close(ends[0]);
  const TempFolder folder;
  const fs::path fifo = folder.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  try {
    read_text(fifo);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(e.what()).find(fifo.string() + ": is a FIFO"), std::string::npos);
  }
}

TEST(Files, MappingShowsTheBytes) {
  const TempFolder folder;
  const fs::path file = folder.path() / "m";
  write_file_atomic(file, "abc");
  MappedFile mapped(file);
  MappedFile moved(std::move(mapped));
  ASSERT_EQ(moved.bytes().size(), 3u);
  EXPECT_EQ(static_cast<char>(moved.bytes()[2]), 'c');
  EXPECT_TRUE(mapped.bytes().empty());
  write_file_atomic(file, "");
  EXPECT_TRUE(MappedFile(file).bytes().empty());
}

TEST(Files, TempFolderRemovesItself) {
  fs::path path;
  {
    const TempFolder folder;
    path = folder.path();
    std::ofstream(path / "x") << "x";
    EXPECT_TRUE(fs::exists(path / "x"));
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(UnnamedFile, IsReadByItsPathAndGoneWithItsEnd) {
  fs::path path;
  {
    const UnnamedFile file("first\n"), other;
    path = file.path();
    EXPECT_EQ(read_text(path), "first\n");
    EXPECT_EQ(read_text(path), "first\n") << "whoever opens it begins at its beginning";
    EXPECT_EQ(read_text(other.path()), "");
    EXPECT_EQ(kind_of(path), FileKind::file);
  }
  EXPECT_EQ(kind_of(path), FileKind::none);
}

}  // namespace
}  // namespace ductile
