#include "ductile/net/relay.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/net/dialing.h"
#include "ductile/net/testing/socket_pair.h"

namespace ductile::net {
namespace {

using namespace std::chrono_literals;

const Secret& relay_secret() {
  static const Secret s(std::string_view("the secret of both relays"));
  return s;
}
const Identity kDoor{"replica", "job", 0, 3, 0};
const Identity kCaller{"front", "job", 0, -1, 0};

template <class Holds>
bool turn_until(Loop& loop, const Holds& holds) {
  const Deadline deadline = Clock::now() + 60s;
  while (!holds()) {
    if (Clock::now() > deadline) return false;
    loop.turn(Clock::now() + 50ms);
  }
  return true;
}

// One end of a stream: sends what it is given, keeps what comes.
class StreamEnd {
 public:
  StreamEnd(Loop& loop, int fd)
      : fd_(fd), watch_(loop.watch(fd, Interest::read, [this](Ready) { turn(); })) {}

  void send(std::string_view bytes) {
    unsent_ += bytes;
    watch_.set(Interest::both);
  }
  // Reads nothing more until go_on().
  void rest() { watch_.set(Interest::none); }
  void go_on() { watch_.set(Interest::both); }
  void forget() { watch_.end(); }

  const std::string& come() const { return come_; }
  bool ended() const { return ended_; }

 private:
  void turn() {
    while (!unsent_.empty()) {
      const ssize_t n = ::send(fd_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n <= 0) break;
      unsent_.erase(0, static_cast<size_t>(n));
    }
    char block[65536];
    const ssize_t n = ::recv(fd_, block, sizeof block, MSG_DONTWAIT);
    if (n > 0) come_.append(block, static_cast<size_t>(n));
    ended_ = ended_ || n == 0;
    watch_.set(ended_ ? Interest::none : unsent_.empty() ? Interest::read : Interest::both);
  }

  const int fd_;
  std::string unsent_, come_;
  bool ended_ = false;
  Loop::Watch watch_;
};

// left.near = left.far - relay - encrypted connection - relay - right.far = right.near
struct Bridge {
  Bridge() {
    dialing.emplace(loop, gate.address(), relay_secret(), kCaller, kDoor, 20s,
                    [this](Dialing::Outcome outcome) {
                      near = std::make_unique<Relay>(loop, Socket(left.far.release(), "left"),
                                                     std::move(std::get<Admission>(outcome)),
                                                     [this] { near.reset(); });
                    });
    EXPECT_TRUE(turn_until(loop, [&] { return near && far; }));
  }

  Loop loop;
  testing::SocketPair left, right;
  StreamEnd here{loop, left.near.get()}, there{loop, right.near.get()};
  std::unique_ptr<Relay> near, far;
  std::optional<Dialing> dialing;
  Gate gate{loop,
            Listener({"127.0.0.1", 0}),
            relay_secret(),
            kDoor,
            {},
            [](const Identity& peer) {
              return peer == kCaller ? Verdict::admitted : Verdict::unexpected;
            },
            {},
            [this](Admission admission) {
              far = std::make_unique<Relay>(loop, Socket(right.far.release(), "right"),
                                            std::move(admission), [this] { far.reset(); });
            }};
};

std::string some_bytes(uint64_t seed, size_t count) {
  Rng rng(seed, 41);
  std::string out(count, '\0');
  for (char& c : out) c = static_cast<char>(rng.below(256));
  return out;
}

TEST(Relay, CarriesStreamsOfAnyLengthBothWaysAtOnce) {
  Bridge bridge;
  std::string sent, returned;
  Rng rng(7, 1);
  for (const size_t most : {size_t{1}, size_t{100}, size_t{70'000}, size_t{2} << 20}) {
    for (uint64_t i = 0; i < 6; ++i) {
      const std::string out = some_bytes(i, 1 + rng.below(static_cast<uint32_t>(most)));
      const std::string back = some_bytes(i + 100, 1 + rng.below(static_cast<uint32_t>(most)));
      bridge.here.send(out);
      bridge.there.send(back);
      sent += out;
      returned += back;
    }
    ASSERT_TRUE(turn_until(bridge.loop, [&] {
      return bridge.there.come().size() >= sent.size() &&
             bridge.here.come().size() >= returned.size();
    }));
  }
  EXPECT_TRUE(bridge.there.come() == sent);
  EXPECT_TRUE(bridge.here.come() == returned);
  EXPECT_TRUE(bridge.near && bridge.far);
}

TEST(Relay, WhoeverTakesNothingHoldsUpTheOtherSideAndLosesNothing) {
  Bridge bridge;
  const std::string sent = some_bytes(3, size_t{32} << 20);
  bridge.there.rest();
  bridge.here.send(sent);
  for (int i = 0; i < 100; ++i) bridge.loop.turn(Clock::now() + 1ms);
  EXPECT_EQ(bridge.there.come().size(), 0u);
  bridge.there.go_on();
  ASSERT_TRUE(turn_until(bridge.loop, [&] { return bridge.there.come().size() >= sent.size(); }));
  EXPECT_TRUE(bridge.there.come() == sent);
}

TEST(Relay, TheEndOfOneSideReachesTheOtherBehindAllThatWasSaid) {
  Bridge bridge;
  const std::string sent = some_bytes(5, 3'000'000);
  bridge.there.send(sent);
  ASSERT_TRUE(turn_until(bridge.loop, [&] { return bridge.here.come().size() >= sent.size(); }));
  bridge.there.forget();  // as a server does after its last answer
  constexpr std::string_view kLast = "the last words";
  ASSERT_EQ(::send(bridge.right.near.get(), kLast.data(), kLast.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(kLast.size()));
  ::shutdown(bridge.right.near.get(), SHUT_WR);
  ASSERT_TRUE(turn_until(bridge.loop, [&] { return bridge.here.ended(); }));
  EXPECT_TRUE(bridge.here.come() == sent + std::string(kLast));
  EXPECT_TRUE(turn_until(bridge.loop, [&] { return !bridge.near && !bridge.far; }));
}

TEST(Relay, ACutEndsBothSides) {
  Bridge bridge;
  bridge.here.send("a question");
  ASSERT_TRUE(turn_until(bridge.loop, [&] { return !bridge.there.come().empty(); }));
  bridge.far.reset();  // as where its process is killed
  ASSERT_TRUE(turn_until(bridge.loop, [&] { return bridge.here.ended() && !bridge.near; }));
  ASSERT_TRUE(turn_until(bridge.loop, [&] { return bridge.there.ended(); }));
}

// What a dialing came to, with a gate that expects `kDoor`'s callers.
std::string outcome_of(Loop& loop, const Address& to, const Secret& secret, const Identity& self,
                       const Identity& server, std::chrono::milliseconds patience = 20s) {
  std::optional<Dialing::Outcome> outcome;
  Dialing dialing(loop, to, secret, self, server, patience,
                  [&](Dialing::Outcome come) { outcome = std::move(come); });
  EXPECT_TRUE(turn_until(loop, [&] { return outcome.has_value(); }));
  const auto* error = std::get_if<Error>(&*outcome);
  return error == nullptr ? "" : std::string(to_string(error->code())) + ": " + error->what();
}

TEST(Dialing, IsRefusedWithAnotherSecretOrByAnotherProcess) {
  Bridge bridge;
  bridge.near.reset();
  bridge.far.reset();
  const Address at = bridge.gate.address();
  const Secret other(std::string_view("the secret of somebody else"));
  const auto expect = [&](const std::string& outcome, const std::string& code) {
    EXPECT_EQ(outcome.substr(0, outcome.find(':')), code) << outcome;
    EXPECT_NE(outcome.find(at.to_string()), std::string::npos) << outcome;
  };
  expect(outcome_of(bridge.loop, at, other, kCaller, kDoor), "unavailable");
  Identity fourth = kDoor;
  fourth.peer = 4;
  expect(outcome_of(bridge.loop, at, relay_secret(), kCaller, fourth), "conflict");
  EXPECT_NE(outcome_of(bridge.loop, at, relay_secret(), kDoor, kDoor), "");
  EXPECT_FALSE(bridge.far) << "nobody was let in";
}

TEST(Dialing, SaysThatNobodyIsThereOrAnswers) {
  Loop loop;
  Address nobody;
  {
    const Listener closed(Address{"127.0.0.1", 0});
    nobody = closed.address();
  }
  EXPECT_NE(outcome_of(loop, nobody, relay_secret(), kCaller, kDoor).find("unavailable"),
            std::string::npos);
  const Listener silent(Address{"127.0.0.1", 0});
  EXPECT_NE(
      outcome_of(loop, silent.address(), relay_secret(), kCaller, kDoor, 50ms).find("deadline"),
      std::string::npos);
  EXPECT_THROW(Dialing(loop, {"localhost", 1}, relay_secret(), kCaller, kDoor, 1s, {}), Error);
}

}  // namespace
}  // namespace ductile::net
