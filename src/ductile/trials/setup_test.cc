#include "ductile/trials/setup.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/testing.h"
#include "ductile/spec/optimizers.h"

namespace ductile::trials {
namespace {

std::string refusal(const std::string& toml, const spec::JobOptions& job = {}) {
  try {
    read_tuning(toml, "tune.toml", job);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "accepted: " << toml;
  return "";
}

TEST(Setup, ReadsATuningFile) {
  const Tuning tuning = read_tuning(R"(
budget = 60
policy = "full"
[space."optimizer.lr"]
low = 1e-4
high = 1.0
scale = "log"
[space."train.batch_size"]
choices = [32, 64]
)",
                                    "tune.toml", {});
  EXPECT_EQ(tuning.setup.budget, 60);
  EXPECT_EQ(tuning.setup.policy, "full");
  ASSERT_EQ(tuning.space.size(), 2U);
  EXPECT_EQ(tuning.space.dimensions()[0].name, "optimizer.lr");
  const std::vector<std::string> options = assignments(tuning.space, tuning.space.at({0.5, 0.9}));
  EXPECT_EQ(options[0].rfind("optimizer.lr=0.0", 0), 0U) << options[0];
  EXPECT_NEAR(std::stod(options[0].substr(13)), 0.01, 1e-12);
  EXPECT_EQ(options[1], "train.batch_size=64");
}

// A run of one epoch, as of a language model, has evaluations within it.
TEST(Setup, AFirstRunIsAnEpochOrASmallPartOfAShortRun) {
  const auto epochs = [](int64_t of, double every, const std::string& policy = "asha") {
    spec::JobOptions job;
    job.train.epochs = of;
    job.train.eval_every_epochs = every;
    trials::Setup setup;
    setup.policy = policy;
    return first_run(setup, job);
  };
  EXPECT_EQ(epochs(100, 1), 1);
  EXPECT_EQ(epochs(100, 0.1), 1);
  EXPECT_EQ(epochs(100, 3), 3);
  EXPECT_DOUBLE_EQ(epochs(10, 0.1), 0.6);
  EXPECT_DOUBLE_EQ(epochs(1, 0.1), 0.1);
  EXPECT_DOUBLE_EQ(epochs(1, 0.01), 0.06);
  EXPECT_EQ(epochs(1, 2), 1) << "there is no more";
  // Five values, and fewer where a quarter of a run has fewer.
  EXPECT_EQ(epochs(100, 1, "mltuner"), 5);
  EXPECT_EQ(epochs(100, 0.1, "mltuner"), 1);
  EXPECT_EQ(epochs(16, 1, "mltuner"), 4);
  EXPECT_EQ(epochs(4, 1, "mltuner"), 2);
  EXPECT_EQ(epochs(3, 1.5, "mltuner"), 3);
  EXPECT_DOUBLE_EQ(epochs(1, 0.05, "mltuner"), 0.25);
}

TEST(Setup, SaysWhereNoTrialIsEndedEarly) {
  spec::JobOptions job;
  job.train.epochs = 1;
  trials::Setup setup;
  EXPECT_NE(no_short_runs(setup, job).find("train.eval_every_epochs, such as 0.1"),
            std::string::npos);
  setup.policy = "full";
  EXPECT_EQ(no_short_runs(setup, job), "") << "as it was asked for";
  setup.policy = "asha";
  job.train.eval_every_epochs = 0.1;
  EXPECT_EQ(no_short_runs(setup, job), "");
}

// What goes on from a rung has three times as many epochs, so two are no rungs.
TEST(Setup, SaysWhereARunHasNoTwoRungs) {
  spec::JobOptions job;
  trials::Setup setup;
  for (const char* policy : {"halving", "hyperband", "asha"}) {
    setup.policy = policy;
    job.train.epochs = 2;
    job.train.eval_every_epochs = 1;
    EXPECT_NE(no_short_runs(setup, job).find("such as 0.2"), std::string::npos) << policy;
    job.train.epochs = 3;
    EXPECT_EQ(no_short_runs(setup, job), "") << policy;
    job.train.epochs = 2;
    job.train.eval_every_epochs = 0.2;
    EXPECT_EQ(no_short_runs(setup, job), "") << policy;
  }
  job.train.eval_every_epochs = 1;
  for (const char* policy : {"freeze_thaw", "one_epoch", "full"}) {
    setup.policy = policy;
    EXPECT_EQ(no_short_runs(setup, job), "") << policy;
  }
}

TEST(Setup, TunesTheStalenessOfWeights) {
  const auto assigned = [](const std::string& dimension, double at) {
    const Tuning tuning = read_tuning("[space.\"train.staleness\"]\n" + dimension, "tune.toml", {});
    return assignments(tuning.space, tuning.space.at({at})).at(0);
  };
  EXPECT_EQ(assigned("choices = [0, 1, 3, 7]\n", 0.6), "train.staleness=3");
  EXPECT_EQ(assigned("kind = \"integer\"\nlow = 0\nhigh = 3\n", 0.9), "train.staleness=3");
  EXPECT_NE(refusal("[space.\"train.staleness\"]\nchoices = [0, 65]\n").find("from 0 to 64"),
            std::string::npos);
}

TEST(Setup, NamesWhatCannotBeTuned) {
  const std::string range = "\nlow = 0.1\nhigh = 0.2\n";
  EXPECT_NE(refusal("[space.\"optimizer.lrr\"]" + range).find("did you mean \"optimizer.lr\"?"),
            std::string::npos);
  EXPECT_NE(refusal("[space.\"train.epochs\"]" + range).find("same in all trials"),
            std::string::npos);
  EXPECT_NE(refusal("[space.seed]" + range).find("same in all trials"), std::string::npos);
  for (const char* dimension : {"\"tune.online\"]\nchoices = [true, false]\n",
                                "\"eval.views\"]\nkind = \"integer\"\nlow = 1\nhigh = 2\n"})
    EXPECT_NE(refusal(std::string("[space.") + dimension).find("same in all trials"),
              std::string::npos)
        << dimension;
  EXPECT_NE(refusal("[space.\"train.batch_size\"]" + range).find("kind = \"integer\""),
            std::string::npos);
  EXPECT_NE(
      refusal("[space.\"optimizer.momentum\"]\nlow = 0.1\nhigh = 7\n").find("optimizer.momentum"),
      std::string::npos);
  EXPECT_NE(refusal("[space.\"optimizer.name\"]\nchoices = [\"sgd\", \"sdg\"]\n").find("sdg"),
            std::string::npos);
  EXPECT_NE(refusal("").find("nothing to tune"), std::string::npos);
  EXPECT_NE(refusal("budget = \"all\"").find("budget"), std::string::npos);
  EXPECT_NE(refusal("bugdet = 3").find("budget"), std::string::npos);
  EXPECT_NE(refusal("space = 3").find("space"), std::string::npos);
  EXPECT_NE(refusal("[space").find("tune.toml"), std::string::npos);
  spec::JobOptions job;
  job.train.eval_every_epochs = 0;
  EXPECT_NE(refusal("[space.\"optimizer.lr\"]" + range, job).find("eval_every_epochs"),
            std::string::npos);
  job = {};
  job.tune.online = true;
  EXPECT_NE(refusal("[space.\"optimizer.lr\"]" + range, job).find("tune.online = false"),
            std::string::npos);
  job.tune.online = false;
  job.train.max_steps = 5;
  EXPECT_NE(refusal("[space.\"optimizer.lr\"]" + range, job).find("max_steps"), std::string::npos);
}

TEST(Setup, NamesTheTuningFileOnce) {
  const auto range = [](const char* option, const char* low, const char* high) {
    return fmt::format("[space.\"{}\"]\nlow = {}\nhigh = {}\n", option, low, high);
  };
  EXPECT_EQ(refusal(range("optimizer.lr", "-1.0", "1.0"))
                .find("tune.toml: space.\"optimizer.lr\": optimizer.lr=-1.0: "),
            0U)
      << refusal(range("optimizer.lr", "-1.0", "1.0"));
  for (const std::string& toml :
       {range("optimizer.lr", "-1.0", "1.0"), range("optimizer.lr", "1.0", "0.5"),
        range("optimizer.lr", "\"a\"", "1.0"), range("optimizer.lrr", "0.1", "1.0"),
        range("train.batch_size", "0.1", "1.0"),
        std::string("[space.\"optimizer.name\"]\nchoices = [\"sgd\", \"sdg\"]\n"),
        std::string("[space.\"optimizer.lr\"]\nchoices = [[1], [2]]\n"),
        std::string("budget = -1\n"), std::string("[space")}) {
    const std::string text = refusal(toml);
    EXPECT_NE(text.find("tune.toml"), std::string::npos) << text;
    EXPECT_EQ(text.find("tune.toml"), text.rfind("tune.toml")) << text;
  }
}

TEST(Setup, AnOptionThatNoTrialWouldReadIsRefused) {
  const std::string range = "[space.\"optimizer.adam.beta2\"]\nlow = 0.9\nhigh = 0.99\n";
  const std::string rules = "[space.\"optimizer.name\"]\nchoices = [\"sgd\", \"adamw\"]\n";
  EXPECT_NE(refusal(range).find("space.\"optimizer.adam.beta2\": no trial would read"),
            std::string::npos)
      << "the rule is sgd";
  EXPECT_EQ(read_tuning(range + rules, "tune.toml", {}).space.size(), 2U);
  spec::JobOptions job;
  job.optimizer.name = "adamw";
  EXPECT_EQ(read_tuning(range, "tune.toml", job).space.size(), 1U);

  // What needs two others: no trial that changes one of them alone reads it.
  const std::string rest =
      "[space.\"optimizer.name\"]\nchoices = [\"sgd\", \"muon\"]\n"
      "[space.\"optimizer.muon.rest\"]\nchoices = [\"adamw\", \"sgd\"]\n"
      "[space.\"optimizer.muon.rest_momentum\"]\nlow = 0.8\nhigh = 0.95\n";
  EXPECT_EQ(read_tuning(rest, "tune.toml", {}).space.size(), 3U);
}

// The job's own rule is none of the choices, so that it reads the option says nothing.
TEST(Setup, AnOptionIsReadByTheChoicesOrNotAtAll) {
  const std::string momentum = "[space.\"optimizer.momentum\"]\nlow = 0.1\nhigh = 0.9\n";
  const auto with = [&](const std::string& rules) {
    return momentum + "[space.\"optimizer.name\"]\nchoices = [" + rules + "]\n";
  };
  EXPECT_NE(refusal(with("\"adamw\", \"lamb\"")).find("space.\"optimizer.momentum\": no trial"),
            std::string::npos);
  const auto warnings = [&](const std::string& toml) {
    return read_by_some(read_tuning(toml, "tune.toml", {}).space, {});
  };
  EXPECT_EQ(warnings(with("\"sgd\", \"lars\"")), std::vector<std::string>());
  EXPECT_EQ(warnings(momentum), std::vector<std::string>());
  const std::vector<std::string> some = warnings(with("\"adamw\", \"sgd\", \"lamb\""));
  ASSERT_EQ(some.size(), 1U);
  EXPECT_EQ(
      some[0],
      "space.\"optimizer.momentum\" changes nothing in trials with optimizer.name = \"adamw\" "
      "or \"lamb\"");
  // Two choices together: of the four pairs one reads it.
  const std::string rest =
      "[space.\"optimizer.name\"]\nchoices = [\"adamw\", \"muon\"]\n"
      "[space.\"optimizer.muon.rest\"]\nchoices = [\"adamw\", \"sgd\"]\n"
      "[space.\"optimizer.muon.rest_momentum\"]\nlow = 0.8\nhigh = 0.95\n";
  EXPECT_EQ(warnings(rest).size(), 3U) << "rest with adamw; rest_momentum with either other one";
}

TEST(Setup, FindsTheJobsOwnSettingInTheSpace) {
  spec::JobOptions job;
  job.optimizer.lr = 0.25;
  const auto own = [&](const std::string& toml) {
    const Tuning tuning = read_tuning(toml, "tune.toml", job);
    const auto setting = setting_of(tuning.space, job);
    return setting ? fmt::format("{}", fmt::join(assignments(tuning.space, *setting), " "))
                   : "none";
  };
  const std::string lr = "[space.\"optimizer.lr\"]\nlow = 0.1\nhigh = 0.25\n";
  EXPECT_EQ(own(lr), "optimizer.lr=0.25");
  EXPECT_EQ(own("[space.\"optimizer.lr\"]\nlow = 0.1\nhigh = 0.2\n"), "none");
  // As the option is, however the choice is written.
  EXPECT_EQ(own("[space.\"optimizer.momentum\"]\nchoices = [0.5, 9e-1]\n"),
            "optimizer.momentum=0.9");
  EXPECT_EQ(own("[space.\"optimizer.momentum\"]\nchoices = [0.5, 0.8]\n" + lr), "none");
  EXPECT_EQ(own("[space.\"optimizer.name\"]\nchoices = [\"lars\", \"sgd\"]\n"),
            "optimizer.name=\"sgd\"");
  EXPECT_EQ(own("[space.\"train.staleness\"]\nkind = \"integer\"\nlow = 0\nhigh = 3\n"),
            "train.staleness=0");
  job.train.staleness = 7;
  EXPECT_EQ(own("[space.\"train.staleness\"]\nkind = \"integer\"\nlow = 0\nhigh = 3\n"), "none");
}

TEST(Setup, TheDefaultSpaceHoldsTheDefaultJob) {
  for (const char* control : {"schedule", "lrtuner"}) {
    spec::JobOptions job;
    job.train.rate_control = control;
    EXPECT_TRUE(setting_of(default_tuning(job).space, job)) << control;
  }
}

TEST(Setup, ShowsFourDigitsOfARealNumber) {
  const Tuning tuning = read_tuning(
      "[space.\"optimizer.lr\"]\nlow = 0.1\nhigh = 0.2\n[space.\"train.batch_size\"]\nchoices = "
      "[32, 64]\n",
      "tune.toml", {});
  EXPECT_EQ(shown(tuning.space, {0.123456, 1}),
            (std::vector<std::string>{"optimizer.lr=0.123456", "train.batch_size=64"}));
}

TEST(Setup, NamesThePoliciesThatTakeASearcher) {
  trials::Setup setup;
  for (const char* searcher : {"random", "grid", "tpe", "gp"}) {
    setup.searcher = searcher;
    setup.policy = "freeze_thaw";
    try {
      check_search(setup, {});
      ADD_FAILURE() << searcher;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_NE(e.message().find("searcher=curves"), std::string::npos) << e.message();
      EXPECT_NE(e.message().find("policy=full, "), std::string::npos) << e.message();
      EXPECT_NE(e.message().find("policy=asha"), std::string::npos) << e.message();
      EXPECT_EQ(e.message().find("policy=freeze_thaw"), std::string::npos) << e.message();
    }
    setup.policy = "asha";
    check_search(setup, {});
  }
}

TEST(Setup, AnOptionThatTheTunerHasNotIsAnsweredWithThoseThatItHas) {
  const auto answer = [](const std::string& assignment) -> std::string {
    trials::Setup setup;
    try {
      set_option(setup, assignment);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return e.what();
    }
    return fmt::format("{} epochs", setup.budget);
  };
  EXPECT_EQ(answer("budget=40"), "40 epochs");
  EXPECT_EQ(answer("budget"), "--tune budget: write key=value, for example budget=40");
  EXPECT_NE(answer("bugdet=40").find("did you mean budget?"), std::string::npos);
  EXPECT_NE(answer("number_of_runs=40")
                .find("the keys are metric, policy, searcher, budget, at_once, seed, finish"),
            std::string::npos)
      << answer("number_of_runs=40");
  EXPECT_NE(answer("train.staleness=3").find("[space.\"train.staleness\"]"), std::string::npos);
  // It could not be tuned.
  EXPECT_NE(answer("train.epochs=3").find("write --set train.epochs=3"), std::string::npos);
  EXPECT_EQ(answer("train.epochs=3").find("[space"), std::string::npos);
  EXPECT_NE(answer("tune.budget=40").find("did you mean budget?"), std::string::npos);
  EXPECT_NE(refusal("number_of_runs = 3").find("the keys are metric"), std::string::npos);
  EXPECT_NE(
      refusal("[params.\"optimizer.lr\"]\nlow = 0.1\nhigh = 1\n").find("[space.\"optimizer.lr"),
      std::string::npos);
}

TEST(Setup, TunesTheLearningRateAndTheMomentumWhereTheyHaveAnEffect) {
  const auto tuned = [](const spec::JobOptions& job, const char* option) {
    const Tuning tuning = default_tuning(job);
    return std::ranges::any_of(tuning.space.dimensions(),
                               [&](const tune::Dimension& d) { return d.name == option; });
  };
  spec::JobOptions job;
  for (const char* rule : {"sgd", "lars", "muon", "neumann"}) {
    job.optimizer.name = rule;
    EXPECT_TRUE(tuned(job, "optimizer.momentum")) << rule;
  }
  job.optimizer.name = "sgd";
  job.optimizer.sgd.nesterov = true;
  const Tuning nesterov = default_tuning(job);
  for (const tune::Dimension& d : nesterov.space.dimensions())
    EXPECT_TRUE(d.name != "optimizer.momentum" || d.low > 0) << "Nesterov's form needs one";
  job.optimizer.name = "adamw";
  EXPECT_FALSE(tuned(job, "optimizer.momentum"));
  EXPECT_TRUE(tuned(job, "optimizer.lr"));
  job.train.rate_control = "lrtuner";
  EXPECT_FALSE(tuned(job, "optimizer.lr"));
}

// Of a Python job: trials that differ in nothing would be compared.
TEST(Setup, RefusesWhatAnOptimiserOfTheJobsOwnSays) {
  spec::JobOptions job;
  job.optimizer.name = "python";
  try {
    default_tuning(job);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(e.what()).find("--space"), std::string::npos) << e.what();
  }
  const std::string range = "\nlow = 0.01\nhigh = 1.0\n";
  spec::JobOptions reader;
  reader.optimizer.name = "adamw";
  for (const char* option : {"optimizer.lr", "optimizer.adam.eps", "schedule.warmup_epochs"}) {
    const std::string space = fmt::format("[space.\"{}\"]{}", option, range);
    EXPECT_NE(refusal(space, job).find("optimizer() of its own"), std::string::npos) << option;
    EXPECT_EQ(read_tuning(space, "tune.toml", reader).space.size(), 1U) << option;
  }
  for (const char* option : {"optimizer.clip_norm", "train.ema_decay"})
    EXPECT_EQ(read_tuning(fmt::format("[space.\"{}\"]\nlow = 0.01\nhigh = 0.9\n", option),
                          "tune.toml", job)
                  .space.size(),
              1U)
        << option;
}

TEST(Setup, RefusesAMetricThatTheJobDoesNotHave) {
  trials::Setup setup;
  spec::JobOptions job;
  setup.metric = "perplexity";
  EXPECT_THROW(check_metric(setup, job), Error);
  job.data.format = "tokens";
  check_metric(setup, job);
}

TEST(Setup, RefusesABudgetThatEndsBeforeTheFirstEvaluation) {
  trials::Setup setup;
  spec::JobOptions job;
  setup.budget = 0.5;
  EXPECT_THROW(check_budget(setup, job), Error);
  job.train.eval_every_epochs = 0.5;
  check_budget(setup, job);
  setup.budget = 0;  // ten full runs
  job.train.eval_every_epochs = 1;
  check_budget(setup, job);
}

TEST(Setup, HasASpaceForEveryOptimiser) {
  for (const auto& row : spec::optimizers()) {
    spec::JobOptions job;
    job.optimizer.name = row.name;
    EXPECT_GE(default_tuning(job).space.size(), 2U) << row.name;
  }
}

}  // namespace
}  // namespace ductile::trials
