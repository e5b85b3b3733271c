#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/cluster/http_server.h"
#include "ductile/cluster/records.h"
#include "ductile/net/loop.h"
#include "ductile/spec/cluster.h"
#include "ductile/spec/pool.h"

namespace ductile::cluster {

struct ServiceOptions {
  fs::path folder;  // store.db, api.sock: on a local disk
  fs::path shared;  // runs/, secret: where all nodes see them; empty: in `folder`
  fs::path worker;  // the program ductile-worker
  fs::path keeper;  // the program ductile-keeper, which starts commands
  // Seconds after which a command on a node that sees its folder no more is ended there, so that it
  // can begin elsewhere.
  double command_lease = 30;
  int64_t devices = 1;  // of this machine: as many workers run at once
  std::string node;     // this machine's name
  std::string device_type = "cpu";
  std::string policy = "ductile";
  std::map<std::string, int64_t> quotas;      // devices that a team's jobs hold at most
  std::map<std::string, int64_t> gpu_quotas;  // GPUs, likewise; of some of these teams
  // The part of all devices above which a team's jobs count for less while others wait, under
  // policies that know shares (PolicyTraits::sees_shares).
  std::map<std::string, double> shares;
  // The store cannot be written any more, for a reason that does not pass: all jobs were saved and
  // stopped, and the store still has them as they were. May destroy the service.
  std::function<void(const Error&)> on_failure;
  // Folders whose files jobs of those who are no admins may name; the service's user reads them.
  std::vector<fs::path> data;
  double interval = 10;  // seconds between two decisions, if nothing happens
  // Seconds that stop() waits for jobs, beside the longest grace of a command that runs.
  double stop_patience = 600;
  // Several nodes instead of this machine, which then needs no device of its own.
  std::optional<spec::Cluster> cluster;
  std::vector<spec::Pool> pools;        // of the cluster file, whose last nodes are theirs; or none
  std::string launcher = "ssh {host}";  // starts a program on a node
  std::string listen;                   // where the nodes reach this machine; empty: detected
  fs::path program;                     // ductile, for the agents of the nodes
  std::chrono::hours alone{1};          // workers go on without a service for so long
  Retention retention;
  double grace = 30;  // seconds that jobs keep their places on a node that does not answer
  std::optional<uint16_t> port;  // of the loopback interface, for the page; none: no page
  bool or_any_port = false;      // where that one is taken
  // The interface beyond this machine, by TLS for those with a token. A service that nobody has a
  // token for makes one for its own user, and writes it to access.json in `folder`.
  std::optional<HttpTls> tls;  // without files: certificate.pem and certificate.key in `folder`
};

// The service of one machine or of a cluster: takes jobs over its Api, asks a policy which of them
// run on which devices, runs each as a server::JobHost in this loop, and keeps all of it in a
// store. A service that is killed at any instant and started again goes on where it was: workers
// that outlived it are found, and no job is lost or run twice.
//
// A job's run directory is runs/NUMBER-NAME. The spec of kind "train" is {"job": the text of a job
// file with absolute paths}, and its run directory is like any other; that of kind "command" is
// {"command": [program, arguments ...], "directory": where it starts, "environment": {name: text},
// "retries", "time_limit", "grace", "gpus"}. All methods belong to the loop's thread.
class Service {
 public:
  // Throws conflict if another service uses the folder, or if a job runs on a node that the cluster
  // does not have any more, unavailable if its jobs' runs/ is not there, and as Store and
  // HttpServer do.
  Service(net::Loop& loop, ServiceOptions options);
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  ~Service();  // before stop() has ended: kills the workers, and the next service goes on

  // Saves and stops all jobs, which are queued again for the next service; then calls `on_stopped`,
  // which may destroy this object. Those that have not ended after `stop_patience` are left to the
  // next service as they are.
  void stop(std::function<void()> on_stopped);

  uint16_t port() const;
  // Where programs on other machines reach it; empty: nowhere.
  const std::string& address() const;
  // A link that lets one browser in as the service's own user.
  std::string page_link();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::cluster
