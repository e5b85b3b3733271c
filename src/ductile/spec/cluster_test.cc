#include "ductile/spec/cluster.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/base/testing.h"
#include "ductile/spec/pool.h"

namespace ductile::spec {
namespace {

constexpr const char* kFile = R"(# two groups
[[nodes]]
type = "aws"
count = 6
devices = 4
memory = "16 GiB"
flops = "14 TFLOP/s"
intra_bandwidth = "150 GB/s"
inter_bandwidth = "100 Gbit/s"
inter_latency = "10 us"

[[nodes]]
type = "rtx"
name = "old ones"
devices = 8
cluster = "b"
region = "east"
spot = true
notice = "2 min"
leave = "15 s"
hosts = ["r1", "r2"]
addresses = ["10.0.0.1", "10.0.0.2"]
flops = 28e12

[[teams]]
id = 3
share = 0.25
quota = 16
)";

std::string complaint(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.message();
  }
  return "no error";
}

TEST(ClusterFile, SaysWhatThereIs) {
  const Cluster cluster = parse_cluster(kFile, "c.toml");
  ASSERT_EQ(cluster.groups.size(), 2u);
  const NodeGroup &aws = cluster.groups[0], &rtx = cluster.groups[1];
  EXPECT_EQ(aws.count, 6);
  EXPECT_EQ(aws.devices, 4);
  EXPECT_EQ(aws.region, "home");
  EXPECT_EQ(aws.memory, 16.0 * 1024 * 1024 * 1024);
  EXPECT_EQ(parse_cluster("[[nodes]]\ntype = \"a\"\nmemory = \"80 B\"\n", "c").groups[0].memory,
            80);
  EXPECT_EQ(aws.intra, (ClusterLink{150e9, 5e-6}));
  EXPECT_EQ(aws.inter.bandwidth, 12.5e9);
  EXPECT_DOUBLE_EQ(aws.inter.latency, 1e-5);
  EXPECT_EQ(rtx.count, 2);  // as many as hosts
  EXPECT_EQ(rtx.speed, 2);  // of the flops
  EXPECT_EQ(rtx.region, "east");
  EXPECT_TRUE(rtx.spot);
  EXPECT_EQ(rtx.notice, 120);
  EXPECT_EQ(rtx.leave, 15);
  EXPECT_EQ(rtx.addresses[1], "10.0.0.2");
  EXPECT_EQ(cluster.teams, (std::vector<Team>{{3, 0.25, 16}}));
  EXPECT_EQ(cluster.nodes(), 8);
  EXPECT_EQ(cluster.devices(), 40);
}

// A random cluster, every member of which differs from its default now and then.
Cluster random_cluster(uint64_t seed) {
  Rng rng(seed);
  const auto figure = [&] { return std::exp(20.0 * rng.normal()); };
  const char* names[] = {"a", "b c", "\"q\"", "x\ny", "\\", "ü", "#", "[[nodes]]"};
  Cluster out;
  for (uint32_t g = 1 + rng.below(3); g > 0; --g) {
    NodeGroup group;
    group.type = names[rng.below(8)];
    if (rng.below(2)) group.name = names[rng.below(8)];
    if (rng.below(2)) group.region = names[rng.below(8)];
    if (rng.below(2)) group.cluster = names[rng.below(8)];
    group.count = 1 + rng.below(5);
    group.devices = 1 + rng.below(1024);
    group.spot = rng.below(2) != 0;
    if (rng.below(2)) group.notice = rng.uniform(0, 600);
    if (rng.below(2)) group.leave = rng.uniform(0, 1) * group.notice;
    if (rng.below(2))
      for (int64_t n = 0; n < group.count; ++n) {
        group.hosts.push_back(fmt::format("g{}-{}", out.groups.size(), n));
        group.addresses.push_back(names[rng.below(8)]);
      }
    if (rng.below(2)) group.addresses.clear();
    for (double* v : {&group.memory, &group.memory_bandwidth, &group.flops, &group.intra.bandwidth,
                      &group.inter.bandwidth})
      if (rng.below(2)) *v = std::clamp(figure(), 1e-9, 1e18);
    for (double* v : {&group.overhead, &group.intra.latency, &group.inter.latency})
      if (rng.below(2)) *v = rng.below(4) ? std::min(figure(), 1e3) : 0;
    if (rng.below(2)) group.speed = std::clamp(figure(), 1e-9, 1e6);
    out.groups.push_back(group);
  }
  for (uint32_t t = rng.below(3); t > 0; --t)
    out.teams.push_back({t, rng.uniform(0, 0.3), rng.below(100)});
  return out;
}

TEST(ClusterFile, WhatIsWrittenIsReadAgain) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const Cluster cluster = random_cluster(seed);
    EXPECT_EQ(parse_cluster(to_toml(cluster), "c.toml"), cluster);
    EXPECT_EQ(cluster_from_json(parse_json(dump_json(to_json(cluster))), "c.json"), cluster);
  }
  const TempFolder folder;
  const Cluster cluster = random_cluster(5);
  write_file_atomic(folder.path() / "c.json", dump_json(to_json(cluster)));
  write_file_atomic(folder.path() / "c.toml", to_toml(cluster));
  EXPECT_EQ(read_cluster(folder.path() / "c.json"), cluster);
  EXPECT_EQ(read_cluster(folder.path() / "c.toml"), cluster);
}

TEST(ClusterFile, ErrorsNameFileLineKeyAndRemedy) {
  const std::pair<const char*, const char*> cases[] = {
      {"\n[[nodes]]\ntype = \"a\"\ncuont = 3\n",
       "c.toml:4: unknown key cuont; did you mean count?"},
      {"[[nodes]]\ntype = \"a\"\n\nnodes = 3\n", "c.toml:4: nodes is now count"},
      {"[[nodes]]\ntype = \"a\"\ndevices_per_node = 3\n",
       "c.toml:3: devices_per_node is now devices"},
      {"\n[[group]]\nname = \"v100\"\nnodes = 4\n",
       "c.toml:2: [[group]] is now [[nodes]]: write type for its name, count for nodes"},
      {"[[nodes]]\ncount = 3\n", "c.toml:1: type is missing"},
      {"[[nodes]]\ntype = 5\n", "c.toml:2: type must be a string, not 5"},
      {"[[nodes]]\ntype = \"a\"\ndevices = 0\n",
       "c.toml:3: devices = 0 is out of range; allowed: "
       "from 1 to 1024"},
      {"[[nodes]]\ntype = \"a\"\ncount = 1.5\n", "c.toml:3: count must be a whole number"},
      {"[[nodes]]\ntype = \"a\"\nmemory = -1\n", "c.toml:3: memory = -1 is out of range"},
      {"[[nodes]]\ntype = \"a\"\nmemory = nan\n", "c.toml:3: memory must be a finite number"},
      {"[[nodes]]\ntype = \"a\"\nmemory = \"16 parsecs\"\n",
       "c.toml:3: memory must be a number or text with a unit (B, KB, MB, GB"},
      {"[[nodes]]\ntype = \"a\"\nmemory = 80\n",
       "c.toml:3: memory = 80 is 80 B, as a number without a unit is of B; write memory = \"80 "
       "GB\", with the unit that is meant, or \"80 B\""},
      {"[[nodes]]\ntype = \"a\"\nintra_bandwidth = 25\n", "write intra_bandwidth = \"25 GB/s\""},
      {"[[nodes]]\ntype = \"a\"\ninter_latency = 5\n", "write inter_latency = \"5 us\""},
      {"[[nodes]]\ntype = \"a\"\nflops = 312\n", "write flops = \"100 TFLOP/s\""},
      {"[[nodes]]\ntype = \"a\"\nmem = 80\n", "c.toml:3: unknown key mem; did you mean memory?"},
      {"[[nodes]]\ntype = \"a\"\ngpus = 8\n", "unknown key gpus; did you mean devices?"},
      {"[[nodes]]\ntype = \"a\"\nspeed = \"fast\"\n", "c.toml:3: speed must be a number"},
      {"[[nodes]]\ntype = \"a\"\ncount = 3\nhosts = [\"x\"]\n",
       "c.toml:1: 1 hosts and a count of 3"},
      {"[[nodes]]\ntype = \"a\"\nhosts = [\"x\", \"y\"]\naddresses = [\"z\"]\n",
       "c.toml:1: 1 addresses of 2 hosts"},
      {"[[nodes]]\ntype = \"a\"\nhosts = [\"x\"]\n[[nodes]]\ntype = \"a\"\nhosts = [\"x\"]\n",
       "c.toml:6: host x was there before"},
      {"[[nodes]]\ntype = \"a\"\nhosts = [\"\"]\n", "a host or an address is empty"},
      {"[[nodes]]\ntype = \"a\"\nhosts = [\"rack1/n2\"]\n",
       "c.toml:1: host \"rack1/n2\" cannot be named in the paths of requests"},
      {"[[nodes]]\ntype = \"a\"\nhosts = [\"..\"]\n", "host \"..\" cannot be named"},
      {"[[nodes]]\ntype = \"a\"\nleave = \"20 s\"\n",
       "c.toml:1: leave = 20 seconds are the last ones of a notice, and notice is 0; leave it out"},
      {"[[nodes]]\ntype = \"a\"\nnotice = 10\nleave = 20\n",
       "c.toml:1: leave = 20 seconds are the last ones of a notice, and notice is 10; write leave "
       "= "
       "10, by which all leave at the notice"},
      {"[[nodes]]\ntype = \"a\"\n[[teams]]\nid = 1\nshare = 0.6\n[[teams]]\nid = 2\nshare = 0.6\n",
       "c.toml:8: the teams' shares add up to 1.2"},
      {"[[nodes]]\ntype = \"a\"\n[[teams]]\nid = 1\n[[teams]]\nid = 1\n",
       "c.toml:6: team 1 was there before"},
      {"[[nodes]]\ntype = \"a\"\n[[teams]]\nquota = 1\n", "c.toml:3: id is missing"},
      {"[[noods]]\ntype = \"a\"\n",
       "c.toml:1: table \"noods\" is not known; did you mean \"nodes\""},
      {"nodes = 3\n", "c.toml:1: nodes is a list of tables; write [[nodes]]"},
      {"nodes = [3]\n", "c.toml:1: write [[nodes]]"},
      {"nodes = []\n", "at least one [[nodes]]"},
      {"", "c.toml: a cluster needs at least one [[nodes]]"},
      {"[[nodes]\n", "c.toml:1"},
      {"node1 slots=4\nnode2\n", "; a cluster is written as [[nodes]] with lines such as type ="},
  };
  for (const auto& [text, what] : cases)
    EXPECT_NE(complaint([&, text = text] { parse_cluster(text, "c.toml"); }).find(what),
              std::string::npos)
        << what << "\n"
        << complaint([&, text = text] { parse_cluster(text, "c.toml"); });
  const auto json = [](const char* text) {
    return complaint([&] { cluster_from_json(parse_json(text), "c.json"); });
  };
  EXPECT_NE(
      json(R"({"nodes": [{"type": "a"}, {"typo": "a"}]})").find("c.json: nodes[1]: unknown key"),
      std::string::npos);
  EXPECT_NE(json("3").find("c.json: not a table"), std::string::npos);
  EXPECT_NE(json("{}").find("at least one [[nodes]]"), std::string::npos);
}

TEST(ClusterFile, AlteredFilesAreReadOrRefusedButHarmNothing) {
  Rng rng(11);
  int read = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = kFile;
    for (uint32_t n = 1 + rng.below(2); n > 0; --n) {
      const uint32_t at = rng.below(static_cast<uint32_t>(text.size()));
      switch (rng.below(3)) {
        case 0:
          text[at] = static_cast<char>(rng.below(256));
          break;
        case 1:
          text.erase(at, 1 + rng.below(20));
          break;
        default:
          text.insert(at, text.substr(rng.below(static_cast<uint32_t>(text.size())), 9));
      }
    }
    try {
      const Cluster cluster = parse_cluster(text, "c.toml");
      EXPECT_EQ(parse_cluster(to_toml(cluster), "again"), cluster);
      ++read;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument) << text;
    }
  }
  EXPECT_GT(read, 20);
}

TEST(ClusterFile, TheSchemaKnowsEveryKey) {
  const nlohmann::json schema = cluster_schema(), written = to_json(random_cluster(1));
  const nlohmann::json& keys = schema["properties"]["nodes"]["items"]["properties"];
  for (const auto& [key, value] : written["nodes"][0].items()) {
    EXPECT_TRUE(keys.contains(key)) << key;
    EXPECT_FALSE(keys[key]["description"].get<std::string>().empty()) << key;
  }
  EXPECT_EQ(keys.size(), written["nodes"][0].size());
  EXPECT_EQ(keys["memory"]["type"], (nlohmann::json{"number", "string"}));
}

TEST(ClusterFile, APoolIsAGroupOfNodesThatMayBeThere) {
  const std::string text =
      "[[pool]]\nname = \"lab\"\ntype = \"xeon\"\ndevices = 4\nmax = 3\n"
      "options = [\"--mem=0\"]\n";
  const std::vector<Pool> pools = parse_pools(text, "c.toml");
  ASSERT_EQ(pools.size(), 1u);
  EXPECT_EQ(pools[0].options, std::vector<std::string>{"--mem=0"});
  const Cluster cluster = parse_cluster(text, "c.toml");
  ASSERT_EQ(cluster.groups.size(), 1u);
  EXPECT_EQ(cluster.groups[0].hosts, (std::vector<std::string>{"lab-1", "lab-2", "lab-3"}));
  EXPECT_EQ(cluster.devices(), 12);
  EXPECT_TRUE(parse_pools(kFile, "c.toml").empty());
  const Cluster both = parse_cluster(
      text + "[[nodes]]\ntype = \"own\"\ndevices = 2\nhosts = [\"a\", \"b\"]\n", "c.toml");
  ASSERT_EQ(both.groups.size(), 2u);
  EXPECT_EQ(both.groups[0].type, "own") << "pools come last";
  EXPECT_EQ(both.devices(), 4 + 12);
  for (const char* wrong :
       {"[[pool]]\nengine = \"pbs\"\n", "[[pool]]\nname = \"a b\"\n", "[[pool]]\nmin = 2\n",
        "[[pool]]\nmax = 0\n", "[[pool]]\noptions = [\"x\"]\n", "[[pool]]\npartition = \"-p\"\n",
        "[[pool]]\ntime_limit = 1\n", "[[pool]]\n[[pool]]\n"})
    EXPECT_THROW(parse_pools(wrong, "c.toml"), Error) << wrong;
}

TEST(ClusterFile, TheExampleIsRead) {
  const Cluster cluster = read_cluster(fs::path(DUCTILE_SOURCE_DIR) / "examples" / "cluster.toml");
  EXPECT_EQ(cluster.groups.size(), 2u);
}

TEST(Place, GivesTheRunsOfAnAllocation) {
  const Cluster cluster = parse_cluster(kFile, "c.toml");
  const std::vector<PlacedRun> all = place(cluster, whole(cluster));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].nodes, 6);
  EXPECT_EQ(all[1].nodes, 2);
  EXPECT_EQ(all[1].devices, 8);
  EXPECT_EQ(device_count(whole(cluster)), 40);
  const std::vector<PlacedRun> some = place(cluster, Allocation{{7, 8}, {2, 4}, {3, 4}, {4, 2}});
  ASSERT_EQ(some.size(), 3u);
  EXPECT_EQ(some[0].group, 1u);
  EXPECT_EQ(some[0].first, 1);
  EXPECT_EQ(some[1].first, 2);
  EXPECT_EQ(some[1].nodes, 2);
  EXPECT_EQ(some[2].devices, 2);
  EXPECT_TRUE(place(cluster, {}).empty());
  for (const Allocation& wrong :
       {Allocation{{8, 1}}, Allocation{{-1, 1}}, Allocation{{0, 5}}, Allocation{{0, 0}},
        Allocation{{0, -1}}, Allocation{{0, 1}, {0, 1}}, Allocation{{INT32_MAX, 1}}})
    EXPECT_THROW(place(cluster, wrong), Error);
}

}  // namespace
}  // namespace ductile::spec
