#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "ductile/cluster/api.h"
#include "ductile/cluster/metrics_impl.h"
#include "ductile/cluster/testing/metrics_parser.h"
#include "ductile/cluster/why_impl.h"

namespace ductile::cluster {
namespace {

using testing::parse_metrics;

double value_of(const std::map<std::string, testing::MetricsFamily>& all, const std::string& name,
                const std::map<std::string, std::string>& labels = {}, const char* suffix = "") {
  for (const testing::MetricsSample& s : all.at(name).samples)
    if (s.name == name + suffix && s.labels == labels) return s.value;
  throw std::runtime_error(name + ": no such sample");
}

TEST(MetricsParser, RefusesWhatTheFormatDoesNotAllow) {
  for (const char* text :
       {"", "a 1", "1a 1\n", "a{b} 1\n", "a{b=c} 1\n", "a{b=\"c} 1\n", "a{b=\"\\c\"} 1\n", "a{}1\n",
        "# TYPE a blue\na 1\n", "# TYPE a gauge\na x\n", "# TYPE a gauge\na 1\na 1\n",
        "# TYPE a gauge\n# TYPE b gauge\na 1\n", "# TYPE a gauge\na{b=\"1\",b=\"2\"} 1\n",
        "# TYPE a histogram\na_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n",
        "# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n"})
    EXPECT_THROW(parse_metrics(text), std::runtime_error) << text;
  EXPECT_EQ(
      parse_metrics("# TYPE a gauge\na{b=\"x\\n\\\"\\\\\",} 1e3\n")["a"].samples.at(0).labels.at(
          "b"),
      "x\n\"\\");
}

// A service that is paused is one of its owner's jobs all the same.
TEST(LiveView, WhoAnswersNobodyForAWhileIsCountedStill) {
  LiveView view({});
  view.enter(1, "tia", "premium");
  view.enter(2, "tia");
  view.set_serving(1, {});
  view.end_serving(1);
  EXPECT_FALSE(view.serving(1));
  EXPECT_EQ(view.live("tia"), (std::pair<int64_t, int64_t>(2, 2)));
  EXPECT_EQ(view.above(2, "standard").first, 1);
  view.forget(1);
  EXPECT_EQ(view.live("tia"), (std::pair<int64_t, int64_t>(1, 1)));
  EXPECT_EQ(view.above(2, "standard").first, 0);
}

TEST(MetricsText, AnyTextCanBeALabel) {
  MetricsText out;
  out.begin("a", "gauge", "Help.");
  const std::string odd = "quote \" backslash \\ line\nend { } , =";
  out.sample({{"b", odd}}, 1.5);
  EXPECT_EQ(value_of(parse_metrics(out.text()), "a", {{"b", odd}}), 1.5);
}

class Metrics : public ::testing::Test {
 protected:
  Answer send(const std::string& method, const std::string& path, const std::string& body = "") {
    return api.handle({method, path, {}, "", body, Principal{"ada", Role::admin}});
  }
  std::map<std::string, testing::MetricsFamily> get() {
    const Answer answer = send("GET", "/metrics");
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.type, "text/plain; version=0.0.4; charset=utf-8");
    return parse_metrics(answer.body);
  }

  TempFolder folder;
  Store store{folder.path() / "store.db"};
  CommitQueue queue{store};
  Api api{folder.path() / "store.db", queue};
};

TEST_F(Metrics, CountRequestsByRouteAndCode) {
  send("POST", "/v1/jobs", R"({"spec": {}})");
  send("POST", "/v1/jobs", R"({"spec": {}})");
  send("POST", "/v1/jobs", "{}");
  for (const char* path : {"/v1/jobs/1", "/v1/jobs/2", "/v1/jobs/none", "/v2", "/v3"})
    send("GET", path);
  api.count_refusal(401);
  const auto all = get();
  const auto count = [&](const char* method, const char* route, const char* code) {
    return value_of(all, "ductile_requests_total",
                    {{"method", method}, {"route", route}, {"code", code}});
  };
  EXPECT_EQ(count("POST", "/v1/jobs", "201"), 2);
  EXPECT_EQ(count("POST", "/v1/jobs", "400"), 1);
  EXPECT_EQ(count("GET", "/v1/jobs/{job}", "200"), 2);
  EXPECT_EQ(count("GET", "/v1/jobs/{job}", "404"), 1);
  EXPECT_EQ(count("", "", "404"), 2) << "paths of clients make no series";
  EXPECT_EQ(count("", "", "401"), 1);
  EXPECT_EQ(value_of(all, "ductile_request_seconds", {{"method", "POST"}, {"route", "/v1/jobs"}},
                     "_count"),
            3);
  EXPECT_EQ(value_of(all, "ductile_jobs", {{"phase", "queued"}}), 2);
  EXPECT_EQ(value_of(all, "ductile_commits_total"), 2);
  EXPECT_GT(value_of(all, "process_resident_memory_bytes"), 1e6);
  EXPECT_GT(value_of(all, "process_open_fds"), 3);
}

TEST_F(Metrics, SayWhichJobsHoldDevices) {
  for (const char* name : {"one", "two", "three"})
    send("POST", "/v1/jobs",
         fmt::format(R"({{"name": "{}", "team": "vision", "spec": {{}}}})", name));
  EXPECT_FALSE(get().contains("ductile_job_devices"));
  queue.commit([](Change& change) {
    for (const JobId id : {1, 2}) change.set_phase(id, Phase::running, "it runs", 1);
    change.set_holdings(1, {{"a", 2}, {"b", 1}}, "it runs", 1);
    change.set_holdings(2, {{"b", 4}}, "it runs", 1);
  });
  const auto all = get();
  const auto devices = [&](const char* job, const char* name) {
    return value_of(all, "ductile_job_devices",
                    {{"job", job}, {"name", name}, {"team", "vision"}, {"tier", "standard"}});
  };
  EXPECT_EQ(devices("1", "one"), 3);
  EXPECT_EQ(devices("2", "two"), 4);
  EXPECT_EQ(all.at("ductile_job_devices").samples.size(), 2u);
  EXPECT_EQ(value_of(all, "ductile_devices_held"), 7);
}

TEST_F(Metrics, CountGpus) {
  LiveView view({});
  api.show(&view);
  send("POST", "/v1/jobs", R"({"name": "one", "spec": {}})");
  queue.commit([](Change& change) {
    change.set_phase(1, Phase::running, "it runs", 1);
    change.set_holdings(1, {{"a", 2}}, "it runs", 1);
  });
  view.set_hardware({{"a", {.usable_gpus = 4}}, {"b", {.usable_gpus = 2}}});
  view.set_gpus(1, 3);
  const auto all = get();
  EXPECT_EQ(value_of(all, "ductile_gpus"), 6);
  EXPECT_EQ(value_of(all, "ductile_gpus_held"), 3);
}

// A commit is counted before who waits for it is told.
TEST_F(Metrics, ACommitIsCountedWhenItIsAnswered) {
  for (uint64_t i = 1; i <= 50; ++i) {
    queue.commit([](Change& change) { change.record(0, "test", "{}", 1); });
    EXPECT_GE(queue.commits(), i);
  }
}

TEST_F(Metrics, JobsThatWaitAreCountedInFewReasons) {
  LiveView view({});
  api.show(&view);
  using Moment = LiveState::Moment;
  using Cause = LiveState::Cause;
  for (JobId id = 1; id <= 1000; ++id)
    view.set(id, {Moment::waiting, "the sentence of job " + std::to_string(id),
                  id % 2 == 0 ? Cause::devices : Cause::quota});
  view.set(1001, {Moment::running, ""});
  view.forget(2);
  view.set(4, {Moment::starting, ""});
  view.note_round(0.25, 0.5);
  view.note_round(0.5, 0.75);
  const auto all = get();
  const auto count = [&](const char* state, const char* reason) {
    return value_of(all, "ductile_live_jobs", {{"state", state}, {"reason", reason}});
  };
  EXPECT_EQ(count("waiting", "devices"), 498);
  EXPECT_EQ(count("waiting", "quota"), 500);
  EXPECT_EQ(count("running", ""), 1);
  EXPECT_EQ(count("starting", ""), 1);
  EXPECT_EQ(all.at("ductile_live_jobs").samples.size(), 4u);
  EXPECT_EQ(value_of(all, "ductile_rounds_total"), 2);
  EXPECT_EQ(value_of(all, "ductile_round_seconds_total"), 0.75);
  EXPECT_EQ(value_of(all, "ductile_last_round_seconds"), 0.5);
  EXPECT_EQ(value_of(all, "ductile_last_turn_seconds"), 0.75);
}

}  // namespace
}  // namespace ductile::cluster
