// A service of several nodes with several jobs, to which everything happens that may: at random, by
// a seed. All jobs end with the results of undisturbed runs, of a command there are never two at a
// time, and nothing is left. The nodes have networks of their own where this machine allows it;
// else they are this machine under other names. The store and the folder that the nodes share have
// small disks of their own, which become full.
//
//   DUCTILE_CHAOS_SEED=n    another course of events (1)
//   DUCTILE_CHAOS_FAULTS=n  so many of them (25)
//   DUCTILE_CHAOS_JOBS=n    for so many jobs, and more where these end before (6)
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/cluster/store.h"
#include "ductile/cluster/testing/commands.h"
#include "ductile/server/testing/emulated_hosts.h"
#include "ductile/server/testing/shared_files.h"
#include "ductile/server/testing/small_disk.h"
#include "ductile/spec/cluster.h"

namespace ductile::cluster {
namespace {

using namespace testing;
using server::testing::EmulatedHosts;
using server::testing::SmallDisk;
using std::chrono::milliseconds;

constexpr int kNodes = 4;
constexpr int64_t kCounts = 20;

// A command that goes on from where it was saved, whatever of it is killed.
std::string counting() {
  return fmt::format(
      "exec 9>only$DUCTILE_JOB; flock -n 9; got=$?\n"
      "[ $got = 1 ] && echo $DUCTILE_JOB >> twice\n"
      "[ $got = 0 ] || exit 1\n"
      "n=0; [ -e at$DUCTILE_JOB ] && read n < at$DUCTILE_JOB\n"
      "while [ $n -lt {} ]; do\n"
      "  sleep 0.1; n=$((n + 1))\n"
      "  echo $n > new$DUCTILE_JOB && mv new$DUCTILE_JOB at$DUCTILE_JOB || exit 1\n"
      "done",
      kCounts);
}

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

class Chaos {
 public:
  Chaos(uint64_t seed, std::shared_ptr<EmulatedHosts> hosts)
      : rng_(seed), hosts_(std::move(hosts)) {
    spec::NodeGroup group;
    group.type = "cpu";
    group.devices = 2;
    group.count = kNodes;
    for (int n = 1; n <= kNodes; ++n) {
      group.hosts.push_back(hosts_ ? hosts_->name(n) : "node" + std::to_string(n));
      if (hosts_) group.addresses.push_back(EmulatedHosts::address(n));
    }
    nodes_ = group.hosts;
    service_.emplace(
        [&](ServiceOptions& options) {
          options.cluster = spec::Cluster{{group}, {}};
          options.launcher =
              "env NODE={host}" + (hosts_ ? " " + EmulatedHosts::launcher() : std::string());
          options.listen = hosts_ ? EmulatedHosts::address(0) : "127.0.0.1";
          options.program = DUCTILE_TEST_WORKER;
          options.grace = 2;
          options.command_lease = 5;  // longer than anything is stopped
          options.shared = options.folder / "shared";
          store_disk_ = SmallDisk(options.folder, "24m");
          fs::create_directories(options.shared);
          shared_disk_ = SmallDisk(options.shared, "48m");
          if (!shared_disk_.made()) std::printf("no full disks: no file system can be made here\n");
        },
        [this] {
          if (hosts_) hosts_->enter(0);
        });
  }

  ~Chaos() {  // nothing writes any more when the disks go
    service_->kill_service();
    for (const pid_t pid : service_->workers()) ::kill(pid, SIGKILL);
    shared_disk_.give_back();
    store_disk_.give_back();
  }

  void run(int64_t faults, int64_t jobs) {
    for (int64_t j = 0; j < jobs; ++j) submit();
    while (faults_ < faults && !::testing::Test::HasFailure()) {
      disturb();
      std::this_thread::sleep_for(milliseconds(rng_.below(400)));
      const Json live = service_->get("/v1/jobs?live=1");
      if (live.is_null() || live.at("jobs").size() >= 2) continue;
      submit();  // there is always something to disturb
    }
    done_["jobs"] = static_cast<int>(ids_.size());
    for (const std::string& node : nodes_) service_->send("POST", "/v1/nodes/" + node + "/undrain");
    for (const JobId id : ids_) {
      service_->act(id, "resume");
      if (!commands_.contains(id)) {
        service_->expect_result(id);
        continue;
      }
      service_->wait_for(id, "finished");
      EXPECT_EQ(text_of(counts_.path() / ("at" + std::to_string(id))),
                std::to_string(kCounts) + "\n");
    }
    EXPECT_EQ(text_of(counts_.path() / "twice"), "");
    EXPECT_EQ(service_->stop(), 0);
    EXPECT_TRUE(service_->workers().empty());
    // An agent whose service was killed ends by itself once it sees that the connection is gone.
    for (const std::string& node : nodes_) {
      for (int look = 0; look < 200 && !agents_anywhere(node).empty(); ++look)
        std::this_thread::sleep_for(milliseconds(100));
      EXPECT_TRUE(agents_anywhere(node).empty()) << node;
    }
    Reader reader(service_->folder() / "store.db");
    EXPECT_TRUE(reader.check().empty()) << ::testing::PrintToString(reader.check());
    // Those that were acknowledged and no others, each to its end once.
    std::map<JobId, int> ends;
    for (const Event& event : reader.events(0, 1'000'000))
      if (event.kind == "finished") ++ends[event.job];
    EXPECT_EQ(reader.jobs({}, 0, 1'000'000).size(), ids_.size());
    EXPECT_EQ(ends.size(), ids_.size());
    for (const auto& [id, times] : ends) EXPECT_EQ(times, 1) << "job " << id;
    EXPECT_FALSE(fs::exists(service_->folder() / "api.sock"));
    for (const auto& [what, count] : done_) std::printf("%s: %d\n", what.c_str(), count);
  }

 private:
  // False: there was no room for it, so it does not count.
  bool submit() {
    const auto n = static_cast<int64_t>(++offered_);
    const std::string name = "job" + std::to_string(n);
    const bool command = n % 3 == 0;
    const Json answer =
        command ? offer_command(name) : service_->offer(name, 400 + 80 * (n % 5), 1 + n % 4);
    const int status = answer.is_null() ? 0 : answer.at("status").get<int>();
    if (status == 201) {
      ids_.push_back(answer.at("body").at("id"));
      if (command) commands_.insert(ids_.back());
    }
    EXPECT_TRUE(status == 201 || status == 503) << answer;
    return status == 201;
  }

  Json offer_command(const std::string& name) {
    const Json spec = {{"command", {"/bin/sh", "-c", counting()}},
                       {"directory", counts_.path().string()},
                       {"retries", 1000},
                       {"grace", 1}};
    const Json body = {{"name", name}, {"kind", "command"}, {"spec", spec}};
    return service_->send("POST", "/v1/jobs", dump_json(body));
  }

  void disturb() {
    const uint32_t dice = rng_.below(124);
    if (dice >= 116) return pause_job();
    if (dice >= 100) return fill_disk();
    if (dice < 40) return hit("worker killed", service_->workers(), SIGKILL);
    if (dice < 52) return pause("worker stopped", service_->workers());
    if (dice < 64) return hit("agent killed", service_->agents(some_node()), SIGKILL);
    if (dice < 72) return pause("agent stopped", service_->agents(some_node()));
    if (dice < 82) {
      ++done_["service killed"];
      ++faults_;
      service_->kill_service();
      std::this_thread::sleep_for(milliseconds(rng_.below(500)));
      return service_->start();
    }
    if (dice < 87) return pause("service stopped", {service_->process()});
    if (dice < 94) return cut();
    const std::string node = some_node();
    const bool drains = rng_.below(2) == 0;
    ++done_[drains ? "drain" : "undrain"];
    ++faults_;
    service_->send("POST", "/v1/nodes/" + node + (drains ? "/drain" : "/undrain"), "{}");
  }

  std::string some_node() { return nodes_[rng_.below(kNodes)]; }

  pid_t one_of(const std::set<pid_t>& pids) {
    if (pids.empty()) return 0;
    return *std::next(pids.begin(), rng_.below(static_cast<uint32_t>(pids.size())));
  }
  void hit(const char* what, const std::set<pid_t>& pids, int signal) {
    const pid_t pid = one_of(pids);
    if (pid <= 0 || ::kill(pid, signal) != 0) return;
    ++done_[what];
    ++faults_;
  }
  void pause(const char* what, const std::set<pid_t>& pids) {
    const pid_t pid = one_of(pids);
    if (pid <= 0 || ::kill(pid, SIGSTOP) != 0) return;
    ++done_[what];
    ++faults_;
    std::this_thread::sleep_for(milliseconds(100 + rng_.below(2500)));
    ::kill(pid, SIGCONT);
  }
  void pause_job() {
    const JobId id = ids_[rng_.below(static_cast<uint32_t>(ids_.size()))];
    ++done_["job paused"];
    ++faults_;
    service_->act(id, "pause");  // refused where it has ended
    std::this_thread::sleep_for(milliseconds(rng_.below(1500)));
    service_->act(id, "resume");
  }
  // Sometimes with something else meanwhile. A service that was killed may not be able to begin
  // before there is room again.
  void fill_disk() {
    const bool store = rng_.below(2) == 0;
    const SmallDisk& disk = store ? store_disk_ : shared_disk_;
    if (!disk.fill()) return hit("worker killed", service_->workers(), SIGKILL);
    ++done_[store ? "disk of the store filled" : "shared disk filled"];
    ++faults_;
    const uint32_t dice = rng_.below(8);
    if (dice < 2) hit("worker killed", service_->workers(), SIGKILL);
    if (dice == 2) hit("agent killed", service_->agents(some_node()), SIGKILL);
    if (dice == 3) {
      service_->kill_service();
      ++done_["service killed"];
      ++faults_;
      service_->start();
      if (!service_->lives()) ++done_["a full disk kept the service from beginning"];
    }
    if (dice >= 4 && service_->lives() && !submit()) ++done_["submission refused"];
    std::this_thread::sleep_for(milliseconds(100 + rng_.below(3000)));
    const bool lived = service_->lives();
    EXPECT_TRUE(lived || dice == 3) << "a full disk ended the service";
    disk.empty();
    if (!lived) service_->start();
    EXPECT_TRUE(service_->lives());
  }

  // Sometimes for longer than the grace.
  void cut() {
    if (!hosts_) return hit("agent killed", service_->agents(some_node()), SIGKILL);
    const int host = 1 + static_cast<int>(rng_.below(kNodes));
    hosts_->cut(host);
    ++done_["cut"];
    ++faults_;
    std::this_thread::sleep_for(milliseconds(100 + rng_.below(5000)));
    hosts_->restore(host);
  }

  // Also those whose service is gone.
  static std::set<pid_t> agents_anywhere(const std::string& node) {
    std::set<pid_t> out;
    for (const pid_t pid : link::all_processes()) {
      try {
        const fs::path process = fs::path("/proc") / std::to_string(pid);
        if (read_file(process / "cmdline").find("host-agent") != std::string::npos &&
            read_file(process / "environ").find("NODE=" + node + '\0') != std::string::npos)
          out.insert(pid);
      } catch (const Error&) {  // gone
      }
    }
    return out;
  }

  Rng rng_;
  const std::shared_ptr<EmulatedHosts> hosts_;
  std::vector<std::string> nodes_;
  std::optional<LiveService> service_;
  SmallDisk store_disk_, shared_disk_;  // over the service's folder, and within it
  const TempFolder counts_;             // of the commands; it never becomes full
  std::vector<JobId> ids_;              // acknowledged
  std::set<JobId> commands_;            // of these
  int64_t offered_ = 0;
  int64_t faults_ = 0;
  std::map<std::string, int> done_;
};

TEST(Nodes, NothingThatHappensToThemChangesAnyResult) {
  const std::set<std::string> before = server::testing::shared_files();
  auto hosts = std::make_shared<EmulatedHosts>(kNodes + 1);
  if (!hosts->why().empty()) {
    std::printf("one network, and no cut links: %s\n", hosts->why().c_str());
    hosts = nullptr;
  }
  const int64_t seed = from_environment("DUCTILE_CHAOS_SEED", 1);
  std::printf("DUCTILE_CHAOS_SEED=%lld\n", static_cast<long long>(seed));
  Chaos(static_cast<uint64_t>(seed), hosts)
      .run(from_environment("DUCTILE_CHAOS_FAULTS", 25), from_environment("DUCTILE_CHAOS_JOBS", 6));
  EXPECT_EQ(server::testing::shared_files(), before);
}

}  // namespace
}  // namespace ductile::cluster
