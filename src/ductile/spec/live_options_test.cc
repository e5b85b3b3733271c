#include "ductile/spec/live_options.h"

#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/options.h"

namespace ductile::spec {
namespace {

std::string text_of_refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.what();
  }
  return "no error";
}

// A job that reads the option.
JobOptions reader_of(const LiveOption& option) {
  for (const char* name : {"adamw", "lars", "nadamw", "ademamix", "muon", "neumann", "nlcg"}) {
    for (const char* method : {"plain", "selective", "infobatch", "graded"}) {
      for (const char* rest : {"adamw", "sgd"}) {
        for (const char* model : {"cnn", "gpt"}) {
          JobOptions job;
          job.optimizer.name = name;
          job.optimizer.muon.rest = rest;
          job.optimizer.nadamw.momentum_decay = 0.004;
          job.train.method = method;
          job.model.name = model;
          if (option.is_read(job)) return job;
        }
      }
    }
  }
  ADD_FAILURE() << option.key << " is read by none of these jobs";
  return {};
}

TEST(LiveOptions, AreNumbersWithBoundsAndReadBySomeJob) {
  JobOptions job;
  const OptionSet options(job);
  std::set<std::string_view> seen;
  for (const LiveOption& option : live_options()) {
    EXPECT_TRUE(seen.insert(option.key).second) << option.key;
    EXPECT_EQ(find_live_option(option.key), &option);
    const OptionField* const field = options.find(option.key);
    ASSERT_NE(field, nullptr) << option.key;
    const bool whole = std::holds_alternative<int64_t*>(field->ref);
    EXPECT_TRUE(whole || std::holds_alternative<double*>(field->ref)) << option.key;
    EXPECT_TRUE(std::isfinite(field->min) && std::isfinite(field->max)) << option.key;
    EXPECT_FALSE(whole && option.scale != LiveScale::linear) << option.key;
    const JobOptions reader = reader_of(option);
    EXPECT_TRUE(std::isfinite(live_value(reader, option.key))) << option.key;
  }
  EXPECT_EQ(find_live_option("optimizer.lr"), nullptr);
}

TEST(LiveOptions, WithOthersAJobHasThemAndIsOtherwiseAsItWas) {
  for (const LiveOption& option : live_options()) {
    const JobOptions job = reader_of(option);
    JobOptions copy = job;
    const OptionField field = *OptionSet(copy).find(option.key);
    const double there = live_value(job, option.key);
    const double other = there == field.min ? field.max : field.min;
    JobOptions changed = with_options(job, {{std::string(option.key), other}});
    EXPECT_EQ(live_value(changed, option.key), other) << option.key;
    JobOptions back = with_options(changed, {{std::string(option.key), there}});
    EXPECT_EQ(OptionSet(back).to_toml(), OptionSet(copy).to_toml()) << option.key;
    EXPECT_NE(OptionSet(changed).to_toml(), OptionSet(copy).to_toml()) << option.key;
    for (const double beyond : {field.max * 2 + 1, field.min - 1, std::nan("")}) {
      EXPECT_NE(text_of_refusal([&] {
                  with_options(job, {{std::string(option.key), beyond}});
                }).find(option.key),
                std::string::npos);
    }
  }
  EXPECT_NE(text_of_refusal([] {
              with_options({}, {{"train.epochs", 2}});
            }).find("train.epochs"),
            std::string::npos);
}

TEST(LiveOptions, RangesAreRead) {
  JobOptions job;
  job.optimizer.name = "muon";
  job.tune.options = {"optimizer.clip_norm:0.1:1e1", "optimizer.muon.steps:3:7",
                      "train.label_smoothing:0:0.2", "optimizer.adam.beta2:0.9:0.9999"};
  const std::vector<TunedOption> tuned = tuned_options(job);
  ASSERT_EQ(tuned.size(), 4U);
  EXPECT_EQ(tuned[0].option->key, "optimizer.clip_norm");
  EXPECT_EQ(tuned[0].least, 0.1);
  EXPECT_EQ(tuned[0].largest, 10);
  EXPECT_FALSE(tuned[0].whole);
  EXPECT_TRUE(tuned[1].whole);
  EXPECT_EQ(tuned[3].largest, 0.9999);
  EXPECT_TRUE(tuned_options({}).empty());
}

TEST(LiveOptions, WhatCannotBeTunedIsRefusedByNameAndReason) {
  const auto expect = [](const std::string& text, const std::string& part) {
    JobOptions job;
    job.tune.options = {text};
    const std::string refusal = text_of_refusal([&] { tuned_options(job); });
    EXPECT_NE(refusal.find("tune.options"), std::string::npos) << refusal;
    EXPECT_NE(refusal.find(part), std::string::npos) << text << ": " << refusal;
    return refusal;
  };
  for (const char* text : {"", ":", "::", "optimizer.clip_norm", "optimizer.clip_norm:1", ":1:2",
                           "optimizer.clip_norm:a:2", "optimizer.clip_norm:1:",
                           "optimizer.clip_norm:1:inf", "optimizer.clip_norm:1:2 "}) {
    expect(text, std::string("has \"") + text + "\"; write an option");
  }
  expect("optimizer.clip_nrm:1:2", "did you mean optimizer.clip_norm?");
  expect("optimizer.muon:1:2", "is a section");
  expect("optimizer.lr:1e-3:1", "tune.lr = [LEAST, LARGEST]");
  expect("train.staleness:0:3", "tune.staleness");
  expect("augment.cutout:0:12", "the loader augments samples ahead of the steps");
  expect("augment.pad:0:4", "the loader augments samples ahead of the steps");
  expect("schedule.step.gamma:0.1:0.5", "it shapes the learning rate");
  expect("model.width:8:64", "it decides which weights there are");
  expect("train.ema_decay:0.9:0.99", "judged by their training loss");
  const std::string refusal = expect("train.epochs:1:2", "stays as it is for the life of a run");
  for (const LiveOption& option : live_options())
    EXPECT_NE(refusal.find(option.key), std::string::npos) << "it says what can";
  // Of another choice, and beyond bounds and scales.
  expect("optimizer.muon.rest_lr:0.1:1", "only with optimizer.name = \"muon\"");
  expect("train.graded.beta:1:3", "only with train.method = \"graded\"");
  expect("model.dropout:0:0.5", "only with model.name");
  expect("train.label_smoothing:0:2", "between 0 and 1");
  expect("train.label_smoothing:0.2:0.1", "the least value comes first");
  expect("optimizer.clip_norm:0:1", "logarithmic scale");
}

TEST(LiveOptions, BoundsOfScalesWholeNumbersAndDoublesAreRefused) {
  const auto refusal = [](std::vector<std::string> texts) {
    JobOptions job;
    job.optimizer.name = "muon";
    job.tune.options = std::move(texts);
    return text_of_refusal([&] { tuned_options(job); });
  };
  EXPECT_NE(refusal({"optimizer.adam.beta1:0.5:1"}).find("below 1"), std::string::npos);
  EXPECT_NE(refusal({"optimizer.muon.steps:3:4.5"}).find("whole number"), std::string::npos);
  EXPECT_NE(refusal({"optimizer.muon.steps:3:5", "optimizer.muon.steps:3:5"}).find("twice"),
            std::string::npos);
  JobOptions plain_nadamw;
  plain_nadamw.optimizer.name = "nadamw";
  plain_nadamw.tune.options = {"optimizer.nadamw.momentum_decay:0.001:0.01"};
  EXPECT_NE(text_of_refusal([&] { tuned_options(plain_nadamw); }).find("above 0"),
            std::string::npos)
      << "its state has no place for the product of momenta";
}

}  // namespace
}  // namespace ductile::spec
