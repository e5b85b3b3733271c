#include "ductile/spec/sample_inputs.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/spec/job.h"

namespace ductile::spec {
namespace {

using Kind = SampleInput::Kind;

std::string refusal(const std::vector<std::string>& texts) {
  try {
    sample_inputs(texts);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.message();
  }
  return "nothing thrown";
}

TEST(SampleInputs, AreReadAndWrittenAsText) {
  const std::vector<SampleInput> inputs =
      sample_inputs({"vector:13", "2*indices:4:1000", "tokens:64:256"});
  const std::vector<SampleInput> want = {{Kind::vector, 13, 0},
                                         {Kind::indices, 4, 1000},
                                         {Kind::indices, 4, 1000},
                                         {Kind::tokens, 64, 256}};
  EXPECT_EQ(inputs, want);
  EXPECT_EQ(sample_inputs(to_texts(inputs)), want);
}

TEST(SampleInputs, WhatIsNoInputIsRefusedByItsText) {
  for (const char* text : {"", "vectors:3", "vector", "vector:0", "vector:3:4", "vector:99999999",
                           "tokens:8", "tokens:8:x", "indices:8:4:2", "0*vector:3", "*vector:3",
                           "2*", "vector:3*2", "2000*vector:3"}) {
    EXPECT_NE(refusal({text}).find(std::string("\"") + text + "\""), std::string::npos)
        << text << ": " << refusal({text});
  }
  EXPECT_NE(refusal({"1000*vector:3", "25*vector:3"}).find("at most 1024"), std::string::npos);
  EXPECT_EQ(refusal({"15*vector:65536", "tokens:65536:2"}), "nothing thrown");
  EXPECT_NE(refusal({"16*vector:65536", "tokens:1:2"}).find("1048576 values"), std::string::npos);
}

std::string refusal_of(const JobOptions& job) {
  try {
    check(job);
  } catch (const Error& e) {
    return e.message();
  }
  return "";
}

TEST(SampleInputs, AJobHasThemWhereItsModelReadsThem) {
  JobOptions job;
  job.model.name = "candle-uno";
  EXPECT_NE(refusal_of(job).find("data.format = \"synthetic\""), std::string::npos);
  job.data.format = "synthetic";
  EXPECT_NE(refusal_of(job).find("needs data.synthetic.inputs"), std::string::npos);
  job.data.synthetic.inputs = {"3*vector:8"};
  EXPECT_EQ(refusal_of(job), "");
  job.data.synthetic.inputs = {"3*vektor:8"};
  EXPECT_NE(refusal_of(job).find("vektor"), std::string::npos);
  job.data.synthetic.inputs = {"3*vector:8"};
  job.model.name = "mlp";
  EXPECT_NE(refusal_of(job).find("do not fit"), std::string::npos);
  job.model.name = "candle-uno";
  job.eval.views = "flip";
  EXPECT_NE(refusal_of(job).find("eval.views"), std::string::npos);
}

}  // namespace
}  // namespace ductile::spec
