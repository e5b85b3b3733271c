// Another plan for a run that goes on, and commands that are killed while nobody knows whether it
// can be run: what the next one finds at each instant.
#include "ductile/link/plan_change.h"

#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/base/testing.h"
#include "ductile/ckpt/writer.h"
#include "ductile/cli/other_plan.h"
#include "ductile/run/diary.h"
#include "ductile/run/progress.h"
#include "ductile/run/trace.h"
#include "ductile/spec/job.h"

namespace ductile::cli {
namespace {

using link::PlanChange;
using Json = nlohmann::json;

struct ChangedRun {
  TempFolder place;
  const run::RunFolder folder = run::RunFolder::create_at(place.path() / "run", "name = \"old\"\n");
  const fs::path former = folder.path() / "former_plan.json";

  ChangedRun() { write_file_atomic(run::plan_file(folder), "[1]"); }
  std::string job() const { return read_file(folder.job_file()); }
  std::string plan() const { return read_file(run::plan_file(folder)); }
};

constexpr const char* kOld = "name = \"old\"\n";
constexpr const char* kNew = "name = \"new\"\n";

std::string progress(int64_t step) {
  run::Progress line;
  line.step = step;
  return run::encode(line);
}

TEST(PlanChange, IsTakenBackByWhoeverFindsTheRefusal) {
  const ChangedRun run;
  (void)PlanChange::put(run.folder, {kNew, "[2]"});  // and this command is killed
  EXPECT_EQ(run.job(), kNew);
  EXPECT_EQ(run.plan(), "[2]");
  std::optional<PlanChange> found = PlanChange::left_open(run.folder);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(run.job(), kNew) << "workers may go on by it";
  EXPECT_TRUE(found->take_back());
  EXPECT_EQ(run.job(), kOld);
  EXPECT_EQ(run.plan(), "[1]");
  EXPECT_FALSE(fs::exists(run.former));
  EXPECT_FALSE(found->take_back());
  EXPECT_FALSE(PlanChange::left_open(run.folder).has_value());
}

TEST(PlanChange, BeginsBeforeTheJobIsWrittenAndEndsAfterIt) {
  const ChangedRun run;
  (void)PlanChange::put(run.folder, {kNew, "[2]"});
  // Killed behind the plan, and before the job.
  write_file_atomic(run.folder.job_file(), kOld);
  EXPECT_FALSE(PlanChange::left_open(run.folder).has_value());
  EXPECT_EQ(run.job(), kOld);
  EXPECT_EQ(run.plan(), "[1]");
  EXPECT_FALSE(fs::exists(run.former));
  // Killed while it was taken back.
  (void)PlanChange::put(run.folder, {kNew, "[2]"});
  write_file_atomic(run::plan_file(run.folder), "[1]");
  EXPECT_TRUE(PlanChange::left_open(run.folder).has_value());
  EXPECT_EQ(run.plan(), "[2]") << "job and plan belong together";
}

TEST(PlanChange, AStepByThePlanAcceptsIt) {
  const ChangedRun run;
  PlanChange change = PlanChange::put(run.folder, {kNew, "[2]"});
  change.hear("no line of ours");
  change.hear(progress(7));
  change.hear(progress(7));
  EXPECT_TRUE(fs::exists(run.former));
  change.hear(progress(8));
  EXPECT_FALSE(fs::exists(run.former));
  EXPECT_FALSE(change.take_back()) << "what goes wrong later is not the plan's fault";
  EXPECT_EQ(run.job(), kNew);
}

// Two plans in a row that nobody accepted: the one before both comes back.
TEST(PlanChange, AnotherOneKeepsWhatTheFirstOneFound) {
  const ChangedRun run;
  fs::remove(run::plan_file(run.folder));
  (void)PlanChange::put(run.folder, {kNew, "[2]"});
  PlanChange second = PlanChange::put(run.folder, {"name = \"newer\"\n", "[3]"});
  EXPECT_EQ(run.plan(), "[3]");
  EXPECT_TRUE(second.take_back());
  EXPECT_EQ(run.job(), kOld);
  EXPECT_FALSE(fs::exists(run::plan_file(run.folder))) << "there was none";
}

// Whoever is killed between two writes leaves the plan of before within reach.
TEST(PlanChange, NoKillLosesThePlanBeforeAllChanges) {
  const ChangedRun run;
  for (int kill = 0; kill < 60; ++kill) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        for (int i = 0;; ++i)
          (void)PlanChange::put(run.folder, {i % 2 == 0 ? kNew : "name = \"newer\"\n", "[2]"});
      } catch (const std::exception&) {
      }
      _exit(1);
    }
    ASSERT_GT(child, 0);
    usleep(static_cast<useconds_t>(1000 + 700 * kill % 9000));
    ::kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    std::optional<PlanChange> found = PlanChange::left_open(run.folder);
    if (found && kill % 4 == 3) {
      EXPECT_TRUE(found->take_back());
    }
    if (!fs::exists(run.former)) {
      EXPECT_EQ(run.job(), kOld) << "kill " << kill;
      EXPECT_EQ(run.plan(), "[1]");
    }
  }
}

TEST(PlanChange, WhatSomebodyHasWrittenSinceStays) {
  const ChangedRun run;
  (void)PlanChange::put(run.folder, {kNew, "[2]"});
  write_file_atomic(run.folder.job_file(), "name = \"mine\"\n");
  EXPECT_FALSE(PlanChange::left_open(run.folder).has_value());
  EXPECT_EQ(run.job(), "name = \"mine\"\n");
  EXPECT_FALSE(fs::exists(run.former));
  write_file_atomic(run.former, "{\"job\": 1}");
  const std::string text =
      testing::text_of([&] { PlanChange::left_open(run.folder); }, ErrorCode::data_loss);
  EXPECT_NE(text.find("former_plan.json: job must be text, it is 1; "), std::string::npos) << text;
  EXPECT_NE(text.find("remove it"), std::string::npos) << text;
}

// A job of a service fails for each of them, so each says what can be done about it.
TEST(PlanChange, WhateverIsWrongWithItsFileIsSaidWithARemedy) {
  const ChangedRun run;
  const auto expect_remedy = [&](const std::string& what) {
    const std::string text =
        testing::text_of([&] { PlanChange::left_open(run.folder); }, ErrorCode::data_loss);
    EXPECT_NE(text.find("former_plan.json"), std::string::npos) << what << ": " << text;
    EXPECT_NE(text.find("remove it, and the run goes on as job.toml says"), std::string::npos)
        << what << ": " << text;
    fs::remove_all(run.former);
  };
  for (const char* damaged : {"", "{\"job\": \"", "[]", "null", "\xff\xfe", "{}"}) {
    write_file_atomic(run.former, damaged);
    expect_remedy(damaged);
  }
  ASSERT_EQ(::mkfifo(run.former.c_str(), 0600), 0);
  expect_remedy("a FIFO");
  fs::create_directory(run.former);
  expect_remedy("a folder");
  fs::create_symlink("/dev/zero", run.former);
  expect_remedy("a device");
  EXPECT_FALSE(PlanChange::left_open(run.folder).has_value());
}

// The changes that the diary tells of.
std::vector<Json> told(const ChangedRun& run) {
  std::vector<Json> out;
  run::for_each_diary_line(run.folder.events_file(), [&](const Json& line) {
    if (line.value("kind", "") == "replan") out.push_back(line);
  });
  return out;
}

Json figures(int64_t stages) {
  return {{"stages", stages}, {"replicas", "1"}, {"micro_batches", 4}, {"ranks", stages}};
}

// As ductile train writes it, of a run that had so many stages before, and two workers.
PlanChange::New change(const char* job, int64_t before, bool same) {
  return {job, "[2]",
          Json{{"kind", "replan"},
               {"step", 0},
               {"before", figures(before)},
               {"now", figures(8)},
               {"same_result", same},
               {"may_round", false}},
          2};
}

TEST(PlanChange, IsToldOnceItIsAcceptedAndNotBefore) {
  const ChangedRun run;
  PlanChange refused = PlanChange::put(run.folder, change(kNew, 1, true));
  EXPECT_EQ(PlanChange::left_open(run.folder)->workers_before(), 2);
  EXPECT_TRUE(refused.take_back());
  EXPECT_TRUE(told(run).empty());
  (void)PlanChange::put(run.folder, change(kNew, 1, true));
  PlanChange found = *PlanChange::left_open(run.folder);  // the command was killed
  found.hear(progress(0));
  EXPECT_TRUE(told(run).empty());
  found.hear(progress(1));
  ASSERT_EQ(told(run).size(), 1U);
  EXPECT_EQ(told(run)[0].at("before"), figures(1));
  found.accept();
  EXPECT_EQ(told(run).size(), 1U);
}

// Nobody did a step by the first one, so the second one is compared with the job of before both.
TEST(PlanChange, OfTwoInARowTheFirstOneHasChangedNothing) {
  const ChangedRun run;
  EXPECT_FALSE(PlanChange::job_before(run.folder).has_value());
  (void)PlanChange::put(run.folder, change(kNew, 1, false));
  EXPECT_EQ(PlanChange::job_before(run.folder), kOld);
  EXPECT_EQ(run.job(), kNew) << "it is only looked at";
  PlanChange::New next = change("name = \"newer\"\n", 1, true);
  next.workers_before = 9;
  PlanChange second = PlanChange::put(run.folder, std::move(next));
  EXPECT_EQ(second.workers_before(), 2) << "those of the plan that may come back";
  EXPECT_EQ(PlanChange::job_before(run.folder), kOld);
  second.accept();
  ASSERT_EQ(told(run).size(), 1U);
  EXPECT_EQ(told(run)[0].at("before"), figures(1));
  EXPECT_EQ(told(run)[0].at("same_result"), true);
  EXPECT_FALSE(PlanChange::job_before(run.folder).has_value());
}

TEST(PlanChange, BackToThePlanBeforeIsNoChange) {
  const ChangedRun run;
  (void)PlanChange::put(run.folder, change(kNew, 1, false));
  PlanChange back = PlanChange::put(run.folder, {kOld, "[1]"});
  back.hear(progress(0));
  back.hear(progress(1));
  EXPECT_EQ(run.job(), kOld);
  EXPECT_TRUE(told(run).empty());
  EXPECT_FALSE(fs::exists(run.former));
}

void save_checkpoint(const ChangedRun& run, int64_t step, const Json& state = Json::object()) {
  const float weight = 1;
  const ckpt::TensorView tensor{"w", DType::f32, {1}, std::as_bytes(std::span(&weight, 1))};
  ckpt::CheckpointWriter writer(run.folder.checkpoints());
  writer.save(step, state, std::span(&tensor, 1));
  writer.wait();
}

// A worker did steps by it, and its controller was killed before it heard of them.
TEST(PlanChange, ACheckpointOfALaterStepAcceptsIt) {
  const ChangedRun run;
  (void)PlanChange::put(run.folder, change(kNew, 1, false));
  save_checkpoint(run, 3);
  EXPECT_FALSE(PlanChange::job_before(run.folder).has_value()) << "it counts";
  EXPECT_FALSE(PlanChange::left_open(run.folder).has_value());
  EXPECT_EQ(told(run).size(), 1U);
  EXPECT_EQ(run.job(), kNew);
  EXPECT_FALSE(fs::exists(run.former));
}

// Of two workers one saved by the plan, and the other one refused it afterwards: nobody could go on
// from that checkpoint by the plan of before.
TEST(PlanChange, IsNotTakenBackBehindACheckpointByIt) {
  const ChangedRun run;
  PlanChange asked = PlanChange::put(run.folder, change(kNew, 1, false));
  save_checkpoint(run, 3);
  EXPECT_FALSE(asked.take_back());
  EXPECT_EQ(run.job(), kNew);
  EXPECT_EQ(run.plan(), "[2]");
  EXPECT_FALSE(fs::exists(run.former));
  EXPECT_EQ(told(run).size(), 1U);
}

// A step was done by it, and its command was killed behind the event: what comes next is compared
// with the job by which that step was done, and the event stays true.
TEST(PlanChange, IsAcceptedOnceItIsTold) {
  const ChangedRun run;
  PlanChange first = PlanChange::put(run.folder, change(kNew, 1, false));
  const std::string open = read_file(run.former);
  first.accept();
  write_file_atomic(run.former, open);
  EXPECT_FALSE(PlanChange::job_before(run.folder).has_value());
  PlanChange back = PlanChange::put(run.folder, change(kOld, 8, false));
  EXPECT_EQ(told(run).size(), 1U) << "not once more";
  EXPECT_TRUE(back.take_back());
  EXPECT_EQ(run.job(), kNew) << "the plan before this one is the one that was told";
  write_file_atomic(run.former, open);
  EXPECT_FALSE(PlanChange::left_open(run.folder).has_value());
  EXPECT_FALSE(fs::exists(run.former));
  EXPECT_EQ(told(run).size(), 1U);
}

// Workers elsewhere went on by the plan of before, since the command was killed before it wrote the
// job: a checkpoint of theirs accepts nothing.
TEST(PlanChange, ACheckpointByThePlanOfBeforeDoesNotAcceptIt) {
  const ChangedRun run;
  (void)PlanChange::put(run.folder, change(kNew, 1, false));
  write_file_atomic(run.folder.job_file(), kOld);
  save_checkpoint(run, 3);
  EXPECT_FALSE(PlanChange::left_open(run.folder).has_value());
  EXPECT_EQ(run.job(), kOld);
  EXPECT_EQ(run.plan(), "[1]");
  EXPECT_FALSE(fs::exists(run.former));
  EXPECT_TRUE(told(run).empty());
}

TEST(PlanChange, WhatAFullDiskDoesNotTakeIsToldLater) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const ChangedRun run;
  PlanChange asked = PlanChange::put(run.folder, change(kNew, 1, true));
  fs::create_symlink("/dev/full", run.folder.events_file());
  asked.hear(progress(1));
  asked.hear(progress(2));
  EXPECT_TRUE(asked.is_open());
  EXPECT_TRUE(fs::exists(run.former)) << "nothing else knows of the change";
  // With a checkpoint by it the plan stays, also where the next command finds the disk full.
  save_checkpoint(run, 3);
  EXPECT_FALSE(asked.take_back());
  EXPECT_FALSE(PlanChange::left_open(run.folder).has_value());
  EXPECT_EQ(run.job(), kNew);
  EXPECT_EQ(run.plan(), "[2]");
  EXPECT_TRUE(fs::exists(run.former));
  // Of the same process's steps, once there is room again.
  fs::remove(run.folder.events_file());
  asked.hear(progress(4));
  ASSERT_EQ(told(run).size(), 1U);
  EXPECT_EQ(told(run)[0].at("before").at("stages"), 1);
  EXPECT_FALSE(fs::exists(run.former));
  EXPECT_FALSE(asked.is_open());
}

TEST(PlanChange, TheNextCommandTellsWhatAFullDiskDidNotTake) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const ChangedRun run;
  PlanChange asked = PlanChange::put(run.folder, change(kNew, 1, true));
  fs::create_symlink("/dev/full", run.folder.events_file());
  asked.accept();
  EXPECT_TRUE(asked.is_open());
  save_checkpoint(run, 3);
  fs::remove(run.folder.events_file());
  EXPECT_FALSE(PlanChange::left_open(run.folder).has_value());
  EXPECT_EQ(told(run).size(), 1U);
  EXPECT_FALSE(fs::exists(run.former));
}

// Whoever is to take it back asks first, and leaves the controller's state as it is.
TEST(PlanChange, StaysWhereThereIsACheckpointByIt) {
  const ChangedRun run;
  PlanChange open = PlanChange::put(run.folder, change(kNew, 1, false));
  EXPECT_FALSE(open.stays());
  EXPECT_TRUE(told(run).empty());
  save_checkpoint(run, 3);
  EXPECT_TRUE(open.stays());
  EXPECT_FALSE(open.take_back());
  EXPECT_EQ(told(run).size(), 1U);
  EXPECT_EQ(run.job(), kNew);
}

TEST(PlanChange, ADamagedEventIsRefusedByName) {
  const ChangedRun run;
  (void)PlanChange::put(run.folder, {kNew, "[2]"});
  Json event = change(kNew, 1, true).event;
  const auto refusal = [&] {
    write_file_atomic(
        run.former,
        dump_json(Json{{"job", kOld}, {"new_job", kNew}, {"new_plan", "[2]"}, {"event", event}}));
    return testing::text_of([&] { PlanChange::left_open(run.folder); }, ErrorCode::data_loss);
  };
  event["now"].erase("replicas");
  EXPECT_NE(refusal().find("event: now: replicas is missing; "), std::string::npos) << refusal();
  event.erase("before");
  EXPECT_NE(refusal().find("event: before is missing; "), std::string::npos) << refusal();
  event.erase("step");
  EXPECT_NE(refusal().find("event: step is missing; "), std::string::npos) << refusal();
}

TEST(OtherPlan, KnowsFromTheEventsWhetherTheStateCouldBeDividedBefore) {
  const ChangedRun run;
  EXPECT_FALSE(had_parts(run.folder));
  run::Diary diary(run.folder.events_file());
  diary.append({{"kind", "replan"}, {"from", 1}});
  diary.append({{"kind", "replan"}, {"before", figures(1)}});
  Json replicas = figures(1);
  replicas["ranks"] = 2;
  replicas["replicas"] = "2";
  diary.append({{"kind", "replan"}, {"before", replicas}});
  EXPECT_FALSE(had_parts(run.folder));
  replicas["replicas"] = "1";
  ChangedRun divided, stages;
  run::Diary(divided.folder.events_file()).append({{"kind", "replan"}, {"before", replicas}});
  EXPECT_TRUE(had_parts(divided.folder));
  run::Diary(stages.folder.events_file()).append({{"kind", "replan"}, {"before", figures(2)}});
  EXPECT_TRUE(had_parts(stages.folder));
}

// A plan with a stage for each of `ops`, of which each has so many replicas.
void write_plan(const fs::path& file, const std::vector<std::string>& ops, int64_t replicas) {
  Json stages = Json::array();
  for (const std::string& op : ops)
    stages.push_back(
        {{"ops", {op}}, {"micro_batch", 32}, {"order", "FBFBFBFB"}, {"replicas", replicas}});
  write_file_atomic(file, dump_json(Json{{"format", "ductile.plan"},
                                         {"version", 1},
                                         {"batch", 128},
                                         {"stages", std::move(stages)}}));
}

// With one stage there is nothing that could be asked for, however many replicas it has.
TEST(OtherPlan, OfMoreStagesDividesTheStateUnlessItsUserSaidNo) {
  const TempFolder folder("ductile-plan");
  const fs::path one = folder.path() / "one.json", replicas = folder.path() / "replicas.json",
                 two = folder.path() / "two.json", three = folder.path() / "three.json";
  write_plan(one, {"a"}, 1);
  write_plan(replicas, {"a"}, 2);
  write_plan(two, {"a", "b"}, 1);
  write_plan(three, {"a", "b", "c"}, 2);
  const auto divides = [](spec::JobOptions job, const fs::path& before, const fs::path& plan,
                          bool shard) {
    job.train.batch_size = 128;
    job.train.method = "pipelined";
    (void)other_plan(job, before);
    job.train.shard_optimizer = shard;
    (void)other_plan(job, plan);
    return job.train.shard_optimizer;
  };
  const spec::JobOptions job;
  EXPECT_TRUE(divides(job, one, two, false));
  EXPECT_TRUE(divides(job, replicas, two, false)) << "nobody could ask for it by stage";
  EXPECT_TRUE(divides(job, replicas, three, false));
  EXPECT_TRUE(divides(job, replicas, two, true));
  EXPECT_FALSE(divides(job, replicas, replicas, false)) << "there are no stages to divide it by";
  EXPECT_FALSE(divides(job, two, three, false)) << "it was asked for so";
  EXPECT_TRUE(divides(job, two, three, true));
  EXPECT_TRUE(divides(job, two, one, true)) << "it has no effect there, and is back with stages";
  // By way of one stage.
  spec::JobOptions asked = job;
  asked.train.batch_size = 128;
  asked.train.method = "pipelined";
  (void)other_plan(asked, one);
  (void)other_plan(asked, two, /*had_parts=*/true);
  EXPECT_FALSE(asked.train.shard_optimizer) << "with two stages its user had said no";
  spec::JobOptions exact;
  exact.train.pipeline_exact = true;
  EXPECT_FALSE(divides(exact, replicas, two, false)) << "its bits would be others";
  spec::JobOptions alone;
  alone.train.shard_copies = 1;
  EXPECT_FALSE(divides(alone, replicas, two, false)) << "a lost worker would cost more";
}

// The refusal of another plan for the run; empty: it may have it.
std::string refusal_of(const ChangedRun& run, const std::string& plan, bool changes_job) {
  OtherPlan other;
  other.text = plan;
  other.changes_job = changes_job;
  try {
    check_may_change(run.folder, other, /*repeats=*/false);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::conflict);
    return error.message();
  }
  return "";
}

void end_run(const ChangedRun& run, const char* status, int64_t step) {
  run::Diary(run.folder.events_file())
      .append({{"kind", "end"}, {"status", status}, {"step", step}});
}

TEST(OtherPlan, IsRefusedWhereNoStepIsLeft) {
  const ChangedRun run;
  EXPECT_EQ(refusal_of(run, "[2]", true), "") << "it has only begun";
  end_run(run, "interrupted", 3);
  save_checkpoint(run, 3);
  EXPECT_EQ(refusal_of(run, "[2]", true), "");
  end_run(run, "done", 5);
  EXPECT_EQ(refusal_of(run, "[2]", true), "") << "it has no checkpoint of its end";
  save_checkpoint(run, 5);
  EXPECT_NE(refusal_of(run, "[2]", true).find("the run is done"), std::string::npos);
  EXPECT_NE(refusal_of(run, "[2]", false).find("the run is done"), std::string::npos)
      << "its report would tell of a prediction that no step was done by";
  EXPECT_EQ(refusal_of(run, "[1]", false), "") << "the plan that it has";
}

// Whoever sets another target has steps for another plan.
TEST(OtherPlan, IsRefusedForATargetThatIsReached) {
  const ChangedRun run;
  spec::JobOptions job;
  save_checkpoint(run, 5, {{"job", OptionSet(job).to_json()}});
  end_run(run, "target_reached", 5);
  EXPECT_NE(refusal_of(run, "[2]", true).find("the run is done"), std::string::npos);
  write_file_atomic(run.folder.job_file(), "[target]\nmetric = \"loss\"\nvalue = 0.5\n");
  EXPECT_EQ(refusal_of(run, "[2]", true), "");
}

}  // namespace
}  // namespace ductile::cli
