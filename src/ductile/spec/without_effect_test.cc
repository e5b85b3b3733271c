#include "ductile/spec/without_effect.h"

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace ductile::spec {
namespace {

// What is said of the job with these assignments.
std::vector<std::string> said_of(const std::vector<std::string>& assignments) {
  JobOptions job;
  OptionSet options(job);
  for (const std::string& assignment : assignments) options.set(assignment);
  return without_effect(job, options);
}

bool names(const std::vector<std::string>& said, std::string_view what) {
  for (const std::string& sentence : said)
    if (sentence.find(what) != std::string::npos) return true;
  return false;
}

TEST(WithoutEffect, TheDefaultsHaveNothingOfIt) { EXPECT_EQ(said_of({}).size(), 0U); }

struct Pair {
  const char *option, *reader;  // assignments: of an option, and of what reads it
};

TEST(WithoutEffect, AnOptionThatNobodyReadsIsNamedWithItsReader) {
  for (const Pair& pair : {Pair{"optimizer.momentum=0.8", "optimizer.name=muon"},
                           Pair{"optimizer.adam.beta2=0.95", "optimizer.name=lamb"},
                           Pair{"optimizer.sgd.nesterov=true", "optimizer.muon.rest=sgd"},
                           Pair{"optimizer.muon.rest_momentum=0.8", "optimizer.muon.rest=sgd"},
                           Pair{"optimizer.nlcg.threshold=3", "optimizer.name=nlcg"},
                           Pair{"schedule.knee.explore_share=0.7", "schedule.name=knee"},
                           Pair{"schedule.trapezoid.decay=0.3", "schedule.name=trapezoid"},
                           Pair{"schedule.warmup_start=0.1", "schedule.warmup_epochs=1"},
                           Pair{"train.selective.stale_epochs=2", "train.method=stale_selective"},
                           Pair{"train.selective.beta=2", "train.method=selective"},
                           Pair{"train.selective.precision=bf16", "train.method=selective"},
                           Pair{"train.infobatch.ratio=0.3", "train.method=infobatch"},
                           Pair{"train.lrtuner.batches=2", "train.rate_control=lrtuner"},
                           Pair{"train.noise.factor=2", "train.rate_control=noise"},
                           Pair{"train.noise.patience=2", "train.rate_control=goodput"},
                           Pair{"train.loss_scale=1024", "train.precision=fp16"},
                           Pair{"eval.views_share=0.5", "eval.views=flip"},
                           Pair{"augment.flip_mode=alternating", "augment.flip=true"},
                           Pair{"model.dropout=0.1", "model.name=gpt"},
                           Pair{"model.width=8", "model.name=resnet20"},
                           Pair{"tune.budget=0.5", "tune.online=true"},
                           Pair{"target.value=0.9", "target.metric=accuracy"}}) {
    const std::string option = pair.option, name = option.substr(0, option.find('='));
    std::vector<std::string> other = {option};
    if (name == "optimizer.momentum") other.emplace_back("optimizer.name=adamw");
    if (name == "optimizer.sgd.nesterov" || name == "optimizer.muon.rest_momentum")
      other.emplace_back("optimizer.name=muon");
    if (name == "model.width") other.emplace_back("model.name=mlp");
    const auto unread = said_of(other);
    ASSERT_EQ(unread.size(), 1U) << option;
    EXPECT_TRUE(unread[0].starts_with(name + " = ")) << unread[0];
    EXPECT_TRUE(names(unread, "(--set)")) << unread[0];
    if (name == "model.width" || name == "optimizer.momentum") other.pop_back();
    other.emplace_back(pair.reader);
    EXPECT_FALSE(names(said_of(other), name)) << option << " with " << pair.reader;
  }
}

TEST(WithoutEffect, AValueThatIsTheDefaultIsNotSpokenOf) {
  JobOptions job;
  OptionSet options(job);
  options.set("optimizer.adam.beta2=0.999");
  EXPECT_FALSE(options.find("optimizer.adam.beta2")->origin.is_default());
  EXPECT_EQ(without_effect(job, options).size(), 0U);
}

TEST(WithoutEffect, AModelOfTheUsersMayReadAnyOption) {
  EXPECT_EQ(said_of({"model.name=custom", "model.library=net.so", "model.dropout=0.1",
                     "model.hidden=[3]"})
                .size(),
            0U);
}

// Another value than the one that the option has; empty: there is none to be written down here.
std::string other_value(const OptionField& field) {
  if (auto* const* flag = std::get_if<bool*>(&field.ref)) return **flag ? "false" : "true";
  if (auto* const* whole = std::get_if<int64_t*>(&field.ref)) {
    const auto value = static_cast<double>(**whole);
    return fmt::format("{}", value < field.max ? **whole + 1 : **whole - 1);
  }
  if (auto* const* number = std::get_if<double*>(&field.ref))
    return fmt::format("{}", **number < field.max ? field.max : field.min);
  for (const std::string& choice : field.choices)
    if (choice != *std::get<std::string*>(field.ref)) return choice;
  return "";
}

// The default job trains by sgd, cosine and plain steps.
TEST(WithoutEffect, EveryOptionOfASectionThatIsNotReadIsNamed) {
  JobOptions defaults;
  const OptionSet all(defaults);
  int seen = 0;
  for (const OptionField& field : all.fields()) {
    for (const std::string_view section :
         {"data.tokens",      "data.synthetic",     "optimizer.adam",      "optimizer.lars",
          "optimizer.nadamw", "optimizer.ademamix", "optimizer.muon",      "optimizer.neumann",
          "optimizer.nlcg",   "schedule.step",      "schedule.polynomial", "schedule.one_cycle",
          "schedule.knee",    "schedule.trapezoid", "train.selective",     "train.infobatch",
          "train.graded",     "train.pipelined",    "train.lrtuner",       "train.noise"}) {
      const std::string value = other_value(field);
      if (!field.path.starts_with(std::string(section) + ".") || value.empty()) continue;
      const auto said = said_of({field.path + "=" + value});
      ASSERT_EQ(said.size(), 1U) << field.path << " = " << value;
      EXPECT_TRUE(said[0].starts_with(field.path + " = ")) << said[0];
      ++seen;
    }
  }
  EXPECT_GT(seen, 50);
}

TEST(WithoutEffect, APartOfTheRunBehindItsEndIsNamed) {
  using Assignments = std::vector<std::string>;
  const auto expect = [](Assignments in_time, const std::string& too_long, std::string_view what) {
    EXPECT_FALSE(names(said_of(in_time), what)) << in_time.back();
    in_time.push_back(too_long);
    EXPECT_TRUE(names(said_of(in_time), what)) << too_long;
  };
  // train.epochs is 10.
  expect({"schedule.name=knee", "schedule.warmup_epochs=2", "schedule.knee.explore_epochs=7"},
         "schedule.knee.explore_epochs=8", "schedule.knee.explore_epochs");
  expect({"schedule.name=knee", "schedule.knee.explore_share=0.99"},
         "schedule.knee.explore_share=1", "schedule.knee.explore_share = 1 after");
  expect({"schedule.name=knee", "schedule.knee.explore_share=0.8", "schedule.warmup_epochs=1.9"},
         "schedule.warmup_epochs=2", "does not fall");
  expect({"schedule.name=trapezoid"}, "schedule.trapezoid.decay=0", "does not fall");
  expect({"schedule.name=trapezoid", "schedule.warmup_epochs=3", "schedule.trapezoid.decay=0.7"},
         "schedule.trapezoid.decay=0.8", "begins before the end of schedule.warmup_epochs = 3");
  expect({"schedule.name=step", "schedule.step.milestones=[5, 9]"},
         "schedule.step.milestones=[5, 10]", "milestones has 10");
  expect({"train.method=infobatch"}, "train.epochs=2", "trains on every sample");
  expect({"train.method=graded", "train.graded.end=0.2"}, "train.graded.end=0.19",
         "train.graded.end");
  expect({"train.method=selective", "train.selective.first_epochs=9"},
         "train.selective.first_epochs=10", "first_epochs = 10");
  expect({"train.method=stale_selective"}, "train.selective.interrupt=1", "interrupt");
  expect({"optimizer.name=neumann"}, "train.epochs=5", "plain SGD");
  expect({"optimizer.freeze=[\"stem:9\", \"head\"]"}, "optimizer.freeze=[\"head\", \"stem:10\"]",
         "\"stem:10\"");
  expect({"train.rate_control=noise", "train.virtual_ranks=2"}, "train.noise.max_batch=255",
         "never grows");
  expect({"target.metric=accuracy"}, "train.eval_every_epochs=0", "target.metric ends");
  expect({"tune.online=true"}, "train.eval_every_epochs=0", "tune.retunings = 1");
}

}  // namespace
}  // namespace ductile::spec
