// What a job has cost, whoever worked for it; and a job whose result is not to become a checkpoint.
#include <optional>

#include "ductile/base/error.h"
#include "ductile/control/testing/membership_story.h"

namespace ductile::control {
namespace {

class CostsTest : public MembershipTest {
 protected:
  void spend(WorkerId worker, double core_seconds, std::optional<double> joules) {
    reports_[worker].cost = {0, core_seconds, joules, 1000 * static_cast<int64_t>(worker)};
    repeat(worker);
  }
  Membership restarted() {
    Outcome first;
    return Membership::restore(options_, nlohmann::json::parse(job_->save().dump()), now_, first);
  }
};

TEST_F(CostsTest, AreThoseOfAllWorkersAlsoOfTheDead) {
  run_with(2);
  spend(1, 10, 0);
  spend(2, 7, 0);
  EXPECT_EQ(job_->cost().core_seconds, 17);
  happen(WorkerExited{2, 0, 9});
  EXPECT_TRUE(last_.must_save);
  EXPECT_EQ(job_->cost().core_seconds, 17);
  EXPECT_EQ(job_->cost().peak_rss_bytes, 2000);
  pass(seconds(1));
  say(launched_, WorkerPhase::ready);
  spend(launched_, 1, 0);
  spend(1, 12, 0);
  EXPECT_EQ(job_->cost().core_seconds, 20);
}

TEST_F(CostsTest, GoOnWhenTheControllerIsStartedAgain) {
  options_.spent = {0, 100, std::nullopt, 1};
  job_.emplace(options_);
  run_with(2);
  spend(1, 10, 5);
  spend(2, 7, 5);
  happen(WorkerExited{2, 0, 9});
  job_.emplace(restarted());
  EXPECT_EQ(job_->cost().core_seconds, 117);
  spend(1, 11, 6);  // the same process: not counted twice
  EXPECT_EQ(job_->cost().core_seconds, 118);
  EXPECT_FALSE(job_->cost().energy_joules) << "what was spent before is not known";
}

// Other stages are other virtual ranks: nothing of the generations before is true of them, and no
// number is given twice.
TEST_F(CostsTest, GoOnWhereTheJobWasPlannedAnew) {
  options_.checkpoints = {40};
  job_.emplace(options_);
  run_with(2, 45);
  spend(1, 10, 0);
  spend(2, 7, 0);
  MembershipOptions other = options_;
  other.virtual_ranks = other.max_workers = 3;
  const auto restored = [&] {
    Outcome first;
    Membership next = Membership::restore(other, job_->save(), now_, first);
    EXPECT_TRUE(first.must_save);
    return next;
  };
  EXPECT_THROW(restored(), Error) << "a job keeps its ranks";
  other.may_change_ranks = true;
  EXPECT_THROW(restored(), Error) << "workers of the plan before may be at work";
  happen(StopJob{});
  for (const WorkerId worker : {1, 2}) happen(WorkerExited{worker, 0, 0});
  ASSERT_EQ(job_->phase(), Phase::failed);
  Membership next = restored();
  EXPECT_EQ(next.phase(), Phase::queued);
  EXPECT_EQ(next.checkpoint(), 40);
  EXPECT_EQ(next.step(), 40);
  EXPECT_EQ(next.cost().core_seconds, 17);
  EXPECT_EQ(next.save().at("virtual_ranks"), 3);
  EXPECT_EQ(next.save().at("granted"), job_->save().at("granted"));
  job_.emplace(std::move(next));
  happen(StartJob{1});
  EXPECT_EQ(launched_, 3U);
}

TEST_F(CostsTest, TheEnergyOfAHostCountsOnce) {
  hosts_ = {{1, "a"}, {2, "a"}, {3, "b"}};
  happen(StartJob{3});
  for (WorkerId w = 1; w <= 3; ++w) {
    reports_[w].cost.energy_joules = 0;
    say(w, WorkerPhase::ready);
  }
  spend(1, 1, 100);
  spend(2, 1, 90);
  spend(3, 1, 50);
  EXPECT_EQ(job_->cost().energy_joules, 150);
  happen(WorkerExited{1, 0, 9});
  spend(2, 1, 120);  // from now on it is the one that counts on its host
  EXPECT_EQ(job_->cost().energy_joules, 180);
  spend(3, 1, std::nullopt);
  EXPECT_FALSE(job_->cost().energy_joules);
}

TEST_F(CostsTest, AStateOfAVersionThatCountedNoneIsTaken) {
  run_with(1);
  nlohmann::json saved = job_->save();
  saved["format"] = 1;
  saved.erase("spent");
  for (nlohmann::json& worker : saved["workers"]) {
    worker["report"].erase("cost");
    worker["report"].erase("error_code");
  }
  Outcome first;
  EXPECT_EQ(Membership::restore(options_, saved, now_, first).cost().core_seconds, 0);
}

TEST_F(CostsTest, WhereNoCheckpointOfTheResultIsWantedTheJobEndsWithoutOne) {
  options_.save_result = false;
  job_.emplace(options_);
  run_with(1);
  say(1, WorkerPhase::done, 1, 1, 20);
  EXPECT_TRUE(told<Save>().empty());
  EXPECT_EQ(told<Stop>().size(), 1u);
  happen(WorkerExited{1, 0, 0});
  EXPECT_EQ(job_->phase(), Phase::finished);
  EXPECT_EQ(job_->reason(), "all 20 steps are done");
  EXPECT_EQ(job_->checkpoint(), -1);
}

// The worker drops it, as it passed no such step.
TEST_F(CostsTest, ASaveAtAStepThatWasNotBegunGivesWayToThatOfTheResult) {
  options_.checkpoint_steps = 10;
  job_.emplace(options_);
  run_with(1);
  say(1, WorkerPhase::done, 1, 1, 20);
  const auto result = told<Save>();
  ASSERT_EQ(result.size(), 1u);
  EXPECT_EQ(result[0].second.at_step, -1);
  EXPECT_GT(result[0].second.attempt, 1u);
}

TEST_F(CostsTest, ASaveIsAskedForOnceItsWriterIsInTheGeneration) {
  options_.checkpoint_steps = 10;
  job_.emplace(options_);
  happen(StartJob{1});
  say(1, WorkerPhase::ready);
  EXPECT_TRUE(told<Save>().empty());
  say(1, WorkerPhase::restoring, 1, 1, 0);
  ASSERT_EQ(told<Save>().size(), 1u);
  EXPECT_EQ(told<Save>()[0].second.generation, 1u);
}

TEST_F(CostsTest, ACheckpointUnderWayIsWaitedForWhereNoneOfTheResultIsWanted) {
  options_.save_result = false;
  job_.emplace(options_);
  run_with(1);
  happen(SaveJob{});
  const uint64_t attempt = told<Save>().at(0).second.attempt;
  reports_[1].save = {attempt, SaveStatus::State::saving, 19, ""};
  say(1, WorkerPhase::done, 1, 1, 20);
  EXPECT_TRUE(told<Stop>().empty());
  reports_[1].save.state = SaveStatus::State::written;
  repeat(1);
  ASSERT_EQ(said<PublishCheckpoint>().size(), 1u);
  happen(CheckpointPublished{19});
  EXPECT_EQ(told<Stop>().size(), 1u);
}

TEST_F(CostsTest, ARestoredJobWantsNoMoreWorkersThanAreAllowed) {
  run_with(4);
  options_.max_workers = 1;
  EXPECT_EQ(restarted().wanted_workers(), 1);
}

TEST_F(CostsTest, AnErrorThatWouldBeTheSameAnywhereEndsAJobOfOneHostAtOnce) {
  for (const ErrorCode code : {ErrorCode::not_found, ErrorCode::unavailable}) {
    job_.emplace(options_);
    happen(StartJob{1});
    reports_[1] = {};
    reports_[1].error = "no such data";
    reports_[1].error_code = code;
    say(1, WorkerPhase::loading);
    const bool failed = job_->phase() == Phase::failed;
    EXPECT_EQ(failed, code == ErrorCode::not_found) << "what is refused now is tried again";
    EXPECT_FALSE(job_->crashed());
  }
}

TEST_F(CostsTest, AnErrorOfAnOnlyWorkerIsToldWithoutItsNumber) {
  run_with(1);
  reports_[1].error = "label 12 of sample 7 is none of 10 classes";
  repeat(1);
  EXPECT_EQ(job_->reason(), "label 12 of sample 7 is none of 10 classes");
}

}  // namespace
}  // namespace ductile::control
