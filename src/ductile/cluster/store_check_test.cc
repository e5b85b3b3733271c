#include "ductile/cluster/store_check.h"

#include <atomic>
#include <csignal>
#include <fstream>
#include <functional>
#include <iterator>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/testing.h"
#include "ductile/cluster/store.h"
#include "ductile/server/testing/small_disk.h"

namespace ductile::cluster {
namespace {

using ductile::testing::code_of;

class StoreCheck : public ::testing::Test {
 protected:
  StoreCheck() {
    fs::create_directory(run);
    Store store(file);
    Transaction transaction(store.database());
    Change change(store.database());
    const JobId running = change.submit({.name = "a", .owner = "ada", .max_devices = 2}, "{}", 1);
    change.set_run(running, run.string(), 2);
    change.set_phase(running, Phase::running, "", 2);
    change.set_holdings(running, {{"n1", 1}, {"n2", 1}}, "", 2);
    const JobId ended = change.submit({.name = "b", .owner = "ada"}, "{}", 3);
    change.set_phase(ended, Phase::running, "", 4);
    change.set_holdings(ended, {{"n1", 1}}, "", 4);
    change.set_phase(ended, Phase::finished, "", 5);
    change.submit({.name = "c", .owner = "ada"}, "{}", 6);
    transaction.commit();
  }
  void damage(const std::string& sql) {
    Database database(file, Database::Access::write);
    database.execute(sql);
  }

  TempFolder folder;
  const fs::path file = folder.path() / "store.db", run = folder.path() / "run";
};

TEST_F(StoreCheck, AWholeStoreHasNoFaults) {
  const StoreReport report = check_store(folder.path());
  EXPECT_TRUE(report.faults.empty()) << report.faults.front();
  EXPECT_TRUE(report.losses.empty()) << report.losses.front();
  EXPECT_EQ(report.remedy, "");
  EXPECT_EQ(report.jobs, 3);
  EXPECT_EQ(report.live, 2);
  EXPECT_GT(report.events, 5);
}

TEST_F(StoreCheck, ARunDirectoryThatIsGoneIsNoFaultOfTheStore) {
  fs::remove(run);
  const StoreReport report = check_store(folder.path());
  EXPECT_TRUE(report.faults.empty());
  ASSERT_EQ(report.losses.size(), 1u);
  EXPECT_NE(report.losses[0].find("job 1 (a) is running: its run directory"), std::string::npos);
}

// People free their disks so.
TEST_F(StoreCheck, WhatAJobThatHasEndedLeftIsNotMissed) {
  damage("DELETE FROM holdings WHERE job = 1");
  damage("UPDATE jobs SET phase = 'finished', ended = 5 WHERE id = 1");
  fs::remove(run);
  const StoreReport report = check_store(folder.path());
  EXPECT_TRUE(report.losses.empty());
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("job 1 (a) is finished: its run directory"), std::string::npos);
}

TEST_F(StoreCheck, AServiceDoesNotBeginOnDamagedPages) {
  damage("PRAGMA wal_checkpoint(TRUNCATE)");
  const auto size = fs::file_size(file);
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  for (uintmax_t at = 5 * 4096; at + 4096 <= size && at < 8 * 4096; at += 4096) {
    bytes.seekp(static_cast<std::streamoff>(at));
    bytes << std::string(4096, '\xee');
  }
  bytes.close();
  EXPECT_EQ(code_of([&] { Store store(file); }), ErrorCode::data_loss);
}

TEST_F(StoreCheck, WhatJobsHoldIsWhatTheirEventsSay) {
  damage("DELETE FROM holdings WHERE node = 'n2'");
  StoreReport report = check_store(folder.path());
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_NE(report.faults[0].find("job 1: holds other devices than its last event says"),
            std::string::npos);
  EXPECT_NE(report.remedy.find("backup"), std::string::npos);
  damage("DELETE FROM holdings");
  report = check_store(folder.path());
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_NE(report.faults[0].find("holds nothing"), std::string::npos);
}

// The store says that it runs before the directory is made.
TEST_F(StoreCheck, ARunThatHasJustBegunIsNotMissedYet) {
  {
    Store store(file);
    Transaction transaction(store.database());
    Change change(store.database());
    change.set_run(3, (folder.path() / "later").string(), wall_seconds());
    change.set_phase(3, Phase::running, "", wall_seconds());
    transaction.commit();
  }
  StoreReport report = check_store(folder.path());
  EXPECT_TRUE(report.losses.empty()) << report.losses.front();
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("job 3 (c) is running: its run directory"), std::string::npos);
  EXPECT_NE(report.notes[0].find("look again"), std::string::npos);
  damage("UPDATE jobs SET started = started - 600 WHERE id = 3");
  report = check_store(folder.path());
  EXPECT_TRUE(report.notes.empty());
  EXPECT_EQ(report.losses.size(), 1u);
}

// Formerly a store was called damaged whose jobs changed between two of the looks at it.
TEST_F(StoreCheck, AStoreWhoseJobsChangeMeanwhileIsWhole) {
  constexpr int kJobs = 20, kChecks = 40;
  const fs::path runs = folder.path() / "runs";
  Store store(file);
  const auto change = [&](const std::function<void(Change&)>& write) {
    Transaction transaction(store.database());
    Change change(store.database());
    write(change);
    transaction.commit();
  };
  const auto begin_jobs = [&] {
    std::vector<JobId> jobs;
    change([&](Change& change) {
      const double now = wall_seconds();
      for (int i = 0; i < kJobs; ++i) {
        const JobId id = change.submit({.name = "x", .owner = "ada", .max_devices = 2}, "{}", now);
        jobs.push_back(id);
        change.set_run(id, (runs / fmt::format("{}-x", id)).string(), now);
        change.set_phase(id, Phase::running, "", now);
        change.set_holdings(id, {{"n1", 1}}, "", now);
      }
    });
    for (const JobId id : jobs) {
      const fs::path made = runs / fmt::format("{}-x", id);
      fs::create_directories(made);
      write_file_atomic(made / "orders.json", "{}");
    }
    return jobs;
  };
  std::atomic<int> rounds{0};
  const std::jthread writer([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const std::vector<JobId> jobs = begin_jobs();
      for (const int64_t devices : {2, 1, 2})
        change([&](Change& change) {
          for (const JobId id : jobs) change.set_holdings(id, {{"n2", devices}}, "", 7);
        });
      change([&](Change& change) {
        for (const JobId id : jobs) change.set_phase(id, Phase::finished, "", wall_seconds());
      });
      ++rounds;
    }
  });
  for (int checks = 0; checks < kChecks || rounds < 3; ++checks) {
    const StoreReport report = check_store(folder.path());
    ASSERT_TRUE(report.faults.empty()) << report.faults.front();
    ASSERT_TRUE(report.losses.empty()) << report.losses.front();
    EXPECT_EQ(report.jobs % kJobs, 3) << "they are submitted together";
  }
}

// A copy of store.db alone, without what its log had.
TEST_F(StoreCheck, AStoreThatIsOlderThanTheRunsIsNoWholeOne) {
  const fs::path runs = folder.path() / "runs";
  fs::create_directories(runs / "7-later");
  fs::create_directories(runs / "8-nothing");  // nobody's run
  write_file_atomic(runs / "7-later" / "orders.json", "{}");
  damage("UPDATE jobs SET run = '" + (runs / "1-a").string() + "' WHERE id = 1");
  fs::create_directories(runs / "1-a");
  StoreReport report = check_store(folder.path());
  EXPECT_TRUE(report.is_behind);
  ASSERT_EQ(report.losses.size(), 1u);
  EXPECT_NE(report.losses[0].find("knows jobs up to 3, and"), std::string::npos);
  EXPECT_NE(report.losses[0].find("has runs up to job 7: "), std::string::npos);
  EXPECT_NE(report.losses[0].find("numbered from 8 on"), std::string::npos) << report.losses[0];
  fs::remove_all(runs / "7-later");
  fs::create_directories(runs / "3-c");  // of a job that never began, by the store
  write_file_atomic(runs / "3-c" / "job.toml", "");
  report = check_store(folder.path());
  ASSERT_EQ(report.losses.size(), 1u);
  EXPECT_NE(report.losses[0].find("job 3 (c) is queued and has never begun, and its run"),
            std::string::npos)
      << report.losses[0];
}

// While a writer lives, with what its log alone has.
TEST_F(StoreCheck, ABackupHasAllThatWasCommitted) {
  const fs::path copy = folder.path() / "backup" / "store.db";
  fs::create_directory(copy.parent_path());
  Store store(file);
  for (int i = 0; i < 3; ++i) {
    Transaction transaction(store.database());
    Change(store.database()).submit({.name = "more", .owner = "ada"}, "{}", 7);
    transaction.commit();
  }
  Transaction open(store.database());
  Change(store.database()).submit({.name = "not yet", .owner = "ada"}, "{}", 7);
  back_up_store(folder.path(), copy);
  open.commit();
  EXPECT_EQ(fs::status(copy).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(std::distance(fs::directory_iterator(copy.parent_path()), {}), 1);
  EXPECT_EQ(code_of([&] { back_up_store(folder.path(), copy); }), ErrorCode::conflict);
  EXPECT_EQ(code_of([&] { back_up_store(folder.path() / "none", copy); }), ErrorCode::not_found);
  { const Store restored(copy); }  // a service can begin on it
  const StoreReport report = check_store(copy.parent_path());
  EXPECT_TRUE(report.faults.empty()) << report.faults.front();
  EXPECT_EQ(report.jobs, 6);
  EXPECT_EQ(Reader(copy).last_job(), 6);
}

// Formerly the store was blamed.
TEST_F(StoreCheck, ABackupThatFindsNoRoomNamesItsOwnDisk) {
  const TempFolder there;
  server::testing::SmallDisk disk(there.path(), "16m");
  if (!disk.made() || !disk.fill()) GTEST_SKIP() << "a file system of its own cannot be made here";
  const fs::path copy = there.path() / "copy.db";
  std::string text;
  EXPECT_EQ(code_of([&] { back_up_store(folder.path(), copy); }, &text), ErrorCode::unavailable);
  EXPECT_TRUE(text.starts_with(copy.string() + ": ")) << text;
  EXPECT_EQ(text.find(file.string()), std::string::npos) << text;
  EXPECT_FALSE(fs::exists(copy));
  disk.give_back();
}

// Larger files may not be written by this process while it lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : signal_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, signal_);
  }

 private:
  sighandler_t signal_;
  rlimit before_{};
};

// Formerly the store's disk was said to fail.
TEST_F(StoreCheck, ABackupThatCannotBeWrittenNamesItsOwnFile) {
  const Store store(file);  // whose shared memory is there, and need not grow
  const fs::path copy = folder.path() / "copy" / "store.db";
  fs::create_directory(copy.parent_path());
  std::string text;
  ErrorCode code{};
  {
    const FileSizeLimit limit(40 * 1024);
    code = code_of([&] { back_up_store(folder.path(), copy); }, &text);
  }
  EXPECT_EQ(code, ErrorCode::unavailable);
  EXPECT_TRUE(text.starts_with(copy.string() + ": ")) << text;
  EXPECT_NE(text.find("File too large"), std::string::npos) << text;
  EXPECT_EQ(text.find(file.string()), std::string::npos) << text;
  EXPECT_TRUE(fs::is_empty(copy.parent_path()));
}

// Before a service has begun on it: what is not known in it is what happened since the first one.
TEST_F(StoreCheck, ABackupOfABackupKeepsTheOlderTime) {
  const fs::path restored = folder.path() / "restored", again = folder.path() / "again.db";
  fs::create_directory(restored);
  back_up_store(folder.path(), restored / "store.db");
  EXPECT_FALSE(Reader(restored / "store.db").memory(kBackupMark).empty());
  {
    Store store(restored / "store.db");
    Transaction transaction(store.database());
    Change(store.database()).set_memory(kBackupMark, "an earlier day");
    transaction.commit();
  }
  back_up_store(restored, again);
  EXPECT_EQ(Reader(again).memory(kBackupMark), "an earlier day");
}

TEST_F(StoreCheck, AnEmptyFileIsNoStore) {
  std::ofstream(file, std::ios::trunc).flush();
  fs::remove(file.string() + "-wal");
  for (const auto& look :
       {std::function<void()>([&] { check_store(folder.path()); }),
        std::function<void()>([&] { back_up_store(folder.path(), folder.path() / "copy.db"); })}) {
    std::string text;
    EXPECT_EQ(code_of(look, &text), ErrorCode::data_loss);
    EXPECT_NE(text.find("is empty"), std::string::npos) << text;
    EXPECT_EQ(text.find("up to date"), std::string::npos) << text;
  }
  EXPECT_FALSE(fs::exists(folder.path() / "copy.db"));
}

TEST_F(StoreCheck, WhatIsNoFileIsCalledWhatItIs) {
  const auto text_of = [&] {
    std::string text;
    EXPECT_EQ(code_of([&] { check_store(folder.path()); }, &text), ErrorCode::invalid_argument);
    EXPECT_EQ(code_of([&] { Store store(file); }), ErrorCode::invalid_argument);
    EXPECT_EQ(code_of([&] { back_up_store(folder.path(), folder.path() / "copy.db"); }),
              ErrorCode::invalid_argument);
    return text;
  };
  fs::remove(file);
  fs::create_directory(file);
  EXPECT_NE(text_of().find("is a folder, and a store is a file"), std::string::npos);
  fs::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  EXPECT_NE(text_of().find("is a FIFO, and a store is a file"), std::string::npos);
}

// Formerly they took the unfinished file from each other: some said that they were done, and left
// an empty one.
TEST_F(StoreCheck, OfBackupsToOneNameAtOnceOneIsMadeAndWhole) {
  const fs::path there = folder.path() / "backup";
  const Store store(file);
  for (int round = 0; round < 10; ++round) {
    fs::remove_all(there);
    fs::create_directory(there);
    std::ofstream(there / "store.db.part") << "of somebody else";
    std::atomic<int> made{0};
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 4; ++i)
        threads.emplace_back([&] {
          try {
            back_up_store(folder.path(), there / "store.db");
            ++made;
            EXPECT_GT(fs::file_size(there / "store.db"), 0);
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::conflict) << error.what();
          }
        });
    }
    EXPECT_EQ(made, 1);
    EXPECT_EQ(read_file(there / "store.db.part"), "of somebody else");
    EXPECT_EQ(std::distance(fs::directory_iterator(there), {}), 2);
    EXPECT_EQ(check_store(there).jobs, 3);
  }
}

TEST_F(StoreCheck, DamageAbsenceAndAnotherVersionAreToldApart) {
  EXPECT_EQ(code_of([&] { check_store(folder.path() / "none"); }), ErrorCode::not_found);
  damage("PRAGMA user_version = 1000");
  EXPECT_EQ(code_of([&] { check_store(folder.path()); }), ErrorCode::conflict);
  damage("PRAGMA user_version = 1");
  EXPECT_EQ(code_of([&] { check_store(folder.path()); }), ErrorCode::conflict);
  std::ofstream(file) << std::string(100000, 'x');
  EXPECT_EQ(code_of([&] { check_store(folder.path()); }), ErrorCode::data_loss);
}

// Bytes in the middle of the file, as a bad disk leaves them.
TEST_F(StoreCheck, DamagedPagesAreFound) {
  damage("PRAGMA wal_checkpoint(TRUNCATE)");
  const auto size = fs::file_size(file);
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  for (uintmax_t at = 4096; at + 64 < size; at += 4096) {
    bytes.seekp(static_cast<std::streamoff>(at));
    bytes << std::string(64, '\xee');
  }
  bytes.close();
  try {
    const StoreReport report = check_store(folder.path());
    EXPECT_FALSE(report.faults.empty());
    EXPECT_NE(report.remedy, "");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data_loss) << error.what();
  }
}

}  // namespace
}  // namespace ductile::cluster
