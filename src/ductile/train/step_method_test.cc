#include "ductile/train/step_method.h"

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/train/ingredients.h"

namespace ductile::train {
namespace {

TEST(StepMethods, TheTableMakesEachOfItsRowsAndNamesThemWhereOneIsUnknown) {
  spec::JobOptions job;
  for (const StepMethodEntry& entry : step_methods()) {
    job.train.method = entry.name;
    EXPECT_NE(make_step_method(job), nullptr);
    EXPECT_FALSE(entry.help.empty());
  }
  job.train.method = "plane";
  try {
    make_step_method(job);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("plain"), std::string::npos) << e.what();
  }
}

TEST(FigureList, PlacesWhatAMethodAddsBehindTheStandardOnes) {
  const FigureList figures({"selected", "class_0"});
  EXPECT_EQ(figures.size(), 8);
  EXPECT_EQ(figures.place(kLoss), 0U);
  EXPECT_EQ(figures.place("class_0"), 7U);
  EXPECT_THROW(figures.place("class_1"), Error);
  const std::vector<float> tail = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(figures.by_name(tail).at("selected"), 7);
  EXPECT_EQ(figures.by_name(tail).size(), 8U);
  EXPECT_THROW(FigureList({"loss"}), Error);
  const FigureList sharing({"selected"}, 2);
  EXPECT_EQ(sharing.size(), 9);
  const std::vector<float> longer = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(sharing.by_name(longer).at("selected"), 7);
  EXPECT_EQ(sharing.shared(longer)[1], 9);
}

// A training set that is handed in meets the test set of the job file.
TEST(Ingredients, ATestSetThatDoesNotFitTheTrainingSetIsRefusedBeforeAnyStep) {
  class Few final : public data::Dataset {
   public:
    Few() {
      info_ = {.format = "few",
               .size = 128,
               .num_classes = 3,
               .channels = 1,
               .height = 28,
               .width = 28,
               .mean = {0.5},
               .std = {0.5}};
    }
    int64_t label(int64_t index) const override { return index % 3; }
    data::Sample read(int64_t, std::vector<std::byte>& scratch) const override {
      scratch.assign(28 * 28, std::byte{1});
      return {data::Encoding::pixels, scratch, 28, 28, 1};
    }
    std::string where(int64_t index) const override { return std::to_string(index); }
  };
  spec::JobOptions job;
  job.model.name = "mlp";
  Ingredients given;
  given.train_set = std::make_shared<Few>();
  try {
    complete(std::move(given), job);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(e.what()).find("digits, 1 channels and 10 classes"), std::string::npos)
        << e.what();
  }
  Ingredients both;
  both.train_set = both.test_set = std::make_shared<Few>();
  EXPECT_NE(complete(std::move(both), job).model, nullptr);
}

}  // namespace
}  // namespace ductile::train
