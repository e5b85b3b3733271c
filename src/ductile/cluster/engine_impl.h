#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ductile/base/files.h"
#include "ductile/net/loop.h"
#include "ductile/run/folder.h"
#include "ductile/server/launcher.h"
#include "ductile/spec/cluster.h"

namespace ductile::cluster {

// Where the workers of a service's jobs run. This interface is the seam between the service and its
// machines; each implementation is a file of its own. It belongs to the loop's thread, and none of
// its methods waits for anybody.
class Engine {
 public:
  virtual ~Engine() = default;

  // For the workers of one job, on all nodes; Launcher::place() says on which it may start them.
  // The engine must outlive it. Throws not_found or invalid_argument where it runs no Python jobs,
  // and this is one.
  virtual std::unique_ptr<server::Launcher> launcher(const run::RunFolder& run, bool python) = 0;

  // Why no process can be started on the node now; empty: it can. A node counts as usable only
  // when all that was started there before, and that no job knows any more, is gone.
  virtual std::string trouble(int32_t node) const = 0;
  // `on_change` is called when trouble() may say something else; it must only note this.
  virtual void call_on_change(std::function<void()> on_change) = 0;

  virtual int64_t nodes() const = 0;
  virtual std::string listen() const = 0;  // the address under which workers reach this machine
};

// This machine, whose cores are shared out as so many devices.
std::unique_ptr<Engine> make_local_engine(net::Loop& loop, const fs::path& worker, int64_t devices);

struct HostsEngineOptions {
  fs::path folder;           // that all nodes share
  fs::path program, worker;  // ductile and ductile-worker, under the same paths on all nodes
  std::string launcher;      // as server::HostSetup has it
  std::string listen;        // empty: detected
};
// The nodes of a cluster, with an agent on each. Throws invalid_argument where the cluster names no
// hosts, or a node has more devices than one host takes workers.
std::unique_ptr<Engine> make_hosts_engine(net::Loop& loop, const spec::Cluster& cluster,
                                          HostsEngineOptions options);

}  // namespace ductile::cluster
