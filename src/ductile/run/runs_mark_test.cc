#include "ductile/run/runs_mark.h"

#include <string>

#include <gtest/gtest.h>

#include "ductile/base/testing.h"

namespace ductile::run {
namespace {

TEST(RunsMark, IsReadAsItWasWrittenAlsoByHand) {
  const TempFolder runs;
  EXPECT_EQ(runs_mark(runs.path()), "");
  EXPECT_EQ(runs_mark(runs.path() / "none"), "");
  for (const char* text : {"0123456789abcdef\n", "0123456789abcdef", "0123456789abcdef \r\n"}) {
    write_file_atomic(runs_mark_file(runs.path()), text);
    EXPECT_EQ(runs_mark(runs.path()), "0123456789abcdef") << text;
    EXPECT_FALSE(is_another_folder(runs.path(), "0123456789abcdef")) << text;
    EXPECT_TRUE(is_another_folder(runs.path(), "1123456789abcdef")) << text;
  }
}

TEST(RunsMark, WhatIsNoneIsDamageAndAnotherFolder) {
  const TempFolder runs;
  const fs::path file = runs_mark_file(runs.path());
  EXPECT_TRUE(is_another_folder(runs.path(), "0123456789abcdef")) << "there is none";
  for (const std::string& text :
       {std::string(), std::string("0123"), std::string("0123456789ABCDEF"),
        std::string("0123456789abcdef0"), std::string(5000, '0')}) {
    write_file_atomic(file, text);
    const std::string said =
        ductile::testing::text_of([&] { (void)runs_mark(runs.path()); }, ErrorCode::data_loss);
    EXPECT_NE(said.find(file.string()), std::string::npos) << said;
    EXPECT_TRUE(is_another_folder(runs.path(), "0123456789abcdef"));
  }
}

TEST(RunsMark, WhatCannotBeReadNowIsNoOtherFolder) {
  const TempFolder runs;
  fs::create_directory(runs_mark_file(runs.path()));
  EXPECT_EQ(ductile::testing::code_of([&] { (void)is_another_folder(runs.path(), "0"); }),
            ErrorCode::unavailable);
}

}  // namespace
}  // namespace ductile::run
