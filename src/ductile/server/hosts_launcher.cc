#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>

#include <fmt/ranges.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/server/agents.h"
#include "ductile/server/hosts.h"
#include "ductile/server/launcher_events_impl.h"

namespace ductile::server {
namespace {

using control::WorkerId;
using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kQuit{6000};  // for the workers to end at the end
constexpr milliseconds kFinishLook{100};

class HostsLauncher final : public Launcher, private Agents::Job {
 public:
  HostsLauncher(std::shared_ptr<Agents> agents, JobOnHosts options, const fs::path& run)
      : agents_(std::move(agents)),
        options_(std::move(options)),
        run_(run.string()),
        events_(agents_->loop()) {
    agents_->join(run_, *this);
    for (size_t h = 0; h < agents_->hosts(); ++h)
      if (agents_->ready(h)) open(h);
  }

  ~HostsLauncher() override {
    if (!finishing_) finish();
    while (!finished()) agents_->await(kFinishLook);
    agents_->leave(run_);
  }

  void finish() override {
    finishing_ = true;
    finish_by_ = agents_->loop().now() + kQuit;
    for (size_t h = 0; h < agents_->hosts(); ++h) {
      if (!agents_->ready(h)) continue;
      closing_.insert(h);
      agents_->say(h, {{"close", {{"run", run_}}}});
    }
    give_up_ = events_.loop().at(finish_by_, [this] { events_.ready(); });
  }

  bool finished() const override { return closing_.empty() || agents_->loop().now() >= finish_by_; }

  void start(const WorkerStart& start) override {
    settled_ = true;
    const size_t host = choose(start.workers, start.avoid);
    const Host& at = agents_->host(host);
    WorkerStart here = start;
    here.arguments.insert(here.arguments.end(), {"--host", at.name});
    if (!at.address.empty()) here.arguments.insert(here.arguments.end(), {"--address", at.address});
    here.workers = std::max(expected(host, start.workers), placed(host) + 1);
    workers_[start.worker] = {host, false};
    agents_->say(host, {{"start",
                         {{"run", run_},
                          {"worker", here.worker},
                          {"arguments", here.arguments},
                          {"environment", here.environment},
                          {"workers", here.workers},
                          {"devices", here.devices},
                          {"gpus", here.gpus}}}});
  }

  void kill(WorkerId id) override {
    const auto found = workers_.find(id);
    if (found == workers_.end()) {
      if (searched_.contains(id)) killed_unfound_.insert(id);
      if (!searched_.contains(id) && !elsewhere_.contains(id)) events_.gone(id);
      return;
    }
    found->second.kill = true;
    say_kill(found->second.host, id);
  }

  void ask_to_end(WorkerId id) override {
    if (const auto found = workers_.find(id); found != workers_.end())
      agents_->say(found->second.host, {{"ask", {{"run", run_}, {"worker", id}}}});
  }

  void adopt(std::span<const EarlierWorker> earlier) override {
    settled_ = true;
    for (const EarlierWorker& sought : earlier) {
      const WorkerId id = sought.worker;
      // A keeper is where it was placed or nowhere.
      for (size_t h = 0; h < agents_->hosts(); ++h)
        if (!options_.keepers || !shares_ || shares_->contains(h)) searched_[id].insert(h);
      if (!searched_.contains(id)) events_.gone(id);
    }
    for (size_t h = 0; h < agents_->hosts(); ++h) look(h);
  }

  void call_when_ready(std::function<void()> on_ready) override {
    events_.call_when_ready(std::move(on_ready));
  }

  size_t running() const override {
    return static_cast<size_t>(std::ranges::count_if(
        workers_, [&](const auto& worker) { return agents_->ready(worker.second.host); }));
  }

  WorkerPlace place_of(WorkerId id) const override {
    const auto found = workers_.find(id);
    return {found == workers_.end() ? "" : agents_->host(found->second.host).name};
  }

  // The youngest of a host are too many: they have done least.
  std::vector<WorkerId> place(std::span<const HostShare> shares) override {
    shares_.emplace();
    order_.clear();
    for (const HostShare& share : shares)
      for (size_t h = 0; h < agents_->hosts(); ++h)
        if (agents_->host(h).name == share.host && share.workers > 0) {
          (*shares_)[h] += share.workers;
          order_.push_back(h);
        }
    std::map<size_t, int64_t> seen;
    std::vector<WorkerId> surplus;
    for (const auto& [id, worker] : workers_) {
      if (worker.kill) continue;
      const auto share = shares_->find(worker.host);
      if (++seen[worker.host] > (share == shares_->end() ? 0 : share->second))
        surplus.push_back(id);
    }
    return surplus;
  }

  std::map<std::string, int64_t> by_host() const override {
    std::map<std::string, int64_t> out;
    for (const auto& [id, worker] : workers_) ++out[agents_->host(worker.host).name];
    return out;
  }

  std::vector<LauncherEvent> take() override { return events_.take(); }

 private:
  struct Worker {
    size_t host = 0;
    bool kill = false;
  };

  // ---- What the agents say.

  void ready(size_t host) override {
    open(host);
    look(host);
  }

  void changed(size_t host) override {
    if (!agents_->ready(host)) closing_.erase(host);
    events_.ready();
  }

  Knows knows(WorkerId id) const override {
    if (workers_.contains(id) || searched_.contains(id) || elsewhere_.contains(id))
      return Knows::yes;
    return settled_ ? Knows::no : Knows::not_yet;
  }

  void open(size_t host) {
    agents_->say(host, {{"open",
                         {{"run", run_},
                          {"log", options_.log.string()},
                          {"threads", options_.threads},
                          {"keepers", options_.keepers},
                          {"python", options_.python}}}});
  }

  void say_kill(size_t host, WorkerId id) {
    agents_->say(host, {{"kill", {{"run", run_}, {"worker", id}}}});
  }

  int64_t placed(size_t host) const {
    return std::ranges::count_if(workers_, [&](const auto& w) { return w.second.host == host; });
  }

  // Where hosts do not say how many they take they share what is wanted evenly.
  int64_t capacity(size_t host, int64_t wanted) const {
    if (shares_) {
      const auto share = shares_->find(host);
      return share == shares_->end() ? 0 : share->second;
    }
    const int64_t places = agents_->host(host).places;
    if (places > 0) return places;
    const auto hosts = static_cast<int64_t>(agents_->hosts());
    return (wanted + hosts - 1) / hosts;
  }

  // How many of `wanted` workers this host has when all is well.
  int64_t expected(size_t host, int64_t wanted) const {
    int64_t left = wanted;
    for (size_t h = 0; h < host; ++h) left -= capacity(h, wanted);
    return std::clamp<int64_t>(left, 1, std::max<int64_t>(capacity(host, wanted), 1));
  }

  size_t choose(int64_t wanted, const std::vector<std::string>& avoid) const {
    const auto shunned = [&](size_t h) {
      return std::ranges::find(avoid, agents_->host(h).name) != avoid.end();
    };
    for (const bool any : {false, true})
      if (const auto found = find_room(wanted, [&](size_t h) { return any || !shunned(h); }))
        return *found;
    std::vector<std::string> full;
    bool held = !in_order().empty();
    for (const size_t h : in_order()) {
      const std::string& name = agents_->host(h).name;
      held = held && agents_->ready(h);
      full.push_back(agents_->ready(h)
                         ? fmt::format("{} has {}", name, placed(h))
                         : fmt::format("{} cannot be reached ({})", name, agents_->error(h)));
    }
    throw NoPlace(fmt::format("no host has room for a worker: {}", fmt::join(full, ", ")), held);
  }

  std::vector<size_t> in_order() const {
    if (shares_) return order_;
    std::vector<size_t> all(agents_->hosts());
    for (size_t h = 0; h < all.size(); ++h) all[h] = h;
    return all;
  }

  // The first host that will do and has room. A host that is gone, or will not do, leaves its share
  // to the others, where nobody said what they can take.
  template <class Will>
  std::optional<size_t> find_room(int64_t wanted, const Will& will_do) const {
    const auto ready = [&](size_t h) { return agents_->ready(h) && will_do(h); };
    for (const size_t h : in_order())
      if (ready(h) && placed(h) < capacity(h, wanted)) return h;
    if (shares_) return std::nullopt;
    for (const size_t h : in_order())
      if (ready(h) && agents_->host(h).places == 0) return h;
    return std::nullopt;
  }

  // Asks a host that has come (again) for the workers that are, or may be, there.
  void look(size_t host) {
    if (!agents_->ready(host)) return;
    json ids = json::array();
    for (const auto& [id, worker] : workers_)
      if (worker.host == host) ids.push_back(id);
    for (const auto& [id, hosts] : searched_)
      if (hosts.contains(host)) ids.push_back(id);
    if (!ids.empty()) agents_->say(host, {{"adopt", {{"run", run_}, {"workers", ids}}}});
  }

  void heard(size_t host, const json& said) override {
    if (said.contains("line")) {
      const json& line = said["line"];
      events_.add(WorkerLine{line.at("worker"), line.at("text"), agents_->host(host).name});
    } else if (said.contains("failed")) {
      const json& failed = said["failed"];
      workers_.erase(failed.at("worker").get<WorkerId>());
      events_.add(control::LaunchFailed{failed.at("worker"),
                                        fmt::format("host {}: {}", agents_->host(host).name,
                                                    failed.at("text").get<std::string>())});
    } else if (said.contains("exited")) {
      const json& exited = said["exited"];
      if (workers_.erase(exited.at("worker").get<WorkerId>()) > 0)
        events_.add(
            control::WorkerExited{exited.at("worker"), exited.at("code"), exited.at("signal")});
    } else if (said.contains("adopted")) {
      for (const json& id : said["adopted"].at("found")) found(host, id);
      for (const json& id : said["adopted"].at("gone")) missing(host, id);
    } else if (said.contains("closed")) {
      closing_.erase(host);
    }
    events_.ready();
  }

  void found(size_t host, WorkerId id) {
    searched_.erase(id);
    Worker& worker = workers_[id];
    worker.host = host;
    worker.kill = killed_unfound_.erase(id) > 0 || worker.kill;
    if (worker.kill) say_kill(host, id);
  }

  void missing(size_t host, WorkerId id) {
    if (const auto known = workers_.find(id); known != workers_.end()) {
      if (known->second.host != host) return;
      workers_.erase(known);
      return events_.gone(id);
    }
    const auto searched = searched_.find(id);
    if (searched == searched_.end()) return;
    searched->second.erase(host);
    if (!searched->second.empty()) return;
    searched_.erase(searched);
    killed_unfound_.erase(id);
    if (options_.elsewhere) {
      elsewhere_.insert(id);
    } else {
      events_.gone(id);
    }
  }

  const std::shared_ptr<Agents> agents_;
  const JobOnHosts options_;
  const std::string run_;
  LauncherEvents events_;
  bool settled_ = false;  // it is known which workers there may be
  bool finishing_ = false;
  net::Deadline finish_by_{};
  net::Loop::Timer give_up_;
  std::set<size_t> closing_;  // hosts that have not said that nothing runs any more
  std::optional<std::map<size_t, int64_t>> shares_;
  std::vector<size_t> order_;  // of the shares
  std::map<WorkerId, Worker> workers_;
  std::map<WorkerId, std::set<size_t>> searched_;  // hosts that have not said yet
  std::set<WorkerId> killed_unfound_;
  std::set<WorkerId> elsewhere_;  // on no host of ours
};

}  // namespace

std::unique_ptr<Launcher> make_hosts_launcher(std::shared_ptr<Agents> agents, JobOnHosts options,
                                              const fs::path& run) {
  return std::make_unique<HostsLauncher>(std::move(agents), std::move(options), run);
}

std::unique_ptr<Launcher> make_hosts_launcher(net::Loop& loop, HostsLauncherOptions options,
                                              const fs::path& run) {
  AgentsOptions hosts;
  hosts.setup = options.setup;
  hosts.folder = run;
  hosts.program = options.program;
  hosts.worker = options.worker;
  hosts.patience = options.patience;
  auto agents = std::make_shared<Agents>(loop, std::move(hosts));
  agents->meet(options.all);
  return make_hosts_launcher(std::move(agents),
                             {.log = options.log,
                              .threads = options.threads,
                              .elsewhere = options.elsewhere,
                              .python = options.python},
                             run);
}

}  // namespace ductile::server
