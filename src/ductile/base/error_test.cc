#include "ductile/base/error.h"

#include <cerrno>

#include <gtest/gtest.h>

namespace ductile {
namespace {

TEST(Error, ContextGrowsOutward) {
  Error e(ErrorCode::data_loss, "3 bytes missing");
  e.with_context("sample 7").with_context("train.tar");
  EXPECT_STREQ(e.what(), "train.tar: sample 7: 3 bytes missing");
  EXPECT_EQ(e.message(), "3 bytes missing");
  EXPECT_EQ(e.context().front(), "sample 7");
}

TEST(Error, BrokenInvariantIsInternalAndNamesTheCondition) {
  try {
    DUCTILE_CHECK(1 + 1 == 3, "sum of {}", 2);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::internal);
    EXPECT_NE(std::string(e.what()).find("(1 + 1 == 3): sum of 2"), std::string::npos);
  }
}

TEST(Error, ErrnoMapsToCodes) {
  const auto code_of = [](int number) {
    try {
      fail_errno("f", number);
    } catch (const Error& e) {
      return e.code();
    }
  };
  EXPECT_EQ(code_of(ENOENT), ErrorCode::not_found);
  EXPECT_EQ(code_of(ENOSPC), ErrorCode::unavailable);
  EXPECT_EQ(code_of(EEXIST), ErrorCode::conflict);
}

}  // namespace
}  // namespace ductile
