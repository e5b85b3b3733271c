#include "ductile/train/step_method.h"

#include <gtest/gtest.h>

#include "ductile/base/error.h"

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
  EXPECT_EQ(figures.size(), 7);
  EXPECT_EQ(figures.place(kLoss), 0U);
  EXPECT_EQ(figures.place("class_0"), 6U);
  EXPECT_THROW(figures.place("class_1"), Error);
  const std::vector<float> tail = {1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(figures.by_name(tail).at("selected"), 6);
  EXPECT_EQ(figures.by_name(tail).size(), 7U);
  EXPECT_THROW(FigureList({"loss"}), Error);
  const FigureList sharing({"selected"}, 2);
  EXPECT_EQ(sharing.size(), 8);
  const std::vector<float> longer = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(sharing.by_name(longer).at("selected"), 6);
  EXPECT_EQ(sharing.shared(longer)[1], 8);
}

}  // namespace
}  // namespace ductile::train
