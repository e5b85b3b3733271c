#include <chrono>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/link/boot_clock.h"
#include "ductile/server/notice_impl.h"

namespace ductile::server {
namespace {

double boot_seconds() { return std::chrono::duration<double>(link::boot_time()).count(); }

TEST(Notice, IsReadAsItWasWritten) {
  const TempFolder folder;
  const fs::path file = notice_file(folder.path(), "node1");
  EXPECT_FALSE(read_notice(file));
  const Notice notice = notice_now("node1", 30);
  write_notice(folder.path(), notice);
  EXPECT_EQ(file, folder.path() / "server" / "leaving" / "node1");
  const auto read = read_notice(file);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->host, "node1");
  EXPECT_EQ(read->machine, notice.machine);
  EXPECT_EQ(read->seconds, 30);
  EXPECT_GT(read->left(), 50);
  EXPECT_LE(read->left(), 60);
  Notice other = *read;
  other.machine = "another boot";
  EXPECT_EQ(other.left(), 0);
  other = *read;
  other.came -= 61;
  EXPECT_EQ(other.left(), 0);
  other.came += 1000;  // not of this machine's clock
  EXPECT_EQ(other.left(), 60);
  remove_notice(folder.path(), "node1");
  EXPECT_FALSE(read_notice(file));
}

// Formerly `a:1` and `a-1` had one file, which each took for its own.
TEST(Notice, EachHostHasAFileOfItsOwn) {
  const fs::path folder = "/folder";
  const std::string many(300, 'x');
  std::set<fs::path> files;
  const std::set<std::string> hosts = {"a:1", "a-1", "a/1", "a%3A1",    "a%3a1",    "a 1",
                                       "-a",  "a",   ".a",  "..",       "%2Ea",     "A",
                                       "",    "a-",  many,  many + "x", many + ":", "x" + many};
  for (const std::string& host : hosts) {
    const fs::path file = notice_file(folder, host);
    EXPECT_TRUE(files.insert(file).second) << file;
    EXPECT_EQ(file.parent_path(), folder / "server" / "leaving") << file;
    EXPECT_LT(file.filename().string().size(), 240u);
    EXPECT_NE(file.filename().string().front(), '.');
  }
}

TEST(Notice, ThatOfAnotherHostIsNotRemoved) {
  const TempFolder folder;
  write_notice(folder.path(), notice_now("one", 30));
  fs::rename(notice_file(folder.path(), "one"), notice_file(folder.path(), "two"));
  remove_notice(folder.path(), "two");
  EXPECT_TRUE(fs::exists(notice_file(folder.path(), "two")));
  forget_notice_of_stop(folder.path(), "two", boot_seconds());
  EXPECT_TRUE(fs::exists(notice_file(folder.path(), "two")));
}

TEST(Notice, WhatIsNoneIsRefusedAndSetAside) {
  const TempFolder folder;
  const fs::path file = notice_file(folder.path(), "one");
  fs::create_directories(file.parent_path());
  const auto expect_refused = [&](const std::string& what) {
    EXPECT_THROW((void)read_notice(file), Error) << what;
    set_aside(file);
    EXPECT_FALSE(fs::exists(fs::symlink_status(file))) << what;
  };
  for (const char* text :
       {"", "{", "[]", "null", "{}", R"({"machine":5,"until":9,"notice":20})",
        R"({"machine":"x","until":9,"notice":1e300})", R"({"machine":"x","until":9,"notice":1e7})",
        R"({"machine":"x","until":9,"notice":-5})", R"({"machine":"x","until":9,"notice":true})",
        R"({"machine":"x","until":1e300,"notice":20})", "\xff\xfe"}) {
    write_file_atomic(file, text);
    expect_refused(text);
  }
  write_file_atomic(file, std::string(1'000'000, ' ') + "{}");
  expect_refused("long");
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  expect_refused("a FIFO");
  fs::create_symlink("/dev/zero", file);
  expect_refused("a device");
  fs::create_symlink("nowhere", file);
  expect_refused("a link that leads nowhere");
  fs::create_directory(file);
  write_file_atomic(file / "x", "y");
  expect_refused("a folder");
}

// Of a machine that never came back.
TEST(Notice, OneThatIsOverIsSwept) {
  const TempFolder folder;
  sweep_notices(folder.path());  // none yet
  Notice notice = notice_now("gone", 30);
  notice.machine = "x";
  notice.ends = wall_seconds() - 7200;
  write_notice(folder.path(), notice);
  notice.host = "late";
  notice.ends = wall_seconds() - 60;  // by a clock that may be wrong
  write_notice(folder.path(), notice);
  write_notice(folder.path(), notice_now("there", 30));
  const fs::path old = notice_file(folder.path(), "old"), damaged = notice_file(folder.path(), "x");
  for (const fs::path& file : {old, damaged}) write_file_atomic(file, "?");
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(24 * 30));
  sweep_notices(folder.path());
  const auto is_there = [&](const char* host) {
    return fs::exists(notice_file(folder.path(), host));
  };
  EXPECT_FALSE(is_there("gone"));
  EXPECT_FALSE(is_there("old"));
  for (const char* host : {"late", "there", "x"}) EXPECT_TRUE(is_there(host)) << host;
}

TEST(Notice, OneThatCameWithTheControllersStopIsForgotten) {
  const TempFolder folder;
  for (const auto& [ago, stays] : {std::pair{0.0, false}, {3.0, false}, {20.0, true}}) {
    Notice notice = notice_now("one", 30);
    notice.came -= ago;
    write_notice(folder.path(), notice);
    forget_notice_of_stop(folder.path(), "one", boot_seconds());
    EXPECT_EQ(fs::exists(notice_file(folder.path(), "one")), stays) << ago;
  }
  for (const double late : {14.0, 16.0}) {  // it was held up for so long
    Notice notice = notice_now("one", 30);
    notice.came -= 20;
    write_notice(folder.path(), notice);
    forget_notice_of_stop(folder.path(), "one", boot_seconds(), late);
    EXPECT_EQ(fs::exists(notice_file(folder.path(), "one")), late < 15) << late;
  }
  Notice notice = notice_now("one", 30);
  notice.machine = "another machine";
  write_notice(folder.path(), notice);
  forget_notice_of_stop(folder.path(), "one", notice.came);
  EXPECT_TRUE(fs::exists(notice_file(folder.path(), "one")));
}

}  // namespace
}  // namespace ductile::server
