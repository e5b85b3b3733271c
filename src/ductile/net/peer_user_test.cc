#include "ductile/net/peer_user.h"

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/net/socket.h"

namespace ductile::net {
namespace {

Deadline in_a_while() { return Clock::now() + std::chrono::seconds(10); }

TEST(PeerUser, IsTheOneWhoseSocketItIsOverBothFamilies) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    Listener listener({host, 0});
    const Socket client = connect(listener.address(), {}, in_a_while());
    const Socket server = listener.accept(in_a_while());
    EXPECT_EQ(user_at_other_end(server.fd()), ::geteuid()) << host;
    EXPECT_EQ(user_at_other_end(client.fd()), ::geteuid()) << host;
  }
  EXPECT_EQ(kernel_knows_users(), true);
}

TEST(PeerUser, IsAnotherOneWhereAnotherOneConnected) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  constexpr uid_t kNobody = 65534;
  for (const char* host : {"127.0.0.1", "::1"}) {
    Listener listener({host, 0});
    ::setfsuid(kNobody);  // of this thread; its sockets are this user's
    const Socket client = connect(listener.address(), {}, in_a_while());
    ::setfsuid(0);
    const Socket server = listener.accept(in_a_while());
    EXPECT_EQ(user_at_other_end(server.fd()), kNobody) << host;
    EXPECT_EQ(user_at_other_end(client.fd()), 0u) << host;
  }
}

// The kernel has forgotten by then whose it was, and says root's.
TEST(PeerUser, IsNobodyWhereTheOtherEndWasClosed) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    Listener listener({host, 0});
    std::optional<Socket> client = connect(listener.address(), {}, in_a_while());
    const Socket server = listener.accept(in_a_while());
    client.reset();
    EXPECT_FALSE(user_at_other_end(server.fd())) << host;
  }
}

// Bytes that this process has read; 0: nobody counts them.
int64_t bytes_read() {
  std::ifstream counts("/proc/self/io");
  std::string name;
  int64_t bytes = 0;
  counts >> name >> bytes;
  return bytes;
}

// The kernel's list is long where there are many connections.
TEST(PeerUser, WhoConnectsAndGoesHasNoListRead) {
  if (bytes_read() == 0) GTEST_SKIP() << "nobody counts what is read";
  Listener listener({"127.0.0.1", 0});
  std::vector<Socket> many;
  for (int i = 0; i < 300; ++i) {
    many.push_back(connect(listener.address(), {}, in_a_while()));
    many.push_back(listener.accept(in_a_while()));
  }
  std::optional<Socket> client = connect(listener.address(), {}, in_a_while());
  const Socket server = listener.accept(in_a_while());
  client.reset();
  const int64_t before = bytes_read();
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(user_at_other_end(server.fd()));
  EXPECT_LT(bytes_read(), before + 20'000);
}

TEST(PeerUser, IsNobodyWhereThereIsNoConnection) {
  EXPECT_FALSE(user_at_other_end(-1));
  int pair[2] = {};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const Descriptor one(pair[0]), other(pair[1]);
  EXPECT_FALSE(user_at_other_end(one.get()));  // a peer without an address
  const Descriptor alone(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_FALSE(user_at_other_end(alone.get()));
}

}  // namespace
}  // namespace ductile::net
