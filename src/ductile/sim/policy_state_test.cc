// A policy that is saved and begun anew from what it saved, at random rounds, decides as one that
// lives on.
#include <cstdlib>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/sim/metrics.h"
#include "ductile/sim/simulator.h"

namespace ductile::sim {
namespace {

using nlohmann::json;

// Now and then takes a new policy that is restored from the text of the old one's state.
class Restarted : public sched::Policy {
 public:
  Restarted(std::string name, uint64_t seed, uint32_t every)
      : name_(std::move(name)), options_{seed, 60}, rng_(seed, 0x5a7e), every_(every) {}
  std::string_view name() const override { return inner_->name(); }
  sched::PolicyTraits traits() const override { return inner_->traits(); }
  std::string explain(sched::JobId job) const override { return inner_->explain(job); }
  sched::Decisions decide(const sched::Round& round) override {
    if (every_ > 0 && rng_.below(every_) == 0) {
      saved = dump_json(inner_->state());
      inner_ = sched::make_policy(name_, options_);
      inner_->restore(parse_json(saved, "state", ErrorCode::data_loss), "state");
      EXPECT_TRUE(dump_json(inner_->state()) == saved) << "what was restored saves something else";
      ++restarts;
    }
    return inner_->decide(round);
  }
  int restarts = 0;
  std::string saved;

 private:
  std::string name_;
  sched::PolicyOptions options_;
  Rng rng_;
  uint32_t every_;
  std::unique_ptr<sched::Policy> inner_ = sched::make_policy(name_, options_);
};

struct Case {
  Workload workload;
  Catalog catalog = built_in_catalog();
  sched::Cluster cluster;
  SimOptions options;
};

// Tiers, teams, services, two clusters, lost nodes and late news.
Case make_case(uint64_t seed) {
  Case c;
  SyntheticOptions made;
  made.seed = seed;
  made.jobs = 20;
  made.hours = 1;
  made.tiers = seed % 2 == 0;
  made.teams = 2;
  made.services = seed % 3 == 0 ? 1 : 0;
  c.workload = synthetic_workload(made, c.catalog);
  for (Submission& job : c.workload.jobs)
    if (!job.service) job.work *= job.application == "imagenet" ? 0.003 : 0.1;
  c.cluster.add_nodes("t4", 4, 4, "main");
  c.cluster.add_nodes("rtx", 2, 8, "other");
  c.cluster.teams.push_back({.id = 1, .quota = 20});
  c.options.seed = seed;
  c.options.check = true;
  if (seed % 2 == 1) c.options.budget.reset();
  c.options.scenario = parse_scenario(
      "[[fault]]\nkind = \"node_loss\"\nat = 300\nfor = 400\nevery = 900\ncount = 5\n"
      "[[fault]]\nkind = \"late_reports\"\nat = 100\nprobability = 0.1\n",
      "s.toml");
  return c;
}

std::string play(const Case& c, sched::Policy& policy) {
  return to_json(simulate(c.workload, c.catalog, c.cluster, policy, c.options)).dump();
}

TEST(PolicyState, ARestartAtAnyRoundChangesNoLaterDecision) {
  for (const std::string& name : sched::policy_names())
    for (uint64_t seed = 1; seed <= (std::getenv("DUCTILE_ALL_SIZES") != nullptr ? 3 : 1); ++seed) {
      SCOPED_TRACE(fmt::format("{}, seed {}", name, seed));
      const Case c = make_case(seed);
      Restarted never(name, seed, 0), often(name, seed, 3);
      const std::string expected = play(c, never);
      EXPECT_TRUE(play(c, often) == expected);
      EXPECT_GT(often.restarts, 5);
    }
}

// Of three jobs that left sizes while the network was slow, and try them again.
TEST(PolicyState, TrialsOfSizesThatWereSlowGoOnAfterARestart) {
  Case c;
  for (const char* name : {"a", "b", "c"})
    c.workload.jobs.push_back({.name = name,
                               .application = "cifar10",
                               .devices = 8,
                               .scaling = sched::Scaling::strong,
                               .work = 5});
  c.cluster = sched::homogeneous_cluster(8, 1);
  c.options.budget.reset();
  c.options.check = true;
  c.options.scenario = parse_scenario(
      "[[fault]]\nkind = \"slow_network\"\nat = 0\nfactor = 30\nfor = 900\n", "s.toml");
  Restarted never("ductile", 1, 0), often("ductile", 1, 3);
  const std::string expected = play(c, never);
  EXPECT_TRUE(play(c, often) == expected);
  EXPECT_NE(often.saved.find("\"trials\""), std::string::npos);
}

// Whatever a disk makes of a state, it is refused, and the policy is as it was, or it is taken and
// the policy keeps the rules.
TEST(PolicyState, DamageIsRefusedOrHarmless) {
  const bool all = std::getenv("DUCTILE_ALL_SIZES") != nullptr;
  for (const std::string& name : sched::policy_names()) {
    const Case c = make_case(4);
    Restarted source(name, 4, 10);
    play(c, source);
    int refused = 0, played = 0;
    for (uint64_t seed = 0; seed < 300; ++seed) {
      SCOPED_TRACE(fmt::format("{}, damage {}", name, seed));
      Rng rng(seed, 0xdaa);
      std::string text = source.saved;
      for (uint32_t n = 1 + rng.below(3); n > 0; --n)
        text[rng.below(static_cast<uint32_t>(text.size()))] =
            "0123456789-.,[]{}\"ae"[rng.below(20)];
      const auto policy = sched::make_policy(name, {4, 60});
      const std::string before = policy->state().dump();
      try {
        policy->restore(parse_json(text, "state", ErrorCode::data_loss), "state");
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::data_loss) << e.what();
        EXPECT_TRUE(policy->state().dump() == before);
        ++refused;
        continue;
      }
      if (played++ < (all ? 12 : 1)) play(c, *policy);
    }
    EXPECT_GT(refused, 20) << name;
    const auto policy = sched::make_policy(name, {4, 60});
    for (const char* wrong : {"[]", "3", "null", "{\"what\": 1}"})
      EXPECT_THROW(policy->restore(json::parse(wrong), "state"), Error) << wrong;
  }
}

}  // namespace
}  // namespace ductile::sim
