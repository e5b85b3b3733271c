#include "ductile/optim/param_layout.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"

namespace ductile::optim {
namespace {

TEST(ParamLayout, SegmentsBeginOnCacheLinesInTheOrderAdded) {
  ParamLayout layout;
  EXPECT_EQ(layout.add("a.weight", {17, 1}, false), 0);
  EXPECT_EQ(layout.add("a.bias", {16}, false), 32);
  EXPECT_EQ(layout.add("empty", {0}, false), 48);
  EXPECT_EQ(layout.add("b.weight", {1, 1}, false), 48);
  EXPECT_EQ(layout.total_size(), 64);
  EXPECT_EQ(layout.num_parameters(), 34);
  EXPECT_EQ(layout.segment("a.bias").offset, 32);
}

TEST(ParamLayout, ExclusionRulesReadBiasNormAndPartsOfNames) {
  ParamLayout layout({"bias", "norm", "embed"});
  layout.add("conv.weight", {1, 1, 3, 3}, false);
  layout.add("conv.bias", {3}, false);
  layout.add("bn1.weight", {3}, true);
  layout.add("embed_tokens.weight", {3, 1}, false);
  layout.add("bias_net.weight", {3, 1}, false);
  layout.add("normal.weight", {3, 1}, false);
  EXPECT_TRUE(layout.segment("conv.weight").decay);
  EXPECT_FALSE(layout.segment("conv.bias").decay);
  EXPECT_FALSE(layout.segment("bn1.weight").decay);
  EXPECT_FALSE(layout.segment("embed_tokens.weight").decay);
  EXPECT_TRUE(layout.segment("bias_net.weight").decay);
  EXPECT_TRUE(layout.segment("normal.weight").decay);

  ParamLayout all{std::vector<std::string>{}};
  all.add("conv.bias", {3}, false);
  all.add("bn1.weight", {3}, true);
  EXPECT_TRUE(all.segment("conv.bias").decay);
  EXPECT_TRUE(all.segment("bn1.weight").decay);
}

TEST(ParamLayout, KeepsMatricesWholeForTheRuleThatNeedsThem) {
  spec::OptimizerOptions o{.name = "muon"};
  ParamLayout layout(o);
  EXPECT_EQ(layout.add("a.bias", {100}, false), 0);
  EXPECT_EQ(layout.add("a.weight", {100, 100}, false), 112) << "it fits into the first block";
  EXPECT_EQ(layout.add("b.weight", {64, 3, 10, 10}, false), kBlockFloats);
  EXPECT_EQ(layout.add("c.weight", {10, 10}, false), kBlockFloats + 19'200);
  EXPECT_EQ(layout.add("d.weight", {200, 100}, false), 3 * kBlockFloats);
  EXPECT_EQ(layout.add("embed.weight", {500, 100}, false), 3 * kBlockFloats + 20'000);
  for (const char* name : {"a.weight", "b.weight", "c.weight", "d.weight"}) {
    EXPECT_TRUE(layout.segment(name).whole) << name;
  }
  EXPECT_EQ(layout.segment("b.weight").rows, 64);
  EXPECT_FALSE(layout.segment("a.bias").whole);
  EXPECT_FALSE(layout.segment("embed.weight").whole);
  o.name = "adamw";
  ParamLayout other(o);
  other.add("a.weight", {100, 100}, false);
  EXPECT_FALSE(other.segment("a.weight").whole);
}

TEST(ParamLayout, TheFirstRuleThatFitsGivesTheFactorAndTheEpochs) {
  spec::OptimizerOptions o{.name = "muon"};
  o.lr_factors = {"norm:64", "bias:2", "head:3"};
  o.freeze = {"stem.weight", "stem.bias:3"};
  ParamLayout layout(o);
  layout.add("stem.weight", {8, 3, 2, 2}, false);
  layout.add("stem.bias", {8}, false);
  layout.add("bn.bias", {8}, true);
  layout.add("head.weight", {10, 8}, false);
  layout.add("fixed.weight", {10, 8}, false, /*frozen=*/true);
  const auto factor = [&](const char* name) { return layout.segment(name).lr_factor; };
  EXPECT_EQ(factor("stem.weight"), 1);
  EXPECT_EQ(factor("stem.bias"), 2);
  EXPECT_EQ(factor("bn.bias"), 64);
  EXPECT_EQ(factor("head.weight"), 3);
  EXPECT_EQ(layout.segment("stem.weight").trained_epochs, 0);
  EXPECT_EQ(layout.segment("stem.bias").trained_epochs, 3);
  EXPECT_EQ(layout.segment("fixed.weight").trained_epochs, 0);
  EXPECT_TRUE(std::isinf(layout.segment("head.weight").trained_epochs));
  EXPECT_FALSE(layout.segment("stem.weight").whole) << "nobody updates it";
  EXPECT_FALSE(layout.segment("fixed.weight").whole);
  EXPECT_TRUE(layout.segment("head.weight").whole);
  EXPECT_EQ(layout.num_parameters(), 96 + 8 + 8 + 80 + 80);
  o.freeze = {"stem:"};
  EXPECT_THROW(ParamLayout{o}, Error);
}

TEST(ParamLayout, ARuleForNoParameterIsRefusedByName) {
  const std::vector<std::string> parameters = {"stem.weight", "stem.bias", "head.weight"};
  const auto refusal = [&](const spec::OptimizerOptions& options) -> std::string {
    try {
      require_named(options, parameters);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return e.what();
    }
    return "";
  };
  spec::OptimizerOptions o{.name = "muon"};
  o.no_decay = {"bias", "norm", "head"};
  o.lr_factors = {"norm:64", "stem:2"};
  o.freeze = {"stem.bias:3"};
  o.muon.exclude.emplace_back("head");
  EXPECT_EQ(refusal(o), "") << "embeddings, which muon excludes by default, need not be there";
  const auto expect = [&](const spec::OptimizerOptions& options, const std::string& what) {
    const std::string text = refusal(options);
    EXPECT_NE(text.find(what), std::string::npos) << text;
    EXPECT_NE(text.find("stem.weight, stem.bias, head.weight"), std::string::npos) << text;
  };
  spec::OptimizerOptions slip = o;
  slip.no_decay = {"haed"};
  expect(slip, "optimizer.no_decay has \"haed\"");
  slip = o;
  slip.lr_factors = {"haed:2"};
  expect(slip, "optimizer.lr_factors has \"haed\"");
  slip = o;
  slip.freeze = {"haed"};
  expect(slip, "optimizer.freeze has \"haed\"");
  slip = o;
  slip.muon.exclude = {"haed"};
  expect(slip, "optimizer.muon.exclude has \"haed\"");
  slip.name = "sgd";
  EXPECT_EQ(refusal(slip), "") << "only muon reads it";
}

TEST(ParamLayout, RefusesWhatCannotBeLaidOut) {
  ParamLayout layout;
  layout.add("a", {3}, false);
  const auto code_of = [](const auto& action) {
    try {
      action();
    } catch (const Error& e) {
      return e.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code_of([&] { layout.add("a", {3}, false); }), ErrorCode::conflict);
  EXPECT_EQ(code_of([&] { layout.add("b", {-1}, false); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { layout.segment("c"); }), ErrorCode::not_found);
  EXPECT_EQ(code_of([&] { ParamLayout({"bias", ""}); }), ErrorCode::invalid_argument);
}

RC_GTEST_PROP(ParamLayout, SegmentsNeverOverlap, ()) {
  ParamLayout layout;
  const auto sizes = *rc::gen::container<std::vector<uint16_t>>(rc::gen::arbitrary<uint16_t>());
  int64_t reached = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t offset = layout.add(std::to_string(i), {sizes[i]}, false);
    RC_ASSERT(offset >= reached);
    RC_ASSERT(offset - reached < kSegmentAlignment);
    RC_ASSERT(offset % kSegmentAlignment == 0);
    reached = offset + sizes[i];
  }
  RC_ASSERT(layout.total_size() >= reached);
  RC_ASSERT(layout.total_size() % kSegmentAlignment == 0);
}

}  // namespace
}  // namespace ductile::optim
