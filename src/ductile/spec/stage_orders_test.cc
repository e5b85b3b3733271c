#include "ductile/spec/stage_orders.h"

#include <gtest/gtest.h>

#include "ductile/base/testing.h"

namespace ductile::spec {
namespace {

TEST(Letters, TellAnOrder) {
  const std::vector<Task> order = order_from_letters("F3BFBWB2W3", 0, 12);
  EXPECT_EQ(order.size(), 12u);
  EXPECT_EQ(to_letters(order), "F3BFBWB2W3");
  std::string text;
  testing::code_of([] { order_from_letters("F2X", 3, 9); }, &text);
  EXPECT_NE(text.find("stage 3: order: \"X\""), std::string::npos) << text;
  testing::code_of([] { order_from_letters("F99999999999999999999", 3, 9); }, &text);
  EXPECT_NE(text.find("more than"), std::string::npos) << text;
  testing::code_of([] { order_from_letters("FB9223372036854775807", 3, 9); }, &text);
  EXPECT_NE(text.find("more than"), std::string::npos) << text;
}

}  // namespace
}  // namespace ductile::spec
