#include "ductile/spec/job.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/spec/datasets.h"
#include "ductile/spec/methods.h"
#include "ductile/spec/models.h"
#include "ductile/spec/optimizers.h"
#include "ductile/spec/schedules.h"

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

// The numbers of an option, whatever its type; none for others.
std::vector<double> numbers_of(const OptionField& f) {
  if (auto* const* p = std::get_if<int64_t*>(&f.ref)) return {static_cast<double>(**p)};
  if (auto* const* p = std::get_if<double*>(&f.ref)) return {**p};
  if (auto* const* p = std::get_if<std::vector<int64_t>*>(&f.ref))
    return {(*p)->begin(), (*p)->end()};
  if (auto* const* p = std::get_if<std::vector<double>*>(&f.ref))
    return {(*p)->begin(), (*p)->end()};
  return {};
}

bool is_list(const OptionField& f) {
  return std::holds_alternative<std::vector<int64_t>*>(f.ref) ||
         std::holds_alternative<std::vector<double>*>(f.ref);
}

bool is_number(const OptionField& f) {
  return is_list(f) || std::holds_alternative<int64_t*>(f.ref) ||
         std::holds_alternative<double*>(f.ref);
}

// Every number at, just inside and just outside of its bounds, and at what breaks arithmetic, is
// either refused by name or becomes a number that the program can compute with.
TEST(Job, NumbersAreAcceptedAndSaneOrRefusedByName) {
  JobOptions job;
  OptionSet options(job);
  int accepted = 0, refused = 0;
  for (const OptionField& f : options.fields()) {
    if (!is_number(f)) continue;
    SCOPED_TRACE(f.path);
    EXPECT_TRUE(std::isfinite(f.min));
    // The seed is mixed, never counted with: all of its 63 bits are good.
    const double max = f.path == "seed" ? 0x1p63 : f.max;
    EXPECT_TRUE(std::isfinite(max));
    std::vector<std::string> texts = {"nan",
                                      "-nan",
                                      "inf",
                                      "-inf",
                                      "-0.0",
                                      "-0",
                                      "5e-324",
                                      "1e308",
                                      "-1e308",
                                      "1e19",
                                      "9.3e9",
                                      "-1",
                                      "0.5",
                                      "9223372036854775807",
                                      "-9223372036854775808",
                                      "9223372036854775808",
                                      "1e400",
                                      "1e-400"};
    for (const double bound : {f.min, max}) {
      for (const double v : {bound, std::nextafter(bound, -HUGE_VAL),
                             std::nextafter(bound, HUGE_VAL), bound - 1, bound + 1}) {
        texts.push_back(fmt::format("{}", v));
        texts.push_back(fmt::format("{:.0f}", v));
      }
    }
    for (const std::string& text : texts) {
      try {
        options.set(fmt::format(fmt::runtime(is_list(f) ? "{}=[{}]" : "{}={}"), f.path, text));
        ++accepted;
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
        EXPECT_NE(std::string(e.what()).find(f.path), std::string::npos) << e.what();
        ++refused;
      }
      for (const double v : numbers_of(f)) {
        EXPECT_TRUE(v >= f.min && v <= max) << text << " gave " << v;
        EXPECT_TRUE(std::isfinite(static_cast<float>(v))) << text;
        EXPECT_FALSE(v == 0 && std::signbit(v)) << text;
        // Seconds become nanoseconds, counts are multiplied with counts.
        if (f.path == "seed") continue;
        EXPECT_LE(v, std::holds_alternative<double*>(f.ref) ? 1e30 : 1e15) << text;
        // Seconds become nanoseconds of 64 bits.
        EXPECT_TRUE(v <= 1e9 || f.help.find("seconds") == std::string::npos) << text;
      }
    }
  }
  EXPECT_GT(accepted, 300);
  EXPECT_GT(refused, 500);
}

// What the program computes from options at their upper bounds.
TEST(Job, TheLargestNumbersOverflowNothing) {
  JobOptions job;
  OptionSet options(job);
  for (const OptionField& f : options.fields()) {
    if (is_number(f) && !is_list(f) && f.path != "seed") {
      options.set(fmt::format("{}={}", f.path, f.max));
    }
  }
  const auto fits = [](double v) { return std::abs(v) < 0x1p63; };
  EXPECT_TRUE(fits(job.checkpoint.every_seconds * 1e9));  // nanoseconds of a clock
  EXPECT_TRUE(fits(job.elastic.peer_deadline * 1e9));
  EXPECT_TRUE(fits(static_cast<double>(job.loader.cache_mb) * 0x1p20));
  // A data set of 2^40 samples of a byte is a tebibyte.
  EXPECT_TRUE(fits(static_cast<double>(job.train.epochs) * 0x1p40));
  EXPECT_TRUE(fits(job.train.eval_every_epochs * 0x1p40));
  EXPECT_TRUE(fits(job.schedule.warmup_epochs * 0x1p40));
  EXPECT_TRUE(fits(static_cast<double>(job.train.max_steps + job.checkpoint.every_steps)));
  EXPECT_TRUE(fits(static_cast<double>(job.train.batch_size) * 4.0 *
                   static_cast<double>(job.augment.crop * job.augment.crop) * 4));
  EXPECT_TRUE(
      fits(static_cast<double>(job.train.batch_size * job.data.tokens.sequence_length) * 8));
  EXPECT_TRUE(fits(static_cast<double>(job.model.vocab_size * job.model.dim) * 4));
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

// Bias corrections divide by 1 - beta^t.
TEST(Job, ABetaOfOneIsRefusedWhereARuleDividesByItsRest) {
  for (const std::string rule :
       {"adam", "adamw", "nadamw", "ademamix", "schedule_free", "lamb", "muon"}) {
    const std::string job = "optimizer = {name = \"" + rule + "\", adam = {";
    expect_refused(job + "beta2 = 1}}\n", "optimizer.adam.beta2 = 1");
    if (rule != "schedule_free") expect_refused(job + "beta1 = 1}}\n", "optimizer.adam.beta1 = 1");
  }
  for (const std::string toml : {"optimizer = {adam = {beta1 = 1, beta2 = 1}}\n",  // sgd
                                 "optimizer = {name = \"lars\", momentum = 1}\n",
                                 "optimizer = {name = \"muon\", momentum = 1}\n",  // a warning
                                 "optimizer = {name = \"schedule_free\", adam = {beta1 = 1}}\n"}) {
    JobOptions job;
    OptionSet(job).read_toml_text(toml, "t");
    EXPECT_NO_THROW(check(job)) << toml;
  }
}

TEST(Job, PartsOfStagesThatDoNotFitAreRefusedByName) {
  const std::string parts = "[train]\nmethod = \"pipelined\"\n";
  expect_refused(parts + "virtual_ranks = 4\npipelined = {tensor = [2, 1], replicas = 2}\n",
                 "set train.virtual_ranks = 6");
  expect_refused(parts + "virtual_ranks = 3\npipelined = {tensor = [3], stages = [\"a\", \"b\"]}\n",
                 "train.pipelined.tensor has 1 numbers for 2 stages");
  expect_refused(parts + "virtual_ranks = 3\npipelined = {tensor = [2, 1], orders = [\"F4B4\"]}\n",
                 "1 orders for 2 stages");
  expect_refused(parts + "virtual_ranks = 3\npipeline_exact = true\npipelined.tensor = [2, 1]\n",
                 "needs train.pipelined.tensor = []");
  expect_refused(
      parts + "virtual_ranks = 3\npipelined = {tensor = [2, 1], stage_replicas = [2, 1]}\n",
      "does not fit train.pipelined.stage_replicas");
  JobOptions job;
  job.train.virtual_ranks = 6;
  job.train.pipelined.replicas = 2;
  job.train.pipelined.tensor = {1, 2};
  EXPECT_EQ(num_stages(job), 2);
  EXPECT_EQ(pipeline_ranks(job), 3);
  EXPECT_TRUE(divides_tensors(job));
}

TEST(Job, PlansWithTheSameResultAddAsManyPartsInTheSameOrder) {
  const auto job = [](int64_t stages, int64_t replicas, int64_t micro_batches) {
    JobOptions out;
    out.train.method = "pipelined";
    out.train.virtual_ranks = stages * replicas;
    out.train.pipelined.replicas = replicas;
    out.train.pipelined.micro_batches = micro_batches;
    return out;
  };
  EXPECT_TRUE(same_result(job(2, 1, 4), job(3, 1, 4)));
  EXPECT_FALSE(same_result(job(2, 1, 4), job(2, 1, 8)));
  EXPECT_FALSE(same_result(job(2, 1, 4), job(2, 2, 4)));
  EXPECT_TRUE(same_result(job(2, 2, 4), job(4, 2, 4)));
  EXPECT_FALSE(same_result(job(2, 2, 4), job(3, 2, 4))) << "a pipeline is no node of the tree";
  JobOptions cut = job(3, 2, 4), other = cut;
  cut.train.pipelined.stages = {"a", "b", "c"};
  other.train.pipelined.stages = {"a", "b c", ""};
  EXPECT_FALSE(same_result(cut, other));
  other.train.pipelined.stages = cut.train.pipelined.stages;
  other.train.pipelined.orders = {"F4B4", "F4B4", "F4B4"};
  EXPECT_TRUE(same_result(cut, other)) << "the schedule changes no bit";
  JobOptions exact = job(2, 1, 8), halves = job(4, 2, 4);
  exact.train.pipeline_exact = halves.train.pipeline_exact = true;
  EXPECT_TRUE(same_result(exact, halves));
  halves.train.pipelined.micro_batches = 8;
  EXPECT_FALSE(same_result(exact, halves));
  JobOptions parts = job(3, 1, 4);
  parts.train.pipelined.tensor = {1, 1, 1};
  EXPECT_TRUE(same_result(parts, job(3, 1, 4))) << "ones say nothing";
  parts.train.pipelined.tensor = {2, 1};
  EXPECT_FALSE(same_result(parts, job(3, 1, 4)));
  JobOptions plain = job(2, 1, 4);
  plain.train.method = "plain";
  EXPECT_FALSE(same_result(plain, job(2, 1, 4)));
}

TEST(Job, ReplicasOfStagesThatDoNotFitAreRefusedByName) {
  const std::string replicas = "[train]\nmethod = \"pipelined\"\nvirtual_ranks = 3\n";
  expect_refused(replicas + "pipelined.stage_replicas = [2, 2]\n", "set train.virtual_ranks = 4");
  expect_refused(replicas + "pipelined.stage_replicas = [1, 2]\npipelined.stages = [\"a\"]\n",
                 "has 2 numbers for 1 stages");
  expect_refused(replicas + "pipelined = {stage_replicas = [3], micro_batches = 4}\n",
                 "the 3 replicas of stage 0 do not divide the 32 samples of a micro-batch");
  expect_refused(replicas + "pipeline_exact = true\npipelined.stage_replicas = [2, 1]\n",
                 "does not fit train.pipelined.stage_replicas");
  expect_refused(
      replicas + "pipelined = {stage_replicas = [2, 1], replicas = 3}\nbatch_size = 24\n",
      "leave one of the two out");
}

TEST(Job, OptionsThatContradictEachOtherAreRefusedByName) {
  expect_refused("train = {method = \"selective\", virtual_ranks = 4, bn_group = 2}\n",
                 "needs train.bn_group = 1");
  expect_refused("[train]\nmethod = \"pipelined\"\npipelined.micro_batches = 3\n",
                 "train.batch_size = 128 is not divisible by train.pipelined.micro_batches = 3");
  expect_refused("[train]\nmethod = \"pipelined\"\npipelined.stages = [\"a\", \"b\"]\n",
                 "set train.virtual_ranks = 2");
  expect_refused("[train]\nmethod = \"pipelined\"\nvirtual_ranks = 3\npipelined.replicas = 2\n",
                 "is not divisible by train.pipelined.replicas = 2");
  expect_refused(
      "[train]\nmethod = \"pipelined\"\nvirtual_ranks = 3\n"
      "pipelined = {replicas = 3, micro_batches = 4}\n",
      "train.pipelined.replicas x train.pipelined.micro_batches = 12");
  expect_refused("[train]\npipeline_exact = true\n", "needs train.method = \"pipelined\"");
  const std::string exact = "[train]\nmethod = \"pipelined\"\npipeline_exact = true\n";
  expect_refused(exact + "reduction = \"fast\"\n", "needs train.reduction = \"canonical\"");
  expect_refused(
      exact + "batch_size = 48\nvirtual_ranks = 4\npipelined = {replicas = 2, micro_batches = 3}\n",
      "train.pipelined.micro_batches = 3");
  expect_refused(
      exact + "batch_size = 48\nvirtual_ranks = 9\npipelined = {replicas = 3, micro_batches = 4}\n",
      "a power of two, and there are 3");
  expect_refused("[train]\nmethod = \"pipelined\"\nrate_control = \"lrtuner\"\n",
                 "needs train.rate_control = \"schedule\"");
  expect_refused("[train]\nmethod = \"stale_selective\"\nselective = {start = 0.6, end = 0.5}\n",
                 "train.selective.start = 0.6 is after train.selective.end = 0.5");
  expect_refused("[train]\nbatch_size = 10\nvirtual_ranks = 4\n", "virtual_ranks = 4");
  expect_refused("[data]\nformat = \"cifar10\"\n", "needs data.path");
  expect_refused("[data]\npath = \"images\"\n", "set data.format to the format");
  expect_refused("[augment]\nrandom_resized_crop = true\n", "augment.crop");
  expect_refused("[augment]\nmean = [0.5]\n", "augment.mean");
  expect_refused("[schedule]\nname = \"step\"\n", "milestones");
  expect_refused("[train]\nrate_control = \"noise\"\n", "virtual_ranks of at least 2");
  expect_refused(
      "[train]\nrate_control = \"noise\"\nvirtual_ranks = 2\n[train.noise]\nmax_batch = 64\n",
      "max_batch = 64 is below train.batch_size = 128");
  expect_refused("[model]\nname = \"gpt\"\n", "gpt reads tokens");
  expect_refused("[optimizer.muon]\ncoefficients = [1, 2]\n", "muon.coefficients");
  expect_refused("[optimizer]\nlr_factors = [\"head:0\"]\n", "optimizer.freeze = [\"head\"]");
  expect_refused("[optimizer]\nlr_factors = [\"head\"]\n", "optimizer.lr_factors has \"head\"");
  expect_refused("[optimizer]\nname = \"lars\"\nlr_factors = [\"head:2\"]\n", "\"lars\"");
  expect_refused("[optimizer]\nname = \"neumann\"\nfreeze = [\"head\"]\n", "\"neumann\"");
  expect_refused("[optimizer]\nfreeze = [\"head:x\"]\n", "optimizer.freeze has \"head:x\"");
  expect_refused(
      "[data]\nformat = \"tokens\"\npath = \"a\"\n[model]\nname = \"gpt\"\n[eval]\nviews = "
      "\"flip\"\n",
      "eval.views");
  expect_refused("[train]\nema_decay = 0.9\ntail_average = 0.1\n", "tail_average");
  expect_refused("[train]\nema_decay = 1\n", "for ever");
  expect_refused("[model]\nname = \"custom\"\n", "model.library");
  expect_refused("[model]\nlibrary = \"/model.so\"\n", "model.name is \"cnn\"");
  expect_refused("[target]\nmetric = \"perplexity\"\n", "data.format is \"digits\"");
  const auto expect_untunable = [](const std::string& lines, const std::string& part) {
    expect_refused("tune.online = true\n" + lines, part);
  };
  expect_untunable("train.shard_optimizer = true\n", "train.shard_optimizer = false");
  expect_untunable("train.max_steps = 10\n", "train.max_steps");
  expect_untunable("train.rate_control = \"lrtuner\"\n", "\"lrtuner\" both choose");
  expect_untunable("optimizer.lr = 0\n", "optimizer.lr above 0");
  expect_untunable("optimizer.lr = 1e-320\n", "optimizer.lr above 0, and 1e-320 is none");
  expect_untunable("tune.lr = [0, 1]\n", "tune.lr is the least");
  expect_untunable("tune.lr = [1, 0.1]\n", "tune.lr is the least");
  expect_untunable("tune.lr = [1]\n", "tune.lr is the least");
  expect_untunable("tune.momentum = [0.5, 1]\n", "tune.momentum is the least");
  expect_untunable("tune.momentum = [0, 0.9]\noptimizer.momentum = 0\n",
                   "an optimizer.momentum above 0");
  expect_untunable("tune.momentum = [0, 0.9]\noptimizer.name = \"nlcg\"\n",
                   "\"nlcg\" reads neither optimizer.momentum");
  expect_untunable("tune.weight_decay = [0, 1]\n", "tune.weight_decay is the least");
  expect_untunable("tune.batch_size = [8, 12]\ntrain.virtual_ranks = 8\n", "tune.batch_size: 12");
  expect_untunable("tune.batch_size = [8, 16, 8]\ntrain.virtual_ranks = 8\n",
                   "tune.batch_size: 8 is there twice");
  expect_untunable("tune.staleness = [0, 1, 1]\n", "tune.staleness: 1 is there twice");
  expect_untunable("tune.lr = []\n", "nothing to tune");
  expect_untunable("tune.options = [\"train.epochs:1:2\"]\n", "train.epochs is not an option that");
  expect_untunable(
      "optimizer.name = \"adam\"\ntune.momentum = [0.5, 0.9]\n"
      "tune.options = [\"optimizer.adam.beta1:0.5:0.9\"]\n",
      "tune.momentum chooses optimizer.adam.beta1");
}

// It begins within bounds of its own, whatever the job file has.
TEST(Job, LrtunerNeedsNoLearningRate) {
  for (const char* lr : {"0", "1e-320", "1e6"}) {
    JobOptions job;
    OptionSet set(job);
    set.set("train.rate_control=lrtuner");
    set.set(std::string("optimizer.lr=") + lr);
    EXPECT_NO_THROW(check(job)) << lr;
  }
  expect_refused("[train]\nrate_control = \"lrtuner\"\nshard_optimizer = true\n",
                 "needs whole weights on every worker");
}

TEST(Job, AScheduleThatIsNotReadIsNotJudged) {
  for (const std::string schedule :
       {"schedule = {name = \"step\"}\n", "schedule = {warmup_epochs = 20}\n"}) {
    expect_refused(schedule, "schedule.");
    JobOptions job;
    OptionSet(job).read_toml_text(schedule + "train = {rate_control = \"lrtuner\"}\n", "t");
    EXPECT_NO_THROW(check(job)) << schedule;
  }
}

// Formerly the reason of its failure named the part before the byte, which was not what was asked.
TEST(Job, PathsWithAZeroByteAreRefusedByName) {
  for (const char* key : {"data.path", "data.test_path", "model.library", "python.object"})
    expect_refused(std::string(key) + " = \"/data\\u0000/x\"\n",
                   std::string(key) + " has a zero byte");
}

TEST(Job, TheLargestStalenessIsTheJobsOrOneThatATunerMayChoose) {
  JobOptions job;
  EXPECT_EQ(most_staleness(job), 0);
  OptionSet(job).read_toml_text("tune = {online = true, lr = [], staleness = [0, 3, 1]}\n", "t");
  EXPECT_NO_THROW(check(job)) << "there is something to tune";
  JobOptions other;
  OptionSet(other).read_toml_text(
      "tune = {online = true, lr = [], options = [\"train.label_smoothing:0:0.2\"]}\n", "t");
  EXPECT_NO_THROW(check(other)) << "there, too";
  EXPECT_EQ(most_staleness(job), 3);
  job.train.staleness = 5;
  EXPECT_EQ(most_staleness(job), 5);
  job.train.staleness = 1;
  job.tune.online = false;
  EXPECT_EQ(most_staleness(job), 1);
  EXPECT_THROW(OptionSet(job).set("tune.staleness=[0, 65]"), Error);
}

// The job would end in its middle, when the batch changes for the first time.
TEST(Job, MethodsThatPlanWithTheBatchRefuseWhatChangesIt) {
  for (const std::string method : {"selective", "stale_selective", "infobatch", "graded"}) {
    const std::string head = "train.method = \"" + method + "\"\ntrain.virtual_ranks = 2\n";
    const std::string noise = "train.rate_control = \"noise\"\n";
    const std::string tuned = "tune.online = true\n";
    expect_refused(head + noise, "\"" + method + "\"");
    expect_refused(head + tuned + "tune.batch_size = [128, 256]\n", "tune.batch_size: 256");
    const bool smaller_fits = method.ends_with("selective");
    for (const std::string& lines :
         {tuned, tuned + "tune.batch_size = [128]\n", noise + "train.noise.max_batch = 128\n",
          smaller_fits ? tuned + "tune.batch_size = [64, 128]\n" : tuned}) {
      JobOptions job;
      OptionSet(job).read_toml_text(head + lines, "t");
      EXPECT_NO_THROW(check(job)) << head << lines;
    }
    if (!smaller_fits)
      expect_refused(head + tuned + "tune.batch_size = [64, 128]\n", "tune.batch_size: 64");
    // Counted in updates, the run would be at another epoch with another batch.
    if (smaller_fits) {
      expect_refused(
          head + "train.selective.length = \"updates\"\n" + tuned + "tune.batch_size = [64, 128]\n",
          "tune.batch_size: 64");
    }
  }
}

// What stands in job files of earlier versions: the error names the option as it is now, and what a
// run kept is read as it was meant.
TEST(Job, MovedOptionsAreNamedAndReadFromSavedJobs) {
  const std::string old =
      "[data]\ntoken_type = \"u32\"\nsequence_length = 9\n"
      "[optimizer]\nnesterov = true\nbeta1 = 0.8\nbeta2 = 0.95\neps = 1e-6\n"
      "trust_coefficient = 0.02\ntrust_outside = true\nmuon = {adamw_lr = 0.3}\n"
      "[schedule]\nmilestones = [3]\ngamma = 0.5\npower = 3\npeak_at = 0.4\n";
  JobOptions job;
  try {
    OptionSet(job).read_toml_text("[optimizer]\ntrust_coefficient = 0.02\n", "job.toml");
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "job.toml:2: optimizer.trust_coefficient is now optimizer.lars.trust_coefficient");
  }
  try {
    OptionSet(job).set("batch.adaptive=noise");
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "--set batch.adaptive=noise: batch.adaptive is now train.rate_control");
  }
  OptionSet(job).read_toml_text(old, "job.toml", Moved::follow);
  EXPECT_EQ(job.data.tokens.type, "u32");
  EXPECT_EQ(job.data.tokens.sequence_length, 9);
  EXPECT_TRUE(job.optimizer.sgd.nesterov);
  EXPECT_EQ(job.optimizer.adam.beta1, 0.8);
  EXPECT_EQ(job.optimizer.adam.beta2, 0.95);
  EXPECT_EQ(job.optimizer.adam.eps, 1e-6);
  EXPECT_EQ(job.optimizer.lars.eps, 1e-6);
  EXPECT_EQ(job.optimizer.lars.trust_coefficient, 0.02);
  EXPECT_TRUE(job.optimizer.lars.trust_outside);
  EXPECT_EQ(job.optimizer.muon.rest_lr, 0.3);
  EXPECT_EQ(job.schedule.step.milestones, std::vector<int64_t>{3});
  EXPECT_EQ(job.schedule.step.gamma, 0.5);
  EXPECT_EQ(job.schedule.polynomial.power, 3);
  EXPECT_EQ(job.schedule.one_cycle.peak_at, 0.4);
}

TEST(Job, OwnOptimizersOfPythonAreReplicatedAndNotTuned) {
  JobOptions job;
  job.optimizer.name = "python";
  EXPECT_THROW(check(job), Error);  // it is no Python job
  job.python.object = "train.py:Job";
  job.model.name = job.data.format = "python";
  check(job);
  for (bool* option : {&job.train.shard_optimizer, &job.tune.online}) {
    *option = true;
    EXPECT_THROW(check(job), Error);
    *option = false;
  }
  job.train.rate_control = "noise";
  EXPECT_THROW(check(job), Error);
}

// Whatever can be chosen is listed with its help where it is chosen.
TEST(Job, ChoicesComeFromTheTables) {
  JobOptions job;
  OptionSet options(job);
  const auto choices = [&](const char* path) { return options.find(path)->choices; };
  std::vector<std::string> rules = optimizers().names();
  rules.push_back("python");
  EXPECT_EQ(choices("optimizer.name"), rules);
  EXPECT_EQ(choices("schedule.name"), schedules().names());
  std::vector<std::string> formats = datasets().names();
  formats.push_back("python");
  EXPECT_EQ(choices("data.format"), formats);
  std::vector<std::string> names = models().names();
  names.insert(names.end(), {"custom", "python"});
  EXPECT_EQ(choices("model.name"), names);
  for (const OptionField& f : options.fields()) {
    for (const std::string& help : f.choice_help) EXPECT_FALSE(help.empty()) << f.path;
  }
}

// A group is named as the choice that reads it.
TEST(Job, GroupsBearTheNamesOfChoices) {
  using namespace std::string_literals;
  JobOptions job;
  OptionSet options(job);
  for (const OptionField& f : options.fields()) {
    const size_t first = f.path.find('.'), last = f.path.rfind('.');
    if (first == last) continue;
    const std::string group = f.path.substr(first + 1, last - first - 1);
    const std::string section = f.path.substr(0, first);
    // A training job chooses by two options.
    const std::vector<std::string> choices = section == "data" ? std::vector{"format"s}
                                             : section == "train"
                                                 ? std::vector{"method"s, "rate_control"s}
                                                 : std::vector{"name"s};
    bool is_known = false;
    for (const std::string& name : choices) {
      const OptionField* choice = options.find(section + "." + name);
      ASSERT_NE(choice, nullptr) << f.path;
      is_known |= std::ranges::find(choice->choices, group) != choice->choices.end();
    }
    EXPECT_TRUE(is_known) << f.path;
  }
}

// The variables of our programs and tests are none of a job's options, nor taken for one.
TEST(Job, OwnVariablesOfTheProgramsAreLeftAlone) {
  JobOptions job;
  const char* own[] = {
      "DUCTILE_WORKER=x",        "DUCTILE_BENCH=x",         "DUCTILE_ISA=x",
      "DUCTILE_SECRET=x",        "DUCTILE_SECRET_FILE=x",   "DUCTILE_CORES=x",
      "DUCTILE_TEST_WORKER=x",   "DUCTILE_CHAOS_SEED=x",    "DUCTILE_CHAOS_KILLS=x",
      "DUCTILE_CHAOS_SECONDS=x", "DUCTILE_SIM_SEED=x",      "DUCTILE_SIM_FIRST=x",
      "DUCTILE_SIM_COUNT=x",     "DUCTILE_SCHED_SEED=x",    "DUCTILE_SCHED_WORLDS=x",
      "DUCTILE_INJECT_SEED=x",   "DUCTILE_INJECT_JOBS=x",   "DUCTILE_INJECT_POINTS=x",
      "DUCTILE_INJECT_POINT=x",  "DUCTILE_INJECTOR=x",      "DUCTILE_INJECTION_BOARD=x",
      "DUCTILE_BENCH_FREE=x",    "DUCTILE_HOST_SWITCH=x",   "DUCTILE_TESTS=ON",
      "DUCTILE_TORCH=ON",        "DUCTILE_WERROR=ON",       "DUCTILE_NCCL=ON",
      "DUCTILE_UCX=ON",          "DUCTILE_SANITIZE=thread", "DUCTILE_THREADS=x",
      "DUCTILE_ALL_SIZES=1",     "DUCTILE_KILLS=x",         nullptr};
  EXPECT_NO_THROW(OptionSet(job).read_environment(own));
  const char* wrong[] = {"DUCTILE_TRAIN_EPOCHS=3", nullptr};
  try {
    OptionSet(job).read_environment(wrong);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("DUCTILE_TRAIN__EPOCHS"), std::string::npos) << e.what();
  }
}

TEST(Job, WhatUsersOfOtherProgramsWriteNamesTheOptionThatIsMeant) {
  JobOptions job;
  OptionSet options(job);
  const auto expect = [&](const std::string& assignment, std::string_view meant) {
    try {
      options.set(assignment);
      ADD_FAILURE() << assignment << " is an option";
    } catch (const Error& e) {
      const std::string text = e.what();
      EXPECT_TRUE(text.find(fmt::format("did you mean {}?", meant)) != std::string::npos) << text;
    }
  };
  expect("optimizer.name=AdamW", "\"adamw\"");
  expect("optimizer.name=SGD", "\"sgd\"");
  expect("scheduler.name=cosine", "schedule.name");
  expect("scheduler=cosine", "schedule.name");
  expect("lr_scheduler=cosine", "schedule.name");
  expect("optimizer.betas=[0.9, 0.95]", "optimizer.adam.beta1 and optimizer.adam.beta2");
  expect("train.amp=true", "train.precision");
  expect("batch_size=64", "train.batch_size");
  expect("epochs=3", "train.epochs");
  expect("num_epochs=3", "train.epochs");
  expect("nesterov=true", "optimizer.sgd.nesterov");
  expect("lr=0.1", "optimizer.lr");
  expect("learning_rate=0.1", "optimizer.lr");
  expect("max_norm=1", "optimizer.clip_norm");
  expect("num_workers=2", "loader.threads");
}

}  // namespace
}  // namespace ductile::spec
