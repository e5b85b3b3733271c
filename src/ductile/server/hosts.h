#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/server/launcher.h"
#include "ductile/spec/cluster.h"

// The hosts of a job: how a user writes them, and how workers are started there.
namespace ductile::server {

// The most workers on one host: they share an arena (comm/arena.h), which has room for this many.
inline constexpr int64_t kMostOnOneHost = 128;

struct Host {
  std::string name;     // what the launcher command calls it
  std::string address;  // where workers of other hosts reach its workers; empty: they find out
  int64_t places = 0;   // workers it takes at most; 0: nobody said
  double notice = 0;    // seconds that its agent's SIGTERM says it will still be there; 0: none
  bool operator==(const Host&) const = default;
};

// What a run remembers of its hosts, so that it can be resumed without saying them again.
struct HostSetup {
  std::vector<Host> hosts;  // empty: this machine alone
  // Starts a program on a host: "ssh {host}", "srun --overlap -N1 -n1 -w {host}",
  // "ip netns exec {host}". The program and its one argument are added to it. Hosts that are this
  // machine ("localhost", its own name) need none.
  std::string launcher = "ssh {host}";
  std::string listen;  // the address under which the hosts reach this one; empty: detected
  bool operator==(const HostSetup&) const = default;

  // 0 if not every host says how many workers it takes.
  int64_t places() const;
  // The largest number of workers that a job can have.
  int64_t most() const;
};

// "a,b:2,c=10.0.0.3:4": a name, perhaps "=address", perhaps ":workers". Throws invalid_argument,
// which shows the right form; also if a name is there twice.
std::vector<Host> parse_hosts(std::string_view list);
// The same in a file, with one host per line, or "name slots=4" as in host files of MPI; '#' begins
// a comment. A cluster file (.toml, .json) gives all of its hosts.
std::vector<Host> read_hosts(const fs::path& file);
// The hosts of an allocation, in its order, with a worker for each device that it holds. Throws
// invalid_argument as spec::place() does, and if the cluster names no hosts there.
std::vector<Host> hosts_of(const spec::Cluster& cluster,
                           std::span<const spec::NodeShare> allocation);

// The file `hosts.json` in the run directory. If there is none, load() gives no hosts.
void save_host_setup(const fs::path& run, const HostSetup& setup);
HostSetup load_host_setup(const fs::path& run);

bool is_this_machine(const Host& host);
// setup.listen, or the address of this machine that faces the setup's hosts. Throws
// invalid_argument if a host's address cannot be found.
std::string listen_address(const HostSetup& setup);

// Words of a command, as a shell would cut them: blanks, '...' and "..."; {host} stands for `host`.
std::vector<std::string> launch_words(std::string_view command, const std::string& host);

struct HostsLauncherOptions {
  HostSetup setup;
  fs::path program;     // ductile: the same path on every host
  fs::path worker;      // ductile-worker: the same path on every host, or beside `program` there
  bool python = false;  // of a Python job: its worker's program lies beside ductile-worker
  fs::path log;         // in the run directory: takes what all workers print
  int64_t threads = 0;  // a worker; 0: its share of its host's cores
  bool all = true;      // at the start every host must answer; else one is enough
  // Workers of an earlier controller may run on hosts that are not in the setup, so workers that
  // are not found are not reported as gone.
  bool elsewhere = false;
  std::chrono::milliseconds patience = std::chrono::seconds(30);  // for a host to answer
};

// Workers as processes of several hosts, all of this one job. On each runs one `ductile host-agent`
// (host_agent.h) at the other end of the launcher command's stdin and stdout; it starts, watches
// and kills the workers of its host. An agent whose connection breaks leaves them at work, and the
// next one finds them, so neither a controller that is killed nor a broken ssh connection costs a
// worker.
//
// Workers fill the hosts in order; hosts without a number of places share them evenly. Throws if
// hosts do not answer, or do not see the run directory, with their names and what they said.
//
// This call waits for the hosts, up to `patience`; only after it the launcher needs the loop.
std::unique_ptr<Launcher> make_hosts_launcher(net::Loop& loop, HostsLauncherOptions options,
                                              const fs::path& run);

class Agents;
struct JobOnHosts {
  fs::path log;
  int64_t threads = 0;
  bool elsewhere = false;  // as above
  // It starts keepers of commands in place of workers (launcher.h). adopt() seeks them on the hosts
  // of place() alone.
  bool keepers = false;
  // Its workers are those of a Python job, whose program lies beside the hosts' ductile-worker. A
  // host without it, or with an agent of another user than the folder's, starts none
  // (LaunchFailed).
  bool python = false;
};
// The same with agents that other jobs use, too. It waits for nobody.
std::unique_ptr<Launcher> make_hosts_launcher(std::shared_ptr<Agents> agents, JobOnHosts options,
                                              const fs::path& run);

}  // namespace ductile::server
