#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ductile/cluster/engine_impl.h"
#include "ductile/cluster/slurm_impl.h"
#include "ductile/server/pilot.h"
#include "ductile/spec/pool.h"

namespace ductile::cluster {

// A node of a pool at one time: the pilot with this generation.
struct PilotKey {
  size_t node = 0;
  uint64_t generation = 0;
  auto operator<=>(const PilotKey&) const = default;
};

// What is to be done now. All of it, in this order.
struct SlurmErrand {
  std::vector<PilotKey> submit;
  std::vector<PilotKey> cancel;
  std::vector<PilotKey> write_down;  // these have begun, and slurmctld may not have saved this yet
  std::vector<PilotKey> list;        // look at these, in the queue and at their tickets
};
struct SlurmNews {
  std::map<PilotKey, std::string>
      refused;  // why sbatch failed; the pilot may be there nevertheless
  bool listed = false;
  std::string trouble;  // why not; of the tickets' files, too
  std::map<PilotKey, std::vector<QueueEntry>> queue;
  std::map<PilotKey, server::PilotClaim> claims;
  std::vector<PilotKey> noticed;
  std::vector<PilotKey> written_down;
};

// What is left of a demand for the pools, where the first nodes are the service's own, with so many
// devices each (0: it does not serve what pools do): these are there anyway, and serve what they
// have room for. Nodes of the pools are then numbered from 0.
Demand beyond_own_nodes(Demand demand, const std::vector<int64_t>& own);

// Decides which pilots there are. It has no clock, no threads and no files: plan() says what to do,
// and learn() hears what became of it. `now` is in seconds of a clock that is never set, by which
// it waits; `wall` in seconds since 1970, which Slurm's time limits are told in. One thread at a
// time.
//
// A pilot counts as gone only when squeue answers and does not know it any more, twice, or says
// that it has ended. While squeue does not answer nothing changes.
class SlurmPool {
 public:
  explicit SlurmPool(std::vector<spec::Pool> pools);

  size_t nodes() const { return nodes_.size(); }
  const std::string& name(size_t node) const { return nodes_[node].name; }
  const spec::Pool& pool_of(size_t node) const { return pools_[nodes_[node].pool]; }

  // What an earlier service left: the pilot may live.
  void take_over(size_t node, uint64_t generation, double now);

  void follow(Demand demand);
  // Whether a pilot of any pool has so much; true where an option of sbatch, or the partition
  // alone, decides about GPUs. Of any thread.
  bool may_have(const Demand::Whole& job) const;
  SlurmErrand plan(double now, double wall);
  void learn(const SlurmNews& news, double now);

  // A pilot has come to this node, and is to be called.
  const std::optional<server::PilotClaim>& claim(size_t node) const { return nodes_[node].claim; }
  bool absent(size_t node) const { return !nodes_[node].claim && !nodes_[node].taken_over; }
  uint64_t generation(size_t node) const { return nodes_[node].generation; }
  std::string trouble(size_t node) const;  // where none has come: why
  std::string leaving(size_t node) const { return nodes_[node].leaving; }
  std::vector<PilotKey> all() const;  // that may be there

 private:
  enum class State { none, asked, pending, running, ending };
  struct Node {
    std::string name;
    size_t pool = 0;
    State state = State::none;
    uint64_t generation = 0;  // of the latest pilot
    std::string job, partition, reason, error, leaving;
    std::optional<server::PilotClaim> claim;
    double ends = 0;  // since 1970; 0: not known
    double idle_since = 0, retry_at = 0, write_again_at = 0;
    std::optional<double> cancelled_at;
    int missed = 0, failures = 0;
    bool held = false, noticed = false, taken_over = false, written_down = false;
  };

  // Pilots of a pool that are enough until then, since jobs could use more, and did not.
  struct Enough {
    int64_t pilots = 0;
    double until = 0;
  };
  // Of what the demand was for which a policy has had time since then.
  struct Asked {
    int64_t jobs = 0, devices = 0;
    std::vector<bool> held;
    double since = 0;
  };

  bool tells_gpus() const;
  int64_t gpus_of_a_pilot(size_t pool) const;
  std::vector<int64_t> wanted() const;
  std::vector<int64_t> needed(double now);
  void shrink(size_t pool, int64_t surplus, double now);
  void leave_in_time(Node& node, double wall);
  void end(Node& node, std::string why);
  void gone(Node& node, double now, const std::string& how);
  void look(Node& node, const std::vector<QueueEntry>& entries, double now);

  std::vector<spec::Pool> pools_;
  std::vector<Node> nodes_;
  Demand demand_;
  std::vector<std::optional<Enough>> enough_;  // of each pool
  Asked asked_;
  std::string trouble_;  // why squeue does not answer
  std::optional<double> listed_at_;
};

}  // namespace ductile::cluster
