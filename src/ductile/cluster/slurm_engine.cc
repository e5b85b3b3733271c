#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/clock.h"
#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/log.h"
#include "ductile/cluster/engine_impl.h"
#include "ductile/cluster/lock_impl.h"
#include "ductile/cluster/slurm_pool_impl.h"
#include "ductile/net/secret.h"
#include "ductile/net/socket.h"
#include "ductile/page/terminal.h"
#include "ductile/server/agents.h"
#include "ductile/server/hosts.h"
#include "ductile/server/pilot.h"

namespace ductile::cluster {
namespace {

constexpr std::chrono::milliseconds kTurn{500};
constexpr uint64_t kKeptTickets = 10;  // with the output of their pilots, for each node

// Makes the same name in every service of this folder, and in no other one.
std::string pool_name_of(const fs::path& folder) {
  const fs::path file = folder / "pilots" / "name";
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  if (error) fail_errno(file.parent_path().string(), error.value());
  if (!fs::exists(file)) write_file_atomic(file, net::to_hex(net::random_nonce()).substr(0, 8));
  const std::string name = read_file(file);
  if (name.size() != 8 || name.find_first_not_of("0123456789abcdef") != std::string::npos)
    fail(ErrorCode::data_loss,
         "{} is damaged; cancel the jobs \"ductile-...\" of Slurm that are of this folder, and "
         "remove {}",
         file.string(), file.parent_path().string());
  return name;
}

// What takes time: files on a network, and Slurm's commands. Of a thread of its own.
class SlurmErrands {
 public:
  SlurmErrands(const SlurmPool& pool, SlurmEngineOptions options)
      : options_(std::move(options)), prefix_("ductile-" + pool_name_of(options_.folder)) {
    for (size_t n = 0; n < pool.nodes(); ++n) {
      names_.push_back(pool.name(n));
      pools_.push_back(pool.pool_of(n));
    }
  }

  uint64_t generation(size_t node) const {
    return server::current_generation(options_.folder, names_[node]);
  }

  SlurmNews carry_out(const SlurmErrand& errand) const {
    SlurmNews news;
    const auto noting = [&](const std::function<void()>& step) {
      try {
        step();
      } catch (const std::exception& e) {
        news.trouble = e.what();
      }
    };
    for (const PilotKey& key : errand.submit) {
      try {
        submit(key);
      } catch (const Error& e) {
        news.refused[key] = e.what();
      }
    }
    for (const PilotKey& key : errand.cancel) noting([&] { cancel(key); });
    for (const PilotKey& key : errand.write_down)
      noting([&] {
        slurm_.write_down(job_name(key));
        news.written_down.push_back(key);
      });
    noting([&] { list(errand.list, news); });
    for (const PilotKey& key : errand.list) {
      noting([&] {
        if (auto claim = server::claim_of(ticket(key))) news.claims[key] = *claim;
        if (server::has_notice(ticket(key))) news.noticed.push_back(key);
      });
    }
    return news;
  }

  void withdraw(const PilotKey& key) const { server::withdraw(ticket(key)); }
  void cancel(const PilotKey& key) const {
    withdraw(key);
    slurm_.cancel(job_name(key));
  }

 private:
  server::PilotTicket ticket(const PilotKey& key) const {
    return {options_.folder, names_[key.node], key.generation};
  }
  std::string job_name(const PilotKey& key) const {
    return fmt::format("{}-{}-{}", prefix_, names_[key.node], key.generation);
  }

  // The ticket is on the disk before Slurm hears of it, so that a service that is killed in between
  // knows the name under which to look for the job.
  void submit(const PilotKey& key) const {
    const server::PilotTicket ticket = this->ticket(key);
    server::issue(ticket);
    if (key.generation > kKeptTickets) {
      std::error_code ignored;
      fs::remove_all(
          server::PilotTicket{ticket.folder, ticket.node, key.generation - kKeptTickets}.path(),
          ignored);
    }
    const fs::path script = ticket.path() / "job.sh";
    // A step of srun gets the signal with which Slurm tells that it takes the node back; the
    // script itself does not.
    write_file_atomic(
        script,
        fmt::format("#!/bin/sh\nexec srun --nodes=1 --ntasks=1 --cpu-bind=none --mpi=none {} {} {} "
                    "{}\n",
                    page::shell_word(options_.program.string()), server::kPilot,
                    page::shell_word(ticket.path().string()), page::shell_word(options_.listen)));
    const spec::Pool& pool = pools_[key.node];
    std::string output = (ticket.path() / "output").string();
    for (size_t at = 0; (at = output.find('%', at)) != std::string::npos; at += 2)
      output.insert(at, 1, '%');
    std::vector<std::string> words = {"--job-name=" + job_name(key),
                                      "--no-requeue",
                                      "--nodes=1",
                                      "--ntasks=1",
                                      fmt::format("--cpus-per-task={}", pool.devices),
                                      fmt::format("--time={}", pool.time_limit),
                                      fmt::format("--signal=TERM@{}", pool.notice),
                                      "--output=" + output,
                                      "--chdir=" + ticket.path().string()};
    if (pool.gpus > 0) words.push_back(fmt::format("--gres=gpu:{}", pool.gpus));
    if (!pool.partition.empty()) words.push_back("--partition=" + pool.partition);
    if (!pool.account.empty()) words.push_back("--account=" + pool.account);
    words.insert(words.end(), pool.options.begin(), pool.options.end());
    const std::string job = slurm_.submit(words, script);
    log_line(fmt::format("node {}: pilot {} was submitted", names_[key.node], job));
  }

  void list(const std::vector<PilotKey>& keys, SlurmNews& news) const {
    if (keys.empty()) return;
    std::vector<std::string> names;
    for (const PilotKey& key : keys) names.push_back(job_name(key));
    const std::vector<QueueEntry> entries = slurm_.list(names);
    for (size_t k = 0; k < keys.size(); ++k) {
      std::vector<QueueEntry>& of_key = news.queue[keys[k]];
      for (const QueueEntry& entry : entries)
        if (entry.name == names[k]) of_key.push_back(entry);
    }
    news.listed = true;
  }

  const Slurm slurm_;
  const SlurmEngineOptions options_;
  const std::string prefix_;
  std::vector<std::string> names_;
  std::vector<spec::Pool> pools_;
};

// The devices of the nodes that are of no pool, which come first; 0 in another region than that of
// the pools, as a job may have to stay in theirs.
std::vector<int64_t> own_nodes_of(const spec::Cluster& cluster, size_t pools) {
  const std::string& region = cluster.groups.back().region;
  std::vector<int64_t> out;
  for (size_t g = 0; g + pools < cluster.groups.size(); ++g) {
    const spec::NodeGroup& group = cluster.groups[g];
    out.insert(out.end(), static_cast<size_t>(group.count),
               group.region == region ? group.devices : 0);
  }
  return out;
}

server::AgentsOptions slurm_agents_of(const spec::Cluster& cluster,
                                      const SlurmEngineOptions& options, size_t own) {
  server::AgentsOptions out =
      agents_of(cluster, {options.folder, options.program, options.worker, options.keeper,
                          options.launcher, options.listen});
  out.lent_from = own;
  out.lent_launcher = fmt::format("{} {} {} {{host}}", page::shell_word(options.program.string()),
                                  server::kCallPilot, page::shell_word(options.folder.string()));
  return out;
}

// Empty: a pilot that has come shows it. A job may begin on own nodes before one has, and goes on
// with pilots later, so its address has to be good for all of them.
std::string listen_of(const server::AgentsOptions& agents) {
  if (!agents.setup.listen.empty() || agents.lent_from == 0) return agents.setup.listen;
  server::HostSetup own = agents.setup;
  own.hosts.resize(agents.lent_from);
  std::string out = server::listen_address(own);
  if (out.starts_with("127.") || out == "::1")
    fail(ErrorCode::invalid_argument,
         "the [[nodes]] beside the [[pool]] are this machine: say with --listen under which "
         "address the pilots reach it");
  return out;
}

// A job may have nodes of any pool, so the shortest interval counts.
int64_t checkpoint_every_of(const std::vector<spec::Pool>& pools) {
  int64_t least = 0;
  for (const spec::Pool& pool : pools)
    if (pool.checkpoint > 0 && (least == 0 || pool.checkpoint < least)) least = pool.checkpoint;
  return least;
}

class SlurmEngine final : public Engine {
 public:
  // `own`: as beyond_own_nodes() has it.
  SlurmEngine(net::Loop& loop, std::vector<int64_t> own, server::AgentsOptions agents,
              const SlurmEngineOptions& options)
      : mailbox_(loop.mailbox()),
        lock_(lock_of(options.folder / "server")),
        listen_(listen_of(agents)),
        checkpoint_every_(checkpoint_every_of(options.pools)),
        own_(std::move(own)),
        pool_(options.pools),
        errands_(pool_, options),
        agents_(std::make_shared<server::Agents>(loop, std::move(agents))) {
    called_.resize(pool_.nodes());
    for (size_t n = 0; n < pool_.nodes(); ++n)
      pool_.take_over(n, errands_.generation(n), steady_seconds());
    agents_->call_on_change([this] { changed(); });
    turn_ = loop.every(kTurn, [this] { turn(); });
    thread_ = std::thread([this] { work(); });
  }

  // The jobs were stopped, so nobody needs the pilots.
  ~SlurmEngine() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    wake_.notify_one();
    thread_.join();
    try {
      for (const PilotKey& key : pool_.all()) errands_.withdraw(key);
      for (const PilotKey& key : pool_.all()) errands_.cancel(key);
    } catch (const std::exception& e) {
      log_line(
          fmt::format("{}; pilots that are left end when they look at their tickets", e.what()));
    }
  }

  std::unique_ptr<server::Launcher> launcher(const run::RunFolder& run, bool python) override {
    return server::make_hosts_launcher(agents_, workers_of(run, python), run.path());
  }
  std::unique_ptr<server::Launcher> keepers(const fs::path& run) override {
    return server::make_hosts_launcher(agents_, {.log = run / "worker.log", .keepers = true}, run);
  }
  std::string trouble(int32_t node) const override {
    const auto n = lent(node);
    return !n || pool_.claim(*n) ? agents_->error(static_cast<size_t>(node)) : pool_.trouble(*n);
  }
  bool absent(int32_t node) const override {
    const auto n = lent(node);
    return n && pool_.absent(*n);
  }
  bool coming(int32_t node) const override {
    return !lent(node) && agents_->coming(static_cast<size_t>(node));
  }
  const std::optional<server::NodeHardware>& hardware(int32_t node) const override {
    return agents_->hardware(static_cast<size_t>(node));
  }
  std::string leaving(int32_t node) const override {
    const auto n = lent(node);
    return n ? pool_.leaving(*n) : leaving_by_notice(*agents_, node);
  }
  bool borrows_nodes() const override { return true; }
  int64_t checkpoint_every() const override { return checkpoint_every_; }
  void follow(const Demand& demand) override { pool_.follow(beyond_own_nodes(demand, own_)); }
  // What an own node has it says when it is there.
  bool may_have(const Demand::Whole& job) const override {
    return !own_.empty() || pool_.may_have(job);
  }
  void call_on_change(std::function<void()> on_change) override {
    on_change_ = std::move(on_change);
  }
  void stop() override { agents_->stop(); }
  int64_t nodes() const override { return static_cast<int64_t>(own_.size() + pool_.nodes()); }
  std::string listen() const override {
    if (!listen_.empty()) return listen_;
    for (size_t n = 0; n < pool_.nodes(); ++n)
      if (const auto& claim = pool_.claim(n))
        return net::local_address_towards({claim->address, claim->port});
    return "127.0.0.1";
  }

 private:
  // Its number among the nodes of the pools.
  std::optional<size_t> lent(int32_t node) const {
    const auto n = static_cast<size_t>(node);
    return n < own_.size() ? std::nullopt : std::optional(n - own_.size());
  }

  void changed() {
    if (on_change_) on_change_();
  }

  // One errand at a time; the thread tells the loop what came of it.
  void turn() {
    if (busy_) return;
    busy_ = true;
    {
      const std::lock_guard lock(mutex_);
      errand_ = pool_.plan(steady_seconds(), wall_seconds());
    }
    wake_.notify_one();
    follow_pilots();
  }

  void learn(const SlurmNews& news) {
    busy_ = false;
    pool_.learn(news, steady_seconds());
    follow_pilots();
    changed();
  }

  void follow_pilots() {
    for (size_t n = 0; n < pool_.nodes(); ++n) {
      const uint64_t generation = pool_.claim(n) ? pool_.generation(n) : 0;
      if (generation == called_[n]) continue;
      agents_->hold(own_.size() + n, pool_.trouble(n));
      if (generation != 0) agents_->call(own_.size() + n);
      called_[n] = generation;
    }
  }

  void work() {
    while (true) {
      SlurmErrand errand;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return ends_ || errand_.has_value(); });
        if (ends_) return;
        errand = std::move(*errand_);
        errand_.reset();
      }
      mailbox_.post([this, alive = std::weak_ptr<bool>(alive_), news = errands_.carry_out(errand)] {
        if (!alive.expired()) learn(news);
      });
    }
  }

  const net::Loop::Mailbox mailbox_;
  const Descriptor lock_;
  const std::string listen_;
  const int64_t checkpoint_every_;
  const std::vector<int64_t> own_;  // devices with which the first nodes serve what pools do
  SlurmPool pool_;
  const SlurmErrands errands_;
  const std::shared_ptr<server::Agents> agents_;
  std::vector<uint64_t> called_;  // of each node of a pool: the generation of the called pilot
  std::function<void()> on_change_;
  bool busy_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::optional<SlurmErrand> errand_;
  bool ends_ = false;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  net::Loop::Timer turn_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Engine> make_slurm_engine(net::Loop& loop, const spec::Cluster& cluster,
                                          SlurmEngineOptions options) {
  for (const spec::Pool& pool : options.pools)
    if (pool.devices > server::kMostOnOneHost)
      fail(ErrorCode::invalid_argument,
           "pilots of pool {} have {} devices each, and a node takes {} workers at most; write a "
           "smaller number of devices, each of which is then a larger share of the cores",
           pool.name, pool.devices, server::kMostOnOneHost);
  std::vector<int64_t> own = own_nodes_of(cluster, options.pools.size());
  server::AgentsOptions agents = slurm_agents_of(cluster, options, own.size());
  return std::make_unique<SlurmEngine>(loop, std::move(own), std::move(agents), options);
}

}  // namespace ductile::cluster
