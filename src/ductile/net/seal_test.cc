#include "ductile/net/seal.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/testing.h"
#include "ductile/net/testing/sealed_pair.h"

namespace ductile::net {
namespace {

using ductile::testing::code_of;
using testing::give;
using testing::key_number;
using testing::sealed;
using testing::SealedPair;
using testing::shake_hands;

using Bytes = std::vector<std::byte>;
constexpr size_t kRecordHeader = 5;

std::vector<std::string> taken(Seal& seal) {
  std::vector<std::string> out;
  while (const auto message = seal.next()) out.emplace_back(text_of(*message));
  return out;
}

// The records of a stream: each has its length behind a byte of kind and two of version.
size_t records_in(const Bytes& bytes) {
  size_t count = 0;
  for (size_t at = 0; at < bytes.size(); ++count)
    at += kRecordHeader + (std::to_integer<size_t>(bytes[at + 3]) << 8) +
          std::to_integer<size_t>(bytes[at + 4]);
  return count;
}

TEST(Seal, MessagesPassInBothDirections) {
  SealedPair pair;
  EXPECT_TRUE(pair.client.done());
  EXPECT_TRUE(pair.server.done());
  pair.server.feed(sealed(pair.client, "there"));
  EXPECT_EQ(taken(pair.server), std::vector<std::string>{"there"});
  pair.client.feed(sealed(pair.server, ""));
  pair.client.feed(sealed(pair.server, "back"));
  EXPECT_EQ(taken(pair.client), (std::vector<std::string>{"", "back"}));
}

RC_GTEST_PROP(Seal, MessagesArriveWholeHoweverTheStreamIsCut, (std::vector<std::string> texts)) {
  SealedPair pair;
  if (!texts.empty()) texts.front().resize(40000, 'x');  // of several records
  Bytes wire;
  for (const std::string& text : texts) pair.client.append(bytes_of(text), wire);
  std::vector<std::string> got;
  std::span<const std::byte> rest(wire);
  while (!rest.empty()) {
    const auto part = *rc::gen::inRange<size_t>(1, std::min<size_t>(rest.size(), 5000) + 1);
    pair.server.feed(rest.first(part));
    rest = rest.subspan(part);
    for (const std::string& text : taken(pair.server)) got.push_back(text);
  }
  RC_ASSERT(got == texts);
}

TEST(Seal, ItWorksByteByByte) {
  Seal client(Seal::Side::client, key_number(1)), server(Seal::Side::server, key_number(1));
  shake_hands(client, server, {}, 1);
  ASSERT_TRUE(client.done() && server.done());
  std::vector<std::string> got;
  for (const std::byte b : sealed(client, "slowly")) {
    EXPECT_TRUE(got.empty());
    server.feed(std::span(&b, 1));
    got = taken(server);
  }
  EXPECT_EQ(got, std::vector<std::string>{"slowly"});
}

// What is read of a connection during the handshake is the handshake alone, so that nothing which
// follows it is lost.
TEST(Seal, ItNeverWaitsForMoreThanTheHandshake) {
  Seal client(Seal::Side::client, key_number(1)), server(Seal::Side::server, key_number(1));
  give(server, client.take_output());
  give(client, server.take_output());
  ASSERT_TRUE(client.done());
  Bytes wire = client.take_output();
  const size_t handshake = wire.size();
  client.append(bytes_of("first"), wire);
  size_t fed = 0;
  while (!server.done()) {
    const size_t part = server.wanted();
    ASSERT_LE(fed + part, handshake);
    server.feed(std::span(wire).subspan(fed, part));
    fed += part;
  }
  EXPECT_EQ(fed, handshake);
  server.feed(std::span(wire).subspan(fed));
  EXPECT_EQ(taken(server), std::vector<std::string>{"first"});
}

TEST(Seal, NothingOfAMessageCanBeRead) {
  const std::string secret = "a string that is not to be seen by anybody";
  SealedPair pair;
  Bytes wire;
  for (int i = 0; i < 3; ++i) pair.client.append(bytes_of(secret), wire);
  EXPECT_EQ(text_of(wire).find(secret.substr(0, 8)), std::string_view::npos);
  // Equal messages look different, each time.
  const size_t size = wire.size() / 3;
  EXPECT_NE(text_of(wire).substr(0, size), text_of(wire).substr(size, size));
  SealedPair other;
  EXPECT_NE(text_of(sealed(other.client, secret)), text_of(wire).substr(0, size));
}

TEST(Seal, AnotherKeyIsRefusedByBothEnds) {
  Seal client(Seal::Side::client, key_number(1)), server(Seal::Side::server, key_number(2));
  std::string text;
  EXPECT_EQ(code_of([&] { shake_hands(client, server); }, &text), ErrorCode::unavailable);
  EXPECT_NE(text.find("another key"), std::string::npos) << text;
  EXPECT_FALSE(server.done());
  EXPECT_EQ(code_of([&] { give(client, server.take_output()); }, &text), ErrorCode::unavailable);
  EXPECT_NE(text.find("another key"), std::string::npos) << text;
  EXPECT_FALSE(client.done());
}

// Both ends are clients, or servers: nobody is taken for the other one.
TEST(Seal, ReflectedBytesProveNothing) {
  Seal client(Seal::Side::client, key_number(1));
  EXPECT_EQ(code_of([&] { give(client, client.take_output()); }), ErrorCode::unavailable);
}

TEST(Seal, PlainBytesAreRefusedAtOnce) {
  for (const std::string& text :
       {std::string("GET / HTTP/1.1\r\n"), std::string("{\"hello\": 1}\n"),
        std::string("\x05\0\0\0hello", 9)}) {
    Seal server(Seal::Side::server, key_number(1));
    EXPECT_EQ(code_of([&] { give(server, bytes_of(text)); }), ErrorCode::unavailable);
    Seal client(Seal::Side::client, key_number(1));
    EXPECT_EQ(code_of([&] { give(client, bytes_of(text)); }), ErrorCode::unavailable);
  }
}

// A bit of each byte of the handshake is altered, in turn. The version in the header of the first
// records is looked at by nobody, and decides nothing; all else ends the handshake of one end.
TEST(Seal, NoAlteredByteOfAHandshakePasses) {
  size_t size = 0;
  {
    Seal client(Seal::Side::client, key_number(1)), server(Seal::Side::server, key_number(1));
    shake_hands(client, server, [&](bool, Bytes& bytes) { size += bytes.size(); });
  }
  ASSERT_GT(size, 300u);
  int passed = 0;
  for (size_t at = 0; at < size; ++at) {
    Seal client(Seal::Side::client, key_number(1)), server(Seal::Side::server, key_number(1));
    size_t seen = 0;
    try {
      shake_hands(client, server, [&](bool, Bytes& bytes) {
        if (at >= seen && at < seen + bytes.size())
          bytes[at - seen] ^= static_cast<std::byte>(1 << at % 8);
        seen += bytes.size();
      });
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unavailable) << error.what();
    }
    if (!client.done() || !server.done()) continue;
    ++passed;
    server.feed(sealed(client, "right"));
    EXPECT_EQ(taken(server), std::vector<std::string>{"right"}) << "byte " << at;
  }
  EXPECT_LE(passed, 2);
}

TEST(Seal, NoAlteredByteOfAMessageIsDelivered) {
  const std::vector<std::string> texts = {"first", "second"};
  SealedPair measure;
  const size_t first = sealed(measure.client, texts[0]).size();
  const size_t size = first + sealed(measure.client, texts[1]).size();
  for (size_t at = 0; at < size; ++at) {
    SealedPair pair;
    Bytes wire;
    for (const std::string& text : texts) pair.client.append(bytes_of(text), wire);
    wire[at] ^= static_cast<std::byte>(1 << at % 8);
    std::vector<std::string> got;
    try {
      pair.server.feed(wire);
      while (const auto message = pair.server.next()) got.emplace_back(text_of(*message));
      EXPECT_FALSE(pair.server.ended());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data_loss) << error.what();
    }
    // What came before the altered byte is delivered, and nothing else.
    EXPECT_EQ(got, std::vector<std::string>(texts.begin(), texts.begin() + (at >= first ? 1 : 0)))
        << "byte " << at;
  }
}

TEST(Seal, AStreamThatIsCutAnywhereIsNoEnd) {
  SealedPair pair;
  Bytes wire;
  std::vector<size_t> ends;
  for (const char* text : {"first", "second"}) {
    pair.client.append(bytes_of(text), wire);
    ends.push_back(wire.size());
  }
  pair.client.end(wire);
  for (size_t at = 0; at <= wire.size(); ++at) {
    SealedPair fresh;
    Bytes again;
    for (const char* text : {"first", "second"}) fresh.client.append(bytes_of(text), again);
    fresh.client.end(again);
    ASSERT_EQ(again.size(), wire.size());
    fresh.server.feed(std::span(again).first(at));
    EXPECT_EQ(taken(fresh.server).size(),
              static_cast<size_t>(std::ranges::count_if(ends, [&](size_t e) { return e <= at; })));
    EXPECT_EQ(fresh.server.ended(), at == wire.size()) << "cut at " << at;
  }
}

TEST(Seal, RepeatedReorderedAndForeignMessagesAreRefused) {
  const auto refused = [](Seal& by, std::initializer_list<Bytes> parts) {
    for (const Bytes& part : parts) by.feed(part);
    return code_of([&] { taken(by); }) == ErrorCode::data_loss;
  };
  {
    SealedPair pair;
    const Bytes first = sealed(pair.client, "first");
    EXPECT_TRUE(refused(pair.server, {first, first}));
  }
  {
    SealedPair pair;
    const Bytes first = sealed(pair.client, "first"), second = sealed(pair.client, "second");
    EXPECT_TRUE(refused(pair.server, {second, first}));
  }
  {
    SealedPair pair;
    EXPECT_TRUE(refused(pair.client, {sealed(pair.client, "back to whom it came from")}));
  }
  {
    SealedPair pair, other;
    EXPECT_TRUE(refused(pair.server, {sealed(other.client, "of another connection")}));
  }
}

// The whole of what a client once said, to a server with the very same key.
TEST(Seal, ARecordedConnectionCannotBeReplayed) {
  std::vector<Bytes> recorded;
  Seal client(Seal::Side::client, key_number(1)), server(Seal::Side::server, key_number(1));
  shake_hands(client, server, [&](bool to_server, Bytes& bytes) {
    if (to_server) recorded.push_back(bytes);
  });
  recorded.push_back(sealed(client, "once"));
  Seal again(Seal::Side::server, key_number(1));
  EXPECT_EQ(code_of([&] {
              for (const Bytes& bytes : recorded) give(again, bytes);
            }),
            ErrorCode::unavailable);
  EXPECT_FALSE(again.done());
}

TEST(Seal, AnOversizedMessageIsRefusedBeforeItsBytesCome) {
  SealedPair pair;
  pair.server.set_max_payload(1000);
  const Bytes wire = sealed(pair.client, std::string(100'000, 'x'));
  pair.server.feed(std::span(wire).first(16384 + 100));  // its first record
  std::string text;
  EXPECT_EQ(code_of([&] { taken(pair.server); }, &text), ErrorCode::data_loss);
  EXPECT_NE(text.find("100000"), std::string::npos) << text;
  Bytes out;
  EXPECT_EQ(code_of([&] { pair.server.append(Bytes(1001), out); }), ErrorCode::invalid_argument);
  EXPECT_TRUE(out.empty());
}

TEST(Seal, ItsKeysAreRenewedInTime) {
  SealedPair pair;
  const std::string large(Seal::kDefaultMaxPayload, 'x');
  for (size_t sent = 0; sent < Seal::kBytesOfAKey; sent += large.size()) {
    pair.server.feed(sealed(pair.client, large));
    ASSERT_EQ(taken(pair.server).size(), 1u);
  }
  const Bytes first = sealed(pair.client, "under the next key");
  EXPECT_EQ(records_in(first), 2u) << "one says that the next key begins";
  const Bytes second = sealed(pair.client, "also");
  EXPECT_EQ(records_in(second), 1u);
  pair.server.feed(first);
  pair.server.feed(second);
  EXPECT_EQ(taken(pair.server), (std::vector<std::string>{"under the next key", "also"}));
  pair.client.feed(sealed(pair.server, "the other direction has its own"));
  EXPECT_EQ(taken(pair.client).size(), 1u);
}

// Whatever comes, it throws or waits for more; with a handshake before it, and without.
RC_GTEST_PROP(Seal, RandomBytesAreNeverDelivered, (const std::vector<uint8_t>& bytes, bool after)) {
  const auto raw = std::as_bytes(std::span(bytes));
  SealedPair pair;
  Seal fresh(Seal::Side::server, key_number(1));
  try {
    if (after) {
      pair.server.feed(raw);
      RC_ASSERT(!pair.server.next().has_value());
      RC_ASSERT(!pair.server.ended());
    } else {
      give(fresh, raw);
      RC_ASSERT(!fresh.done());
    }
  } catch (const Error& error) {
    RC_ASSERT(error.code() == (after ? ErrorCode::data_loss : ErrorCode::unavailable));
  }
}

}  // namespace
}  // namespace ductile::net
