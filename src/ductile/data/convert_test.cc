#include "ductile/data/convert.h"

#include <string>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/data/inspect.h"
#include "ductile/data/testing/images.h"

namespace ductile::data {
namespace {

class ConvertTest : public ::testing::Test {
 protected:
  ConvertTest() {
    make_image_folder(folder_.path() / "in", 6);
    source_.format = "folder";
    source_.path = (folder_.path() / "in").string();
    out_ = (folder_.path() / "out").string();
  }
  // Every sample of the copy is the source's.
  void expect_equal(const Dataset& a, const Dataset& b) {
    ASSERT_EQ(a.info().size, b.info().size);
    EXPECT_EQ(a.info().class_names, b.info().class_names);
    std::vector<std::byte> s, t;
    for (int64_t i = 0; i < a.info().size; ++i) {
      const auto x = a.read(i, s).bytes, y = b.read(i, t).bytes;
      EXPECT_TRUE(std::equal(x.begin(), x.end(), y.begin(), y.end()));
      EXPECT_EQ(a.label(i), b.label(i));
    }
  }

  TempFolder folder_;
  spec::DataOptions source_;
  std::string out_;
};

TEST_F(ConvertTest, TarShardsHoldTheSameFiles) {
  const auto train =
      convert(source_, Split::train, {.to = "tar", .out = out_, .shard_bytes = 10000});
  EXPECT_EQ(train.samples, 12);
  EXPECT_GT(train.files.size(), 1u);
  convert(source_, Split::test, {.to = "tar", .out = out_});
  spec::DataOptions o;
  o.format = "tar";
  o.path = out_;
  for (const Split split : {Split::train, Split::test}) {
    expect_equal(*open_dataset(source_, split), *open_dataset(o, split));
  }
  o.path = fmt::format("{}/train-{{000000..{:06}}}.tar", out_, train.files.size() - 1);
  expect_equal(*open_dataset(source_, Split::train), *open_dataset(o, Split::train));
  EXPECT_THROW(convert(source_, Split::train, {.to = "tar", .out = out_}), Error);
}

TEST_F(ConvertTest, RecordsHoldTheSameFiles) {
  for (const Split split : {Split::train, Split::test}) {
    convert(source_, split, {.to = "records", .out = out_});
  }
  spec::DataOptions o;
  o.format = "records";
  o.path = out_;
  for (const Split split : {Split::train, Split::test}) {
    expect_equal(*open_dataset(source_, split), *open_dataset(o, split));
  }
}

TEST_F(ConvertTest, RawRecordsHoldDecodedPixels) {
  convert(source_, Split::train, {.to = "records", .out = out_, .raw = true});
  spec::DataOptions o;
  o.format = "records";
  o.path = out_;
  const InspectResult a = inspect(source_, Split::train), b = inspect(o, Split::train);
  EXPECT_EQ(a.info.mean, b.info.mean);
  EXPECT_EQ(a.info.std, b.info.std);
  EXPECT_EQ(b.encodings, (std::vector<std::pair<std::string, int64_t>>{{"pixels", 12}}));

  const std::string small = out_ + "-small";
  convert(source_, Split::train, {.to = "records", .out = small, .raw = true, .short_side = 20});
  o.path = small;
  const InspectResult c = inspect(o, Split::train);
  EXPECT_EQ(std::min(c.min_height, c.min_width), 20);
  EXPECT_NEAR(c.info.mean[0], a.info.mean[0], 0.01);
}

TEST_F(ConvertTest, GreySetsBecomeColourRecords) {
  spec::DataOptions digits;
  digits.train_limit = 100;  // labels are random: enough for every class
  const auto result = convert(digits, Split::train, {.to = "records", .out = out_});
  EXPECT_EQ(to_json(result)["samples"], 100);
  EXPECT_THROW(convert(digits, Split::train, {.to = "tar", .out = out_}), Error);
}

TEST_F(ConvertTest, RefusesWhatMakesNoSense) {
  EXPECT_THROW(convert(source_, Split::train, {.to = "zip", .out = out_}), Error);
  EXPECT_THROW(convert(source_, Split::train, {.to = "tar"}), Error);
  EXPECT_THROW(convert(source_, Split::train, {.to = "tar", .out = out_, .raw = true}), Error);
  EXPECT_THROW(convert(source_, Split::train, {.to = "records", .out = out_, .short_side = 9}),
               Error);
}

TEST_F(ConvertTest, ReportsAsJson) {
  const auto json = to_json(inspect(source_, Split::train));
  EXPECT_EQ(json["samples"], 12);
  EXPECT_EQ(json["classes"][1]["name"], "dog");
  EXPECT_EQ(json["classes"][1]["count"], 6);
  EXPECT_EQ(json["bad_count"], 0);
  EXPECT_EQ(json["shape"]["channels"], 3);
}

}  // namespace
}  // namespace ductile::data
