#include "ductile/plan/baselines/piper.h"

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/base/testing.h"
#include "ductile/graph/builders.h"
#include "ductile/graph/downsets.h"
#include "ductile/graph/formats.h"

namespace ductile::plan {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

struct Case {
  graph::Graph graph;
  PiperProblem problem;
};

// A small graph with splits, recomputation and memory that is short half of the time.
Case random_case(uint64_t seed) {
  Rng rng(seed, 1);
  Case c;
  c.graph = graph::build_graph(fmt::format("random:{},{}", 2 + rng.below(5), seed));
  double held = 0;
  for (graph::Op& op : c.graph.ops) {
    op.max_split = 1 << rng.below(2);
    op.recomputable = rng.below(4) != 0;
    op.cost.activation_bytes = 1e6 * (1 + rng.below(20));
    op.cost.parameter_bytes = 1e5 * rng.below(10);
    held += 2 * op.cost.parameter_bytes + op.cost.activation_bytes;
  }
  for (graph::Edge& e : c.graph.edges) {
    e.bytes = 1e5 * rng.below(10);
    e.tensor_bytes_from = rng.below(2) * e.bytes;
    e.tensor_bytes_to = rng.below(2) * e.bytes / 2;
  }
  c.problem.devices = 1 + static_cast<int>(rng.below(5));
  c.problem.micro_batches = 1 << rng.below(4);
  c.problem.bandwidth = 1e9 * (1 + rng.below(20));
  c.problem.memory = rng.below(2) == 0 ? 1e15 : held * (0.2 + 0.2 * rng.below(8));
  return c;
}

// Every sequence of stages, priced by piper_seconds().
double brute_force(const Case& c) {
  const graph::Topology topology(c.graph);
  const auto sets = *graph::downsets(topology, 1000);
  double best = kNoLimit;
  std::vector<PiperStage> stages;
  const std::function<void(size_t, int)> extend = [&](size_t from, int devices) {
    if (from + 1 == sets.size()) {
      int degrees = 0;
      for (const PiperStage& s : stages) degrees += s.replicas;
      if (degrees <= c.problem.micro_batches) {
        best = std::min(best, piper_seconds(c.graph, c.problem, stages));
      }
      return;
    }
    for (size_t to = from + 1; to < sets.size(); ++to) {
      if (!sets[from].is_subset_of(sets[to])) continue;
      for (int t = 1; t <= 2; ++t) {
        for (int d = 1; d * t <= devices; ++d) {
          if (c.problem.micro_batches % d != 0) continue;
          stages.push_back({(sets[to] - sets[from]).to_vector(), t, d, 1, {}});
          extend(to, devices - d * t);
          stages.pop_back();
        }
      }
    }
  };
  extend(0, c.problem.devices);
  return best;
}

TEST(Piper, BothSearchesEqualBruteForceOnSmallGraphs) {
  int feasible = 0, recomputed = 0, split = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const Case c = random_case(seed);
    const double best = brute_force(c);
    const PiperResult theirs = piper_search(c.graph, c.problem);
    const PiperResult ours = min_devices_search(c.graph, c.problem);
    ASSERT_EQ(theirs.feasible, std::isfinite(best));
    ASSERT_EQ(ours.feasible, std::isfinite(best));
    if (!ours.feasible) {
      EXPECT_EQ(ours.failure, "memory does not suffice");
      continue;
    }
    ++feasible;
    ASSERT_NEAR(theirs.seconds, best, 1e-5 * best);  // its table holds single precision
    ASSERT_NEAR(ours.seconds, best, 1e-8 * best);
    ASSERT_LE(ours.lower_bound, best * (1 + 1e-12));
    ASSERT_NEAR(piper_seconds(c.graph, c.problem, ours.stages), ours.seconds, 1e-12 * best);
    int devices = 0;
    for (const PiperStage& s : ours.stages) {
      devices += s.replicas * s.tensor;
      recomputed += !s.recompute.empty();
      split += s.tensor > 1;
    }
    EXPECT_LE(devices, c.problem.devices);
  }
  EXPECT_GT(feasible, 150);
  EXPECT_GT(recomputed, 10);
  EXPECT_GT(split, 10);
}

// By hand: two operators, two devices. Apart: the slower one and its message; together on two
// replicas: half of all and the sum of the gradients.
TEST(Piper, TheFormulaByHand) {
  graph::Graph g;
  g.name = "two";
  for (const char* name : {"a", "b"}) {
    graph::Op& op = g.ops.emplace_back();
    op.name = name;
    op.cost.forward.per_sample = 1;
    op.cost.backward_input.per_sample = name[0] == 'a' ? 2 : 1;
    op.cost.parameter_bytes = 100;
    op.cost.activation_bytes = 10;
  }
  g.edges.push_back({0, 1, 0, 50});
  PiperProblem p;
  p.devices = 2;
  p.micro_batches = 4;
  p.bandwidth = 100;
  p.memory = 1e6;
  const PiperStage a{{0}, 1, 1, 1, {}}, b{{1}, 1, 1, 1, {}}, both{{0, 1}, 1, 2, 1, {}};
  EXPECT_DOUBLE_EQ(piper_seconds(g, p, {a, b}), 3 + 2 * 50 / 100.0);
  EXPECT_DOUBLE_EQ(piper_seconds(g, p, {both}), 5 / 2.0 + 4.0 * 200 / (2 * 4 * 100));
  // a has two micro-batches in flight behind b: 2 x 10 + weights and gradients, 200.
  p.memory = 219;
  EXPECT_EQ(piper_seconds(g, p, {a, b}), kNoLimit);
  p.memory = 220;
  EXPECT_DOUBLE_EQ(piper_seconds(g, p, {a, b}), 4);
}

// Where the published profiles lie beside the repository: what Piper's own program gave.
TEST(Piper, PublishedTimesAreReached) {
  const std::filesystem::path folder =
      std::filesystem::path(DUCTILE_SOURCE_DIR) / "../shared/data/graphs/piper";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no profiles";
  struct Row {
    const char* file;
    int devices;
    double gib;
    int64_t micro_batches;
    double seconds;  // 0: memory does not suffice
  };
  for (const Row& row :
       {Row{"bert32a100", 64, 80, 1920, 0.015650}, Row{"bert32a100", 1024, 2, 1920, 0.001841},
        Row{"bert32a100", 1024, 1, 1920, 0.004392}, Row{"bert32a100", 64, 1, 1920, 0},
        Row{"bert32a100", 8, 2, 1920, 0}, Row{"resnet", 32, 2, 7680, 24.626e-3}}) {
    SCOPED_TRACE(fmt::format("{} {} {}", row.file, row.devices, row.gib));
    const graph::Graph g = graph::read_graph(folder / (std::string(row.file) + ".json"));
    PiperProblem p;
    p.devices = row.devices;
    p.memory = row.gib * (1 << 30);
    // Its program adds milliseconds to bytes over bytes a second in ResNet's file.
    p.bandwidth = 25.0 * (1 << 30) * (std::string(row.file) == "resnet" ? 1000 : 1);
    p.micro_batches = row.micro_batches;
    const PiperResult r = min_devices_search(g, p);
    EXPECT_EQ(r.feasible, row.seconds > 0);
    if (!r.feasible) continue;
    EXPECT_NEAR(r.seconds, row.seconds, 5.1e-7 * (row.seconds > 0.01 ? 10 : 1));
  }
}

}  // namespace
}  // namespace ductile::plan
