// What a store forgets: it is told apart from what never was, and a kill in the middle harms
// nothing.
#include <csignal>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/json.h"
#include "ductile/base/rng.h"
#include "ductile/cluster/api.h"
#include "ductile/cluster/schema.h"
#include "ductile/cluster/store.h"
#include "ductile/cluster/testing/event_text.h"
#include "ductile/cluster/testing/failing_vfs.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::json;

constexpr int kEventsOfAJob = 20;  // at least

// In one transaction: jobs that were submitted and have ended, each with a few events.
JobId add_jobs(Database& database, int count, double& now) {
  Transaction transaction(database);
  Change change(database);
  JobId id = 0;
  for (int i = 0; i < count; ++i) {
    Submission s;
    s.name = "job";
    id = change.submit(s, "{}", ++now);
    change.set_phase(id, Phase::running, "it runs", now);
    change.set_holdings(id, {{"here", 1}}, "it runs", now);
    for (int e = 3; e < kEventsOfAJob; ++e) change.record(id, "speed", "{}", now);
    change.set_phase(id, Phase::finished, "it is done", now);
  }
  transaction.commit();
  return id;
}

bool prune_once(Database& database, const Retention& retention, double now) {
  Transaction transaction(database);
  Change change(database);
  const bool more = change.prune(retention, now, 500);
  transaction.commit();
  return more;
}

void prune_all(Database& database, const Retention& retention, double now) {
  while (prune_once(database, retention, now)) continue;
}

class Forgetting : public ::testing::Test {
 protected:
  Answer get(Api& api, const std::string& path, const std::string& after = "") {
    Call call;
    call.method = "GET";
    call.path = path;
    if (!after.empty()) call.query["after"] = after;
    call.principal = {"ada", Role::admin};
    return api.handle(call);
  }

  TempFolder folder;
  const fs::path file = folder.path() / "store.db";
  double now = 1e9;
};

TEST_F(Forgetting, WhatWasRemovedIsToldApartFromWhatNeverWas) {
  Store store(file);
  const JobId old = add_jobs(store.database(), 30, now);
  now += 1000;
  const JobId young = add_jobs(store.database(), 20, now);
  Submission s;
  s.name = "live";
  {
    Transaction transaction(store.database());
    Change change(store.database());
    change.submit(s, "{}", 1);  // it waits since long ago
    transaction.commit();
  }
  Reader reader(file);
  const Revision last = reader.last_event();
  prune_all(store.database(), {500, 0}, now);
  EXPECT_EQ(reader.check(), std::vector<std::string>());
  EXPECT_EQ(reader.jobs({}, 0, 1000).size(), 21u);
  EXPECT_EQ(reader.last_event(), last);
  prune_all(store.database(), {0, 10}, now + 1);
  EXPECT_EQ(reader.jobs({}, 0, 1000).size(), 11u) << "the live one does not count";
  EXPECT_EQ(reader.check(), std::vector<std::string>());

  CommitQueue queue(store);
  Api api(file, queue, [this] { return now; });
  const Answer gone = get(api, "/v1/jobs/" + std::to_string(old));
  EXPECT_EQ(gone.status, 410) << gone.body;
  EXPECT_EQ(parse_json(gone.body).at("since"), now + 1) << "its neighbours were removed then";
  EXPECT_NE(gone.body.find("was removed from the store"), std::string::npos);
  EXPECT_EQ(get(api, "/v1/jobs/9999").status, 404);
  EXPECT_EQ(get(api, "/v1/jobs/nobody").status, 404);
  EXPECT_EQ(get(api, "/v1/jobs/" + std::to_string(young)).status, 200);

  EXPECT_EQ(get(api, "/v1/events").status, 200) << "from the oldest that there is";
  const Answer behind = get(api, "/v1/events", "5");
  ASSERT_EQ(behind.status, 410) << behind.body;
  const auto begin = parse_json(behind.body).at("begin").get<Revision>();
  const Answer on = get(api, "/v1/events", std::to_string(begin));
  EXPECT_EQ(on.status, 200) << on.body;
  EXPECT_GT(begin, 5);
  EXPECT_EQ(get(api, "/v1/events", std::to_string(last)).status, 200);
}

// A job may wait for months, and what it waits for changes all the time.
TEST_F(Forgetting, OldReasonsOfAJobThatWaitsAreRemoved) {
  Store store(file);
  JobId waits = 0, runs = 0;
  {
    Transaction transaction(store.database());
    Change change(store.database());
    Submission s;
    s.name = "live";
    waits = change.submit(s, "{}", now);
    runs = change.submit(s, "{}", now);
    for (int i = 0; i < 100; ++i)
      for (const JobId id : {waits, runs}) change.set_reason(id, std::to_string(i), ++now);
    change.set_phase(runs, Phase::running, "it runs", now);
    transaction.commit();
  }
  prune_all(store.database(), {1000, 0}, now + 2000);
  Reader reader(file);
  const auto kinds = [&](JobId id) {
    std::string out;
    for (const Event& event : reader.events(0, 1000, id)) out += event.kind + " ";
    return out;
  };
  EXPECT_EQ(kinds(waits), "submitted reason ") << "the newest event is the job's revision";
  EXPECT_EQ(kinds(runs), "submitted running ");
  EXPECT_EQ(reader.job(waits).reason, "99");
  EXPECT_EQ(reader.check(), std::vector<std::string>());
}

TEST_F(Forgetting, AStoreOfAnEarlierVersionForgetsThemToo) {
  constexpr int kEarlier = 8;
  {
    Database old(file, Database::Access::write);
    for (int schema = 0; schema < kEarlier; ++schema) old.execute(migration(schema));
    old.execute(
        fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {}", 0x6475636c, kEarlier));
    old.run(
        "INSERT INTO jobs (name, owner, team, tier, kind, min_devices, max_devices, phase, wish, "
        "reason, run, submitted, generation, revision) VALUES ('live', 'ada', '', 'standard', "
        "'train', 1, 1, 'queued', 'run', '', '', ?, 0, 11)",
        now);
    for (int i = 0; i <= 10; ++i)
      old.run("INSERT INTO events (time, job, kind, body) VALUES (?, 1, ?, '{}')", ++now,
              i == 0 ? "submitted" : "reason");
  }
  Store store(file);
  prune_all(store.database(), {1000, 0}, now + 2000);
  EXPECT_EQ(Reader(file).count_events(), 2);
}

// A job that lives is older than all that was removed.
// The time is right to the day, also of neighbours that went earlier.
TEST_F(Forgetting, WhatIsRemovedLaterChangesNoEarlierTime) {
  Store store(file);
  add_jobs(store.database(), 20, now);
  const double day = 86400, first = now + 10 * day;
  prune_all(store.database(), {0, 15}, first);
  prune_all(store.database(), {0, 10}, first + day);
  prune_all(store.database(), {0, 8}, first + day + 1);
  Reader reader(file);
  const auto since = [&](JobId id) {
    try {
      reader.job(id);
    } catch (const Gone& gone) {
      return gone.since;
    }
    return 0.0;
  };
  EXPECT_EQ(since(1), first);
  EXPECT_EQ(since(5), first);
  EXPECT_EQ(since(6), first + day + 1);
  EXPECT_EQ(since(12), first + day + 1);
  EXPECT_EQ(since(13), 0);
  EXPECT_FALSE(reader.job_if_kept(12).has_value());
  EXPECT_EQ(reader.job_if_kept(13)->id, 13);
  EXPECT_EQ(reader.check(), std::vector<std::string>());
}

TEST_F(Forgetting, AListWithoutACursorCanBeGoneOnWith) {
  Store store(file);
  {
    Transaction transaction(store.database());
    Submission s;
    s.name = "live";
    Change(store.database()).submit(s, "{}", 1);
    transaction.commit();
  }
  add_jobs(store.database(), 30, now);
  CommitQueue queue(store);
  Api api(file, queue, [this] { return now; });
  Revision fresh = Reader(file).last_event(), behind = 5;
  EXPECT_EQ(testing::event_text(api, fresh, 0), "") << "a stream";
  prune_all(store.database(), {0, 10}, now);
  const Json first = parse_json(get(api, "/v1/events").body);
  ASSERT_FALSE(first.at("events").empty());
  EXPECT_GT(first.at("events").at(0).at("seq"), 20) << "from where on none is missing";
  EXPECT_EQ(get(api, "/v1/events", first.at("after").dump()).status, 200);
  Call newest;
  newest.method = "GET";
  newest.path = "/v1/events";
  newest.query["newest"] = "300";
  newest.principal = {"ada", Role::admin};
  const Json last = parse_json(api.handle(newest).body);
  EXPECT_EQ(last.at("events").at(0).at("seq"), 1);
  EXPECT_EQ(get(api, "/v1/events", last.at("after").dump()).status, 200);

  // Of another store, or of this one before it was put back as it was earlier.
  const Revision end = Reader(file).last_event();
  EXPECT_EQ(get(api, "/v1/events", std::to_string(end)).status, 200);
  const Answer beyond = get(api, "/v1/events", std::to_string(end + 1));
  EXPECT_EQ(beyond.status, 410);
  EXPECT_EQ(parse_json(beyond.body).at("begin"), end);

  // An open stream that has fallen behind is told so, and one that begins is whole.
  EXPECT_THROW(testing::event_text(api, behind, 0), Gone);
  Revision begin = 0;
  const std::string text = testing::event_text(api, begin, 0);
  EXPECT_NE(text, "");
  EXPECT_EQ(text.find("id: 1\n"), std::string::npos);
  // Also where nobody looked at what came and was removed.
  Revision at = fresh;
  add_jobs(store.database(), 30, now);
  prune_all(store.database(), {0, 10}, now);
  queue.commit([](Change& change) { change.record(0, "stopped", "{}", 1); });
  EXPECT_THROW(testing::event_text(api, at, 0), Gone);
}

TEST_F(Forgetting, TheStoreDoesNotGrow) {
  Store store(file);
  const Retention retention{0, 500};
  uintmax_t early = 0;
  for (int round = 0; round < 20; ++round) {  // 100,000 events and more
    add_jobs(store.database(), 260, now);
    prune_all(store.database(), retention, now);
    store.database().execute("PRAGMA wal_checkpoint(TRUNCATE)");
    if (round == 5) early = fs::file_size(file);
  }
  Reader reader(file);
  EXPECT_GT(reader.last_event(), 100'000);
  EXPECT_LT(reader.count_events(), 2 * 500 * kEventsOfAJob);
  EXPECT_LE(fs::file_size(file), early + early / 10);
  EXPECT_EQ(reader.check(), std::vector<std::string>());
}

// They are forgotten after a day, in which there may be many.
TEST_F(Forgetting, OfTheAnswersToRequestsTheNewestAreKept) {
  Store store(file);
  const double begin = now;
  {
    Transaction transaction(store.database());
    Change change(store.database());
    for (int i = 0; i < 2000; ++i)
      change.remember_answer("ada", std::to_string(i), "digest", "{}", begin + i);
    transaction.commit();
  }
  const auto count = [&] { return store.database().integer("SELECT count(*) FROM requests", 0); };
  Retention retention;
  prune_all(store.database(), retention, begin + 2000);
  EXPECT_EQ(count(), 2000);
  retention.answers = 300;
  prune_all(store.database(), retention, begin + 2000);
  EXPECT_EQ(count(), 599) << "those of the last ten minutes stay";
  prune_all(store.database(), retention, begin + 2600);
  EXPECT_EQ(count(), 300);
  Transaction transaction(store.database());
  Change change(store.database());
  EXPECT_FALSE(change.answered("ada", "1699", "digest").has_value());
  EXPECT_TRUE(change.answered("ada", "1700", "digest").has_value());
}

// It is looked for each minute, on the thread that commits.
TEST_F(Forgetting, WhereNothingIsTooOldFewPagesAreRead) {
  const char* vfs = testing::FailingVfs::name();
  {
    Store store(file, vfs);
    add_jobs(store.database(), 2000, now);
    store.database().execute("PRAGMA wal_checkpoint(TRUNCATE)");
  }
  Store store(file, vfs);
  const int64_t before = testing::FailingVfs::reads();
  EXPECT_FALSE(prune_once(store.database(), {now, 0}, now));
  EXPECT_LT(testing::FailingVfs::reads() - before, 50);
  EXPECT_GE(Reader(file).count_events(), 2000 * kEventsOfAJob);
}

TEST_F(Forgetting, AKillInTheMiddleLeavesEachJobWholeOrGone) {
  Rng rng(11);
  JobId last = 0;
  {
    Store store(file);
    last = add_jobs(store.database(), 2000, now);
  }
  for (int turn = 0; turn < 8; ++turn) {
    const pid_t child = ::fork();
    if (child == 0) {
      Store store(file);
      while (prune_once(store.database(), {0, 10}, 2e9)) continue;
      ::_exit(0);
    }
    ::usleep(1000 * (5 + rng.below(40)));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    Store store(file);
    Reader reader(file);
    EXPECT_EQ(reader.check(), std::vector<std::string>());
    int64_t there = 0;
    for (JobId id = 1; id <= last; ++id) {
      try {
        reader.job(id);
        EXPECT_GE(static_cast<int>(reader.events(0, 100, id).size()), kEventsOfAJob);
        ++there;
      } catch (const Gone& gone) {
        EXPECT_EQ(gone.since, 2e9);
        EXPECT_TRUE(reader.events(0, 100, id).empty());
      }
    }
    EXPECT_GE(there, 10);
  }
}

}  // namespace
}  // namespace ductile::cluster
