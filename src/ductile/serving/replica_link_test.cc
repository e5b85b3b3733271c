// Replicas behind doors, as on other machines: real servers, real connections, in this process.
#include "ductile/serving/replica_link.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/net/handshake.h"
#include "ductile/net/seal.h"
#include "ductile/net/testing/socket_pair.h"
#include "ductile/serving/inference_server.h"
#include "ductile/serving/router.h"
#include "ductile/serving/testing/client.h"
#include "ductile/serving/testing/small_model.h"

namespace ductile::serving {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;
using testing::Client;
using testing::json_of;

constexpr const char* kAsk = "/v2/models/small/infer";
constexpr const char* kReload = "/v2/repository/models/small/load";
const std::string kJob = "a service";

const net::Secret& job_secret() {
  static const net::Secret s(std::string_view("the secret of the service"));
  return s;
}

std::vector<float> some_image(uint64_t seed) {
  Rng rng(seed, 17);
  std::vector<float> values(16);
  for (float& v : values) v = rng.normal();
  return values;
}

std::string question_of(const std::vector<float>& values) {
  const json input = {
      {"name", "images"}, {"datatype", "FP32"}, {"shape", {1, 1, 4, 4}}, {"data", values}};
  return dump_json(json{{"inputs", {input}}, {"outputs", {{{"name", "logits"}}}}});
}

std::vector<float> right_answer(const std::vector<float>& values, int64_t version) {
  std::vector<float> out(3);
  testing::make_small_model({}, version)
      ->run(reinterpret_cast<const std::byte*>(values.data()), 1, out.data());
  return out;
}

// A machine with one replica, which has a loop of its own.
struct FarReplica {
  explicit FarReplica(uint64_t number, std::chrono::microseconds takes = 0us) {
    thread.call([&] {
      testing::SmallModelOptions model;
      model.takes = takes;
      const auto state = std::make_shared<testing::SmallSource::State>();
      state->newest = 9;
      ServingOptions options;
      options.version = 1;
      options.batches.max_waiting = 10'000;
      server = std::make_unique<InferenceServer>(
          thread.loop(), std::move(options), std::make_unique<testing::SmallSource>(model, state));
      door = std::make_unique<ReplicaDoor>(thread.loop(), "127.0.0.1", job_secret(), kJob, number,
                                           server->address());
      at = door->address();
    });
  }
  ~FarReplica() {
    thread.call([&] {
      door.reset();
      server.reset();
    });
  }
  size_t connections() {
    size_t out = 0;
    thread.call([&] { out = door->connections(); });
    return out;
  }

  net::LoopThread thread;
  std::unique_ptr<InferenceServer> server;
  std::unique_ptr<ReplicaDoor> door;
  net::Address at;
};

// A router that reaches all of its replicas through their doors.
struct FarFront {
  explicit FarFront(RouterOptions options = {}) {
    thread.call([&] {
      links = std::make_unique<ReplicaLinks>(
          thread.loop(), job_secret(), kJob, [this](uint64_t replica, const std::string& text) {
            const std::lock_guard lock(mutex);
            troubles.push_back(std::to_string(replica) + " " + text);
          });
      options.model = "small";
      router = std::make_unique<Router>(thread.loop(), std::move(options));
      address = router->address();
    });
  }
  ~FarFront() {
    thread.call([&] {
      router.reset();
      links.reset();
    });
  }
  void add(uint64_t number, const net::Address& door) {
    thread.call([&] {
      router->add(
          number, [this, number, door] { return links->open(number, door); }, 1);
    });
  }
  std::string trouble() {
    const std::lock_guard lock(mutex);
    return troubles.empty() ? "" : troubles.front();
  }

  net::LoopThread thread;
  std::unique_ptr<ReplicaLinks> links;
  std::unique_ptr<Router> router;
  net::Address address;
  std::mutex mutex;
  std::vector<std::string> troubles;
};

// What is wrong with the answer to a question; empty: nothing.
std::string fault_of(Client& client, uint64_t seed, int64_t version) {
  const std::vector<float> values = some_image(seed);
  const auto answer = client.post(kAsk, question_of(values));
  if (!answer) return "no answer";
  if (answer->status != 200) return std::to_string(answer->status) + " " + answer->body;
  const json body = json_of(*answer);
  const bool right = body.at("model_version") == std::to_string(version) &&
                     body.at("outputs").at(0).at("data").get<std::vector<float>>() ==
                         right_answer(values, version);
  return right ? "" : "other bits: " + answer->body;
}

TEST(ReplicaLink, CarriesRequestsAndChangesOfWeights) {
  FarReplica one(1), two(2);
  FarFront front;
  front.add(1, one.at);
  front.add(2, two.at);
  Client client(front.address);
  for (uint64_t i = 0; i < 50; ++i) ASSERT_EQ(fault_of(client, i, 1), "");
  const auto loaded = client.post(kReload, R"({"parameters": {"version": "4"}})");
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(loaded->status, 200) << loaded->body;
  for (uint64_t i = 0; i < 50; ++i) ASSERT_EQ(fault_of(client, i, 4), "");
  // An answer that is longer than what a connection holds.
  const std::vector<float> values = some_image(1);
  std::vector<float> many;
  for (int i = 0; i < 4000; ++i) many.insert(many.end(), values.begin(), values.end());
  const json input = {
      {"name", "images"}, {"datatype", "FP32"}, {"shape", {4000, 1, 4, 4}}, {"data", many}};
  const auto answer =
      client.post(kAsk, dump_json(json{{"inputs", {input}}, {"outputs", {{{"name", "logits"}}}}}));
  ASSERT_TRUE(answer && answer->status == 200) << (answer ? answer->body : "none");
  const auto data = json_of(*answer).at("outputs").at(0).at("data").get<std::vector<float>>();
  const std::vector<float> expected = right_answer(values, 4);
  ASSERT_EQ(data.size(), 12000u);
  for (size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], expected[i % 3]) << i;
  EXPECT_EQ(front.trouble(), "");
}

TEST(ReplicaLink, LosesNoRequestWhereAMachineGoes) {
  auto one = std::make_unique<FarReplica>(1, 500us), two = std::make_unique<FarReplica>(2, 500us);
  FarFront front;
  front.add(1, one->at);
  front.add(2, two->at);
  std::atomic<bool> stop = false;
  std::atomic<int> answers = 0, faults = 0;
  std::vector<std::thread> clients;
  for (uint64_t who = 0; who < 4; ++who)
    clients.emplace_back([&, who] {
      Client client(front.address);
      for (uint64_t i = 0; !stop; ++i) {
        const std::string fault = fault_of(client, 1000 * who + i, 1);
        if (!fault.empty()) ++faults;
        EXPECT_EQ(fault, "");
        if (!fault.empty()) return;
        ++answers;
      }
    });
  const auto go_on = [&] {
    const int until = answers + 100;
    while (answers < until && faults == 0) std::this_thread::sleep_for(1ms);
  };
  go_on();
  one.reset();
  go_on();
  front.thread.call([&] { front.router->remove(1); });
  one = std::make_unique<FarReplica>(3, 500us);
  front.add(3, one->at);
  go_on();
  two.reset();
  go_on();
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(faults, 0);
}

TEST(ReplicaLink, StrangersGetNothingAndCostLittle) {
  FarReplica replica(1);
  {
    Client stranger(replica.at);  // as to the server itself
    stranger.say("GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n");
    EXPECT_EQ(stranger.rest(), "");
  }
  const auto refused = [&](const net::Secret& secret, const std::string& job, uint64_t number) {
    std::string trouble;
    std::mutex mutex;
    net::LoopThread thread;
    std::unique_ptr<ReplicaLinks> links;
    net::Socket stream;
    thread.call([&] {
      links = std::make_unique<ReplicaLinks>(thread.loop(), secret, job,
                                             [&](uint64_t, const std::string& text) {
                                               const std::lock_guard lock(mutex);
                                               trouble = text;
                                             });
      stream = links->open(number, replica.at);
    });
    std::byte block[16];
    EXPECT_EQ(stream.read_some(block, net::Clock::now() + 60s), 0u) << "it is to end";
    thread.call([&] {
      EXPECT_EQ(links->connections(), 0u);
      links.reset();
    });
    const std::lock_guard lock(mutex);
    EXPECT_NE(trouble.find(replica.at.to_string()), std::string::npos) << trouble;
    return trouble;
  };
  const net::Secret other(std::string_view("the secret of another service"));
  EXPECT_NE(refused(other, kJob, 1), "");
  EXPECT_NE(refused(job_secret(), "another service", 1), "");
  EXPECT_NE(refused(job_secret(), kJob, 2), "") << "not the replica that is at this address";
  EXPECT_EQ(replica.connections(), 0u);
  FarFront front;
  front.add(1, replica.at);
  Client client(front.address);
  EXPECT_EQ(fault_of(client, 1, 1), "");
  EXPECT_GT(replica.connections(), 0u);
}

TEST(ReplicaLink, SaysWhyAReplicaCannotBeReached) {
  net::Address nobody;
  {
    const net::Listener closed(net::Address{"127.0.0.1", 0});
    nobody = closed.address();
  }
  FarFront front;
  front.add(5, nobody);
  while (front.trouble().empty()) std::this_thread::sleep_for(2ms);
  EXPECT_EQ(front.trouble().substr(0, 2), "5 ");
  EXPECT_NE(front.trouble().find(nobody.to_string()), std::string::npos) << front.trouble();
}

// It can never be reached, which no shortage of this process is to hide.
TEST(ReplicaLink, OneThatSaysNoAddressOfItsDoorCountsAsLost) {
  RouterOptions options;
  options.silence = 100ms;
  options.lost = 3;
  FarFront front(options);
  std::atomic<bool> lost = false;
  front.thread.call([&] { front.router->call_when_lost([&](Router::ReplicaId) { lost = true; }); });
  front.add(4, {"a-name", 1});
  for (int look = 0; look < 10'000 && !lost; ++look) std::this_thread::sleep_for(2ms);
  EXPECT_TRUE(lost);
  EXPECT_NE(front.trouble().find("4 a-name:1: the host is to be a number"), std::string::npos)
      << front.trouble();
  front.thread.call([&] { front.router->call_when_lost({}); });
}

// Nobody can end it, as where its machine is cut off: it holds up neither requests nor a change of
// weights, and gets no more of either.
TEST(ReplicaLink, AReplicaThatIsLostAndCannotBeEndedHoldsUpNothing) {
  FarReplica two(2);
  RouterOptions options;
  options.silence = 500ms;
  options.lost = 6;
  FarFront front(options);
  std::vector<net::testing::SocketPair> silent;
  std::atomic<int> lost = 0;
  front.thread.call([&] {
    front.router->call_when_lost([&](Router::ReplicaId id) { lost += id == 1 ? 1 : 100; });
    front.router->add(
        1,
        [&] {
          silent.emplace_back();
          return net::Socket(silent.back().near.release(), "nowhere");
        },
        1);
  });
  front.add(2, two.at);
  Client client(front.address);
  const auto loaded = client.post(kReload, R"({"parameters": {"version": "6"}})");
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(loaded->status, 200) << loaded->body;
  EXPECT_EQ(lost, 1);
  for (uint64_t i = 0; i < 20; ++i) ASSERT_EQ(fault_of(client, i, 6), "");
  front.thread.call([&] {
    front.router->call_when_lost({});
    front.router->remove(1);
  });
}

// Everybody was told that all have the new weights.
TEST(ReplicaLink, AReplicaThatALoadDidNotReachAnswersNothingBeforeItHasThem) {
  FarReplica one(1), two(2);
  FarFront front;
  std::atomic<bool> cut = true;
  front.thread.call([&] {
    front.router->add(
        1,
        [&]() -> net::Socket {
          if (cut) fail(ErrorCode::unavailable, "its way is cut off");
          return front.links->open(1, one.at);
        },
        1);
  });
  front.add(2, two.at);
  Client client(front.address);
  const auto loaded = client.post(kReload, R"({"parameters": {"version": "4"}})");
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(loaded->status, 200) << loaded->body;
  cut = false;
  bool is_used = false;
  for (uint64_t i = 0; i < 50 || (!is_used && i < 20'000); ++i) {
    ASSERT_EQ(fault_of(client, i, 4), "");
    front.thread.call([&] { is_used = front.router->takes_requests(1); });
  }
  EXPECT_TRUE(is_used);
  for (uint64_t i = 0; i < 50; ++i) ASSERT_EQ(fault_of(client, i, 4), "");
}

TEST(ReplicaLink, AFrontInTheSamePlaceNeedsNoDoor) {
  net::Loop loop;
  const FrontPlace front = FrontPlace::from_json(FrontPlace{"here", "127.0.0.1", "j"}.to_json());
  EXPECT_EQ(open_door(loop, front, "here", "", 1, {"127.0.0.1", 1}), nullptr);
  EXPECT_THROW(FrontPlace::from_json({{"place", "here"}}), Error);
}

// ---- Those who mean harm. DUCTILE_HOSTILE_FRAMES says how often they try.

int64_t wanted_frames() {
  const char* const text = std::getenv("DUCTILE_HOSTILE_FRAMES");
  return text != nullptr ? std::atoll(text) : 2000;
}

net::Deadline in_time() { return net::Clock::now() + 60s; }

// What an admitted front says, up to the end of both handshakes.
std::vector<std::byte> recorded_front(const net::Address& door, uint64_t replica) {
  std::vector<std::byte> out;
  net::Socket socket = net::connect(door, {}, in_time());
  const auto say = [&](const std::vector<std::byte>& bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
    socket.write_all(bytes, in_time());
  };
  const auto hear = [&](size_t wanted) {
    std::vector<std::byte> bytes(wanted);
    socket.read_all(bytes, in_time());
    return bytes;
  };
  auto handshake = net::Handshake::client(job_secret(), {"front", kJob, 0, -1, 0},
                                          {"replica", kJob, 0, static_cast<int32_t>(replica), 0});
  say(handshake.take_output());
  while (handshake.state() == net::Handshake::State::running) {
    handshake.feed(hear(handshake.wanted()));
    say(handshake.take_output());
  }
  net::Seal seal(net::Seal::Side::client, handshake.key());
  say(seal.take_output());
  while (!seal.done()) {
    seal.feed(hear(seal.wanted()));
    say(seal.take_output());
  }
  return out;
}

// Bytes without any sense; those of a front that was let in, whole, cut or altered; or both.
std::vector<std::byte> hostile_frame(Rng& rng, const std::vector<std::byte>& recorded) {
  const auto size = static_cast<uint32_t>(recorded.size());
  const uint32_t kind = rng.below(4);
  std::vector<std::byte> out;
  if (kind > 0) out = recorded;
  if (kind == 1) out.resize(rng.below(size));
  for (uint32_t n = kind == 2 ? 1 + rng.below(4) : 0; n > 0; --n)
    out[rng.below(size)] = static_cast<std::byte>(rng.below(256));
  for (uint32_t n = kind == 0 || rng.below(3) == 0 ? rng.below(600) : 0; n > 0; --n)
    out.push_back(static_cast<std::byte>(rng.below(256)));
  return out;
}

// False: the door has said something of the server behind it.
bool gets_nothing(net::Socket& socket) {
  std::string come;
  char block[4096];
  try {
    while (const size_t n = socket.read_some(std::as_writable_bytes(std::span(block)), in_time()))
      come.append(block, n);
  } catch (const Error&) {  // it was ended
  }
  return come.find("HTTP/") == std::string::npos;
}

int64_t open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

TEST(ReplicaLink, NobodyWithoutTheSecretGetsThroughADoorAndNothingGrows) {
  FarReplica replica(1);
  const std::vector<std::byte> recorded = recorded_front(replica.at, 1);
  while (replica.connections() > 0) std::this_thread::sleep_for(2ms);
  const int64_t files = open_files(), wanted = wanted_frames();
  std::atomic<int64_t> sent = 0, let_in = 0;
  const auto attack = [&](uint64_t seed) {
    Rng rng(seed, 23);
    std::vector<net::Socket> slow;  // that say nothing more
    while (sent++ < wanted) {
      net::Socket stranger;
      try {
        stranger = net::connect(replica.at, {}, in_time());
        stranger.write_all(hostile_frame(rng, recorded), in_time());
      } catch (const Error&) {  // refused already
      }
      if (rng.below(20) == 0) {
        slow.push_back(std::move(stranger));
        if (slow.size() > 20) slow.erase(slow.begin());
        continue;
      }
      if (!stranger || rng.below(4) == 0) continue;  // gone
      ::shutdown(stranger.fd(), SHUT_WR);
      if (!gets_nothing(stranger)) ++let_in;
    }
  };
  {
    std::vector<std::jthread> attackers;
    for (uint64_t who = 1; who <= 4; ++who) attackers.emplace_back(attack, who);
    // Who knows the secret is served meanwhile.
    FarFront front;
    front.add(1, replica.at);
    Client client(front.address);
    for (uint64_t i = 0; i < 50; ++i) ASSERT_EQ(fault_of(client, i, 1), "");
  }
  EXPECT_EQ(let_in, 0);
  for (int look = 0; look < 3000 && (open_files() > files + 8 || replica.connections() > 0); ++look)
    std::this_thread::sleep_for(20ms);
  EXPECT_EQ(replica.connections(), 0u);
  EXPECT_LE(open_files(), files + 8);
}

// Carries connections to a door, and now and then alters, repeats or leaves out what passes, and
// cuts them.
class Meddler {
 public:
  explicit Meddler(const net::Address& to) : to_(to) {}

  net::Address address() const { return listener_.address(); }
  int64_t meddled() const { return meddled_; }

 private:
  struct Way {
    net::Socket ends[2];
    // Of one that was altered: who waits for the rest of it is not to wait for ever.
    net::Deadline until = net::Deadline::max();
  };

  void serve(const std::stop_token& stop) {
    std::vector<Way> ways;
    while (!stop.stop_requested()) {
      std::vector<pollfd> looks = {{listener_.fd(), POLLIN, 0}};
      for (const Way& way : ways)
        for (const net::Socket& end : way.ends) looks.push_back({end.fd(), POLLIN, 0});
      ::poll(looks.data(), looks.size(), 20);
      for (size_t i = 1; i < looks.size(); ++i)
        if (looks[i].revents != 0) carry(ways[(i - 1) / 2], (i - 1) % 2);
      std::erase_if(ways, [](const Way& way) { return net::Clock::now() >= way.until; });
      if (looks[0].revents == 0) continue;
      try {
        if (net::Socket near = listener_.try_accept())
          ways.push_back({{std::move(near), net::connect(to_, {}, in_time())}});
      } catch (const Error&) {  // the door is closed
      }
    }
  }

  // What has come at one end.
  void carry(Way& way, size_t from) try {
    std::vector<std::byte> piece(4096);
    piece.resize(way.ends[from].read_some(piece, in_time()));
    if (piece.empty()) {
      way.until = {};
      return;
    }
    const uint32_t dice = rng_.below(40);
    const auto at = rng_.below(static_cast<uint32_t>(piece.size()));
    if (dice == 0) piece[at] ^= std::byte{0x20};
    if (dice == 1) piece.erase(piece.begin() + at);
    if (dice == 2) piece.resize(at);
    net::Socket& to = way.ends[1 - from];
    to.write_all(piece, in_time());
    if (dice == 3) to.write_all(piece, in_time());
    if (dice > 4) return;
    ++meddled_;
    way.until = net::Clock::now() + (dice < 2 ? 50ms : 0ms);
  } catch (const Error&) {
    way.until = {};
  }

  const net::Address to_;
  net::Listener listener_{net::Address{"127.0.0.1", 0}};
  Rng rng_{11, 29};
  std::atomic<int64_t> meddled_ = 0;
  std::jthread thread_{[this](const std::stop_token& stop) { serve(stop); }};  // begins last
};

TEST(ReplicaLink, WhatIsAlteredOnItsWayToADoorIsNoAnswer) {
  FarReplica one(1), two(2);
  Meddler meddler(one.at);
  FarFront front;
  front.add(1, meddler.address());
  front.add(2, two.at);
  std::vector<std::jthread> clients;
  std::atomic<int> faults = 0;
  for (uint64_t who = 0; who < 4; ++who)
    clients.emplace_back([&, who, asks = static_cast<uint64_t>(wanted_frames() / 8)] {
      Client client(front.address);
      for (uint64_t i = 0; i < asks && faults == 0; ++i) {
        const std::string fault = fault_of(client, 1'000'000 * who + i, 1);
        if (!fault.empty()) ++faults;
        EXPECT_EQ(fault, "");
      }
    });
  clients.clear();
  EXPECT_EQ(faults, 0);
  EXPECT_GT(meddler.meddled(), 10);
}

}  // namespace
}  // namespace ductile::serving
