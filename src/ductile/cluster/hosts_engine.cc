#include <utility>

#include "ductile/base/error.h"
#include "ductile/cluster/engine_impl.h"
#include "ductile/cluster/lock_impl.h"
#include "ductile/server/agents.h"
#include "ductile/server/hosts.h"

namespace ductile::cluster {

server::AgentsOptions agents_of(const spec::Cluster& cluster, HostsEngineOptions options) {
  for (const spec::NodeGroup& group : cluster.groups)
    if (group.devices > server::kMostOnOneHost)
      fail(ErrorCode::invalid_argument,
           "nodes of type {} have {} devices each, and a node takes {} workers at most; write a "
           "smaller number of devices, each of which is then a larger share of the cores",
           group.type, group.devices, server::kMostOnOneHost);
  server::AgentsOptions out;
  out.setup.hosts = server::hosts_of(cluster, spec::whole(cluster));
  for (size_t h = 0; h < out.setup.hosts.size(); ++h)
    for (size_t k = 0; k < h; ++k)
      if (out.setup.hosts[h].name == out.setup.hosts[k].name)
        fail(ErrorCode::invalid_argument,
             "two nodes of the cluster are called \"{}\"; jobs and agents tell nodes apart by name",
             out.setup.hosts[h].name);
  out.setup.launcher = std::move(options.launcher);
  out.setup.listen = std::move(options.listen);
  out.folder = std::move(options.folder);
  out.program = std::move(options.program);
  out.worker = std::move(options.worker);
  out.keeper = std::move(options.keeper);
  out.devices = true;
  return out;
}

std::string leaving_by_notice(const server::Agents& agents, int32_t node) {
  const double seconds = agents.leaving(static_cast<size_t>(node));
  if (seconds <= 0) return "";
  return fmt::format("its machine is taken back, within {} s of the notice", seconds);
}

namespace {

class HostsEngine final : public Engine {
 public:
  HostsEngine(net::Loop& loop, server::AgentsOptions options)
      : lock_(lock_of(options.folder / "server")),
        listen_(server::listen_address(options.setup)),
        agents_(std::make_shared<server::Agents>(loop, std::move(options))) {}

  std::unique_ptr<server::Launcher> launcher(const run::RunFolder& run, bool python) override {
    return server::make_hosts_launcher(agents_, workers_of(run, python), run.path());
  }
  std::unique_ptr<server::Launcher> keepers(const fs::path& run) override {
    return server::make_hosts_launcher(agents_, {.log = run / "worker.log", .keepers = true}, run);
  }
  std::string trouble(int32_t node) const override {
    return agents_->error(static_cast<size_t>(node));
  }
  const std::optional<server::NodeHardware>& hardware(int32_t node) const override {
    return agents_->hardware(static_cast<size_t>(node));
  }
  bool coming(int32_t node) const override { return agents_->coming(static_cast<size_t>(node)); }
  std::string leaving(int32_t node) const override { return leaving_by_notice(*agents_, node); }
  void call_on_change(std::function<void()> on_change) override {
    agents_->call_on_change(std::move(on_change));
  }
  void stop() override { agents_->stop(); }
  int64_t nodes() const override { return static_cast<int64_t>(agents_->hosts()); }
  std::string listen() const override { return listen_; }

 private:
  // Two servers of one folder would end each other's agents and workers.
  const Descriptor lock_;
  const std::string listen_;
  const std::shared_ptr<server::Agents> agents_;
};

}  // namespace

std::unique_ptr<Engine> make_hosts_engine(net::Loop& loop, const spec::Cluster& cluster,
                                          HostsEngineOptions options) {
  return std::make_unique<HostsEngine>(loop, agents_of(cluster, std::move(options)));
}

}  // namespace ductile::cluster
