#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/net/loop.h"
#include "ductile/run/folder.h"
#include "ductile/server/agents.h"
#include "ductile/server/hosts.h"
#include "ductile/server/launcher.h"
#include "ductile/server/node_devices.h"
#include "ductile/spec/cluster.h"
#include "ductile/spec/pool.h"

namespace ductile::cluster {

// What jobs could use together, and what they hold.
struct Demand {
  // Of one job, on one node.
  struct Whole {
    int64_t devices = 0, gpus = 0;
  };
  struct Node {
    int64_t devices = 0;          // that jobs hold
    Whole of_gpu_jobs;            // of these, what jobs with GPUs hold
    std::optional<int64_t> gpus;  // that it has, where it has said so; also before it went
    bool usable = true;           // jobs may be there
  };
  // Of jobs that ask for no GPUs, on whichever nodes: what they can use, services with their load.
  int64_t devices = 0;
  std::vector<Whole> on_gpus;  // of the others, those that hold nothing
  std::vector<Node> nodes;
  // Of jobs in `devices` that hold nothing and need one node for all that they ask for.
  std::vector<int64_t> on_one_node{};
  bool waits = false;  // whether a job that needs devices holds none
  int64_t jobs = 0;    // another number where other jobs need devices
};

// Where the workers of a service's jobs run. This interface is the seam between the service and its
// machines; each implementation is a file of its own. It belongs to the loop's thread, and none of
// its methods waits for anybody.
class Engine {
 public:
  virtual ~Engine() = default;

  // For the workers of one job, on all nodes; Launcher::place() says on which it may start them.
  // The engine must outlive it. `python`: of a Python job; throws not_found where the worker's
  // program for these is missing on this machine, if they run here; a node that lacks it starts
  // none.
  virtual std::unique_ptr<server::Launcher> launcher(const run::RunFolder& run, bool python) = 0;

  // The same for the keepers of one command (server::LocalLauncherOptions::keepers).
  virtual std::unique_ptr<server::Launcher> keepers(const fs::path& run) = 0;

  // Why no process can be started on the node now; empty: it can. A node counts as usable only
  // when all that was started there before, and that no job knows any more, is gone.
  virtual std::string trouble(int32_t node) const = 0;
  // What there is on the node, as far as it has said so; also of one that has gone since.
  virtual const std::optional<server::NodeHardware>& hardware(int32_t node) const = 0;
  // `on_change` is called when trouble() or hardware() may say something else; it must only note
  // this.
  virtual void call_on_change(std::function<void()> on_change) = 0;

  // Why what runs on the node is to move away, although it could go on there for a while; empty: it
  // may stay. Such a node takes nothing new.
  virtual std::string leaving(int32_t) const { return ""; }
  // Nothing of ours can be on the node, which is not there: it counts as lost without a grace.
  virtual bool absent(int32_t) const { return false; }
  // It was called for the first time, and has neither answered nor failed yet.
  virtual bool coming(int32_t /*node*/) const { return false; }
  // Now and from now on. An engine that borrows its nodes borrows as many as that takes.
  virtual void follow(const Demand& /*demand*/) {}
  virtual bool borrows_nodes() const { return false; }  // else nobody needs to call follow()
  // Whether any node will ever have both together, so many GPUs and devices, as far as that is
  // known before it is there. Of any thread.
  virtual bool may_have(const Demand::Whole& /*job*/) const { return true; }

  // Nodes may go at any time: the most seconds between checkpoints of a job; 0: as the job says.
  virtual int64_t checkpoint_every() const { return 0; }

  // The service has begun to stop in good order.
  virtual void stop() {}

  virtual int64_t nodes() const = 0;
  virtual bool only_here() const { return false; }  // all workers run on this machine
  virtual std::string listen() const = 0;  // the address under which workers reach this machine
};

// This machine, whose cores are shared out as so many devices.
std::unique_ptr<Engine> make_local_engine(net::Loop& loop, const fs::path& worker,
                                          const fs::path& keeper, int64_t devices);

struct HostsEngineOptions {
  fs::path folder;                   // that all nodes share
  fs::path program, worker, keeper;  // under the same paths on all nodes
  std::string launcher;              // as server::HostSetup has it
  std::string listen;                // empty: detected
};
// What an engine with agents says of a job's workers. Their threads are those of their shares of
// the cores; Python's have one, as everywhere.
inline server::JobOnHosts workers_of(const run::RunFolder& run, bool python) {
  return {.log = run.log_file(), .threads = python ? 1 : 0, .python = python};
}

// The nodes of a cluster, with an agent on each. Throws invalid_argument where the cluster names no
// hosts, or a node has more devices than one host takes workers.
std::unique_ptr<Engine> make_hosts_engine(net::Loop& loop, const spec::Cluster& cluster,
                                          HostsEngineOptions options);

// The agents of all nodes of a cluster, with the errors of make_hosts_engine().
server::AgentsOptions agents_of(const spec::Cluster& cluster, HostsEngineOptions options);
// Engine::leaving() of a node whose agent was told that it is taken back.
std::string leaving_by_notice(const server::Agents& agents, int32_t node);

struct SlurmEngineOptions {
  fs::path folder;                   // that all nodes share
  fs::path program, worker, keeper;  // under the same paths on all nodes
  std::vector<spec::Pool> pools;
  std::string launcher;  // of the nodes that are of no pool
  std::string listen;    // the address under which nodes reach this machine; empty: detected
};
// The nodes of a cluster whose last groups are pools: pilots, batch jobs of Slurm of the service's
// own (slurm_pool_impl.h); those of the groups before are as in make_hosts_engine(), and the pools
// have what they have no room for. Throws as that one does, invalid_argument also where the nodes
// of the first groups are this machine, and nobody says how pilots reach it; not_found where
// sbatch, squeue or scancel is not there. Its end gives all pilots back; one that is killed leaves
// them, and the next takes them over.
std::unique_ptr<Engine> make_slurm_engine(net::Loop& loop, const spec::Cluster& cluster,
                                          SlurmEngineOptions options);

}  // namespace ductile::cluster
