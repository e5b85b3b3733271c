// What pages are made of, asked of the Api.
#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/cluster/api.h"
#include "ductile/run/folder.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::json;

class PageRoutes : public ::testing::Test {
 protected:
  Json ask(const std::string& path, std::map<std::string, std::string, std::less<>> query = {},
           int status = 200) {
    Call call;
    call.method = "GET";
    call.path = path;
    call.query = std::move(query);
    call.principal = {"tia", Role::read, "vision"};
    const Answer answer = api.handle(call);
    EXPECT_EQ(answer.status, status) << answer.body;
    return parse_json(answer.body);
  }
  JobId submit(const std::string& name, const std::string& team, const std::string& toml = "") {
    JobId id = 0;
    queue.commit([&](Change& change) {
      Submission s;
      s.name = name;
      s.owner = "tia";
      s.team = team;
      id = change.submit(s, dump_json(Json{{"job", toml}}), now);
    });
    return id;
  }
  void run(JobId id, int64_t devices, const fs::path& folder = {}) {
    queue.commit([&](Change& change) {
      change.set_run(id, folder.string(), now);
      change.set_phase(id, Phase::running, "It runs.", now);
      change.set_holdings(id, {{"here", devices}}, "It runs.", now);
    });
  }

  TempFolder folder;
  const fs::path file = folder.path() / "store.db";
  Store store{file};
  CommitQueue queue{store};
  double now = 1000;
  Api api{file, queue, [this] { return now; }};
};

TEST_F(PageRoutes, TheOverviewSaysWhoAsksAndHowManyJobsThereAre) {
  api.set_policy("fifo");
  submit("waits", "vision");
  run(submit("runs", "vision"), 3);
  const Json seen = ask("/v1/overview");
  EXPECT_EQ(seen.at("principal"), "tia");
  EXPECT_EQ(seen.at("role"), "read");
  EXPECT_EQ(seen.at("team"), "vision");
  EXPECT_EQ(seen.at("policy"), "fifo");
  EXPECT_EQ(seen.at("jobs"), Json({{"queued", 1}, {"running", 1}}));
  EXPECT_EQ(ask("/v1/jobs").at("jobs").at(0).at("devices"), 3);
  EXPECT_EQ(ask("/v1/jobs").at("jobs").at(1).at("devices"), 0);
}

TEST_F(PageRoutes, AllocationsAndAccountsFollowTheEvents) {
  const JobId a = submit("a", "vision"), b = submit("b", "text");
  run(a, 2);
  now = 1010;
  run(b, 1);
  now = 1030;
  queue.commit([&](Change& change) { change.set_phase(a, Phase::finished, "Done.", now); });
  now = 1040;
  const Json spans = ask("/v1/allocations", {{"since", "1000"}}).at("spans");
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0],
            Json({{"job", a}, {"node", "here"}, {"devices", 2}, {"from", 1000.0}, {"to", 1030.0}}));
  EXPECT_EQ(spans[1].at("to"), nullptr);
  EXPECT_EQ(ask("/v1/allocations", {{"since", "1031"}}).at("spans").size(), 1u);
  const Json accounts = ask("/v1/accounts").at("accounts");
  ASSERT_EQ(accounts.size(), 2u);
  EXPECT_EQ(accounts[0], Json({{"team", "text"},
                               {"tier", "standard"},
                               {"owner", "tia"},
                               {"jobs", {{"running", 1}}},
                               {"devices", 1},
                               {"device_seconds", 30.0}}));
  EXPECT_EQ(accounts[1].at("device_seconds"), 60.0);
  EXPECT_EQ(ask("/v1/jobs/a").at("device_seconds"), 60.0);
}

TEST_F(PageRoutes, JobsAreFoundByAPartOfWhatTheyAreCalled) {
  submit("ResNet-20", "vision");
  submit("gpt_100%", "text");
  const auto found = [&](const std::string& part) {
    return ask("/v1/jobs", {{"part", part}}).at("jobs").size();
  };
  EXPECT_EQ(found("resnet"), 1u);
  EXPECT_EQ(found("TEXT"), 1u);
  EXPECT_EQ(found("tia"), 2u);
  EXPECT_EQ(found("%"), 1u);  // a character like any other
  EXPECT_EQ(found("_"), 1u);
  EXPECT_EQ(found("t20"), 0u);
}

TEST_F(PageRoutes, AJobsCurvesAndLogAreReadFromItsRun) {
  const JobId id = submit("a", "vision", "[train]\nbatch_size = 48\n");
  ask("/v1/jobs/a/curves", {}, 404);  // it has not begun
  ask("/v1/jobs/a/log", {}, 404);
  EXPECT_EQ(ask("/v1/jobs/a/options").at("options").at("train.batch_size"), "48");
  EXPECT_EQ(ask("/v1/jobs/a/options").at("changed"), Json({"train.batch_size"}));
  EXPECT_GT(ask("/v1/jobs/a/options").at("options").size(), 50u);

  const auto run_folder = run::RunFolder::create_at(folder.path() / "run", "[train]\n");
  run(id, 1, run_folder.path());
  EXPECT_EQ(ask("/v1/jobs/a/log").at("text"), "");
  const auto add = [](const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::app) << text;
  };
  add(run_folder.metrics_file(),
      "{\"step\":1,\"epoch\":0.1,\"seconds\":1,\"train/loss\":2.5}\n"
      "{\"step\":2,\"epoch\":0.2,\"seconds\":2,\"train/loss\":1.5}\n");
  const Json curves = ask("/v1/jobs/a/curves");
  EXPECT_EQ(curves.at("curves").at("panels").at(0).at("series").at(0).at("value"),
            Json({2.5, 1.5}));
  const std::string version = curves.at("version");
  EXPECT_EQ(ask("/v1/jobs/a/curves", {{"known", version}}).at("curves"), nullptr);

  add(run_folder.log_file(), "one\n");
  add(run_folder.log_file(), std::string("\xff<b>\n"));
  const Json log = ask("/v1/jobs/a/log");
  EXPECT_EQ(log.at("text").get<std::string>().substr(0, 4), "one\n");
  EXPECT_EQ(log.at("next"), 9);
  add(run_folder.log_file(), std::string(100000, 'x'));
  EXPECT_EQ(ask("/v1/jobs/a/log", {{"from", "9"}}).at("next"), 9 + 65536);
  EXPECT_EQ(ask("/v1/jobs/a/log").at("from"), 100009 - 65536);
  EXPECT_EQ(ask("/v1/jobs/a/log", {{"from", "100009"}}).at("text"), "");
  EXPECT_EQ(ask("/v1/jobs/a/log", {{"from", "999999999"}}).at("from"), 0);  // it was begun anew
}

// Who reads part after part gets what was written, wherever a part ends.
TEST_F(PageRoutes, ACharacterOfALogIsInOnePart) {
  const JobId id = submit("a", "vision", "");
  const auto run_folder = run::RunFolder::create_at(folder.path() / "run", "[train]\n");
  run(id, 1, run_folder.path());
  std::string written, got;
  int64_t next = 0;
  const auto add = [&](const std::string& text) {
    written += text;
    std::ofstream(run_folder.log_file(), std::ios::app) << text;
  };
  const auto read = [&] {
    const Json part = ask("/v1/jobs/a/log", {{"from", std::to_string(next)}});
    got += part.at("text").get<std::string>();
    next = part.at("next");
  };
  const std::string character = "\xf0\x9f\x90\x9d";  // of four bytes, which come one by one
  for (const char byte : "begun" + character + "\xe2\x82\xac\xc3\xa4.") {
    add(std::string(1, byte));
    read();
  }
  EXPECT_EQ(got, written);
  std::string many = "x";  // so that the first 64 KiB end within a character
  for (int i = 0; i < 40'000; ++i) many += character;
  add(many);
  for (int i = 0; i < 4; ++i) read();
  EXPECT_EQ(got, written);
  add("\xf0\x9f");
  read();
  EXPECT_EQ(got + "\xf0\x9f", written) << "the rest may come";
}

// It has no options and measures nothing, but prints; and what it puts in the place of its log is
// not waited for.
TEST_F(PageRoutes, ACommandsLogIsReadLikeAnyOther) {
  JobId id = 0;
  queue.commit([&](Change& change) {
    Submission s;
    s.name = "tool";
    s.kind = "command";
    id = change.submit(s, "{}", now);
  });
  run(id, 1, folder.path() / "run");
  ask("/v1/jobs/tool/log", {}, 404);  // its run directory is gone
  fs::create_directories(folder.path() / "run");
  EXPECT_EQ(ask("/v1/jobs/tool/log").at("text"), "");
  const Json curves = ask("/v1/jobs/tool/curves");
  EXPECT_TRUE(curves.at("curves").at("panels").empty());
  EXPECT_EQ(ask("/v1/jobs/tool/curves", {{"known", curves.at("version")}}).at("curves"), nullptr);
  const fs::path log = folder.path() / "run" / "worker.log";
  std::ofstream(log) << "hello\n";
  EXPECT_EQ(ask("/v1/jobs/tool/log").at("text"), "hello\n");
  fs::remove(log);
  ASSERT_EQ(::mkfifo(log.c_str(), 0600), 0);
  EXPECT_EQ(ask("/v1/jobs/tool/log").at("text"), "");
}

}  // namespace
}  // namespace ductile::cluster
