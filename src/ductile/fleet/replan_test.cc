// A run that is planned anew for the workers that are left, and processes that are killed
// meanwhile.
#include "ductile/cli/replan.h"

#include <exception>
#include <optional>
#include <span>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/testing.h"
#include "ductile/ckpt/writer.h"
#include "ductile/cli/console.h"
#include "ductile/cli/job_config.h"
#include "ductile/link/plan_change.h"
#include "ductile/link/saved_state.h"
#include "ductile/run/diary.h"
#include "ductile/run/folder.h"
#include "ductile/run/trace.h"
#include "ductile/server/hosts.h"

namespace ductile::cli {
namespace {

using link::PlanChange;
using Json = nlohmann::json;

constexpr const char* kOld = "name = \"old\"\n";
constexpr const char* kNew = "name = \"new\"\n";

Json figures(int64_t stages) {
  return {{"stages", stages}, {"replicas", "1"}, {"micro_batches", 4}, {"ranks", stages}};
}

void save_checkpoint(const run::RunFolder& folder, int64_t step) {
  const float weight = 1;
  const ckpt::TensorView tensor{"w", DType::f32, {1}, std::as_bytes(std::span(&weight, 1))};
  ckpt::CheckpointWriter writer(folder.checkpoints());
  writer.save(step, Json::object(), std::span(&tensor, 1));
  writer.wait();
}

// Of two stages and as many workers, of which one is left, for which it is planned anew.
struct LostRun {
  TempFolder place;
  const run::RunFolder folder = run::RunFolder::create_at(place.path() / "run", kOld);
  std::ostringstream out, said;
  Console console{out, said};

  LostRun() {
    write_file_atomic(run::plan_file(folder), "[1]");
    save_state(2);
  }
  void save_state(int64_t ranks, int64_t wanted = 2) const {
    const Json state = {{"virtual_ranks", ranks}, {"wanted", wanted}, {"workers", Json::array()}};
    write_file_atomic(link::state_file(folder.path()), link::sealed(state));
  }
  Json state() const { return *link::read_state(link::state_file(folder.path())); }
  static PlanChange::New change(bool asked) {
    Json event = {{"kind", "replan"},
                  {"step", 4},
                  {"workers", 1},
                  {"from", 2},
                  {"to", 1},
                  {"before", figures(2)},
                  {"now", figures(1)},
                  {"may_round", false},
                  {"same_result", false},
                  {"plan_before", "plan_before.json"}};
    if (asked) event["asked"] = true;
    return {kNew, "[2]", event, 2};
  }
  void put(bool asked) const { (void)PlanChange::put(folder, change(asked)); }
  std::optional<PlanChange> next_command() {
    std::optional<PlanChange> left = PlanChange::left_open(folder);
    if (left) finish_replan(folder, "no-worker", *left, console);
    return left;
  }
  int64_t told() const {
    int64_t out = 0;
    run::for_each_diary_line(folder.events_file(),
                             [&](const Json& line) { out += line.value("kind", "") == "replan"; });
    return out;
  }
};

// A plan of three stages, of which a worker has room for one.
void give_stages(const LostRun& run, JobConfig& config) {
  Json stages = Json::array();
  for (int s = 0; s < 3; ++s)
    stages.push_back({{"peak_memory", 30}, {"memory_limit", 35}, {"state_memory", 1}});
  write_file_atomic(run::plan_file(run.folder),
                    dump_json(Json{{"evaluation", {{"stages", stages}, {"state_memory", 3}}}}));
  config.job.train.method = "pipelined";
  config.job.train.virtual_ranks = 3;
  config.job.train.shard_optimizer = true;
}

// Its command was killed before the controller's state was written: nobody said one worker.
TEST(Replan, OfARunThatNeverBeganGoesOnWithAsManyWorkersAsThePlanHas) {
  LostRun run;
  JobConfig config;
  give_stages(run, config);
  server::HostSetup hosts;
  hosts.hosts = server::parse_hosts("a:2,b:2");
  const fs::path program = "no-worker";
  const auto begin = [&] {
    return Replanner(config, run.folder, hosts, program, run.console).begin(0, false);
  };
  fs::remove(link::state_file(run.folder.path()));
  EXPECT_EQ(begin(), 3);
  run.save_state(3, 3);
  EXPECT_EQ(begin(), 0) << "as many as before";
  EXPECT_EQ(run.told(), 0);
}

// Its record would tell of a plan that no step was done by.
TEST(Replan, IsRefusedForARunThatIsDone) {
  LostRun run;
  JobConfig config;
  give_stages(run, config);
  run.save_state(3, 3);
  save_checkpoint(run.folder, 5);
  run::Diary(run.folder.events_file()).append({{"kind", "end"}, {"status", "done"}, {"step", 5}});
  const std::string plan = read_file(run::plan_file(run.folder));
  server::HostSetup hosts;
  hosts.hosts = server::parse_hosts("a:2,b:2");
  const fs::path program = "no-worker";
  Replanner replanner(config, run.folder, hosts, program, run.console);
  const std::string text =
      testing::text_of([&] { replanner.begin(1, false); }, ErrorCode::conflict);
  EXPECT_NE(text.find("memory of 1 worker: "), std::string::npos) << text;
  EXPECT_NE(text.find("the run is done"), std::string::npos) << text;
  EXPECT_FALSE(replanner.find_plan({1}));
  EXPECT_NE(run.said.str().find("the run is done"), std::string::npos);
  EXPECT_EQ(replanner.begin(3, false), 3) << "they have room";
  EXPECT_EQ(run.told(), 0);
  EXPECT_EQ(read_file(run.folder.job_file()), kOld);
  EXPECT_EQ(read_file(run::plan_file(run.folder)), plan);
  EXPECT_EQ(run.state().at("wanted"), 3);
}

// Behind the job, and before the state: the controller would find workers of the plan before.
TEST(Replan, ThatWasKilledBeforeTheStateIsFinishedByTheNextCommand) {
  LostRun run;
  run.put(false);
  std::optional<PlanChange> left = run.next_command();
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(run.state().at("virtual_ranks"), 0)
      << "of the plan before, and followed by another one";
  EXPECT_EQ(run.state().at("wanted"), 1);
  EXPECT_NE(run.said.str().find("memory of 1 worker: too little for the 2 stages"),
            std::string::npos);
  EXPECT_NE(run.said.str().find("result is that of another plan"), std::string::npos);
  EXPECT_NE(run.said.str().find("plan_before.json"), std::string::npos);
  EXPECT_EQ(run.told(), 0);
  left->accept();
  EXPECT_EQ(run.told(), 1);
}

// Its workers are at work by it, with a state of their own.
TEST(Replan, LeavesAStateOfTheNewPlanAlone) {
  LostRun run;
  run.put(false);
  run.save_state(1);
  ASSERT_TRUE(run.next_command().has_value());
  EXPECT_EQ(run.state().at("virtual_ranks"), 1);
  EXPECT_EQ(run.state().at("wanted"), 2);
}

TEST(Replan, ThatWasKilledBeforeTheJobLeavesThePlanBefore) {
  LostRun run;
  run.put(false);
  write_file_atomic(run.folder.job_file(), kOld);
  EXPECT_FALSE(run.next_command().has_value());
  EXPECT_EQ(read_file(run::plan_file(run.folder)), "[1]");
  EXPECT_EQ(run.state().at("virtual_ranks"), 2);
  EXPECT_EQ(run.state().at("wanted"), 2);
  EXPECT_EQ(run.told(), 0);
  EXPECT_EQ(run.said.str(), "");
}

// Whoever is killed between two writes leaves one of the two plans with all that belongs to it.
TEST(Replan, IsWholeOrNotThereWhereverItIsKilled) {
  for (int kill = 0; kill < 40; ++kill) {
    SCOPED_TRACE(kill);
    LostRun run;
    const pid_t child = fork();
    if (child == 0) {
      try {
        put_anew(run.folder, "[1]", LostRun::change(false));
      } catch (const std::exception&) {
        _exit(1);
      }
      _exit(0);
    }
    ASSERT_GT(child, 0);
    usleep(static_cast<useconds_t>(150 * kill));
    ::kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    if (std::optional<PlanChange> left = run.next_command()) left->accept();
    const bool is_new = read_file(run.folder.job_file()) == kNew;
    EXPECT_EQ(read_file(run::plan_file(run.folder)), is_new ? "[2]" : "[1]");
    EXPECT_EQ(run.state().at("virtual_ranks"), is_new ? 0 : 2);
    EXPECT_EQ(run.state().at("wanted"), is_new ? 1 : 2);
    if (is_new) {
      EXPECT_EQ(run.told(), 1);
      EXPECT_EQ(read_file(run.folder.path() / "plan_before.json"), "[1]");
    } else {
      EXPECT_EQ(run.told(), 0);
    }
  }
  LostRun whole;
  put_anew(whole.folder, "[1]", LostRun::change(false));
  EXPECT_FALSE(whole.next_command().has_value());
  EXPECT_EQ(whole.told(), 1);
  EXPECT_EQ(whole.state().at("wanted"), 1);
}

TEST(Replan, KeepsThePlanThatItsUserGaveLast) {
  LostRun run;
  const fs::path kept = run.folder.path() / "plan_before.json";
  put_anew(run.folder, "[1]", LostRun::change(false));
  put_anew(run.folder, "[2]", LostRun::change(false));
  EXPECT_EQ(read_file(kept), "[1]") << "nobody asked for the other one";
  PlanChange given = PlanChange::put(run.folder, {kOld, "[3]", LostRun::change(true).event, 1});
  given.accept();
  put_anew(run.folder, "[3]", LostRun::change(false));
  EXPECT_EQ(read_file(kept), "[3]");
}

// The plan that its user gave is one that no worker has seen, and so is this one, which was made of
// it: the plan before both comes back where workers refuse it.
TEST(Replan, OfAPlanThatNoStepWasDoneByLeavesTheOneBeforeInReach) {
  LostRun run;
  (void)PlanChange::put(run.folder, {"name = \"given\"\n", "[3]", LostRun::change(true).event, 2});
  run.save_state(0);
  put_anew(run.folder, "[3]", LostRun::change(false));
  EXPECT_EQ(run.told(), 0);
  EXPECT_EQ(read_file(run.folder.job_file()), kNew);
  EXPECT_EQ(read_file(run.folder.path() / "plan_before.json"), "[3]");
  EXPECT_EQ(run.state().at("wanted"), 1);
  EXPECT_EQ(PlanChange::job_before(run.folder), kOld) << "what it is compared with";
  run.save_state(0);  // killed before the state
  std::optional<PlanChange> left = run.next_command();
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(run.state().at("wanted"), 1);
  EXPECT_EQ(left->workers_before(), 2);
  EXPECT_TRUE(left->take_back());
  EXPECT_EQ(read_file(run.folder.job_file()), kOld);
  EXPECT_EQ(read_file(run::plan_file(run.folder)), "[1]");
  EXPECT_EQ(run.told(), 0);
}

TEST(Replan, SaysNothingOfAPlanThatItsUserGave) {
  LostRun run;
  run.put(true);
  ASSERT_TRUE(run.next_command().has_value());
  EXPECT_EQ(run.said.str(), "");
  EXPECT_EQ(run.state().at("virtual_ranks"), 2);
}

TEST(Replan, SaysWhatItDoesToTheResult) {
  const LostRun run;
  Json event = {{"workers", 2}, {"from", 4}, {"to", 4}, {"step", 7}, {"same_result", true}};
  EXPECT_TRUE(replan_text(run.folder, event).ends_with("with the same result"));
  event["to"] = 2;
  const std::string text = replan_text(run.folder, event);
  EXPECT_NE(text.find("memory of 2 workers: too little for the 4 stages"), std::string::npos);
  EXPECT_NE(text.find("planned anew with 2; they go on from step 7 with the same result; "),
            std::string::npos)
      << text;
  event["given"] = 8;
  EXPECT_NE(replan_text(run.folder, event).find("too little for the 8 stages"), std::string::npos);
  event["may_round"] = true;
  EXPECT_NE(replan_text(run.folder, event).find("same result, but for rounding; "),
            std::string::npos);
}

}  // namespace
}  // namespace ductile::cli
