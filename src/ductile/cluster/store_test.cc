#include "ductile/cluster/store.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/rng.h"
#include "ductile/base/testing.h"
#include "ductile/cluster/testing/failing_vfs.h"
#include "ductile/cluster/testing/pages.h"

namespace ductile::cluster {
namespace {

using ::ductile::testing::code_of;
using ::ductile::testing::text_of;

constexpr Phase kPhases[] = {Phase::queued,   Phase::running, Phase::paused,
                             Phase::finished, Phase::failed,  Phase::cancelled};

class StoreFile : public ::testing::Test {
 protected:
  StoreFile()
      : store(std::make_unique<Store>(file, testing::FailingVfs::name())),
        change(store->database()) {}

  JobId submit(const std::string& name, const std::string& owner = "ada") {
    Submission s;
    s.name = name;
    s.owner = owner;
    s.team = "vision";
    return change.submit(s, R"({"any": "text"})", ++now);
  }

  TempFolder folder;
  const fs::path file = folder.path() / "store.db";
  std::unique_ptr<Store> store;
  Change change;
  double now = 1e9;
};

TEST_F(StoreFile, AJobGoesThroughItsPhases) {
  const JobId id = submit("resnet");
  Reader reader(file);
  JobRecord job = reader.job(id);
  EXPECT_EQ(job.submission.name, "resnet");
  EXPECT_EQ(reader.spec(id), R"({"any": "text"})");
  EXPECT_EQ(job.phase, Phase::queued);
  EXPECT_FALSE(job.started || job.ended);
  change.set_phase(id, Phase::running, "It was given 2 devices.", 5);
  EXPECT_EQ(change.set_holdings(id, {{"a", 1}, {"b", 1}}, "Both were free.", 6), 1);
  EXPECT_EQ(reader.holdings(id), (std::vector<Holding>{{"a", 1}, {"b", 1}}));
  EXPECT_EQ(change.set_holdings(id, {{"a", 2}}, "It shrank.", 7), 2);
  change.set_phase(id, Phase::queued, "It made room.", 8);
  EXPECT_TRUE(reader.holdings(id).empty()) << "only a running job holds devices";
  change.set_phase(id, Phase::running, "It is its turn again.", 9);
  change.set_phase(id, Phase::finished, "It is done.", 10);
  job = reader.job(id);
  EXPECT_EQ(job.phase, Phase::finished);
  EXPECT_EQ(job.started, 5);
  EXPECT_EQ(job.ended, 10);
  EXPECT_EQ(job.reason, "It is done.");
  std::string kinds;
  for (const Event& event : reader.events(0, 100, id)) kinds += event.kind + " ";
  EXPECT_EQ(kinds, "submitted running allocation allocation queued running finished ");
  EXPECT_EQ(job.revision, reader.last_event());
  EXPECT_TRUE(reader.check().empty());
}

TEST_F(StoreFile, WhatHasEndedStaysAsItIs) {
  for (const Phase from : kPhases) {
    for (const Phase to : kPhases) {
      const JobId id = submit("job");
      if (from != Phase::queued) {
        if (from == Phase::finished) change.set_phase(id, Phase::running, "", 1);
        change.set_phase(id, from, "", 2);
      }
      const ErrorCode code = may_follow(from, to)
                                 ? (change.set_phase(id, to, "", 3), ErrorCode::internal)
                                 : code_of([&] { change.set_phase(id, to, "", 3); });
      EXPECT_EQ(code, may_follow(from, to) ? ErrorCode::internal : ErrorCode::conflict);
      if (has_ended(from)) {
        EXPECT_FALSE(may_follow(from, to));
        EXPECT_EQ(code_of([&] { change.set_wish(id, Wish::run, "ada", 4); }), ErrorCode::conflict);
      }
    }
  }
  EXPECT_TRUE(Reader(file).check().empty());
}

TEST_F(StoreFile, ACancelledJobIsNotWantedAgain) {
  const JobId id = submit("job");
  change.set_wish(id, Wish::pause, "ada", 1);
  change.set_wish(id, Wish::run, "ada", 1);
  change.set_wish(id, Wish::cancel, "ada", 1);
  const Revision revision = Reader(file).job(id).revision;
  change.set_wish(id, Wish::cancel, "ada", 2);
  EXPECT_EQ(Reader(file).job(id).revision, revision) << "the same wish again is no event";
  EXPECT_EQ(code_of([&] { change.set_wish(id, Wish::run, "ada", 2); }), ErrorCode::conflict);
}

TEST_F(StoreFile, AJobIsFoundByNumberOrByName) {
  const JobId first = submit("resnet"), second = submit("resnet"), third = submit("resnet");
  Reader reader(file);
  EXPECT_EQ(reader.find("2").id, second);
  EXPECT_EQ(reader.find("resnet").id, third);
  change.set_phase(third, Phase::cancelled, "", 1);
  EXPECT_EQ(reader.find("resnet").id, second) << "one that has not ended comes first";
  change.set_phase(first, Phase::cancelled, "", 1);
  change.set_phase(second, Phase::cancelled, "", 1);
  EXPECT_EQ(reader.find("resnet").id, third);
  submit("transformer");
  EXPECT_EQ(text_of([&] { reader.find("transfomer"); }, ErrorCode::not_found),
            "there is no job \"transfomer\"; did you mean \"transformer\"?");
  submit("part-0");
  submit("part-10");
  submit("parts-x");
  EXPECT_EQ(text_of([&] { reader.find("part"); }, ErrorCode::not_found),
            "there is no job \"part\", but jobs of an array of that name, such as \"part-10\": "
            "'part-*' names all of them that have not ended");
  EXPECT_EQ(text_of([&] { reader.find("parts"); }, ErrorCode::not_found).find("array"),
            std::string::npos);
  EXPECT_EQ(code_of([&] { reader.job(99); }), ErrorCode::not_found);
  EXPECT_EQ(code_of([&] { reader.find("99"); }), ErrorCode::not_found);
}

TEST_F(StoreFile, ANumberIsTriedBeforeAName) {
  const JobId first = submit("7");
  Reader reader(file);
  EXPECT_EQ(reader.find("7").id, first);
  submit("1");
  EXPECT_EQ(reader.find("1").id, first);
  for (const char* none : {"", "-1", " 1", "1x", "99999999999999999999999"})
    EXPECT_EQ(code_of([&] { reader.find(none); }), ErrorCode::not_found) << none;
}

TEST_F(StoreFile, NoEventIsOfAnUnknownJob) {
  EXPECT_EQ(code_of([&] { change.record(9, "note", "{}", 1); }), ErrorCode::not_found);
}

TEST_F(StoreFile, PagesOfAListMissAndRepeatNothing) {
  Rng rng(1);
  std::vector<JobId> wanted;
  for (int i = 0; i < 200; ++i) {
    const JobId id = submit("job", rng.below(2) == 0 ? "ada" : "bo");
    if (rng.below(3) == 0) change.set_phase(id, Phase::running, "", now);
  }
  Reader reader(file);
  for (const bool live : {false, true}) {
    JobFilter filter;
    filter.owner = "bo";
    filter.phases = {Phase::running};
    filter.live = live;
    const std::vector<JobRecord> paged = testing::all_pages(reader, filter);
    std::vector<JobRecord> all;
    for (const JobRecord& job : reader.live_jobs()) {
      if (job.submission.owner == "bo" && job.phase == Phase::running) all.push_back(job);
    }
    std::ranges::reverse(all);
    EXPECT_EQ(paged, all);
    EXPECT_GT(all.size(), 7u);
  }
}

TEST_F(StoreFile, ARequestThatIsSentTwiceIsCarriedOutOnce) {
  EXPECT_EQ(change.answered("ada", "k1", "d1"), std::nullopt);
  change.remember_answer("ada", "k1", "d1", "17", 100);
  EXPECT_EQ(change.answered("ada", "k1", "d1"), "17");
  EXPECT_EQ(change.answered("bo", "k1", "d1"), std::nullopt) << "keys are a principal's own";
  EXPECT_EQ(code_of([&] { change.answered("ada", "k1", "d2"); }), ErrorCode::conflict);
  change.forget_answers(101);
  EXPECT_EQ(change.answered("ada", "k1", "d2"), std::nullopt);
}

TEST_F(StoreFile, NodesAreDrainedAndTakenBack) {
  change.drain("n1", "a fan is loud", 5);
  change.drain("n1", "the fan stopped", 6);
  EXPECT_EQ(Reader(file).drains(), (std::vector<Drain>{{"n1", 6, "the fan stopped", 6, {}}}));
  change.undrain("n1", 7);
  EXPECT_TRUE(Reader(file).drains().empty());
  EXPECT_EQ(code_of([&] { change.undrain("n1", 8); }), ErrorCode::not_found);
  change.drain("n1", "a new disk", 10, 5, 20);
  EXPECT_EQ(Reader(file).drains(), (std::vector<Drain>{{"n1", 10, "a new disk", 15, 35}}));
  EXPECT_FALSE(Reader(file).drains().front().holds(14));
  EXPECT_TRUE(Reader(file).drains().front().holds(15));
  change.drain("n2", "at once", 20);
  EXPECT_TRUE(Reader(file).drains().back().holds(20 - 3600)) << "the clock was set back";
  change.undrain("n2", 20);
  change.end_drains(34);
  EXPECT_EQ(Reader(file).drains().size(), 1u);
  change.end_drains(35);
  EXPECT_TRUE(Reader(file).drains().empty());
}

TEST_F(StoreFile, OneServerAtATimeWrites) {
  EXPECT_NE(text_of([&] { Store second(file); }, ErrorCode::conflict)
                .find(fmt::format("process {}", getpid())),
            std::string::npos);
  fs::create_symlink(file, folder.path() / "link.db");
  EXPECT_EQ(code_of([&] { Store second(folder.path() / "link.db"); }), ErrorCode::conflict);
  store.reset();
  Store third(file);
}

TEST_F(StoreFile, AFileThatOthersMayReadBecomesItsUsersOwn) {
  store.reset();
  fs::permissions(file, fs::perms(0644));
  const Store again(file);
  EXPECT_EQ(fs::status(file).permissions(), fs::perms(0600));
}

TEST_F(StoreFile, AnotherProgramsFileIsLeftAsItIs) {
  const fs::path other = folder.path() / "bookmarks.db";
  { Database(other, Database::Access::write).execute("CREATE TABLE bookmarks (url TEXT)"); }
  fs::permissions(other, fs::perms(0644));
  const std::string before = read_file(other);
  EXPECT_EQ(code_of([&] { Store second(other); }), ErrorCode::data_loss);
  EXPECT_EQ(read_file(other), before) << "not even the mode of its journal is changed";
  EXPECT_EQ(fs::status(other).permissions(), fs::perms(0644));
}

TEST_F(StoreFile, WordsThatNobodyWroteAreDamage) {
  const JobId id = submit("job");
  store->database().execute("PRAGMA ignore_check_constraints = ON");
  store->database().execute("UPDATE jobs SET phase = 'runninh'");
  Reader reader(file);
  EXPECT_EQ(code_of([&] { reader.job(id); }), ErrorCode::data_loss);
  EXPECT_EQ(code_of([&] { reader.jobs({}, 0, 10); }), ErrorCode::data_loss);
}

// A server that is killed while it starts a process leaves the lock to that one for a moment.
TEST_F(StoreFile, TheLockOfAServerThatIsGoneIsWaitedFor) {
  store.reset();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t server = fork();
  if (server == 0) {
    Store mine(file, testing::FailingVfs::name());
    if (fork() == 0) {  // holds the lock with it, and after it
      if (write(ends[1], "x", 1) != 1) _exit(1);
      usleep(300000);
      _exit(0);
    }
    pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  close(ends[0]);
  close(ends[1]);
  Store next(file, testing::FailingVfs::name());
}

// Who is in the way, and what helps, also where it was told to stop and has not ended yet.
TEST_F(StoreFile, WhoIsRefusedLearnsWhomToEnd) {
  const std::string pid = std::to_string(::getpid());
  const auto refusal = [&] { return text_of([&] { Store second(file); }, ErrorCode::conflict); };
  const std::string usual = refusal();
  EXPECT_NE(usual.find("(process " + pid + ")"), std::string::npos) << usual;
  EXPECT_NE(usual.find("(kill " + pid + ")"), std::string::npos) << usual;
  store->note_stop();
  const std::string stops = refusal();
  EXPECT_NE(stops.find("(process " + pid + "), which was told to stop"), std::string::npos)
      << stops;
  EXPECT_NE(stops.find("kill -9 " + pid), std::string::npos) << stops;
  store.reset();
  Store next(file);
}

TEST_F(StoreFile, DamageIsFoundByTheCheck) {
  const JobId id = submit("job");
  Database& raw = store->database();
  raw.execute("PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON");
  raw.run("UPDATE jobs SET revision = 99 WHERE id = ?", id);
  raw.run("INSERT INTO holdings VALUES (?, 'n', 1), (77, 'n', 1)", id);
  raw.execute("DELETE FROM events WHERE kind = 'submitted'");
  raw.execute("DELETE FROM specs");
  raw.execute("INSERT INTO events (time, job, kind, body) VALUES (1, NULL, 'note', '{')");
  const auto found = Reader(file).check();
  ASSERT_EQ(found.size(), 6u) << ::testing::PrintToString(found);
}

void expect_newest_runs(Reader& reader, const std::map<JobId, JobRecord>& twin) {
  std::vector<std::string> runs;
  for (const auto& [id, job] : twin)
    if (!job.run.empty()) runs.insert(runs.begin(), job.run);
  EXPECT_EQ(reader.newest_runs(1000), runs);
  ASSERT_GT(runs.size(), 3u);
  runs.resize(3);
  EXPECT_EQ(reader.newest_runs(3), runs);
}

// The store against maps, which forget nothing and are slow and obvious.
TEST_F(StoreFile, AgreesWithAnObviousTwinThroughRandomChanges) {
  Rng rng(7);
  std::map<JobId, JobRecord> twin;
  std::map<JobId, std::map<std::string, int64_t>> held;
  int64_t events = 0;
  for (int step = 0; step < 2000; ++step) {
    ++now;
    const JobId id = twin.empty() ? 0 : 1 + static_cast<JobId>(rng.below(twin.size()));
    const uint64_t what = id == 0 ? 0 : rng.below(6);
    if (what == 0 || twin.size() < 3) {
      const JobId made = submit("job" + std::to_string(rng.below(5)));
      JobRecord job;
      job.id = made;
      job.submission = Reader(file).job(made).submission;
      job.submitted = now;
      job.reason = "It was just submitted.";
      job.revision = ++events;
      ASSERT_TRUE(twin.emplace(made, job).second) << "numbers are never used twice";
      continue;
    }
    JobRecord& job = twin.at(id);
    const std::string reason = "reason " + std::to_string(step);
    if (has_ended(job.phase) && what > 2) {
      const auto any = [&] {
        if (what == 3) change.set_holdings(id, {}, reason, now);
        if (what == 4) change.set_reason(id, reason, now);
        if (what == 5) change.set_run(id, reason, now);
      };
      EXPECT_EQ(code_of(any), ErrorCode::conflict) << "what has ended stays as it is";
      continue;
    }
    if (what == 1 || what == 2) {
      const Phase to = kPhases[rng.below(std::size(kPhases))];
      if (!may_follow(job.phase, to)) {
        EXPECT_EQ(code_of([&] { change.set_phase(id, to, reason, now); }), ErrorCode::conflict);
        continue;
      }
      change.set_phase(id, to, reason, now);
      job.phase = to;
      job.reason = reason;
      if (to == Phase::running && !job.started) job.started = now;
      if (has_ended(to)) job.ended = now;
      if (to != Phase::running) held.erase(id);
    } else if (what == 3) {
      if (job.phase != Phase::running) continue;
      std::vector<Holding> holdings;
      held[id].clear();
      for (const char* node : {"a", "b", "c"}) {
        if (rng.below(2) == 0) continue;
        holdings.push_back({node, 1 + static_cast<int64_t>(rng.below(4))});
        held[id][node] = holdings.back().devices;
      }
      EXPECT_EQ(change.set_holdings(id, holdings, reason, now), ++job.generation);
      job.reason = reason;
    } else if (what == 4) {
      change.set_reason(id, reason, now);
      job.reason = reason;
    } else {
      change.set_run(id, reason, now);
      job.run = reason;
    }
    job.revision = ++events;
  }
  store.reset();
  Reader reader(file);
  expect_newest_runs(reader, twin);
  for (const auto& [id, job] : twin) {
    EXPECT_EQ(reader.job(id), job);
    std::map<std::string, int64_t> holdings;
    for (const Holding& h : reader.holdings(id)) holdings[h.node] = h.devices;
    EXPECT_EQ(holdings, held[id]);
  }
  EXPECT_EQ(reader.last_event(), events);
  EXPECT_EQ(reader.events(0, events + 1).size(), static_cast<size_t>(events));
  std::map<Phase, int64_t> counts;
  for (const auto& [id, job] : twin) ++counts[job.phase];
  EXPECT_EQ(reader.count_by_phase(), counts);
  EXPECT_TRUE(reader.check().empty()) << ::testing::PrintToString(reader.check());
}

}  // namespace
}  // namespace ductile::cluster
