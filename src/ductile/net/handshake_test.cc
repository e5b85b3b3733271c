#include "ductile/net/handshake.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/net/bytes_impl.h"

namespace ductile::net {
namespace {

const Secret& transport_secret() {
  static const Secret s(std::string_view("the secret of the tests"));
  return s;
}
const Identity kListener{"transport", "job", 4, 0, 0};
const Identity kDialler{"transport", "job", 4, 3, 1};

Admit rules(const Identity& self) {
  return [self](const Identity& peer) { return same_job(self, peer); };
}

struct Pair {
  Handshake client = Handshake::client(transport_secret(), kDialler, kListener);
  Handshake server = Handshake::server(transport_secret(), kListener, rules(kListener));
};

// Moves bytes until nobody has any left; `tamper` may alter what passes, by its place in the whole.
void run(Pair& p, const std::function<void(bool to_server, std::vector<std::byte>&)>& tamper = {}) {
  for (int round = 0; round < 4; ++round) {
    for (const bool to_server : {true, false}) {
      std::vector<std::byte> bytes = to_server ? p.client.take_output() : p.server.take_output();
      if (tamper && !bytes.empty()) tamper(to_server, bytes);
      Handshake& to = to_server ? p.server : p.client;
      std::span<const std::byte> rest(bytes);
      while (!rest.empty() && to.state() == Handshake::State::running) {
        const size_t part = std::min(rest.size(), to.wanted());
        to.feed(rest.first(part));
        rest = rest.subspan(part);
      }
    }
  }
}

TEST(Handshake, BothSidesLearnWhoTheOtherIsAndAgreeOnAKey) {
  Pair p;
  run(p);
  ASSERT_EQ(p.client.state(), Handshake::State::done) << p.client.reason();
  ASSERT_EQ(p.server.state(), Handshake::State::done) << p.server.reason();
  EXPECT_EQ(p.server.peer(), kDialler);
  EXPECT_EQ(p.client.peer(), kListener);
  EXPECT_EQ(p.client.key(), p.server.key());
  Pair other;
  run(other);
  EXPECT_NE(p.client.key(), other.client.key()) << "each connection has a key of its own";
}

TEST(Handshake, AWrongSecretIsSeenByTheClientAndProvesNothingToTheServer) {
  const Secret other(std::string_view("some other secret at all"));
  Pair p{Handshake::client(other, kDialler, kListener),
         Handshake::server(transport_secret(), kListener, rules(kListener))};
  run(p);
  EXPECT_EQ(p.client.state(), Handshake::State::refused);
  EXPECT_NE(p.client.reason().find("secret"), std::string::npos);
  EXPECT_NE(p.server.state(), Handshake::State::done);
}

// Whatever single bit is altered on the way, in whichever message: never two sides that are done.
RC_GTEST_PROP(Handshake, NoAlteredBitPasses, ()) {
  const auto at = *rc::gen::inRange<size_t>(0, 136 + 32 + 168 + 41);
  const auto bit = *rc::gen::inRange(0, 8);
  Pair p;
  size_t seen = 0;
  run(p, [&](bool, std::vector<std::byte>& bytes) {
    if (at >= seen && at < seen + bytes.size()) {
      bytes[at - seen] ^= static_cast<std::byte>(1 << bit);
    }
    seen += bytes.size();
  });
  RC_ASSERT(
      !(p.client.state() == Handshake::State::done && p.server.state() == Handshake::State::done));
  RC_ASSERT(p.client.state() != Handshake::State::done);  // the last word is the server's
}

TEST(Handshake, ARecordedClientCannotBeReplayed) {
  std::vector<std::vector<std::byte>> recorded;
  Pair first;
  run(first, [&](bool to_server, std::vector<std::byte>& b) {
    if (to_server) recorded.push_back(b);
  });
  ASSERT_EQ(first.server.state(), Handshake::State::done);
  Handshake server = Handshake::server(transport_secret(), kListener, rules(kListener));
  server.feed(recorded[0]);
  server.feed(recorded[1]);
  EXPECT_EQ(server.state(), Handshake::State::refused);
}

TEST(Handshake, ReflectingAClientsBytesBackToItProvesNothing) {
  Handshake client = Handshake::client(transport_secret(), kDialler, kDialler);
  const std::vector<std::byte> hello = client.take_output();
  std::vector<std::byte> echoed = hello;
  echoed.resize(client.wanted());
  client.feed(echoed);
  EXPECT_EQ(client.state(), Handshake::State::refused);
}

TEST(Handshake, GarbageIsRefusedByItsFirstByte) {
  Handshake server = Handshake::server(transport_secret(), kListener, rules(kListener));
  server.feed(bytes_of("G"));
  EXPECT_EQ(server.state(), Handshake::State::refused);
  EXPECT_TRUE(server.take_output().empty());
}

TEST(Handshake, AnOlderGenerationIsFencedOutAndToldSo) {
  Identity late = kDialler;
  late.generation = 3;
  Pair p{Handshake::client(transport_secret(), late, kListener),
         Handshake::server(transport_secret(), kListener, rules(kListener))};
  run(p);
  EXPECT_EQ(p.server.state(), Handshake::State::refused);
  EXPECT_EQ(p.client.state(), Handshake::State::refused);
  EXPECT_EQ(p.client.verdict(), Verdict::fenced);
  EXPECT_EQ(p.client.code(), ErrorCode::conflict);
  EXPECT_NE(p.client.reason().find("fenced out: generation 3"), std::string::npos)
      << p.client.reason();
}

TEST(Handshake, GenerationsJobsAndRolesThatDoNotFitAreRefused) {
  const auto outcome = [](Identity self, Identity server, Identity wanted) {
    Pair p{Handshake::client(transport_secret(), self, wanted),
           Handshake::server(transport_secret(), server, rules(server))};
    run(p);
    EXPECT_NE(p.client.state(), Handshake::State::running);
    return p.client.state() == Handshake::State::done;
  };
  const auto with = [](Identity id, auto change) {
    change(id);
    return id;
  };
  EXPECT_TRUE(outcome(kDialler, kListener, kListener));
  EXPECT_FALSE(
      outcome(with(kDialler, [](Identity& i) { i.generation = 5; }), kListener, kListener));
  EXPECT_FALSE(outcome(with(kDialler, [](Identity& i) { i.job = "other"; }), kListener, kListener));
  EXPECT_FALSE(outcome(kDialler, with(kListener, [](Identity& i) { i.peer = 2; }), kListener));
  EXPECT_FALSE(
      outcome(kDialler, with(kListener, [](Identity& i) { i.role = "store"; }), kListener));
  // A server outside of the generations takes any.
  const Identity store = with(kListener, [](Identity& i) { i.generation = 0; });
  EXPECT_TRUE(outcome(kDialler, store, store));
}

TEST(Handshake, NamesThatDoNotFitAreAnError) {
  Identity self = kDialler;
  self.job = std::string(64, 'x');
  EXPECT_THROW(Handshake::client(transport_secret(), self, kListener), Error);
}

}  // namespace
}  // namespace ductile::net
