#include "ductile/spec/model_identity.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ductile/base/error.h"
#include "ductile/spec/job.h"

namespace ductile::spec {
namespace {

const ModelIdentity kCnn = {"cnn", "7 operators (a1)", "8 tensors of 100 numbers (b2)",
                            "float32 1x28x28"};

std::string refused(const nlohmann::json& value) {
  try {
    model_identity_from_json(value, "plan: model");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.message();
  }
  return "nothing thrown";
}

TEST(ModelIdentity, TheDigestIsThatOfFnv) {
  EXPECT_EQ(short_digest(""), "cbf29ce484222325");  // the published vectors
  EXPECT_EQ(short_digest("a"), "af63dc4c8601ec8c");
  EXPECT_EQ(short_digest("foobar"), "85944171f73967e8");
}

TEST(ModelIdentity, SurvivesItsJsonAndItsTexts) {
  EXPECT_EQ(model_identity_from_json(to_json(kCnn), "plan"), kCnn);
  EXPECT_EQ(model_identity(to_texts(kCnn)), kCnn);
  EXPECT_TRUE(to_texts(ModelIdentity()).empty());
  EXPECT_TRUE(model_identity({}).empty());
}

TEST(ModelIdentity, SaysWhatDiffersAndNothingOfNames) {
  EXPECT_EQ(difference(kCnn, kCnn), "");
  ModelIdentity other = kCnn;
  other.name = "mine";
  EXPECT_EQ(difference(kCnn, other), "");
  other.parameters = "8 tensors of 200 numbers (b3)";
  EXPECT_EQ(difference(kCnn, other),
            "its parameters are 8 tensors of 100 numbers (b2), and those of this one 8 tensors of "
            "200 numbers (b3)");
  other.samples = "float32 3x32x32";
  EXPECT_NE(difference(kCnn, other).find("; its samples are float32 1x28x28, and those of this"),
            std::string::npos);
  EXPECT_EQ(difference({}, kCnn), "") << "a plan that says nothing is of any model";
  EXPECT_EQ(difference(kCnn, {}), "");
}

TEST(ModelIdentity, WhatIsNoneIsRefusedByName) {
  EXPECT_EQ(refused("cnn"), "plan: model: an object is wanted, not string");
  nlohmann::json value = to_json(kCnn);
  value.erase("samples");
  EXPECT_EQ(refused(value), "plan: model: samples is missing");
  value = to_json(kCnn);
  value["operators"] = std::string(5000, 'x');
  EXPECT_EQ(refused(value), "plan: model: operators has 5000 bytes; at most 4000 are read");
  value = to_json(kCnn);
  value["weights"] = "none";
  EXPECT_NE(refused(value).find("weights"), std::string::npos);
  JobOptions job;
  job.train.method = "pipelined";
  job.train.pipelined.model = {"cnn", "7 operators"};
  EXPECT_THROW(check(job), Error);
  job.train.pipelined.model = to_texts(kCnn);
  EXPECT_NO_THROW(check(job));
}

}  // namespace
}  // namespace ductile::spec
