#include "ductile/comm/failure_detector.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/comm/tcp_transport.h"
#include "ductile/comm/testing/processes.h"
#include "ductile/net/store_server.h"

namespace ductile::comm {
namespace {

using std::chrono::milliseconds;

net::Deadline in(int ms) { return net::Clock::now() + milliseconds(ms); }

const net::Secret& secret() {
  static const net::Secret s(std::string_view("the secret of the tests"));
  return s;
}

// Much shorter than the defaults, and longer than a busy machine keeps a process waiting.
DetectorOptions fast() {
  DetectorOptions options;
  options.interval = milliseconds(20);
  options.deadline = milliseconds(2000);
  options.soft_deadline = milliseconds(600);
  return options;
}

// The detectors of all ranks, in this process.
struct Detectors {
  explicit Detectors(int size, const DetectorOptions& options = fast(),
                     std::unique_ptr<net::Store> meeting = net::make_memory_store())
      : store(std::move(meeting)) {
    ranks.resize(static_cast<size_t>(size));
    stalls.resize(static_cast<size_t>(size));
    std::vector<std::future<void>> connecting;
    for (int r = 0; r < size; ++r) {
      connecting.push_back(std::async(std::launch::async, [&, r] {
        ranks[static_cast<size_t>(r)] = std::make_unique<FailureDetector>(
            Group{"job", 1, r, size}, *store, secret(), options,
            [this](const PeerLoss&) { ++losses; },
            [this, r](const GroupStall& s) {
              const std::lock_guard lock(mutex);
              stalls[static_cast<size_t>(r)].push_back(s);
            },
            in(20000));
      }));
    }
    for (auto& c : connecting) c.get();
  }

  bool wait_for(const std::function<bool()>& condition) {
    const net::Deadline patience = in(20000);
    while (net::Clock::now() < patience) {
      {
        const std::lock_guard lock(mutex);
        if (condition()) return true;
      }
      std::this_thread::sleep_for(milliseconds(2));
    }
    return false;
  }

  std::unique_ptr<net::Store> store;
  std::mutex mutex;
  std::atomic<int> losses{0};
  std::vector<std::vector<GroupStall>> stalls;
  std::vector<std::unique_ptr<FailureDetector>> ranks;
};

TEST(FailureDetector, WhoLivesOrSaysGoodbyeIsNotLost) {
  Detectors d(3);
  std::this_thread::sleep_for(milliseconds(2500));  // longer than the deadline
  d.ranks[1].reset();
  std::this_thread::sleep_for(milliseconds(2500));
  EXPECT_EQ(d.losses, 0);
  EXPECT_TRUE(d.ranks[0]->losses().ranks.empty()) << d.ranks[0]->losses().reason;
}

TEST(FailureDetector, AStalledCollectiveNamesTheRanksThatHaveNotBegunIt) {
  Detectors d(4);
  for (int r : {0, 2}) d.ranks[static_cast<size_t>(r)]->report({7, 100, true});
  for (int r : {1, 3}) d.ranks[static_cast<size_t>(r)]->report({6, 900, false});
  ASSERT_TRUE(d.wait_for([&] { return !d.stalls[0].empty() && !d.stalls[2].empty(); }));
  const GroupStall& s = d.stalls[0][0];
  EXPECT_EQ(s.missing, (std::vector<int>{1, 3})) << s.text;
  EXPECT_EQ(s.positions[3].operation, 6u);
  EXPECT_NE(s.text.find("ranks 1, 3"), std::string::npos) << s.text;
  std::this_thread::sleep_for(milliseconds(900));  // longer than the soft deadline
  const std::lock_guard lock(d.mutex);
  EXPECT_EQ(d.stalls[0].size(), 1u) << "one report an operation";
  EXPECT_TRUE(d.stalls[1].empty()) << "a rank outside of a collective waits for nobody";
}

TEST(FailureDetector, AStallInsideACollectiveNamesWhoIsLeastFar) {
  Detectors d(3);
  d.ranks[0]->report({7, 50, true});
  d.ranks[1]->report({7, 20, true});
  d.ranks[2]->report({8, 5, true});  // already in the next
  ASSERT_TRUE(d.wait_for([&] { return !d.stalls[0].empty(); }));
  EXPECT_EQ(d.stalls[0][0].missing, (std::vector<int>{1})) << d.stalls[0][0].text;
  ASSERT_TRUE(d.wait_for([&] { return !d.stalls[2].empty(); }));
  EXPECT_EQ(d.stalls[2][0].missing, (std::vector<int>{0, 1})) << d.stalls[2][0].text;
}

TEST(FailureDetector, ProgressIsNoStall) {
  Detectors d(2);
  for (int i = 0; i < 100; ++i) {  // longer than the soft deadline
    d.ranks[0]->report({1, static_cast<uint64_t>(i), true});
    std::this_thread::sleep_for(milliseconds(10));
  }
  const std::lock_guard lock(d.mutex);
  EXPECT_TRUE(d.stalls[0].empty());
}

// Stands between those who dial and `target`, and passes on what they say.
class Relay {
 public:
  explicit Relay(net::Address target)
      : target_(std::move(target)), thread_([this](std::stop_token stop) { run(stop); }) {}

  std::string address() const { return listener_.address().to_string(); }
  std::atomic<bool> alters = false;  // a byte of whatever comes through

 private:
  void run(std::stop_token stop) {
    std::vector<std::pair<net::Socket, net::Socket>> pairs;
    while (!stop.stop_requested()) {
      if (net::Socket s = listener_.try_accept())
        pairs.emplace_back(std::move(s), net::connect(target_, {}, in(20000)));
      for (auto& [a, b] : pairs) pass(a, b), pass(b, a);
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  void pass(net::Socket& from, net::Socket& to) {
    std::array<std::byte, 4096> bytes;
    const ssize_t got = ::recv(from.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got <= 0) return;
    if (alters) bytes[static_cast<size_t>(got) - 1] ^= std::byte{1};
    try {
      to.write_all(std::span(bytes).first(static_cast<size_t>(got)), in(20000));
    } catch (const Error&) {  // gone
    }
  }

  const net::Address target_;
  net::Listener listener_{net::Address{"127.0.0.1", 0}};
  std::jthread thread_;
};

// A store in which every address leads to a relay.
class RelayedStore : public net::Store {
 public:
  void set(std::string_view key, std::string_view value, net::Deadline deadline) override {
    const std::lock_guard lock(mutex);
    relays.push_back(std::make_unique<Relay>(net::Address::parse(value)));
    store_->set(key, relays.back()->address(), deadline);
  }
  std::string get(std::string_view key, net::Deadline deadline) override {
    return store_->get(key, deadline);
  }
  int64_t add(std::string_view key, int64_t delta, net::Deadline deadline) override {
    return store_->add(key, delta, deadline);
  }
  void wait(std::span<const std::string> keys, net::Deadline deadline) override {
    store_->wait(keys, deadline);
  }

  std::mutex mutex;
  std::vector<std::unique_ptr<Relay>> relays;

 private:
  std::unique_ptr<net::Store> store_ = net::make_memory_store();
};

// Its own connection is lost, and the process lives on and says so.
TEST(FailureDetector, AlteredHeartbeatsAreALossAndNothingWorse) {
  auto meeting = std::make_unique<RelayedStore>();
  RelayedStore& relayed = *meeting;
  Detectors d(3, fast(), std::move(meeting));
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(d.losses, 0);
  for (auto& relay : relayed.relays) relay->alters = true;
  ASSERT_TRUE(d.wait_for([&] {
    return std::ranges::all_of(d.ranks, [](auto& r) { return !r->losses().ranks.empty(); });
  }));
  EXPECT_NE(d.ranks[0]->losses().reason.find("not its own"), std::string::npos)
      << d.ranks[0]->losses().reason;
}

TEST(FailureDetector, ADeadlineBelowTheIntervalIsRefused) {
  DetectorOptions options;
  options.deadline = options.interval;
  EXPECT_THROW(FailureDetector({"job", 1, 0, 1}, *net::make_memory_store(), secret(), options, {},
                               {}, in(1000)),
               Error);
}

// ---- Processes ----

constexpr int kRanks = 4;

// Exchanges with its neighbours until a peer is lost; then tells who, and joins the survivors'
// next generation.
void exchange_until_loss(int rank, const std::string& input, const Processes& self,
                         const DetectorOptions& base) {
  std::istringstream words(input);
  std::string store_address;
  std::string own_address;
  words >> store_address >> own_address;
  const auto store =
      net::connect_store(net::Address::parse(store_address), secret(), "job", in(20000));
  TcpOptions tcp;
  tcp.links = {own_address};
  DetectorOptions options = base;
  options.link = own_address;
  const auto transport = connect_tcp({"job", 1, rank, kRanks}, *store, secret(), tcp, in(20000));
  FailureDetector detector(
      {"job", 1, rank, kRanks}, *store, secret(), options,
      [&](const PeerLoss& loss) { transport->fail(loss); }, {}, in(20000));
  self.say(fmt::format("ready {}", rank));
  std::vector<std::byte> out(100'000);
  std::vector<std::byte> got(100'000);
  try {
    for (Tag tag = 1;; ++tag) {
      Transfer send;
      Transfer receive;
      transport->send((rank + 1) % kRanks, tag, out, send);
      transport->receive((rank + kRanks - 1) % kRanks, tag, got, receive);
      detector.report({tag, 0, true});
      while (!send.settled() || !receive.settled()) transport->progress(std::chrono::minutes(10));
      detector.report({tag, 1, false});
      std::this_thread::sleep_for(milliseconds(1));
    }
  } catch (const Error& error) {
    // The transport may see the end of a connection just before the detector does.
    const net::Deadline patience = in(10000);
    while (detector.losses().ranks.empty() && net::Clock::now() < patience) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    std::string lost;
    for (const int r : detector.losses().ranks) lost += std::to_string(r) + ",";
    self.say(fmt::format("lost {} {} {} | {}", rank, lost, to_string(error.code()),
                         detector.losses().reason));
  }
  std::this_thread::sleep_for(std::chrono::hours(1));
}

// rank -> "lost ranks" as told by those that were asked.
std::map<int, std::string> hear_losses(Processes& processes, int count,
                                       std::string* all = nullptr) {
  std::map<int, std::string> losses;
  while (static_cast<int>(losses.size()) < count) {
    const auto line = processes.hear();
    if (!line) {
      ADD_FAILURE() << "only " << losses.size() << " of " << count << " ranks noticed a loss";
      break;
    }
    if (all != nullptr) *all += *line + "\n";
    std::istringstream words(*line);
    std::string word;
    int rank = -1;
    std::string lost;
    words >> word >> rank >> lost;
    EXPECT_EQ(word, "lost") << *line;
    EXPECT_NE(line->find("peer_lost"), std::string::npos) << *line;
    losses[rank] = lost;
  }
  return losses;
}

void hear_ready(Processes& processes, int count) {
  for (int i = 0; i < count; ++i) {
    const auto line = processes.hear();
    ASSERT_TRUE(line && line->rfind("ready", 0) == 0) << (line ? *line : "silence");
  }
}

struct LocalJob {
  LocalJob() {
    for (int r = 0; r < kRanks; ++r) {
      processes.start(r, [](int rank, const std::string& input, const Processes& self) {
        exchange_until_loss(rank, input, self, fast());
      });
    }
    server = std::make_unique<net::StoreServer>(net::Address{"127.0.0.1", 0}, secret(), "job");
    for (int r = 0; r < kRanks; ++r) {
      processes.tell(r, server->address().to_string() + " 127.0.0.1");
    }
    hear_ready(processes, kRanks);
  }
  Processes processes;
  std::unique_ptr<net::StoreServer> server;
};

TEST(FailureDetectorProcesses, AKilledProcessIsNamedByEverySurvivor) {
  LocalJob job;
  std::this_thread::sleep_for(milliseconds(50));
  const auto start = net::Clock::now();
  kill(job.processes.pid(2), SIGKILL);
  const auto losses = hear_losses(job.processes, kRanks - 1);
  std::printf("every survivor out %.1f ms after the kill\n",
              std::chrono::duration<double, std::milli>(net::Clock::now() - start).count());
  for (const auto& [rank, lost] : losses) EXPECT_EQ(lost, "2,") << "rank " << rank;
}

TEST(FailureDetectorProcesses, AStoppedProcessIsLostAndFindsItselfFencedOutWhenItWakesUp) {
  LocalJob job;
  const auto start = net::Clock::now();
  kill(job.processes.pid(1), SIGSTOP);
  const auto losses = hear_losses(job.processes, kRanks - 1);
  std::printf("every survivor out %.1f ms after the stop (deadline 2 s)\n",
              std::chrono::duration<double, std::milli>(net::Clock::now() - start).count());
  for (const auto& [rank, lost] : losses) EXPECT_EQ(lost, "1,") << "rank " << rank;
  kill(job.processes.pid(1), SIGCONT);
  std::string text;
  const auto own = hear_losses(job.processes, 1, &text);
  ASSERT_TRUE(own.contains(1)) << text;
  EXPECT_NE(own.at(1).find("1,"), std::string::npos)
      << "it is told that it is the lost one: " << text;
}

TEST(FailureDetectorProcesses, ABriefSleepIsNoLoss) {
  LocalJob job;
  for (int i = 0; i < 3; ++i) {
    kill(job.processes.pid(3), SIGSTOP);
    std::this_thread::sleep_for(milliseconds(100));
    kill(job.processes.pid(3), SIGCONT);
    std::this_thread::sleep_for(milliseconds(60));
  }
  kill(job.processes.pid(0), SIGKILL);
  for (const auto& [rank, lost] : hear_losses(job.processes, kRanks - 1)) {
    EXPECT_EQ(lost, "0,") << "rank " << rank;
  }
}

bool run(const std::string& command) { return std::system((command + " >&2").c_str()) == 0; }

// Every rank in a network namespace of its own, joined by a bridge in one more, in which the store
// runs too. All of them go with their processes.
TEST(FailureDetectorProcesses, ACutLinkIsALossOnBothSides) {
  if (geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  if (!run("ip -V >/dev/null 2>&1 && nsenter --version >/dev/null")) {
    GTEST_SKIP() << "needs ip (iproute2) and nsenter";
  }
  Processes processes;
  const int bridge = processes.start(
      -1,
      [](int, const std::string&, const Processes& self) {
        const net::StoreServer server({"10.77.0.254", 7000}, secret(), "job");
        self.say("store");
        std::this_thread::sleep_for(std::chrono::hours(1));
      },
      true);
  std::vector<int> hosts;
  for (int r = 0; r < kRanks; ++r) {
    hosts.push_back(processes.start(
        r,
        [](int rank, const std::string& input, const Processes& self) {
          exchange_until_loss(rank, input, self, fast());
        },
        true));
  }
  for (int i = 0; i < kRanks + 1; ++i) {
    const auto line = processes.hear();
    if (!line) GTEST_SKIP() << "network namespaces cannot be made here";
    ASSERT_EQ(*line, "namespace");
  }
  const std::string hub = fmt::format("nsenter -t {} -n ", processes.pid(bridge));
  bool up = run(hub + "ip link add hub type bridge") &&
            run(hub + "ip addr add 10.77.0.254/24 dev hub") && run(hub + "ip link set hub up");
  for (int r = 0; r < kRanks && up; ++r) {
    const std::string host = fmt::format("nsenter -t {} -n ", processes.pid(hosts[r]));
    up = run(fmt::format("{}ip link add port{} type veth peer name eth0 netns {}", hub, r,
                         processes.pid(hosts[r]))) &&
         run(fmt::format("{}ip link set port{} master hub up", hub, r)) &&
         run(fmt::format("{}ip addr add 10.77.0.{}/24 dev eth0", host, r + 1)) &&
         run(host + "ip link set eth0 up") && run(host + "ip link set lo up");
  }
  if (!up) GTEST_SKIP() << "veth and bridge devices cannot be made here";
  processes.tell(bridge, "go");
  ASSERT_EQ(processes.hear(), "store");
  for (int r = 0; r < kRanks; ++r) {
    processes.tell(hosts[r], fmt::format("10.77.0.254:7000 10.77.0.{}", r + 1));
  }
  hear_ready(processes, kRanks);

  const auto start = net::Clock::now();
  ASSERT_TRUE(run(hub + "ip link set port2 down"));
  const auto losses = hear_losses(processes, kRanks);
  std::printf("all out %.1f ms after the cut (deadline 2 s)\n",
              std::chrono::duration<double, std::milli>(net::Clock::now() - start).count());
  for (const auto& [rank, lost] : losses) {
    if (rank == 2) {
      EXPECT_FALSE(lost.empty()) << "the one that is cut off has lost others";
    } else {
      EXPECT_EQ(lost, "2,") << "rank " << rank;
    }
  }
}

}  // namespace
}  // namespace ductile::comm
