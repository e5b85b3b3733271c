// Jobs by stages in a service, with real processes: they grow and shrink by whole pipelines, and
// their results are those of undisturbed ones.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/ckpt/checkpoint.h"
#include "ductile/cluster/testing/live_service.h"

namespace ductile::cluster {
namespace {

using namespace testing;

constexpr int64_t kForEver = 1'000'000;  // steps

// Two pipelines of two stages: four virtual ranks.
std::string two_pipelines() { return "replicas = 2\nmicro_batches = 4\n"; }

Json plan_of(int64_t ranks, const std::string& stages, double seconds, const std::string& text) {
  return {{"virtual_ranks", ranks}, {"pipelined", stages}, {"seconds", seconds}, {"plan", text}};
}

Json by_plans(int64_t steps, const Json& plans) {
  const std::string job = fmt::format(
      "[train]\nmax_steps = {}\nvirtual_ranks = 4\nbatch_size = 64\n[checkpoint]\nevery_steps = "
      "20\n",
      steps);
  return {{"spec", {{"job", job}, {"plans", plans}}}};
}

// In a service whose steps take work, of which each worker does its part.
void take_work() { ::setenv("DUCTILE_TEST_WORK_MS", "40", 1); }

void choose_four(ServiceOptions& options) {
  options.devices = 4;
  options.policy = "ductile";
}

int64_t devices_of(const Json& job) { return job.at("holdings").value("here", int64_t{0}); }

// All numbers of devices that the job ever held.
std::set<int64_t> numbers_held(LiveService& cluster, JobId id) {
  std::set<int64_t> out;
  const Json answer = cluster.get(fmt::format("/v1/events?job={}&limit=1000", id));
  for (const Json& event : answer.at("events"))
    if (event.at("kind") == "allocation")
      out.insert(event.at("body").at("nodes").value("here", int64_t{0}));
  return out;
}

int64_t newest_step(const fs::path& run) {
  const auto kept = ckpt::list(run / "checkpoints");
  return kept.empty() ? 0 : kept.front().step;
}

// Until the job has saved something with what it holds now.
void wait_for_steps(LiveService& cluster, JobId id, const fs::path& run) {
  const int64_t before = newest_step(run);
  cluster.wait(id, [&](const Json&) { return newest_step(run) > before; });
}

// What the newest checkpoint has is what an undisturbed job has after as many steps.
void expect_right_bits(const fs::path& run) {
  const int64_t step = newest_step(run);
  ASSERT_GT(step, 0);
  EXPECT_EQ(link::testing::read_checkpoint(run / "checkpoints", step),
            link::testing::run_undisturbed(step, kRanks));
}

TEST(PipelinedJob, ShrinksAndGrowsByWholePipelinesWithTheRightBits) {
  LiveService cluster(choose_four, take_work);
  const Json spec = by_plans(kForEver, Json::array({plan_of(4, two_pipelines(), 0.02, "{}")}));
  const JobId first = cluster.submit("first", kForEver, 4, 1, spec);
  const Json begun = cluster.wait(first, [](const Json& job) { return devices_of(job) == 4; });
  EXPECT_EQ(begun.at("stages").at("devices"), 2);
  EXPECT_EQ(begun.at("stages").at("pipelines"), 2);
  EXPECT_EQ(begun.at("stages").at("least"), 2);
  EXPECT_FALSE(begun.at("spec").at("plans").at(0).contains("plan"));
  cluster.wait_for_workers(first);
  // It needs one device, and a whole pipeline makes room.
  const JobId second = cluster.submit("second", 60, 1, 1, {{"tier", "premium"}});
  cluster.wait(first, [](const Json& job) { return devices_of(job) == 2; });
  const fs::path run = begun.value("run", "");
  wait_for_steps(cluster, first, run);
  expect_right_bits(run);
  cluster.expect_result(second);
  const Json grown = cluster.wait(first, [](const Json& job) { return devices_of(job) == 4; });
  EXPECT_NE(grown.at("why").get<std::string>().find("room for 2 of its 2 pipelines of 2 devices"),
            std::string::npos)
      << grown.at("why");
  wait_for_steps(cluster, first, run);
  cluster.act(first, "pause");
  cluster.wait_for(first, "paused");
  expect_right_bits(run);
  const std::set<int64_t> numbers = numbers_held(cluster, first);
  EXPECT_TRUE(std::ranges::includes(std::set<int64_t>{0, 2, 4}, numbers)) << Json(numbers);
  cluster.act(first, "cancel");
}

TEST(PipelinedJob, WaitsForAWholePipeline) {
  LiveService cluster(choose_four);
  const JobId all = cluster.submit("all", kForEver, 3, 3, {{"tier", "premium"}});
  cluster.wait_for_workers(all);
  const JobId id = cluster.submit(
      "staged", 40, 4, 1, by_plans(40, Json::array({plan_of(4, two_pipelines(), 0.02, "")})));
  const Json waits = cluster.wait(id, [](const Json& job) {
    return job.value("why", "").find("pipelines") != std::string::npos;
  });
  const std::string why = waits.value("why", "");
  EXPECT_NE(why.find("It asks for 2 devices, and 1 of 4 are free"), std::string::npos) << why;
  EXPECT_NE(why.find("whole pipelines alone: its plan has 2 of 2 devices each"), std::string::npos)
      << why;
  cluster.act(all, "cancel");
  cluster.expect_result(id);
}

// How many workers each generation has that was formed.
std::vector<int64_t> sizes_of_generations(const fs::path& run) {
  std::vector<int64_t> out;
  std::istringstream lines(read_file(run / "events.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const Json event = Json::parse(line, nullptr, false);
    if (!event.is_object() || event.value("event", "") != "generation") continue;
    const std::string text = event.value("text", "");
    const size_t with = text.find(" with ");
    if (with != std::string::npos) out.push_back(std::stoll(text.substr(with + 6)));
  }
  return out;
}

// A lost worker's stages would else move to the others, until there is another one.
TEST(PipelinedJob, WorkersOfWhichTooFewHaveMemoryWaitForAnother) {
  LiveService cluster(choose_four, take_work);
  Json plan = plan_of(4, two_pipelines(), 0.02, "");
  plan["least_devices"] = 4;
  const JobId id = cluster.submit("roomy", kForEver, 4, 1, by_plans(kForEver, Json::array({plan})));
  const Json job = cluster.wait(id, [](const Json& now) { return devices_of(now) == 4; });
  const fs::path run = job.value("run", "");
  wait_for_steps(cluster, id, run);
  const size_t before = sizes_of_generations(run).size();
  const auto workers = link::workers_of(run.string());
  ASSERT_FALSE(workers.empty());
  ::kill(*workers.begin(), SIGKILL);
  cluster.wait(id, [&](const Json&) { return sizes_of_generations(run).size() > before; });
  wait_for_steps(cluster, id, run);
  expect_right_bits(run);
  for (const int64_t size : sizes_of_generations(run)) EXPECT_EQ(size, 4);
  cluster.act(id, "cancel");
}

// The plan for what it got, which stays with it, whatever becomes of the service.
TEST(PipelinedJob, IsBegunByTheBestOfItsPlansAndGoesOnByIt) {
  LiveService cluster(choose_four, take_work);
  const std::string text = R"({"format":"ductile.plan"})";
  const Json plans = Json::array({plan_of(2, "replicas = 1\nmicro_batches = 4\n", 0.08, ""),
                                  plan_of(4, two_pipelines(), 0.02, text)});
  const JobId id = cluster.submit("planned", kForEver, 4, 1, by_plans(kForEver, plans));
  const Json begun = cluster.wait(id, [](const Json& job) { return devices_of(job) == 4; });
  cluster.wait_for_workers(id);
  const fs::path run = begun.value("run", "");
  EXPECT_EQ(read_file(run / "plan.json"), text);
  EXPECT_NE(read_file(run / "job.toml").find("virtual_ranks = 4"), std::string::npos);
  const auto chosen = [&] {
    std::vector<Json> out;
    const Json answer = cluster.get(fmt::format("/v1/events?job={}&limit=1000", id));
    for (const Json& event : answer.at("events"))
      if (event.at("kind") == "plan") out.push_back(event.at("body"));
    return out;
  };
  cluster.wait(id, [&](const Json&) { return !chosen().empty(); });
  EXPECT_EQ(chosen().front().at("plan"), 2);
  cluster.kill_service();
  cluster.start();
  // One pipeline of it; the other plan has as many devices in all.
  cluster.send("POST", fmt::format("/v1/jobs/{}/resize", id), R"({"max_devices":2})");
  const Json shrunk = cluster.wait(
      id, [](const Json& job) { return devices_of(job) == 2 && job.contains("stages"); });
  EXPECT_EQ(shrunk.at("stages").at("pipelines"), 2);
  EXPECT_EQ(shrunk.at("stages").at("plans"), 1);
  wait_for_steps(cluster, id, run);
  cluster.act(id, "pause");
  cluster.wait_for(id, "paused");
  expect_right_bits(run);
  EXPECT_EQ(chosen().size(), 1u);
  cluster.act(id, "cancel");
}

TEST(PipelinedJob, PlansThatCannotBeComparedOrRunAreRefused) {
  LiveService cluster(choose_four);
  const auto refused = [&](const Json& plans) {
    const Json answer = cluster.offer("bad", 10, 1, 1, by_plans(10, plans));
    EXPECT_EQ(answer.value("status", 0), 400) << answer;
    return answer.at("body").value("error", "");
  };
  Json untimed = plan_of(4, two_pipelines(), 1, "");
  untimed.erase("seconds");
  const Json good = plan_of(4, two_pipelines(), 1, "");
  EXPECT_NE(refused(Json::array({good, untimed})).find("plan 2 has no predicted seconds"),
            std::string::npos);
  EXPECT_NE(refused(Json::array({good, plan_of(3, two_pipelines(), 1, "")}))
                .find("train.pipelined.replicas"),
            std::string::npos);
  Json foreign = good;
  foreign["job"] = "[model]\nlibrary = \"/tmp/mine.so\"\n";
  EXPECT_NE(refused(Json::array({foreign})).find("job"), std::string::npos);
  EXPECT_NE(refused(Json::array({plan_of(4, "replica = 2\n", 1, "")})).find("replicas"),
            std::string::npos);
  EXPECT_NE(refused(Json::array({Json(7)})).find("plans"), std::string::npos);
  Json roomless = good;
  roomless["least_devices"] = 0;
  EXPECT_NE(refused(Json::array({roomless})).find("least_devices"), std::string::npos);
}

// `ductile train --resume RUN --plan FILE` was killed before a step was done: its workers alone
// know whether the plan can be run, and a refusal by them would end the job.
TEST(PipelinedJob, WaitsWhileItsPlanIsBeingChangedByHand) {
  LiveService cluster;
  const JobId id = cluster.submit("job", 200);
  cluster.wait_for_workers(id);
  cluster.act(id, "pause");
  const fs::path run = cluster.wait_for(id, "paused").value("run", "");
  const std::string job = read_file(run / "job.toml");
  const fs::path change = run / "former_plan.json";
  const Json value = {{"job", job + "# before\n"}, {"new_job", job}, {"new_plan", "[]"}};
  write_file_atomic(change, value.dump());
  cluster.act(id, "resume");
  const Json waits = cluster.wait(id, [](const Json& now) {
    return now.value("reason", "").find("another plan by hand") != std::string::npos ||
           now.at("phase") == "failed";
  });
  EXPECT_EQ(waits.at("phase"), "queued") << waits;
  EXPECT_NE(waits.value("reason", "").find("ductile train --resume"), std::string::npos) << waits;
  EXPECT_TRUE(fs::exists(change));
  fs::remove(change);
  cluster.expect_result(id);
}

}  // namespace
}  // namespace ductile::cluster
