// Which worker has which stage of a plan, and what is told where it is not the plan's device.
#include "ductile/cli/plan_placement.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/base/testing.h"
#include "ductile/cli/pipeline_plan.h"
#include "ductile/graph/formats.h"
#include "ductile/plan/planner.h"
#include "ductile/spec/cluster.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::json;
using Names = std::vector<std::string>;

constexpr const char* kTwoNodes = "[[nodes]]\ntype = \"cpu\"\ncount = 2\ndevices = 2\n";
constexpr const char* kUnlike =
    "[[nodes]]\ntype = \"slow\"\ndevices = 2\nhosts = [\"s\"]\n"
    "[[nodes]]\ntype = \"fast\"\ndevices = 2\nspeed = 4\nhosts = [\"f\"]\n";

// As `ductile plan --json` writes it: of each stage its devices, one for each replica.
Json stages_on(const std::vector<std::vector<int>>& devices) {
  Json stages = Json::array();
  for (const std::vector<int>& of_stage : devices)
    stages.push_back({{"ops", Json::array({fmt::format("op{}", stages.size())})},
                      {"replicas", of_stage.size()},
                      {"micro_batch", 32},
                      {"order", "F4B4"},
                      {"devices", of_stage}});
  return stages;
}
std::string report_of(const Json& stages, const char* cluster) {
  const Json plan = {
      {"format", "ductile.plan"}, {"version", 1}, {"batch", 128}, {"stages", stages}};
  Json report = {{"plan", plan}};
  if (cluster != nullptr) report["cluster"] = spec::to_json(spec::parse_cluster(cluster, "test"));
  return dump_json(report);
}
PlanPlacement::Seats seats(const std::vector<std::vector<int>>& devices, const char* cluster,
                           const std::string& hosts, int64_t workers) {
  server::HostSetup setup;
  if (!hosts.empty()) setup.hosts = server::parse_hosts(hosts);
  return PlanPlacement::of(report_of(stages_on(devices), cluster), "plan.json")
      .value()
      .seats(setup, workers);
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(PlanPlacement, OnOneNodeWantsNothing) {
  const char* one = "[[nodes]]\ntype = \"cpu\"\ndevices = 2\n";
  for (const char* cluster : {one, kTwoNodes, static_cast<const char*>(nullptr)}) {
    for (const char* hosts : {"", "a:2"}) {
      EXPECT_EQ(seats({{1}, {0}}, cluster, hosts, 2).note, "");
      EXPECT_TRUE(seats({{1}, {0}}, cluster, hosts, 2).rank_hosts.empty());
    }
  }
}

TEST(PlanPlacement, WithoutDevicesThereIsNone) {
  Json stages = stages_on({{0}, {1}});
  for (Json& stage : stages) stage.erase("devices");
  EXPECT_FALSE(PlanPlacement::of(report_of(stages, kTwoNodes), "plan.json").has_value());
  for (Json& stage : stages) stage["devices"] = Json::array();
  EXPECT_FALSE(PlanPlacement::of(report_of(stages, kTwoNodes), "plan.json").has_value());
  EXPECT_FALSE(PlanPlacement::of("", "plan.json").has_value());
  EXPECT_FALSE(PlanPlacement::of("[1]", "plan.json").has_value());
}

// The planner has the second node's devices for the first stages.
TEST(PlanPlacement, NodesWithoutNamesAreTheHostsInTheirOrder) {
  const auto found = seats({{2}, {0}, {3}, {1}}, kTwoNodes, "a:2,b:2", 4);
  EXPECT_EQ(found.rank_hosts, (Names{"b", "a", "b", "a"}));
  EXPECT_EQ(found.note, "");
}

TEST(PlanPlacement, UnlikeNodesAreFoundByName) {
  for (const char* hosts : {"s:2,f:2", "f:2,s:2", "other:1,f:2,s:2"}) {
    const auto found = seats({{2}, {3}, {0}, {1}}, kUnlike, hosts, 4);
    EXPECT_EQ(found.rank_hosts, (Names{"f", "f", "s", "s"}));
    EXPECT_EQ(found.note.empty(), hosts[0] != 'o') << found.note;
  }
  const auto away = seats({{2}, {0}}, kUnlike, "f:1,g:1", 2);
  EXPECT_TRUE(has(away.note, "stages on s, slow, which is none of the run's 2 hosts")) << away.note;
  EXPECT_EQ(away.rank_hosts, (Names{"f", ""})) << "what can be is as planned";
}

// Here the first node has no name, and the second one is the first host.
TEST(PlanPlacement, NoHostIsGivenToTwoNodes) {
  const char* mixed =
      "[[nodes]]\ntype = \"cpu\"\ndevices = 1\n"
      "[[nodes]]\ntype = \"fast\"\ndevices = 1\nhosts = [\"a\"]\n";
  const auto found = seats({{0}, {1}}, mixed, "a:1,b:1", 2);
  EXPECT_EQ(found.rank_hosts, (Names{"b", "a"}));
  EXPECT_EQ(found.note, "");
}

// As the planner places stages on unlike devices: the heavier ones on the faster node.
TEST(PlanPlacement, ThePlannersStagesOnUnlikeNodesAreWhereItHasThem) {
  Json ops = Json::array(), edges = Json::array();
  for (const int seconds : {1, 4, 2, 8}) {
    const std::string name = fmt::format("op{}", ops.size());
    if (!ops.empty())
      edges.push_back({{"from", fmt::format("op{}", ops.size() - 1)}, {"to", name}, {"bytes", 8}});
    ops.push_back({{"name", name},
                   {"forward", seconds},
                   {"backward_input", seconds},
                   {"backward_weight", seconds}});
  }
  const Json described = {
      {"format", "ductile.graph"}, {"version", 1}, {"ops", ops}, {"edges", edges}};
  const graph::Graph graph = graph::read_graph_text(dump_json(described), "graph.json");
  const spec::Cluster cluster = spec::parse_cluster(kUnlike, "test");
  plan::Plan plan;
  plan.stages.resize(4);
  for (int s = 0; s < 4; ++s) plan.stages[static_cast<size_t>(s)].ops = {s};
  plan::place(graph, plan::devices_of(cluster), plan);
  const Json report = {{"plan", plan::to_json(plan, graph)}, {"cluster", spec::to_json(cluster)}};
  server::HostSetup setup;
  setup.hosts = server::parse_hosts("s:2,f:2");
  const auto found = PlanPlacement::of(dump_json(report), "plan.json").value().seats(setup, 4);
  EXPECT_EQ(found.rank_hosts, (Names{"s", "f", "s", "f"}));
  EXPECT_EQ(found.note, "");
}

// Two pipelines beside each other: the plan has both replicas of a stage on one node.
TEST(PlanPlacement, ReplicasAreSeatedByTheirOwnDevices) {
  EXPECT_EQ(seats({{0, 1}, {2, 3}}, kTwoNodes, "a:2,b:2", 4).rank_hosts,
            (Names{"a", "b", "a", "b"}));
  // Replicas of their own number are numbered stage by stage.
  EXPECT_EQ(seats({{2, 0}, {1}}, kTwoNodes, "a:2,b:1", 3).rank_hosts, (Names{"b", "a", "a"}));
  EXPECT_EQ(seats({{2, 0}, {1}}, kTwoNodes, "a:2,b:1", 3).note, "");
}

TEST(PlanPlacement, PartsOfAReplicaAreTogether) {
  Json stages = stages_on({{0, 2, 1, 3}, {4, 5}});
  stages[0]["replicas"] = 2;
  stages[0]["tensor"] = 2;
  const char* cluster = "[[nodes]]\ntype = \"cpu\"\ncount = 3\ndevices = 2\n";
  server::HostSetup setup;
  setup.hosts = server::parse_hosts("a:2,b:2,c:2");
  const auto placement = PlanPlacement::of(report_of(stages, cluster), "plan.json");
  EXPECT_EQ(placement->virtual_ranks(), 6);
  EXPECT_EQ(placement->seats(setup, 6).rank_hosts, (Names{"a", "b", "c", "a", "b", "c"}));
}

TEST(PlanPlacement, WhatIsElsewhereIsToldWithTheHostsThatHelp) {
  const auto found = seats({{0}, {2}, {3}}, kTwoNodes, "a=10.0.0.1:2,b:2", 3);
  EXPECT_TRUE(has(found.note,
                  "plan.json: 1 of the plan's 3 devices are on other hosts in this run (stage 2 is "
                  "on a, and the plan has it on b)"))
      << found.note;
  EXPECT_TRUE(has(found.note, "; --hosts a=10.0.0.1:1,b:2 puts all where the plan does"))
      << found.note;
  EXPECT_EQ(seats({{0}, {2}, {3}}, kTwoNodes, "a=10.0.0.1:1,b:2", 3).note, "");
}

TEST(PlanPlacement, FewerWorkersThanDevicesAreTold) {
  const auto whole = seats({{2}, {3}, {0}, {1}}, kTwoNodes, "a,b", 2);
  EXPECT_EQ(whole.rank_hosts, (Names{"b", "b", "a", "a"}));
  EXPECT_TRUE(has(whole.note, "2 workers take turns at the 4 devices of the plan")) << whole.note;
  EXPECT_TRUE(has(whole.note, "--hosts a:2,b:2 has one for each")) << whole.note;
  const auto mixed = seats({{2}, {0}, {3}, {1}}, kTwoNodes, "a,b", 2);
  EXPECT_TRUE(has(mixed.note, "2 of the plan's 4 devices are on other hosts")) << mixed.note;
}

TEST(PlanPlacement, OneMachineForSeveralNodesIsTold) {
  const auto found = seats({{2}, {0}}, kUnlike, "", 2);
  EXPECT_TRUE(has(found.note,
                  "for devices of 2 nodes (s, slow; f, fast), and all workers are on "
                  "one machine"))
      << found.note;
  EXPECT_TRUE(found.rank_hosts.empty());
}

TEST(PlanPlacement, SeveralHostsForOneNodeAreTold) {
  const auto found = seats({{0}, {1}}, kTwoNodes, "a:1,b:1", 2);
  EXPECT_TRUE(has(found.note, "--hosts a:2 puts all where the plan does")) << found.note;
}

// A run that goes on where hosts were lost: nobody asks more of those left than they take.
TEST(PlanPlacement, WhereNobodyNamedTheHostsNoneIsAskedForMoreThanItTakes) {
  const auto note = [](const char* cluster, const char* hosts, bool named) {
    server::HostSetup setup;
    setup.hosts = server::parse_hosts(hosts);
    return PlanPlacement::of(report_of(stages_on({{0}, {1}}), cluster), "plan.json")
        .value()
        .seats(setup, 2, named)
        .note;
  };
  constexpr const char* kOne = "[[nodes]]\ntype = \"cpu\"\ndevices = 2\n";
  EXPECT_TRUE(has(note(kTwoNodes, "a:1,b:1", true), "--hosts a:2 puts all"));
  EXPECT_TRUE(has(note(kTwoNodes, "a:1,b:1", false), "1 of the plan's 2 devices are on other"));
  EXPECT_FALSE(has(note(kTwoNodes, "a:1,b:1", false), "--hosts"));
  EXPECT_TRUE(has(note(kTwoNodes, "a,b", false), "--hosts a:2 puts all"));
  EXPECT_FALSE(has(note(kOne, "a,b", false), "--hosts")) << "which of the two is it?";
}

TEST(PlanPlacement, DevicesOfUnknownNodesAreToldWhereThereAreSeveralHosts) {
  const auto found = seats({{1}, {0}}, nullptr, "a:1,b:1", 2);
  EXPECT_TRUE(has(found.note, "not of which nodes they are")) << found.note;
  EXPECT_TRUE(found.rank_hosts.empty());
}

TEST(PlanPlacement, StagesThatTakeTurnsAreTold) {
  const auto found = seats({{0}, {1}, {0}}, kTwoNodes, "", 3);
  EXPECT_TRUE(has(found.note, "stages 0 and 2 take turns on the same devices")) << found.note;
}

TEST(PlanPlacement, AServiceIsToldOfPlansForSeveralNodes) {
  const auto note = [](const std::vector<std::vector<int>>& devices, const char* cluster) {
    return PlanPlacement::of(report_of(stages_on(devices), cluster), "plan.json")
        ->note_for_service();
  };
  EXPECT_TRUE(has(note({{2}, {0}}, kUnlike), "devices of 2 nodes (s, slow; f, fast)"));
  EXPECT_EQ(note({{0}, {1}}, kUnlike), "");
  EXPECT_EQ(note({{0}, {1}}, nullptr), "");
}

// By set_plan(), which every command that is given a plan calls.
TEST(PlanPlacement, DamagedDevicesAreRefusedByName) {
  const TempFolder folder("ductile-placement");
  const fs::path file = folder.path() / "plan.json";
  spec::JobOptions job;
  job.train.batch_size = 128;
  const auto refused = [&](const Json& stages, const char* part) {
    write_file_atomic(file, report_of(stages, kTwoNodes));
    const std::string text = testing::text_of([&] { set_plan(job, file); });
    EXPECT_TRUE(has(text, part)) << text;
  };
  const auto second = [](const char* devices) {
    Json stages = stages_on({{0}, {1}});
    stages[1]["devices"] = parse_json(devices);
    return stages;
  };
  refused(second("0"), "plan.json: stage 1: devices must be a list, it is 0");
  refused(second("null"), "stage 1: devices must be a list");
  refused(second("[\"b\"]"), "stage 1: devices must be a whole number");
  refused(second("[1.5]"), "stage 1: devices must be a whole number");
  refused(second("[-1]"), "stage 1: devices is -1, it must be from 0 to ");
  refused(second("[1, 2]"), "stage 1: devices has 2 entries, and the stage takes 1");
  refused(second("[4]"), "stage 1: devices names device 4, and the devices that it");
  refused(stages_on({{0, 0}, {1, 2}}), "stage 0: devices names device 0 twice");
  refused(stages_on({{0, 1}, {1, 2}}),
          "stage 1: devices: it shares device 1 with stage 0, but not all of them");
  Json right = stages_on({{0, 1}, {2, 3}});
  write_file_atomic(file, report_of(right, kTwoNodes));
  EXPECT_NO_THROW(set_plan(job, file));
  EXPECT_EQ(job.train.virtual_ranks, 4);
}

}  // namespace
}  // namespace ductile::cli
