#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/testing.h"
#include "ductile/fleet/service_request_impl.h"

namespace ductile::cli {
namespace {

using ::ductile::testing::code_of;

TEST(ArrayIndices, AreThoseThatAreNamed) {
  using Indices = std::vector<int64_t>;
  EXPECT_EQ(indices_of("0-3"), (Indices{0, 1, 2, 3}));
  EXPECT_EQ(indices_of("7"), Indices{7});
  EXPECT_EQ(indices_of("20,1,3,5-9:2"), (Indices{1, 3, 5, 7, 9, 20}));
  EXPECT_EQ(indices_of("5-6:9007199254740992"), Indices{5});
  EXPECT_EQ(indices_of("0-999").size(), 1000u);
}

TEST(ArrayIndices, WhatIsNoListOfNumbersIsRefused) {
  for (const char* text :
       {"", "a", "-1", "1-", "3-1", "1,", ",1", "1,,2", "1-5:0", "1-5:-1", "1-5%2", " 1", "1 ",
        "1,1", "0-5,3", "0-1000", "0-9007199254740992", "99999999999999999999"})
    EXPECT_EQ(code_of([&] { indices_of(text); }), ErrorCode::invalid_argument) << text;
}

}  // namespace
}  // namespace ductile::cli
