#include "ductile/base/files.h"

#include <fstream>

#include <gtest/gtest.h>

#include "ductile/base/error.h"

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

}  // namespace
}  // namespace ductile
