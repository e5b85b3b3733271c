// Workers whose devices are given to somebody else.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
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

// ---- Virtual ranks that are wanted on certain hosts.

class WantedHosts : public MembershipTest {
 protected:
  // Workers 1, 2 ... on these hosts.
  void begin(const std::vector<std::string>& rank_hosts, const std::vector<std::string>& hosts) {
    options_.virtual_ranks = options_.max_workers = std::ssize(rank_hosts);
    options_.rank_hosts = rank_hosts;
    job_.emplace(options_);
    for (size_t w = 0; w < hosts.size(); ++w) hosts_[w + 1] = hosts[w];
    run_with(std::ssize(hosts));
  }
  // The worker of each virtual rank in the generation.
  std::vector<WorkerId> hosted() const {
    std::vector<WorkerId> out;
    for (const Member& member : job_->generation().members)
      for (int64_t r = member.ranks.begin; r < member.ranks.end; ++r) out.push_back(member.worker);
    return out;
  }
};

TEST_F(WantedHosts, HaveTheRanksThatAreWantedThere) {
  begin({"b", "a", "b", "a"}, {"a", "a", "b", "b"});
  EXPECT_EQ(hosted(), (std::vector<WorkerId>{3, 1, 4, 2}));
}

TEST_F(WantedHosts, WithFewerWorkersHaveMostOfThem) {
  begin({"b", "b", "a", "a"}, {"a", "b"});
  EXPECT_EQ(hosted(), (std::vector<WorkerId>{2, 2, 1, 1}));
}

// A lost worker's rank goes to whoever is left, and back to its host with the one that follows it.
TEST_F(WantedHosts, HaveThemAgainAfterALoss) {
  begin({"b", "a"}, {"a", "b"});
  ASSERT_EQ(hosted(), (std::vector<WorkerId>{2, 1}));
  happen(WorkerExited{2, -1, 9});
  say(1, WorkerPhase::halted, 1, 2, 6);
  EXPECT_EQ(hosted(), (std::vector<WorkerId>{1, 1}));
  say(1, WorkerPhase::running, 2, 2, 6);
  pass(seconds(1));
  ASSERT_EQ(launched_, 3u);
  hosts_[3] = "b";
  say(3, WorkerPhase::ready);
  say(1, WorkerPhase::halted, 2, 3, 7);
  EXPECT_EQ(hosted(), (std::vector<WorkerId>{3, 1})) << "the joiner is given the state";
  EXPECT_EQ(job_->generation().find(3)->feeder, 1u);
}

TEST_F(WantedHosts, AreWaitedForByNobody) {
  begin({"b", "x"}, {"a", "a"});
  EXPECT_EQ(hosted(), (std::vector<WorkerId>{1, 2}));
}

TEST_F(WantedHosts, HaveToBeSaidOfAllRanks) {
  options_.rank_hosts = {"a"};
  EXPECT_THROW(Membership{options_}, Error);
}

}  // namespace
}  // namespace ductile::control
