#include "ductile/net/frames.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/net/bytes_impl.h"

namespace ductile::net {
namespace {

Mac key(int i) {
  Mac k{};
  k[0] = static_cast<std::byte>(i);
  return k;
}

using Payloads = std::vector<std::vector<std::byte>>;

Payloads to_payloads(const std::vector<std::string>& texts) {
  Payloads payloads;
  for (const std::string& t : texts) {
    const auto b = bytes_of(t);
    payloads.emplace_back(b.begin(), b.end());
  }
  return payloads;
}

std::vector<std::byte> written(const Payloads& payloads, int k = 1) {
  FrameWriter writer(key(k), 1000);
  std::vector<std::byte> wire;
  for (const auto& p : payloads) writer.append(p, wire);
  return wire;
}

RC_GTEST_PROP(Frames, ArriveWholeHoweverTheStreamIsCut, (std::vector<std::string> texts)) {
  for (auto& t : texts) t.resize(std::min<size_t>(t.size(), 1000));
  const Payloads payloads = to_payloads(texts);
  const std::vector<std::byte> wire = written(payloads);
  FrameReader reader(key(1), 1000);
  Payloads got;
  std::span<const std::byte> rest(wire);
  while (!rest.empty()) {
    const auto part = *rc::gen::inRange<size_t>(1, rest.size() + 1);
    reader.feed(rest.first(part));
    rest = rest.subspan(part);
    while (auto p = reader.next()) got.push_back(*p);
  }
  RC_ASSERT(got == payloads);
}

RC_GTEST_PROP(Frames, AnAlteredBitIsNeverDelivered, (const std::string& text)) {
  const Payloads payloads = to_payloads({text.substr(0, 900)});
  std::vector<std::byte> wire = written(payloads);
  wire[*rc::gen::inRange<size_t>(0, wire.size())] ^=
      static_cast<std::byte>(1 << *rc::gen::inRange(0, 8));
  FrameReader reader(key(1), 1000);
  reader.feed(wire);
  try {
    RC_ASSERT(!reader.next().has_value());  // waits for more, or:
  } catch (const Error& error) {
    RC_ASSERT(error.code() == ErrorCode::data_loss);
  }
}

TEST(Frames, RepeatedReorderedAndForeignOnesAreRefused) {
  const std::vector<std::byte> wire = written(to_payloads({"aa", "bb"}));
  const size_t size = 2 + kFrameOverhead;
  const auto first = std::span(wire).first(size);
  const auto second = std::span(wire).subspan(size);
  {
    FrameReader reader(key(1), 1000);
    reader.feed(first);
    EXPECT_TRUE(reader.next());
    reader.feed(first);
    EXPECT_THROW(reader.next(), Error);
  }
  {
    FrameReader reader(key(1), 1000);
    reader.feed(second);
    EXPECT_THROW(reader.next(), Error);
  }
  {
    FrameReader reader(key(2), 1000);  // the key of the other direction
    reader.feed(first);
    EXPECT_THROW(reader.next(), Error);
  }
}

TEST(Frames, AnOversizedLengthIsRefusedBeforeItsBytesCome) {
  FrameReader reader(key(1), 1000);
  reader.feed(std::as_bytes(std::span("\xff\xff\xff\xff", 4)));
  EXPECT_THROW(reader.next(), Error);
  FrameWriter writer(key(1), 1000);
  std::vector<std::byte> out;
  EXPECT_THROW(writer.append(std::vector<std::byte>(1001), out), Error);
  EXPECT_TRUE(out.empty());
}

}  // namespace
}  // namespace ductile::net
