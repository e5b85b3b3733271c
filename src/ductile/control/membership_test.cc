// One worker's story after the other; one file because all share the fixture that tells them.
#include "ductile/control/membership.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/control/testing/membership_story.h"

namespace ductile::control {
namespace {

TEST_F(MembershipTest, StartsWhenAllWantedWorkersAreReady) {
  happen(StartJob{2});
  EXPECT_EQ(said<LaunchWorker>().size(), 2u);
  EXPECT_EQ(job_->phase(), Phase::starting);
  say(1, WorkerPhase::ready);
  EXPECT_TRUE(told<Enter>().empty());
  say(2, WorkerPhase::ready);
  const auto enters = told<Enter>();
  ASSERT_EQ(enters.size(), 2u);
  const GenerationPlan& plan = *enters[0].second.plan;
  EXPECT_EQ(plan.number, 1u);
  EXPECT_EQ(plan.start, 0);
  EXPECT_EQ(plan.members[0].ranks, (RankRange{0, 4}));
  EXPECT_EQ(plan.members[1].source, StateSource::initial);
  EXPECT_EQ(job_->phase(), Phase::running);
}

TEST_F(MembershipTest, StartsWithFewerWhereSomeTakeTooLong) {
  happen(StartJob{2});
  say(1, WorkerPhase::ready);
  now_ += milliseconds(1900);
  repeat(1);
  EXPECT_TRUE(told<Enter>().empty());
  now_ += milliseconds(200);
  repeat(1);
  EXPECT_EQ(told<Enter>().size(), 1u);
  EXPECT_EQ(job_->phase(), Phase::resizing);
}

TEST_F(MembershipTest, SurvivorsOfALossGoOnFromWhatTheyVotedFor) {
  run_with(3);
  happen(WorkerExited{2, 0, 9});
  EXPECT_EQ(said<LaunchWorker>().size(), 0u);  // the next try has to wait a moment
  ASSERT_EQ(told<Halt>().size(), 2u);
  EXPECT_FALSE(told<Halt>()[0].second.at_boundary);
  say(1, WorkerPhase::halted, 1, 2, 5, true);
  EXPECT_TRUE(told<Enter>().empty());
  say(3, WorkerPhase::halted, 1, 2, 6);
  const auto enters = told<Enter>();
  ASSERT_EQ(enters.size(), 2u);
  const GenerationPlan& plan = *enters[0].second.plan;
  EXPECT_EQ(plan.number, 2u);
  EXPECT_EQ(plan.start, 6);
  EXPECT_EQ(plan.members[0].source, StateSource::apply_voted);
  EXPECT_EQ(plan.members[1].source, StateSource::keep);
  EXPECT_EQ(launched_, 4u);  // there was progress since the last failure
}

TEST_F(MembershipTest, WhoIsBehindAndDidNotVoteIsFed) {
  run_with(3);
  happen(WorkerExited{2, 0, 9});
  say(1, WorkerPhase::halted, 1, 2, 5);
  say(3, WorkerPhase::halted, 1, 2, 6);
  const auto enters = told<Enter>();
  ASSERT_EQ(enters.size(), 2u);
  EXPECT_EQ(enters[0].second.plan->members[0].source, StateSource::peer);
  EXPECT_EQ(enters[0].second.plan->members[0].feeder, 3u);
}

TEST_F(MembershipTest, ASilentWorkerIsReplacedAndThenFencedForGood) {
  run_with(2);
  for (int i = 0; i < 8; ++i) {
    now_ += milliseconds(200);
    repeat(1);
  }
  ASSERT_EQ(job_->why(now_).find("generation 1 with 2"), std::string::npos);
  say(1, WorkerPhase::halted, 1, 2, 5);
  ASSERT_EQ(told<Enter>().size(), 1u);
  EXPECT_EQ(said<KillWorker>().size(), 1u);
  say(2, WorkerPhase::running, 1, 1, 6);  // it wakes up
  EXPECT_TRUE(told<Ack>().empty());
  EXPECT_EQ(told<Stop>().size(), 1u);
  reports_[2].save = {1, SaveStatus::State::written, 6, ""};
  repeat(2);
  EXPECT_TRUE(said<PublishCheckpoint>().empty());
  EXPECT_EQ(job_->generation().members.size(), 1u);
}

TEST_F(MembershipTest, WithoutSurvivorsItWaitsForTheLeaseAndGoesBackToTheCheckpoint) {
  run_with(1);
  happen(SaveJob{});
  ASSERT_EQ(told<Save>().size(), 1u);
  reports_[1].save = {told<Save>()[0].second.attempt, SaveStatus::State::written, 5, ""};
  repeat(1);
  ASSERT_EQ(said<PublishCheckpoint>().size(), 1u);
  happen(CheckpointPublished{5});
  EXPECT_EQ(job_->checkpoint(), 5);
  happen(ConnectionClosed{1});
  EXPECT_EQ(launched_, 2u);
  say(2, WorkerPhase::ready);
  EXPECT_TRUE(told<Enter>().empty());  // worker 1 may be alive and go on
  for (int i = 0; i < 11; ++i) {
    now_ += seconds(1);
    repeat(2);
  }
  EXPECT_EQ(job_->generation().start, 5);
  EXPECT_EQ(job_->generation().members[0].source, StateSource::checkpoint);
}

// What one of several looks at after the loss of all: `refuse` is what it then reports.
class RestoreTest : public MembershipTest {
 protected:
  RestoreTest() {
    options_.checkpoints = {3, 6, 9};
    job_.emplace(options_);
    happen(StartJob{1});
    say(1, WorkerPhase::ready);
  }
  void cannot_restore(const std::string& why, bool damaged) {
    const GenerationPlan plan = job_->generation();
    ASSERT_EQ(plan.members[0].source, StateSource::checkpoint);
    reports_[launched_].unreadable = damaged ? plan.start : -1;
    reports_[launched_].faulted = !damaged;
    reports_[launched_].note = why;
    say(launched_, WorkerPhase::halted, plan.number, plan.number);
    obey_stops();
  }
  // Until the next generation is formed, or the job ends.
  void wait_for_next() {
    const Generation before = job_->generation().number;
    for (int i = 0; i < 2000 && job_->generation().number == before; ++i) {
      if (job_->phase() == Phase::failed) return;
      now_ += milliseconds(50);
      WorkerStatus& report = reports_[launched_];
      if (report.sequence == 0) {
        say(launched_, WorkerPhase::ready);
      } else {
        report.promised = before + 1;  // it was told to halt
        repeat(launched_);
      }
      obey_stops();
    }
  }
  void obey_stops() {
    std::vector<WorkerId> stopped;
    for (const auto& [worker, stop] : told<Stop>()) stopped.push_back(worker);
    for (const WorkerId worker : stopped) happen(WorkerExited{worker, 0, 0});
  }
};

TEST_F(RestoreTest, DamagedCheckpointsAreWalkedDownAndThenTheJobEndsInsteadOfBeginningAnew) {
  EXPECT_EQ(job_->generation().start, 9);
  cannot_restore("chunk ab is missing", true);
  wait_for_next();
  EXPECT_EQ(job_->generation().start, 6);
  cannot_restore("chunk cd was altered", true);
  wait_for_next();
  EXPECT_EQ(job_->generation().start, 3);
  const nlohmann::json saved = job_->save();
  cannot_restore("there is no manifest", true);
  EXPECT_EQ(job_->phase(), Phase::failed);
  for (const char* text : {"chunk ab is missing", "chunk cd was altered", "there is no manifest"})
    EXPECT_NE(job_->reason().find(text), std::string::npos) << job_->reason();
  EXPECT_EQ(job_->checkpoint(), 9);  // resumed, it looks again

  // A controller that comes back before that does not try the damaged ones again.
  Outcome first;
  EXPECT_EQ(Membership::restore(options_, saved, now_, first).checkpoint(), 3);
  // What was published since wins over what it had saved, and nothing at all is an error.
  options_.checkpoints = {6, 9, 12};
  EXPECT_EQ(Membership::restore(options_, saved, now_, first).checkpoint(), 12);
  options_.checkpoints = {};
  EXPECT_THROW(Membership::restore(options_, saved, now_, first), Error);
}

TEST_F(RestoreTest, AHostThatRefusesSomethingCostsTheWorkerAndNotTheCheckpoint) {
  const WorkerId first = launched_;
  for (int i = 0; i < 3; ++i) {
    cannot_restore("no descriptor is free", false);
    ASSERT_NE(job_->phase(), Phase::failed);
    EXPECT_EQ(job_->checkpoint(), 9);
    wait_for_next();
    EXPECT_EQ(job_->generation().start, 9);
  }
  EXPECT_NE(launched_, first);  // the second time another process got the place
}

TEST_F(RestoreTest, AHostThatRefusesForEverEndsTheJobWithItsReasonAndKeepsTheCheckpoints) {
  for (int i = 0; i < 100 && job_->phase() != Phase::failed; ++i) {
    cannot_restore("no descriptor is free", false);
    wait_for_next();
  }
  EXPECT_EQ(job_->phase(), Phase::failed);
  EXPECT_NE(job_->reason().find("no descriptor is free"), std::string::npos) << job_->reason();
  EXPECT_EQ(job_->checkpoint(), 9);
}

TEST_F(MembershipTest, AWorkerWhoseHostRefusesSomethingIsReplacedByThoseWhoHaveTheState) {
  run_with(2);
  reports_[2].faulted = true;
  reports_[2].note = "no descriptor is free";
  say(2, WorkerPhase::halted, 1, 1, 5);
  say(1, WorkerPhase::halted, 1, 2, 5);
  say(2, WorkerPhase::halted, 1, 2, 5);
  EXPECT_EQ(job_->generation().number, 2u);
  EXPECT_EQ(job_->generation().members.size(), 1u);
  EXPECT_EQ(job_->generation().members[0].worker, 1u);
  EXPECT_EQ(job_->generation().members[0].source, StateSource::keep);
}

TEST_F(MembershipTest, TheOnlyOneWithTheStateTriesAgain) {
  run_with(1);
  for (Generation g = 1; g <= 3; ++g) {
    reports_[1].faulted = true;
    say(1, WorkerPhase::halted, g, g, 5);
    for (int i = 0; i < 200 && job_->generation().number == g; ++i) {
      now_ += milliseconds(50);
      say(1, WorkerPhase::halted, g, g + 1, 5);
    }
    ASSERT_EQ(job_->generation().number, g + 1);
    EXPECT_EQ(job_->generation().members[0].source, StateSource::keep);
    reports_[1].faulted = false;
    say(1, WorkerPhase::running, g + 1, g + 1, 5);
  }
}

TEST_F(MembershipTest, AnExitIsCertainAndNeedsNoLease) {
  run_with(1);
  happen(WorkerExited{1, 1, 0});
  pass(milliseconds(100));
  say(2, WorkerPhase::ready);
  EXPECT_EQ(told<Enter>().size(), 1u);
  EXPECT_EQ(job_->generation().members[0].source, StateSource::initial);
}

TEST_F(MembershipTest, AResizeLetsTheOldOnesRunUntilTheNewOnesAreReady) {
  run_with(1);
  happen(ResizeJob{2});
  EXPECT_EQ(said<LaunchWorker>().size(), 1u);
  EXPECT_TRUE(told<Halt>().empty());
  say(2, WorkerPhase::loading);
  say(1, WorkerPhase::running, 1, 1, 9);
  EXPECT_TRUE(told<Halt>().empty());
  say(2, WorkerPhase::ready);
  ASSERT_EQ(told<Halt>().size(), 1u);
  EXPECT_TRUE(told<Halt>()[0].second.at_boundary);
  say(1, WorkerPhase::halted, 1, 2, 10);
  ASSERT_EQ(told<Enter>().size(), 2u);
  EXPECT_EQ(job_->generation().start, 10);
  EXPECT_EQ(job_->generation().members[1].feeder, 1u);
}

TEST_F(MembershipTest, ShrinkingStopsTheYoungestAfterTheStep) {
  run_with(3);
  happen(ResizeJob{2});
  ASSERT_EQ(told<Halt>().size(), 3u);
  EXPECT_TRUE(told<Halt>()[0].second.at_boundary);
  for (WorkerId w : {1, 2, 3}) say(w, WorkerPhase::halted, 1, 2, 6);
  EXPECT_EQ(told<Enter>().size(), 2u);
  ASSERT_EQ(told<Stop>().size(), 1u);
  EXPECT_EQ(told<Stop>()[0].first, 3u);
  EXPECT_EQ(job_->phase(), Phase::running);
}

TEST_F(MembershipTest, PreemptsAfterSavingAndResumesWithAnotherNumber) {
  run_with(2);
  happen(PreemptJob{});
  for (WorkerId w : {1, 2}) say(w, WorkerPhase::halted, 1, 2, 6);
  ASSERT_EQ(told<Save>().size(), 1u);
  const WorkerId writer = told<Save>()[0].first;
  reports_[writer].save = {told<Save>()[0].second.attempt, SaveStatus::State::written, 6, ""};
  repeat(writer);
  ASSERT_EQ(said<PublishCheckpoint>().size(), 1u);
  happen(CheckpointPublished{6});
  EXPECT_EQ(told<Stop>().size(), 2u);
  happen(WorkerExited{1, 0, 0});
  EXPECT_TRUE(said<Release>().empty());
  happen(WorkerExited{2, 0, 0});
  EXPECT_EQ(said<Release>().size(), 1u);
  EXPECT_EQ(job_->phase(), Phase::preempted);
  happen(ResumeJob{3});
  EXPECT_EQ(said<LaunchWorker>().size(), 3u);
  for (WorkerId w : {3, 4, 5}) say(w, WorkerPhase::ready);
  ASSERT_EQ(told<Enter>().size(), 3u);
  EXPECT_EQ(job_->generation().start, 6);
  EXPECT_EQ(job_->generation().members[0].source, StateSource::checkpoint);
  EXPECT_EQ(job_->generation().members[1].source, StateSource::peer);
}

TEST_F(MembershipTest, AFullDiskDelaysPreemptionUntilItsDeadline) {
  run_with(1);
  happen(PreemptJob{});
  say(1, WorkerPhase::halted, 1, 2, 6);
  reports_[1].save = {told<Save>()[0].second.attempt, SaveStatus::State::failed, 6, "disk full"};
  repeat(1);
  EXPECT_NE(job_->why(now_).find("disk full"), std::string::npos);
  for (int i = 0; i < 5; ++i) {
    now_ += milliseconds(500);
    repeat(1);
  }
  EXPECT_EQ(job_->phase(), Phase::preempting);
  for (int i = 0; i < 60; ++i) {
    now_ += seconds(1);
    repeat(1);
  }
  EXPECT_EQ(told<Stop>().size(), 1u);
  EXPECT_EQ(job_->unsaved_steps(), 6);
  Outcome first;
  EXPECT_EQ(Membership::restore(options_, job_->save(), now_, first).unsaved_steps(), 6);
  happen(WorkerExited{1, 0, 0});
  EXPECT_EQ(job_->phase(), Phase::preempted);
  EXPECT_EQ(job_->unsaved_steps(), 6);
  happen(ResumeJob{});
  EXPECT_EQ(job_->unsaved_steps(), 0);
}

TEST_F(MembershipTest, FinishesWhenTheResultIsSaved) {
  run_with(2);
  say(1, WorkerPhase::done, 1, 1, 20);
  EXPECT_EQ(job_->phase(), Phase::finishing);
  ASSERT_EQ(told<Save>().size(), 1u);
  happen(WorkerExited{2, 0, 9});
  EXPECT_TRUE(told<Halt>().empty());  // nobody else is needed
  reports_[1].save = {1, SaveStatus::State::written, 20, ""};
  repeat(1);
  happen(CheckpointPublished{20});
  happen(WorkerExited{1, 0, 0});
  EXPECT_EQ(job_->phase(), Phase::finished);
  EXPECT_EQ(said<Release>().size(), 1u);
}

TEST_F(MembershipTest, AJobErrorEndsTheJobWithItsText) {
  run_with(2);
  reports_[2].error = "label 12 of sample 7 is none of 10 classes";
  repeat(2);
  EXPECT_EQ(job_->phase(), Phase::failed);
  EXPECT_EQ(job_->reason(), "worker 2: label 12 of sample 7 is none of 10 classes");
  EXPECT_EQ(told<Stop>().size(), 2u);
  EXPECT_TRUE(said<LaunchWorker>().empty());
}

TEST_F(MembershipTest, ACrashLoopBacksOffAndEnds) {
  options_.num_hosts = 2;
  job_.emplace(options_);
  happen(StartJob{1});
  Time last_launch = now_, longest{0};
  int launches = 1;
  while (job_->phase() != Phase::failed && launches < 50) {
    say(launched_, WorkerPhase::ready);
    happen(WorkerExited{launched_, 0, 11});
    if (job_->phase() == Phase::failed) break;
    const WorkerId before = launched_;
    while (launched_ == before) {
      ASSERT_LT(job_->next_deadline(), Time::max());
      now_ = std::max(now_ + Time{1}, job_->next_deadline());
      happen(Tick{});
    }
    longest = std::max(longest, now_ - last_launch);
    last_launch = now_;
    ++launches;
  }
  EXPECT_EQ(job_->phase(), Phase::failed);
  EXPECT_EQ(launches, options_.max_failures + 1);
  EXPECT_GE(longest, seconds(25));
  EXPECT_TRUE(job_->crashed());
  EXPECT_NE(job_->reason().find("killed by SIGSEGV (11)"), std::string::npos) << job_->reason();
}

TEST_F(MembershipTest, CrashingAtTheSameStepAgainAndAgainIsNoProgress) {
  happen(StartJob{1});
  for (Generation g = 1; g <= 3; ++g) {
    while (!job_->generation().find(launched_)) {
      now_ += milliseconds(50);
      if (reports_[launched_].sequence == 0)
        say(launched_, WorkerPhase::ready);
      else
        repeat(launched_);
    }
    for (int64_t step = 0; step <= 3; ++step) say(launched_, WorkerPhase::running, g, g, step);
    const WorkerId before = launched_;
    happen(WorkerExited{before, 0, 11});
    for (int i = 0; i < 100 && launched_ == before && job_->phase() != Phase::failed; ++i)
      pass(milliseconds(50));
  }
  EXPECT_EQ(job_->phase(), Phase::failed);
}

TEST_F(MembershipTest, FewerThanTheMinimumWaitWithTheirState) {
  options_.min_workers = 2;
  job_.emplace(options_);
  run_with(2);
  happen(WorkerExited{2, 0, 9});
  say(1, WorkerPhase::halted, 1, 2, 6);
  EXPECT_TRUE(told<Enter>().empty());
  EXPECT_NE(job_->why(now_).find("at least 2 needed"), std::string::npos) << job_->why(now_);
  now_ += milliseconds(100);
  repeat(1);
  say(launched_, WorkerPhase::ready);
  ASSERT_EQ(told<Enter>().size(), 2u);
  EXPECT_EQ(job_->generation().start, 6);
}

TEST_F(MembershipTest, TheWorkerThatPeersCannotReachHasToGo) {
  run_with(3);
  for (Generation g = 1; g <= 3 && job_->generation().members.size() == 3; ++g) {
    for (WorkerId w : {1, 2, 3}) {
      reports_[w].suspects = {w == 2 ? WorkerId{1} : WorkerId{2}};
      say(w, WorkerPhase::halted, g, g, 5);
    }
    for (WorkerId w : {1, 2, 3}) say(w, WorkerPhase::halted, g, g + 1, 5);
    for (int i = 0; i < 10; ++i) {
      now_ += milliseconds(50);
      for (WorkerId w : {1, 2, 3}) repeat(w);
    }
  }
  ASSERT_EQ(job_->generation().members.size(), 2u);
  EXPECT_EQ(job_->generation().find(2), nullptr);
}

// Nobody has applied a step that a survivor has not voted for: it is redone, and no survivor gives
// up the state it has.
TEST_F(MembershipTest, AStepThatNotAllVotedForIsRedoneByAllWhoHaveTheStateBeforeIt) {
  run_with(3);
  happen(WorkerExited{3, 0, 9});
  say(1, WorkerPhase::halted, 1, 2, 5, true);
  say(2, WorkerPhase::halted, 1, 2, 5, false);
  const GenerationPlan& plan = job_->generation();
  ASSERT_EQ(plan.number, 2u);
  EXPECT_EQ(plan.start, 5);
  for (const Member& member : plan.members) EXPECT_EQ(member.source, StateSource::keep);
}

// Two hosts that lose each other: whoever has the state stays.
TEST_F(MembershipTest, OfTwoThatCannotReachEachOtherTheOneWithTheStateStays) {
  run_with(2);
  for (Generation g = 1; g <= 3 && job_->generation().find(1) != nullptr; ++g) {
    for (WorkerId w : {1, 2}) {
      if (w == 1) reports_[w].suspects = {2};  // the other end did not try
      say(w, WorkerPhase::halted, g, g, w == 2 ? 5 : -1);
    }
    for (WorkerId w : {1, 2}) say(w, WorkerPhase::halted, g, g + 1, w == 2 ? 5 : -1);
    for (int i = 0; i < 10; ++i) {
      now_ += milliseconds(50);
      for (WorkerId w : {1, 2}) repeat(w);
    }
  }
  const GenerationPlan& plan = job_->generation();
  ASSERT_EQ(plan.members.size(), 1u);
  EXPECT_EQ(plan.members[0].worker, 2u);
  EXPECT_EQ(plan.start, 5);
}

TEST_F(MembershipTest, RequestsThatDoNotFitAreRefusedWithAReason) {
  happen(ResumeJob{});
  ASSERT_EQ(said<Note>().size(), 1u);
  EXPECT_EQ(said<Note>()[0].text, "resume: the job is queued");
  happen(StartJob{9});
  EXPECT_EQ(said<Note>()[0].text, "9 workers: this job runs with 1 to 8");
  run_with(1);
  happen(StartJob{1});
  EXPECT_EQ(said<Note>()[0].event, "refused");
}

TEST_F(MembershipTest, ARestartedControllerGoesOnWithTheWorkersThatReport) {
  run_with(2);
  const nlohmann::json saved = job_->save();
  Outcome first;
  now_ = Time{5};  // another machine, another clock
  job_.emplace(Membership::restore(options_, saved, now_, first));
  EXPECT_TRUE(first.must_save);
  EXPECT_EQ(job_->save()["incarnation"], saved["incarnation"].get<uint64_t>() + 1);
  say(1, WorkerPhase::running, 1, 1, 9);
  say(2, WorkerPhase::running, 1, 1, 9);
  pass(seconds(1));
  EXPECT_EQ(job_->phase(), Phase::running);
  EXPECT_EQ(job_->generation().number, 1u);
  EXPECT_EQ(job_->step(), 9);
}

// Its workers do not come back; those that do say themselves what they have.
TEST_F(MembershipTest, ASavedStateOfTheVersionWithoutPartsIsTaken) {
  run_with(2, 9);
  nlohmann::json saved = job_->save();
  saved["format"] = 2;
  for (nlohmann::json& worker : saved["workers"]) {
    worker["report"]["num_parts"] = 0;
    worker["report"]["held"] = nlohmann::json::array();
  }
  Outcome first;
  job_ = Membership::restore(options_, saved, now_, first);
  say(1, WorkerPhase::running, 1, 1, 9);
  happen(WorkerExited{2, 0, 9});
  say(1, WorkerPhase::halted, 1, 2, 9);
  EXPECT_EQ(job_->generation().number, 2u);
  EXPECT_EQ(job_->generation().start, 9);
  saved["format"] = 4;
  EXPECT_THROW(Membership::restore(options_, saved, now_, first), Error);
}

TEST_F(MembershipTest, ASavedStateThatIsNoneIsRefused) {
  run_with(2);
  const nlohmann::json saved = job_->save();
  Outcome first;
  for (const auto& [key, value] : saved.items()) {
    nlohmann::json altered = saved;
    altered[key] = nlohmann::json::array({-1.5});
    EXPECT_THROW(Membership::restore(options_, altered, now_, first), Error) << key;
    altered.erase(key);
    if (key == "error_code" || key == "result_unsaved" || key == "unsaved_steps")
      continue;  // earlier versions wrote none
    EXPECT_THROW(Membership::restore(options_, altered, now_, first), Error) << key;
  }
  options_.virtual_ranks = 4;
  EXPECT_THROW(Membership::restore(options_, saved, now_, first), Error);
}

TEST_F(MembershipTest, DoubledAndOvertakenReportsChangeNothing) {
  run_with(2);
  const WorkerStatus old = reports_[1];
  say(1, WorkerPhase::running, 1, 1, 8);
  const nlohmann::json before = job_->save();
  happen(WorkerReported{reports_[1]});
  EXPECT_TRUE(last_.commands.empty());
  happen(WorkerReported{old});
  EXPECT_TRUE(last_.commands.empty());
  EXPECT_EQ(job_->save(), before);
}

TEST_F(MembershipTest, AStrangerIsTurnedAway) {
  run_with(1);
  say(77, WorkerPhase::ready);
  ASSERT_EQ(told<Stop>().size(), 1u);
  EXPECT_EQ(told<Stop>()[0].first, 77u);
  EXPECT_EQ(job_->generation().members.size(), 1u);
}

TEST_F(MembershipTest, AWorkerWhoseHostDrainsIsReplacedWithoutLosingAStep) {
  run_with(1);
  reports_[1].leaving = true;
  repeat(1);
  ASSERT_EQ(said<LaunchWorker>().size(), 1u);
  say(2, WorkerPhase::ready);
  ASSERT_EQ(told<Halt>().size(), 1u);
  say(1, WorkerPhase::halted, 1, 2, 7);
  ASSERT_EQ(job_->generation().members.size(), 2u);  // worker 1 hands the state over first
  EXPECT_EQ(job_->generation().find(2)->ranks, (RankRange{0, 8}));
  EXPECT_EQ(job_->generation().find(2)->feeder, 1u);
  EXPECT_EQ(job_->generation().find(1)->ranks, (RankRange{8, 8}));
  EXPECT_EQ(job_->generation().find(1)->held, (Parts{{0, 1}}));
  say(1, WorkerPhase::running, 2, 2, 7);
  say(2, WorkerPhase::running, 2, 2, 7);
  EXPECT_FALSE(told<Halt>().empty());
  say(1, WorkerPhase::halted, 2, 3, 8);
  say(2, WorkerPhase::halted, 2, 3, 8);
  ASSERT_EQ(job_->generation().members.size(), 1u);
  EXPECT_EQ(job_->generation().members[0].worker, 2u);
  EXPECT_EQ(job_->generation().start, 8);
}

// A job whose state is in eight parts; `held` by worker, of four workers and two copies at first.
class ShardedTest : public MembershipTest {
 protected:
  ShardedTest() {
    options_.checkpoints = {3};
    job_.emplace(options_);
  }
  void run_four() {
    happen(StartJob{4});
    for (WorkerId w = 1; w <= 4; ++w) say(w, WorkerPhase::ready);
    hold(1, {{0, 2}, {6, 8}});
    hold(2, {{0, 4}});
    hold(3, {{2, 6}});
    hold(4, {{4, 8}});
    for (WorkerId w = 1; w <= 4; ++w) say(w, WorkerPhase::running, 1, 1, 5);
    ASSERT_EQ(job_->phase(), Phase::running);
  }
  void halt(WorkerId worker, int64_t step = 5, bool voted = false) {
    say(worker, WorkerPhase::halted, 1, 2, step, voted);
  }
  const GenerationPlan& plan() { return job_->generation(); }
};

TEST_F(ShardedTest, OneReadsTheCheckpointAndTheOthersGetTheirPartsFromIt) {
  run_four();
  EXPECT_EQ(plan().start, 3);
  EXPECT_EQ(plan().members[0].source, StateSource::checkpoint);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(plan().members[i].source, StateSource::peer);
}

TEST_F(ShardedTest, OrEachReadsItsPartsByItself) {
  options_.all_read = true;
  job_.emplace(options_);
  run_four();
  EXPECT_EQ(plan().start, 3);
  for (const Member& m : plan().members) EXPECT_EQ(m.source, StateSource::checkpoint);
}

TEST_F(ShardedTest, OneOfTwoCopiesIsEnough) {
  run_four();
  happen(WorkerExited{2, 0, 9});
  for (const WorkerId w : {1, 3, 4}) halt(w);
  EXPECT_EQ(plan().number, 2u);
  EXPECT_EQ(plan().start, 5);
  EXPECT_EQ(plan().members[1].source, StateSource::keep);
  EXPECT_EQ(plan().members[1].held, (Parts{{2, 6}}));
}

TEST_F(ShardedTest, WherePartsAreGoneTheJobGoesBackToTheCheckpoint) {
  run_four();
  happen(WorkerExited{2, 0, 9});
  happen(WorkerExited{3, 0, 9});  // parts 2 and 3 were theirs alone
  halt(1);
  halt(4);
  pass(seconds(120));
  EXPECT_EQ(plan().number, 2u);
  EXPECT_EQ(plan().start, 3);
  EXPECT_EQ(plan().members[0].source, StateSource::checkpoint);
  for (const Member& member : plan().members) EXPECT_TRUE(member.held.empty());
}

TEST_F(ShardedTest, ItWaitsForASilentWorkerThatHasTheLastCopy) {
  run_four();
  happen(WorkerExited{2, 0, 9});
  happen(ConnectionClosed{3});
  halt(1);
  halt(4);
  EXPECT_EQ(plan().number, 1u);
  halt(3);  // it is back
  EXPECT_EQ(plan().number, 2u);
  EXPECT_EQ(plan().start, 5);
}

TEST_F(ShardedTest, AStepThatTooFewVotedForIsGivenUp) {
  run_four();
  happen(WorkerExited{2, 0, 9});
  hold(1, {{0, 2}, {6, 8}}, {{0, 2}, {6, 8}});
  halt(1, 5, true);
  halt(3);
  halt(4);
  EXPECT_EQ(plan().number, 2u);
  EXPECT_EQ(plan().start, 5);
  EXPECT_EQ(plan().members[0].source, StateSource::keep);
}

TEST_F(ShardedTest, AStepThatAllVotedForIsKept) {
  run_four();
  happen(WorkerExited{2, 0, 9});
  hold(1, {{0, 8}}, {{0, 2}, {6, 8}});
  halt(1, 5, true);
  halt(3, 6);  // it has applied it
  hold(4, {{4, 8}}, {{4, 8}});
  halt(4, 5, true);
  EXPECT_EQ(plan().number, 2u);
  EXPECT_EQ(plan().start, 6);
  EXPECT_EQ(plan().members[0].source, StateSource::apply_voted);
  EXPECT_EQ(plan().members[0].held, (Parts{{0, 2}, {6, 8}}));
}

TEST_F(ShardedTest, WhoIsTooManyHandsItsPartsOverAndLeavesAGenerationLater) {
  run_four();
  happen(ResizeJob{1});
  ASSERT_EQ(told<Halt>().size(), 4u);
  EXPECT_TRUE(told<Halt>()[0].second.at_boundary);
  for (WorkerId w = 1; w <= 4; ++w) halt(w);
  EXPECT_EQ(plan().number, 2u);
  ASSERT_EQ(plan().members.size(), 3u);  // worker 4 has nothing that the others lack
  EXPECT_EQ(plan().members[0].ranks, (RankRange{0, 8}));
  EXPECT_EQ(plan().members[1].ranks, (RankRange{8, 8}));
  EXPECT_EQ(plan().members[2].ranks, (RankRange{8, 8}));
  EXPECT_EQ(job_->phase(), Phase::resizing);
  hold(1, {{0, 8}});
  hold(2, {});
  hold(3, {});
  for (WorkerId w = 1; w <= 3; ++w) say(w, WorkerPhase::running, 2, 2, 6);
  for (WorkerId w = 1; w <= 3; ++w) say(w, WorkerPhase::halted, 2, 3, 7);
  EXPECT_EQ(plan().number, 3u);
  EXPECT_EQ(plan().members.size(), 1u);
  EXPECT_EQ(job_->phase(), Phase::running);
}

TEST_F(ShardedTest, APreemptedJobIsSavedByWhomAllPartsWereBroughtTo) {
  run_four();
  happen(PreemptJob{});
  ASSERT_EQ(told<Halt>().size(), 4u);
  EXPECT_TRUE(told<Halt>()[0].second.gather);
  for (const WorkerId w : {2, 3, 4}) halt(w, 6);
  hold(1, {{0, 8}});
  halt(1, 6);
  const auto saves = told<Save>();
  ASSERT_EQ(saves.size(), 1u);
  EXPECT_EQ(saves[0].first, 1u);
}

// Each worker has written its parts of the last state; whoever can join them has the result, though
// nobody holds all of it.
TEST_F(ShardedTest, TheResultIsSavedByWhomTheOthersWroteTheirPartsFor) {
  run_four();
  for (const WorkerId w : {2, 3, 4}) say(w, WorkerPhase::done, 1, 1, 20);
  EXPECT_EQ(job_->phase(), Phase::running);
  reports_[1].can_save = true;
  say(1, WorkerPhase::done, 1, 1, 20);
  EXPECT_EQ(job_->phase(), Phase::finishing);
  auto saves = told<Save>();
  ASSERT_EQ(saves.size(), 1u);
  EXPECT_EQ(saves[0].first, 1u);
  happen(WorkerExited{3, 0, 9});  // its parts are on disk
  EXPECT_TRUE(told<Halt>().empty());
  reports_[1].save = {1, SaveStatus::State::written, 20, ""};
  repeat(1);
  happen(CheckpointPublished{20});
  EXPECT_EQ(told<Stop>().size(), 3u);
}

// Then all write theirs again.
TEST_F(ShardedTest, WhereThePartsOfTheResultAreLostAnotherGenerationWritesThemAgain) {
  run_four();
  reports_[1].can_save = true;
  for (const WorkerId w : {2, 3, 4, 1}) say(w, WorkerPhase::done, 1, 1, 20);
  EXPECT_EQ(job_->phase(), Phase::finishing);
  reports_[1].can_save = false;
  reports_[1].save = {1, SaveStatus::State::failed, 20, "a chunk is missing"};
  repeat(1);
  ASSERT_EQ(told<Halt>().size(), 4u);
  for (WorkerId w = 1; w <= 4; ++w) say(w, WorkerPhase::done, 1, 2, 20);
  EXPECT_EQ(plan().number, 2u);
  EXPECT_EQ(plan().start, 20);
  for (const Member& member : plan().members) EXPECT_EQ(member.source, StateSource::keep);
}

TEST_F(ShardedTest, APreemptionAfterTheLastStepIsSavedFromThePartsThatAreOnDisk) {
  run_four();
  happen(PreemptJob{});
  reports_[1].can_save = true;
  for (const WorkerId w : {2, 3, 4, 1}) say(w, WorkerPhase::done, 1, 2, 20);
  const auto saves = told<Save>();
  ASSERT_EQ(saves.size(), 1u);
  EXPECT_EQ(saves[0].first, 1u);
}

TEST_F(ShardedTest, APreemptedJobIsSavedByWhomTheOthersWroteTheirPartsFor) {
  run_four();
  happen(PreemptJob{});
  for (const WorkerId w : {2, 3, 4}) halt(w, 6);
  reports_[1].can_save = true;
  halt(1, 6);
  const auto saves = told<Save>();
  ASSERT_EQ(saves.size(), 1u);
  EXPECT_EQ(saves[0].first, 1u);
}

TEST_F(ShardedTest, APreemptionThatALossCameBetweenBringsThePartsTogetherFirst) {
  run_four();
  happen(PreemptJob{});
  happen(WorkerExited{1, 0, 9});
  for (const WorkerId w : {2, 3, 4}) halt(w);
  EXPECT_EQ(plan().number, 2u);
  EXPECT_EQ(plan().start, 5);
  EXPECT_EQ(job_->phase(), Phase::preempting);
  for (const WorkerId w : {2, 3, 4}) say(w, WorkerPhase::restoring, 2, 2, 5);
  EXPECT_TRUE(told<Halt>().empty());
  say(2, WorkerPhase::running, 2, 2, 5);
  say(3, WorkerPhase::running, 2, 2, 5);
  say(4, WorkerPhase::running, 2, 2, 5);
  ASSERT_EQ(told<Halt>().size(), 3u);
  EXPECT_TRUE(told<Halt>()[0].second.gather);
}

}  // namespace
}  // namespace ductile::control
