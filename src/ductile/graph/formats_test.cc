#include "ductile/graph/formats.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/base/testing.h"
#include "ductile/graph/builders.h"
#include "ductile/graph/downsets.h"
#include "ductile/graph/series_parallel.h"

namespace ductile::graph {
namespace {

using Json = nlohmann::json;

const std::filesystem::path kGraphs = DUCTILE_SOURCE_DIR "/../shared/data/graphs";

// The published profiles lie outside the repository; without them these tests say nothing.
#define NEED_PROFILES() \
  if (!std::filesystem::exists(kGraphs)) GTEST_SKIP() << kGraphs << " is not there"

TEST(Formats, EveryBuiltGraphSurvivesItsJson) {
  for (const Builder& b : builders()) {
    Graph g = build_graph(b.name);
    g.optimizer_factor = 2;
    g.ops[0].cost.passes.forward = {0, 3};
    g.ops[0].cost.passes.backward.points = {{1, 400}, {8, 400}, {16, 900}};
    g.ops[0].variants.push_back({2, true, g.ops[0].cost});
    g.edges[0].tensor_bytes_to = 7;
    g.model = {"net", "2 (ab)", "1 of 3 numbers (cd)", "float32 7"};
    Format format{};
    EXPECT_EQ(read_graph_text(to_json(g).dump(), "g.json", &format), g);
    EXPECT_EQ(format, Format::ductile);
  }
}

TEST(Formats, BytesThatAreNoLineAreRefusedByNameWhereTheyAreNoPoints) {
  const auto refusal = [](const char* bytes) {
    Json graph = Json::parse(R"({"format": "ductile.graph", "version": 1, "edges": [], "ops": [
      {"name": "a", "forward": 1, "backward_input": 1, "backward_weight": 0}]})");
    graph["ops"][0]["pass_bytes"] = {{"backward", Json::parse(bytes)}};
    try {
      graph_from_json(graph);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(R"({"samples": [1, 2], "bytes": [5, 5]})"), "");
  EXPECT_NE(refusal(R"({"samples": [1, 2], "bytes": [5]})").find("2 samples for 1 bytes"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"samples": [], "bytes": []})").find("0 samples"), std::string::npos);
  EXPECT_NE(refusal(R"({"samples": [2, 2], "bytes": [5, 5]})").find("\"a\": pass_bytes: samples"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"samples": [1], "bytes": [-5]})").find("bytes is -5"), std::string::npos);
  EXPECT_NE(refusal(R"({"samples": [1], "bites": [5]})").find("bites"), std::string::npos);
}

Json small() {
  return Json::parse(R"({"format": "ductile.graph", "version": 1, "ops": [
    {"name": "a", "forward": 1, "backward_input": {"fixed": 1}, "backward_weight": 0},
    {"name": "b", "forward": 1, "backward_input": 1, "backward_weight": 1}],
    "edges": [{"from": "a", "to": "b", "bytes": 4}]})");
}

TEST(Formats, ErrorsNameFileOperatorAndField) {
  const auto expect = [](auto change, const char* what) {
    Json v = small();
    change(v);
    std::string text;
    const auto read = [&] { read_graph_text(v.dump(), "some.json"); };
    EXPECT_EQ(testing::code_of(read, &text), ErrorCode::invalid_argument);
    EXPECT_NE(text.find("some.json: "), std::string::npos) << text;
    EXPECT_NE(text.find(what), std::string::npos) << text;
  };
  expect([](Json& v) { v["ops"][1].erase("forward"); }, "operator \"b\": forward is missing");
  expect([](Json& v) { v["ops"][1]["forward"] = -3; }, "operator \"b\": forward is -3");
  expect([](Json& v) { v["ops"][0]["forward"] = "1"; }, "operator \"a\": forward must be a number");
  expect([](Json& v) { v["ops"][0]["foward"] = 1; }, "did you mean \"forward\"");
  expect([](Json& v) { v["ops"][0]["parameter_bytes"] = 1e300; },
         "\"a\": parameter_bytes is 1e+300");
  expect([](Json& v) { v["ops"][0]["shape"] = {0}; }, "\"a\": shape is 0");
  expect([](Json& v) { v["edges"][0]["to"] = "bb"; },
         "unknown operator \"bb\"; did you mean \"b\"");
  expect([](Json& v) { v["edges"][0].erase("bytes"); }, "edge 0: bytes is missing");
  expect(
      [](Json& v) {
        v["edges"].push_back({{"from", "b"}, {"to", "a"}, {"bytes", 1}});
      },
      "cycle");
  expect([](Json& v) { v["version"] = 2; }, "version is 2");
  expect([](Json& v) { v["ops"] = v["edges"] = Json::array(); }, "no operators");
  expect([](Json& v) { v["ops"][0] = 7; }, "operator 0: an object is wanted");
  expect([](Json& v) { v = Json::array(); }, "an object is wanted");
  expect([](Json& v) { v.erase("format"); }, "unknown format");
}

TEST(Formats, ErrorsInTheFormatsOfOthersNameTheirFields) {
  const auto expect = [](const std::string& text, const char* what) {
    std::string said;
    const auto read = [&] { read_graph_text(text, "some"); };
    EXPECT_EQ(testing::code_of(read, &said), ErrorCode::invalid_argument) << text;
    EXPECT_NE(said.find(what), std::string::npos) << said;
  };
  const auto mode = [](const char* time, const char* bytes) {
    return fmt::format(R"([{{"id": "vanilla", {} "parameterSize": {}, "memoryUsageA": 1,
 "memoryUsageB": 2, "syncTimeFw": {{}}, "syncTimeBw": {{}}}}])",
                       time, bytes);
  };
  const auto piper = [&](const char* time, const char* bytes, const char* edges) {
    return fmt::format(R"({{"nodes": [{{"id": 0, "name": "a", "TMPCs": {{"1": {}}}}},
 {{"id": 1, "name": "b", "TMPCs": {{"1": {}}}}}], "edges": [{}]}})",
                       mode("\"timePerSample\": 1,", "3"), mode(time, bytes), edges);
  };
  const char* there = R"({"sourceId": 0, "destId": 1, "communicationCost": 1})";
  const char* back = R"({"sourceId": 1, "destId": 0, "communicationCost": 1})";
  expect(piper("", "3", there), "operator \"b\": TMPCs 1: timePerSample is missing");
  expect(piper("\"timePerSample\": -2,", "3", there), "\"b\": TMPCs 1: timePerSample is -2");
  expect(piper("\"timePerSample\": 2,", "1e40", there), "\"b\": TMPCs 1: parameterSize is 1e+40");
  expect(piper("\"timePerSample\": 2,", "3", R"({"sourceId": 0, "destId": 7})"),
         "edge 0: destId is 7, there is no such node");
  expect(piper("\"timePerSample\": 2,", "3", fmt::format("{}, {}", there, back).c_str()),
         "cycle: \"a\" -> \"b\" -> \"a\"");

  const auto partitioning = [](const char* time, const char* size, const char* edges) {
    return fmt::format(R"({{"nodes": [{{"id": 1, "name": "a", "fpgaLatency": 1, "size": 2}},
 {{"id": 2, "name": "b", {} "size": {}}}], "edges": [{}]}})",
                       time, size, edges);
  };
  expect(partitioning("", "1", ""), "operator \"b\": fpgaLatency is missing");
  expect(partitioning("\"fpgaLatency\": -1,", "1", ""), "operator \"b\": fpgaLatency is -1");
  expect(partitioning("\"fpgaLatency\": 1,", "1e19", ""), "operator \"b\": size is 1e+19");
  expect(partitioning("\"fpgaLatency\": 1,", "1", R"({"sourceId": 3, "destId": 1, "cost": 1})"),
         "edge 0: sourceId is 3, there is no such node");
  expect(partitioning("\"fpgaLatency\": 1,", "1",
                      R"({"sourceId": 1, "destId": 2, "cost": 1},
 {"sourceId": 2, "destId": 1, "cost": 1})"),
         "cycle");

  const auto pipedream = [](const char* times, const char* edges) {
    return fmt::format(
        "n1 -- A -- forward_compute_time=1, backward_compute_time=2, activation_size=4, "
        "parameter_size=8\nn2 -- B -- {}, activation_size=4, parameter_size=8\n{}",
        times, edges);
  };
  const char* good = "forward_compute_time=1, backward_compute_time=2";
  expect(pipedream("forward_compute_time=1", ""), "\"n2\": backward_compute_time is missing");
  expect(pipedream("forward_compute_time=-1, backward_compute_time=2", ""),
         "operator \"n2\": forward_compute_time is -1");
  expect(pipedream("forward_compute_time=1e99, backward_compute_time=2", ""),
         "operator \"n2\": forward_compute_time is 1e+99");
  expect(pipedream(good, "\tn1 -- n3\n"), "edge \"n1\" -> \"n3\": unknown operator \"n3\"");
  expect(pipedream(good, "\tn1 -- n2\n\tn2 -- n1\n"), "cycle");
}

TEST(Formats, ACutFileIsRefused) {
  const std::string text = small().dump();
  for (size_t n = 0; n < text.size(); ++n) {
    EXPECT_EQ(testing::code_of([&] { read_graph_text(text.substr(0, n), "x"); }),
              ErrorCode::invalid_argument);
  }
}

TEST(Formats, PiperUnitsAreSeconds) {
  NEED_PROFILES();
  const Graph bert = read_graph(kGraphs / "piper/bert32a100.json");
  const Graph resnet = read_graph(kGraphs / "piper/resnet.json");
  const Graph gnmt = read_graph(kGraphs / "piper/gnmt.json");
  EXPECT_EQ(bert.ops.size(), 37u);
  EXPECT_EQ(bert.edges.size(), 67u);
  EXPECT_NEAR(bert.ops[1].cost.total_per_sample(), 0.001116, 1e-12);
  EXPECT_TRUE(allows(bert.ops[3], 8, true));
  EXPECT_NEAR(cost_of(bert.ops[3], 2, false, 0).total_per_sample(), 0.018696, 1e-12);
  EXPECT_NEAR(gnmt.ops[0].cost.total_per_sample(), 0.025678, 1e-12);  // milliseconds in the file
  EXPECT_NEAR(resnet.ops[0].cost.total_per_sample(), 0.002678, 1e-12);
  EXPECT_EQ(bert.state_factor, 0);
  EXPECT_EQ(bert.edges[2].bytes, 31457280);
  EXPECT_EQ(bert.edges[2].tensor_bytes_to, 31457280);
  EXPECT_EQ(count_downsets(Topology(bert), 1 << 20), 43u);
  EXPECT_EQ(count_downsets(Topology(resnet), 1 << 20), 242u);
  EXPECT_EQ(count_downsets(Topology(gnmt), 1 << 20), 17'914u);
  EXPECT_TRUE(series_parallel(bert).is_series_parallel());
  EXPECT_TRUE(series_parallel(resnet).is_series_parallel());
  EXPECT_EQ(series_parallel(gnmt).residual_edges, 18);
}

TEST(Formats, PipedreamProfilesAreReadWhole) {
  NEED_PROFILES();
  struct Expected {
    const char* file;
    size_t ops, edges, downsets;
    int residual;
    double milliseconds;  // 0: not known
  };
  for (const Expected& e : {Expected{"image_classification/alexnet", 23, 23, 0, 0, 85.3},
                            Expected{"image_classification/vgg16", 41, 41, 0, 0, 672.5},
                            Expected{"image_classification/resnet50", 177, 193, 242, 0, 443.4},
                            Expected{"image_classification/resnet101", 347, 380, 412, 0, 411.1},
                            Expected{"image_classification/densenet121", 429, 487, 432, 0, 326.2},
                            Expected{"image_classification/inception_v3", 326, 362, 0, 0, 0},
                            Expected{"image_classification/nasnetamobile", 921, 1078, 0, 200, 0},
                            Expected{"image_classification/nasnetalarge", 1251, 1468, 0, 265, 0},
                            Expected{"translation/gnmt", 48, 58, 0, 23, 89.4},
                            Expected{"translation/gnmt_large", 96, 122, 0, 47, 520.5}}) {
    Format format{};
    const Graph g = read_graph(kGraphs / "pipedream" / e.file / "graph.txt", &format);
    EXPECT_EQ(format, Format::pipedream);
    EXPECT_EQ(g.ops.size(), e.ops) << e.file;
    EXPECT_EQ(g.edges.size(), e.edges) << e.file;
    if (e.downsets > 0) {
      EXPECT_EQ(count_downsets(Topology(g), 1 << 20), e.downsets) << e.file;
    }
    EXPECT_EQ(series_parallel(g).residual_edges, e.residual) << e.file;
    double seconds = 0;
    for (const Op& op : g.ops) seconds += op.cost.total_per_sample();
    if (e.milliseconds > 0) {
      EXPECT_NEAR(seconds * 1e3, e.milliseconds, 0.06) << e.file;
    }
  }
}

TEST(Formats, PipedreamListsOfActivationsAreSummed) {
  const std::string text =
      "n1 -- LSTM(2, 1) -- forward_compute_time=1.5, backward_compute_time=2, "
      "activation_size=[10.0; 2.0; 3.0], parameter_size=8\n"
      "n2 -- ReLU -- forward_compute_time=1, backward_compute_time=1, activation_size=4, "
      "parameter_size=0 -- stage_id=1\n\tn1 -- n2\n";
  const Graph g = read_graph_text(text, "graph.txt");
  EXPECT_EQ(g.ops[0].cost.activation_bytes, 15);
  EXPECT_EQ(g.ops[0].kind, "LSTM");
  EXPECT_DOUBLE_EQ(g.ops[0].cost.forward.per_sample, 1.5e-3);
  EXPECT_DOUBLE_EQ(g.ops[0].cost.backward_weight.per_sample, 1e-3);
  EXPECT_EQ(g.ops[1].cost.backward_weight.per_sample, 0);
  EXPECT_EQ(g.edges[0].bytes, 15);

  std::string what;
  const auto expect = [&](const char* from, const char* to, const char* wanted) {
    std::string changed = text;
    changed.replace(changed.find(from), strlen(from), to);
    testing::code_of([&] { read_graph_text(changed, "graph.txt"); }, &what);
    EXPECT_NE(what.find(wanted), std::string::npos) << what;
  };
  expect("time=1.5", "time=-1.5", "operator \"n1\": forward_compute_time is -1.5");
  expect("parameter_size=0", "params=0", "operator \"n2\": parameter_size is missing");
  expect("\tn1", "\tn3", "unknown operator \"n3\"");
  expect("n1 -- n2", "n2 -- n2", "\"n2\" feeds itself");
  expect("[10.0", "[x", "operator \"n1\": activation_size is");
}

TEST(Formats, DnnPartitioningIsMilliseconds) {
  NEED_PROFILES();
  const auto folder = kGraphs / "dnn-partitioning/throughput-inputs";
  const Graph bert = read_graph(folder / "LayerGraphs/bert24_training.json");
  EXPECT_EQ(bert.ops.size(), 64u);
  EXPECT_EQ(bert.edges.size(), 110u);
  EXPECT_DOUBLE_EQ(bert.ops[2].cost.forward.per_sample, 0.696e-3);
  EXPECT_EQ(bert.ops[2].cost.fixed_bytes, 131325952);
  EXPECT_EQ(bert.ops[2].tied, bert.ops[3].tied);
  EXPECT_GE(bert.ops[2].tied, 0);
  EXPECT_EQ(series_parallel(read_graph(folder / "LayerGraphs/gnmt_inference.json")).residual_edges,
            47);
  EXPECT_EQ(series_parallel(read_graph(folder / "LayerGraphs/gnmt_training.json")).residual_edges,
            94);
  size_t read = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kGraphs)) {
    const auto ext = entry.path().extension();
    const bool is_graph = ext == ".json" || entry.path().filename() == "graph.txt";
    if (!is_graph || entry.path().string().find("human-experts") != std::string::npos) continue;
    EXPECT_NO_THROW(read_graph(entry.path())) << entry.path();
    ++read;
  }
  EXPECT_EQ(read, 41u);
}

TEST(Formats, TheCommittedSchemaIsTheOneOfTheCode) {
  const auto file = std::filesystem::path(DUCTILE_SOURCE_DIR) / "docs/reference/graph.schema.json";
  ASSERT_TRUE(std::filesystem::exists(file)) << "run scripts/reference";
  EXPECT_EQ(Json::parse(read_file(file)), graph_schema()) << "run scripts/reference";
}

}  // namespace
}  // namespace ductile::graph
