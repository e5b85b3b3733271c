#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"

namespace ductile::net::testing {

// Two connected ends: the near one is watched, the far one makes it ready.
struct SocketPair {
  Descriptor near, far;
  SocketPair() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0)
      fail_errno("socketpair", errno);
    near = Descriptor(ends[0]);
    far = Descriptor(ends[1]);
  }
  void say() const { ASSERT_EQ(::write(far.get(), "x", 1), 1); }
  void drain() const {
    char block[4096];
    while (::read(near.get(), block, sizeof block) > 0) continue;
  }
};

}  // namespace ductile::net::testing
