// Whether the workers that are left have room for the stages of a plan, counted by hand.
#include "ductile/cli/plan_memory.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/base/testing.h"
#include "ductile/cli/own_plan.h"
#include "ductile/cli/pipeline_plan.h"
#include "ductile/cli/replan.h"
#include "ductile/spec/stage_state.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::json;

// Three stages of 10, 20 and 30 bytes, of which 4, 5 and 6 are state, on devices of 35.
std::string three_stages() {
  Json stages = Json::array();
  for (int s = 0; s < 3; ++s)
    stages.push_back(
        {{"peak_memory", 10 * (s + 1)}, {"memory_limit", 35}, {"state_memory", 4 + s}});
  return dump_json(Json{{"evaluation", {{"stages", std::move(stages)}, {"state_memory", 15}}}});
}

spec::JobOptions job_of(int64_t virtual_ranks) {
  spec::JobOptions job;
  job.train.method = "pipelined";
  job.train.virtual_ranks = virtual_ranks;
  job.train.shard_optimizer = true;
  return job;
}

TEST(PlanMemory, StagesThatTakeTurnsNeedRoomSideBySide) {
  const auto memory = PlanMemory::of(job_of(3), three_stages());
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->limit(), 35);
  EXPECT_EQ(memory->most(3), 30);
  EXPECT_EQ(memory->most(1), 60);
  EXPECT_TRUE(memory->fits(3, 0));
  EXPECT_TRUE(memory->fits(2, 0)) << "the first two need 30, the third one as well";
  EXPECT_FALSE(memory->fits(1, 0));
  EXPECT_EQ(memory->fewest(0), 2);
  EXPECT_TRUE(memory->fits(1, 60)) << "all on one machine that has as much";
  EXPECT_FALSE(memory->fits(1, 59));
  EXPECT_EQ(memory->fewest(60), 1);
}

// Those on which the plan was judged may be the ones that were lost.
TEST(PlanMemory, OfOtherDevicesIsCountedWithTheirs) {
  auto memory = PlanMemory::of(job_of(3), three_stages());
  ASSERT_TRUE(memory.has_value());
  EXPECT_TRUE(memory->fits(2, 0));
  memory->limit_to(40);
  EXPECT_EQ(memory->limit(), 35);
  memory->limit_to(29);
  EXPECT_EQ(memory->limit(), 29);
  EXPECT_FALSE(memory->fits(2, 0)) << "the first two need 30";
}

// On devices of 5, two workers have three of these stages each, and three have the large ones
// together.
TEST(PlanMemory, ANumberOfWorkersIsEnoughOnlyIfAllLargerOnesAre) {
  Json stages = Json::array();
  for (const int peak : {1, 1, 3, 3, 1, 1})
    stages.push_back({{"peak_memory", peak}, {"memory_limit", 5}, {"state_memory", 0}});
  const std::string plan = dump_json(Json{{"evaluation", {{"stages", std::move(stages)}}}});
  const auto memory = PlanMemory::of(job_of(6), plan);
  ASSERT_TRUE(memory.has_value());
  ASSERT_EQ(memory->most(2), 5);
  ASSERT_EQ(memory->most(3), 6);
  ASSERT_EQ(memory->most(5), 3);
  EXPECT_EQ(memory->fewest(0), 5);
  EXPECT_FALSE(memory->fits(2, 0));
  EXPECT_TRUE(memory->fits(5, 0));
}

// A worker without sharded state holds that of all stages; one with two replicas of a stage holds
// the stage's once.
TEST(PlanMemory, CountsStateAsWorkersHoldIt) {
  spec::JobOptions whole = job_of(3);
  whole.train.shard_optimizer = false;
  EXPECT_EQ(PlanMemory::of(whole, three_stages())->most(3), 24 + 15);
  spec::JobOptions replicas = job_of(4);
  replicas.train.pipelined.stage_replicas = {2, 1, 1};
  EXPECT_EQ(PlanMemory::of(replicas, three_stages())->most(1), 60 + 6);
  spec::JobOptions beside = job_of(6);
  beside.train.pipelined.replicas = 2;
  EXPECT_EQ(PlanMemory::of(beside, three_stages())->most(1), 60) << "they run one after the other";
}

// Two parts of the first stage, of which each has 10 bytes by the plan, 4 of them the state of its
// own columns: a worker with both has both, of however many pipelines.
TEST(PlanMemory, PartsOfAStageHoldOtherColumns) {
  spec::JobOptions divided = job_of(4);
  divided.train.pipelined.tensor = {2, 1, 1};
  EXPECT_EQ(PlanMemory::of(divided, three_stages())->most(1), 2 * 10 + 20 + 30);
  EXPECT_EQ(PlanMemory::of(divided, three_stages())->most(2), 20 + 30);
  divided.train.virtual_ranks = 8;
  divided.train.pipelined.replicas = 2;
  EXPECT_EQ(PlanMemory::of(divided, three_stages())->most(1), 2 * 10 + 20 + 30);
}

TEST(PlanMemory, OfAnotherSplitThanTheJobsIsSaidByName) {
  spec::JobOptions job = job_of(4);
  EXPECT_EQ(note_on_split(job, three_stages(), "plan.json"), "");
  job.train.pipelined.tensor = {1, 1, 1};
  EXPECT_EQ(note_on_split(job, three_stages(), "plan.json"), "");
  job.train.pipelined.tensor = {1, 2, 1};
  const std::string one = note_on_split(job, three_stages(), "plan.json");
  EXPECT_TRUE(one.starts_with("plan.json: stage 1 is divided among parts (tensor > 1)")) << one;
  job.train.pipelined.tensor = {2, 1, 2};
  const std::string two = note_on_split(job, three_stages(), "plan.json");
  EXPECT_TRUE(two.starts_with("plan.json: stages 0, 2 are divided among parts")) << two;
  EXPECT_EQ(note_on_split(job, R"({"stages": []})", "plan.json"), "") << "it predicts nothing";
  EXPECT_NE(note_on_split(job, R"({"predicted_seconds": 2, "stages": []})", "plan.json"), "");
}

// No step of theirs ends in a minute, and no signal is heard meanwhile.
TEST(PipelinePlan, OfTooManyStagesTimesMicroBatchesIsRefused) {
  const TempFolder folder("ductile-plan");
  const fs::path file = folder.path() / "plan.json";
  const auto plan = [&](int stages) {
    Json all = Json::array();
    for (int s = 0; s < stages; ++s)
      all.push_back({{"ops", Json::array({fmt::format("op{}", s)})},
                     {"micro_batch", 1},
                     {"order", "F4096B4096"}});
    write_file_atomic(file, dump_json(Json{{"format", "ductile.plan"},
                                           {"version", 1},
                                           {"batch", 4096},
                                           {"stages", std::move(all)}}));
    spec::JobOptions job;
    job.train.batch_size = 4096;
    return set_plan(job, file);
  };
  EXPECT_NO_THROW(plan(256));
  const std::string text = testing::text_of([&] { plan(257); });
  EXPECT_NE(text.find("257 stages, with all replicas, of 4096 micro-batches each have 1052672 "
                      "passes in a step, and a job has at most 1048576"),
            std::string::npos)
      << text;
}

// A captured graph, which was planned, knows of no optimiser.
TEST(PlanMemory, CountsTheStateThatTheJobHasBeyondItsPlan) {
  spec::JobOptions job = job_of(3);
  job.optimizer.name = "adamw";
  Json plan = Json::parse(three_stages());
  plan["evaluation"]["state_factor"] = 1;
  plan["evaluation"]["optimizer_factor"] = 0;
  const double has = spec::stage_state_factor(job) + 2;
  const auto memory = PlanMemory::of(job, dump_json(plan));
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->most(3), 30 + (has - 1) * 6);
  EXPECT_EQ(memory->most(1), 60 + (has - 1) * 15);
  EXPECT_EQ(state_scale(job, plan["evaluation"], "plan").optimizer, has - 1);
}

// A remedy that is followed leads to no second one.
TEST(PlanMemory, ARemedyNamesAllThatHasToBeSet) {
  spec::JobOptions job = job_of(3);
  job.train.shard_optimizer = false;
  const auto said = [&](int limit) {  // own memory of the largest stage: 30, all state: 15
    Json plan = Json::parse(three_stages());
    for (Json& stage : plan["evaluation"]["stages"]) stage["memory_limit"] = limit;
    return testing::text_of([&] { check_memory(job, dump_json(plan), "plan.json"); });
  };
  EXPECT_NE(said(37).find("set train.shard_optimizer = true, which divides them by stage, or plan"),
            std::string::npos)
      << said(37);
  EXPECT_NE(said(35).find("by stage, and train.shard_copies = 1, with which"), std::string::npos)
      << said(35);
  job.train.shard_optimizer = true;
  job.train.shard_copies = 1;
  EXPECT_NO_THROW(check_memory(job, three_stages(), "plan.json"));
}

TEST(PlanMemory, CopiesThatAreAskedForLieByStage) {
  spec::JobOptions job = job_of(3);
  job.train.shard_copies = 1;
  EXPECT_FALSE(may_lie_by_stage(job)) << "nobody has said that a lost worker may cost so much";
  EXPECT_TRUE(may_lie_by_stage(job, /*asked_copies=*/true));
  job.train.pipeline_exact = true;
  EXPECT_FALSE(may_lie_by_stage(job, /*asked_copies=*/true));
}

TEST(PlanMemory, APlanThatDoesNotSayIsTakenAsItIs) {
  EXPECT_FALSE(PlanMemory::of(job_of(3), "").has_value());
  EXPECT_FALSE(PlanMemory::of(job_of(3), R"({"stages": []})").has_value());
  EXPECT_FALSE(PlanMemory::of(job_of(2), three_stages()).has_value()) << "of other stages";
  Json unlimited = Json::parse(three_stages());
  unlimited["evaluation"]["stages"][1].erase("memory_limit");
  EXPECT_FALSE(PlanMemory::of(job_of(3), dump_json(unlimited)).has_value());
}

TEST(PlanMemory, TooFewWorkersAreRefusedWithTheNumberThatWouldDo) {
  server::HostSetup hosts;
  hosts.hosts.resize(1);
  EXPECT_NO_THROW(check_fewest(job_of(3), three_stages(), "plan.json", 2, hosts));
  const std::string text =
      testing::text_of([&] { check_fewest(job_of(3), three_stages(), "plan.json", 1, hosts); });
  EXPECT_NE(text.find("plan.json: 1 worker would need up to 60"), std::string::npos) << text;
  EXPECT_NE(text.find("use --workers 2 or more"), std::string::npos) << text;
}

// Plans, by the bytes that the search was to leave free: what the copies of each take.
TEST(OwnPlan, IsSearchedForAgainWithRoomForWhatItsWorkersHoldOfOtherStages) {
  std::vector<double> asked;
  double least = 0, most = 100;
  const auto found = [&] {
    asked.clear();
    return plan_with_room(
        [&](double free) -> std::optional<std::string> {
          asked.push_back(free);
          if (free > most) return std::nullopt;
          return fmt::format("{}", free);
        },
        [&](const std::string& plan) -> std::optional<LackOfRoom> {
          if (std::stod(plan) >= least) return std::nullopt;
          return LackOfRoom{"stage 0 needs more", plan == "0" ? 40.0 : 48.0};
        });
  };
  EXPECT_EQ(found(), "0");
  EXPECT_EQ(asked, (std::vector<double>{0}));
  least = 30;
  EXPECT_EQ(found(), "40") << "as much as the copies of the first plan take";
  EXPECT_EQ(asked, (std::vector<double>{0, 40}));
  least = 45;
  EXPECT_EQ(found(), "48") << "those of the second one take more";
  most = 35;
  least = 25;
  EXPECT_EQ(found(), "30") << "no plan leaves 40, and one that leaves 20 has copies of more";
  EXPECT_EQ(asked, (std::vector<double>{0, 40, 20, 30}));
  most = 5;
  const std::string text = testing::text_of([&] { (void)found(); });
  EXPECT_NE(text.find("no plan was found that has room for what its workers hold of other stages; "
                      "stage 0 needs more"),
            std::string::npos)
      << text;
  EXPECT_EQ(asked, (std::vector<double>{0, 40, 20, 10, 5}));
}

TEST(OwnPlan, ThatLacksRoomByItselfIsNotSearchedForAgain) {
  int searches = 0;
  const std::string text = testing::text_of([&] {
    (void)plan_with_room(
        [&](double) -> std::optional<std::string> {
          ++searches;
          return "plan";
        },
        [](const std::string&) -> std::optional<LackOfRoom> { return LackOfRoom{"too large"}; });
  });
  EXPECT_EQ(text.find("no plan was found"), std::string::npos) << text;
  EXPECT_NE(text.find("too large"), std::string::npos) << text;
  EXPECT_EQ(searches, 1);
}

// `ductile submit --plan` then ends as one that was interrupted, and nothing is submitted.
TEST(OwnPlan, ASignalWhileAPlanIsLookedAtIsNoFaultOfIt) {
  const TempFolder folder;
  const auto fault_by = [&](const std::string& script) {
    const fs::path worker = folder.path() / "worker";
    write_file_atomic(worker, "#!/bin/sh\n" + script);
    fs::permissions(worker, fs::perms::owner_all);
    ::setenv("DUCTILE_WORKER", worker.c_str(), 1);
    const std::optional<std::string> fault = fault_of_plan("");
    ::unsetenv("DUCTILE_WORKER");
    return fault;
  };
  EXPECT_EQ(fault_by("kill -TERM $PPID; exec sleep 1000\n"), std::nullopt);
  EXPECT_EQ(fault_by("exit 1\n"), "") << "nobody can say it here";
}

TEST(Replan, WithoutAGraphIsAnErrorThatSaysSo) {
  const std::string text =
      testing::text_of([] { PlanSearch(job_of(3), three_stages(), {1}, {}); }, ErrorCode::conflict);
  EXPECT_NE(text.find("memory of 1 worker: too little"), std::string::npos) << text;
  EXPECT_NE(text.find("plan.json holds no graph"), std::string::npos) << text;
}

}  // namespace
}  // namespace ductile::cli
