#include <string>
#include <thread>
#include <variant>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/options.h"
#include "ductile/cluster/spec_reader_impl.h"

namespace ductile::cluster {
namespace {

using nlohmann::json;

json small_training(int seed) {
  return {{"job", "seed = " + std::to_string(seed) + "\n[model]\nname = \"mlp\"\nhidden = [16]\n"}};
}

// All options, as a job file writes them.
std::string options_text(const Work& work) {
  spec::JobOptions job = std::get<spec::JobOptions>(work);
  return OptionSet(job).to_toml();
}

TEST(SpecReader, WhatTheInterfaceHasReadIsWhatTheServiceTakesUp) {
  SpecReader reader;
  const auto checked = reader.read("train", small_training(1));
  EXPECT_EQ(reader.read_text("train", dump_json(small_training(1))), checked);
  EXPECT_EQ(options_text(checked->work), options_text(work_of("train", small_training(1))));
  EXPECT_EQ(checked->application, application_of(work_of("train", small_training(1))));
}

TEST(SpecReader, OtherTextsAndKindsAreOtherJobs) {
  SpecReader reader;
  const auto one = reader.read("train", small_training(1)),
             other = reader.read("train", small_training(2));
  EXPECT_NE(options_text(one->work), options_text(other->work));
  EXPECT_EQ(one->application, other->application);
  const json command = {{"command", {"true"}}, {"directory", "/"}};
  const auto program = reader.read("command", command);
  EXPECT_TRUE(std::holds_alternative<CommandSpec>(program->work));
  EXPECT_EQ(program->application, "");
  EXPECT_THROW(reader.read("train", command), Error);
  EXPECT_THROW(reader.read("command", small_training(1)), Error);
}

TEST(SpecReader, ForgetsTheOldestOfMany) {
  SpecReader reader(3);
  std::vector<SpecReader::Read> reads;
  for (int seed = 0; seed < 4; ++seed) reads.push_back(reader.read("train", small_training(seed)));
  for (int seed = 1; seed < 4; ++seed)
    EXPECT_EQ(reader.read("train", small_training(seed)), reads[static_cast<size_t>(seed)]) << seed;
  const auto again = reader.read("train", small_training(0));
  EXPECT_NE(again, reads[0]);
  EXPECT_EQ(options_text(again->work), options_text(reads[0]->work));
  EXPECT_NE(reader.read("train", small_training(1)), reads[1]);
}

// A text of a megabyte is four of numbers.
TEST(SpecReader, OfLargeTextsItKeepsFew) {
  SpecReader reader(1000, 100'000);
  const auto large = [](int seed) {
    json out = small_training(seed);
    out["job"] = out["job"].get<std::string>() + "# " + std::string(30'000, 'x') + "\n";
    return out;
  };
  std::vector<SpecReader::Read> reads;
  for (int seed = 0; seed < 8; ++seed) reads.push_back(reader.read("train", large(seed)));
  EXPECT_EQ(reader.read("train", large(7)), reads[7]);
  EXPECT_EQ(reader.read("train", large(5)), reads[5]);
  EXPECT_EQ(reads[4].use_count(), 1) << "nobody else has it";
  // One that is larger than all that is kept is read all the same, and not kept.
  SpecReader small(1000, 1000);
  EXPECT_EQ(small.read("train", large(0)).use_count(), 1);
  EXPECT_EQ(small.read("train", small_training(0)).use_count(), 2);
}

TEST(SpecReader, WhatIsWrongIsWrongEachTime) {
  SpecReader reader;
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(reader.read("train", {{"job", "[train]\nepochs = -1\n"}}), Error);
    try {
      reader.read_text("train", "{");
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data_loss);
    }
  }
}

TEST(SpecReader, WhatSomebodyHasReadOtherwiseIsKept) {
  SpecReader reader;
  const auto kept = reader.keep("train", small_training(5), work_of("train", small_training(5)));
  EXPECT_EQ(reader.read_text("train", dump_json(small_training(5))), kept);
}

TEST(SpecReader, ThreadsReadTheSame) {
  SpecReader reader(2);
  std::vector<std::string> expected;
  for (int seed = 0; seed < 4; ++seed)
    expected.push_back(options_text(work_of("train", small_training(seed))));
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        const int seed = (i * 7 + static_cast<int>(t)) % 4;
        const auto read = reader.read("train", small_training(seed));
        wrong[t] += options_text(read->work) != expected[static_cast<size_t>(seed)];
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

}  // namespace
}  // namespace ductile::cluster
