// A controller's connections to workers that take what they are sent late, or never.
#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/link/addresses.h"
#include "ductile/server/connections_impl.h"

namespace ductile::server {
namespace {

using namespace control;
using namespace std::chrono_literals;

constexpr WorkerId kWorker = 7;

// Of hundreds of members: two of them are more bytes than the buffers of a connection hold.
Instruction large_instruction() {
  const auto plan = std::make_shared<GenerationPlan>();
  plan->number = 3;
  for (int64_t i = 0; i < 500; ++i)
    plan->members.push_back({.worker = static_cast<WorkerId>(i + 1),
                             .address = std::string(7500, 'a'),
                             .ranks = {i, i + 1}});
  return {1, kWorker, Enter{plan, "a new generation"}};
}

Instruction small_instruction(uint64_t sequence) { return {1, kWorker, Ack{sequence}}; }

class WorkerConnection : public ::testing::Test {
 protected:
  WorkerConnection() {
    net::SocketOptions socket;
    socket.receive_buffer = 65536;
    auto dialling = std::async(std::launch::async, [this, socket] {
      return net::dial(connections_.address(), secret_, link::worker_identity("job", kWorker),
                       link::controller_identity("job"), {.socket = socket}, later());
    });
    turn_until([&] { return connections_.has(kWorker); });
    net::Admission admission = dialling.get();
    worker_.emplace(std::move(admission.socket), *std::move(admission.seal));
  }

  void SetUp() override {
    std::ifstream file("/proc/sys/net/ipv4/tcp_wmem");
    int64_t least = 0, usual = 0, most = 0;
    if (file >> least >> usual >> most && most > 6'000'000)
      GTEST_SKIP() << "connections of this machine hold " << most << " bytes";
  }

  // The second one does not fit.
  void send_two_plans() {
    connections_.send(large_instruction());
    connections_.send(large_instruction());
  }

  static net::Deadline later() { return net::Clock::now() + 60s; }

  template <class Condition>
  void turn_until(const Condition& holds) {
    const net::Deadline end = later();
    while (!holds()) {
      ASSERT_LT(net::Clock::now(), end);
      loop_.turn(now_);  // does not wait, since the clock of the loop stands still
      if (std::exchange(ready_, false)) connections_.serve();
    }
  }
  Instruction hear() {
    const std::vector<std::byte> said = worker_->receive(later());
    return instruction_from_json(
        parse_json(std::string_view(reinterpret_cast<const char*>(said.data()), said.size())));
  }
  // While the loop turns.
  Instruction heard() {
    auto hearing = std::async(std::launch::async, [this] { return hear(); });
    turn_until([&] { return hearing.wait_for(0s) == std::future_status::ready; });
    return hearing.get();
  }

  const net::Secret secret_{std::string_view("the secret of the tests")};
  net::Deadline now_ = net::Clock::now();
  net::Loop loop_{[this] { return now_; }};
  bool ready_ = false;
  std::vector<Event> events_;
  std::vector<std::string> refusals_;
  Connections connections_{loop_,
                           {"127.0.0.1", 0},
                           secret_,
                           "job",
                           [this](const net::Refusal& one) { refusals_.push_back(one.reason); },
                           [this](const Event& event) { events_.push_back(event); },
                           [this] { ready_ = true; }};
  std::optional<net::Channel> worker_;
};

TEST_F(WorkerConnection, APlanThatNoBufferHoldsArrivesWhole) {
  send_two_plans();
  EXPECT_TRUE(connections_.has(kWorker));
  EXPECT_EQ(heard(), large_instruction());
  EXPECT_EQ(heard(), large_instruction());
  connections_.send(small_instruction(1));
  EXPECT_EQ(heard(), small_instruction(1));
  EXPECT_TRUE(events_.empty());
}

TEST_F(WorkerConnection, WhatIsSentBehindAPlanUnderWayIsDropped) {
  send_two_plans();
  for (uint64_t i = 1; i < 100; ++i) connections_.send(small_instruction(i));
  EXPECT_EQ(heard(), large_instruction());
  EXPECT_EQ(heard(), large_instruction());
  connections_.send(small_instruction(100));
  EXPECT_EQ(heard(), small_instruction(100));
}

TEST_F(WorkerConnection, AWorkerIsHeardWhileItsPlanIsUnderWay) {
  send_two_plans();
  WorkerStatus report{kWorker};
  report.sequence = 5;
  const std::string text = dump_json(to_json(report));
  worker_->send(std::as_bytes(std::span(text)), later());
  turn_until([&] { return !events_.empty(); });
  EXPECT_EQ(std::get<WorkerReported>(events_.front()).report.sequence, 5u);
}

TEST_F(WorkerConnection, WhoTakesNothingForLongIsLetGo) {
  send_two_plans();
  now_ += Connections::kPatience;
  connections_.send(small_instruction(1));
  EXPECT_TRUE(connections_.has(kWorker));
  now_ += 1s;
  connections_.send(small_instruction(2));
  EXPECT_FALSE(connections_.has(kWorker));
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(std::get<ConnectionClosed>(events_.front()).worker, kWorker);
  EXPECT_EQ(refusals_.size(), 1u);
}

TEST_F(WorkerConnection, WhoClosesItIsNotRefused) {
  worker_.reset();
  turn_until([&] { return !events_.empty(); });
  EXPECT_EQ(std::get<ConnectionClosed>(events_.front()).worker, kWorker);
  EXPECT_TRUE(refusals_.empty());
}

}  // namespace
}  // namespace ductile::server
