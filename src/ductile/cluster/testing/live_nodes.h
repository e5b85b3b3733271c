#pragma once

#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/cluster/testing/live_service.h"
#include "ductile/spec/cluster.h"

// Services of several nodes, each of which is this machine under another name.
namespace ductile::cluster::testing {

inline spec::Cluster nodes_named(const std::vector<std::string>& names, int64_t devices) {
  spec::NodeGroup group;
  group.type = "cpu";
  group.devices = devices;
  group.hosts = names;
  group.count = static_cast<int64_t>(names.size());
  return {{group}, {}};
}

inline auto on_nodes(std::vector<std::string> names, int64_t devices, double grace = 30) {
  return [names = std::move(names), devices, grace](ServiceOptions& options) {
    options.cluster = nodes_named(names, devices);
    options.launcher = "env NODE={host}";
    options.listen = "127.0.0.1";
    options.program = DUCTILE_TEST_WORKER;
    options.grace = grace;
  };
}

inline Json node_of(LiveService& service, const std::string& name) {
  const Json answer = service.get("/v1/nodes");
  if (!answer.is_null())
    for (const Json& node : answer.at("nodes"))
      if (node.at("node") == name) return node;
  return Json::object();  // not yet
}

inline void wait_for_node(LiveService& service, const std::string& name, const std::string& state) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (node_of(service, name).value("state", "") != state) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << service.get("/v1/nodes");
    std::this_thread::sleep_for(5ms);
  }
}

inline std::set<std::string> nodes_of(const Json& job) {
  std::set<std::string> out;
  for (const auto& [node, devices] : job.at("holdings").items()) out.insert(node);
  return out;
}

}  // namespace ductile::cluster::testing
