#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ductile/cluster/testing/obedient_world.h"

namespace ductile::cluster {
namespace {

using testing::demand;
using testing::kInterval;
using testing::ObedientWorld;
using testing::one_machine;

JobDemand of_kind(const std::string& kind, JobId id, int32_t least = 1, int32_t most = 1) {
  JobDemand out = demand(id, least, most);
  out.application = kind;
  return out;
}

// Job 1, once: a step of "kind" takes a second.
void run_the_kind(ObedientWorld& world) {
  world.add(of_kind("kind", 1));
  world.decide();
  world.scheduler.measured(1, 64);
  world.remove(1);
}

// Its batch is its own, so that nobody measures the noise of its gradients.
TEST(SchedulerSpeeds, AJobOfAFixedBatchGrowsUnderEachPolicyThatGrowsJobs) {
  for (const std::string policy : {"sia", "pollux", "ductile"}) {
    ObedientWorld world(one_machine(2), policy);
    world.add(of_kind("kind", 1, 1, 2));
    for (int round = 0; round < 30; ++round) {
      world.decide();
      world.scheduler.measured(1, 95.0 * world.devices(1));
      if (world.runs(1)) world.scheduler.paused(1, 0.1, round == 0);
    }
    EXPECT_EQ(world.devices(1), 2) << policy;
  }
}

// Two nodes of one device with a slow network between them: what the page shows beside the measured
// speed is what the policy decides by.
TEST(SchedulerSpeeds, TheModelOfSeveralDevicesIsOfTheNodesThatTheyAreOn) {
  ObedientWorld world(testing::some_nodes(2, 1), "ductile");
  world.add(of_kind("kind", 1, 1, 2));
  for (int round = 0; round < 40; ++round) {
    world.decide();
    if (!world.runs(1)) continue;
    world.scheduler.measured(1, world.devices(1) == 1 ? 100.0 : 80.0);
    world.scheduler.paused(1, 0.1, round == 0);
  }
  const std::vector<double> model = world.scheduler.modelled_speeds(1);
  ASSERT_EQ(model.size(), 2u);
  EXPECT_NEAR(model[0], 100, 10);
  EXPECT_NEAR(model[1], 80, 10);
}

// One machine, and two jobs of kinds that ran there before.
TEST(SchedulerSpeeds, TheShortestIsFirstByWhatItsKindWasSeenToTake) {
  ObedientWorld world(one_machine(1), "srtf");
  JobId next = 0;
  const auto run_one = [&](const std::string& kind, double speed) {
    world.add(of_kind(kind, ++next));
    world.decide();
    ASSERT_TRUE(world.runs(next));
    world.scheduler.measured(next, speed);
    world.remove(next);
  };
  run_one("slow", 64);   // a step takes a second
  run_one("fast", 640);  // a tenth
  const JobId slow = ++next, fast = ++next, unknown = ++next;
  world.add(of_kind("slow", slow));
  world.add(of_kind("fast", fast));
  world.add(of_kind("never seen", unknown));
  world.scheduler.progress(slow, 0, 100);     // 100 s
  world.scheduler.progress(fast, 0, 500);     // 50 s
  world.scheduler.progress(unknown, 0, 100);  // 55 s, as the mean of the kinds
  world.decide();
  EXPECT_TRUE(world.runs(fast));
  EXPECT_EQ(world.scheduler.why(fast).find("inf"), std::string::npos);
  world.remove(fast);
  world.decide();
  EXPECT_TRUE(world.runs(unknown));
  world.remove(unknown);
  world.decide();
  EXPECT_TRUE(world.runs(slow));
}

// So that a decision costs the same however many kinds were seen.
TEST(SchedulerSpeeds, AKindThatNeverRanIsTheAverageOfThoseThatRanLast) {
  ObedientWorld world(one_machine(1), "srtf");
  JobId next = 0;
  const auto run_kinds = [&](const std::string& name, int count, double speed) {
    for (int i = 0; i < count; ++i) {
      world.add(of_kind(name + std::to_string(i), ++next));
      world.decide();
      ASSERT_TRUE(world.runs(next));
      world.scheduler.measured(next, speed);
      world.remove(next);
    }
  };
  run_kinds("slow", 20, 64);   // a step takes a second
  run_kinds("fast", 16, 640);  // a tenth
  const JobId slow = ++next, unknown = ++next;
  world.add(of_kind("slow0", slow));
  world.add(of_kind("never seen", unknown));
  world.scheduler.progress(slow, 0, 100);     // 100 s
  world.scheduler.progress(unknown, 0, 500);  // 50 s
  world.decide();
  EXPECT_TRUE(world.runs(unknown));
}

// What is kept of a kind, or of an average one, is made anew when one of them is measured again.
TEST(SchedulerSpeeds, WhatWasMeasuredMeanwhileCountsInTheNextDecision) {
  ObedientWorld world(one_machine(1), "srtf");
  world.add(of_kind("kind", 1));
  world.decide(2);
  world.scheduler.measured(1, 64);  // a step takes a second
  world.scheduler.progress(1, 0, 100);
  world.add(of_kind("never seen", 2));
  world.scheduler.progress(2, 0, 50);
  world.decide(2);
  EXPECT_TRUE(world.runs(2));
  world.scheduler.measured(2, 64 * 0.25);  // four seconds: 200 s
  world.decide(2);
  EXPECT_TRUE(world.runs(1));
  world.add(of_kind("another", 3));
  world.scheduler.progress(3, 0, 35);  // 87 s, as the mean of both, and 35 s as the first alone
  world.scheduler.progress(1, 20, 100);
  world.decide(2);
  EXPECT_TRUE(world.runs(1));
}

// A command never says how long it takes. Formerly whoever said so came first, and since others
// keep coming it never ran. A long job that waits as well makes no difference.
TEST(SchedulerSpeeds, WhoseWorkIsNotKnownIsNotOvertakenForEver) {
  ObedientWorld world(one_machine(1), "srtf");
  const JobId command = 2;
  world.add(of_kind("kind", 1));
  world.scheduler.progress(1, 0, 100);
  world.decide();
  ASSERT_TRUE(world.runs(1));
  world.scheduler.measured(1, 64);  // a step takes a second
  world.add(of_kind("command", command));
  world.add(of_kind("kind", 3));
  world.scheduler.progress(3, 0, 250);
  JobId runs = 1;
  for (JobId next = 4; next < 20 && !world.runs(command); runs = next++) {
    world.add(of_kind("kind", next));
    world.scheduler.progress(next, 0, 100);
    world.scheduler.progress(runs, 50, 100);
    world.decide();
    EXPECT_TRUE(world.runs(runs));
    EXPECT_NE(world.scheduler.why(command).find("with less left"), std::string::npos);
    world.remove(runs);
    world.decide();
  }
  EXPECT_TRUE(world.runs(command));
  EXPECT_NE(world.scheduler.why(command).find("not known"), std::string::npos);
}

JobDemand command_at(JobId id, double arrival) {
  JobDemand out = of_kind("command", id);
  out.arrival = arrival;
  return out;
}

// Formerly a command that had run for longer than the average counted as one that had nothing left,
// and those that came after it waited for good.
TEST(SchedulerSpeeds, AShortJobDoesNotWaitLongerForACommandThanThisHasRun) {
  ObedientWorld world(one_machine(1), "srtf");
  run_the_kind(world);
  world.add(command_at(2, world.now));
  world.decide(50);
  ASSERT_TRUE(world.runs(2));
  EXPECT_TRUE(world.scheduler.why(2).starts_with("runs on 1 cpu: of no job"));
  EXPECT_NE(world.scheduler.why(2).find("runs already"), std::string::npos);
  for (const JobId id : {3, 4}) {
    world.add(of_kind("kind", id));
    world.scheduler.progress(id, 0, 100);
  }
  world.decide(2);
  ASSERT_TRUE(world.runs(3));
  EXPECT_EQ(world.scheduler.why(3), "runs on 1 cpu: 100 s of work left, among the least");
  EXPECT_EQ(world.scheduler.why(2), "waits: 1 device asked for; jobs with less left hold them");
  world.remove(3);
  world.decide();
  EXPECT_TRUE(world.runs(4));
  world.remove(4);
  world.decide();
  EXPECT_TRUE(world.runs(2));
}

// Short jobs of known length, one after the other, beside commands that never end.
TEST(SchedulerSpeeds, NeitherCommandsWithoutEndNorShortJobsThatKeepComingWaitForEver) {
  for (const JobId commands : {1, 3, 8}) {
    ObedientWorld world(one_machine(1), "srtf");
    run_the_kind(world);
    for (JobId id = 2; id < 2 + commands; ++id) world.add(command_at(id, world.now));
    std::map<JobId, int> rounds;
    JobId known = 100, ran = 0;
    int steps = 0, starts = 0;
    constexpr int kRounds = 600;
    for (int round = 0; round < kRounds; ++round) {
      if (!world.jobs.contains(known)) world.add(of_kind("kind", known));
      world.scheduler.progress(known, steps, 100);
      world.decide();
      for (const auto& [id, held] : world.held) {
        if (held.empty()) continue;
        const JobId who = id < 100 ? id : 100;
        ++rounds[who];
        starts += ran != who;
        ran = who;
      }
      if (!world.runs(known) || (steps += 10) < 100) continue;
      world.remove(known++);
      steps = 0;
    }
    EXPECT_EQ(rounds.size(), static_cast<size_t>(commands) + 1);
    for (const auto& [id, count] : rounds)
      EXPECT_GT(count, kRounds / (10 * (commands + 1))) << id << " of " << commands << " commands";
    EXPECT_LT(starts, kRounds / 5) << commands;  // they do not take turns
  }
}

// It would lose all that it has done, to others that may take as long.
TEST(SchedulerSpeeds, ACommandThatRunsIsNotStoppedForCommandsThatCameLater) {
  ObedientWorld world(one_machine(2), "srtf");
  world.add(of_kind("kind", 1));
  world.decide();
  world.scheduler.measured(1, 64);  // a step takes a second
  JobDemand first = command_at(2, world.now);
  first.rigid = true;
  world.add(first);
  JobId next = 3;
  for (int round = 0; round < 200; ++round) {
    world.scheduler.progress(1, 0, 100);  // the average, which the command runs for many times
    world.decide();
    ASSERT_TRUE(world.runs(1) && world.runs(2)) << round;
    if (round % 10 != 9) continue;
    JobDemand other = command_at(next++, world.now);
    other.rigid = true;
    world.add(other);
  }
}

// What commands ran was taken for what they had waited, once they had ended.
TEST(SchedulerSpeeds, AShortJobIsNotOvertakenForEverByCommands) {
  ObedientWorld world(one_machine(1), "srtf");
  run_the_kind(world);
  JobId next = 100;
  const auto run_one_command = [&] {
    world.add(command_at(next++, world.now));
    world.decide();
    for (const auto& [id, held] : std::map(world.held))
      if (id >= 100 && !held.empty()) world.remove(id);
  };
  for (int i = 0; i < 8; ++i) world.add(command_at(next++, world.now));
  for (int i = 0; i < 5; ++i) run_one_command();
  world.add(of_kind("kind", 2));
  world.scheduler.progress(2, 0, 60);
  for (int i = 0; i < 20 && !world.runs(2); ++i) run_one_command();
  EXPECT_TRUE(world.runs(2)) << world.scheduler.why(2);
}

// It loses all each time, so it is left for as long as it has run in vain.
TEST(SchedulerSpeeds, ACommandIsBegunAFewTimesWhereShortJobsKeepComing) {
  ObedientWorld world(one_machine(1), "srtf");
  run_the_kind(world);
  JobDemand command = command_at(2, world.now);
  command.rigid = true;
  world.add(command);
  int in_a_row = 0, starts = 0;
  for (int round = 0; round < 400 && in_a_row < 20; ++round) {
    if (round % 4 == 1) {
      world.add(of_kind("kind", 100 + round));
      world.scheduler.progress(100 + round, 0, 5);
    }
    world.decide();
    starts += world.runs(2) && in_a_row == 0;
    in_a_row = world.runs(2) ? in_a_row + 1 : 0;
    for (const auto& [id, held] : std::map(world.held))
      if (id >= 100 && !held.empty()) world.remove(id);  // it was over before the next round
  }
  EXPECT_EQ(in_a_row, 20);
  EXPECT_GT(starts, 1);
  EXPECT_LE(starts, 7);
}

TEST(SchedulerSpeeds, WhereNothingIsKnownTheFirstThatCameIsFirst) {
  ObedientWorld world(one_machine(1), "srtf");
  for (const JobId id : {1, 2, 3}) world.add(of_kind("command", id));
  for (const JobId id : {1, 2, 3}) {
    world.decide();
    ASSERT_TRUE(world.runs(id));
    EXPECT_NE(world.scheduler.why(id).find("came first"), std::string::npos);
    if (id == 3) break;
    EXPECT_NE(world.scheduler.why(id + 1).find("came before"), std::string::npos);
    world.remove(id);
  }
}

TEST(SchedulerSpeeds, WhatKindsTookIsKnownAfterARestart) {
  ObedientWorld before(one_machine(1), "srtf");
  before.add(of_kind("slow", 1));
  before.decide();
  before.scheduler.measured(1, 64);
  const nlohmann::json state = before.scheduler.state();
  ObedientWorld after(one_machine(1), "srtf");
  after.add(of_kind("slow", 2));
  after.add(of_kind("slow", 3));
  after.scheduler.restore(state, 0);
  after.scheduler.progress(2, 0, 100);
  after.scheduler.progress(3, 0, 10);
  after.decide();
  EXPECT_TRUE(after.runs(3));
}

// Formerly each name of a command was a kind, and those of which something was known went.
TEST(SchedulerSpeeds, CommandsTakeNoPlaceOfAKindThatWasMeasured) {
  for (const std::string policy : {"ductile", "srtf"}) {
    ObedientWorld world(one_machine(1), policy);
    run_the_kind(world);
    const JobId last = 2 + static_cast<JobId>(sched::SharedMeasurements::kMostKinds);
    for (JobId id = 2; id <= last; ++id) world.add(demand(id, 1, 1, 0, true));
    const nlohmann::json measured = world.scheduler.state().at("measured");
    ASSERT_EQ(measured.size(), 1u) << policy;
    EXPECT_EQ(measured.at(0).at(0), "kind") << policy;
  }
}

TEST(SchedulerSpeeds, AKindOfWhichAJobLivesIsNotForgotten) {
  ObedientWorld world(one_machine(2), "srtf");
  const auto run = [&world](const std::string& kind, JobId id) {
    world.add(of_kind(kind, id));
    world.decide();
    ASSERT_TRUE(world.runs(id));
    world.scheduler.measured(id, 64);
  };
  run("lives", 1);
  const JobId last = 20 + static_cast<JobId>(sched::SharedMeasurements::kMostKinds);
  for (JobId id = 2; id <= last; ++id) {
    run("kind" + std::to_string(id), id);
    world.remove(id);
  }
  const nlohmann::json measured = world.scheduler.state().at("measured");
  EXPECT_EQ(measured.size(), sched::SharedMeasurements::kMostKinds);
  EXPECT_TRUE(std::ranges::any_of(measured, [](const auto& one) { return one.at(0) == "lives"; }));
}

// Optimus gives a device to whom it saves most.
TEST(SchedulerSpeeds, ADeviceGoesToWhomItSavesMost) {
  ObedientWorld world(one_machine(3), "optimus");
  world.add(of_kind("long", 1, 1, 2));
  world.add(of_kind("short", 2, 1, 2));
  for (int round = 0; round < 3; ++round) {
    world.decide();
    world.scheduler.measured(1, 100.0 * world.devices(1));
    world.scheduler.measured(2, 100.0 * world.devices(2));
    world.scheduler.progress(1, 0, 1000);
    world.scheduler.progress(2, 0, 10);
  }
  EXPECT_EQ(world.devices(1), 2);
  EXPECT_EQ(world.devices(2), 1);
  EXPECT_NE(world.scheduler.why(1).find("2 devices: as many as"), std::string::npos);
  EXPECT_NE(world.scheduler.why(2).find("1 device: one more would save"), std::string::npos);
}

// A change of what a job holds takes less than a start, and counts as that.
TEST(SchedulerSpeeds, ChangesAndStartsAreTwoFigures) {
  for (const bool cheap : {true, false}) {
    ObedientWorld world(one_machine(2), "ductile");
    world.add(of_kind("kind", 1, 1, 2));
    world.add(of_kind("kind", 2, 1, 2));
    world.decide();
    for (const JobId id : {1, 2}) {
      world.scheduler.measured(id, 64);
      world.scheduler.progress(id, 10, 60);  // for a minute
      world.scheduler.paused(id, 40, true);
      if (cheap) world.scheduler.paused(id, 0.1, false);
    }
    world.remove(2);  // a device is free
    world.decide();
    EXPECT_EQ(world.devices(1), cheap ? 2 : 1);
  }
}

}  // namespace
}  // namespace ductile::cluster
