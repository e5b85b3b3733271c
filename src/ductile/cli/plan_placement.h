#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ductile/base/paths.h"
#include "ductile/run/folder.h"
#include "ductile/server/hosts.h"
#include "ductile/spec/cluster.h"
#include "ductile/spec/job.h"

namespace ductile::cli {

// The devices on which a plan has its stages, by virtual rank, and the nodes of these where the
// plan's JSON says which devices there are (`cluster`).
class PlanPlacement {
 public:
  // Of the plan with this text; nothing where it names no devices. Throws invalid_argument, naming
  // file and stage, for devices that are damaged: others than numbers, not as many as the stage has
  // replicas and parts, one twice, one that the cluster does not have, stages that share some of
  // theirs.
  static std::optional<PlanPlacement> of(const std::string& text, const fs::path& file);

  struct Seats {
    // The host on which each virtual rank is wanted; "": any. Empty: nothing is wanted.
    std::vector<std::string> rank_hosts;
    std::string note;  // what differs from the plan, and what helps; empty: nothing does
  };
  // Of a run with so many workers on these hosts. A node is the host of its name, or, where the
  // cluster has no names, the host in its place. Where the command named no hosts (`named`), what
  // helps asks none of them for more workers than it takes, and names none for a node of which
  // nobody knows where it is.
  Seats seats(const server::HostSetup& setup, int64_t workers, bool named = true) const;

  // What a service does otherwise, which chooses the nodes by itself; empty: nothing that the plan
  // could say.
  std::string note_for_service() const;

  int64_t virtual_ranks() const { return static_cast<int64_t>(ranks_.size()); }

 private:
  struct Rank {
    size_t stage = 0;
    int64_t node = -1;  // in nodes_; -1: not known
  };
  struct Node {  // that has a stage
    int64_t number = 0;
    std::string host;   // its name; empty: it has none
    std::string label;  // for people
    int64_t ranks = 0;
  };
  void find_nodes(const spec::Cluster& cluster, const std::vector<int64_t>& devices);
  // Of each node the place of its host among these; -1: it is none of them.
  std::vector<int64_t> hosts_of_nodes(const std::vector<server::Host>& hosts) const;
  std::string labels() const;
  // `--hosts` for a worker where each stage's device is; "": there is none.
  std::string hosts_as_planned(const std::vector<server::Host>& hosts,
                               const std::vector<int64_t>& places, bool named) const;

  std::string file_;
  std::vector<Rank> ranks_;
  std::vector<Node> nodes_;                           // by number
  std::optional<int64_t> all_nodes_;                  // of the cluster; nothing: it is not known
  std::optional<std::pair<size_t, size_t>> in_turn_;  // stages with the same devices
};

// Of a run by the plan that its folder has, for messages as `file`, with so many workers (0: as
// many as before). A folder whose plan is damaged gives a note: the run may have gone on without
// these devices before. Where its state is damaged, which ends the run with a word of its own,
// nothing.
PlanPlacement::Seats seats_of_run(const spec::JobOptions& job, const run::RunFolder& folder,
                                  const fs::path& file, const server::HostSetup& setup,
                                  int64_t workers, bool named);

// The host of each of so many workers, as the launcher fills hosts; fewer where these take fewer.
std::vector<std::string> hosts_of_workers(const std::vector<server::Host>& hosts, int64_t workers);

}  // namespace ductile::cli
