#include "ductile/serving/router.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <mutex>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/paths.h"
#include "ductile/base/rng.h"
#include "ductile/serving/loopback_impl.h"
#include "ductile/serving/replicas.h"
#include "ductile/serving/testing/client.h"
#include "ductile/serving/testing/small_model.h"

namespace ductile::serving {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using testing::Client;
using testing::json_of;

const std::string kInfer = "/v2/models/small/infer";
const std::string kLoad = "/v2/repository/models/small/load";

std::vector<float> image(uint64_t seed) {
  Rng rng(seed, 78);
  std::vector<float> values(16);
  for (float& v : values) v = rng.normal();
  return values;
}

std::string body_of(const std::vector<float>& values) {
  const json body = {
      {"inputs",
       {{{"name", "images"}, {"datatype", "FP32"}, {"shape", {1, 1, 4, 4}}, {"data", values}}}},
      {"outputs", {{{"name", "logits"}}}}};
  return dump_json(body);
}

std::vector<float> answer_of(const std::vector<float>& values, int64_t version) {
  std::vector<float> out(3);
  testing::make_small_model({}, version)
      ->run(reinterpret_cast<const std::byte*>(values.data()), 1, out.data());
  return out;
}

// A router in a loop of its own, and real processes behind it.
struct Rig {
  explicit Rig(int64_t replicas, std::vector<std::string> arguments = {},
               const RouterOptions& options = {}, const fs::path& program = DUCTILE_TEST_REPLICA) {
    thread.call([&] {
      router = std::make_unique<Router>(thread.loop(), options);
      address = router->address();
      Replicas::Callbacks callbacks;
      callbacks.on_failed = [this](const Error& error) {
        const std::lock_guard lock(mutex);
        failed = error.what();
      };
      set = std::make_unique<Replicas>(
          thread.loop(), *router, ReplicaCommand{program, std::move(arguments), {}, "/dev/null"},
          callbacks);
      set->resize(replicas);
    });
  }
  ~Rig() {
    thread.call([&] {
      set.reset();
      router.reset();
    });
  }

  template <class What>
  auto on_loop(What what) {
    decltype(what()) out;
    thread.call([&] { out = what(); });
    return out;
  }
  void resize(int64_t count) {
    thread.call([&] { set->resize(count); });
  }
  void await_ready(int64_t count) {
    while (on_loop([&] { return set->ready(); }) != count)
      std::this_thread::sleep_for(milliseconds(2));
  }
  std::string failure() {
    const std::lock_guard lock(mutex);
    return failed;
  }

  net::LoopThread thread;
  std::unique_ptr<Router> router;
  std::unique_ptr<Replicas> set;
  net::Address address;
  std::mutex mutex;
  std::string failed;
};

// Clients that ask without a pause, and count what is not as it should be.
struct Clients {
  Clients(const net::Address& to, int count) {
    for (int t = 0; t < count; ++t) {
      threads.emplace_back([this, to, t] {
        Client client(to);
        Rng rng(static_cast<uint64_t>(t), 5);
        while (!stop) {
          const std::vector<float> values = image(rng.below(50));
          const auto got = client.post(kInfer, body_of(values));
          ++asked;
          if (!got || got->status != 200) {
            ++lost;
            continue;
          }
          const json answer = json_of(*got);
          const int64_t version = std::stoll(answer["model_version"].get<std::string>());
          if (answer["outputs"][0]["data"].get<std::vector<float>>() != answer_of(values, version))
            ++wrong;
          const std::lock_guard lock(mutex);
          seen.insert(version);
        }
      });
    }
  }
  void end() {
    stop = true;
    threads.clear();
  }
  std::atomic<bool> stop = false;
  std::set<int64_t> versions() {
    const std::lock_guard lock(mutex);
    return seen;
  }
  std::atomic<int> asked = 0, lost = 0, wrong = 0;
  std::mutex mutex;
  std::set<int64_t> seen;
  std::vector<std::jthread> threads;
};

// What a scheduler and the owner of replicas are told.
TEST(Router, CountsTheTimeOfReplicasAndTellsWhatAllHaveLoaded) {
  Rig rig(2, {"--takes", "2000"});
  rig.await_ready(2);
  std::atomic<int64_t> loaded = 0;
  rig.thread.call([&] { rig.router->call_when_loaded([&](int64_t v) { loaded = v; }); });
  Client client(rig.address);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(client.post(kInfer, body_of(image(1)))->status, 200);
  const Router::Load load = rig.on_loop([&] { return rig.router->load(); });
  EXPECT_EQ(load.answered, 20);
  EXPECT_GE(load.replica_seconds, 20 * 0.002);
  EXPECT_NEAR(load.replica_seconds, load.busy_seconds, 1e-9) << "one request at a time";
  EXPECT_NE(client.post(kLoad, R"({"parameters": {"version": "-1"}})")->status, 200);
  EXPECT_EQ(loaded, 0);
  EXPECT_EQ(client.post(kLoad, R"({"parameters": {"version": "4"}})")->status, 200);
  EXPECT_EQ(loaded, 4);
}

// Those that are refused for want of room are load, too: more replicas would answer them.
TEST(Router, CountsWhatItRefusesAsLoad) {
  RouterOptions options;
  options.most_waiting = 0;
  Rig rig(0, {}, options);
  Client client(rig.address);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.post(kInfer, body_of(image(1)))->status, 503);
  EXPECT_EQ(rig.on_loop([&] { return rig.router->load().arrived; }), 3);
}

TEST(Router, LosesNothingWhileReplicasAreKilledAddedAndTakenAway) {
  Rig rig(2, {"--takes", "500"});
  rig.await_ready(2);
  Clients clients(rig.address, 5);
  Rng rng(1);
  for (int turn = 0; turn < 24; ++turn) {
    const int before = clients.asked;
    if (rng.below(2) == 0) {
      const std::vector<int> pids = rig.on_loop([&] { return rig.set->pids(); });
      if (!pids.empty()) ::kill(pids[rng.below(static_cast<uint32_t>(pids.size()))], SIGKILL);
    } else {
      rig.resize(1 + rng.below(4));
    }
    while (clients.asked < before + 20) std::this_thread::sleep_for(milliseconds(1));
  }
  clients.end();
  EXPECT_EQ(clients.lost, 0);
  EXPECT_EQ(clients.wrong, 0);
  EXPECT_GT(rig.on_loop([&] { return rig.router->load().retried; }), 0);
}

TEST(Router, ARequestThatEndsReplicasGoesToNoFourth) {
  Rig rig(4, {"--dies-of", "12345"});
  Client client(rig.address);
  EXPECT_EQ(client.post(kInfer, body_of(std::vector<float>(16, 12345)))->status, 502);
  EXPECT_EQ(rig.on_loop([&] { return rig.router->load().retried; }), 3) << "replicas that ended";
  EXPECT_EQ(client.post(kInfer, body_of(image(2)))->status, 200);  // by one that replaces them
}

// A stopped process takes connections and requests, and answers nothing.
TEST(Router, AStoppedReplicaHoldsUpNobodyAndIsReplaced) {
  RouterOptions options;
  options.lost = 2;
  Rig rig(2, {"--takes", "500"}, options);
  rig.await_ready(2);
  Clients clients(rig.address, 4);
  while (clients.asked < 50) std::this_thread::sleep_for(milliseconds(1));
  const int stopped = rig.on_loop([&] { return rig.set->pids(); }).front();
  ::kill(stopped, SIGSTOP);
  // Far more than the four requests that the stopped one may have.
  const int before = clients.asked;
  while (clients.asked < before + 2000) std::this_thread::sleep_for(milliseconds(1));
  const auto there = [&] {
    const std::vector<int> pids = rig.on_loop([&] { return rig.set->pids(); });
    return std::ranges::find(pids, stopped) != pids.end();
  };
  while (there()) std::this_thread::sleep_for(milliseconds(5));
  rig.await_ready(2);
  clients.end();
  EXPECT_EQ(clients.lost, 0);
  EXPECT_EQ(clients.wrong, 0);
}

// It comes back before it counts as lost, and gets requests again.
TEST(Router, AReplicaThatWasStoppedForAWhileIsUsedAgain) {
  RouterOptions options;
  options.lost = 1000;
  Rig rig(1, {}, options);
  rig.await_ready(1);
  const int pid = rig.on_loop([&] { return rig.set->pids(); }).front();
  ::kill(pid, SIGSTOP);
  std::atomic<int> status = 0;
  std::jthread waiting(
      [&] { status = Client(rig.address).post(kInfer, body_of(image(1)))->status; });
  Client client(rig.address);
  const auto replicas = [&] { return client.get("/metrics")->body; };
  while (replicas().find("ductile_router_replicas 0\n") == std::string::npos)
    std::this_thread::sleep_for(milliseconds(5));
  ::kill(pid, SIGCONT);
  waiting.join();
  EXPECT_EQ(status, 200);
  EXPECT_EQ(rig.on_loop([&] { return rig.set->pids(); }).front(), pid);
}

// It asked nobody meanwhile, so nobody was silent.
TEST(Router, OneThatWasStoppedItselfTakesNoReplicaForLost) {
  std::chrono::seconds ahead(0);
  net::Loop loop([&] { return net::Clock::now() + ahead; });
  Router router(loop, {});
  Replicas set(loop, router, {DUCTILE_TEST_REPLICA, {}, {}, "/dev/null"}, {});
  set.resize(2);
  while (set.ready() != 2) loop.run_until(loop.now() + milliseconds(20));
  const std::vector<int> pids = set.pids();
  for (int stop = 0; stop < 3; ++stop) {
    ahead += std::chrono::seconds(100);  // far longer than after which a replica counts as lost
    loop.run_until(loop.now() + milliseconds(700));  // one look at least, and one for processes
  }
  EXPECT_EQ(set.pids(), pids);
}

// Behind a door a connection costs a handshake. One that the replica ends is made anew.
TEST(Router, AsksForHealthOverOneConnection) {
  for (const bool ends : {false, true}) {
    SCOPED_TRACE(ends);
    std::atomic<int> asked = 0, made = 0;
    net::LoopThread thread;
    std::unique_ptr<HttpServer> replica;
    std::unique_ptr<Router> router;
    thread.call([&] {
      replica = std::make_unique<HttpServer>(thread.loop(), HttpOptions{},
                                             [&](const HttpRequest& request, const auto& reply) {
                                               EXPECT_EQ(request.path, "/healthz");
                                               ++asked;
                                               HttpResponse response;
                                               response.keep_alive = !ends;
                                               reply(response);
                                             });
      RouterOptions options;
      options.silence = milliseconds(1000);
      options.lost = 1'000'000;
      router = std::make_unique<Router>(thread.loop(), options);
      router->add(1, [&made, port = replica->address().port] {
        ++made;
        return begin_connect_here(port);
      });
    });
    while (asked < 12) std::this_thread::sleep_for(milliseconds(2));
    thread.call([&] {
      EXPECT_TRUE(ends ? made >= 12 : made <= 6) << made << " for " << asked;
      router.reset();
      replica.reset();
    });
  }
}

TEST(Router, SpreadsRequestsOverAllReplicas) {
  Rig rig(3, {"--takes", "5000"});
  rig.await_ready(3);
  Clients clients(rig.address, 6);
  while (clients.asked < 60) std::this_thread::sleep_for(milliseconds(5));
  const auto load = rig.on_loop([&] { return rig.router->load(); });
  EXPECT_LE(load.in_flight, 6);
  EXPECT_GT(load.busy_seconds, 0);
  clients.end();
  EXPECT_EQ(clients.lost, 0);
  // Each server counts its own; the router's way to it is the only one.
  EXPECT_EQ(rig.on_loop([&] { return rig.router->load().answered; }), clients.asked);
}

TEST(Router, RequestsWaitForTheFirstReplica) {
  Rig rig(0);
  Client client(rig.address);
  EXPECT_EQ(client.get("/readyz")->status, 503);
  EXPECT_EQ(client.get("/healthz")->status, 200);
  std::atomic<int> status = 0;
  std::jthread waiting(
      [&] { status = Client(rig.address).post(kInfer, body_of(image(1)))->status; });
  while (rig.on_loop([&] { return rig.router->load().waiting; }) == 0)
    std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(client.post(kLoad, "")->status, 503);
  rig.resize(1);
  waiting.join();
  EXPECT_EQ(status, 200);
  EXPECT_NE(client.get("/metrics")->body.find("ductile_router_replicas 1\n"), std::string::npos);
}

TEST(Router, LoadsWeightsInOneReplicaAfterTheOtherWithoutLosingARequest) {
  Rig rig(3);
  rig.await_ready(3);
  Clients clients(rig.address, 4);
  Client client(rig.address);
  for (const char* version : {"2", "3", "9"}) {
    const auto got =
        client.post(kLoad, fmt::format(R"({{"parameters": {{"version": "{}"}}}})", version));
    ASSERT_EQ(got->status, 200) << got->body;
    // From here on every answer is of these weights.
    for (int i = 0; i < 12; ++i)
      EXPECT_EQ(json_of(*client.post(kInfer, body_of(image(1))))["model_version"], version);
  }
  EXPECT_EQ(client.post(kLoad, R"({"parameters": {"version": "10"}})")->status, 404);
  clients.end();
  EXPECT_EQ(clients.lost, 0);
  EXPECT_EQ(clients.wrong, 0);
}

TEST(Router, OtherUsersAskAndDoNotChangeWeights) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  Rig rig(1);
  rig.await_ready(1);
  Client other = Client::of_another_user(rig.address);
  const std::string version_3 = R"({"parameters": {"version": "3"}})";
  EXPECT_EQ(other.post(kLoad, version_3)->status, 403);
  EXPECT_EQ(json_of(*other.post(kInfer, body_of(image(1))))["model_version"], "1");
  EXPECT_EQ(Client(rig.address).post(kLoad, version_3)->status, 200);
  EXPECT_EQ(json_of(*other.post(kInfer, body_of(image(1))))["model_version"], "3");
}

// A server of another user, which answers everything, and wrongly.
class Impostor {
 public:
  Impostor() {
    while (port_ == 0) std::this_thread::sleep_for(milliseconds(1));
  }
  net::Address address() const { return {"127.0.0.1", static_cast<uint16_t>(port_)}; }
  int asked() const { return asked_; }

 private:
  void serve(const std::stop_token& stop) {
    ::setfsuid(65534);  // of this thread; its sockets are this user's
    net::Listener listener(net::Address{"127.0.0.1", 0});
    port_ = listener.address().port;
    const std::string body = R"({"model_version":"1","outputs":[{"data":[0.0,0.0,0.0]}]})";
    const std::string answer = fmt::format(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
        body.size(), body);
    std::vector<net::Socket> clients;
    while (!stop.stop_requested()) {
      try {
        clients.push_back(listener.accept(net::Clock::now() + milliseconds(20)));
        std::byte block[4096];
        const auto soon = net::Clock::now() + std::chrono::seconds(5);
        const size_t n = clients.back().read_some(block, soon);
        asked_ += n > 0 && block[0] == std::byte{'P'} ? 1 : 0;  // POST, and none of the probes
        clients.back().write_all(std::as_bytes(std::span(answer)), soon);
        // Of what is closed nobody can say whose it was.
        if (clients.size() % 2 == 0) clients.back().close();
      } catch (const Error&) {  // nobody comes
      }
    }
  }

  std::atomic<int> port_ = 0, asked_ = 0;
  std::jthread thread_{[this](const std::stop_token& stop) { serve(stop); }};  // begins last
};

// The port of a replica that has ended may be anybody's before that is known.
TEST(Router, BelievesNoServerOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const Impostor impostor;
  RouterOptions options;
  options.silence = std::chrono::seconds(60);  // it is asked all the while
  Rig rig(1, {}, options);
  rig.await_ready(1);
  rig.thread.call([&] { rig.router->add(99, impostor.address(), 1); });
  Clients clients(rig.address, 4);
  while (impostor.asked() < 3) std::this_thread::sleep_for(milliseconds(2));
  clients.end();
  EXPECT_EQ(clients.lost, 0);
  EXPECT_EQ(clients.wrong, 0);
}

TEST(Router, AReplicaWhosePortAnotherUserHasIsSilent) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const Impostor impostor;
  RouterOptions options;
  options.silence = milliseconds(500);
  Rig rig(1, {}, options);
  rig.await_ready(1);
  rig.thread.call([&] { rig.router->add(99, impostor.address(), 1); });
  const auto is_used = [&] { return rig.on_loop([&] { return rig.router->takes_requests(99); }); };
  for (int look = 0; look < 3000 && is_used(); ++look)
    std::this_thread::sleep_for(milliseconds(10));
  for (int look = 0; look < 100; ++look) {
    ASSERT_FALSE(is_used()) << "its answers were heard";
    std::this_thread::sleep_for(milliseconds(10));
  }
}

// test_replica begins with version 1, whatever the others have.
TEST(Router, AReplicaThatComesWithOtherWeightsLoadsThoseOfTheOthersFirst) {
  RouterOptions options;
  options.model = "small";
  Rig rig(2, {}, options);
  rig.await_ready(2);
  Client client(rig.address);
  EXPECT_EQ(rig.on_loop([&] { return rig.router->wanted(); }), 1);
  ASSERT_EQ(client.post(kLoad, R"({"parameters": {"version": "3"}})")->status, 200);
  EXPECT_EQ(rig.on_loop([&] { return rig.router->wanted(); }), 3);
  Clients clients(rig.address, 4);
  for (int turn = 0; turn < 3; ++turn) {
    const std::vector<int> pids = rig.on_loop([&] { return rig.set->pids(); });
    ::kill(pids.front(), SIGKILL);
    rig.resize(2 + turn % 2);
    const auto replaced = [&] {
      const std::vector<int> now = rig.on_loop([&] { return rig.set->pids(); });
      return std::ranges::find(now, pids.front()) == now.end();
    };
    while (!replaced()) std::this_thread::sleep_for(milliseconds(2));
    rig.await_ready(2 + turn % 2);
    const int before = clients.asked;
    while (clients.asked < before + 200) std::this_thread::sleep_for(milliseconds(1));
  }
  clients.end();
  EXPECT_EQ(clients.lost, 0);
  EXPECT_EQ(clients.wrong, 0);
  EXPECT_EQ(clients.versions(), (std::set<int64_t>{3}));
  // Of two at once the one comes after the other, in all replicas.
  std::jthread other([&] {
    EXPECT_EQ(Client(rig.address).post(kLoad, R"({"parameters": {"version": "4"}})")->status, 200);
  });
  EXPECT_EQ(client.post(kLoad, R"({"parameters": {"version": "5"}})")->status, 200);
  other.join();
  Clients after(rig.address, 4);
  while (after.asked < 100) std::this_thread::sleep_for(milliseconds(1));
  after.end();
  EXPECT_EQ(after.versions().size(), 1u);
}

// The limit ends while half of them have new weights: the others get them nevertheless.
TEST(Router, WhatALoadLeavesHalfDoneIsFinished) {
  RouterOptions options;
  options.model = "small";
  options.patience = std::chrono::seconds(1);
  options.lost = 1000;
  Rig rig(2, {}, options);
  rig.await_ready(2);
  const int stopped = rig.on_loop([&] { return rig.set->pids(); }).back();
  ::kill(stopped, SIGSTOP);
  Client client(rig.address);
  int status = 0;
  while (rig.on_loop([&] { return rig.router->wanted(); }) != 4)
    status = client.post(kLoad, R"({"parameters": {"version": "4"}})")->status;
  EXPECT_EQ(status, 504);
  ::kill(stopped, SIGCONT);
  std::set<int64_t> versions;
  while (versions != std::set<int64_t>{4}) {
    Clients clients(rig.address, 4);
    while (clients.asked < 60) std::this_thread::sleep_for(milliseconds(1));
    clients.end();
    EXPECT_EQ(clients.lost, 0);
    versions = clients.versions();
  }
  EXPECT_EQ(rig.on_loop([&] { return rig.set->pids(); }).back(), stopped);
}

// A load that takes longer than the patience with a request is none the less waited for, as long as
// the replica answers questions about its health.
TEST(Router, ALoadMayTakeLongerThanARequest) {
  RouterOptions options;
  options.model = "small";
  options.patience = milliseconds(100);
  Rig rig(2, {"--takes", "8000"}, options);
  rig.await_ready(2);
  EXPECT_EQ(Client(rig.address).post(kLoad, R"({"parameters": {"version": "3"}})")->status, 200);
  Clients clients(rig.address, 2);
  while (clients.asked < 60) std::this_thread::sleep_for(milliseconds(1));
  clients.end();
  EXPECT_EQ(clients.versions(), std::set<int64_t>{3});
}

// It is asked at the pace of the questions about its health, and not as fast as the loop can.
TEST(Router, AReplicaThatCannotLoadNowIsAskedAgainInTime) {
  net::LoopThread thread;
  std::atomic<int> loads = 0;
  std::unique_ptr<HttpServer> replica;
  std::unique_ptr<Router> router;
  thread.call([&] {
    HttpOptions http;
    replica = std::make_unique<HttpServer>(
        thread.loop(), http, [&](HttpRequest request, HttpServer::Reply reply) {
          loads += request.path == kLoad ? 1 : 0;
          reply(request.path == kLoad ? error_response(503, "not now") : HttpResponse{});
        });
    RouterOptions options;
    options.model = "small";
    router = std::make_unique<Router>(thread.loop(), options);
    router->want(5);
    router->add(1, replica->address(), 3);
  });
  while (loads == 0) std::this_thread::sleep_for(milliseconds(1));
  // One for each turn of the loop would be thousands in the time of this many round trips.
  for (int i = 0; i < 300; ++i) EXPECT_EQ(Client(router->address()).get("/healthz")->status, 200);
  EXPECT_LT(loads, 150);
  thread.call([&] {
    router.reset();
    replica.reset();
  });
}

// A package that is upgraded under a running service.
TEST(Replicas, OneThatCannotBeStartedNowIsStartedLater) {
  const TempFolder folder;
  const fs::path program = folder.path() / "replica", aside = folder.path() / "aside";
  fs::copy_file(DUCTILE_TEST_REPLICA, program);
  Rig rig(2, {}, {}, program);
  rig.await_ready(2);
  fs::rename(program, aside);
  ::kill(rig.on_loop([&] { return rig.set->pids(); }).front(), SIGKILL);
  Client client(rig.address);
  while (rig.on_loop([&] { return rig.set->ready(); }) == 2)
    std::this_thread::sleep_for(milliseconds(1));
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(client.post(kInfer, body_of(image(1)))->status, 200);
    std::this_thread::sleep_for(milliseconds(1));
  }
  fs::rename(aside, program);
  rig.await_ready(2);
}

TEST(Replicas, SayWhyTheFirstOneCannotStart) {
  Rig rig(2, {"--fails", "the run has no weights"});
  while (rig.failure().empty()) std::this_thread::sleep_for(milliseconds(2));
  EXPECT_EQ(rig.failure(), "the run has no weights");
  while (rig.on_loop([&] { return rig.set->used(); }) > 0)
    std::this_thread::sleep_for(milliseconds(2));
}

TEST(Replicas, EndAfterWhatTheyHave) {
  Rig rig(2, {"--takes", "20000"});
  rig.await_ready(2);
  std::atomic<int> good = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      if (Client(rig.address).post(kInfer, body_of(image(1)))->status == 200) ++good;
    });
  while (rig.on_loop([&] { return rig.router->load().in_flight; }) < 4)
    std::this_thread::sleep_for(milliseconds(1));
  const std::vector<int> pids = rig.on_loop([&] { return rig.set->pids(); });
  std::atomic<bool> ended = false;
  rig.thread.call([&] { rig.router->drain([&] { rig.set->end([&] { ended = true; }); }); });
  threads.clear();
  EXPECT_EQ(good, 4);
  while (!ended) std::this_thread::sleep_for(milliseconds(1));
  for (const int pid : pids) EXPECT_NE(::kill(pid, 0), 0);
}

}  // namespace
}  // namespace ductile::serving
