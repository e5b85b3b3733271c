#include "ductile/serving/inference.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/rng.h"
#include "ductile/serving/testing/client.h"
#include "ductile/serving/testing/small_model.h"

namespace ductile::serving {
namespace {

using nlohmann::json;

const ModelCard& images() {
  static const auto model = testing::make_small_model({}, 12);
  return model->card();
}
const ModelCard& prompts() {
  static const auto model = testing::make_small_model({.tokens = true}, 12);
  return model->card();
}

InferenceRequest read(const json& body, const ModelCard& card = images()) {
  HttpRequest request{"POST", "/", {}, dump_json(body), true};
  return read_inference(request, card);
}

json input(const char* type, const json& shape, const json& data) {
  return {{"inputs", {{{"name", "x"}, {"datatype", type}, {"shape", shape}, {"data", data}}}}};
}

json pixels(int n) { return json(std::vector<int>(static_cast<size_t>(n), 7)); }

std::string refusal(const json& body, const ModelCard& card = images()) {
  try {
    read(body, card);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.what();
  }
  return "nothing thrown";
}

TEST(ReadInference, TakesPixelsValuesFilesAndTokens) {
  const InferenceRequest a = read(input("UINT8", {2, 4, 4, 1}, pixels(32)));
  ASSERT_EQ(a.samples.size(), 2u);
  EXPECT_EQ(a.samples[1].kind, Sample::Kind::pixels);
  EXPECT_EQ(a.samples[1].shape, (Shape{4, 4, 1}));
  EXPECT_EQ(a.samples[1].bytes.size(), 16u);
  EXPECT_EQ(a.samples[1].bytes[3], std::byte{7});
  const InferenceRequest b =
      read(input("FP32", {1, 1, 4, 4}, json::array({json(std::vector<float>(16, 0.1f))})));
  float value = 0;
  std::memcpy(&value, b.samples[0].bytes.data(), 4);
  EXPECT_EQ(value, 0.1f);
  const InferenceRequest c = read(input("BYTES", {2}, {"Zm9vYg==", "Zm9v"}));
  ASSERT_EQ(c.samples.size(), 2u);
  EXPECT_EQ(c.samples[0].bytes.size(), 4u);
  EXPECT_EQ(std::memcmp(c.samples[1].bytes.data(), "foo", 3), 0);
  for (const char* type : {"INT64", "INT32"}) {
    const InferenceRequest d = read(input(type, {2, 3}, {1, 2, 3, 4, 0, 1}), prompts());
    int64_t token = 0;
    std::memcpy(&token, d.samples[1].bytes.data(), 8);
    EXPECT_EQ(token, 4);
  }
}

TEST(ReadInference, TakesBinaryTensors) {
  json head = input("UINT8", {2, 4, 4, 1}, 0);
  head["inputs"][0].erase("data");
  head["inputs"][0]["parameters"] = {{"binary_data_size", 32}};
  const std::string text = dump_json(head);
  const Headers headers = {{"inference-header-content-length", std::to_string(text.size())}};
  HttpRequest whole{"POST", "/", headers, text + std::string(32, 'a'), true};
  EXPECT_EQ(read_inference(whole, images()).samples.at(1).bytes[15], std::byte{'a'});
  HttpRequest shorter{"POST", "/", headers, text + std::string(31, 'a'), true};
  EXPECT_THROW(read_inference(shorter, images()), Error);
  HttpRequest lies{"POST", "/", {{"inference-header-content-length", "99999"}}, text, true};
  EXPECT_THROW(read_inference(lies, images()), Error);
  HttpRequest raw{
      "POST", "/", {{"inference-header-content-length", "0"}}, std::string(48, 'a'), true};
  EXPECT_EQ(read_inference(raw, images()).samples.size(), 3u);
  HttpRequest torn{
      "POST", "/", {{"inference-header-content-length", "0"}}, std::string(47, 'a'), true};
  EXPECT_THROW(read_inference(torn, images()), Error);
}

// JSON has no such numbers, bytes have.
TEST(ReadInference, RefusesWhatIsNoNumber) {
  json head = input("FP32", {1, 1, 4, 4}, 0);
  head["inputs"][0].erase("data");
  head["inputs"][0]["parameters"] = {{"binary_data_size", 64}};
  const std::string text = dump_json(head);
  const Headers headers = {{"inference-header-content-length", std::to_string(text.size())}};
  for (const float odd : {std::nanf(""), HUGE_VALF, -HUGE_VALF, 0.5f}) {
    std::vector<float> values(16, 1);
    values[3] = odd;
    HttpRequest request{"POST", "/", headers,
                        text + std::string(reinterpret_cast<const char*>(values.data()), 64), true};
    if (odd == 0.5f) {
      EXPECT_EQ(read_inference(request, images()).samples.size(), 1u);
      continue;
    }
    try {
      read_inference(request, images());
      ADD_FAILURE() << odd;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("element 3"), std::string::npos) << e.what();
    }
  }
}

TEST(ReadInference, NamesTheFieldThatIsWrong) {
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(refusal(json::object()), "inputs is missing");
  has(refusal({{"input", 1}}), "did you mean \"inputs\"");
  has(refusal(input("UINT8", {1, 4, 4, 1}, pixels(15))),
      "means 16 elements of UINT8, and the data has 15");
  has(refusal(input("UINT9", {1, 4, 4, 1}, pixels(16))), "did you mean \"UINT8\"");
  has(refusal(input("UINT8", {1, 4, 4, 2}, pixels(32))), "1 or 3 channels");
  has(refusal(input("UINT8", {1, 4, 4, 1}, json(std::vector<int>(16, 256)))), "data has 256");
  has(refusal(input("UINT8", {1, 4, 4, 1}, json(std::vector<double>(16, 0.5)))), "data has 0.5");
  has(refusal(input("FP32", {1, 1, 4, 4}, json(std::vector<double>(16, 1e300)))), "too large");
  has(refusal(input("FP32", {1, 1, 4, 5}, pixels(20))), "FP32 [n, 1, 4, 4]");
  has(refusal(input("BYTES", {1}, {"*"})), "base64");
  has(refusal(input("BYTES", {1}, {7})), "base64");
  has(refusal(input("UINT8", {0, 4, 4, 1}, json::array())), "0 samples");
  has(refusal(input("UINT8", {int64_t{1} << 40, int64_t{1} << 40, 4, 1}, json::array())),
      "none of data");
  has(refusal(input("INT64", {1, 7}, pixels(7)), prompts()), "6 positions");
  has(refusal(input("FP32", {1, 7}, pixels(7)), prompts()), "INT64 [n, tokens]");
  json body = input("UINT8", {1, 4, 4, 1}, pixels(16));
  body["outputs"] = {{{"name", "clas"}}};
  has(refusal(body), "did you mean \"class\"");
  body.erase("outputs");
  body["parameters"] = {{"max_tokens", 3}};
  has(refusal(body), "language models");
  body["parameters"] = {{"timeout", -1}};
  has(refusal(body), "timeout");
}

TEST(AnswerInference, GivesNumbersTextsAndBytes) {
  json body = input("UINT8", {1, 4, 4, 1}, pixels(16));
  body["id"] = "mine";
  body["outputs"] = {{{"name", "class"}},
                     {{"name", "probabilities"}, {"parameters", {{"classification", 2}}}},
                     {{"name", "logits"}, {"parameters", {{"binary_data", true}}}}};
  const HttpResponse got = answer_inference(read(body), images(), {{1, 3, 2}, {}});
  const size_t size = std::stoull(got.headers.at(0).second);
  const json head = parse_json(got.body.substr(0, size), "head", ErrorCode::internal);
  EXPECT_EQ(head["id"], "mine");
  EXPECT_EQ(head["model_version"], "12");
  EXPECT_EQ(head["outputs"][0]["data"], json({1}));
  EXPECT_EQ(head["outputs"][1]["shape"], json({1, 2}));
  EXPECT_EQ(head["outputs"][1]["data"][1], "0.24472848:2:cat");
  EXPECT_EQ(head["outputs"][2]["parameters"]["binary_data_size"], 12);
  float logits[3];
  ASSERT_EQ(got.body.size(), size + 12);
  std::memcpy(logits, got.body.data() + size, 12);
  EXPECT_EQ(logits[1], 3);
}

TEST(AnswerInference, WritesFloatsThatReadBackTheSame) {
  json body = input("UINT8", {1, 4, 4, 1}, pixels(16));
  body["outputs"] = {{{"name", "logits"}}};
  const InferenceRequest request = read(body);
  Rng rng(5);
  for (int i = 0; i < 100; ++i) {
    const std::vector<float> logits = {rng.normal(), rng.normal() * 1e-20f, rng.normal() * 1e20f};
    const json got = testing::json_of(answer_inference(request, images(), {logits, {}}));
    EXPECT_EQ(got["outputs"][0]["data"].get<std::vector<float>>(), logits);
  }
}

TEST(DrawToken, FollowsTheProbabilitiesAndTheSeed) {
  const std::vector<float> logits = {0, std::log(2.0f), std::log(5.0f), -100};
  std::vector<int> counts(4);
  for (uint64_t seed = 0; seed < 8000; ++seed)
    ++counts[static_cast<size_t>(draw_token(logits, {.seed = seed}, 0, 0))];
  EXPECT_NEAR(counts[0], 1000, 150);
  EXPECT_NEAR(counts[1], 2000, 200);
  EXPECT_NEAR(counts[2], 5000, 250);
  EXPECT_EQ(counts[3], 0);
  for (uint64_t seed = 0; seed < 100; ++seed) {
    EXPECT_EQ(draw_token(logits, {.temperature = 0, .seed = seed}, 0, 0), 2);
    EXPECT_EQ(draw_token(logits, {.top_k = 1, .seed = seed}, 0, 0), 2);
    EXPECT_NE(draw_token(logits, {.top_k = 2, .seed = seed}, 0, 0), 0);
    EXPECT_EQ(draw_token(logits, {.seed = seed}, 1, 2), draw_token(logits, {.seed = seed}, 1, 2));
  }
}

TEST(ReadInference, SurvivesAlteredBodies) {
  json body = input("UINT8", {1, 4, 4, 1}, pixels(16));
  body["parameters"] = {{"binary_data_output", true}};
  const std::string text = dump_json(body);
  for (uint64_t i = 0; i < 20000; ++i) {
    Rng rng(9, i);
    HttpRequest request{"POST", "/", {}, text, true};
    for (uint32_t k = 1 + rng.below(4); k > 0; --k) {
      const size_t at = rng.below(static_cast<uint32_t>(request.body.size()));
      if (rng.below(2) == 0) {
        request.body[at] = static_cast<char>(rng.below(256));
      } else {
        request.body.erase(at, rng.below(9));
      }
    }
    if (rng.below(4) == 0)
      request.headers = {{"inference-header-content-length", std::to_string(rng.below(200))}};
    try {
      for (const Sample& sample : read_inference(request, images()).samples)
        EXPECT_EQ(sample.bytes.size() % 4, 0u);
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), ErrorCode::invalid_argument) << e.what();
    }
  }
}

}  // namespace
}  // namespace ductile::serving
