#include "ductile/plan/devices.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <system_error>

#include "ductile/base/error.h"

namespace ductile::plan {
namespace {

// A figure of a group and what it may be.
struct Figure {
  std::string_view key;
  double max;
  bool positive;  // 0 is not allowed
  double (*value)(const DeviceGroup&);
};

constexpr double kMost = 1e18;
const Figure kFigures[] = {
    {"memory", kMost, true, [](const DeviceGroup& g) { return g.memory; }},
    {"flops", 1e21, true, [](const DeviceGroup& g) { return g.model.flops; }},
    {"memory_bandwidth", kMost, true,
     [](const DeviceGroup& g) { return g.model.memory_bandwidth; }},
    {"overhead", 1e3, false, [](const DeviceGroup& g) { return g.model.overhead; }},
    {"speed", 1e6, true, [](const DeviceGroup& g) { return g.speed; }},
    {"intra_bandwidth", kMost, true, [](const DeviceGroup& g) { return g.intra.bandwidth; }},
    {"intra_latency", 1e3, false, [](const DeviceGroup& g) { return g.intra.latency; }},
    {"inter_bandwidth", kMost, true, [](const DeviceGroup& g) { return g.inter.bandwidth; }},
    {"inter_latency", 1e3, false, [](const DeviceGroup& g) { return g.inter.latency; }}};

void check_figure(double value, const Figure& f, const std::string& where) {
  if (std::isfinite(value) && value >= 0 && value <= f.max && (value > 0 || !f.positive)) return;
  fail(ErrorCode::invalid_argument, "{}: {} is {:g}, it must be {} and at most {:g}", where, f.key,
       value, f.positive ? "above 0" : "0 or more", f.max);
}

Link link_of(const spec::ClusterLink& link) { return {link.bandwidth, link.latency}; }

}  // namespace

Devices::Devices(std::vector<DeviceGroup> groups) : groups_(std::move(groups)) {
  if (groups_.empty())
    fail(ErrorCode::invalid_argument, "no devices: at least one group is needed");
  int64_t total = 0;
  for (const DeviceGroup& g : groups_) {
    const std::string where = fmt::format("group \"{}\"", g.name);
    if (g.nodes < 1 || g.devices_per_node < 1) {
      fail(ErrorCode::invalid_argument,
           "{}: nodes is {}, devices_per_node is {}: both must be at "
           "least 1",
           where, g.nodes, g.devices_per_node);
    }
    for (const Figure& f : kFigures) check_figure(f.value(g), f, where);
    total += static_cast<int64_t>(g.nodes) * g.devices_per_node;
    if (total > kMaxDevices) {
      fail(ErrorCode::invalid_argument, "{}: more than {} devices in all", where, kMaxDevices);
    }
  }
  for (size_t i = 0; i < groups_.size(); ++i) {
    for (int n = 0; n < groups_[i].nodes; ++n, ++num_nodes_) {
      for (int d = 0; d < groups_[i].devices_per_node; ++d) {
        node_.push_back(num_nodes_);
        group_.push_back(static_cast<int>(i));
      }
    }
  }
}

bool Devices::is_uniform() const {
  DeviceGroup first = groups_.front();
  return std::all_of(groups_.begin(), groups_.end(), [&](DeviceGroup g) {
    g.name = first.name, g.nodes = first.nodes;
    return g == first;
  });
}

double Devices::memory(std::span<const int> devices) const {
  double least = std::numeric_limits<double>::infinity();
  for (int d : devices) least = std::min(least, group(d).memory);
  return least;
}

double Devices::speed(std::span<const int> devices) const {
  double least = std::numeric_limits<double>::infinity();
  for (int d : devices) least = std::min(least, group(d).speed);
  return least;
}

bool Devices::on_one_node(std::span<const int> devices) const {
  return std::all_of(devices.begin(), devices.end(),
                     [&](int d) { return node_[d] == node_[devices.front()]; });
}

Link Devices::within(std::span<const int> devices) const { return between(devices, devices); }

Link Devices::between(std::span<const int> a, std::span<const int> b) const {
  const bool one_node = on_one_node(a) && on_one_node(b) && node_[a.front()] == node_[b.front()];
  if (one_node) return group(a.front()).intra;
  Link link{std::numeric_limits<double>::infinity(), 0};
  for (const auto& set : {a, b}) {
    for (int d : set) {
      link.bandwidth = std::min(link.bandwidth, group(d).inter.bandwidth);
      link.latency = std::max(link.latency, group(d).inter.latency);
    }
  }
  return link;
}

Devices uniform_devices(int n, int devices_per_node, const DeviceGroup& like) {
  DeviceGroup group = like;
  group.devices_per_node = std::min(n, devices_per_node);
  if (n < 1 || group.devices_per_node < 1 || n % group.devices_per_node != 0) {
    fail(ErrorCode::invalid_argument,
         "{} devices cannot fill nodes of {}: give a multiple, or fewer than one node", n,
         devices_per_node);
  }
  group.nodes = n / group.devices_per_node;
  return Devices({group});
}

Devices devices_of(const spec::Cluster& cluster, std::span<const spec::NodeShare> allocation) {
  std::vector<DeviceGroup> groups;
  for (const spec::PlacedRun& run : spec::place(cluster, allocation)) {
    const spec::NodeGroup& from = cluster.groups[run.group];
    DeviceGroup group;
    group.name = from.name.empty() ? from.type : from.name;
    group.nodes = static_cast<int>(run.nodes);
    group.devices_per_node = run.devices;
    group.memory = from.memory;
    group.model = {from.flops, from.memory_bandwidth, from.overhead};
    group.speed = from.speed;
    group.intra = link_of(from.intra);
    group.inter = link_of(from.inter);
    groups.push_back(std::move(group));
  }
  return Devices(std::move(groups));
}

Devices devices_of(const spec::Cluster& cluster) {
  if (cluster.devices() > kMaxDevices)
    fail(ErrorCode::invalid_argument, "{} devices; a plan is for at most {}", cluster.devices(),
         kMaxDevices);
  return devices_of(cluster, spec::whole(cluster));
}

Devices find_devices(const std::string& text) {
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size()) {
    std::error_code unknown;
    if (std::filesystem::status(text, unknown).type() == std::filesystem::file_type::not_found) {
      fail(ErrorCode::not_found,
           "devices: {}: no such file; give a cluster file, which `ductile profile JOB --devices "
           "machine.toml` writes of this machine, or a number of devices from 1 to {}",
           text, kMaxDevices);
    }
    return devices_of(spec::read_cluster(text));
  }
  if (n < 1 || n > kMaxDevices) {
    fail(ErrorCode::invalid_argument, "{} devices; from 1 to {} are possible", n, kMaxDevices);
  }
  // Nodes of equal size instead would be small ones where four do not divide the number, down to
  // one device: five devices would be slower than four.
  constexpr int kPerNode = 4;
  std::vector<DeviceGroup> groups;
  if (n >= kPerNode) {
    groups.push_back({});
    groups.back().nodes = n / kPerNode;
    groups.back().devices_per_node = kPerNode;
  }
  if (n % kPerNode != 0) {
    groups.push_back({});
    groups.back().devices_per_node = n % kPerNode;
  }
  return Devices(std::move(groups));
}

}  // namespace ductile::plan
