// Jobs that begin after others or are held, lists that are narrowed, and stores of an older
// Ductile.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/base/testing.h"
#include "ductile/cluster/schema.h"
#include "ductile/cluster/store.h"
#include "ductile/cluster/testing/pages.h"

namespace ductile::cluster {
namespace {

using ::ductile::testing::code_of;
using ::ductile::testing::text_of;

class StoreOrder : public ::testing::Test {
 protected:
  JobId submit(const std::string& name, const Beginning& beginning = {},
               const std::string& owner = "ada", const std::string& team = "vision") {
    Submission s;
    s.name = name;
    s.owner = owner;
    s.team = team;
    return change.submit(s, "{}", ++now, beginning);
  }
  JobId submit_after(std::vector<JobId> after) {
    Beginning beginning;
    beginning.after = std::move(after);
    return submit("later", beginning);
  }
  void end(JobId id, Phase phase) {
    change.set_phase(id, Phase::running, "", ++now);
    change.set_phase(id, phase, "", ++now);
  }
  std::vector<JobId> awaited_by(JobId id) {
    std::vector<JobId> out;
    for (const EarlierJob& job : Reader(file).awaited_by(id)) out.push_back(job.id);
    return out;
  }
  std::string kinds_of(JobId id) {
    std::string out;
    for (const Event& event : Reader(file).events(0, 100, id)) out += event.kind + " ";
    return out;
  }

  TempFolder folder;
  const fs::path file = folder.path() / "store.db";
  Store store{file};
  Change change{store.database()};
  double now = 1e9;
};

TEST_F(StoreOrder, AJobWaitsForWhatHasNotFinished) {
  const JobId first = submit("first"), second = submit("second"), done = submit("done");
  end(done, Phase::finished);
  const JobId later = submit_after({second, done, first, second});
  EXPECT_EQ(awaited_by(later), (std::vector<JobId>{first, second}));
  EXPECT_EQ(Reader(file).awaited_by(later).front(), (EarlierJob{first, "first", Phase::queued}));
  const Revision before = Reader(file).job(later).revision;
  end(first, Phase::finished);
  EXPECT_EQ(awaited_by(later), std::vector<JobId>{second});
  EXPECT_GT(Reader(file).job(later).revision, before) << "what changes a job is an event of it";
  end(second, Phase::finished);
  EXPECT_TRUE(awaited_by(later).empty());
  EXPECT_EQ(kinds_of(later), "submitted after after ");
  EXPECT_TRUE(Reader(file).check().empty()) << ::testing::PrintToString(Reader(file).check());
}

// By its row a service that was killed in between still finds what is never to begin.
TEST_F(StoreOrder, WhatFailedIsStillWaitedForUntilTheLaterJobEnds) {
  const JobId first = submit("first"), later = submit_after({first}), last = submit_after({later});
  end(first, Phase::failed);
  EXPECT_EQ(Reader(file).awaited_by(later).front().phase, Phase::failed);
  change.set_phase(later, Phase::cancelled, "", ++now);
  EXPECT_TRUE(awaited_by(later).empty());
  EXPECT_EQ(awaited_by(last), std::vector<JobId>{later});
  Retention none;
  none.jobs = 1;
  change.prune(none, now, 100);
  EXPECT_EQ(code_of([&] { Reader(file).job(first); }), ErrorCode::not_found);
  none.seconds = 1;
  none.jobs = 0;
  change.prune(none, now + 100, 100);
  EXPECT_EQ(Reader(file).awaited_by(last).front(), (EarlierJob{later, "", {}}));
  EXPECT_TRUE(Reader(file).check().empty()) << ::testing::PrintToString(Reader(file).check());
}

TEST_F(StoreOrder, WhatWouldNeverBeginIsRefused) {
  const JobId failed = submit("first");
  end(failed, Phase::failed);
  EXPECT_EQ(text_of([&] { submit_after({failed}); }, ErrorCode::conflict),
            "job 1 (first) is failed, so what is to begin after it has finished would never begin");
  EXPECT_EQ(code_of([&] { submit_after({2}); }), ErrorCode::not_found) << "not even its own number";
  EXPECT_EQ(Reader(file).live_jobs().size(), 0u);
  EXPECT_EQ(submit("second"), 2) << "nothing of a refused one is left";
}

TEST_F(StoreOrder, NothingBeginsAfterAServiceWhichBeginsAfterOthersItself) {
  const JobId first = submit("first");
  Submission s;
  s.name = "api";
  s.owner = "ada";
  s.kind = "serve";
  Beginning beginning;
  beginning.after = {first};
  const JobId service = change.submit(s, "{}", ++now, beginning);
  EXPECT_EQ(awaited_by(service), std::vector<JobId>{first});
  EXPECT_EQ(text_of(
                [&] {
                  submit_after({first, service});
                },
                ErrorCode::conflict),
            "job 2 (api) answers requests until it is cancelled, so what is to begin after it has "
            "finished would never begin");
}

TEST_F(StoreOrder, WhatHasFinishedBeforeAJobIsAllThatItWaitsForAndThatThatWaitsFor) {
  const JobId first = submit("first"), other = submit("other");
  const JobId second = submit_after({first}), third = submit_after({second, first});
  Reader reader(file);
  EXPECT_EQ(reader.finished_before({third}), (std::set<JobId>{first, second, third}));
  EXPECT_EQ(reader.finished_before({second, other}), (std::set<JobId>{first, other, second}));
  EXPECT_TRUE(reader.finished_before({}).empty());
}

TEST_F(StoreOrder, AHeldJobIsPausedByWhoeverSubmittedIt) {
  Beginning held;
  held.held = true;
  const JobId id = submit("job", held);
  JobRecord job = Reader(file).job(id);
  EXPECT_EQ(job.phase, Phase::paused);
  EXPECT_EQ(job.wish, Wish::pause);
  EXPECT_EQ(job.held_by, "ada");
  EXPECT_EQ(job.reason, "It is held by ada, who submitted it so.");
  EXPECT_EQ(kinds_of(id), "submitted paused ");
  change.set_wish(id, Wish::run, "bo", ++now);
  EXPECT_EQ(Reader(file).job(id).held_by, "");
  change.set_wish(id, Wish::pause, "bo", ++now);
  EXPECT_EQ(Reader(file).job(id).held_by, "bo");
  change.set_wish(id, Wish::cancel, "ada", ++now);
  EXPECT_EQ(Reader(file).job(id).held_by, "bo");
}

TEST_F(StoreOrder, TheExitCodeOfACommandIsKept) {
  const JobId id = submit("job");
  EXPECT_EQ(Reader(file).job(id).exit_code, std::nullopt);
  change.set_phase(id, Phase::running, "", ++now);
  change.set_phase(id, Phase::failed, "It ended with exit code 7.", ++now, 7);
  EXPECT_EQ(Reader(file).job(id).exit_code, 7);
}

TEST_F(StoreOrder, ARowOfAJobThatRunsIsDamage) {
  const JobId first = submit("first"), later = submit_after({first});
  store.database().run("UPDATE jobs SET phase = 'running' WHERE id = ?", later);
  const auto found = Reader(file).check();
  ASSERT_EQ(found.size(), 1u) << ::testing::PrintToString(found);
  EXPECT_EQ(found[0], "job 2: waits for others to finish, and is running");
}

// Which a search that tries each star again for each of those before it would not end.
TEST_F(StoreOrder, APatternOfManyStarsIsAnsweredAtOnce) {
  submit(std::string(200, 'a'));
  std::string pattern;
  for (int i = 0; i < 60; ++i) pattern += "*a";
  JobFilter filter;
  filter.pattern = pattern + "*";
  EXPECT_EQ(Reader(file).jobs(filter, 0, 10).size(), 1u);
  filter.pattern = pattern + "*b";
  EXPECT_TRUE(Reader(file).jobs(filter, 0, 10).empty());
}

// The end of one job touches each of them.
TEST_F(StoreOrder, OnlySoManyJobsBeginAfterOne) {
  const JobId first = submit("first");
  change.require_room_behind({first}, 5000);
  EXPECT_EQ(code_of([&] { change.require_room_behind({first}, 5001); }), ErrorCode::conflict);
  submit_after({first});
  EXPECT_EQ(text_of([&] { change.require_room_behind({first}, 5000); }, ErrorCode::conflict),
            "job 1: 5000 more cannot begin after it, since 1 do already, and 5000 at most can");
}

// SQLite's GLOB, written out: [ is a letter like any other.
bool fits(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] == '*')
    return fits(pattern.substr(1), text) || (!text.empty() && fits(pattern, text.substr(1)));
  return !text.empty() && (pattern[0] == '?' || pattern[0] == text[0]) &&
         fits(pattern.substr(1), text.substr(1));
}

// Every set of filters, page by page, against a look at all jobs.
TEST_F(StoreOrder, ListsAgreeWithAnObviousTwinUnderEachSetOfFilters) {
  constexpr Phase kAll[] = {Phase::queued,   Phase::running, Phase::paused,
                            Phase::finished, Phase::failed,  Phase::cancelled};
  const char* const kNames[] = {"trial", "trial-1", "sweep[1]", "sweep[2]", "sweep12"};
  Rng rng(3);
  std::vector<JobRecord> all;
  Transaction transaction(store.database());
  for (int i = 0; i < 300; ++i) {
    const JobId id = submit(kNames[rng.below(std::size(kNames))], {},
                            rng.below(2) == 0 ? "ada" : "bo", rng.below(2) == 0 ? "vision" : "");
    const Phase phase = kAll[rng.below(std::size(kAll))];
    if (phase == Phase::finished) change.set_phase(id, Phase::running, "", ++now);
    if (phase != Phase::queued) change.set_phase(id, phase, "", ++now);
    all.push_back(change.job(id));
  }
  transaction.commit();
  std::ranges::reverse(all);
  Reader reader(file);
  int64_t listed = 0;
  for (int round = 0; round < 400; ++round) {
    JobFilter filter;
    for (const Phase phase : kAll)
      if (rng.below(3) == 0) filter.phases.insert(filter.phases.begin(), phase);
    filter.live = rng.below(3) == 0;
    if (rng.below(3) == 0) filter.owner = rng.below(8) == 0 ? "nobody" : "bo";
    if (rng.below(3) == 0) filter.team = "vision";
    if (rng.below(4) == 0) filter.name = "trial";
    if (rng.below(3) == 0)
      filter.pattern =
          std::vector<std::string>{"trial*", "sweep[?]", "*1*", "sweep??"}[rng.below(4)];
    if (rng.below(6) == 0) filter.part = "EEP";
    std::vector<JobRecord> expected;
    for (const JobRecord& job : all) {
      const Submission& s = job.submission;
      const bool wanted =
          (filter.phases.empty() ||
           std::ranges::find(filter.phases, job.phase) != filter.phases.end()) &&
          (!filter.live || !has_ended(job.phase)) && (!filter.owner || s.owner == *filter.owner) &&
          (!filter.team || s.team == *filter.team) && (!filter.name || s.name == *filter.name) &&
          (!filter.pattern || fits(*filter.pattern, s.name)) &&
          (!filter.part || s.name.starts_with("sweep"));
      if (wanted) expected.push_back(job);
    }
    const std::vector<JobRecord> paged = testing::all_pages(reader, filter);
    EXPECT_EQ(paged, expected) << round;
    listed += static_cast<int64_t>(paged.size());
  }
  EXPECT_GT(listed, 1000);
  EXPECT_EQ(reader.owners(), (std::vector<std::string>{"ada", "bo"}));
  EXPECT_EQ(reader.teams(), std::vector<std::string>{"vision"});
}

// A store as it was before jobs could wait for others, with jobs of each phase in it.
TEST(OlderStore, IsTakenOverWithItsJobs) {
  constexpr int kOlder = 9;
  const TempFolder folder;
  const fs::path file = folder.path() / "store.db";
  {
    Database old(file, Database::Access::write);
    for (int schema = 0; schema < kOlder; ++schema) old.execute(migration(schema));
    old.execute(
        fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {};", 0x6475636c, kOlder));
    for (const char* phase : {"queued", "running", "paused", "failed"}) {
      const bool ended = std::string_view(phase) == "failed";
      old.run(
          "INSERT INTO jobs (name, owner, team, tier, kind, min_devices, max_devices, phase, wish, "
          "reason, run, submitted, ended, generation, revision) VALUES (?, 'ada', '', 'standard', "
          "'command', 1, 1, ?, ?, 'Its user paused it.', '', 1e9, ?, 0, 0)",
          phase, phase, std::string_view(phase) == "paused" ? "pause" : "run",
          ended ? std::optional<double>(1e9 + 1) : std::nullopt);
      const int64_t id = old.last_insert();
      old.run("INSERT INTO specs (job, spec) VALUES (?, '{}')", id);
      old.run("INSERT INTO events (time, job, kind, body) VALUES (1e9, ?, 'submitted', '{}')", id);
      old.run("UPDATE jobs SET revision = ? WHERE id = ?", old.last_insert(), id);
    }
  }
  EXPECT_EQ(code_of([&] { Reader reader(file); }), ErrorCode::conflict)
      << "older, and not migrated";
  Store store(file);
  Reader reader(file);
  EXPECT_TRUE(reader.check().empty()) << ::testing::PrintToString(reader.check());
  ASSERT_EQ(reader.jobs({}, 0, 10).size(), 4u);
  for (const JobRecord& job : reader.jobs({}, 0, 10)) {
    EXPECT_EQ(to_string(job.phase), job.submission.name);
    EXPECT_EQ(job.held_by, "");
    EXPECT_EQ(job.exit_code, std::nullopt);
    EXPECT_TRUE(reader.awaited_by(job.id).empty());
  }
  JobFilter paused;
  paused.phases = {Phase::paused, Phase::failed};
  EXPECT_EQ(reader.jobs(paused, 0, 10).size(), 2u);
  Change change(store.database());
  Beginning after;
  after.after = {1};
  Submission s;
  s.name = "later";
  EXPECT_EQ(change.submit(s, "{}", 2e9, after), 5);
  EXPECT_EQ(Reader(file).awaited_by(5).size(), 1u);
}

}  // namespace
}  // namespace ductile::cluster
