// Replicas behind doors, as on other machines: real servers, real connections, in this process.
#include "ductile/serving/replica_link.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
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

TEST(ReplicaLink, AFrontInTheSamePlaceNeedsNoDoor) {
  net::Loop loop;
  const FrontPlace front = FrontPlace::from_json(FrontPlace{"here", "127.0.0.1", "j"}.to_json());
  EXPECT_EQ(open_door(loop, front, "here", "", 1, {"127.0.0.1", 1}), nullptr);
  EXPECT_THROW(FrontPlace::from_json({{"place", "here"}}), Error);
}

}  // namespace
}  // namespace ductile::serving
