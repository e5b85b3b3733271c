#include "ductile/net/socket.h"

#include <array>
#include <functional>
#include <thread>

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/base/testing.h"
#include "ductile/net/bytes_impl.h"

namespace ductile::net {
namespace {

using std::chrono::milliseconds;

Deadline in(int ms) { return Clock::now() + milliseconds(ms); }

using ductile::testing::code_of;

TEST(Address, ReadsAndWritesBothFamilies) {
  EXPECT_EQ(Address::parse("10.0.0.2:80"), (Address{"10.0.0.2", 80}));
  EXPECT_EQ(Address::parse("[::1]:8080"), (Address{"::1", 8080}));
  EXPECT_EQ(Address::parse("node7:65535").to_string(), "node7:65535");
  EXPECT_EQ(Address::parse("[fe80::1]:1").to_string(), "[fe80::1]:1");
  for (const char* bad :
       {"", "host", ":80", "host:", "host:x", "host:70000", "::1:80", "host:80x"}) {
    EXPECT_EQ(code_of([&] { Address::parse(bad); }), ErrorCode::invalid_argument) << bad;
  }
}

TEST(Socket, CarriesBytesOverBothFamilies) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    Listener listener({host, 0});
    Socket client = connect(listener.address(), {}, in(5000));
    Socket server = listener.accept(in(5000));
    int nodelay = 0;
    socklen_t size = sizeof nodelay;
    getsockopt(server.fd(), IPPROTO_TCP, TCP_NODELAY, &nodelay, &size);
    EXPECT_NE(nodelay, 0);
    client.write_all(bytes_of("hello"), in(5000));
    std::array<std::byte, 5> got;
    server.read_all(got, in(5000));
    EXPECT_EQ(text_of(got), "hello");
    client.close();
    EXPECT_EQ(server.read_some(got, in(5000)), 0u);
    EXPECT_EQ(code_of([&] { server.read_all(got, in(5000)); }), ErrorCode::peer_lost);
  }
}

TEST(Socket, BindsToAGivenLocalAddressAndTakesItsOptions) {
  Listener listener({"127.0.0.1", 0});
  SocketOptions options;
  options.local_address = "127.0.0.9";
  options.user_timeout = milliseconds(1500);
  Socket client = connect(listener.address(), options, in(5000));
  Socket server = listener.accept(in(5000));
  EXPECT_EQ(client.local().host, "127.0.0.9");
  EXPECT_EQ(server.peer().substr(0, 10), "127.0.0.9:");
  int timeout = 0;
  socklen_t size = sizeof timeout;
  getsockopt(client.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, &size);
  EXPECT_EQ(timeout, 1500);
  options.congestion = "reno";  // every kernel has it
  client = connect(listener.address(), options, in(5000));
  char congestion[16] = {};
  size = sizeof congestion;
  getsockopt(client.fd(), IPPROTO_TCP, TCP_CONGESTION, congestion, &size);
  EXPECT_STREQ(congestion, "reno");
  options.local_address = "192.0.2.77";  // nobody's
  std::string text;
  EXPECT_EQ(code_of([&] { connect(listener.address(), options, in(5000)); }, &text),
            ErrorCode::unavailable);
  EXPECT_NE(text.find("192.0.2.77"), std::string::npos) << text;
}

TEST(Socket, ErrorsNameTheAddressAndTheRemedy) {
  Listener listener({"127.0.0.1", 0});
  const Address taken = listener.address();
  std::string text;
  EXPECT_EQ(code_of([&] { Listener again(taken); }, &text), ErrorCode::unavailable);
  EXPECT_NE(text.find(taken.to_string()), std::string::npos) << text;
  listener = Listener();
  EXPECT_EQ(code_of([&] { connect(taken, {}, in(5000)); }, &text), ErrorCode::unavailable);
  EXPECT_NE(text.find(taken.to_string()), std::string::npos) << text;
  EXPECT_NE(text.find("running and listening"), std::string::npos) << text;
}

TEST(Socket, EveryWaitEndsAtItsDeadline) {
  Listener listener({"127.0.0.1", 0});
  EXPECT_EQ(code_of([&] { listener.accept(in(20)); }), ErrorCode::deadline);
  Socket client = connect(listener.address(), {}, in(5000));
  std::array<std::byte, 1> byte;
  EXPECT_EQ(code_of([&] { client.read_some(byte, in(20)); }), ErrorCode::deadline);
  // Nobody reads: the buffers fill up.
  const std::vector<std::byte> much(64 << 20);
  EXPECT_EQ(code_of([&] { client.write_all(much, in(50)); }), ErrorCode::deadline);
}

}  // namespace
}  // namespace ductile::net
