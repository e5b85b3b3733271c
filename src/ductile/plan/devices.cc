#include "ductile/plan/devices.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "ductile/base/error.h"
#include "ductile/base/options.h"
#include "ductile/base/toml.h"
#include "ductile/graph/formats.h"

namespace ductile::plan {
namespace {

// A key of [[group]] and the member it sets; a figure may carry one of the units.
struct Unit {
  std::string_view name;
  double factor;
};
constexpr Unit kBytes[] = {{"B", 1},           {"KB", 1e3},           {"MB", 1e6},
                           {"GB", 1e9},        {"TB", 1e12},          {"KiB", 1024.0},
                           {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
constexpr Unit kBytesPerSecond[] = {
    {"B/s", 1},        {"KB/s", 1e3},        {"MB/s", 1e6},           {"GB/s", 1e9},
    {"TB/s", 1e12},    {"MiB/s", 1048576.0}, {"GiB/s", 1073741824.0}, {"Mb/s", 1e6 / 8},
    {"Gb/s", 1e9 / 8}, {"Mbit/s", 1e6 / 8},  {"Gbit/s", 1e9 / 8}};
constexpr Unit kFlops[] = {{"FLOP/s", 1},     {"MFLOP/s", 1e6},  {"GFLOP/s", 1e9},
                           {"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}, {"TFLOPS", 1e12}};
constexpr Unit kSeconds[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};

struct Figure {
  std::string_view key;
  std::span<const Unit> units;
  double min, max;  // min itself is allowed unless 0 and `positive`
  bool positive;
  double& (*member)(DeviceGroup&);
};

constexpr double kMost = 1e18;
const Figure kFigures[] = {
    {"memory", kBytes, 0, kMost, true, [](DeviceGroup& g) -> double& { return g.memory; }},
    {"flops", kFlops, 0, 1e21, true, [](DeviceGroup& g) -> double& { return g.model.flops; }},
    {"memory_bandwidth", kBytesPerSecond, 0, kMost, true,
     [](DeviceGroup& g) -> double& { return g.model.memory_bandwidth; }},
    {"overhead", kSeconds, 0, 1e3, false,
     [](DeviceGroup& g) -> double& { return g.model.overhead; }},
    {"speed", {}, 0, 1e6, true, [](DeviceGroup& g) -> double& { return g.speed; }},
    {"intra_bandwidth", kBytesPerSecond, 0, kMost, true,
     [](DeviceGroup& g) -> double& { return g.intra.bandwidth; }},
    {"intra_latency", kSeconds, 0, 1e3, false,
     [](DeviceGroup& g) -> double& { return g.intra.latency; }},
    {"inter_bandwidth", kBytesPerSecond, 0, kMost, true,
     [](DeviceGroup& g) -> double& { return g.inter.bandwidth; }},
    {"inter_latency", kSeconds, 0, 1e3, false,
     [](DeviceGroup& g) -> double& { return g.inter.latency; }}};

void check_figure(double value, const Figure& f, const std::string& where) {
  if (std::isfinite(value) && value >= f.min && value <= f.max && (value > 0 || !f.positive)) {
    return;
  }
  fail(ErrorCode::invalid_argument, "{}: {} is {:g}, it must be {} and at most {:g}", where, f.key,
       value, f.positive ? "above 0" : "0 or more", f.max);
}

double parse_figure(const toml::node& node, const Figure& f, const std::string& where) {
  if (const auto number = node.value<double>()) return *number;
  const auto text = node.value<std::string>();
  std::vector<std::string_view> known;
  for (const Unit& u : f.units) known.push_back(u.name);
  if (text) {
    double value = 0;
    const char* end = text->data() + text->size();
    const auto [rest, error] = std::from_chars(text->data(), end, value);
    std::string_view unit(rest, static_cast<size_t>(end - rest));
    while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
    if (error == std::errc()) {
      for (const Unit& u : f.units) {
        if (u.name == unit) return value * u.factor;
      }
    }
  }
  fail(ErrorCode::invalid_argument, "{}: {} must be a number{}, it is {}", where, f.key,
       known.empty() ? "" : fmt::format(" or text with a unit ({})", fmt::join(known, ", ")),
       text ? fmt::format("\"{}\"", text->substr(0, 80)) : "something else");
}

int whole(const toml::node& node, std::string_view key, const std::string& where) {
  const auto value = node.value_exact<int64_t>();
  if (!value || *value < 1 || *value > kMaxDevices) {
    fail(ErrorCode::invalid_argument, "{}: {} must be a whole number from 1 to {}", where, key,
         kMaxDevices);
  }
  return static_cast<int>(*value);
}

DeviceGroup group_from_toml(const toml::table& table, std::string_view name, bool& has_speed) {
  DeviceGroup group;
  std::vector<std::string> known{"name", "nodes", "devices_per_node"};
  for (const Figure& f : kFigures) known.emplace_back(f.key);
  for (const auto& [k, node] : table) {
    const std::string_view key = k.str();
    const std::string where = fmt::format("{}:{}", name, node.source().begin.line);
    if (key == "name") {
      const auto text = node.value_exact<std::string>();
      if (!text || text->empty()) {
        fail(ErrorCode::invalid_argument, "{}: name must be text", where);
      }
      group.name = *text;
    } else if (key == "nodes") {
      group.nodes = whole(node, key, where);
    } else if (key == "devices_per_node") {
      group.devices_per_node = whole(node, key, where);
    } else {
      const auto f = std::find_if(std::begin(kFigures), std::end(kFigures),
                                  [&](const Figure& i) { return i.key == key; });
      if (f == std::end(kFigures)) {
        const auto nearest = nearest_name(key.substr(0, 80), known);
        fail(ErrorCode::invalid_argument, "{}: unknown key \"{}\"{}", where, key.substr(0, 80),
             nearest ? fmt::format("; did you mean \"{}\"?", *nearest)
                     : fmt::format("; known are {}", fmt::join(known, ", ")));
      }
      f->member(group) = parse_figure(node, *f, where);
      check_figure(f->member(group), *f, where);
      has_speed |= key == "speed";
    }
  }
  return group;
}

}  // namespace

Devices::Devices(std::vector<DeviceGroup> groups) : groups_(std::move(groups)) {
  if (groups_.empty())
    fail(ErrorCode::invalid_argument, "no devices: at least one group is needed");
  int64_t total = 0;
  for (DeviceGroup& g : groups_) {
    const std::string where = fmt::format("group \"{}\"", g.name);
    if (g.nodes < 1 || g.devices_per_node < 1) {
      fail(ErrorCode::invalid_argument,
           "{}: nodes is {}, devices_per_node is {}: both must be at "
           "least 1",
           where, g.nodes, g.devices_per_node);
    }
    for (const Figure& f : kFigures) check_figure(f.member(g), f, where);
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

Devices devices_from_toml(std::string_view text, std::string_view name) {
  const toml::table table = parse_toml(text, name);
  for (const auto& [key, node] : table) {
    if (key.str() != "group") {
      fail(ErrorCode::invalid_argument, "{}:{}: unknown key \"{}\"; wanted are [[group]] tables",
           name, node.source().begin.line, key.str().substr(0, 80));
    }
  }
  const toml::array* list = table["group"].as_array();
  if (list == nullptr || list->empty()) {
    fail(ErrorCode::invalid_argument, "{}: no [[group]] table: there are no devices", name);
  }
  std::vector<DeviceGroup> groups;
  for (const toml::node& node : *list) {
    if (node.as_table() == nullptr) {
      fail(ErrorCode::invalid_argument, "{}: group must be a list of tables", name);
    }
    bool has_speed = false;
    DeviceGroup group = group_from_toml(*node.as_table(), name, has_speed);
    // Graphs are priced for the first group; what is not said follows from the arithmetic.
    if (!has_speed && !groups.empty()) {
      group.speed = groups.front().speed * group.model.flops / groups.front().model.flops;
    }
    groups.push_back(std::move(group));
  }
  try {
    return Devices(std::move(groups));
  } catch (Error& e) {
    throw Error(e).with_context(std::string(name));
  }
}

Devices read_devices(const std::filesystem::path& file) {
  return devices_from_toml(graph::read_input(file), file.string());
}

std::string to_toml(const Devices& devices) {
  std::string out;
  for (DeviceGroup g : devices.groups()) {
    out += fmt::format("[[group]]\nname = {}\nnodes = {}\ndevices_per_node = {}\n",
                       ductile::to_toml(OptionValue(g.name)), g.nodes, g.devices_per_node);
    for (const Figure& f : kFigures) {
      out += fmt::format("{} = {}\n", f.key, ductile::to_toml(OptionValue(f.member(g))));
    }
  }
  return out;
}

}  // namespace ductile::plan
