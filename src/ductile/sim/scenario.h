#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/sched/cluster.h"

// What goes wrong in a simulation, from a file:
//
//   lost_work_seconds = 0        # progress that a job loses with a node, besides its restart
//   until = 86400                # seconds at which the simulation ends, whatever is unfinished
//   then;
//                                # default: with the last job
//   [[fault]]
//   kind = "node_loss"           # straggler, slow_network, lost_decisions, late_reports, reclaim,
//                                # maintenance, lost_messages, late_messages
//   at = 3600                    # seconds; the first time
//   for = 1800                   # how long each lasts; 0, the default: for good
//   node = 3                     # node_loss, straggler, reclaim, maintenance; default: drawn from
//                                # the seed, for reclaim among the spot nodes if there are any
//   nodes = [0, 1]               # instead: several at once
//   every = 7200                 # repeats after this time, on average; default: it happens once
//   count = 10                   # how many times at most
//   factor = 2.5                 # straggler, slow_network: how many times as slow
//   probability = 0.1            # lost_decisions, late_reports, lost_messages, late_messages
//   notice = 120                 # reclaim (120), maintenance (3600): seconds from the announcement
//                                # to the loss
//   delay = 1                    # late_messages: seconds at most
//   trace = "zone.json"          # reclaim, with nodes and none of at, for, every: the k-th of the
//                                # nodes is gone while the trace has fewer than k machines (JSON:
//                                # metadata.gap_seconds, data: machines by tick); beside this file
namespace ductile::sim {

enum class FaultKind : uint8_t {
  node_loss,
  straggler,       // one node computes slower; a job runs at the pace of its slowest node
  slow_network,    // synchronisation of jobs on several nodes takes longer
  lost_decisions,  // a job does not receive its new allocation in this round
  late_reports,    // the scheduler sees a job as it was in an earlier round
  reclaim,         // like node_loss, but announced: Cluster::node_leaves_at
  maintenance,     // the same, announced long before
  lost_messages,   // between a job's controller and its workers (control.h); ignored without it
  late_messages,
};
std::string_view to_string(FaultKind kind);
// Whether the node is gone while the fault lasts: node_loss, reclaim, maintenance.
bool takes_nodes(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::node_loss;
  double at = 0;
  double lasts = 0;            // 0: for good
  std::vector<int32_t> nodes;  // empty: one node, which is drawn
  double every = 0;
  int64_t count = 1;
  double factor = 2;
  double probability = 0;
  std::optional<double> notice;
  double delay = 1;
};

struct Scenario {
  std::vector<Fault> faults;
  double lost_work_seconds = 0;
  double until = 0;  // 0: until all jobs have ended
};

// Throws invalid_argument with file and line for an unknown key or kind, or a wrong value.
Scenario read_scenario(const fs::path& file);
Scenario parse_scenario(std::string_view toml, std::string_view name);

// One event of a fault. Ends come before starts of the same time.
struct FaultEvent {
  double time = 0;
  FaultKind kind = FaultKind::node_loss;
  bool start = true;
  bool announce = false;  // reclaim, maintenance: only the notice
  int32_t node = -1;
  double value = 0;  // factor or probability; for an announcement, the time of the loss
  double delay = 0;  // late_messages
};

// The scenario as events in order of time, up to `until`; random values are drawn from the seed.
std::vector<FaultEvent> plan_faults(const Scenario& scenario, const sched::Cluster& cluster,
                                    uint64_t seed, double until);

}  // namespace ductile::sim
