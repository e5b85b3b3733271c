#include "ductile/base/descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>

namespace ductile {
namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }
Descriptor null_device() { return opened(::open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null"); }

TEST(Descriptor, ClosesWhatItOwnsOnce) {
  int fd = -1;
  {
    const Descriptor owner = null_device();
    fd = owner.get();
    EXPECT_TRUE(is_open(fd));
  }
  EXPECT_FALSE(is_open(fd));
  EXPECT_FALSE(Descriptor());
}

TEST(Descriptor, AnAssignmentClosesWhatWasHeldBefore) {
  Descriptor a = null_device(), b = null_device();
  const int first = a.get(), second = b.get();
  a = std::move(b);
  EXPECT_FALSE(is_open(first));
  EXPECT_TRUE(is_open(second));
  EXPECT_EQ(a.get(), second);
  EXPECT_EQ(b.get(), -1);
}

TEST(Descriptor, WhatIsReleasedStaysOpen) {
  Descriptor a = null_device();
  const int fd = a.release();
  EXPECT_FALSE(a);
  a = Descriptor();
  EXPECT_TRUE(is_open(fd));
  ::close(fd);
}

TEST(Descriptor, WhatWasNotOpenedIsAnErrorThatNamesIt) {
  try {
    opened(::open("/absent", O_RDONLY), "/absent");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::not_found);
    EXPECT_EQ(std::string(e.what()).find("/absent: "), 0u) << e.what();
  }
}

}  // namespace
}  // namespace ductile
