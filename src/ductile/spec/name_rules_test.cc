#include "ductile/spec/name_rules.h"

#include <gtest/gtest.h>

#include "ductile/base/error.h"

namespace ductile::spec {
namespace {

TEST(NameRules, ReadANameAndANumberBehindTheLastColon) {
  const std::vector<std::string> texts = {"head:2", "a:b:0.5", "norm:1e3"};
  const std::vector<NameRule> rules = name_rules(texts, "key");
  ASSERT_EQ(rules.size(), 3u);
  EXPECT_EQ(rules[0].name, "head");
  EXPECT_EQ(rules[0].value, 2);
  EXPECT_EQ(rules[1].name, "a:b");
  EXPECT_EQ(rules[1].value, 0.5);
  EXPECT_EQ(rules[2].value, 1000);
}

TEST(NameRules, ANameAloneHasTheNumberThatIsGivenForIt) {
  const std::vector<std::string> texts = {"stem"};
  EXPECT_EQ(name_rules(texts, "key", 7)[0].value, 7);
  EXPECT_THROW(name_rules(texts, "key"), Error);
}

TEST(NameRules, WhatCannotBeReadIsNamed) {
  for (const char* text : {"", ":", ":2", "a:", "a:b", "a:-1", "a:nan", "a:inf", "a:1x", "a: 1"}) {
    const std::vector<std::string> texts = {text};
    try {
      name_rules(texts, "optimizer.freeze", 0);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_NE(e.message().find("optimizer.freeze"), std::string::npos) << e.message();
    }
  }
}

TEST(NameRules, MatchBiasNormAndPartsOfNames) {
  EXPECT_TRUE(matches("bias", "conv.bias", false));
  EXPECT_FALSE(matches("bias", "bias_net.weight", false));
  EXPECT_TRUE(matches("norm", "bn1.weight", true));
  EXPECT_FALSE(matches("norm", "normal.weight", false));
  EXPECT_TRUE(matches("embed", "embed_tokens.weight", false));
}

}  // namespace
}  // namespace ductile::spec
