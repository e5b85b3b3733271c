#include "ductile/cli/plan_placement.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/json_value.h"
#include "ductile/cli/replan.h"
#include "ductile/control/ranges.h"
#include "ductile/page/numbers.h"
#include "ductile/run/trace.h"

namespace ductile::cli {
namespace {

constexpr int64_t kMostNumber = 1 << 20;  // of a device: what the planner knows
constexpr int64_t kMostDegree = 1 << 16;  // replicas, or parts
constexpr int64_t kMostPlaced = 1 << 16;  // virtual ranks: what a job has
constexpr size_t kMostNamed = 4;          // in a message

struct PlacedStage {
  int64_t replicas = 1, tensor = 1;
  std::vector<int64_t> devices;  // empty: the plan does not say
};

PlacedStage placed_stage(const JsonFields& stage) {
  PlacedStage out;
  out.replicas = stage.integer_or("replicas", 1, 1, kMostDegree);
  out.tensor = stage.integer_or("tensor", 1, 1, kMostDegree);
  if (!stage.has("devices")) return out;
  std::set<int64_t> seen;
  for (const nlohmann::json& item : stage.array("devices")) {
    out.devices.push_back(stage.as_integer(item, "devices", 0, kMostNumber - 1));
    if (!seen.insert(out.devices.back()).second) {
      fail(ErrorCode::invalid_argument, "{}: devices names device {} twice", stage.where(),
           out.devices.back());
    }
  }
  const int64_t parts = out.replicas * out.tensor;
  if (!out.devices.empty() && std::ssize(out.devices) != parts) {
    fail(ErrorCode::invalid_argument,
         "{}: devices has {} entries, and the stage takes {}: one for each of its replicas and "
         "their parts; `ductile plan GRAPH --json` writes them, and without devices the stages "
         "are taken in the order of the file",
         stage.where(), out.devices.size(), parts);
  }
  return out;
}

// Two stages with equal devices, where there are any; others have none in common.
std::optional<std::pair<size_t, size_t>> stages_in_turn(const std::vector<PlacedStage>& stages,
                                                        const std::string& file) {
  std::optional<std::pair<size_t, size_t>> out;
  std::map<int64_t, size_t> owner;
  std::vector<std::set<int64_t>> sets;
  for (size_t s = 0; s < stages.size(); ++s) {
    sets.emplace_back(stages[s].devices.begin(), stages[s].devices.end());
    for (const int64_t device : sets.back()) {
      const auto [at, is_new] = owner.try_emplace(device, s);
      if (is_new) continue;
      if (sets[at->second] != sets[s]) {
        fail(ErrorCode::invalid_argument,
             "{}: stage {}: devices: it shares device {} with stage {}, but not all of them", file,
             s, device, at->second);
      }
      if (!out) out.emplace(at->second, s);
    }
  }
  return out;
}

// As HostsLauncher has them: hosts are filled in order, and those that do not say how many they
// take share the workers evenly.
std::vector<int64_t> workers_of(const std::vector<server::Host>& hosts, int64_t workers) {
  const int64_t even = (workers + std::ssize(hosts) - 1) / std::ssize(hosts);
  std::vector<int64_t> out;
  int64_t left = workers;
  for (const server::Host& host : hosts) {
    out.push_back(std::min(left, host.places > 0 ? host.places : even));
    left -= out.back();
  }
  for (size_t h = 0; h < hosts.size() && left > 0; ++h)
    if (hosts[h].places == 0) out[h] += std::exchange(left, 0);
  return out;
}

// What is not on the host on which it is wanted.
struct Elsewhere {
  int64_t count = 0;
  size_t first = 0;  // virtual rank
  std::string host;  // where that is
};
Elsewhere elsewhere(const std::vector<server::Host>& hosts, int64_t workers,
                    const std::vector<std::string>& rank_hosts) {
  const std::vector<std::string> worker_hosts = hosts_of_workers(hosts, workers);
  Elsewhere out;
  // Hosts may take fewer than are asked for.
  const std::vector<control::RankRange> ranges = control::spread_ranks(
      std::ssize(rank_hosts), std::clamp<int64_t>(std::ssize(worker_hosts), 1, workers));
  const std::vector<size_t> seats = control::seat_workers(ranges, rank_hosts, worker_hosts);
  for (size_t i = 0; i < ranges.size(); ++i) {
    for (int64_t r = ranges[i].begin; r < ranges[i].end; ++r) {
      const auto rank = static_cast<size_t>(r);
      const std::string& host = worker_hosts[seats[i]];
      if (rank_hosts[rank].empty() || rank_hosts[rank] == host) continue;
      if (out.count++ > 0) continue;
      out.first = rank;
      out.host = host;
    }
  }
  return out;
}

// As --hosts takes it.
std::string host_text(const server::Host& host, int64_t workers) {
  const bool v6 = host.address.find(':') != std::string::npos;
  return fmt::format("{}{}{}{}{}:{}", host.name, host.address.empty() ? "" : "=", v6 ? "[" : "",
                     host.address, v6 ? "]" : "", workers);
}

}  // namespace

std::vector<std::string> hosts_of_workers(const std::vector<server::Host>& hosts, int64_t workers) {
  std::vector<std::string> out;
  if (hosts.empty()) return out;
  const std::vector<int64_t> of_hosts = workers_of(hosts, workers);
  for (size_t h = 0; h < hosts.size(); ++h)
    out.insert(out.end(), static_cast<size_t>(of_hosts[h]), hosts[h].name);
  return out;
}

std::optional<PlanPlacement> PlanPlacement::of(const std::string& text, const fs::path& file) {
  const nlohmann::json report = parse_json(text);
  if (!report.is_object()) return std::nullopt;
  const nlohmann::json& plan = report.contains("plan") ? report.at("plan") : report;
  if (!plan.is_object() || !plan.contains("stages") || !plan.at("stages").is_array())
    return std::nullopt;
  std::vector<PlacedStage> stages;
  int64_t ranks = 0, placed = 0;
  for (const nlohmann::json& item : plan.at("stages")) {
    const JsonFields fields(item, fmt::format("{}: stage {}", file.string(), stages.size()));
    stages.push_back(placed_stage(fields));
    ranks += stages.back().replicas * stages.back().tensor;
    placed += std::ssize(stages.back().devices);
  }
  if (placed == 0 || ranks > kMostPlaced) return std::nullopt;
  PlanPlacement out;
  out.file_ = file.string();
  out.in_turn_ = stages_in_turn(stages, out.file_);
  // The order of set_plan(): whole pipelines one after the other, or stages where they have
  // replicas of their own. A replica's parts are together in both.
  const bool pipelines = std::ranges::all_of(
      stages, [&](const PlacedStage& stage) { return stage.replicas == stages.front().replicas; });
  std::vector<int64_t> devices;
  for (int64_t p = 0; p < (pipelines ? stages.front().replicas : 1); ++p) {
    for (size_t s = 0; s < stages.size(); ++s) {
      const PlacedStage& stage = stages[s];
      const int64_t count = pipelines ? stage.tensor : stage.replicas * stage.tensor;
      for (int64_t i = 0; i < count; ++i) {
        out.ranks_.push_back({s, -1});
        devices.push_back(
            stage.devices.empty() ? -1 : stage.devices[static_cast<size_t>(p * stage.tensor + i)]);
      }
    }
  }
  if (report.contains("cluster")) {
    const spec::Cluster cluster =
        spec::cluster_from_json(report.at("cluster"), out.file_ + ": cluster");
    out.find_nodes(cluster, devices);
  }
  return out;
}

// Devices are numbered group by group, node by node.
void PlanPlacement::find_nodes(const spec::Cluster& cluster, const std::vector<int64_t>& devices) {
  all_nodes_ = cluster.nodes();
  std::map<int64_t, Node> found;
  std::vector<int64_t> numbers;
  for (size_t r = 0; r < devices.size(); ++r) {
    int64_t number = 0, device = devices[r];
    size_t g = 0;
    while (g < cluster.groups.size() &&
           device >= cluster.groups[g].count * cluster.groups[g].devices) {
      device -= cluster.groups[g].count * cluster.groups[g].devices;
      number += cluster.groups[g++].count;
    }
    if (g == cluster.groups.size()) {
      fail(ErrorCode::invalid_argument,
           "{}: stage {}: devices names device {}, and the devices that it was planned for "
           "(cluster) are {}",
           file_, ranks_[r].stage, devices[r], cluster.devices());
    }
    numbers.push_back(device < 0 ? -1 : number + device / cluster.groups[g].devices);
    if (device < 0) continue;  // not placed
    const spec::NodeGroup& group = cluster.groups[g];
    const auto in_group = static_cast<size_t>(device / group.devices);
    Node& node = found[numbers.back()];
    node.number = numbers.back();
    ++node.ranks;
    if (in_group < group.hosts.size()) node.host = group.hosts[in_group];
    node.label = node.host.empty() ? fmt::format("node {}, {}", node.number, group.type)
                                   : fmt::format("{}, {}", node.host, group.type);
  }
  std::map<int64_t, int64_t> places;
  for (auto& [number, node] : found) {
    places.emplace(number, std::ssize(nodes_));
    nodes_.push_back(std::move(node));
  }
  for (size_t r = 0; r < ranks_.size(); ++r)
    if (numbers[r] >= 0) ranks_[r].node = places.at(numbers[r]);
}

std::vector<int64_t> PlanPlacement::hosts_of_nodes(const std::vector<server::Host>& hosts) const {
  std::vector<int64_t> out(nodes_.size(), -1);
  std::vector<bool> taken(hosts.size(), false);
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].host.empty()) continue;
    const auto found = std::ranges::find(hosts, nodes_[n].host, &server::Host::name);
    if (found == hosts.end()) continue;
    out[n] = found - hosts.begin();
    taken[static_cast<size_t>(out[n])] = true;
  }
  // Nodes without names are the hosts in their order, but for those that others have by name.
  const bool whole = all_nodes_ == std::ssize(hosts);  // idle nodes have hosts as well
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (!nodes_[n].host.empty()) continue;
    int64_t place = whole ? nodes_[n].number : static_cast<int64_t>(n);
    if (place >= std::ssize(hosts) || taken[static_cast<size_t>(place)])
      place = std::ranges::find(taken, false) - taken.begin();
    if (place == std::ssize(hosts)) continue;
    out[n] = place;
    taken[static_cast<size_t>(place)] = true;
  }
  return out;
}

std::string PlanPlacement::labels() const {
  std::vector<std::string> names;
  for (const Node& node : nodes_) {
    if (names.size() < kMostNamed) names.push_back(node.label);
  }
  if (nodes_.size() > kMostNamed) names.push_back("...");
  return fmt::format("{}", fmt::join(names, "; "));
}

std::string PlanPlacement::hosts_as_planned(const std::vector<server::Host>& hosts,
                                            const std::vector<int64_t>& places, bool named) const {
  std::vector<std::string> out;
  const bool whole = all_nodes_ == std::ssize(hosts);
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (places[n] < 0 || nodes_[n].ranks > server::kMostOnOneHost) return "";
    const server::Host& host = hosts[static_cast<size_t>(places[n])];
    const bool takes_all = host.places == 0 || nodes_[n].ranks <= host.places;
    if (!named && (!takes_all || (nodes_[n].host.empty() && !whole))) return "";
    out.push_back(host_text(host, nodes_[n].ranks));
  }
  return fmt::format("{}", fmt::join(out, ","));
}

PlanPlacement::Seats PlanPlacement::seats(const server::HostSetup& setup, int64_t workers,
                                          bool named) const {
  Seats out;
  const std::vector<server::Host>& hosts = setup.hosts;
  if (in_turn_) {
    out.note = fmt::format(
        "{}: by the plan stages {} and {} take turns on the same devices; a run gives them to "
        "workers in the order of the file, so its times are not those of the plan",
        file_, in_turn_->first, in_turn_->second);
  }
  if (!all_nodes_) {
    if (hosts.size() < 2) return out;
    out.note = fmt::format(
        "{0}: the plan names devices, and not of which nodes they are, so the hosts take its "
        "stages in the order of the file, and its times may not be those of this run; `ductile "
        "plan GRAPH --plan {0} --devices FILE --json`, with a cluster file of the hosts, says it",
        file_);
    return out;
  }
  if (hosts.size() < 2) {
    if (nodes_.size() > 1) {
      out.note = fmt::format(
          "{}: the plan is for devices of {} nodes ({}), and all workers are on one machine, so "
          "its times and memory are not those of this run; name the hosts (--hosts), or plan for "
          "this machine (ductile profile --devices FILE)",
          file_, nodes_.size(), labels());
    }
    return out;
  }
  // Several hosts. Workers are there as the launcher fills them, and are seated as the controller
  // will seat them.
  const std::vector<int64_t> places = hosts_of_nodes(hosts);
  for (const Rank& rank : ranks_) {
    const int64_t place = rank.node < 0 ? -1 : places[static_cast<size_t>(rank.node)];
    out.rank_hosts.push_back(place < 0 ? "" : hosts[static_cast<size_t>(place)].name);
  }
  const auto away = std::ranges::find(places, -1);
  if (away != places.end()) {
    out.note = fmt::format(
        "{}: the plan has stages on {}, which is none of the run's {} hosts, so its times are not "
        "those of this run; name the hosts of the plan (--hosts), or plan for these (ductile plan "
        "--devices FILE)",
        file_, nodes_[static_cast<size_t>(away - places.begin())].label, hosts.size());
    return out;
  }
  const std::string remedy = hosts_as_planned(hosts, places, named);
  const Elsewhere found = elsewhere(hosts, workers, out.rank_hosts);
  if (found.count > 0) {
    out.note = fmt::format(
        "{}: {} of the plan's {} devices are on other hosts in this run (stage {} is on {}, and "
        "the plan has it on {}), so its times are not those of the run{}",
        file_, found.count, ranks_.size(), ranks_[found.first].stage, found.host,
        out.rank_hosts[found.first],
        remedy.empty() ? "" : fmt::format("; --hosts {} puts all where the plan does", remedy));
  } else if (workers < std::ssize(ranks_)) {
    out.note = fmt::format(
        "{}: {} take turns at the {} devices of the plan, so its times are not those of the run{}",
        file_, page::plural(static_cast<double>(workers), "worker"), ranks_.size(),
        remedy.empty() ? "" : fmt::format("; --hosts {} has one for each", remedy));
  }
  return out;
}

std::string PlanPlacement::note_for_service() const {
  if (nodes_.size() < 2) return "";
  return fmt::format(
      "{}: the plan is for devices of {} nodes ({}), and a service chooses the devices of a job "
      "itself and gives its stages to them in the order of the file, so its times may not be those "
      "of the run; a plan for one node has none to choose (ductile plan --devices FILE), and "
      "`ductile train --hosts` runs this one as it is",
      file_, nodes_.size(), labels());
}

PlanPlacement::Seats seats_of_run(const spec::JobOptions& job, const run::RunFolder& folder,
                                  const fs::path& file, const server::HostSetup& setup,
                                  int64_t workers, bool named) {
  PlanPlacement::Seats out;
  const fs::path kept = run::plan_file(folder);
  if (!spec::is_pipelined(job) || kind_of(kept) != FileKind::file) return out;
  try {
    const auto placement = PlanPlacement::of(read_file(kept), file);
    if (!placement || placement->virtual_ranks() != job.train.virtual_ranks) return out;
    if (workers == 0) workers = Replanner::workers_before(folder);
    out = placement->seats(setup, std::min(workers, job.train.virtual_ranks), named);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::data_loss) return out;
    if (error.code() != ErrorCode::invalid_argument) throw;
    out.note = fmt::format("{}; the run's stages are taken in their order", error.message());
  }
  return out;
}

}  // namespace ductile::cli
