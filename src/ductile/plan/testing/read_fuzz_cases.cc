#include <limits>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/graph/builders.h"
#include "ductile/graph/formats.h"
#include "ductile/graph/reduce.h"
#include "ductile/graph/series_parallel.h"
#include "ductile/plan/evaluate.h"
#include "ductile/plan/testing/read_fuzz.h"

namespace ductile::plan {

namespace {

const graph::Graph& plan_graph() {
  static const graph::Graph g = graph::build_graph("candle:2,2,64");
  return g;
}

// Words that mean something to some reader, and figures at the edges.
constexpr std::string_view kWords[] = {"-1",
                                       "0",
                                       "1e308",
                                       "-0.0",
                                       "1e999",
                                       "9223372036854775807",
                                       "4294967296",
                                       "2147483648",
                                       "0.5",
                                       "null",
                                       "true",
                                       "[]",
                                       "{}",
                                       "\"\"",
                                       "{",
                                       "}",
                                       "[",
                                       "]",
                                       ",",
                                       ":",
                                       "\"",
                                       "\\u0000",
                                       "\xff",
                                       "[[nodes]]",
                                       "count = 1048576",
                                       "memory = \"1 B\"",
                                       "name",
                                       "ops",
                                       "edges",
                                       "nodes",
                                       "TMPCs",
                                       "fpgaLatency",
                                       "\"format\": \"ductile.graph\"",
                                       "forward",
                                       "NaN",
                                       "inf",
                                       " -- ",
                                       "\n\t",
                                       ";",
                                       "activation_size=[",
                                       "variants",
                                       "\"id\": \"vanilla\"",
                                       "tensor",
                                       "F99999999",
                                       "W",
                                       "[[[[[[[[",
                                       "{\"a\":{\"a\":{\"a\":",
                                       "batch",
                                       "micro_batch",
                                       "1099511627776"};

}  // namespace

std::vector<Seed> fuzz_seeds() {
  std::vector<Seed> out;
  for (const char* spec : {"candle:2,1,64", "random:6,3", "bert:1,64,2,8,100"}) {
    graph::Graph g = graph::build_graph(spec);
    g.ops[0].variants.push_back({2, true, g.ops[0].cost});
    out.push_back({Reader::graph, dump_json(graph::to_json(g))});
  }
  out.push_back(
      {Reader::graph, R"({"maxDevices": 10, "maxMemoryPerDevice": 8e10, "bandwidth": 2.5e10,
 "mbsInBatch": 8, "nodes": [{"id": 0, "name": "a", "TMPCs": {"1": [{"id": "vanilla",
 "timePerSample": 0.5, "parameterSize": 8.0, "memoryUsageA": 1, "memoryUsageB": 2, "syncTimeFw": {},
 "syncTimeBw": {"1": 4.0}}], "2": [{"id": "activation recomp", "timePerSample": 0.3,
 "parameterSize": 4, "memoryUsageA": 1, "memoryUsageB": 2, "syncTimeFw": {}, "syncTimeBw":
 {"1": 4.0}}]}}, {"id": 1, "name": "a", "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 0,
 "parameterSize": 0, "memoryUsageA": 0, "memoryUsageB": 0, "syncTimeFw": {"0": 1},
 "syncTimeBw": {}}]}}], "edges": [{"sourceId": 0, "destId": 1, "communicationCost": 16.0}]})"});
  out.push_back({Reader::graph,
                 "node1 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, "
                 "activation_size=0.0, parameter_size=0.000\n"
                 "node2 -- LSTM(2, 1) -- forward_compute_time=3.190, backward_compute_time=5.348, "
                 "activation_size=[62914.0; 1310.0; 1310.0], parameter_size=503.000 -- stage_id=1\n"
                 "node3 -- ReLU(inplace) -- forward_compute_time=0.5, backward_compute_time=0.1, "
                 "activation_size=44.0, parameter_size=0\n"
                 "\tnode1 -- node2\n\tnode2 -- node3\n\tnode1 -- node3\n"});
  out.push_back({Reader::graph, R"({"maxSizePerFPGA": 17185374208.0, "maxFPGAs": 6, "maxCPUs": 1,
 "nodes": [{"name": "n1", "id": 1, "supportedOnFpga": 1, "cpuLatency": 0.0, "fpgaLatency": 2.5,
 "isBackwardNode": 0, "colorClass": 1, "size": 8.0}, {"name": "n1grad", "id": 33, "supportedOnFpga":
 true, "cpuLatency": 0, "fpgaLatency": 1, "isBackwardNode": true, "colorClass": 1, "size": 0.0}],
 "edges": [{"sourceId": 1, "destId": 33, "cost": 0.25, "size": 1024}]})"});
  out.push_back({Reader::devices, R"([[nodes]]
type = "v100"
count = 2
devices = 4
memory = "16 GiB"
flops = 14e12
inter_bandwidth = "100 Gbit/s"
inter_latency = "10 us"
[[nodes]]
type = "other"
hosts = ["h1"]
speed = 0.5
)"});
  Plan p;
  p.batch = 8;
  for (int i = 0; i < 2; ++i) {
    Stage& s = p.stages.emplace_back();
    for (int op = 5 * i; op < (i == 0 ? 5 : int(plan_graph().ops.size())); ++op) {
      s.ops.push_back(op);
    }
    s.micro_batch = 2;
    s.in_flight = 4 - 2 * i;
    s.devices = {i};
    p.orders.push_back(i == 0 ? "F2BFBFB2" : "FBFBFBFB");
  }
  out.push_back({Reader::plan, dump_json(to_json(p, plan_graph()))});
  p.orders.clear();
  p.schedule = ScheduleKind::zero_bubble;
  out.push_back({Reader::plan, dump_json(to_json(p, plan_graph()))});
  return out;
}

std::string fuzz_mutate(std::string text, const std::vector<Seed>& all, Rng& rng) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : rng.below(static_cast<uint32_t>(n)); };
  for (uint32_t changes = 1 + rng.below(4); changes > 0; --changes) {
    const size_t at = below(text.size() + 1);
    switch (rng.below(9)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << rng.below(8)));
        break;
      case 1:
        text.erase(at, below(std::min<size_t>(text.size() - at, 40) + 1));
        break;
      case 2:
        text.insert(at, kWords[rng.below(std::size(kWords))]);
        break;
      case 3: {  // a figure becomes another
        const size_t digit = text.find_first_of("0123456789", at);
        if (digit == std::string::npos) break;
        const size_t end = std::min(text.find_first_not_of("0123456789.eE+-", digit), text.size());
        text.replace(digit, end - digit, kWords[rng.below(9)]);
        break;
      }
      case 4: {  // a piece of the input again
        const std::string piece = text.substr(below(text.size() + 1), below(60));
        text.insert(at, piece);
        break;
      }
      case 5: {  // a piece of another
        const std::string& other = all[rng.below(static_cast<uint32_t>(all.size()))].text;
        text.insert(at, other.substr(below(other.size()), below(60)));
        break;
      }
      case 6: {  // a word in quotes becomes another of the input
        const size_t open = text.find('"', at);
        const size_t other = text.find('"', below(text.size() + 1));
        if (open == std::string::npos || other == std::string::npos) break;
        const size_t close = text.find('"', open + 1), end = text.find('"', other + 1);
        if (close == std::string::npos || end == std::string::npos) break;
        const std::string word = text.substr(other, end - other + 1);
        text.replace(open, close - open + 1, word);
        break;
      }
      case 7:
        if (rng.below(8) == 0) text.resize(at);
        break;
      case 8: {  // nesting as deep as the input is long
        static constexpr std::string_view kDeep[] = {"[", "{\"a\":", "a.", "[a."};
        if (rng.below(8) != 0) break;
        const std::string_view piece = kDeep[rng.below(std::size(kDeep))];
        std::string many;
        while (many.size() < kMaxInput) many += piece;
        text.insert(at, many);
        break;
      }
    }
  }
  if (text.size() > kMaxInput) text.resize(kMaxInput);
  return text;
}

bool fuzz_read(Reader reader, const std::string& text) {
  switch (reader) {
    case Reader::graph: {
      const graph::Graph g = graph::read_graph_text(text, "fuzz");
      const std::string again = dump_json(graph::to_json(g));
      DUCTILE_CHECK(graph::read_graph_text(again, "fuzz") == g, "changed in our format");
      const graph::SpTree tree = graph::series_parallel(g);
      DUCTILE_CHECK(graph::ops_below(tree, tree.root).size() == g.ops.size());
      graph::contract(g, graph::is_free);
      return true;
    }
    case Reader::devices: {
      const spec::Cluster cluster = spec::parse_cluster(text, "fuzz");
      DUCTILE_CHECK(spec::parse_cluster(spec::to_toml(cluster), "fuzz") == cluster);
      devices_of(cluster);
      return true;
    }
    case Reader::plan: {
      const auto value = parse_json(text);
      const Plan p = plan_from_json(value, plan_graph(), "fuzz");
      const Devices devices = uniform_devices(8, 4, {});
      check(p, plan_graph(), devices);
      if (p.batch <= 4096) evaluate(plan_graph(), devices, p);
      return true;
    }
  }
  return false;
}

}  // namespace ductile::plan
