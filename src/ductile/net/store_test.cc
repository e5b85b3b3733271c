#include "ductile/net/store.h"

#include <ctime>
#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/testing.h"
#include "ductile/net/channel.h"
#include "ductile/net/store_protocol_impl.h"
#include "ductile/net/store_server.h"

namespace ductile::net {
namespace {

using std::chrono::milliseconds;

Deadline in(int ms) { return Clock::now() + milliseconds(ms); }

const Secret& secret() {
  static const Secret s(std::string_view("the secret of the tests"));
  return s;
}

using ductile::testing::code_of;

// A store as several processes see it: each call makes another client's view of the same one.
struct Maker {
  const char* name;
  std::function<std::function<std::shared_ptr<Store>()>()> make;
};

class StoreConformance : public ::testing::TestWithParam<Maker> {
 protected:
  std::function<std::shared_ptr<Store>()> connect_ = GetParam().make();
};

TEST_P(StoreConformance, WhatOneSetsTheOthersGet) {
  const auto a = connect_();
  const auto b = connect_();
  a->set("k", "one", in(5000));
  EXPECT_EQ(b->get("k", in(5000)), "one");
  b->set("k", std::string("\0two", 4), in(5000));
  EXPECT_EQ(a->get("k", in(5000)), std::string("\0two", 4));
  a->set("empty", "", in(5000));
  EXPECT_EQ(b->get("empty", in(5000)), "");
  const std::string large(Store::kMaxValue, 'x');
  a->set("large", large, in(5000));
  EXPECT_EQ(b->get("large", in(5000)), large);
}

TEST_P(StoreConformance, GetWaitsForTheKey) {
  const auto a = connect_();
  const auto b = connect_();
  auto waiting = std::async(std::launch::async, [&] { return a->get("late", in(10000)); });
  std::this_thread::sleep_for(milliseconds(20));
  b->set("late", "here", in(5000));
  EXPECT_EQ(waiting.get(), "here");
}

TEST_P(StoreConformance, DeadlinesNameTheKeyAndTheStoreGoesOn) {
  const auto a = connect_();
  std::string text;
  EXPECT_EQ(code_of([&] { a->get("missing", in(20)); }, &text), ErrorCode::deadline);
  EXPECT_NE(text.find("missing"), std::string::npos) << text;
  // The answer to the call that gave up must not be taken for that of the next.
  a->set("missing", "x", in(5000));
  EXPECT_EQ(a->add("n", 3, in(5000)), 3);
  EXPECT_EQ(a->get("missing", in(5000)), "x");
  const std::vector<std::string> keys = {"missing", "never"};
  EXPECT_EQ(code_of([&] { a->wait(keys, in(20)); }), ErrorCode::deadline);
}

TEST_P(StoreConformance, WaitReturnsOnceAllKeysAreThere) {
  const auto a = connect_();
  const auto b = connect_();
  std::vector<std::string> keys;
  for (int i = 0; i < 1500; ++i) keys.push_back("w" + std::to_string(i));
  for (size_t i = 1; i < keys.size(); ++i) b->set(keys[i], "", in(5000));
  auto waiting = std::async(std::launch::async, [&] { a->wait(keys, in(10000)); });
  EXPECT_EQ(waiting.wait_for(milliseconds(30)), std::future_status::timeout);
  b->set(keys[0], "", in(5000));
  waiting.get();
}

TEST_P(StoreConformance, ConcurrentAddsAllCount) {
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const auto store = connect_();
      for (int i = 0; i < 100; ++i) store->add("sum", 1, in(10000));
    });
  }
  threads.clear();
  const auto a = connect_();
  EXPECT_EQ(a->add("sum", -5, in(5000)), 395);
  EXPECT_EQ(a->get("sum", in(5000)), "395");
}

TEST_P(StoreConformance, WrongUseIsRefused) {
  const auto a = connect_();
  a->set("text", "7", in(5000));
  EXPECT_EQ(code_of([&] { a->add("text", 1, in(5000)); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { a->set("", "x", in(5000)); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { a->set(std::string(257, 'k'), "x", in(5000)); }),
            ErrorCode::invalid_argument);
  const std::string large(Store::kMaxValue + 1, 'x');
  EXPECT_EQ(code_of([&] { a->set("k", large, in(5000)); }), ErrorCode::invalid_argument);
  EXPECT_EQ(a->get("text", in(5000)), "7");
}

TEST_P(StoreConformance, ManyThreadsMayShareOne) {
  const auto a = connect_();
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string key = std::to_string(t) + "/" + std::to_string(i);
        a->set(key, key, in(10000));
        EXPECT_EQ(a->get(key, in(10000)), key);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, StoreConformance,
    ::testing::Values(Maker{"memory",
                            [] {
                              std::shared_ptr<Store> store = make_memory_store();
                              return [store] { return store; };
                            }},
                      Maker{"server",
                            [] {
                              const auto server = std::make_shared<StoreServer>(
                                  Address{"127.0.0.1", 0}, secret(), "job");
                              return [server]() -> std::shared_ptr<Store> {
                                return connect_store(server->address(), secret(), "job", in(10000));
                              };
                            }}),
    [](const auto& info) { return info.param.name; });

TEST(StoreServer, RefusesStrangersAndServesOn) {
  std::mutex mutex;
  int refusals = 0;
  StoreServer server({"127.0.0.1", 0}, secret(), "job", {}, [&](const Refusal&) {
    const std::lock_guard lock(mutex);
    ++refusals;
  });
  const auto store = connect_store(server.address(), secret(), "job", in(10000));
  EXPECT_EQ(code_of([&] {
              connect_store(server.address(), Secret(std::string_view("not the right secret")),
                            "job", in(5000));
            }),
            ErrorCode::unavailable);
  EXPECT_EQ(code_of([&] { connect_store(server.address(), secret(), "other", in(5000)); }),
            ErrorCode::conflict);
  Socket stranger = connect(server.address(), {}, in(5000));
  stranger.write_all(std::vector<std::byte>(500, std::byte{0x41}), in(5000));
  store->set("k", "v", in(5000));
  EXPECT_EQ(store->get("k", in(5000)), "v");
  const Deadline patience = in(10000);
  while (Clock::now() < patience) {
    const std::lock_guard lock(mutex);
    if (refusals >= 3) break;
  }
  EXPECT_GE(refusals, 3);
}

TEST(StoreServer, AMemberThatSendsNonsenseLosesItsConnectionAlone) {
  StoreServer server({"127.0.0.1", 0}, secret(), "job");
  const auto store = connect_store(server.address(), secret(), "job", in(10000));
  const Identity id{"store", "job", 0, -1, 0};
  Admission a = dial(server.address(), secret(), id, id, {}, in(10000));
  Channel channel(std::move(a.socket), *std::move(a.seal));
  channel.send(std::vector<std::byte>(3, std::byte{9}), in(5000));
  EXPECT_EQ(code_of([&] { channel.receive(in(10000)); }), ErrorCode::peer_lost);
  EXPECT_EQ(store->add("n", 1, in(5000)), 1);
}

TEST(StoreServer, AFullStoreSaysSo) {
  StoreServerOptions options;
  options.max_bytes = 1000;
  StoreServer server({"127.0.0.1", 0}, secret(), "job", options);
  const auto store = connect_store(server.address(), secret(), "job", in(10000));
  EXPECT_EQ(code_of([&] { store->set("k", std::string(1000, 'x'), in(5000)); }),
            ErrorCode::unavailable);
  store->set("k", std::string(900, 'x'), in(5000));
}

TEST(StoreClient, SeesThatTheServerIsGone) {
  auto server = std::make_unique<StoreServer>(Address{"127.0.0.1", 0}, secret(), "job");
  const Address address = server->address();
  const auto store = connect_store(address, secret(), "job", in(10000));
  auto waiting = std::async(std::launch::async, [&] {
    std::string text;
    EXPECT_EQ(code_of([&] { store->get("never", in(20000)); }, &text), ErrorCode::unavailable);
    EXPECT_NE(text.find(address.to_string()), std::string::npos) << text;
  });
  std::this_thread::sleep_for(milliseconds(20));
  server.reset();
  waiting.get();
  EXPECT_EQ(code_of([&] { store->set("k", "v", in(5000)); }), ErrorCode::unavailable);
}

// What no client of ours sends.
TEST(StoreServer, AGetOfNoKeysIsRefusedAndTheServerGoesOn) {
  const StoreServer server({"127.0.0.1", 0}, secret(), "job");
  const Identity self{"store", "job", 0, -1, 0};
  Admission admission = dial(server.address(), secret(), self, self, {}, in(5000));
  Channel channel(std::move(admission.socket), *std::move(admission.seal));
  for (const uint32_t count : {0u, 2u, 0xffffffffu}) {
    std::vector<std::byte> request;
    append_number(request, static_cast<uint8_t>(StoreRequest::get));
    append_number(request, count);
    append_number(request, uint64_t{1000});
    append_number(request, count);
    channel.send(request, in(5000));
    const std::vector<std::byte> frame = channel.receive(in(5000));
    FieldReader answer(frame);
    EXPECT_EQ(answer.number<uint32_t>(), count);
    EXPECT_NE(answer.number<uint8_t>(), 0);
  }
  const auto store = connect_store(server.address(), secret(), "job", in(5000));
  store->set("k", "v", in(5000));
  EXPECT_EQ(store->get("k", in(5000)), "v");
}

// By the time on a processor: a loaded machine gives a thread that spins less of it, not more.
TEST(StoreServer, RestsAfterAGetThatTimedOut) {
  const StoreServer server({"127.0.0.1", 0}, secret(), "job");
  const auto store = connect_store(server.address(), secret(), "job", in(5000));
  EXPECT_EQ(code_of([&] { store->get("never", in(1)); }), ErrorCode::deadline);
  const auto used = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return milliseconds(time.tv_sec * 1000 + time.tv_nsec / 1'000'000);
  };
  const milliseconds before = used();
  std::this_thread::sleep_for(milliseconds(600));
  EXPECT_LT(used() - before, milliseconds(100));
}

}  // namespace
}  // namespace ductile::net
