#include "ductile/train/batch_orders.h"

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "ductile/base/error.h"

namespace ductile::train {
namespace {

class BatchOrdersTest : public ::testing::Test {
 protected:
  void write(std::string_view text) { write_file_atomic(file_, text); }

  TempFolder folder_;
  fs::path file_ = folder_.path() / "batch.json";
  BatchOrders orders_{file_};
};

TEST_F(BatchOrdersTest, AFileIsReadAgainWhenItChanges) {
  EXPECT_EQ(orders_.wish(0), 0) << "there is none";
  write(R"({"batch": 256})");
  EXPECT_EQ(orders_.wish(0), 256);
  write(R"({"batch": 64.0})");
  EXPECT_EQ(orders_.wish(1), 64);
  fs::remove(file_);
  EXPECT_EQ(orders_.wish(2), 0);
}

TEST_F(BatchOrdersTest, WhatAnotherRunWasOrderedComesAtTheStepBefore) {
  write(R"({"replay": [[10, 64], [40, 32]]})");
  for (int64_t done = 0; done < 60; ++done)
    EXPECT_EQ(orders_.wish(done), done == 9 ? 64 : done == 39 ? 32 : 0) << done;
}

TEST_F(BatchOrdersTest, ADamagedFileIsNamedOnceAndOrdersNothing) {
  const std::string large = R"({"batch": 64, "replay": [)" + std::string(2 << 20, ' ') + "]}";
  const std::string deep = R"({"replay": )" + std::string(100000, '[');
  const std::vector<std::string> damaged = {"",
                                            "{",
                                            "[64]",
                                            "null",
                                            R"({"batch": "64"})",
                                            R"({"batch": -64})",
                                            R"({"batch": 64.5})",
                                            R"({"batch": 1e300})",
                                            R"({"batch": 9223372036854775808})",
                                            R"({"batch": true})",
                                            R"({"batches": 64})",
                                            R"({"replay": {}})",
                                            R"({"replay": [7]})",
                                            R"({"replay": [[1]]})",
                                            R"({"replay": [[-1, 64]]})",
                                            R"({"replay": [[1, 0]]})",
                                            R"({"batch": 64, "replay": [[1, "x"]]})",
                                            large,
                                            deep};
  for (const std::string& text : damaged) {
    SCOPED_TRACE(text.substr(0, 60));
    write(R"({"batch": 128})");
    ASSERT_EQ(orders_.wish(5), 128);
    write(text);
    try {
      orders_.wish(5);
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data_loss);
      EXPECT_NE(error.message().find(file_.string()), std::string::npos) << error.message();
      EXPECT_NE(error.message().find("remove it"), std::string::npos) << error.message();
    }
    for (int64_t done = 0; done < 3; ++done) EXPECT_EQ(orders_.wish(done), 0) << "said again";
  }
}

// What the shell's `>` leaves for a moment must not be what is remembered.
TEST_F(BatchOrdersTest, AFileThatIsEmptiedAndThenWrittenIsReadWhenItIsWhole) {
  write("");
  struct stat empty {};
  ASSERT_EQ(::stat(file_.c_str(), &empty), 0);
  EXPECT_THROW(orders_.wish(5), Error);
  std::FILE* const file = std::fopen(file_.c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fputs(R"({"batch": 256})", file);
  std::fclose(file);
  // In the same tick.
  const struct timespec times[] = {empty.st_atim, empty.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, file_.c_str(), times, 0), 0);
  EXPECT_EQ(orders_.wish(5), 256);
}

TEST_F(BatchOrdersTest, WhatIsNoFileIsNamedOnceAndNeverWaitedFor) {
  const auto check = [&](const char* what) {
    SCOPED_TRACE(what);
    try {
      orders_.wish(5);
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data_loss) << error.message();
      EXPECT_NE(error.message().find(file_.string()), std::string::npos) << error.message();
    }
    EXPECT_EQ(orders_.wish(5), 0) << "said again";
    fs::remove(file_);
    write(R"({"batch": 256})");
    EXPECT_EQ(orders_.wish(5), 256);
    fs::remove(file_);
  };
  ASSERT_EQ(::mkfifo(file_.c_str(), 0600), 0);
  check("a pipe that nobody writes to");
  fs::create_directory(file_);
  check("a folder");
  fs::create_symlink("/dev/zero", file_);
  check("a device that never ends");
  write("{");
  fs::resize_file(file_, uintmax_t{1} << 42);
  check("4 TiB that take no room");
}

// A link that leads to itself stands for a file system that does not answer.
TEST_F(BatchOrdersTest, AFileThatCannotBeLookedForIsNotTakenForNone) {
  write(R"({"batch": 256})");
  EXPECT_EQ(orders_.wish(4), 256);
  fs::remove(file_);
  fs::create_symlink(file_, file_);
  for (int i = 0; i < 2; ++i) {
    try {
      orders_.wish(5);
      ADD_FAILURE() << "it was taken for none";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unavailable) << error.message();
      EXPECT_NE(error.message().find(file_.string()), std::string::npos) << error.message();
    }
  }
  fs::remove(file_);
  EXPECT_EQ(orders_.wish(5), 0);
  BatchOrders below{file_ / "batch.json"};
  write("{}");
  EXPECT_EQ(below.wish(5), 0) << "the folder is a file";
}

TEST_F(BatchOrdersTest, WhatAnotherRunWasOrderedIsKnownWhenTheFileIsOutOfReach) {
  write(R"({"replay": [[10, 64], [40, 32]]})");
  EXPECT_EQ(orders_.wish(0), 0);
  fs::remove(file_);
  EXPECT_EQ(orders_.wish(9), 64);
  fs::create_symlink(file_, file_);
  EXPECT_EQ(orders_.wish(39), 32);
}

TEST_F(BatchOrdersTest, AFileThatCannotBeReadNowIsReadLater) {
  write(R"({"batch": 256})");
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const struct rlimit none { 0, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  for (int i = 0; i < 2; ++i) {
    try {
      orders_.wish(5);
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unavailable) << error.message();
    }
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(orders_.wish(5), 256);
}

}  // namespace
}  // namespace ductile::train
