#include "ductile/cluster/api.h"

#include <atomic>
#include <future>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "ductile/base/json.h"
#include "ductile/base/rng.h"
#include "ductile/cluster/database.h"
#include "ductile/cluster/routes_impl.h"
#include "ductile/cluster/testing/event_text.h"
#include "ductile/cluster/testing/failing_vfs.h"
#include "ductile/cluster/tokens.h"
#include "ductile/cluster/why_impl.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::json;

class Service : public ::testing::Test {
 protected:
  Answer send(const std::string& method, const std::string& path, const std::string& body = "",
              const std::string& key = "") {
    Call call;
    call.method = method;
    const size_t mark = path.find('?');
    call.path = path.substr(0, mark);
    if (mark != std::string::npos) {
      std::string rest = path.substr(mark + 1);
      while (!rest.empty()) {
        const std::string pair = rest.substr(0, rest.find('&'));
        rest.erase(0, pair.size() + 1);
        call.query[pair.substr(0, pair.find('='))] = pair.substr(pair.find('=') + 1);
      }
    }
    call.body = body;
    call.key = key;
    call.principal = who;
    return api.handle(call);
  }
  Json get(const std::string& path) {
    const Answer answer = send("GET", path);
    EXPECT_EQ(answer.status, 200) << path << " " << answer.body;
    return parse_json(answer.body);
  }
  JobId submit(const std::string& name, const std::string& key = "") {
    const Answer answer =
        send("POST", "/v1/jobs", dump_json(Json{{"name", name}, {"spec", Json::object()}}), key);
    EXPECT_EQ(answer.status, 201) << answer.body;
    return parse_json(answer.body).value("id", JobId{0});
  }

  TempFolder folder;
  const fs::path file = folder.path() / "store.db";
  Store store{file, testing::FailingVfs::name()};
  CommitQueue queue{store};
  double now = 1e9;
  Api api{file, queue, [this] { return now; }};
  Principal who{"ada", Role::submit};
};

// Each of them is in the service's memory, and looked at in each round.
TEST_F(Service, AJobIsRefusedWhereTooManyOfItsOwnerHaveNotEnded) {
  LiveView view({});
  api.show(&view);
  const std::string body = "{\"spec\": {}}";
  for (JobId id = 1; id <= 50'000; ++id) view.enter(id, "ada");
  const Answer answer = send("POST", "/v1/jobs", body);
  EXPECT_EQ(answer.status, 503) << answer.body;
  EXPECT_NE(answer.body.find("ada has 50000 jobs that have not ended"), std::string::npos);
  who.name = "tia";
  EXPECT_EQ(send("POST", "/v1/jobs", body).status, 201) << "hers are few";
  who.name = "ada";
  view.forget(7);
  EXPECT_EQ(send("POST", "/v1/jobs", body).status, 201);
  for (JobId id = 50'001; id <= 250'010; ++id) view.enter(id, std::to_string(id));
  who.role = Role::admin;
  EXPECT_EQ(send("POST", "/v1/jobs", body).status, 503);
}

TEST_F(Service, ATrainingJobSaysHowFarItIs) {
  LiveView view({});
  api.show(&view);
  const JobId id = submit("trains");
  const std::string path = fmt::format("/v1/jobs/{}", id);
  EXPECT_FALSE(get(path).contains("progress")) << "nobody knows";
  view.set_training(id, {50, 200, 2.0});
  EXPECT_EQ(get(path).at("progress"), (Json{{"step", 50}, {"total_steps", 200}})) << "it waits";
  queue.commit([&](Change& change) { change.set_phase(id, Phase::running, "runs", now); });
  const Json listed = get("/v1/jobs").at("jobs").at(0).at("progress");
  EXPECT_EQ(listed.at("steps_per_second"), 2.0);
  EXPECT_EQ(listed.at("seconds_left"), 75.0);
  view.set_training(id, {60, 200, 0});
  EXPECT_FALSE(get(path).at("progress").contains("seconds_left")) << "its speed is not known";
  queue.commit([&](Change& change) { change.set_phase(id, Phase::finished, "", now); });
  EXPECT_FALSE(get(path).contains("progress"));
}

// What is changed in one transaction is never seen half.
TEST_F(Service, AJobsDevicesAreThoseOfItsPhase) {
  const JobId id = submit("busy");
  const auto before = get("/v1/overview").at("event").get<Revision>();
  std::atomic<bool> over = false;
  std::thread writer([&] {
    for (int i = 0; i < 300; ++i) {
      queue.commit([&](Change& change) {
        change.set_phase(id, Phase::running, "runs", now);
        change.set_holdings(id, {{"here", 2}}, "runs", now);
      });
      queue.commit([&](Change& change) {
        change.set_holdings(id, {}, "waits", now);
        change.set_phase(id, Phase::queued, "waits", now);
      });
    }
    over = true;
  });
  while (!over) {
    const Json job = get(fmt::format("/v1/jobs/{}", id));
    EXPECT_EQ(job.at("phase") == "running", !job.at("holdings").empty()) << job;
    EXPECT_EQ(job.at("phase") == "running", job.at("reason") == "runs") << job;
    const Json listed = get("/v1/jobs").at("jobs").at(0);
    EXPECT_EQ(listed.at("phase") == "running", listed.at("devices") == 2) << listed;
    const Json account = get("/v1/accounts").at("accounts").at(0);
    EXPECT_EQ(account.at("jobs").contains("running"), account.at("devices") == 2) << account;
    const Json overview = get("/v1/overview");  // each change has two events
    EXPECT_EQ(overview.at("jobs").contains("running"),
              (overview.at("event").get<Revision>() - before) % 4 == 2)
        << overview;
    const std::string metrics = send("GET", "/metrics").body;
    EXPECT_EQ(metrics.find("ductile_jobs{phase=\"running\"} 1\n") != std::string::npos,
              metrics.find("ductile_devices_held 2\n") != std::string::npos)
        << metrics;
  }
  writer.join();
}

TEST_F(Service, NamesThatLookLikeSomethingElseAreRefused) {
  for (const char* name : {"-h", ".", "..", " a", "a ",
                           "a\xe2\x80\xae"
                           "b",
                           "a\xe2\x80\xa8"
                           "b",
                           "a\xe2\x80\x8b",
                           "\xef\xbb\xbf"
                           "a",
                           "a\xe2\x81\xa6"}) {
    const std::string body = dump_json(Json{{"name", name}, {"spec", Json::object()}});
    EXPECT_EQ(send("POST", "/v1/jobs", body).status, 400) << name;
  }
  EXPECT_GT(submit("a-b \xe2\x80\x93 \xc3\xa4\xe2\x82\xac.1"), 0) << "a dash, an umlaut, a euro";
}

TEST_F(Service, OfTwoJobsOfOneNameNoneIsActedOnByIt) {
  const JobId first = submit("dup"), second = submit("dup");
  const Answer answer = send("POST", "/v1/jobs/dup/cancel");
  EXPECT_EQ(answer.status, 409) << answer.body;
  EXPECT_NE(answer.body.find(fmt::format("{} and {}", second, first)), std::string::npos);
  EXPECT_EQ(send("POST", fmt::format("/v1/jobs/{}/cancel", second)).status, 200);
  EXPECT_EQ(get("/v1/jobs/dup").at("id"), second) << "it may be looked at";
}

TEST_F(Service, ADamagedEventEndsNeitherAListNorAStream) {
  const JobId id = submit("a");
  queue.commit([&](Change& change) {
    change.record(id, "torn", "{\"a\"", now);
    change.record(id, "whole", "{\"a\": 1}", now);
  });
  const Json events = get("/v1/events").at("events");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].at("kind"), "torn");
  EXPECT_NE(events[1].at("body").value("error", "").find("event "), std::string::npos) << events;
  EXPECT_EQ(events[2].at("body").at("a"), 1);
  EXPECT_NO_THROW(api.look_at_events());
}

TEST_F(Service, AJobIsSubmittedShownAndCancelled) {
  const JobId id = submit("resnet");
  const Json job = get("/v1/jobs/resnet");
  EXPECT_EQ(job.at("id"), id);
  EXPECT_EQ(job.at("owner"), "ada") << "whoever sends it, and not what the body says";
  EXPECT_EQ(job.at("phase"), "queued");
  EXPECT_EQ(get("/v1/jobs/" + std::to_string(id)), job);
  EXPECT_EQ(send("POST", "/v1/jobs/resnet/cancel").status, 200);
  EXPECT_EQ(get("/v1/jobs/resnet").at("wish"), "cancel");
  const Answer again = send("POST", "/v1/jobs/resnet/resume");
  EXPECT_EQ(again.status, 409) << again.body;
  EXPECT_EQ(get("/v1/events").at("events").size(), 2u);
}

TEST_F(Service, BadRequestsSayWhatWouldBeRight) {
  const auto error = [&](int status, const Answer& answer) {
    EXPECT_EQ(answer.status, status) << answer.body;
    return parse_json(answer.body).value("error", "");
  };
  EXPECT_NE(error(400, send("POST", "/v1/jobs", R"({"nmae": "a", "spec": {}})")).find("name"),
            std::string::npos);
  EXPECT_NE(error(400, send("POST", "/v1/jobs", "{")).find("body"), std::string::npos);
  error(400, send("POST", "/v1/jobs", "[]"));
  error(400, send("POST", "/v1/jobs", R"({"name": "a"})"));
  error(400, send("POST", "/v1/jobs", R"({"name": "a\u0007", "spec": {}})"));
  error(400, send("POST", "/v1/jobs", R"({"min_devices": 0, "spec": {}})"));
  error(400, send("POST", "/v1/jobs", R"({"min_devices": 4, "max_devices": 2, "spec": {}})"));
  error(400, send("GET", "/v1/jobs?limit=0"));
  error(400, send("GET", "/v1/jobs?limit=ten"));
  EXPECT_NE(error(400, send("GET", "/v1/jobs?phase=runing")).find("running"), std::string::npos);
  error(404, send("GET", "/v1/jobs/99"));
  error(404, send("GET", "/v1/job"));
  error(404, send("GET", "/v1/jobs/1/../2"));
  error(405, send("DELETE", "/v1/jobs"));
  error(413, send("POST", "/v1/jobs", std::string(kMostBody + 1, ' ')));
}

TEST_F(Service, NamesCanStandInPathsAndOnPages) {
  for (const char* name : {"", "12", "a/b", "a\\u0000b", "a\\u0085", "a\\n"}) {
    const Answer answer =
        send("POST", "/v1/jobs", fmt::format(R"({{"name": "{}", "spec": {{}}}})", name));
    EXPECT_EQ(answer.status, 400) << name;
  }
  EXPECT_EQ(send("POST", "/v1/jobs", R"({"name": "<b>\u00fc 12", "spec": {}})").status, 201);
  who.role = Role::admin;
  for (const std::string& node : {std::string("a\0b", 3), std::string("\xff"), std::string("a\n")})
    EXPECT_EQ(send("POST", "/v1/nodes/" + node + "/drain").status, 400);
}

TEST_F(Service, AfterManyRequestsAtOnceFewReadersAreKept) {
  int deep = 0;
  api.check_submission([&](const Submission&, const Json&, const Principal&, const Beginning*) {
    if (++deep < 50) submit("job");  // while the reader of this request is in use
  });
  submit("job");
  int open = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    open += fs::read_symlink(entry.path(), gone) == fs::path(file.string() + "-wal") ? 1 : 0;
  }
  EXPECT_EQ(deep, 50);
  EXPECT_LT(open, 25);
}

TEST_F(Service, AParameterThatNobodyReadsIsRefused) {
  EXPECT_EQ(send("GET", "/v1/jobs?limi=3").status, 400);
}

TEST_F(Service, EachRoleMayDoWhatItMay) {
  const JobId id = submit("hers");
  const std::string cancel = "/v1/jobs/" + std::to_string(id) + "/cancel";
  who = {"bo", Role::submit};
  EXPECT_EQ(send("POST", cancel).status, 403) << "it is not his";
  EXPECT_EQ(send("POST", "/v1/nodes/n1/drain").status, 403);
  who = {"ada", Role::read};
  EXPECT_EQ(send("POST", cancel).status, 403) << "her token may only look";
  EXPECT_EQ(send("GET", "/v1/jobs").status, 200);
  who = {"root", Role::admin};
  EXPECT_EQ(send("POST", cancel).status, 200);
  const Answer unknown = send("POST", "/v1/nodes/n1/drain", R"({"reason": "loud"})");
  EXPECT_EQ(unknown.status, 404) << unknown.body;
  EXPECT_TRUE(Reader(file).drains().empty());
  queue.commit([](Change& change) { change.set_nodes({NodeRecord{"n1", "cpu"}}, 1); });
  EXPECT_EQ(send("POST", "/v1/nodes/n1/drain", R"({"reason": "loud"})").status, 200);
  for (const char* wrong :
       {R"({"in": -1})", R"({"in": "soon"})", R"({"for": 0})", R"({"until": 3})"})
    EXPECT_EQ(send("POST", "/v1/nodes/n1/drain", wrong).status, 400) << wrong;
  EXPECT_EQ(send("POST", "/v1/nodes/n1/drain", R"({"in": 60, "for": 3600})").status, 200);
  EXPECT_EQ(send("POST", "/v1/nodes/n1/undrain").status, 200);
  EXPECT_EQ(send("POST", "/v1/nodes/n1/undrain").status, 404);
}

TEST_F(Service, ARequestWithAKeyIsCarriedOutOnceHoweverOftenAndFromManyThreads) {
  std::vector<JobId> ids(8);
  std::vector<std::thread> threads;
  for (JobId& id : ids) threads.emplace_back([&] { id = submit("once", "k"); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<JobId>(ids.begin(), ids.end()).size(), 1u);
  EXPECT_EQ(get("/v1/jobs").at("jobs").size(), 1u);
  EXPECT_EQ(send("POST", "/v1/jobs", R"({"name": "other", "spec": {}})", "k").status, 409);
  who.name = "bo";
  EXPECT_NE(submit("once", "k"), ids[0]) << "a key is its principal's own";
}

TEST_F(Service, AnAnswerIsKeptForADayAndNoLonger) {
  const auto kept = [this] {
    int64_t count = 0;
    Database(file, Database::Access::read)
        .query("SELECT count(*) FROM requests", [&](const Row& row) { count = row.integer(0); });
    return count;
  };
  const JobId id = submit("once", "k");
  now += Api::kRemembered;
  EXPECT_EQ(submit("once", "k"), id);
  submit("other", "l");
  EXPECT_EQ(kept(), 2);
  now += 1;
  submit("third", "m");
  EXPECT_EQ(kept(), 2) << "the oldest answer is gone";
  EXPECT_NE(submit("once", "k"), id);
}

// Also one that changed nothing the first time.
TEST_F(Service, APauseThatIsSentAgainAfterAResumeIsNotCarriedOutAgain) {
  const JobId id = submit("job");
  const std::string path = "/v1/jobs/" + std::to_string(id);
  for (const char* key : {"a", "b"}) EXPECT_EQ(send("POST", path + "/pause", "", key).status, 200);
  EXPECT_EQ(send("POST", path + "/resume").status, 200);
  EXPECT_EQ(send("POST", path + "/pause", "", "b").status, 200);
  EXPECT_EQ(get(path).at("wish"), "run");
  EXPECT_EQ(send("POST", path + "/cancel", "", "b").status, 409);
}

// Whoever read the tokens before one was revoked must not bring it back afterwards.
TEST(Tokens, OfLoadsAtOnceTheOneThatBeganLastCounts) {
  const std::string token = make_token();
  const TokenRecord ann{1, "ann", Role::admin, "", digest_of_token(token), 1, {}, {}};
  Tokens tokens([] { return 2.0; });
  std::promise<void> has_read, goes_on;
  std::thread slow([&] {
    tokens.load([&] {
      has_read.set_value();
      goes_on.get_future().wait();
      return std::vector{ann};
    });
  });
  has_read.get_future().wait();
  tokens.load([] { return std::vector<TokenRecord>(); });
  goes_on.set_value();
  slow.join();
  EXPECT_FALSE(tokens.recognise(token).principal);
  tokens.load([&] { return std::vector{ann}; });
  EXPECT_TRUE(tokens.recognise(token).principal);
}

// As when a machine begins with a wrong date.
TEST_F(Service, AClockThatLeapsAheadForgetsNoAnswer) {
  const JobId id = submit("once", "k");
  now += 400 * 86400.0;
  EXPECT_EQ(submit("once", "k"), id);
}

// Both have read the job before either changes it: the disk is busy meanwhile.
TEST_F(Service, TwoWhoResizeAJobAtOnceBothGetWhatTheyNamed) {
  const Answer job =
      send("POST", "/v1/jobs", R"({"name": "j", "min_devices": 1, "max_devices": 4, "spec": {}})");
  ASSERT_EQ(job.status, 201) << job.body;
  std::atomic<bool> busy = false;
  std::promise<void> free;
  queue.post(
      [&busy, until = free.get_future().share()](Change&) {
        busy = true;
        until.wait();
      },
      [](const Error*) {});
  while (!busy) std::this_thread::yield();
  std::vector<std::thread> threads;
  for (const char* body : {R"({"min_devices": 2})", R"({"max_devices": 6})"})
    threads.emplace_back([this, body] {
      const Answer answer = send("POST", "/v1/jobs/1/resize", body);
      EXPECT_EQ(answer.status, 200) << answer.body;
    });
  while (queue.figures().waiting < 2) std::this_thread::yield();
  free.set_value();
  for (std::thread& thread : threads) thread.join();
  const Submission now = Reader(file).job(1).submission;
  EXPECT_EQ(now.min_devices, 2);
  EXPECT_EQ(now.max_devices, 6);
}

TEST_F(Service, CursorsLeadThroughAllPages) {
  for (int i = 0; i < 25; ++i) submit("job");
  std::vector<JobId> seen;
  for (std::string cursor;;) {
    const Json page = get("/v1/jobs?limit=7" + cursor);
    for (const Json& job : page.at("jobs")) seen.push_back(job.at("id"));
    if (!page.contains("before")) break;
    cursor = "&before=" + std::to_string(page.at("before").get<JobId>());
  }
  ASSERT_EQ(seen.size(), 25u);
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<JobId>(25 - i));
  int64_t events = 0, after = 0;
  while (true) {
    const Json page = get("/v1/events?limit=4&after=" + std::to_string(after));
    if (page.at("events").empty()) break;
    events += static_cast<int64_t>(page.at("events").size());
    after = page.at("after");
  }
  EXPECT_EQ(events, 25);
}

TEST_F(Service, TheTierBeforeAllOthersIsGivenByAdmins) {
  const auto status = [&](const char* tier) {
    return send("POST", "/v1/jobs",
                dump_json(Json{{"name", "job"}, {"tier", tier}, {"spec", Json::object()}}))
        .status;
  };
  EXPECT_EQ(status("premium"), 403);
  EXPECT_EQ(status("standard"), 201);
  EXPECT_EQ(status("basic"), 201);
  who.role = Role::admin;
  EXPECT_EQ(status("premium"), 201);
}

TEST_F(Service, WhoFollowsIsToldOfAnEventBeforeWhoAskedForIt) {
  Revision at = 0;
  EXPECT_EQ(testing::event_text(api, at, 0), "");
  std::atomic<int> told = 0;
  const uint64_t number = api.follow_commits([&] { ++told; });
  submit("job");
  EXPECT_GE(told, 1);
  EXPECT_NE(testing::event_text(api, at, 0).find("id: 1\n"), std::string::npos);
  EXPECT_EQ(at, 1);
  EXPECT_EQ(testing::event_text(api, at, 0), "");
  api.unfollow_commits(number);
  told = 0;
  const JobId second = submit("second");
  EXPECT_EQ(told, 0);
  at = 0;
  const std::string one = testing::event_text(api, at, second);
  EXPECT_EQ(one.find("id: 1\n"), std::string::npos) << "of one job alone";
  EXPECT_NE(one.find("id: 2\n"), std::string::npos);
}

TEST_F(Service, TheDescriptionNamesEveryRoute) {
  const Json description = get("/v1/openapi.json");
  size_t operations = 0;
  for (const auto& [path, methods] : description.at("paths").items()) operations += methods.size();
  EXPECT_EQ(operations, routes().size()) << "each method of a path stands once";
  for (const Route& route : routes()) {
    if (!route.body.empty()) {
      EXPECT_TRUE(description.at("components").at("schemas").contains(route.body)) << route.body;
    }
  }
}

TEST_F(Service, FiguresCountJobsByPhase) {
  submit("a");
  submit("b");
  const std::string text = send("GET", "/metrics").body;
  EXPECT_NE(text.find("ductile_jobs{phase=\"queued\"} 2\n"), std::string::npos) << text;
  EXPECT_NE(text.find("ductile_events_total 2\n"), std::string::npos) << text;
}

// Whatever is sent, the answer is an answer, and only what was accepted is there afterwards.
TEST_F(Service, NoRequestWhateverItsBytesDoesHarm) {
  Rng rng(3);
  const std::vector<std::string> words = {
      "/v1/jobs",   "/v1/jobs/", "1",        "/cancel", "/pause",
      "/v1/events", "..",        "%2e",      "\0x",     "\xff",
      "/v1/nodes/", "/drain",    "/metrics", "{job}",   "'; DROP TABLE jobs; --",
      "\"",         "<script>"};
  const std::vector<std::string> bodies = {"",
                                           "{",
                                           R"({"spec": {}})",
                                           R"({"spec": {"a": [[[[]]]]}})",
                                           "null",
                                           "[1e999]",
                                           R"({"name": {}, "spec": {}})",
                                           R"({"name": "\ud800", "spec": {}})",
                                           "\xff\xfe",
                                           R"({"min_devices": 1e300, "spec": {}})",
                                           std::string(5000, '[')};
  size_t accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    Call call;
    call.method = rng.below(2) == 0 ? "GET" : "POST";
    for (uint32_t n = 1 + rng.below(3); n > 0; --n)
      call.path += words[rng.below(static_cast<uint32_t>(words.size()))];
    call.body = bodies[rng.below(static_cast<uint32_t>(bodies.size()))];
    for (const char* name : {"limit", "before", "after", "phase", "job", "name"}) {
      if (rng.below(8) == 0)
        call.query[name] = rng.below(2) == 0 ? words[rng.below(static_cast<uint32_t>(words.size()))]
                                             : std::to_string(static_cast<int64_t>(rng.next()));
    }
    call.principal = {"eve", static_cast<Role>(rng.below(3))};
    const Answer answer = api.handle(call);
    accepted += answer.status == 201;
    ASSERT_NE(answer.status, 500) << call.method << " " << call.path << " " << call.body << " "
                                  << answer.body;
    if (answer.type == "application/json") {
      ASSERT_FALSE(parse_json(answer.body).is_discarded()) << answer.body;
    }
  }
  EXPECT_GT(accepted, 10u);
  Reader reader(file);
  int64_t jobs = 0;
  for (const auto& [phase, count] : reader.count_by_phase()) jobs += count;
  EXPECT_EQ(jobs, static_cast<int64_t>(accepted));
  EXPECT_TRUE(reader.check().empty());
}

}  // namespace
}  // namespace ductile::cluster
