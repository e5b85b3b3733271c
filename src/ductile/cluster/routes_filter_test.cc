// What the interface narrows lists to, and when it lets a job begin.
#include <functional>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "ductile/base/json.h"
#include "ductile/cluster/api.h"
#include "ductile/cluster/why_impl.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::json;

class JobLists : public ::testing::Test {
 protected:
  Answer send(const std::string& method, const std::string& path,
              std::map<std::string, std::string, std::less<>> query = {},
              const std::string& body = "", const std::string& key = "") {
    Call call;
    call.method = method;
    call.path = path;
    call.query = std::move(query);
    call.body = body;
    call.key = key;
    call.principal = who;
    return api.handle(call);
  }
  Answer submit(const Json& body, const std::string& key = "") {
    Json whole = {{"spec", Json::object()}};
    whole.update(body);
    return send("POST", "/v1/jobs", {}, dump_json(whole), key);
  }
  // The numbers of the jobs that a list has, the newest first.
  std::string list(std::map<std::string, std::string, std::less<>> query) {
    const Answer answer = send("GET", "/v1/jobs", std::move(query));
    if (answer.status != 200) return parse_json(answer.body).value("error", answer.body);
    std::string out;
    const Json body = parse_json(answer.body);
    for (const Json& job : body.at("jobs")) out += std::to_string(job.value("id", JobId{0})) + " ";
    return out;
  }
  Json job(JobId id) { return parse_json(send("GET", "/v1/jobs/" + std::to_string(id)).body); }
  void end(JobId id, Phase phase) {
    queue.commit([&](Change& change) {
      change.set_phase(id, Phase::running, "", now);
      change.set_phase(id, phase, "", now);
    });
  }

  TempFolder folder;
  const fs::path file = folder.path() / "store.db";
  Store store{file};
  CommitQueue queue{store};
  double now = 1e9;
  Api api{file, queue, [this] { return now; }};
  Principal who{"ada", Role::submit};
};

TEST_F(JobLists, AreNarrowedByUserTeamPhaseAndName) {
  submit({{"name", "trial-1"}, {"team", "vision"}});
  submit({{"name", "trial-2"}});
  who.name = "bo";
  submit({{"name", "other"}, {"team", "vision"}});
  end(1, Phase::finished);
  end(3, Phase::failed);
  EXPECT_EQ(list({{"user", "ada"}}), "2 1 ");
  EXPECT_EQ(list({{"owner", "bo"}}), "3 ");
  EXPECT_EQ(list({{"team", "vision"}}), "3 1 ");
  EXPECT_EQ(list({{"phase", "finished,failed"}}), "3 1 ");
  EXPECT_EQ(list({{"phase", "finished,failed"}, {"user", "ada"}}), "1 ");
  EXPECT_EQ(list({{"phase", "finished,queued"}, {"live", "1"}}), "2 ");
  EXPECT_EQ(list({{"phase", "finished"}, {"live", "1"}}), "");
  EXPECT_EQ(list({{"name", "trial*"}}), "2 1 ");
  EXPECT_EQ(list({{"name", "trial-?"}, {"team", "vision"}}), "1 ");
  EXPECT_EQ(list({{"name", "trial"}}), "");
  EXPECT_EQ(list({{"phase", "finished,failed"}, {"limit", "1"}}), "3 ");
  EXPECT_EQ(list({{"phase", "finished,failed"}, {"limit", "1"}, {"before", "3"}}), "1 ");
}

TEST_F(JobLists, WhatNobodyKnowsIsRefusedWithWhatIsKnown) {
  EXPECT_EQ(list({{"user", "anybody"}}), "") << "of an empty store";
  submit({{"name", "trial"}, {"team", "vision"}});
  EXPECT_EQ(list({{"user", "adda"}}),
            "user = \"adda\" is not known; did you mean \"ada\"? Allowed: \"ada\"");
  EXPECT_EQ(list({{"owner", "adda"}}), "") << "programs may wait for somebody's first job";
  EXPECT_NE(list({{"team", "visoin"}}).find("did you mean \"vision\"?"), std::string::npos);
  EXPECT_NE(list({{"phase", "queued,runing"}}).find("did you mean \"running\"?"),
            std::string::npos);
  EXPECT_NE(list({{"phase", "queued,"}}).find("allowed: "), std::string::npos);
  EXPECT_NE(list({{"user", "ada"}, {"owner", "ada"}}).find("the same"), std::string::npos);
  who.name = "bo";
  EXPECT_EQ(list({{"user", "bo"}}), "") << "who asks is known";
  LiveView view(std::map<std::string, int64_t>{{"speech", 2}});
  api.show(&view);
  EXPECT_EQ(list({{"team", "speech"}}), "") << "a team with a quota is known";
  api.show(nullptr);
}

TEST_F(JobLists, AJobThatIsToBeginLaterSaysAfterWhat) {
  submit({{"name", "first"}});
  submit({{"name", "second"}, {"after", {1}}});
  EXPECT_EQ(job(2).at("after"), Json::array({1}));
  EXPECT_EQ(job(1).at("after"), Json::array());
  EXPECT_EQ(submit({{"after", {9}}}).status, 404);
  EXPECT_EQ(submit({{"after", 1}}).status, 400);
  EXPECT_EQ(submit({{"after", {"first"}}}).status, 400);
  EXPECT_EQ(submit({{"after", {0}}}).status, 400);
  end(1, Phase::failed);
  const Answer refused = submit({{"after", {1}}});
  EXPECT_EQ(refused.status, 409) << refused.body;
  EXPECT_NE(refused.body.find("job 1 (first) is failed"), std::string::npos) << refused.body;
  EXPECT_EQ(list({}), "2 1 ") << "nothing of those that were refused";
}

// Whoever lost the answer gets it again, also where the same request would be refused by now.
TEST_F(JobLists, ARequestThatIsSentAgainIsCarriedOutOnce) {
  submit({{"name", "first"}});
  const Json body = {{"name", "second"}, {"after", {1}}, {"held", true}};
  const Answer first = submit(body, "key");
  ASSERT_EQ(first.status, 201) << first.body;
  end(1, Phase::failed);
  EXPECT_EQ(submit(body, "key").body, first.body);
  EXPECT_EQ(submit(body, "other").status, 409);
  EXPECT_EQ(list({}), "2 1 ");
}

// All of its jobs or none, and once, however often it is sent.
TEST_F(JobLists, AnArrayIsSubmittedAsAWhole) {
  const auto array = [](std::vector<int64_t> indices) {
    Json out = Json::array();
    for (const int64_t index : indices)
      out.push_back(Json{{"index", index}, {"spec", {{"of", index}}}});
    return out;
  };
  const auto offer = [&](const Json& items, const std::string& name = "sweep",
                         const std::string& key = "") {
    return send("POST", "/v1/jobs", {}, dump_json(Json{{"name", name}, {"array", items}}), key);
  };
  const Answer first = offer(array({0, 7}), "sweep", "key");
  ASSERT_EQ(first.status, 201) << first.body;
  EXPECT_EQ(parse_json(first.body), (Json{{"ids", {1, 2}}}));
  EXPECT_EQ(offer(array({0, 7}), "sweep", "key").body, first.body);
  EXPECT_EQ(job(2).at("name"), "sweep-7");
  EXPECT_EQ(job(2).at("spec"), (Json{{"of", 7}}));
  Json wrong = array({1, 2});
  wrong[1]["spec"] = 3;
  for (const Json& items :
       {Json::array(), array({1, 1}), array({-1}), wrong, Json(3), Json(nullptr)})
    EXPECT_EQ(offer(items).status, 400) << items;
  EXPECT_EQ(offer(array({1}), std::string(199, 'a')).status, 400) << "no name for it";
  EXPECT_EQ(submit({{"array", array({1})}}).status, 400) << "a spec as well";
  EXPECT_EQ(list({}), "2 1 ");
  EXPECT_EQ(list({{"name", "sweep-*"}}), "2 1 ");
}

TEST_F(JobLists, AHeldJobSaysWhoHoldsIt) {
  EXPECT_EQ(submit({{"name", "job"}, {"held", 1}}).status, 400);
  submit({{"name", "job"}, {"held", true}});
  EXPECT_EQ(job(1).at("phase"), "paused");
  EXPECT_EQ(job(1).at("held_by"), "ada");
  LiveView view({});
  api.show(&view);
  EXPECT_EQ(job(1).at("why"),
            "It is held by ada, who submitted it so; `ductile resume 1` lets it begin.");
  EXPECT_EQ(send("POST", "/v1/jobs/1/resume").status, 200);
  EXPECT_FALSE(job(1).contains("held_by"));
  api.show(nullptr);
}

TEST_F(JobLists, NumbersOfATrainingJobAreSentAsLines) {
  submit({{"name", "job"}});
  EXPECT_EQ(send("GET", "/v1/jobs/1/metrics").status, 404) << "it has not begun";
  const fs::path run = folder.path() / "run";
  fs::create_directory(run);
  queue.commit([&](Change& change) { change.set_run(1, run.string(), now); });
  EXPECT_EQ(parse_json(send("GET", "/v1/jobs/1/metrics").body).at("next"), 0);
  write_file_atomic(run / "metrics.jsonl", "{\"step\":1}\n{\"step\":2}\n");
  const Json all = parse_json(send("GET", "/v1/jobs/1/metrics").body);
  EXPECT_EQ(all.at("text"), "{\"step\":1}\n{\"step\":2}\n");
  const Json rest = parse_json(send("GET", "/v1/jobs/1/metrics", {{"from", "11"}}).body);
  EXPECT_EQ(rest.at("text"), "{\"step\":2}\n");
  EXPECT_EQ(rest.at("next"), all.at("next"));
}

// A job keeps its one device, and the other job for which it gave up the second has ended.
TEST_F(JobLists, WhatIsSaidOfAJobThatRunsIsWhatThePolicySaysNow) {
  LiveView view({});
  api.show(&view);
  submit({{"name", "one"}});
  const std::string before = "runs on 1 cpu; on 2 it would be faster, but others would lose more";
  queue.commit([&](Change& change) {
    change.set_phase(1, Phase::running, before, now);
    change.set_holdings(1, {{"here", 1}}, before, now);
  });
  const auto told = [&](const std::string& says) {
    view.set(1, {LiveState::Moment::running, "", LiveState::Cause::none, says});
    const Json listed = parse_json(send("GET", "/v1/jobs").body).at("jobs").at(0);
    EXPECT_EQ(listed.at("reason"), job(1).at("reason"));
    return listed.value("reason", "") + " / " + job(1).value("why", "");
  };
  EXPECT_NE(told("").find("others would lose more"), std::string::npos);
  EXPECT_NE(told("runs on 2 cpu, all that there are").find("others would"), std::string::npos)
      << "it does not hold them yet";
  const std::string newest = told("runs on 1 cpu, and would be no faster on 2");
  EXPECT_EQ(newest.find("others would"), std::string::npos) << newest;
  EXPECT_NE(newest.rfind("would be no faster"), newest.find("would be no faster"))
      << newest << ": both the list and the answer why say so";
}

}  // namespace
}  // namespace ductile::cluster
