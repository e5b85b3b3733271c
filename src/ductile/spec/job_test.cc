#include "ductile/spec/job.h"

#include <gtest/gtest.h>

#include "ductile/base/error.h"

namespace ductile::spec {
namespace {

TEST(Job, EveryOptionHasHelpAndADefaultWithinItsBounds) {
  JobOptions job;
  OptionSet options(job);
  EXPECT_GT(options.fields().size(), 60u);
  for (const OptionField& f : options.fields()) EXPECT_FALSE(f.help.empty()) << f.path;
  JobOptions back;
  EXPECT_NO_THROW(OptionSet(back).read_toml_text(options.to_toml(), "defaults"));
  EXPECT_NO_THROW(check(job));
}

void expect_refused(const std::string& toml, const std::string& part) {
  JobOptions job;
  OptionSet(job).read_toml_text(toml, "t");
  try {
    check(job);
    FAIL() << toml;
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(Job, OptionsThatContradictEachOtherAreRefusedByName) {
  expect_refused("[train]\nbatch_size = 10\nvirtual_ranks = 4\n", "virtual_ranks = 4");
  expect_refused("[data]\nformat = \"cifar10\"\n", "needs data.path");
  expect_refused("[augment]\nrandom_resized_crop = true\n", "augment.crop");
  expect_refused("[augment]\nmean = [0.5]\n", "augment.mean");
  expect_refused("[schedule]\nname = \"step\"\n", "milestones");
  expect_refused("[model]\nname = \"gpt\"\n", "gpt reads tokens");
  expect_refused("[model]\nname = \"custom\"\n", "model.library");
}

}  // namespace
}  // namespace ductile::spec
