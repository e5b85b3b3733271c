// What every optimiser, step method and rate control has to keep: the same bits for every number of
// workers, killed at any point, resized, preempted and resumed on other numbers, forked and joined.
// A row of a table is in here by being in its table.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/digest.h"
#include "ductile/run/diary.h"
#include "ductile/spec/live_options.h"
#include "ductile/train/replica.h"
#include "ductile/train/testing/local_cluster.h"
#include "ductile/train/testing/sample_methods.h"
#include "ductile/train/testing/sample_optimizer.h"

namespace ductile::train {
namespace {

using testing::LocalCluster;
using Json = nlohmann::json;

bool all_sizes() { return std::getenv("DUCTILE_ALL_SIZES") != nullptr; }

struct Row {
  std::string name;
  spec::JobOptions job;
  Recipe recipe;
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

spec::JobOptions small_job() {
  spec::JobOptions job;
  job.name = "conformance";
  job.data.train_limit = 100;  // no multiple of the batch: the ends of epochs drop samples
  job.data.test_limit = 16;
  job.model.name = "mlp";
  job.model.hidden = {12};
  job.loader.threads = 1;
  job.loader.prefetch = 2;
  job.optimizer.lr = 0.02;
  job.schedule.warmup_epochs = 0.3;
  job.train.epochs = 3;
  job.train.batch_size = 24;
  job.train.virtual_ranks = 8;
  job.train.noise = {.max_batch = 96, .factor = 1e6, .patience = 2};  // for the control: it grows
  job.train.ema_decay = 0.8;
  job.train.log_every = 2;
  job.train.threads = 1;
  job.checkpoint.every_seconds = 0;
  job.checkpoint.every_steps = 3;
  return job;
}

class Rows {
 public:
  Rows() {
    add_tables();
    add_evaluated_weights();
    add_recipe();
    add_chosen_samples();
    add_online_tuner();
    add_live_options();
    add_samples_of_what_is_to_come();
    add_several_inputs();
    add_dropout();
  }
  std::vector<Row> take() { return std::move(rows_); }

 private:
  void add(std::string name, const spec::JobOptions& job,
           std::function<void(Ingredients&)> hand_in = {}) {
    rows_.push_back({std::move(name), job, [job, hand_in] {
                       Ingredients given;
                       if (hand_in) hand_in(given);
                       return complete(std::move(given), job);
                     }});
  }
  void add_tables();
  void add_evaluated_weights();
  void add_recipe();
  void add_chosen_samples();
  void add_online_tuner();
  void add_live_options();
  void add_samples_of_what_is_to_come();
  void add_several_inputs();
  void add_dropout();

  std::vector<Row> rows_;
};

void Rows::add_tables() {
  for (const optim::OptimizerEntry& entry : optim::optimizers()) {
    spec::JobOptions job = small_job();
    job.optimizer.name = entry.name;
    job.optimizer.clip_norm = 1;
    // So that 3 epochs have all that these rules do.
    job.optimizer.neumann.warmup_epochs = 0.5;
    job.optimizer.neumann.reset_epochs = 0.8;
    job.optimizer.nlcg.line_search_every = 2;
    job.optimizer.nlcg.update = "polak_ribiere";
    job.optimizer.nadamw.momentum_decay = 0.004;
    job.optimizer.muon.renormalize_every = 5;
    // What these evaluate is what is to be seen here; the average would stand in its place.
    if (entry.name == "schedule_free" || entry.name == "neumann") job.train.ema_decay = 0;
    add(std::string(entry.name), job);
    job.train.shard_optimizer = true;
    add(std::string(entry.name) + "_spread", job);
  }
  for (const StepMethodEntry& entry : step_methods()) {
    spec::JobOptions job = small_job();
    job.train.method = entry.name;
    job.train.precision = "fp16";
    job.train.loss_scale = 262144;  // the first steps overflow, most do not
    add("method_" + std::string(entry.name), job);
  }
  for (const optim::RateControlEntry& entry : optim::rate_controls()) {
    spec::JobOptions job = small_job();
    job.train.rate_control = entry.name;
    add("control_" + std::string(entry.name), job);
  }
}

// Samples of several inputs, on virtual ranks and in stages.
void Rows::add_several_inputs() {
  spec::JobOptions job = small_job();
  job.data.format = "synthetic";
  job.data.synthetic.inputs = {"2*vector:6", "2*indices:3:20"};
  job.model.name = "dlrm";
  job.model.dim = 4;
  add("several_inputs", job);
  job.train.method = "pipelined";
  add("several_inputs_stages", job);
}

spec::JobOptions dropping_job() {
  spec::JobOptions job = small_job();
  job.data.format = "synthetic";
  job.data.synthetic.inputs = {"2*tokens:6:20"};
  job.model.name = "mmt";
  job.model.layers = 1;
  job.model.heads = 2;
  job.model.dim = 8;
  job.model.dropout = 0.2;
  return job;
}

// The workers are threads here, which draw at the same time.
void Rows::add_dropout() {
  const spec::JobOptions job = dropping_job();
  add("dropout", job);
  spec::JobOptions looks = job;
  looks.train.method = "selective";
  add("dropout_selective", looks);
  spec::JobOptions probes = job;
  probes.train.rate_control = "lrtuner";
  probes.train.lrtuner.explore = 0.4;  // rounds in both phases
  add("dropout_lrtuner", probes);
  for (const char* rule : {"adamw", "muon", "schedule_free"}) {
    probes = small_job();
    probes.train.rate_control = "lrtuner";
    probes.optimizer.name = rule;
    add(std::string(rule) + "_lrtuner", probes);
  }
}

void Rows::add_evaluated_weights() {
  // Weights that are evaluated and not trained, with their statistics.
  spec::JobOptions evaluated = small_job();
  evaluated.optimizer.name = "schedule_free";
  evaluated.model.name = "cnn";
  evaluated.model.width = 4;
  evaluated.train.ema_decay = 0;
  evaluated.train.statistics_batches = 3;
  add("schedule_free_statistics", evaluated);
  evaluated.train.ema_decay = 0.8;
  add("schedule_free_statistics_of_the_average", evaluated);
  evaluated.train.ema_decay = 0;
  evaluated.train.shard_optimizer = true;
  add("schedule_free_statistics_spread", evaluated);
  evaluated.train.precision = "bf16";
  evaluated.optimizer.clip_norm = 1;
  add("schedule_free_bf16_spread", evaluated);
  spec::JobOptions tail = small_job();
  tail.train.ema_decay = 0;
  tail.train.tail_average = 0.4;
  add("tail_average", tail);
  tail.train.method = "infobatch";
  add("infobatch_tail_average", tail);
  spec::JobOptions stale = small_job();
  stale.model.name = "cnn";
  stale.model.width = 4;
  stale.train.bn_group = 2;
  stale.train.staleness = 3;
  add("staleness", stale);
  stale.train.bn_group = 1;
  stale.train.rate_control = "lrtuner";
  add("staleness_lrtuner", stale);
}

// What a recipe of the speed records adds: first values from the data, parameters that are frozen
// at first or later, rates by group, views.
void Rows::add_recipe() {
  spec::JobOptions recipe = small_job();
  recipe.augment.flip = true;
  recipe.augment.flip_mode = "alternating";
  recipe.model.name = "airbench";
  recipe.model.width = 8;
  recipe.optimizer.name = "muon";
  recipe.optimizer.sgd.nesterov = true;
  recipe.optimizer.muon.rest = "sgd";
  recipe.optimizer.muon.renormalize_every = 1;
  recipe.optimizer.lr_factors = {"norm:8", "head:2"};
  recipe.optimizer.freeze = {"whiten.bias:1.5"};
  recipe.train.label_smoothing = 0.2;
  recipe.eval = {"flip_translate", 0.25};
  add("recipe", recipe);
  recipe.model.convolutions = 3;
  recipe.model.later_width = 16;
  recipe.train.shard_optimizer = true;
  recipe.train.bn_group = 2;
  add("recipe_groups_spread", recipe);
}

void Rows::add_chosen_samples() {
  const auto choosing = [](const char* method) {
    spec::JobOptions job = small_job();
    job.train.method = method;
    job.train.epochs = 5;
    return job;
  };
  spec::JobOptions updates = choosing("selective");
  updates.train.selective.length = "updates";
  updates.train.selective.interrupt = 3;
  updates.train.selective.first_epochs = 0;
  updates.train.shard_optimizer = true;
  add("selective_updates_spread", updates);
  spec::JobOptions stale = choosing("stale_selective");
  stale.train.selective.stale_epochs = 2;
  stale.train.selective.history = 30;
  stale.train.selective.precision = "bf16";
  stale.train.shard_optimizer = true;
  add("stale_selective_spread", stale);
  spec::JobOptions groups = choosing("infobatch");
  groups.model.name = "cnn";
  groups.model.width = 4;
  groups.train.bn_group = 2;
  groups.train.infobatch.end = 1;
  groups.train.shard_optimizer = true;
  add("infobatch_groups_spread", groups);
}

void Rows::add_online_tuner() {
  spec::JobOptions job = small_job();
  job.data.train_limit = 400;
  job.data.test_limit = 16;
  job.train.ema_decay = 0;
  job.train.eval_every_epochs = 0.5;
  job.tune.online = true;
  job.tune.clock_epochs = 0.01;
  job.tune.budget = 1;
  job.tune.momentum = {0, 0.99};
  job.tune.batch_size = {16, 24};
  job.tune.lr = {1e-3, 1e3};  // some diverge
  job.tune.patience = 1;
  add("online_tuner", job);
  job.train.staleness = 1;
  job.tune.momentum = {};
  job.tune.batch_size = {};
  job.tune.staleness = {0, 1, 3};
  add("online_tuner_staleness", job);
  job.train.staleness = 0;
  job.tune.staleness = {};
  job.optimizer.name = "adamw";
  job.tune.options = {"optimizer.adam.eps:1e-8:1e-2", "optimizer.clip_norm:0.1:10",
                      "train.label_smoothing:0:0.2"};
  add("online_tuner_options", job);
}

// Every live option in a job that reads it, brought by steps with other values and without any.
void Rows::add_live_options() {
  const auto restless = [this](const std::string& name, spec::JobOptions job) {
    job.optimizer.nadamw.momentum_decay = 0.004;
    job.optimizer.neumann.warmup_epochs = 0.5;
    job.optimizer.neumann.reset_epochs = 0.8;
    job.optimizer.nlcg.line_search = "online";
    if (job.optimizer.name == "neumann") job.train.ema_decay = 0;
    add("options_" + name, job, [job](Ingredients& given) {
      given.rate_control = testing::make_restless_options_control(job);
    });
  };
  struct Choice {
    const char *rule, *method;
  };
  for (const Choice& c :
       {Choice{"adamw", "selective"}, Choice{"muon", "graded"}, Choice{"lars", "infobatch"},
        Choice{"nadamw", "stale_selective"}, Choice{"neumann", "plain"}, Choice{"nlcg", "plain"}}) {
    spec::JobOptions job = small_job();
    job.optimizer.name = c.rule;
    job.train.method = c.method;
    restless(c.rule, job);
  }
  spec::JobOptions spread = small_job();
  spread.optimizer.name = "ademamix";
  spread.train.shard_optimizer = true;
  restless("ademamix_spread", spread);
  spec::JobOptions rest = small_job();
  rest.optimizer.name = "muon";
  rest.optimizer.muon.rest = "sgd";
  restless("muon_sgd", rest);
  restless("dropout", dropping_job());
}

void Rows::add_samples_of_what_is_to_come() {
  // What no row of the tables does yet.
  add("selecting", small_job(),
      [](Ingredients& given) { given.method = testing::make_selecting_method(); });
  add("probing", small_job(),
      [](Ingredients& given) { given.method = testing::make_probing_method(); });
  spec::JobOptions stale = small_job();
  stale.train.staleness = 3;
  for (const spec::JobOptions& job : {small_job(), stale}) {
    add(job.train.staleness > 0 ? "restless_staleness" : "restless", job,
        [job](Ingredients& given) { given.rate_control = testing::make_restless_control(job); });
  }
  spec::JobOptions spread = small_job();
  spread.train.shard_optimizer = true;
  for (spec::JobOptions job : {small_job(), spread}) {
    const std::string name = job.train.shard_optimizer ? "halving_spread" : "halving";
    job.train.ema_decay = 0;
    add(name, job, [job](Ingredients& given) {
      given.make_optimizer = [job](const optim::ParamLayout& layout) {
        return testing::make_halving_optimizer(job, layout);
      };
    });
  }
  add("restless_selecting_spread", spread, [spread](Ingredients& given) {
    given.method = testing::make_selecting_method();
    given.rate_control = testing::make_restless_control(spread);
  });
}

std::vector<Row> rows() { return Rows().take(); }

class Conformance : public ::testing::TestWithParam<Row> {
 protected:
  // A run directory with this row's job.
  struct Run {
    explicit Run(const Row& row)
        : folder(run::RunFolder::create(place.path(), "conformance", toml_of(row.job))) {}
    static std::string toml_of(spec::JobOptions job) { return OptionSet(job).to_toml(); }

    std::string weights() const { return read_file(folder.path() / "model.safetensors"); }
    std::string digest() const {
      const auto newest = ckpt::open_latest(folder.checkpoints());
      return newest.checkpoint ? ckpt::state_digest(*newest.checkpoint) : "no checkpoint";
    }
    // Of the last summary.
    Json figures() const {
      Json out;
      run::for_each_diary_line(folder.events_file(), [&](const Json& line) {
        if (line.at("kind") == "end") out = line;
      });
      return out;
    }
    std::vector<Json> metrics() const {
      std::vector<Json> lines;
      run::for_each_diary_line(folder.path() / "metrics.jsonl", [&](const Json& line) {
        lines.push_back(line);
        for (const char* timing : {"time", "seconds", "samples_per_second", "generation"})
          lines.back().erase(timing);
      });
      return lines;
    }

    TempFolder place;
    run::RunFolder folder;
  };

  static void expect_equal(const Run& got, const Run& want, const std::string& how) {
    EXPECT_EQ(got.digest(), want.digest()) << how;
    EXPECT_EQ(got.weights(), want.weights()) << how;
    const std::vector<Json> lines = got.metrics(), wanted = want.metrics();
    for (size_t i = 0; i < std::min(lines.size(), wanted.size()); ++i)
      ASSERT_EQ(lines[i], wanted[i]) << "line " << i + 1 << " of the metrics; " << how;
    EXPECT_EQ(lines.size(), wanted.size()) << how;
    EXPECT_EQ(got.figures().at("digest"), want.figures().at("digest")) << how;
    for (const char* counted : {"step", "updates", "samples", "samples_forward", "skipped_steps",
                                "weights_digest", "final", "best"})
      EXPECT_EQ(got.figures().at(counted), want.figures().at(counted)) << how << " " << counted;
    EXPECT_EQ(got.figures().value("noise", Json()), want.figures().value("noise", Json())) << how;
  }

  static void run_undisturbed(const Row& row, const Run& run, int64_t workers) {
    LocalCluster cluster(run.folder, row.job, row.recipe);
    cluster.start(workers);
    const link::JobEnd end = cluster.finish();
    ASSERT_EQ(end.phase, control::Phase::finished) << end.reason;
  }
};

TEST_P(Conformance, EveryNumberOfWorkersGivesTheSameBits) {
  const Row& row = GetParam();
  const Run alone(row);
  run_undisturbed(row, alone, 1);
  EXPECT_EQ(alone.figures().at("digest"), alone.digest())
      << "the report has the digest of the state";
  if (row.job.train.precision == "fp16") {
    const auto skipped = alone.figures().at("skipped_steps").get<int64_t>();
    EXPECT_GE(skipped, 1) << "the loss scale overflows at first";
    EXPECT_GE(alone.figures().at("updates").get<int64_t>(), 3 * skipped);
  }
  for (const int64_t workers :
       all_sizes() ? std::vector<int64_t>{2, 3, 4, 8} : std::vector<int64_t>{3, 8}) {
    const Run run(row);
    run_undisturbed(row, run, workers);
    expect_equal(run, alone, fmt::format("{} workers", workers));
  }
}

TEST_P(Conformance, NeitherKillsNorResizesNorPreemptionsChangeABit) {
  const Row& row = GetParam();
  const Run alone(row);
  run_undisturbed(row, alone, 1);
  const auto steps = alone.figures().at("step").get<int64_t>();
  const auto some_workers = [](Rng& rng) {
    constexpr int64_t kNumbers[] = {1, 2, 3, 4, 8};
    return kNumbers[rng.below(std::size(kNumbers))];
  };
  for (uint64_t seed = 1; seed <= (all_sizes() ? 3 : 1); ++seed) {
    Rng rng(seed, std::hash<std::string>{}(row.name));
    std::string story;
    const Run run(row);
    int64_t at = 0;
    auto cluster = std::make_unique<LocalCluster>(run.folder, row.job, row.recipe);
    cluster->start(some_workers(rng));
    while (!cluster->over()) {
      at += 1 + static_cast<int64_t>(rng.below(4));
      cluster->run_to(std::min(at, steps));
      if (at >= steps) break;
      switch (rng.below(4)) {
        case 0:
        case 1:
          cluster->kill_some(rng.below(100));
          story += fmt::format(" kill at {};", at);
          break;
        case 2: {
          const int64_t workers = some_workers(rng);
          cluster->resize(workers);
          story += fmt::format(" {} workers at {};", workers, at);
          break;
        }
        default: {
          cluster->preempt();
          const int64_t workers = some_workers(rng);
          cluster = nullptr;  // as a process that has ended
          cluster = std::make_unique<LocalCluster>(run.folder, row.job, row.recipe);
          cluster->start(workers);
          story += fmt::format(" resumed with {} at {};", workers, at);
          break;
        }
      }
    }
    const link::JobEnd end = cluster->finish();
    ASSERT_EQ(end.phase, control::Phase::finished) << end.reason << story;
    expect_equal(run, alone, fmt::format("seed {}:{}", seed, story));
  }
}

// A trial that goes another way leaves no trace.
TEST_P(Conformance, AForkedTrialAndTheWayBackChangeNoBit) {
  const Row& row = GetParam();
  Replica straight(row.job, row.recipe), tried(row.job, row.recipe);
  const auto step = [&](Replica& replica, int count) {
    std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
    for (int i = 0; i < count && !replica.done(); ++i) {
      replica.compute(replica.num_ranks(), sum);
      replica.apply(sum);
      if (replica.evaluation_due()) replica.record(replica.evaluate([](int64_t) {}));
    }
  };
  straight.host_all();
  tried.host_all();
  for (int round = 0; round < 4; ++round) {
    step(straight, 2);
    step(tried, 2);
    const StateImage before = tried.state().fork();
    tried.state().hyper.lr *= 3;
    step(tried, 3);
    const StateImage trial = tried.state().fork(&before);
    const std::string end = tried.state().digest().value();
    tried.take(before);
    EXPECT_EQ(tried.state().digest(), straight.state().digest()) << round;
    step(tried, 1);
    tried.take(trial);
    EXPECT_EQ(tried.state().digest(), end) << round;
    tried.take(before);
  }
  step(straight, 100);
  step(tried, 100);
  EXPECT_EQ(tried.state().digest(), straight.state().digest());
}

INSTANTIATE_TEST_SUITE_P(Rows, Conformance, ::testing::ValuesIn(rows()),
                         [](const auto& info) { return info.param.name; });

TEST(LiveOptions, EachIsBroughtInARowOfItsOwn) {
  const std::vector<Row> all = rows();
  for (const spec::LiveOption& option : spec::live_options()) {
    EXPECT_TRUE(std::ranges::any_of(all, [&](const Row& row) {
      return row.name.starts_with("options_") && option.is_read(row.job);
    })) << option.key;
  }
}

// The counters tell what was done, not steps times the batch size.
TEST(Counters, TellWhatRanAndWhatMoved) {
  const auto end_of = [](const char* name) {
    for (const Row& row : rows()) {
      if (row.name != name) continue;
      const TempFolder place;
      spec::JobOptions job = row.job;
      const auto folder =
          run::RunFolder::create(place.path(), "conformance", OptionSet(job).to_toml());
      LocalCluster cluster(folder, row.job, row.recipe);
      cluster.start(2);
      cluster.finish();
      Json out;
      run::for_each_diary_line(folder.events_file(), [&](const Json& line) {
        if (line.at("kind") == "end") out = line;
      });
      return out;
    }
    return Json();
  };
  const Json plain = end_of("sgd");  // 3 epochs of 4 batches of 24
  EXPECT_EQ(plain.at("updates"), 12);
  EXPECT_EQ(plain.at("step"), 12);
  EXPECT_EQ(plain.at("samples"), 12 * 24);
  EXPECT_EQ(plain.at("samples_forward"), 12 * 24);
  const Json probing = end_of("probing");
  EXPECT_EQ(probing.at("updates"), 12);
  EXPECT_EQ(probing.at("step"), 12 + 3 * 3) << "three probes before the updates 4, 7 and 10";
  EXPECT_EQ(probing.at("samples"), 12 * 24);
  EXPECT_EQ(probing.at("samples_forward"), (12 + 9) * 24);
  const Json selecting = end_of("selecting");
  EXPECT_EQ(selecting.at("updates"), 12);
  EXPECT_LT(selecting.at("samples"), 12 * 24);
  EXPECT_GT(selecting.at("samples"), 24);
  EXPECT_EQ(selecting.at("samples_forward"), 12 * 24 + selecting.at("samples").get<int64_t>());
}

}  // namespace
}  // namespace ductile::train
