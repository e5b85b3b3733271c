#include "ductile/net/gate.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <random>
#include <thread>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "ductile/base/testing.h"
#include "ductile/net/bytes_impl.h"
#include "ductile/net/channel.h"
#include "ductile/net/testing/sealed_pair.h"

namespace ductile::net {
namespace {

using std::chrono::milliseconds;

Deadline in(int ms) { return Clock::now() + milliseconds(ms); }

const Secret& secret() {
  static const Secret s(std::string_view("the secret of the tests"));
  return s;
}
const Identity kServer{"store", "job", 0, -1, 0};
const Identity kClient{"store", "job", 2, 1, 0};

// A gate served by a thread of its own, which lets frames of admitted peers echo.
class Door {
 public:
  explicit Door(GateOptions options = {}, Identity self = kServer)
      : gate_(
            Listener({"127.0.0.1", 0}), secret(), self, options,
            [self](const Identity& peer) { return same_job(self, peer); },
            [this](const Refusal& r) {
              const std::lock_guard lock(mutex_);
              refusals_.push_back(r);
            }),
        thread_([this](std::stop_token stop) {
          while (!stop.stop_requested()) {
            auto a = gate_.accept(in(50));
            most_pending_ = std::max(most_pending_.load(), gate_.num_pending());
            if (a) {
              Channel channel(std::move(a->socket), *std::move(a->seal));
              channel.send(channel.receive(in(5000)), in(5000));
              ++served_;
            }
          }
        }) {}

  Address address() const { return gate_.address(); }
  int served() const { return served_; }
  size_t most_pending() const { return most_pending_; }  // after any accept()
  std::vector<Refusal> refusals() {
    const std::lock_guard lock(mutex_);
    return refusals_;
  }
  bool wait_refusals(size_t count) {
    const Deadline deadline = in(10000);
    while (Clock::now() < deadline) {
      if (refusals().size() >= count) return true;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return false;
  }

 private:
  std::mutex mutex_;
  std::vector<Refusal> refusals_;
  std::atomic<int> served_{0};
  std::atomic<size_t> most_pending_ = 0;
  WaitingGate gate_;
  std::jthread thread_;
};

void expect_service(Door& door) {
  Admission a = dial(door.address(), secret(), kClient, kServer, {}, in(10000));
  Channel channel(std::move(a.socket), *std::move(a.seal));
  channel.send(bytes_of("hello"), in(5000));
  EXPECT_EQ(text_of(channel.receive(in(5000))), "hello");
}

TEST(Gate, LetsPeersInAndTheyExchangeFrames) {
  Door door;
  expect_service(door);
  EXPECT_TRUE(door.refusals().empty());
}

TEST(Gate, RefusesRandomBytesAndGoesOn) {
  Door door;
  std::mt19937 random(7);
  for (int i = 0; i < 8; ++i) {
    Socket stranger = connect(door.address(), {}, in(5000));
    std::vector<std::byte> bytes(1 + random() % 4000);
    for (auto& b : bytes) b = static_cast<std::byte>(random());
    try {
      stranger.write_all(bytes, in(5000));
      std::array<std::byte, 64> got;
      EXPECT_EQ(stranger.read_some(got, in(5000)), 0u) << "a stranger gets no byte";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer_lost) << error.what();
    }
  }
  ASSERT_TRUE(door.wait_refusals(8));
  EXPECT_EQ(door.refusals()[0].address.substr(0, 10), "127.0.0.1:");
  expect_service(door);
}

TEST(Gate, RefusesAWrongSecretAndSaysSoToBothSides) {
  Door door;
  try {
    dial(door.address(), Secret(std::string_view("not the right secret")), kClient, kServer, {},
         in(5000));
    FAIL() << "let in";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_NE(std::string(error.what()).find("secret"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(door.address().to_string()), std::string::npos);
  }
  EXPECT_TRUE(door.wait_refusals(1));
  expect_service(door);
}

TEST(Gate, FencesOutAnOlderGeneration) {
  Identity server = kServer;
  server.generation = 5;
  Door door({}, server);
  try {
    dial(door.address(), secret(), kClient, server, {}, in(5000));
    FAIL() << "let in";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::conflict);
    EXPECT_NE(std::string(error.what()).find("fenced out"), std::string::npos) << error.what();
  }
  ASSERT_TRUE(door.wait_refusals(1));
  EXPECT_NE(door.refusals()[0].reason.find("generation is over"), std::string::npos);
}

TEST(Gate, SlowAndSilentConnectionsEndAtTheHandshakesDeadline) {
  GateOptions options;
  options.handshake_deadline = milliseconds(200);
  Door door(options);
  Socket silent = connect(door.address(), {}, in(5000));
  Socket slow = connect(door.address(), {}, in(5000));
  std::jthread drip([&](std::stop_token stop) {  // a right hello, but a byte at a time
    std::vector<std::byte> hello = Handshake::client(secret(), kClient, kServer).take_output();
    for (size_t i = 0; i < hello.size() && !stop.stop_requested(); ++i) {
      const auto one = std::span(hello).subspan(i, 1);
      if (::send(slow.fd(), one.data(), 1, MSG_NOSIGNAL) < 0) return;
      std::this_thread::sleep_for(milliseconds(20));
    }
  });
  expect_service(door);  // meanwhile
  EXPECT_TRUE(door.wait_refusals(2));
  for (const Refusal& r : door.refusals()) {
    EXPECT_NE(r.reason.find("not done within"), std::string::npos) << r.reason;
  }
}

TEST(Gate, AFloodOfHalfOpenConnectionsIsBoundedAndAPeerStillGetsIn) {
  GateOptions options;
  options.max_pending = 16;
  options.handshake_deadline = milliseconds(60000);
  Door door(options);
  SocketOptions from;
  from.local_address = "127.0.0.66";
  std::vector<Socket> flood;
  for (int i = 0; i < 200; ++i) flood.push_back(connect(door.address(), from, in(5000)));
  expect_service(door);  // from another address, so it is not the one that is dropped
  EXPECT_LE(door.most_pending(), 16u);
  ASSERT_TRUE(door.wait_refusals(1));
  EXPECT_LE(door.refusals().size(), 200u);
  EXPECT_NE(door.refusals()[0].reason.find("too many"), std::string::npos);
}

// Authenticates itself, as a member does, and leaves the connection as it is then; `key` is what
// the two ends are to encrypt with.
Socket past_the_gate(const Address& to, Mac& key) {
  Socket socket = connect(to, {}, in(5000));
  Handshake handshake = Handshake::client(secret(), kClient, kServer);
  std::array<std::byte, 256> bytes;
  while (true) {
    socket.write_all(handshake.take_output(), in(5000));
    if (handshake.state() != Handshake::State::running) break;
    const size_t got = socket.read_some(std::span(bytes).first(handshake.wanted()), in(5000));
    handshake.feed(std::span(bytes).first(got));
  }
  key = handshake.key();
  return socket;
}

// Never plain bytes in place of encrypted ones, whoever says them.
TEST(Gate, AMemberThatDoesNotEncryptIsRefused) {
  Door door;
  Mac key;
  Socket socket = past_the_gate(door.address(), key);
  socket.write_all(bytes_of(std::string("\x05\0\0\0hello", 9)), in(5000));
  ASSERT_TRUE(door.wait_refusals(1));
  EXPECT_NE(door.refusals()[0].reason.find("encrypted connection cannot be made"),
            std::string::npos)
      << door.refusals()[0].reason;
  EXPECT_EQ(door.served(), 0);
  expect_service(door);
}

// What one connection authenticated is worth nothing with the key of another one.
TEST(Gate, TheKeyOfAnotherConnectionIsRefused) {
  Door door;
  Mac first, second;
  const Socket other = past_the_gate(door.address(), first);
  Socket socket = past_the_gate(door.address(), second);
  EXPECT_NE(first, second);
  Seal seal(Seal::Side::client, first);
  socket.write_all(seal.take_output(), in(5000));
  ASSERT_TRUE(door.wait_refusals(1));
  EXPECT_NE(door.refusals()[0].reason.find("another key"), std::string::npos)
      << door.refusals()[0].reason;
}

TEST(Gate, WhoStopsAfterAuthenticationEndsAtTheSameDeadline) {
  GateOptions options;
  options.handshake_deadline = milliseconds(200);
  Door door(options);
  Mac key;
  const Socket silent = past_the_gate(door.address(), key);
  Socket slow = past_the_gate(door.address(), key);
  Seal seal(Seal::Side::client, key);
  slow.write_all(std::span<const std::byte>(seal.take_output()).first(100), in(5000));
  expect_service(door);  // meanwhile
  ASSERT_TRUE(door.wait_refusals(2));
  for (const Refusal& r : door.refusals()) {
    EXPECT_NE(r.reason.find("not done within"), std::string::npos) << r.reason;
  }
}

TEST(Gate, AFloodOfMembersThatStopIsBounded) {
  GateOptions options;
  options.max_pending = 8;
  options.max_logs_a_second = 1000;
  options.handshake_deadline = milliseconds(60000);
  Door door(options);
  std::vector<Socket> flood;
  Mac key;
  for (int i = 0; i < 40; ++i) flood.push_back(past_the_gate(door.address(), key));
  ASSERT_TRUE(door.wait_refusals(30));
  EXPECT_LE(door.most_pending(), 8u);
  expect_service(door);
}

// It takes itself for admitted by then: strangers are dropped before it, from its address too.
TEST(Gate, WhoHasProvedItselfOutlastsAFloodOfStrangers) {
  GateOptions options;
  options.max_pending = 8;
  options.max_logs_a_second = 1000;
  options.handshake_deadline = milliseconds(60000);
  Door door(options);
  Mac key;
  Socket member = past_the_gate(door.address(), key);
  expect_service(door);  // so the gate has looked at the member's proof
  std::vector<Socket> flood;
  for (int i = 0; i < 40; ++i) flood.push_back(connect(door.address(), {}, in(5000)));
  ASSERT_TRUE(door.wait_refusals(30));
  Seal seal(Seal::Side::client, key);
  std::array<std::byte, 256> bytes;
  while (true) {
    member.write_all(seal.take_output(), in(5000));
    if (seal.done()) break;
    const size_t got = member.read_some(std::span(bytes).first(seal.wanted()), in(5000));
    ASSERT_GT(got, 0u) << "dropped";
    seal.feed(std::span(bytes).first(got));
  }
  Channel channel(std::move(member), std::move(seal));
  channel.send(bytes_of("hello"), in(5000));
  EXPECT_EQ(text_of(channel.receive(in(10000))), "hello");
}

TEST(Dial, AServerWithAnotherKeyIsRefused) {
  Listener listener({"127.0.0.1", 0});
  std::jthread server([&] {
    Socket socket = listener.accept(in(10000));
    Handshake handshake = Handshake::server(
        secret(), kServer, [](const Identity& peer) { return same_job(kServer, peer); });
    std::array<std::byte, 512> bytes;
    while (handshake.state() == Handshake::State::running) {
      const size_t got = socket.read_some(std::span(bytes).first(handshake.wanted()), in(5000));
      handshake.feed(std::span(bytes).first(got));
      socket.write_all(handshake.take_output(), in(5000));
    }
    Seal seal(Seal::Side::server, testing::key_number(9));
    try {
      while (true) {
        const size_t got = socket.read_some(std::span(bytes).first(seal.wanted()), in(5000));
        if (got == 0) return;
        seal.feed(std::span(bytes).first(got));
      }
    } catch (const Error&) {
      socket.write_all(seal.take_output(), in(5000));
    }
  });
  DialOptions options;
  options.wait_for_server = false;
  std::string text;
  EXPECT_EQ(
      ductile::testing::code_of(
          [&] { dial(listener.address(), secret(), kClient, kServer, options, in(5000)); }, &text),
      ErrorCode::unavailable);
  EXPECT_NE(text.find("another key"), std::string::npos) << text;
  EXPECT_NE(text.find(listener.address().to_string()), std::string::npos) << text;
}

TEST(Gate, ReportsOfAFloodAreCountedNotRepeated) {
  GateOptions options;
  options.max_logs_a_second = 3;
  Door door(options);
  for (int i = 0; i < 50; ++i) {
    Socket s = connect(door.address(), {}, in(5000));
    s.write_all(bytes_of("GET / HTTP/1.1\r\n"), in(5000));
  }
  ASSERT_TRUE(door.wait_refusals(3));
  expect_service(door);
  EXPECT_LE(door.refusals().size(), 12u);
}

TEST(Gate, OutOfDescriptorsItWaitsAndGoesOn) {
  std::vector<Refusal> refusals;
  WaitingGate gate(
      Listener({"127.0.0.1", 0}), secret(), kServer, {},
      [](const Identity& peer) { return same_job(kServer, peer); },
      [&](const Refusal& r) { refusals.push_back(r); });
  auto client = std::async(std::launch::async, [&] {
    return dial(gate.address(), secret(), kClient, kServer, {}, in(10000));
  });
  std::this_thread::sleep_for(milliseconds(20));  // the connection is in the queue by now
  rlimit old{};
  getrlimit(RLIMIT_NOFILE, &old);
  rlimit none = old;
  none.rlim_cur = 3;
  setrlimit(RLIMIT_NOFILE, &none);
  EXPECT_FALSE(gate.accept(in(30)));
  setrlimit(RLIMIT_NOFILE, &old);
  EXPECT_FALSE(refusals.empty());
  EXPECT_TRUE(gate.accept(in(10000)));
  client.get();
}

TEST(Dial, WaitsForAServerThatIsNotThereYetAndGivesUpAtTheDeadline) {
  Address address;
  {
    Listener listener({"127.0.0.1", 0});
    address = listener.address();
  }
  try {
    dial(address, secret(), kClient, kServer, {}, in(60));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable) << error.what();
  }
  auto client = std::async(
      std::launch::async, [&] { return dial(address, secret(), kClient, kServer, {}, in(10000)); });
  std::this_thread::sleep_for(milliseconds(30));
  WaitingGate gate(Listener(address), secret(), kServer, {},
                   [](const Identity& peer) { return same_job(kServer, peer); }, {});
  EXPECT_TRUE(gate.accept(in(10000)));
  EXPECT_EQ(client.get().peer.role, "store");
}

TEST(Dial, RefusesAServerThatIsAnotherThanWanted) {
  Door door;
  Identity wanted = kServer;
  wanted.role = "transport";
  wanted.peer = 3;
  try {
    dial(door.address(), secret(), kClient, wanted, {}, in(5000));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::conflict) << error.what();
  }
}

}  // namespace
}  // namespace ductile::net
