#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ductile/base/rng.h"
#include "ductile/graph/builders.h"
#include "ductile/plan/baselines/baselines.h"
#include "ductile/plan/testing/brute_force.h"
#include "ductile/plan/wait_bound_impl.h"

namespace ductile::plan {
namespace {

// The bounds of one graph, on equal devices, for one micro-batch size.
class Bounds {
 public:
  Bounds(const graph::Graph& graph, const Devices& devices, const PlannerOptions& options,
         int64_t micro_batch)
      : islands_{island_of(devices)} {
    EXPECT_TRUE(SearchSpace::all_downsets(graph, options.max_transitions, space_));
    flows_ = {PathFlow::round_trip(space_), PathFlow::by_parameters(space_)};
    table_ = std::make_unique<StageTable>(space_, islands_, options, micro_batch);
    paths_ = std::make_unique<PathBound>(space_, *table_, flows_, options);
    gates_ = std::make_unique<Gates>(space_);
    waits_ = std::make_unique<WaitBound>(space_, *table_, flows_[0], *gates_, *paths_);
  }
  // Whether a plan may take so little, for all that is known of waits; and if nothing is.
  bool may_take(double seconds) {
    int64_t steps = 100'000'000;
    const bool fits = waits_->fits(seconds, steps);
    EXPECT_GT(steps, 0);
    return fits;
  }
  bool may_be_busy_for(double seconds) { return paths_->fits_in_all(seconds); }

 private:
  std::vector<Island> islands_;
  SearchSpace space_;
  std::vector<PathFlow> flows_;
  std::unique_ptr<StageTable> table_;
  std::unique_ptr<PathBound> paths_;
  std::unique_ptr<Gates> gates_;
  std::unique_ptr<WaitBound> waits_;
};

bool shares_devices(const Plan& plan) {
  size_t devices = 0;
  for (const Stage& s : plan.stages) devices += s.devices.size();
  return static_cast<int>(devices) > plan.num_devices();
}

// Operators in a row, of which each part of a pass takes a second; no replicas.
graph::Graph row_of(int n, double bytes) {
  graph::Graph graph;
  graph.name = "row";
  for (int i = 0; i < n; ++i) {
    graph::Op op;
    op.name = "op" + std::to_string(i);
    op.kind = "op";
    op.cost.forward = op.cost.backward_input = op.cost.backward_weight = {0, 1};
    op.output_bytes = bytes;
    graph.ops.push_back(op);
    if (i > 0) graph.edges.push_back({i - 1, i, 0, bytes});
  }
  return graph;
}

Devices single_devices(int n) {
  DeviceGroup group;
  group.nodes = n;
  group.inter = {1, 0};
  return Devices({group});
}

PlannerOptions batch_of(int64_t batch) {
  PlannerOptions options;
  options.batch = batch;
  return options;
}

TEST(WaitBound, IsTheTimeOfAZeroBubbleScheduleWhereStagesAreAlike) {
  const graph::Graph graph = row_of(4, 0);
  for (const int64_t batch : {1, 2, 4, 8, 50}) {
    SCOPED_TRACE(batch);
    Bounds bounds(graph, single_devices(4), batch_of(batch), 1);
    // The last stage waits for three others; or, with few micro-batches, the first one for the
    // gradients of the last one's.
    const double m = static_cast<double>(batch);
    const double least = std::max(3 + 3 * m, 6 + 2 * m + 1);
    EXPECT_TRUE(bounds.may_take(least));
    EXPECT_FALSE(bounds.may_take(least - 0.01));
    EXPECT_TRUE(bounds.may_be_busy_for(3 * m));
  }
}

TEST(WaitBound, CountsMessagesOneAfterAnother) {
  // Two stages of one operator: the second receives 10 messages of 5 s, and sends as many.
  Bounds bounds(row_of(2, 5), single_devices(2), batch_of(10), 1);
  const double least = 1 + 5 + 1 + 10 * 5;
  EXPECT_TRUE(bounds.may_take(least));
  EXPECT_FALSE(bounds.may_take(least - 0.01));
  EXPECT_TRUE(bounds.may_be_busy_for(30));
  // Both on one device need none.
  Bounds slow(row_of(2, 50), single_devices(2), batch_of(10), 1);
  EXPECT_TRUE(slow.may_take(60));
  EXPECT_FALSE(slow.may_take(59.9));
}

// Cuts a random order of the operators; each stage at random degrees. Nothing if the devices do not
// suffice.
std::optional<Plan> random_plan(const SmallCase& c, int64_t micro_batch, Rng& rng) {
  const graph::Topology topology(c.graph);
  const int n = topology.num_ops();
  std::vector<int> open(n);
  std::vector<OpId> ready, order;
  for (OpId v = 0; v < n; ++v) {
    open[v] = static_cast<int>(topology.predecessors(v).size());
    if (open[v] == 0) ready.push_back(v);
  }
  while (!ready.empty()) {
    const size_t i = rng.below(static_cast<uint32_t>(ready.size()));
    const OpId v = ready[i];
    ready.erase(ready.begin() + static_cast<long>(i));
    order.push_back(v);
    for (OpId w : topology.successors(v)) {
      if (--open[w] == 0) ready.push_back(w);
    }
  }
  Plan plan;
  plan.graph = c.graph.name;
  plan.batch = c.options.batch;
  const uint32_t most = static_cast<uint32_t>(std::min(n, c.devices.size()));
  const uint32_t wanted = 1 + rng.below(most);
  for (int i = 0; i < n; ++i) {
    if (i == 0 || rng.below(static_cast<uint32_t>(n)) < wanted) plan.stages.emplace_back();
    plan.stages.back().ops.push_back(order[i]);
  }
  int taken = 0;
  for (Stage& s : plan.stages) {
    std::sort(s.ops.begin(), s.ops.end());
    s.micro_batch = micro_batch;
    do {
      s.replicas = 1 + static_cast<int>(rng.below(static_cast<uint32_t>(micro_batch)));
    } while (micro_batch % s.replicas != 0);
    if (c.options.recompute && rng.below(3) == 0) {
      for (OpId v : s.ops) {
        if (graph::allows(c.graph.ops[v], 1, true)) s.recompute.push_back(v);
      }
    } else if (c.options.split && rng.below(2) == 0) {
      const bool splits = std::any_of(s.ops.begin(), s.ops.end(), [&](OpId v) {
        return graph::allows(c.graph.ops[v], 2, false);
      });
      s.tensor = splits ? 2 : 1;
    }
    s.shard_optimizer = s.replicas > 1 && rng.below(2) == 0;
    taken += s.num_devices();
  }
  if (taken > c.devices.size()) return std::nullopt;
  const std::vector<int64_t> w = in_flight_samples(stage_graph(c.graph, plan), plan);
  for (size_t s = 0; s < plan.stages.size(); ++s) plan.stages[s].in_flight = w[s];
  place(c.graph, c.devices, plan);
  return plan;
}

// In both kinds of schedule, with as few samples in flight as may be and with all of them.
template <class Visit>
void for_schedules(const SmallCase& c, Plan plan, Visit visit) {
  plan.orders.clear();
  for (const bool all : {false, true}) {
    if (all) {
      for (Stage& s : plan.stages) s.in_flight = plan.batch;
    }
    for (const ScheduleKind kind : {ScheduleKind::kfkb, ScheduleKind::zero_bubble}) {
      plan.schedule = kind;
      const Timeline line = evaluate(c.graph, c.devices, plan);
      if (line.fits()) visit(line.seconds);
    }
  }
}

TEST(WaitBound, NoPlanOfSmallGraphsTakesLessAndNoneIsLooserThanBefore) {
  int plans = 0, tighter = 0, tight = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    SmallCase c = small_case(seed);
    if (!c.devices.is_uniform()) continue;
    Rng rng(seed, 41);
    c.options.batch = int64_t{2} << rng.below(3);
    c.options.micro_batches.clear();
    for (const int64_t b : {int64_t{1}, int64_t{2}}) {
      Bounds bounds(c.graph, c.devices, c.options, b);
      double least = 1e30;
      for (int i = 0; i < 12; ++i) {
        const std::optional<Plan> plan = random_plan(c, b, rng);
        if (!plan) continue;
        for_schedules(c, *plan, [&](double seconds) {
          ++plans;
          least = std::min(least, seconds);
          EXPECT_TRUE(bounds.may_take(seconds * (1 + 1e-9))) << to_json(*plan, c.graph).dump();
        });
        if (HasFailure()) return;
      }
      if (least == 1e30) continue;
      for (const double share : {0.3, 0.5, 0.7, 0.8, 0.9, 0.99}) {
        const bool before = bounds.may_be_busy_for(share * least);
        const bool now = bounds.may_take(share * least * (1 - 1e-8));
        EXPECT_TRUE(before || !now) << share;
        tighter += before && !now;
      }
      tight += !bounds.may_take(0.99 * least);
    }
  }
  EXPECT_GT(plans, 2000);
  EXPECT_GT(tighter, 100);
  EXPECT_GT(tight, 50);
}

// Plans of other planners and ours; those whose stages share devices are of no space.
TEST(WaitBound, NoPlanOfKnownModelsTakesLess) {
  int plans = 0;
  for (const char* name : {"candle:3,2,256", "mmt:2,2,64,256", "gpt:4,256,8,64,1000", "unet",
                           "dlrm:2,3,10000,256", "chain:12"}) {
    SmallCase c;
    DeviceGroup group;
    group.nodes = 2;
    group.devices_per_node = 4;
    c.devices = Devices({group});
    c.graph = graph::build_graph(name, group.model);
    for (const int64_t batch : {8, 32}) {
      for (const int64_t b : {2, 8}) {
        SCOPED_TRACE(std::string(name) + ", batch " + std::to_string(batch) + ", micro-batch " +
                     std::to_string(b));
        c.options = batch_of(batch);
        c.options.micro_batches = {b};
        SearchSpace space;
        if (!SearchSpace::all_downsets(c.graph, c.options.max_transitions, space)) continue;
        Bounds bounds(c.graph, c.devices, c.options, b);
        const auto expect_allowed = [&](const Plan& plan, double seconds, std::string_view whose) {
          if (shares_devices(plan)) return;
          ++plans;
          EXPECT_TRUE(bounds.may_take(seconds * (1 + 1e-9))) << whose;
        };
        for (const Baseline& baseline : baselines()) {
          const BaselineResult r = run_baseline(baseline.name, c.graph, c.devices, c.options);
          if (!r.ok()) continue;
          expect_allowed(r.plan, r.plan.predicted_seconds, baseline.name);
          for_schedules(c, r.plan,
                        [&](double seconds) { expect_allowed(r.plan, seconds, baseline.name); });
        }
        const Planned p = make_plan(c.graph, c.devices, c.options);
        ASSERT_TRUE(p.feasible);
        expect_allowed(p.plan, p.simulated_seconds, "ours");
      }
    }
  }
  EXPECT_GT(plans, 100);
}

}  // namespace
}  // namespace ductile::plan
