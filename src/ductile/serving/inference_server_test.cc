#include "ductile/serving/inference_server.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/rng.h"
#include "ductile/serving/testing/client.h"
#include "ductile/serving/testing/small_model.h"

namespace ductile::serving {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using testing::Client;
using testing::json_of;
using testing::Quirk;
using testing::SmallModelOptions;
using testing::SmallSource;

const std::string kInfer = "/v2/models/small/infer";
const std::string kLoad = "/v2/repository/models/small/load";

// A server in a loop of its own.
struct Rig {
  explicit Rig(SmallModelOptions model = {}, ServingOptions options = {}) {
    options.tell = [this](const std::string& line) {
      const std::lock_guard lock(mutex);
      told.push_back(line);
    };
    thread.call([&] {
      server = std::make_unique<InferenceServer>(thread.loop(), std::move(options),
                                                 std::make_unique<SmallSource>(model, state));
      address = server->address();
    });
  }
  ~Rig() {
    thread.call([&] { server.reset(); });
  }

  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex);
    return told;
  }

  std::shared_ptr<SmallSource::State> state = std::make_shared<SmallSource::State>();
  net::LoopThread thread;
  std::unique_ptr<InferenceServer> server;
  net::Address address;
  std::mutex mutex;
  std::vector<std::string> told;
};

ServingOptions with(int64_t max_batch, std::chrono::microseconds delay = {},
                    int64_t waiting = 1024) {
  ServingOptions options;
  options.batches = {max_batch, delay, waiting};
  return options;
}

// Images of random values, which the seed draws.
std::string images(uint64_t seed, int64_t count) {
  Rng rng(seed, 77);
  std::vector<float> values;
  for (int64_t i = 0; i < 16 * count; ++i) values.push_back(rng.normal());
  const json body = {
      {"inputs",
       {{{"name", "images"}, {"datatype", "FP32"}, {"shape", {count, 1, 4, 4}}, {"data", values}}}},
      {"outputs", {{{"name", "logits"}}}}};
  return dump_json(body);
}

json logits_of(const std::optional<HttpResponse>& response) {
  if (!response || response->status != 200) return response ? response->body : "no answer";
  return json_of(*response)["outputs"][0]["data"];
}

TEST(InferenceServer, SaysWhatItIs) {
  Rig rig;
  Client client(rig.address);
  EXPECT_EQ(json_of(*client.get("/v2"))["extensions"][0], "binary_tensor_data");
  for (const char* path : {"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready",
                           "/v2/models/small/ready", "/v2/models/small/versions/1/ready"})
    EXPECT_EQ(client.get(path)->status, 200) << path;
  const json model = json_of(*client.get("/v2/models/small"));
  EXPECT_EQ(model["versions"], json({"1"}));
  EXPECT_EQ(model["inputs"][0]["shape"], json({-1, 4, 4, 1}));
  EXPECT_EQ(model["parameters"]["class_names"][1], "bee");
  EXPECT_EQ(model["parameters"]["batch_sizes"], json({1, 2, 4, 8, 16, 32}));
  EXPECT_EQ(client.get("/v2/models/other")->status, 404);
  EXPECT_EQ(client.get("/v2/models/small/versions/2")->status, 404);
  EXPECT_EQ(client.post("/v2/models/small/versions/2/infer", images(1, 1))->status, 404);
  EXPECT_EQ(client.post("/v2/models/small/versions/1/infer", images(1, 1))->status, 200);
  EXPECT_EQ(client.post("/v2/models/smaller/infer", images(1, 1))->status, 404);
  EXPECT_EQ(client.ask({"DELETE", "/v2", {}, "", true})->status, 405);
  EXPECT_EQ(client.post(kInfer, "{")->status, 400);
  const std::string metrics = client.get("/metrics")->body;
  EXPECT_NE(metrics.find("ductile_serving_answers_total{status=\"200\"} 1\n"), std::string::npos);
  EXPECT_NE(metrics.find("ductile_serving_request_seconds_count 1\n"), std::string::npos);
}

// Many clients at once, whose requests share batches, get the bits of one at a time.
void expect_same_bits(Quirk quirk) {
  std::vector<json> alone;
  {
    Rig one({.quirk = quirk}, with(16));
    Client client(one.address);
    for (uint64_t i = 0; i < 200; ++i)
      alone.push_back(logits_of(client.post(kInfer, images(i, 1 + static_cast<int64_t>(i % 21)))));
  }
  Rig rig({.quirk = quirk, .takes = std::chrono::microseconds(300)},
          with(16, std::chrono::microseconds(500)));
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> threads;
  for (uint64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      Client client(rig.address);
      Rng rng(t, 3);
      for (int k = 0; k < 60; ++k) {
        const uint64_t i = rng.below(200);
        const auto got = client.post(kInfer, images(i, 1 + static_cast<int64_t>(i % 21)));
        if (logits_of(got) != alone[i]) ++wrong;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(wrong, 0);
}

TEST(InferenceServer, AnAnswerDoesNotDependOnWhatItWasBatchedWith) {
  for (const Quirk quirk :
       {Quirk::none, Quirk::alone_differs, Quirk::edges_differ, Quirk::always_differs})
    expect_same_bits(quirk);
}

TEST(InferenceServer, ASampleThatCannotBeReadFailsItsOwnRequestAlone) {
  Rig rig({.takes = std::chrono::milliseconds(2)}, with(16));
  std::atomic<int> good = 0, bad = 0, other = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      Client client(rig.address);
      for (int k = 0; k < 30; ++k) {
        const bool right = (k + t) % 2 == 0;
        // "good000000000000" and "evil000000000000"
        const json body = {
            {"inputs",
             {{{"name", "images"},
               {"datatype", "BYTES"},
               {"shape", {1}},
               {"data", {right ? "Z29vZDAwMDAwMDAwMDAwMA==" : "ZXZpbDAwMDAwMDAwMDAwMA=="}}}}}};
        const auto got = client.post(kInfer, dump_json(body));
        if (right && got->status == 200) {
          ++good;
        } else if (!right && got->status == 400 &&
                   json_of(*got)["error"] == "sample 0: this is no image") {
          ++bad;
        } else {
          ++other;
        }
      }
    });
  }
  threads.clear();
  EXPECT_EQ(good, 90);
  EXPECT_EQ(bad, 90);
  EXPECT_EQ(other, 0);
}

TEST(InferenceServer, AFullQueueIsAnsweredAtOnce) {
  Rig rig({.takes = milliseconds(1000)}, with(1, {}, 3));
  std::atomic<int> accepted = 0, refused = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 12; ++t) {
    threads.emplace_back([&] {
      const auto got = Client(rig.address).post(kInfer, images(1, 1));
      if (got->status == 200) ++accepted;
      if (got->status == 429 && got->headers.at(0).first == "retry-after") ++refused;
    });
  }
  threads.clear();
  EXPECT_EQ(accepted + refused, 12);
  // Those that wait; one more where the first was being computed before the others came.
  EXPECT_GE(accepted, 3);
  EXPECT_GE(refused, 1);
}

TEST(InferenceServer, ADeadlineEndsTheWait) {
  Rig rig({.takes = milliseconds(100)}, with(1));
  std::jthread other([&] { Client(rig.address).post(kInfer, images(1, 8)); });
  json body = parse_json(images(2, 1), "body", ErrorCode::internal);
  body["parameters"] = {{"timeout", 1}};
  Client client(rig.address);
  std::set<int> seen;
  for (int i = 0; i < 20 && !seen.contains(504); ++i)
    seen.insert(client.post(kInfer, dump_json(body))->status);
  EXPECT_TRUE(seen.contains(504));
}

TEST(InferenceServer, GeneratesTheSameTokensWhateverElseRuns) {
  Rig rig({.tokens = true}, with(8));
  const auto ask = [&](Client& client, int seed) {
    const json body = {{"inputs",
                        {{{"name", "tokens"},
                          {"datatype", "INT64"},
                          {"shape", {2, 3}},
                          {"data", {1, 2, 3, 4, 0, 1}}}}},
                       {"parameters", {{"max_tokens", 9}, {"seed", seed}}}};
    return json_of(*client.post(kInfer, dump_json(body)))["outputs"][0];
  };
  std::vector<json> alone;
  Client client(rig.address);
  for (int seed = 0; seed < 20; ++seed) alone.push_back(ask(client, seed));
  EXPECT_EQ(alone[0]["shape"], json({2, 9}));
  EXPECT_NE(alone[0]["data"], alone[1]["data"]);
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Client mine(rig.address);
      for (int seed = 0; seed < 20; ++seed) {
        if (ask(mine, seed) != alone[static_cast<size_t>(seed)]) ++wrong;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(wrong, 0);
}

TEST(InferenceServer, ChangesWeightsWithoutLosingARequest) {
  Rig rig({.takes = std::chrono::microseconds(200)}, with(8));
  std::atomic<bool> stop = false;
  std::atomic<int> lost = 0, asked = 0, torn = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Client client(rig.address);
      while (!stop) {
        // Ten equal samples, more than a batch: all of one version, or one of them would differ.
        const auto got = client.post(kInfer, images(5, 1));
        const auto many = client.post(kInfer, images(5, 20));
        asked += 2;
        if (!got || got->status != 200 || !many || many->status != 200) {
          ++lost;
          continue;
        }
        const json answer = json_of(*many);
        const auto model =
            testing::make_small_model({}, std::stoll(answer["model_version"].get<std::string>()));
        const json body = parse_json(images(5, 20), "body", ErrorCode::internal);
        const auto values = body["inputs"][0]["data"].get<std::vector<float>>();
        std::vector<float> out(60);
        model->run(reinterpret_cast<const std::byte*>(values.data()), 20, out.data());
        if (answer["outputs"][0]["data"].get<std::vector<float>>() != out) ++torn;
      }
    });
  }
  Client client(rig.address);
  for (int64_t version = 2; version < 12; ++version) {
    rig.state->newest = version;
    const auto got = client.post(kLoad, "");
    ASSERT_EQ(got->status, 200) << got->body;
    EXPECT_EQ(json_of(*got)["model_version"], std::to_string(version));
  }
  stop = true;
  threads.clear();
  EXPECT_EQ(lost, 0);
  EXPECT_EQ(torn, 0);
  EXPECT_GT(asked, 0);
}

TEST(InferenceServer, KeepsTheOldWeightsWhereTheNewOnesAreDamaged) {
  Rig rig;
  Client client(rig.address);
  const json before = logits_of(client.post(kInfer, images(1, 3)));
  rig.state->newest = 2;
  rig.state->damaged = 2;
  const auto refused = client.post(kLoad, "");
  EXPECT_EQ(refused->status, 500);
  EXPECT_EQ(json_of(*refused)["error"],
            "the weights stay those of step 1: step-2: its hash is another one");
  EXPECT_EQ(client.post(kLoad, R"({"parameters": {"version": "9"}})")->status, 404);
  EXPECT_EQ(client.post(kLoad, R"({"parameters": {"version": "x"}})")->status, 400);
  EXPECT_EQ(client.post(kLoad, "", {{"origin", "http://elsewhere"}})->status, 403);
  EXPECT_EQ(logits_of(client.post(kInfer, images(1, 3))), before);
  rig.state->damaged = -1;
  EXPECT_EQ(client.post(kLoad, "")->status, 200);
  EXPECT_NE(logits_of(client.post(kInfer, images(1, 3))), before);
  EXPECT_EQ(client.post(kLoad, R"({"parameters": {"version": "1"}})")->status, 200);
  EXPECT_EQ(logits_of(client.post(kInfer, images(1, 3))), before);
  EXPECT_EQ(rig.lines().size(), 4u);
}

TEST(InferenceServer, OtherUsersAskAndDoNotChangeWeights) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  Rig rig;
  rig.state->newest = 2;
  Client other = Client::of_another_user(rig.address);
  const json before = logits_of(other.post(kInfer, images(1, 3)));
  const auto refused = other.post(kLoad, "");
  EXPECT_EQ(refused->status, 403);
  EXPECT_EQ(json_of(*refused)["error"], "weights are changed by the user whose server this is");
  EXPECT_EQ(logits_of(other.post(kInfer, images(1, 3))), before);
  EXPECT_EQ(Client(rig.address).post(kLoad, "")->status, 200);
  EXPECT_NE(logits_of(other.post(kInfer, images(1, 3))), before);
}

TEST(InferenceServer, FollowsTheNewestWeightsAndSaysOnceWhatIsWrong) {
  ServingOptions options;
  options.follow = milliseconds(5);
  Rig rig({}, std::move(options));
  rig.state->damaged = 2;
  rig.state->newest = 2;
  while (rig.lines().empty()) std::this_thread::sleep_for(milliseconds(1));
  rig.state->newest = 3;
  while (rig.lines().size() < 2) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_NE(rig.lines()[0].find("stay those of step 1"), std::string::npos);
  EXPECT_NE(rig.lines()[1].find("those of step 3 now"), std::string::npos);
}

// Who goes back to earlier weights wants to stay there, until there are others.
TEST(InferenceServer, WhatSomebodyChoseIsNotFollowedAwayAtOnce) {
  ServingOptions options;
  options.follow = milliseconds(5);
  Rig rig({}, std::move(options));
  rig.state->newest = 3;
  while (rig.lines().empty()) std::this_thread::sleep_for(milliseconds(1));
  Client client(rig.address);
  while (client.post(kLoad, R"({"parameters": {"version": "2"}})")->status != 200)
    std::this_thread::sleep_for(milliseconds(1));  // it is just looking for newer ones
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(json_of(*client.post(kInfer, images(1, 1)))["model_version"], "2");
  rig.state->newest = 4;
  while (json_of(*client.post(kInfer, images(1, 1)))["model_version"] != "4")
    std::this_thread::sleep_for(milliseconds(1));
}

TEST(InferenceServer, WhatIsNoNumberIsAnsweredWithAnError) {
  Rig rig;
  Client client(rig.address);
  const json huge = {{"inputs",
                      {{{"name", "images"},
                        {"datatype", "FP32"},
                        {"shape", {1, 1, 4, 4}},
                        {"data", std::vector<float>(16, 3e38f)}}}}};
  const auto got = client.post(kInfer, dump_json(huge));
  EXPECT_EQ(got->status, 400) << got->body;
  EXPECT_NE(got->body.find("no number"), std::string::npos) << got->body;
}

TEST(InferenceServer, DrainsWhatWasAcceptedAndRefusesWhatComes) {
  Rig rig({.takes = milliseconds(300)}, with(1));
  std::atomic<int> status = 0;
  Client waiting(rig.address), late(rig.address);
  late.get("/readyz");
  std::jthread accepted([&] { status = waiting.post(kInfer, images(1, 2))->status; });
  const auto in_flight = [&] {
    return Client(rig.address).get("/metrics")->body.find("in_flight 1\n") != std::string::npos;
  };
  while (!in_flight()) std::this_thread::sleep_for(milliseconds(1));
  std::atomic<bool> drained = false;
  rig.thread.call([&] { rig.server->drain([&] { drained = true; }); });
  const auto refused = late.post(kInfer, images(1, 1));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->headers.at(0).first, "retry-after");
  EXPECT_EQ(Client(rig.address).get("/readyz")->status, 503);
  EXPECT_EQ(Client(rig.address).get("/healthz")->status, 200);
  accepted.join();
  EXPECT_EQ(status, 200);
  while (!drained) std::this_thread::sleep_for(milliseconds(1));
}

TEST(InferenceServer, ASlowOrSilentClientHoldsUpNobody) {
  ServingOptions options;
  options.http.patience = options.http.idle = milliseconds(400);
  options.http.most_connections = 60;
  Rig rig({}, std::move(options));
  std::vector<Client> silent;
  for (int i = 0; i < 20; ++i) silent.emplace_back(rig.address);
  for (int i = 0; i < 20; ++i) {
    silent.emplace_back(rig.address);
    silent.back().say("POST " + kInfer + " HTTP/1.1\r\nHost: a\r\n" +
                      (i % 2 == 0 ? "Content-Le" : ""));
  }
  Client client(rig.address);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(client.post(kInfer, images(1, 1))->status, 200);
  std::vector<Client> more;
  for (int i = 0; i < 30; ++i) more.emplace_back(rig.address);
  EXPECT_EQ(more.back().receive()->status, 503);  // too many
  EXPECT_EQ(silent.back().receive()->status, 408);
  EXPECT_FALSE(silent.front().receive());
}

TEST(InferenceServer, AClientThatGoesHoldsUpNobody) {
  Rig rig({.takes = milliseconds(20)}, with(2));
  for (int i = 0; i < 30; ++i) {
    Client gone(rig.address);
    gone.say(to_bytes(HttpRequest{"POST", kInfer, {}, images(1, 1), true}, "a"));
  }
  Client client(rig.address);
  EXPECT_EQ(client.post(kInfer, images(1, 1))->status, 200);
}

TEST(InferenceServer, AnswersRequestsThatComeInOnePieceInTheirOrder) {
  Rig rig;
  Client client(rig.address);
  std::string all;
  for (int i = 0; i < 300; ++i)
    all += to_bytes(HttpRequest{"GET", i % 3 == 0 ? "/healthz" : "/none", {}, "", true}, "a");
  client.say(all);
  for (int i = 0; i < 300; ++i) ASSERT_EQ(client.receive()->status, i % 3 == 0 ? 200 : 404) << i;
}

// A body after the head of such an answer would be read as the beginning of the next one.
TEST(InferenceServer, AnswersToHeadHaveNoBody) {
  Rig rig;
  Client client(rig.address);
  client.say("HEAD /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  const std::string got = client.rest();
  EXPECT_TRUE(got.starts_with("HTTP/1.1 ")) << got;
  EXPECT_TRUE(got.ends_with("\r\n\r\n")) << got;
}

TEST(InferenceServer, TellsTheClientToSendTheBodyItHolds) {
  Rig rig;
  Client client(rig.address);
  const std::string body = images(1, 1);
  client.say(fmt::format(
      "POST {} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n", kInfer,
      body.size()));
  // An interim answer has no length, so it is not read as an answer here.
  EXPECT_EQ(Client(rig.address).get("/healthz")->status, 200);
  client.say(body);
  EXPECT_EQ(Client(rig.address).post(kInfer, body)->status, 200);
}

// Bytes of any kind: the server answers or ends the connection, and goes on.
TEST(InferenceServer, SurvivesHostileRequests) {
  ServingOptions options;
  options.http.limits.body = 100000;
  Rig rig({}, std::move(options));
  const std::string good = to_bytes(HttpRequest{"POST", kInfer, {}, images(3, 2), true}, "a");
  for (uint64_t i = 0; i < 400; ++i) {
    Rng rng(21, i);
    std::string bytes = good;
    for (uint32_t k = 1 + rng.below(8); k > 0; --k) {
      const size_t at = rng.below(static_cast<uint32_t>(bytes.size()));
      if (rng.below(2) == 0) {
        bytes[at] = static_cast<char>(rng.below(256));
      } else {
        bytes.erase(at, rng.below(40));
      }
    }
    Client client(rig.address);
    client.say(bytes);
    if (rng.below(2) == 0) continue;  // and goes without an answer
    client.say("\r\n\r\n");
  }
  Client client(rig.address);
  EXPECT_EQ(client.post(kInfer, std::string(100001, ' '))->status, 413);
  EXPECT_EQ(Client(rig.address).post(kInfer, std::string(5000, '['))->status, 400);
  EXPECT_EQ(Client(rig.address).post(kInfer, images(3, 2))->status, 200);
}

}  // namespace
}  // namespace ductile::serving
