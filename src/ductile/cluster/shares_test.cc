// Shares of teams: what they change under policies that know them, and where they are told.
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/cluster/api.h"
#include "ductile/cluster/testing/demands.h"
#include "ductile/cluster/why_impl.h"

namespace ductile::cluster {
namespace {

using testing::demand;
using testing::kInterval;

ServiceOptions with_shares(std::map<std::string, double> shares, const std::string& policy) {
  ServiceOptions options;
  options.node = "here";
  options.devices = 6;
  options.policy = policy;
  options.shares = std::move(shares);
  return options;
}

// Of two jobs of team "vision" and one of another team, all alike: how many devices the other one
// held over the last rounds, in sum.
int32_t held_by_the_other_team(const std::map<std::string, double>& shares) {
  const ServiceOptions options = with_shares(shares, "ductile");
  Scheduler scheduler(cluster_of(options), options.policy, kInterval);
  const auto teams = teams_of(options);
  for (JobId id = 1; id <= 3; ++id) {
    JobDemand one = demand(id, 1, 6, static_cast<double>(id));
    const auto team = teams.find("vision");
    if (id <= 2 && team != teams.end()) one.team = team->second;
    scheduler.add(one);
  }
  std::map<JobId, int32_t> held;
  int32_t sum = 0;
  for (int round = 1; round <= 60; ++round) {
    const double now = round * kInterval;
    for (const Allotment& a : scheduler.decide(now)) {
      scheduler.holds(a.job, a.allocation, now);
      scheduler.paused(a.job, 0.1, true);
      held[a.job] = sched::device_count(a.allocation);
    }
    for (const auto& [id, devices] : held)
      if (devices > 0) scheduler.measured(id, 60 * std::pow(devices, 0.7));
    if (round > 30) sum += held[3];
  }
  return sum;
}

TEST(Shares, ATeamAboveItsShareMakesRoomForOthers) {
  const int32_t all = held_by_the_other_team({{"vision", 1.0}});  // it is never above its share
  EXPECT_GT(held_by_the_other_team({{"vision", 1.0 / 6}}), all + 15)
      << "half a device more in the mean";
}

TEST(Shares, AreRefusedUnderAPolicyThatKnowsNone) {
  for (const std::string& policy : sched::policy_names()) {
    const ServiceOptions options = with_shares({{"vision", 0.5}}, policy);
    if (sched::make_policy(policy)->traits().sees_shares) {
      EXPECT_EQ(cluster_of(options).teams, (std::vector<spec::Team>{{1, 0.5, 0}})) << policy;
      continue;
    }
    try {
      cluster_of(options);
      ADD_FAILURE() << policy;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(error.message().find("--policy ductile"), std::string::npos) << error.message();
    }
  }
}

TEST(Shares, TeamsHaveOneNumberForQuotasAndShares) {
  ServiceOptions options = with_shares({{"b", 0.25}, {"c", 0.5}}, "ductile");
  options.quotas = {{"a", 3}, {"c", 2}};
  options.gpu_quotas = {{"c", 1}};
  EXPECT_EQ(cluster_of(options).teams,
            (std::vector<spec::Team>{{1, 0, 3}, {2, 0.25, 0}, {3, 0.5, 2}}));
  EXPECT_EQ(gpu_quotas_of(options), (std::map<int32_t, int64_t>{{3, 1}}));
}

TEST(Shares, WhySaysThatATeamHoldsMoreThanItsShare) {
  WhyFacts facts;
  facts.job.id = 3;
  facts.job.submission.team = "vision";
  facts.job.submission.min_devices = facts.job.submission.max_devices = 1;
  NodeRecord node{"here", "cpu"};
  node.state = NodeState::up;
  node.devices = 4;
  facts.nodes = {node};
  facts.holders = {{1, "one", "vision", "standard", "here", 3},
                   {2, "two", "speech", "standard", "here", 1}};
  const std::string told = " Team vision holds 3 of 4 devices, and its share is 25 %";
  facts.share = 0.25;
  EXPECT_NE(why(facts).find(told), std::string::npos) << why(facts);
  facts.share = 0.75;
  EXPECT_EQ(why(facts).find("share"), std::string::npos) << why(facts);
  facts.share.reset();
  EXPECT_EQ(why(facts).find("share"), std::string::npos) << why(facts);
}

TEST(Shares, AccountsSayWhatTeamsAreEntitledToAndHold) {
  const TempFolder folder;
  const fs::path file = folder.path() / "store.db";
  Store store(file);
  CommitQueue queue(store);
  Api api(file, queue, [] { return 1000.0; });
  const LiveView view({{"vision", 4}, {"robots", 2}}, {{"vision", 1}}, {{"vision", 0.5}});
  api.show(&view);
  queue.commit([](Change& change) {
    Submission s;
    s.name = "one";
    s.owner = "tia";
    s.team = "vision";
    const JobId id = change.submit(s, "{}", 1000);
    change.set_run(id, "", 1000);
    change.set_phase(id, Phase::running, "It runs.", 1000);
    change.set_holdings(id, {{"here", 3}}, "It runs.", 1000);
  });
  Call call;
  call.method = "GET";
  call.path = "/v1/accounts";
  call.principal = {"tia", Role::read};
  EXPECT_EQ(
      parse_json(api.handle(call).body).at("teams"),
      nlohmann::json::array(
          {{{"team", "robots"}, {"devices", 0}, {"quota", 2}},
           {{"team", "vision"}, {"devices", 3}, {"quota", 4}, {"gpu_quota", 1}, {"share", 0.5}}}));
}

}  // namespace
}  // namespace ductile::cluster
