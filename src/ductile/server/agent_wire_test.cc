#include <algorithm>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "ductile/base/base64.h"
#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/testing.h"
#include "ductile/server/agent_wire_impl.h"

namespace ductile::server {
namespace {

using ductile::testing::code_of;

net::Mac key(int number) {
  net::Mac out{};
  out[0] = static_cast<std::byte>(number);
  return out;
}

// The bytes that a wire has to send, through a pipe as in life.
std::vector<std::byte> sent(AgentWire& wire) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
  const Descriptor from(ends[0]), to(ends[1]);
  std::vector<std::byte> out;
  do {
    EXPECT_TRUE(wire.flush(to.get()));
    std::byte block[4096];
    for (ssize_t n; (n = ::read(from.get(), block, sizeof block)) > 0;)
      out.insert(out.end(), block, block + n);
  } while (wire.has_unsent());
  return out;
}

// A controller and an agent that have agreed on a key, in so many bytes at a time.
struct Ends {
  AgentWire controller, agent;
  std::vector<std::string> controller_heard, agent_heard;
  size_t at_a_time;

  explicit Ends(size_t most = SIZE_MAX) : at_a_time(most) {}
  void hear(AgentWire& by, std::span<const std::byte> bytes, std::vector<std::string>& heard) {
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min(at_a_time, bytes.size()));
      bytes = bytes.subspan(part.size());
      by.take(part, [&](std::string_view text) {
        heard.emplace_back(text);
        if (text == "greet") controller.seal(net::Seal::Side::client, key(1));
      });
    }
  }
  void pass() {
    for (int round = 0; round < 4; ++round) {
      hear(agent, sent(controller), agent_heard);
      hear(controller, sent(agent), controller_heard);
    }
  }
  void meet() {
    controller.say("hello");
    pass();
    agent.say("greet");
    agent.seal(net::Seal::Side::server, key(1));
    agent.say("said before it was ready");
    pass();
  }
};

TEST(AgentWire, BeginsWithLinesAndGoesOnWithMessages) {
  for (const size_t most : {SIZE_MAX, size_t{1}, size_t{7}}) {
    Ends ends(most);
    ends.meet();
    ASSERT_TRUE(ends.controller.ready() && ends.agent.ready());
    EXPECT_EQ(ends.controller_heard,
              (std::vector<std::string>{"greet", "said before it was ready"}));
    EXPECT_EQ(ends.agent_heard, std::vector<std::string>{"hello"});
    ends.controller.say("a request\nof two lines");
    ends.pass();
    EXPECT_EQ(ends.agent_heard.back(), "a request\nof two lines");
  }
}

std::vector<std::string> lines_of(std::span<const std::byte> bytes) {
  std::vector<std::string> lines(1);
  for (const std::byte byte : bytes) {
    if (byte == std::byte{'\n'})
      lines.emplace_back();
    else
      lines.back() += static_cast<char>(byte);
  }
  EXPECT_EQ(lines.back(), "") << "a launcher that waits for the end of a line would hold this back";
  lines.pop_back();
  return lines;
}

// Which only who starts the agent can read.
TEST(AgentWire, NothingButTheGreetingIsPlain) {
  Ends ends;
  ends.meet();
  ends.controller.say("a known text");
  const std::vector<std::byte> bytes = sent(ends.controller);
  std::string wire;
  for (const std::string& line : lines_of(bytes)) wire += from_base64(line).value();
  EXPECT_GT(wire.size(), 12u);
  EXPECT_EQ(wire.find("known"), std::string::npos);
  ends.hear(ends.agent, bytes, ends.agent_heard);
  EXPECT_EQ(ends.agent_heard.back(), "a known text");
}

// srun passes on what a newline has ended, and terminals lines of less than 4096 bytes.
TEST(AgentWire, IsLinesOfTextFromEndToEnd) {
  Ends ends;
  const auto next = [](AgentWire& by, AgentWire& to, std::vector<std::string>& heard) {
    const std::vector<std::byte> bytes = sent(by);
    for (const std::string& line : lines_of(bytes)) {
      EXPECT_LT(line.size(), 4096u);
      EXPECT_TRUE(std::ranges::all_of(line, [](char c) { return c >= ' ' && c <= '~'; }));
    }
    to.take(bytes, [&](std::string_view text) { heard.emplace_back(text); });
  };
  ends.controller.say("hello");
  next(ends.controller, ends.agent, ends.agent_heard);
  ends.agent.say("greet");
  ends.agent.seal(net::Seal::Side::server, key(1));
  next(ends.agent, ends.controller, ends.controller_heard);
  ends.controller.seal(net::Seal::Side::client, key(1));
  for (int round = 0; round < 2; ++round) {
    next(ends.controller, ends.agent, ends.agent_heard);
    next(ends.agent, ends.controller, ends.controller_heard);
  }
  ASSERT_TRUE(ends.controller.ready() && ends.agent.ready());
  const std::string longest(size_t{1} << 20, '\n');
  ends.controller.say(longest);
  next(ends.controller, ends.agent, ends.agent_heard);
  EXPECT_EQ(ends.agent_heard.back(), longest);
  ends.agent.say("an answer");
  next(ends.agent, ends.controller, ends.controller_heard);
  EXPECT_EQ(ends.controller_heard.back(), "an answer");
}

// A login script prints what it likes before the agent says anything.
TEST(AgentWire, LinesOfALoginScriptAreHeardBeforeTheGreeting) {
  Ends ends;
  const std::string noise = "Welcome!\n\nLast login: today\ngreet\n";
  ends.hear(ends.controller, std::as_bytes(std::span(noise)), ends.controller_heard);
  EXPECT_EQ(ends.controller_heard,
            (std::vector<std::string>{"Welcome!", "", "Last login: today", "greet"}));
  EXPECT_TRUE(ends.controller.sealed());
}

TEST(AgentWire, AnotherKeyAlteredBytesAndEndlessLinesAreErrors) {
  {
    Ends ends;
    ends.controller.seal(net::Seal::Side::client, key(1));
    ends.agent.seal(net::Seal::Side::server, key(2));
    EXPECT_EQ(code_of([&] { ends.pass(); }), ErrorCode::unavailable);
  }
  {
    Ends ends;
    ends.meet();
    ends.controller.say("a request");
    std::vector<std::byte> bytes = sent(ends.controller);
    std::byte& letter = bytes[bytes.size() / 2];
    letter = letter == std::byte{'A'} ? std::byte{'B'} : std::byte{'A'};
    EXPECT_EQ(code_of([&] { ends.hear(ends.agent, bytes, ends.agent_heard); }),
              ErrorCode::data_loss);
    EXPECT_EQ(ends.agent_heard, std::vector<std::string>{"hello"});
  }
  for (const std::string& other : {std::string("Connection lost.\n"), std::string(5000, 'A')}) {
    Ends ends;
    ends.meet();
    const auto bytes = std::as_bytes(std::span(other));
    EXPECT_EQ(code_of([&] { ends.hear(ends.agent, bytes, ends.agent_heard); }),
              ErrorCode::data_loss);
  }
  {
    Ends ends;
    const std::vector<std::byte> endless(2 << 20, std::byte{'x'});
    EXPECT_EQ(code_of([&] { ends.hear(ends.agent, endless, ends.agent_heard); }),
              ErrorCode::data_loss);
  }
}

}  // namespace
}  // namespace ductile::server
