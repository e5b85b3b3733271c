// Encrypted connections over sockets of the loopback interface.
#include "ductile/net/channel.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <string>
#include <thread>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/testing.h"
#include "ductile/net/gate.h"
#include "ductile/net/store_server.h"
#include "ductile/net/testing/sealed_pair.h"

namespace ductile::net {
namespace {

using ductile::testing::code_of;
using std::chrono::milliseconds;

Deadline within(int ms) { return Clock::now() + milliseconds(ms); }

// Two ends of a TCP connection, with the bytes of both directions as sockets.
struct Sockets {
  Socket client, server;
  explicit Sockets(const SocketOptions& options = {}) {
    Listener listener({"127.0.0.1", 0}, options);
    client = connect(listener.address(), options, within(10000));
    server = listener.accept(within(10000));
  }
};

struct Channels {
  Channel client, server;
  explicit Channels(Sockets sockets = Sockets(), testing::SealedPair pair = {})
      : client(std::move(sockets.client), std::move(pair.client)),
        server(std::move(sockets.server), std::move(pair.server)) {}
};

SocketOptions small_buffers() {
  SocketOptions small;
  small.send_buffer = small.receive_buffer = 4096;
  return small;
}

std::string received(Channel& channel) {
  const std::vector<std::byte> message = channel.receive(within(10000));
  return std::string(text_of(message));
}

TEST(Channel, CarriesMessagesInBothDirections) {
  Channels c;
  EXPECT_FALSE(c.server.try_receive());
  c.client.send(bytes_of("there"), within(5000));
  EXPECT_EQ(received(c.server), "there");
  for (const char* text : {"one", "", "three"}) c.server.send(bytes_of(text), within(5000));
  for (const char* text : {"one", "", "three"}) EXPECT_EQ(received(c.client), text);
  EXPECT_FALSE(c.client.try_receive());
}

// Through buffers that take a little at a time, in both directions at once.
TEST(Channel, LargeMessagesPassThroughSmallBuffers) {
  Channels c{Sockets(small_buffers())};
  std::string text(3'000'000, 'x');
  for (size_t i = 0; i < text.size(); i += 100) text[i] = static_cast<char>('a' + i / 100 % 26);
  const auto pass = [&](Channel& from, Channel& to) {
    auto sending =
        std::async(std::launch::async, [&] { from.send(bytes_of(text), within(60000)); });
    EXPECT_EQ(received(to), text);
    sending.get();
  };
  pass(c.client, c.server);
  pass(c.server, c.client);
}

TEST(Channel, WhatTheSocketDoesNotTakeIsSentLaterAndNothingWaitsBehindIt) {
  Channels c{Sockets(small_buffers())};
  const std::string text(3'000'000, 'x');
  EXPECT_TRUE(c.server.offer(bytes_of(text)));
  const size_t left = c.server.unsent();
  EXPECT_GT(left, 0u) << "the buffers hold all of it, so this tests nothing";
  EXPECT_FALSE(c.server.offer(bytes_of("behind it")));
  EXPECT_EQ(c.server.unsent(), left);
  auto receiving = std::async(std::launch::async, [&] { return received(c.client); });
  while (c.server.unsent() > 0) {
    pollfd room{c.server.socket().fd(), POLLOUT, 0};
    ASSERT_EQ(::poll(&room, 1, 10000), 1);
    c.server.flush();
  }
  EXPECT_EQ(receiving.get(), text);
  EXPECT_TRUE(c.server.offer(bytes_of("next")));
  EXPECT_EQ(c.server.unsent(), 0u);
  EXPECT_EQ(received(c.client), "next");
}

TEST(Channel, SendingGoesOnBehindWhatWasOffered) {
  Channels c{Sockets(small_buffers())};
  const std::string text(1'000'000, 'x');
  EXPECT_TRUE(c.server.offer(bytes_of(text)));
  auto sending =
      std::async(std::launch::async, [&] { c.server.send(bytes_of("last"), within(60000)); });
  EXPECT_EQ(received(c.client), text);
  EXPECT_EQ(received(c.client), "last");
  sending.get();
}

TEST(Channel, AnEndACutAndABreakAreToldApart) {
  const auto fate = [](const std::function<void(Sockets&, std::optional<Channel>&)>& act) {
    Sockets sockets;
    const int raw = ::dup(sockets.client.fd());
    Socket client(raw, "");
    testing::SealedPair pair;
    std::optional<Channel> peer(std::in_place, std::move(sockets.client), std::move(pair.client));
    Channel channel(std::move(sockets.server), std::move(pair.server));
    peer->send(bytes_of("last words"), within(5000));
    sockets.client = std::move(client);
    act(sockets, peer);
    EXPECT_EQ(received(channel), "last words");
    std::string text, again;
    EXPECT_EQ(code_of([&] { channel.receive(within(10000)); }, &text), ErrorCode::peer_lost);
    EXPECT_EQ(code_of([&] { channel.try_receive(); }, &again), ErrorCode::peer_lost);
    EXPECT_NE(text.find("127.0.0.1:"), std::string::npos) << text;
    return text;
  };
  const std::string ended =
      fate([](Sockets& s, std::optional<Channel>& peer) { peer.reset(), s.client.close(); });
  EXPECT_NE(ended.find("closed by the other end"), std::string::npos) << ended;
  const std::string cut = fate([](Sockets& s, std::optional<Channel>&) {
    ::shutdown(s.client.fd(), SHUT_WR);  // as the kernel does for a process that was killed
  });
  EXPECT_NE(cut.find("cut"), std::string::npos) << cut;
}

TEST(Channel, ABrokenConnectionIsALostPeer) {
  Sockets sockets;
  const linger now{1, 0};
  ::setsockopt(sockets.client.fd(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  testing::SealedPair pair;
  Channel channel(std::move(sockets.server), std::move(pair.server));
  sockets.client.close();  // with a reset
  std::string text;
  EXPECT_EQ(code_of([&] { channel.receive(within(10000)); }, &text), ErrorCode::peer_lost);
  EXPECT_NE(text.find("broke"), std::string::npos) << text;
}

TEST(Channel, BytesOfAnotherAreDataLoss) {
  Sockets sockets;
  testing::SealedPair pair;
  Channel channel(std::move(sockets.server), std::move(pair.server));
  sockets.client.write_all(bytes_of("HTTP/1.1 400 what is this\r\n"), within(5000));
  EXPECT_EQ(code_of([&] { channel.receive(within(10000)); }), ErrorCode::data_loss);
}

TEST(Channel, SilenceEndsAtTheDeadline) {
  Channels c;
  EXPECT_EQ(code_of([&] { c.client.receive(within(20)); }), ErrorCode::deadline);
  c.server.send(bytes_of("late"), within(5000));
  EXPECT_EQ(received(c.client), "late");
}

// Half a message is out, and nothing can be behind it.
TEST(Channel, WhoCouldNotSendAWholeMessageSaysNoEnd) {
  Sockets sockets;
  testing::SealedPair pair;
  std::optional<Channel> sender(std::in_place, std::move(sockets.client), std::move(pair.client),
                                size_t{64} << 20);
  Channel receiver(std::move(sockets.server), std::move(pair.server), size_t{64} << 20);
  EXPECT_EQ(code_of([&] { sender->send(std::vector<std::byte>(64 << 20), within(20)); }),
            ErrorCode::deadline);
  sender.reset();
  std::string text;
  EXPECT_EQ(code_of([&] { receiver.receive(within(10000)); }, &text), ErrorCode::peer_lost);
  EXPECT_EQ(text.find("closed by the other end"), std::string::npos) << text;
}

TEST(Channel, WhoEndsBeforeAnOfferedMessageIsOutSaysNoEnd) {
  Sockets sockets(small_buffers());
  testing::SealedPair pair;
  std::optional<Channel> sender(std::in_place, std::move(sockets.client), std::move(pair.client));
  Channel receiver(std::move(sockets.server), std::move(pair.server));
  EXPECT_TRUE(sender->offer(std::vector<std::byte>(3 << 20)));
  sender.reset();
  std::string text;
  EXPECT_EQ(code_of([&] { receiver.receive(within(10000)); }, &text), ErrorCode::peer_lost);
  EXPECT_EQ(text.find("closed by the other end"), std::string::npos) << text;
}

// Carries bytes between a client and a server, one at a time, and keeps them.
class Dribble {
 public:
  explicit Dribble(Address to) : thread_([this, to](std::stop_token stop) { run(to, stop); }) {}
  Address address() const { return listener_.address(); }
  std::string seen() {
    thread_.request_stop();
    thread_.join();
    return seen_;
  }

 private:
  void run(const Address& to, const std::stop_token& stop) {
    try {
      Socket a = listener_.accept(within(10000));
      Socket b = connect(to, {}, within(10000));
      while (!stop.stop_requested()) {
        pollfd ends[2] = {{a.fd(), POLLIN, 0}, {b.fd(), POLLIN, 0}};
        ::poll(ends, 2, 10);
        for (int i = 0; i < 2; ++i) {
          std::byte one;
          if (ends[i].revents == 0) continue;
          if (::recv(ends[i].fd, &one, 1, 0) != 1) return;
          (i == 0 ? b : a).write_all(std::span(&one, 1), within(10000));
          seen_ += static_cast<char>(one);
        }
      }
    } catch (const Error&) {
    }
  }

  Listener listener_{{"127.0.0.1", 0}};
  std::string seen_;
  std::jthread thread_;
};

constexpr const char* kKnown = "a secret of the job that everybody would like to read";

TEST(Channel, AStoreWorksByteByByteAndShowsNothing) {
  const Secret secret(std::string_view("the secret of the tests"));
  StoreServer server({"127.0.0.1", 0}, secret, "job");
  Dribble dribble(server.address());
  {
    const auto store = connect_store(dribble.address(), secret, "job", within(60000));
    store->set("where", kKnown, within(60000));
    EXPECT_EQ(store->get("where", within(60000)), kKnown);
  }
  const std::string seen = dribble.seen();
  EXPECT_NE(seen.find("store"), std::string::npos) << "the role stands in the first hello";
  EXPECT_EQ(seen.find(kKnown), std::string::npos);
  EXPECT_EQ(seen.find("where"), std::string::npos);
}

// In a network of its own, whose loopback interface is listened to as an eavesdropper would.
std::string capture(const std::function<void()>& talk) {
  const int tap = ::socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
  if (tap < 0) return "no tap";
  const int much = 64 << 20;
  ::setsockopt(tap, SOL_SOCKET, SO_RCVBUFFORCE, &much, sizeof much);
  talk();
  std::string all;
  char packet[70000];
  for (ssize_t n; (n = ::recv(tap, packet, sizeof packet, MSG_DONTWAIT)) > 0;)
    all.append(packet, static_cast<size_t>(n));
  ::close(tap);
  return all;
}

enum : int { kHidden = 0, kNoNamespaces = 1, kSeen = 2, kNoCapture = 3 };

int tapped() {
  if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
    return kNoNamespaces;
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP;
  const int control = ::socket(AF_INET, SOCK_DGRAM, 0);
  if (::ioctl(control, SIOCSIFFLAGS, &loopback) != 0) return kNoNamespaces;
  const std::string all = capture([] {
    const Secret secret(std::string_view("the secret of the tests"));
    StoreServer server({"127.0.0.1", 0}, secret, "the-job");
    const auto store = connect_store(server.address(), secret, "the-job", within(60000));
    store->set("where", kKnown, within(60000));
    store->get("where", within(60000));
  });
  if (all == "no tap") return kNoNamespaces;
  if (all.find("the-job") == std::string::npos) return kNoCapture;
  return all.find(kKnown) == std::string::npos ? kHidden : kSeen;
}

TEST(Channel, NothingOfAStoreIsSeenOnTheWire) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(tapped());
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoNamespaces) GTEST_SKIP() << "no network namespaces here";
  EXPECT_EQ(WEXITSTATUS(status), kHidden) << "2: it was seen, 3: nothing was captured";
}

}  // namespace
}  // namespace ductile::net
