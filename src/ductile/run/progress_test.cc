#include "ductile/run/progress.h"

#include <cmath>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/json_value.h"

namespace ductile::run {
namespace {

using nlohmann::json;

TEST(Progress, SurvivesThePipe) {
  Progress p{.phase = Phase::eval,
             .step = 120,
             .total_steps = 468,
             .epoch = 2.25,
             .epochs = 10,
             .phase_share = 0.5,
             .loss = 0.31,
             .accuracy = 0.912,
             .samples_per_second = 4310,
             .eta_seconds = HUGE_VAL,
             .workers = 4};
  const std::string line = encode(p);
  EXPECT_TRUE(line.ends_with("\n"));
  const auto back = decode(line);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(std::get<Progress>(*back), p);
}

TEST(Progress, AbsentFieldsKeepTheirDefaultsAndUnknownOnesArePassedOver) {
  EXPECT_EQ(progress_from_json(json::object()), Progress{});
  EXPECT_EQ(progress_from_json({{"step", 3}, {"later", "x"}}).step, 3);
}

TEST(Progress, NamesTheFieldThatIsWrong) {
  for (const json& bad : {json{{"step", "x"}}, json{{"phase", "sleep"}},
                          json{{"loss", json::array()}}, json{{"step", 1e300}}, json("x")}) {
    try {
      progress_from_json(bad);
      FAIL() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(e.what()).find("progress: "), std::string::npos);
    }
  }
}

TEST(Row, OfAnyLengthSurvivesThePipe) {
  const Row row{{{"sample", std::string(10'000, 'x')}, {"top", json::array({1, 2})}}};
  const auto back = decode(encode(row));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(std::get<Row>(*back), row);
}

RC_GTEST_PROP(Message, FitsAPipeAndComesBack, (std::string text)) {
  const std::string line = encode(Message{"warning", text});
  RC_ASSERT(line.size() <= 4096u);
  RC_ASSERT(line.find('\n') == line.size() - 1);
  RC_ASSERT(std::holds_alternative<Message>(decode(line).value()));
}

TEST(Message, IsCutToAPipesAtomicSize) {
  for (const std::string& text :
       {std::string(100000, 'x'), std::string(100000, '\x01'), std::string(100000, '\xff')}) {
    const std::string line = encode(Message{std::string(9000, 'l'), text});
    EXPECT_LE(line.size(), 4096u);
    EXPECT_TRUE(decode(line).has_value());
  }
  EXPECT_EQ(std::get<Message>(*decode(encode(Message{"info", "h\u00e9 \"x\"\n"}))).text,
            "h\u00e9 \"x\"\n");
}

TEST(Done, CarriesTheFigures) {
  const Done done{{{"status", "done"}, {"step", 7}, {"final", {{"accuracy", 0.5}}}}};
  EXPECT_EQ(std::get<Done>(*decode(encode(done))), done);
}

RC_GTEST_PROP(Failed, FitsAPipeAndComesBack, (std::string text)) {
  const std::string line = encode(Failed{ErrorCode::data_loss, text});
  RC_ASSERT(line.size() <= 4096u);
  const auto back = decode(line);
  RC_ASSERT(std::get<Failed>(back.value()).code == ErrorCode::data_loss);
}

TEST(Failed, OfAnUnknownCodeIsInternal) {
  EXPECT_EQ(std::get<Failed>(*decode(R"({"error":"x","code":"later"})")),
            (Failed{ErrorCode::internal, "x"}));
}

// A reader that is stopped must not stop the run.
TEST(OfferLine, NeverWaitsForRoom) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Descriptor reader(ends[0]), writer(ends[1]);
  for (int i = 0; i < 10'000; ++i) offer_line(writer.get(), Message{"info", "a step"});
  std::string got(1 << 20, '\0');
  const ssize_t n = ::read(reader.get(), got.data(), got.size());
  ASSERT_GT(n, 10'000);
  got.resize(static_cast<size_t>(n));
  EXPECT_EQ(got.back(), '\n') << "a line was cut";
  offer_line(writer.get(), Message{"info", "later"});
  EXPECT_GT(::read(reader.get(), got.data(), got.size()), 0);
  offer_line(-1, Message{"info", "nobody"});
}

TEST(Decode, PassesOverWhatLibrariesPrint) {
  for (const char* line : {"", "hello", "{", "[1]", "{\"a\":1}", "{\"message\":1}",
                           "{\"progress\":1}", "{\"progress\":{\"step\":\"x\"}}"}) {
    EXPECT_FALSE(decode(line).has_value()) << line;
  }
}

}  // namespace
}  // namespace ductile::run
