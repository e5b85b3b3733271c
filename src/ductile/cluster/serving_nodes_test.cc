// Services whose replicas are on other machines than their front: nodes with networks of their own,
// with real agents, replicas, connections and clients.
#include <algorithm>
#include <csignal>
#include <functional>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/cluster/front_impl.h"
#include "ductile/cluster/store.h"
#include "ductile/cluster/testing/live_nodes.h"
#include "ductile/cluster/testing/live_service.h"
#include "ductile/cluster/testing/served.h"
#include "ductile/link/addresses.h"
#include "ductile/net/gate.h"
#include "ductile/server/testing/emulated_hosts.h"
#include "ductile/spec/cluster.h"

namespace ductile::cluster {
namespace {

using namespace testing;
using server::testing::EmulatedHosts;

// Host 0 is the service's, the others are nodes, with one device each unless told otherwise. Their
// agents are at the ends of pipes, which no cut of the network concerns: so a node that is lost
// cannot be called, either.
class FarNodes {
 public:
  FarNodes(EmulatedHosts& hosts, int count, double grace, int64_t devices = 1) : hosts_(hosts) {
    spec::NodeGroup group;
    group.type = "cpu";
    group.devices = devices;
    group.count = count;
    for (int n = 1; n <= count; ++n) {
      group.hosts.push_back(hosts_.name(n));
      group.addresses.push_back(EmulatedHosts::address(n));
    }
    names_ = group.hosts;
    service_.emplace(
        [&](ServiceOptions& options) {
          options.cluster = spec::Cluster{{group}, {}};
          options.launcher = "env NODE={host} sh -c 'test ! -e " + away_.path().string() +
                             "/{host} && exec \"$0\" \"$@\"' " + EmulatedHosts::launcher();
          options.listen = EmulatedHosts::address(0);
          options.program = DUCTILE_SERVING_WORKER;
          options.worker = DUCTILE_SERVING_WORKER;
          options.grace = grace;
        },
        [this] { hosts_.enter(0); });
  }

  LiveService& service() { return *service_; }
  const std::string& node(int host) const { return names_[static_cast<size_t>(host) - 1]; }
  // Nothing reaches the node any more; what runs there goes on.
  void lose(const std::string& node) {
    write_file_atomic(away_.path() / node, "");
    EXPECT_TRUE(hosts_.cut(host_of(node)));
    service_->kill_agent(node);
  }
  void bring_back(const std::string& node) {
    EXPECT_TRUE(hosts_.restore(host_of(node)));
    fs::remove(away_.path() / node);
  }
  // For threads that are to be on the service's machine.
  std::function<void()> enter() const {
    return [&hosts = hosts_] { hosts.enter(0); };
  }
  void there(const std::function<void()>& what) const {
    std::thread([&] {
      hosts_.enter(0);
      what();
    }).join();
  }

  std::set<pid_t> replicas_on(const std::string& node) {
    std::set<pid_t> out;
    for (const pid_t pid : replicas_of(*service_)) {
      try {
        if (read_file(fs::path("/proc") / std::to_string(pid) / "cmdline")
                .find(std::string("--host") + '\0' + node + '\0') != std::string::npos)
          out.insert(pid);
      } catch (const Error&) {  // gone
      }
    }
    return out;
  }

 private:
  int host_of(const std::string& node) const {
    const auto found = std::find(names_.begin(), names_.end(), node);
    return 1 + static_cast<int>(found - names_.begin());
  }

  EmulatedHosts& hosts_;
  const TempFolder away_;
  std::vector<std::string> names_;
  std::optional<LiveService> service_;
};

// The nodes on which replicas answer.
std::set<std::string> serving_nodes(const Json& job) {
  std::set<std::string> out;
  if (job.contains("serving"))
    for (const auto& [node, replicas] : job.at("serving").at("nodes").items()) out.insert(node);
  return out;
}

Json wait_for_nodes(LiveService& service, JobId id, size_t nodes) {
  return service.wait(id, [&](const Json& job) {
    return serving_nodes(job).size() == nodes && ready_of(job) == static_cast<int64_t>(nodes);
  });
}

// A service with two replicas, each on a node of its own.
struct TwoReplicas {
  TwoReplicas(EmulatedHosts& hosts, double grace) : world(hosts, 2, grace) {}
  FarNodes world;
  LiveService& service = world.service();
  const ServedRun run;
  const JobId id = submit_service(service, run, 2, 2);
  const Json job = wait_for_nodes(service, id, 2);
};

// What the front knows of its replicas.
FrontMemory memory_of(LiveService& service, JobId id) {
  const std::string text = Reader(service.folder() / "store.db").memory(front_memory_name(id));
  if (text.empty()) return {};
  return FrontMemory::from_json(parse_json(text, "the memory", ErrorCode::data_loss));
}

bool says(LiveService& service, const std::string& text) {
  return service.get("/v1/events?limit=1000").dump().find(text) != std::string::npos;
}

// A node is lost, another one loses its processes, weights change one replica after the other,
// and a third node is drained: every request is answered with the bits of its version.
TEST(ServingNodes, LosesNoRequestWhateverHappensToItsNodes) {
  EmulatedHosts hosts(4);
  if (!hosts.why().empty()) GTEST_SKIP() << hosts.why();
  FarNodes world(hosts, 3, 1);
  LiveService& service = world.service();
  const ServedRun run(1000);
  const JobId id = submit_service(service, run, 2, 2);
  const Json job = wait_for_nodes(service, id, 2);
  Clients clients(address_of(job), 4, world.enter());
  const auto go_on = [&] { clients.wait_for_more(100); };
  go_on();

  const std::string first = *serving_nodes(job).begin(), second = *serving_nodes(job).rbegin();
  world.lose(first);
  go_on();  // on the other one, long before anybody knows what became of the node
  service.wait(id, [&](const Json& now) {
    return ready_of(now) == 2 && !serving_nodes(now).contains(first) &&
           serving_nodes(now).size() == 2;
  });
  go_on();
  service.wait(id, [&](const Json&) { return says(service, "cannot be reached"); });
  EXPECT_EQ(world.replicas_on(first).size(), 1u) << "nobody could end it";
  world.bring_back(first);
  wait_for_node(service, first, "up");
  service.wait(id, [&](const Json&) { return world.replicas_on(first).empty(); });
  go_on();

  const std::set<pid_t> killed = world.replicas_on(second);
  ASSERT_EQ(killed.size(), 1u);
  ::kill(*killed.begin(), SIGKILL);
  service.kill_agent(second);
  go_on();
  service.wait(id, [&](const Json& now) {
    const std::set<pid_t> pids = replicas_of(service);
    return ready_of(now) == 2 && pids.size() == 2 && !pids.contains(*killed.begin());
  });

  const Json reload =
      service.send("POST", "/v1/jobs/" + std::to_string(id) + "/reload", R"({"version": 3})");
  EXPECT_EQ(reload.value("status", 0), 200) << reload;
  service.wait(
      id, [&](const Json&) { return says(service, "all replicas have the weights of step 3"); });
  go_on();

  const std::string drained = *serving_nodes(wait_for_nodes(service, id, 2)).begin();
  service.send("POST", "/v1/nodes/" + drained + "/drain", "{}");
  service.wait(id, [&](const Json& now) {
    return ready_of(now) == 2 && !serving_nodes(now).contains(drained);
  });
  go_on();
  clients.stop();
  EXPECT_EQ(clients.wrong(), 0) << clients.first_wrong();
  EXPECT_EQ(clients.versions(), (std::set<int64_t>{3, 7}));
  Clients after(address_of(job), 4, world.enter());
  after.wait_for_more(100);
  after.stop();
  EXPECT_EQ(after.wrong(), 0) << after.first_wrong();
  EXPECT_EQ(after.versions(), (std::set<int64_t>{3}));
  EXPECT_EQ(service.stop(), 0);
  service.wait_for_no_workers();
}

// Its agent is told to start one replica after the other, which no request reaches.
TEST(ServingNodes, ANodeThatRequestsDoNotReachRests) {
  EmulatedHosts hosts(3);
  if (!hosts.why().empty()) GTEST_SKIP() << hosts.why();
  TwoReplicas two(hosts, /*grace=*/30);
  auto& [world, service, run, id, job] = two;
  ASSERT_TRUE(hosts.cut(1));
  const std::string node = world.node(1);
  const Json rests = service.wait(id, [&](const Json& now) {
    return now.value("why", "").find("requests do not reach node " + node) != std::string::npos;
  });
  EXPECT_NE(rests.value("why", "").find(": 2 replicas that were started there"), std::string::npos)
      << rests;
  EXPECT_TRUE(says(service, "so the next one waits, for longer each time: 30 s now"));
  service.wait(id, [&](const Json&) { return world.replicas_on(node).empty(); });
  std::this_thread::sleep_for(2s);
  EXPECT_TRUE(world.replicas_on(node).empty()) << "it rests";
  EXPECT_EQ(world.replicas_on(world.node(2)).size(), 1u);
  ASSERT_TRUE(hosts.restore(1));
  const Json after = wait_for_nodes(service, id, 2);
  EXPECT_EQ(after.value("why", "").find("do not reach"), std::string::npos) << after;
}

// Stops the process of a replica, which is then lost for its silence, and killed.
void let_hang(LiveService& service, pid_t replica) {
  ::kill(replica, SIGSTOP);
  service.wait_for_end(replica);
}

// One whose process ends there by itself, or is killed, is not started anew there, either.
TEST(ServingNodes, ANodeThatRestsGetsNoReplicaForOneThatItLoses) {
  EmulatedHosts hosts(3);
  if (!hosts.why().empty()) GTEST_SKIP() << hosts.why();
  FarNodes world(hosts, 2, /*grace=*/30, /*devices=*/2);
  LiveService& service = world.service();
  const ServedRun run;
  const JobId id = submit_service(service, run, 4, 4);
  wait_for_replicas(service, id, 4);
  const std::string node = world.node(1);
  const std::set<pid_t> before = world.replicas_on(node);
  ASSERT_EQ(before.size(), 2u);
  const pid_t stays = *before.begin();
  const auto rests = [&](const Json& job) {
    return job.value("why", "").find("requests do not reach node " + node) != std::string::npos;
  };
  Json job;
  do {
    std::set<pid_t> there = world.replicas_on(node);
    there.erase(stays);
    ASSERT_EQ(there.size(), 1u);
    let_hang(service, *there.begin());
    job = service.wait(id, [&](const Json& now) { return rests(now) || ready_of(now) == 4; });
  } while (!rests(job) && !::testing::Test::HasFailure());
  const std::set<pid_t> kept = world.replicas_on(node);
  EXPECT_TRUE(kept.contains(stays)) << "it keeps what answers there";
  for (const pid_t pid : kept) ::kill(pid, SIGKILL);
  for (const pid_t pid : kept) service.wait_for_end(pid);
  // For some seconds, unless the node has rested by then.
  for (int i = 0; i < 100; ++i) {
    const std::set<pid_t> there = world.replicas_on(node);
    const bool still = rests(service.get("/v1/jobs/" + std::to_string(id)));
    if (!still) break;
    ASSERT_TRUE(there.empty()) << "it rests";
    std::this_thread::sleep_for(30ms);
  }
  wait_for_replicas(service, id, 4);
}

// Where replicas hang wherever they are started, their nodes may be well: to rest would only keep
// the service down.
TEST(ServingNodes, WhereAllNodesWouldRestNoneDoes) {
  LiveService service([](ServiceOptions& options) {
    on_nodes({"a"}, 1)(options);
    options.program = options.worker = DUCTILE_SERVING_WORKER;
  });
  const ServedRun run;
  const JobId id = submit_service(service, run, 1, 1);
  for (int losses = 0; losses < 2; ++losses) {
    wait_for_replicas(service, id, 1);
    const std::set<pid_t> replicas = replicas_of(service);
    ASSERT_EQ(replicas.size(), 1u);
    let_hang(service, *replicas.begin());
  }
  bool rested = false;
  service.wait(id, [&](const Json& job) {
    rested = rested || job.value("why", "").find("do not reach") != std::string::npos;
    return ready_of(job) == 1;
  });
  EXPECT_FALSE(rested);
  EXPECT_FALSE(says(service, "so the next one waits"));
}

// The ports that a process's machine listens on, beyond its loopback.
std::set<uint16_t> open_ports(pid_t pid) {
  std::set<uint16_t> out;
  std::istringstream lines(read_file(fs::path("/proc") / std::to_string(pid) / "net" / "tcp"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state;
    if (!(words >> number >> local >> remote >> state) || state != "0A") continue;
    if (!local.starts_with("0100007F:"))
      out.insert(static_cast<uint16_t>(std::stoul(local.substr(local.find(':') + 1), nullptr, 16)));
  }
  return out;
}

TEST(ServingNodes, StrangersGetNothingFromItsNodes) {
  EmulatedHosts hosts(3);
  if (!hosts.why().empty()) GTEST_SKIP() << hosts.why();
  TwoReplicas two(hosts, /*grace=*/30);
  auto& [world, service, run, id, job] = two;
  service.wait(id, [&](const Json&) {
    const FrontMemory memory = memory_of(service, id);
    return memory.replicas.size() == 2 &&
           std::ranges::none_of(memory.replicas,
                                [](const auto& one) { return one.second.address.empty(); });
  });
  const std::string name = link::job_name(job.value("run", ""));
  const FrontMemory memory = memory_of(service, id);
  for (const auto& [number, replica] : memory.replicas) {
    EXPECT_TRUE(replica.has_door);
    const net::Address at = net::Address::parse(replica.address);
    const int host = at.host == EmulatedHosts::address(1) ? 1 : 2;
    EXPECT_EQ(at.host, EmulatedHosts::address(host));
    const std::set<pid_t> pids = world.replicas_on(world.node(host));
    ASSERT_EQ(pids.size(), 1u);
    EXPECT_EQ(open_ports(*pids.begin()), std::set<uint16_t>{at.port}) << "nothing else listens";
    world.there([&, number = number] {
      for (const char* text : {"GET /v2/health/ready HTTP/1.1\r\nHost: here\r\n\r\n",
                               "POST /v2/repository/models/small/load HTTP/1.1\r\nHost: here\r\n"
                               "Content-Length: 0\r\n\r\n"}) {
        Client stranger(at);
        stranger.say(text);
        EXPECT_EQ(stranger.rest(), "");
      }
      EXPECT_THROW(net::dial(at, net::Secret::random(), {"front", name, 0, -1, 0},
                             {"replica", name, 0, static_cast<int32_t>(number), 0}, {},
                             net::Clock::now() + 20s),
                   Error);
    });
  }
  Clients clients(address_of(job), 2, world.enter());
  clients.wait_for_more(50);
  clients.stop();
  EXPECT_EQ(clients.wrong(), 0) << clients.first_wrong();
  EXPECT_EQ(clients.versions(), (std::set<int64_t>{7}));
}

TEST(ServingNodes, ReplicasOutliveAServiceThatIsKilled) {
  EmulatedHosts hosts(3);
  if (!hosts.why().empty()) GTEST_SKIP() << hosts.why();
  TwoReplicas two(hosts, /*grace=*/30);
  auto& [world, service, run, id, job] = two;
  const std::set<pid_t> before = replicas_of(service);
  service.kill_service();
  service.start();
  const Json after = wait_for_nodes(service, id, 2);
  EXPECT_EQ(after.at("serving").at("address"), job.at("serving").at("address"));
  EXPECT_EQ(replicas_of(service), before);
  Clients clients(address_of(after), 2, world.enter());
  clients.wait_for_more(50);
  clients.stop();
  EXPECT_EQ(clients.wrong(), 0) << clients.first_wrong();
  EXPECT_EQ(service.stop(), 0);
  service.wait_for_no_workers();
}

// It waits for nobody who does not answer, and what is left there is ended when the node is back.
TEST(ServingNodes, AServiceEndsAlthoughANodeIsAway) {
  EmulatedHosts hosts(3);
  if (!hosts.why().empty()) GTEST_SKIP() << hosts.why();
  TwoReplicas two(hosts, /*grace=*/3600);
  auto& [world, service, run, id, job] = two;
  const std::string away = *serving_nodes(job).begin();
  world.lose(away);
  wait_for_node(service, away, "away");
  service.act(id, "cancel");
  service.wait_for(id, "cancelled");
  EXPECT_EQ(world.replicas_on(away).size(), 1u);
  world.bring_back(away);
  service.wait_for_no_workers();
}

// Who ends tells all agents so. One that is stopped does not answer, and meanwhile the front of
// another service, which is in the same loop, has requests.
TEST(ServingNodes, AServiceThatEndsHoldsUpNoOtherWhereAnAgentIsStopped) {
  LiveService service([](ServiceOptions& options) {
    on_nodes({"a", "b", "c"}, 1)(options);
    options.program = options.worker = DUCTILE_SERVING_WORKER;
  });
  const ServedRun run;
  const JobId ends = submit_service(service, run, 1, 1);
  const JobId stays = submit_service(service, run, 1, 1);
  std::set<std::string> idle = {"a", "b", "c"};
  for (const JobId id : {ends, stays})
    idle.erase(*serving_nodes(wait_for_nodes(service, id, 1)).begin());
  ASSERT_EQ(idle.size(), 1u);
  Clients clients(address_of(service.get("/v1/jobs/" + std::to_string(stays))), 1);
  clients.wait_for_more(20);
  service.kill_agent(*idle.begin(), SIGSTOP);
  service.act(ends, "cancel");
  while (replicas_of(service).size() > 1) std::this_thread::sleep_for(1ms);
  const int64_t before = clients.answers();
  service.wait_for(ends, "cancelled");
  EXPECT_GT(clients.answers(), before + 50) << "the service waited, and did nothing else";
  service.kill_agent(*idle.begin(), SIGCONT);
  clients.stop();
  EXPECT_EQ(clients.wrong(), 0) << clients.first_wrong();
}

}  // namespace
}  // namespace ductile::cluster
