#include "ductile/optim/param_layout.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"

namespace ductile::optim {
namespace {

TEST(ParamLayout, SegmentsBeginOnCacheLinesInTheOrderAdded) {
  ParamLayout layout;
  EXPECT_EQ(layout.add("a.weight", 17, 2, false), 0);
  EXPECT_EQ(layout.add("a.bias", 16, 1, false), 32);
  EXPECT_EQ(layout.add("empty", 0, 1, false), 48);
  EXPECT_EQ(layout.add("b.weight", 1, 2, false), 48);
  EXPECT_EQ(layout.total_size(), 64);
  EXPECT_EQ(layout.num_parameters(), 34);
  EXPECT_EQ(layout.segment("a.bias").offset, 32);
}

TEST(ParamLayout, ExclusionRulesReadBiasNormAndPartsOfNames) {
  ParamLayout layout({"bias", "norm", "embed"});
  layout.add("conv.weight", 9, 4, false);
  layout.add("conv.bias", 3, 1, false);
  layout.add("bn1.weight", 3, 1, true);
  layout.add("embed_tokens.weight", 3, 2, false);
  layout.add("bias_net.weight", 3, 2, false);
  layout.add("normal.weight", 3, 2, false);
  EXPECT_TRUE(layout.segment("conv.weight").decay);
  EXPECT_FALSE(layout.segment("conv.bias").decay);
  EXPECT_FALSE(layout.segment("bn1.weight").decay);
  EXPECT_FALSE(layout.segment("embed_tokens.weight").decay);
  EXPECT_TRUE(layout.segment("bias_net.weight").decay);
  EXPECT_TRUE(layout.segment("normal.weight").decay);

  ParamLayout all{std::vector<std::string>{}};
  all.add("conv.bias", 3, 1, false);
  all.add("bn1.weight", 3, 1, true);
  EXPECT_TRUE(all.segment("conv.bias").decay);
  EXPECT_TRUE(all.segment("bn1.weight").decay);
}

TEST(ParamLayout, RefusesWhatCannotBeLaidOut) {
  ParamLayout layout;
  layout.add("a", 3, 1, false);
  const auto code_of = [](const auto& action) {
    try {
      action();
    } catch (const Error& e) {
      return e.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code_of([&] { layout.add("a", 3, 1, false); }), ErrorCode::conflict);
  EXPECT_EQ(code_of([&] { layout.add("b", -1, 1, false); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { layout.segment("c"); }), ErrorCode::not_found);
  EXPECT_EQ(code_of([&] { ParamLayout({"bias", ""}); }), ErrorCode::invalid_argument);
}

RC_GTEST_PROP(ParamLayout, SegmentsNeverOverlap, ()) {
  ParamLayout layout;
  const auto sizes = *rc::gen::container<std::vector<uint16_t>>(rc::gen::arbitrary<uint16_t>());
  int64_t reached = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t offset = layout.add(std::to_string(i), sizes[i], 1, false);
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
