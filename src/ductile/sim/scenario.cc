#include "ductile/sim/scenario.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/base/rng.h"
#include "ductile/base/toml.h"
#include "ductile/sim/csv.h"

namespace ductile::sim {
namespace {

constexpr std::array<std::pair<FaultKind, std::string_view>, 9> kKinds = {{
    {FaultKind::node_loss, "node_loss"},
    {FaultKind::straggler, "straggler"},
    {FaultKind::slow_network, "slow_network"},
    {FaultKind::lost_decisions, "lost_decisions"},
    {FaultKind::late_reports, "late_reports"},
    {FaultKind::reclaim, "reclaim"},
    {FaultKind::maintenance, "maintenance"},
    {FaultKind::lost_messages, "lost_messages"},
    {FaultKind::late_messages, "late_messages"},
}};

bool announced(FaultKind kind) {
  return kind == FaultKind::reclaim || kind == FaultKind::maintenance;
}

bool of_a_node(FaultKind kind) { return kind == FaultKind::straggler || takes_nodes(kind); }

bool of_messages(FaultKind kind) {
  return kind == FaultKind::lost_decisions || kind == FaultKind::late_reports ||
         kind == FaultKind::lost_messages || kind == FaultKind::late_messages;
}

double number(const toml::node& node, const std::string& where, std::string_view key, double least,
              double most) {
  const auto value = node.value<double>();
  if (!value || *value < least || *value > most)
    fail(ErrorCode::invalid_argument, "{}: {} must be a number from {} to {}", where, key, least,
         most);
  return *value;
}

Fault read_fault(const toml::table& table, const std::string& where) {
  static const std::vector<std::string> kKeys = {"kind",        "at",     "for",   "node",
                                                 "nodes",       "every",  "count", "factor",
                                                 "probability", "notice", "delay", "trace"};
  Fault fault;
  bool kind_known = false;
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (name == "kind") {
      const auto text = node.value<std::string>();
      std::string known;
      for (const auto& [kind, kind_name] : kKinds) {
        if (text && *text == kind_name) {
          fault.kind = kind;
          kind_known = true;
        }
        known += (known.empty() ? "" : ", ") + std::string(kind_name);
      }
      if (!kind_known)
        fail(ErrorCode::invalid_argument, "{}: kind must be one of {}", where, known);
    } else if (name == "at") {
      fault.at = number(node, where, name, 0, 1e10);
    } else if (name == "for") {
      fault.lasts = number(node, where, name, 0, 1e10);
    } else if (name == "node") {
      fault.nodes = {static_cast<int32_t>(number(node, where, name, 0, 1e9))};
    } else if (name == "nodes") {
      if (!node.is_array() || node.as_array()->empty())
        fail(ErrorCode::invalid_argument, "{}: nodes is a list of node numbers", where);
      fault.nodes.clear();
      for (const toml::node& one : *node.as_array())
        fault.nodes.push_back(static_cast<int32_t>(number(one, where, name, 0, 1e9)));
    } else if (name == "delay") {
      fault.delay = number(node, where, name, 0, 1e4);
    } else if (name == "every") {
      fault.every = number(node, where, name, 1, 1e10);
      if (!table.contains("count")) fault.count = 1'000'000;
    } else if (name == "count") {
      fault.count = static_cast<int64_t>(number(node, where, name, 1, 1e6));
    } else if (name == "factor") {
      fault.factor = number(node, where, name, 1, 1e4);
    } else if (name == "probability") {
      fault.probability = number(node, where, name, 0, 1);
    } else if (name == "trace") {
      continue;  // play_trace()
    } else if (name == "notice") {
      fault.notice = number(node, where, name, 0, 1e7);
    } else {
      const auto near = nearest_name(name, kKeys);
      fail(ErrorCode::invalid_argument, "{}: unknown key '{}'{}", where, name,
           near ? "; did you mean " + *near + "?" : "");
    }
  }
  if (!kind_known) fail(ErrorCode::invalid_argument, "{}: a fault needs a kind", where);
  return fault;
}

// The fault once for each time that one of its nodes is gone.
void play_trace(const Fault& fault, const toml::table& table, const fs::path& beside,
                const std::string& where, std::vector<Fault>& out) {
  const auto name = table["trace"].value<std::string>();
  if (!name || fault.kind != FaultKind::reclaim || fault.nodes.empty() || table.contains("at") ||
      table.contains("for") || table.contains("every"))
    fail(ErrorCode::invalid_argument,
         "{}: a trace is a file name in a reclaim with nodes, without at, for and every", where);
  const fs::path file = beside / *name;
  const auto trace = parse_json(read_text(file, kMostTrace));
  const auto pointer = [&](const char* at) {
    const nlohmann::json::json_pointer to(at);
    return trace.is_discarded() || !trace.contains(to) ? nlohmann::json() : trace.at(to);
  };
  const nlohmann::json gap = pointer("/metadata/gap_seconds"), data = pointer("/data");
  if (!gap.is_number() || gap.get<double>() <= 0 || !data.is_array() || data.empty() ||
      !std::all_of(data.begin(), data.end(), [](const auto& n) { return n.is_number(); }))
    fail(ErrorCode::invalid_argument,
         "{}: no availability trace; it needs metadata.gap_seconds above 0 and data, a list of "
         "numbers of machines",
         file.string());
  const double tick = gap.get<double>();
  for (size_t k = 0; k < fault.nodes.size(); ++k) {
    const auto gone = [&](size_t i) { return data[i].get<double>() < static_cast<double>(k + 1); };
    for (size_t i = 0, end = 0; i < data.size(); i = end + 1) {
      end = i;
      if (!gone(i)) continue;
      while (end < data.size() && gone(end)) ++end;
      Fault one = fault;
      one.nodes = {fault.nodes[k]};
      const double loss = static_cast<double>(i) * tick;
      one.notice = std::min(fault.notice.value_or(120), loss);
      one.at = loss - *one.notice;
      one.lasts = end < data.size() ? static_cast<double>(end - i) * tick : 0;
      out.push_back(std::move(one));
    }
  }
}

}  // namespace

std::string_view to_string(FaultKind kind) {
  for (const auto& [known, name] : kKinds)
    if (known == kind) return name;
  return "?";
}

bool takes_nodes(FaultKind kind) { return kind == FaultKind::node_loss || announced(kind); }

Scenario parse_scenario(std::string_view text, std::string_view name) {
  const toml::table tree = parse_toml(text, name);
  Scenario scenario;
  for (const auto& [key, node] : tree) {
    const std::string where = fmt::format("{}:{}", name, node.source().begin.line);
    if (key == "lost_work_seconds") {
      scenario.lost_work_seconds = number(node, where, "lost_work_seconds", 0, 1e7);
    } else if (key == "until") {
      scenario.until = number(node, where, "until", 1, 1e8);
    } else if (key == "fault" && node.is_array()) {
      for (const toml::node& entry : *node.as_array()) {
        const std::string at = fmt::format("{}:{}", name, entry.source().begin.line);
        if (!entry.is_table()) fail(ErrorCode::invalid_argument, "{}: write [[fault]]", at);
        const toml::table& table = *entry.as_table();
        const Fault fault = read_fault(table, at);
        if (table.contains("trace"))
          play_trace(fault, table, fs::path(name).parent_path(), at, scenario.faults);
        else
          scenario.faults.push_back(fault);
      }
    } else {
      fail(ErrorCode::invalid_argument,
           "{}: unknown key '{}'; a scenario has lost_work_seconds, until and [[fault]]", where,
           std::string(key.str()));
    }
  }
  return scenario;
}

Scenario read_scenario(const fs::path& file) {
  return parse_scenario(read_text(file, kMostTrace), file.string());
}

std::vector<FaultEvent> plan_faults(const Scenario& scenario, const sched::Cluster& cluster,
                                    uint64_t seed, double until) {
  std::vector<FaultEvent> events;
  for (size_t f = 0; f < scenario.faults.size(); ++f) {
    const Fault& fault = scenario.faults[f];
    for (const int32_t node : fault.nodes)
      if (node >= cluster.nodes())
        fail(ErrorCode::invalid_argument, "a {} of node {}, but the cluster has {} nodes",
             to_string(fault.kind), node, cluster.nodes());
    // Drawn from these: what is reclaimed is spot, where anything is.
    std::vector<int32_t> all, spot;
    for (int32_t n = 0; n < cluster.nodes(); ++n) (cluster.node_spot[n] ? spot : all).push_back(n);
    if (fault.kind != FaultKind::reclaim) all.insert(all.end(), spot.begin(), spot.end());
    const std::vector<int32_t>& drawn =
        fault.kind == FaultKind::reclaim && !spot.empty() ? spot : all;
    const double notice = announced(fault.kind)
                              ? fault.notice.value_or(fault.kind == FaultKind::reclaim ? 120 : 3600)
                              : 0;
    double at = fault.at;
    for (int64_t i = 0; i < fault.count && at <= until; ++i) {
      Rng rng(seed, mix(0xfa017, f), static_cast<uint64_t>(i));
      std::vector<int32_t> nodes = fault.nodes;
      if (nodes.empty() && of_a_node(fault.kind)) {
        std::vector<int32_t> sorted = drawn;
        std::sort(sorted.begin(), sorted.end());
        nodes = {sorted[rng.below(static_cast<uint32_t>(sorted.size()))]};
      }
      if (nodes.empty()) nodes = {-1};
      const double value = of_messages(fault.kind) ? fault.probability : fault.factor;
      for (const int32_t node : nodes) {
        const double loss = at + notice;
        if (notice > 0) events.push_back({at, fault.kind, true, true, node, loss, 0});
        events.push_back({loss, fault.kind, true, false, node, value, fault.delay});
        if (fault.lasts > 0)
          events.push_back({loss + fault.lasts, fault.kind, false, false, node, value, 0});
      }
      if (fault.every <= 0) break;
      at += std::ceil(-std::log(1 - rng.uniform(0, 1)) * fault.every);
    }
  }
  std::stable_sort(events.begin(), events.end(), [](const FaultEvent& a, const FaultEvent& b) {
    return a.time != b.time ? a.time < b.time : a.start < b.start;
  });
  return events;
}

}  // namespace ductile::sim
