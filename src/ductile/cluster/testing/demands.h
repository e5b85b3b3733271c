#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/service_spec_impl.h"

// For tests of the scheduler: clusters, and jobs that want devices of them.
namespace ductile::cluster::testing {

constexpr double kInterval = 10;

inline spec::Cluster one_machine(int64_t devices,
                                 const std::map<std::string, int64_t>& quotas = {}) {
  ServiceOptions options;
  options.node = "here";
  options.devices = devices;
  options.quotas = quotas;
  return cluster_of(options);
}

inline JobDemand demand(JobId id, int32_t least, int32_t most, double arrival = 0,
                        bool rigid = false) {
  JobDemand out;
  out.id = id;
  out.name = out.application = "job" + std::to_string(id);
  out.arrival = arrival;
  out.min_devices = least;
  out.max_devices = most;
  out.rigid = rigid;
  out.batch = rigid ? 1 : 64;
  return out;
}

inline spec::Cluster some_nodes(int64_t count, int64_t devices) {
  spec::NodeGroup group;
  group.type = "cpu";
  group.count = count;
  group.devices = devices;
  for (int64_t n = 0; n < count; ++n) group.hosts.push_back("node" + std::to_string(n));
  return {{group}, {}};
}

}  // namespace ductile::cluster::testing
