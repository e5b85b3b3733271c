#include <atomic>
#include <cstdlib>
#include <map>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/testing.h"
#include "ductile/cluster/commit_queue.h"
#include "ductile/cluster/testing/failing_vfs.h"
#include "ductile/server/testing/small_disk.h"

// A store on a disk that fails at every single write, sync and truncation, and under a process that
// ends there. What holds: an acknowledged change is there, a change is there as a whole or not at
// all, one that is sent again is carried out once, and the file is whole.
namespace ductile::cluster {
namespace {

using testing::FailingVfs;

constexpr int kJobs = 12;
const std::string kSpec(3000, 'x');  // a page for each
constexpr bool refused_on_purpose(int i) { return i % 4 == 1; }

Submission named(int i) {
  Submission s;
  s.name = "job" + std::to_string(i);
  s.owner = "ada";
  return s;
}

// The request to submit and start job i.
void write_job(int i, Change& change) {
  const std::string key = std::to_string(i);
  if (change.answered("ada", key, "digest")) return;
  const JobId id = change.submit(named(i), kSpec, 1);
  change.set_phase(id, Phase::running, "There is room.", 2);
  change.set_holdings(id, {{"a", 1}}, "There is room.", 2);
  change.remember_answer("ada", key, "digest", std::to_string(id), 2);
  if (refused_on_purpose(i)) throw Error(ErrorCode::conflict, "on purpose");
}

// Submits jobs, some several together, and says for each what came of it.
template <class Say>
void work(const fs::path& file, const Say& say) {
  Store store(file, FailingVfs::name());
  CommitQueue queue(store);
  for (int i = 0; i < kJobs; ++i) {
    queue.post([i](Change& change) { write_job(i, change); },
               [&, i](const Error* error) { say(i, error); });
    if (i % 3 != 0) continue;
    try {
      queue.commit([](Change& change) { change.record(0, "mark", "{}", 3); });
    } catch (const Error& error) {
      say(-1, &error);
    }
  }
}

void expect_whole(const fs::path& file, const std::map<int, bool>& acknowledged, bool all) {
  Reader reader(file);
  std::map<int, int> there;
  for (const JobRecord& job : reader.live_jobs()) {
    ++there[std::stoi(job.submission.name.substr(3))];
    EXPECT_EQ(job.phase, Phase::running) << "a change is whole or absent";
    EXPECT_EQ(reader.holdings(job.id).size(), 1u);
    EXPECT_EQ(reader.spec(job.id), kSpec);
  }
  for (int i = 0; i < kJobs; ++i) {
    const auto said = acknowledged.find(i);
    EXPECT_LE(there[i], refused_on_purpose(i) ? 0 : 1) << "job " << i;
    const bool must = all || (said != acknowledged.end() && said->second);
    if (must && !refused_on_purpose(i)) {
      EXPECT_EQ(there[i], 1) << "job " << i;
    }
  }
  EXPECT_TRUE(reader.check().empty()) << ::testing::PrintToString(reader.check());
}

// After the fault, and after every request was sent again.
void expect_nothing_lost(const fs::path& file, const std::map<int, bool>& acknowledged) {
  { const Store again(file, FailingVfs::name()); }
  expect_whole(file, acknowledged, false);
  work(file, [](int i, const Error* error) { EXPECT_EQ(error != nullptr, refused_on_purpose(i)); });
  expect_whole(file, acknowledged, true);
}

// Each change of the file goes wrong in three ways, which the suite takes in turns: one for each
// change. The long form has all of them.
enum Way { kFull, kError, kKill, kWays };
bool is_tried(int64_t change, Way way) {
  return std::getenv("DUCTILE_ALL_SIZES") != nullptr || change % kWays == way;
}

int64_t changes_of_undisturbed_work() {
  const TempFolder folder;
  FailingVfs::heal();
  int failed = 0;
  work(folder.path() / "store.db", [&](int, const Error* error) { failed += error != nullptr; });
  EXPECT_EQ(failed, 3) << "those that fail on purpose";
  return FailingVfs::count();
}

TEST(StoreFaults, AFailureAtAnyChangeOfTheFileLosesNothing) {
  const int64_t changes = changes_of_undisturbed_work();
  ASSERT_GT(changes, 20);
  for (const FailingVfs::How how : {FailingVfs::How::full, FailingVfs::How::error}) {
    for (int64_t at = 1; at <= changes; ++at) {
      if (!is_tried(at, how == FailingVfs::How::full ? kFull : kError)) continue;
      const TempFolder folder;
      const fs::path file = folder.path() / "store.db";
      std::map<int, bool> acknowledged;
      FailingVfs::fail_at(at, how);
      try {
        work(file, [&](int i, const Error* error) {
          if (i >= 0) acknowledged[i] = error == nullptr;
          if (error != nullptr && error->code() != ErrorCode::conflict) {
            EXPECT_EQ(error->code(), ErrorCode::unavailable) << error->what();
            EXPECT_NE(std::string(error->what()).find(file.string()), std::string::npos)
                << error->what();
          }
        });
      } catch (const Error& error) {  // opening it
        EXPECT_EQ(error.code(), ErrorCode::unavailable) << error.what();
      }
      FailingVfs::heal();
      SCOPED_TRACE(
          fmt::format("{} at change {}", how == FailingVfs::How::full ? "full" : "error", at));
      expect_nothing_lost(file, acknowledged);
    }
  }
}

// What passes is waited for, so that none may be taken for another one.
TEST(StoreFaults, EachRefusalIsNamedWithItsRemedyAndPasses) {
  using How = FailingVfs::How;
  struct Case {
    How how;
    StoreFault fault;
    const char* remedy;
  };
  for (const Case& c : {Case{How::full, StoreFault::full, "free space"},
                        Case{How::quota, StoreFault::full, "free space"},
                        Case{How::read_only, StoreFault::read_only, "mount its disk for writing"},
                        Case{How::broken, StoreFault::failing, "dmesg"}}) {
    SCOPED_TRACE(to_string(c.fault));
    const TempFolder folder;
    FailingVfs::heal();
    Store store(folder.path() / "store.db", FailingVfs::name());
    CommitQueue queue(store);
    const auto submit = [&] {
      queue.commit([](Change& change) { change.submit(named(0), kSpec, 1); });
    };
    FailingVfs::fail_at(1, c.how);
    try {
      submit();
      ADD_FAILURE() << "it was written";
    } catch (const StoreError& error) {
      EXPECT_EQ(error.code(), ErrorCode::unavailable);
      EXPECT_EQ(to_string(error.fault()), to_string(c.fault)) << error.what();
      EXPECT_NE(std::string(error.what()).find(c.remedy), std::string::npos) << error.what();
    }
    FailingVfs::heal();
    submit();
    EXPECT_EQ(Reader(folder.path() / "store.db").live_jobs().size(), 1u);
  }
}

TEST(StoreFaults, AStoreThatAnotherProcessHasLockedIsNotFull) {
  const TempFolder folder;
  Store store(folder.path() / "store.db");
  store.database().execute("PRAGMA busy_timeout = 1");
  CommitQueue queue(store);
  Database other(folder.path() / "store.db", Database::Access::write);
  const Transaction transaction(other);
  try {
    queue.commit([](Change& change) { change.submit(named(0), kSpec, 1); });
    ADD_FAILURE() << "it was written";
  } catch (const StoreError& error) {
    EXPECT_EQ(to_string(error.fault()), "busy") << error.what();
    EXPECT_NE(std::string(error.what()).find("another process"), std::string::npos);
  }
}

// A service of it would only ever wait.
TEST(StoreFaults, AStoreThatMayNotBeWrittenIsNotOpened) {
  const TempFolder folder;
  const server::testing::SmallDisk disk(folder.path(), "4m");
  if (!disk.made()) GTEST_SKIP() << "a file system of its own cannot be made here";
  const fs::path file = folder.path() / "store.db";
  { const Store store(file); }
  ASSERT_TRUE(disk.let_be_written(false));
  try {
    const Store store(file);
    ADD_FAILURE() << "it was opened";
  } catch (const StoreError& error) {
    EXPECT_EQ(to_string(error.fault()), "read only");
    const std::string text = error.what();
    EXPECT_NE(text.find(file.string() + ": Read-only file system"), std::string::npos) << text;
    EXPECT_NE(text.find("mount its disk for writing"), std::string::npos) << text;
  }
  ASSERT_TRUE(disk.let_be_written(true));
  const Store store(file);
}

TEST(StoreFaults, AnEndOfTheProcessAtAnyChangeOfTheFileLosesNothingAcknowledged) {
  const int64_t changes = changes_of_undisturbed_work();
  for (int64_t at = 1; at <= changes; ++at) {
    if (!is_tried(at, kKill)) continue;
    const TempFolder folder;
    const fs::path file = folder.path() / "store.db";
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      FailingVfs::fail_at(at, FailingVfs::How::kill);
      try {
        work(file, [&](int i, const Error* error) {
          const signed char said[2] = {static_cast<signed char>(i), error == nullptr};
          if (write(ends[1], said, 2) != 2) _exit(1);
        });
      } catch (const Error&) {
      }
      _exit(0);
    }
    close(ends[1]);
    std::map<int, bool> acknowledged;
    signed char said[2];
    while (read(ends[0], said, 2) == 2) {
      if (said[0] >= 0) acknowledged[said[0]] = said[1] != 0;
    }
    close(ends[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_TRUE(WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
    SCOPED_TRACE(fmt::format("killed at change {}", at));
    expect_nothing_lost(file, acknowledged);
  }
}

// At any instant, and not only where a file changes.
TEST(StoreFaults, KillingTheProcessAtAnyInstantLosesNothingAcknowledged) {
  const TempFolder folder;
  const fs::path file = folder.path() / "store.db";
  std::map<int64_t, JobId> acknowledged;  // name to number
  int64_t next = 0;
  for (int round = 0; round < 20; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      Store store(file);
      CommitQueue queue(store);
      for (int64_t i = next;; ++i) {
        JobId id = 0;
        queue.commit(
            [&](Change& change) { id = change.submit(named(static_cast<int>(i)), kSpec, 1); });
        const int64_t said[2] = {i, id};
        if (write(ends[1], said, sizeof said) != sizeof said) _exit(1);
      }
    }
    close(ends[1]);
    int64_t said[2];
    for (int n = 0; n < 5 + round && read(ends[0], said, sizeof said) == sizeof said; ++n)
      acknowledged[said[0]] = said[1];
    usleep(static_cast<useconds_t>(137 * round));
    kill(pid, SIGKILL);
    while (read(ends[0], said, sizeof said) == sizeof said) acknowledged[said[0]] = said[1];
    close(ends[0]);
    waitpid(pid, nullptr, 0);
    ASSERT_FALSE(acknowledged.empty());
    next = acknowledged.rbegin()->first + 2;  // what was under way may be there or not
  }
  Reader reader(file);
  for (const auto& [name, id] : acknowledged)
    EXPECT_EQ(reader.job(id).submission.name, "job" + std::to_string(name));
  EXPECT_TRUE(reader.check().empty());
}

}  // namespace
}  // namespace ductile::cluster
