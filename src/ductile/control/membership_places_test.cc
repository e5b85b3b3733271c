// Workers whose devices are given to somebody else.
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/json_value.h"
#include "ductile/control/membership.h"
#include "ductile/control/testing/membership_story.h"

namespace ductile::control {
namespace {

TEST_F(MembershipTest, AResizeSendsAwayWhomItNames) {
  run_with(3);
  happen(ResizeJob{2, {1}});
  EXPECT_TRUE(said<LaunchWorker>().empty());
  ASSERT_EQ(told<Halt>().size(), 3u);
  EXPECT_TRUE(told<Halt>()[0].second.at_boundary);
  for (WorkerId w : {1, 2, 3}) say(w, WorkerPhase::halted, 1, 2, 6);
  EXPECT_EQ(told<Enter>().size(), 2u);
  ASSERT_EQ(told<Stop>().size(), 1u);
  EXPECT_EQ(told<Stop>()[0].first, 1u);
}

TEST_F(MembershipTest, WhoIsSentAwayTakesPartUntilAnotherIsReady) {
  run_with(1);
  happen(ResizeJob{1, {1}});
  ASSERT_EQ(said<LaunchWorker>().size(), 1u);
  EXPECT_TRUE(told<Halt>().empty());
  say(2, WorkerPhase::ready);
  ASSERT_EQ(told<Halt>().size(), 1u);
  say(1, WorkerPhase::halted, 1, 2, 7);
  ASSERT_EQ(told<Enter>().size(), 2u);
  EXPECT_EQ(job_->generation().start, 7);
}

TEST_F(MembershipTest, WhoIsNamedNoMoreStays) {
  run_with(2);
  happen(ResizeJob{2, {2}});
  EXPECT_EQ(said<LaunchWorker>().size(), 1u);
  happen(ResizeJob{2});
  ASSERT_EQ(said<KillWorker>().size(), 1u);
  EXPECT_EQ(said<KillWorker>()[0].worker, 3u);
}

// A job of one virtual rank has one worker at most, and its node may be needed, too.
TEST_F(MembershipTest, TheOnlyWorkerThatThereMayBeIsReplaced) {
  options_.max_workers = 1;
  job_.emplace(options_);
  run_with(1);
  happen(ResizeJob{1, {1}});
  ASSERT_EQ(said<LaunchWorker>().size(), 1u);
  say(2, WorkerPhase::ready);
  ASSERT_EQ(told<Halt>().size(), 1u);
  say(1, WorkerPhase::halted, 1, 2, 7);
  EXPECT_EQ(job_->generation().find(2)->feeder, 1u);
}

TEST_F(MembershipTest, ANewControllerKnowsWhoWasSentAway) {
  run_with(2);
  happen(ResizeJob{2, {2}});
  Outcome first;
  const Membership next = Membership::restore(options_, job_->save(), now_, first);
  EXPECT_EQ(next.save().at("workers").at(1).at("sent_away"), true);
  // One that an earlier version saved.
  nlohmann::json before = job_->save();
  for (nlohmann::json& worker : before.at("workers")) worker.erase("sent_away");
  EXPECT_NO_THROW(Membership::restore(options_, before, now_, first));
}

}  // namespace
}  // namespace ductile::control
