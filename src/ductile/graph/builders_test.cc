#include "ductile/graph/builders.h"

#include <gtest/gtest.h>

#include "ductile/base/testing.h"
#include "ductile/graph/downsets.h"
#include "ductile/graph/series_parallel.h"

namespace ductile::graph {
namespace {

double parameters(const Graph& g) {
  double bytes = 0;
  std::vector<int> seen;
  for (const Op& op : g.ops) {
    const bool again = op.tied >= 0 && std::find(seen.begin(), seen.end(), op.tied) != seen.end();
    if (!again) bytes += op.cost.parameter_bytes;
    if (op.tied >= 0) seen.push_back(op.tied);
  }
  return bytes / 4;
}

// The figures of GraphPipe's models (arXiv 2406.17145, appendix A.2) and of their search spaces.
TEST(Builders, GraphPipesModelsHaveTheirPublishedSizes) {
  const Graph mmt = build_graph("mmt");
  EXPECT_EQ(mmt.ops.size(), 97u);
  EXPECT_EQ(mmt.edges.size(), 96u);
  EXPECT_NEAR(parameters(mmt), 402.7e6, 0.1e6);
  EXPECT_EQ(mmt.edges.front().bytes, 1 << 20);
  EXPECT_EQ(build_graph("mmt:whole_layers=1").ops.size(), 33u);
  const Graph dlrm = build_graph("dlrm");
  EXPECT_EQ(dlrm.ops.size(), 41u);
  EXPECT_EQ(dlrm.edges.size(), 40u);
  EXPECT_NEAR(parameters(dlrm), 1.269e9, 1e6);
  const Graph candle = build_graph("candle");
  EXPECT_EQ(candle.ops.size(), 34u);
  EXPECT_EQ(candle.edges.size(), 33u);
  EXPECT_NEAR(parameters(candle), 637.5e6, 0.1e6);
  for (const Graph* g : {&mmt, &dlrm, &candle})
    EXPECT_TRUE(series_parallel(*g).is_series_parallel());

  EXPECT_EQ(count_downsets(Topology(build_graph("mmt:2")), 1 << 20), 626u);
  EXPECT_EQ(count_downsets(Topology(build_graph("mmt:whole_layers=1")), 1 << 20), 6562u);
  EXPECT_EQ(count_downsets(Topology(candle), 1 << 20), 78'131u);
  EXPECT_GT(count_downsets(Topology(dlrm), 200'000), 200'000u);
}

TEST(Builders, AnAttentionLayerCostsWhatItsArithmeticSays) {
  DeviceModel device;
  device.flops = 1e9;
  device.memory_bandwidth = 1e30;
  device.overhead = 0;
  const Graph g = build_graph("mmt:1,1", device);
  double forward = 0;
  for (const Op& op : g.ops) forward += op.cost.forward.per_sample;
  EXPECT_NEAR(forward, 6.71, 0.01);  // GFLOP of one layer at 1 GFLOP/s
}

TEST(Builders, KnownModelsHaveTheirKnownParameterCounts) {
  EXPECT_NEAR(parameters(build_graph("resnet:50")), 25.5e6, 0.1e6);
  EXPECT_NEAR(parameters(build_graph("resnet:18")), 11.7e6, 0.1e6);
  EXPECT_NEAR(parameters(build_graph("bert")), 333e6, 3e6);  // positions left out
  EXPECT_NEAR(parameters(build_graph("gpt")), 353e6, 3e6);
  EXPECT_NEAR(parameters(build_graph("gpt:layers=128,hidden=25600,heads=160,sequence=2048")), 1e12,
              0.02e12);
  EXPECT_NEAR(parameters(build_graph("unet")), 31.4e6, 3e6);
}

TEST(Builders, EveryOneBuildsAndMostAreSeriesParallel) {
  for (const Builder& b : builders()) {
    const Graph g = build_graph(b.name);
    EXPECT_EQ(g.name, b.name);
    const SpTree tree = series_parallel(g);
    EXPECT_EQ(ops_below(tree, tree.root).size(), g.ops.size());
    if (b.name != "random") {
      EXPECT_TRUE(tree.is_series_parallel()) << b.name;
    }
  }
  EXPECT_FALSE(series_parallel(build_graph("random:40,3")).is_series_parallel());
  EXPECT_EQ(build_graph("random:50,7"), build_graph("random:50,7"));
  EXPECT_EQ(build_graph("branches:8,120,40").ops.size(), 1000u);
}

TEST(Builders, WrongSpecsNameWhatIsWrong) {
  const auto expect = [](const char* spec, const char* what) {
    std::string text;
    testing::code_of([&] { build_graph(spec); }, &text);
    EXPECT_NE(text.find(what), std::string::npos) << text;
  };
  expect("mmd", "known are mmt, dlrm");
  expect("mmt:brunches=2", "did you mean \"branches\"");
  expect("mmt:0", "branches is \"0\"");
  expect("candle:x", "whole number");
  expect("candle:1,2,3,4", "at most 3 values");
  expect("dlrm:0,0", "no branch");
  expect("resnet:51", "depth is 51");
  expect("mmt:1024,10000", "more than 200000 operators");
}

TEST(AnalyticCost, IsTheSlowerOfArithmeticAndTraffic) {
  DeviceModel d;
  d.flops = 100;
  d.memory_bandwidth = 10;
  d.overhead = 1;
  Work w;
  w.flops = 500;
  w.bytes = 20;
  w.parameter_bytes = 30;
  const OpCost c = analytic_cost(w, d);
  EXPECT_EQ(c.forward, (Affine{4, 5}));
  EXPECT_EQ(c.backward_input, (Affine{4, 5}));
  EXPECT_EQ(c.backward_weight, (Affine{4, 5}));
  w.bytes = 80;
  w.parameter_bytes = 0;
  EXPECT_EQ(analytic_cost(w, d).forward, (Affine{1, 8}));
  EXPECT_EQ(analytic_cost(w, d).backward_weight, (Affine{}));
}

}  // namespace
}  // namespace ductile::graph
