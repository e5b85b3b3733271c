// Selective-Backprop and Stale-SB against the authors' loop, written out in full.
#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include <ATen/core/grad_mode.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/optim/schedule.h"
#include "ductile/train/data_form.h"
#include "ductile/train/selection.h"
#include "ductile/train/testing/watched_run.h"

namespace ductile::train {
namespace {

using testing::Bench;
using testing::expect_same_weights;
using testing::Indices;
using testing::refusal_of;
using testing::selection_job;
using testing::Story;
using testing::WatchedRun;

struct SelectiveTwin : Bench {
  using Bench::Bench;
  std::vector<Indices> trained, looked;

  // By a model that was never used before, if looks have a precision of their own.
  std::vector<float> look(const Indices& samples, int64_t epoch) {
    if (!spec::looks_otherwise(job)) return Bench::look(samples, epoch);
    const DataForm form = DataForm::of(job, parts.train_set->info(), parts.augment);
    auto other = nn::make_model(job.model, form.model, job.train.selective.precision, 99);
    const auto copy = [](std::vector<nn::NamedTensor> to,
                         const std::vector<nn::NamedTensor>& from) {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < to.size(); ++i) to[i].tensor.copy_(from[i].tensor);
    };
    copy(other->parameters(), parts.model->parameters());
    copy(other->buffers(), parts.model->buffers());
    std::swap(other, parts.model);
    std::vector<float> out = Bench::look(samples, epoch);
    std::swap(other, parts.model);
    return out;
  }

  void run(int64_t stale) {
    const spec::SelectiveOptions& o = job.train.selective;
    const auto batch = static_cast<size_t>(job.train.batch_size);
    const int64_t size = parts.train_set->info().size;
    const int64_t per_epoch = size / job.train.batch_size;
    std::deque<float> history;
    std::map<int64_t, float> loss;
    std::map<int64_t, int64_t> age;
    const auto remember = [&](float l) {
      history.push_back(l);
      if (static_cast<int64_t>(history.size()) > o.history) history.pop_front();
    };
    const auto train_on = [&](const Indices& samples, int64_t epoch, double lr) {
      trained.push_back(samples);
      const auto losses = train(samples, epoch, lr);
      for (size_t i = 0; i < samples.size(); ++i) loss[samples[i]] = losses[i];
      return losses;
    };
    for (int64_t epoch = 0; epoch < job.train.epochs; ++epoch) {
      Indices queue;
      const auto lr_at = [&](int64_t batches) {
        int64_t position = epoch * per_epoch + batches;
        if (!queue.empty()) position = std::min(position, (epoch + 1) * per_epoch - 1);
        return optim::learning_rate(job.schedule, job.optimizer.lr, position,
                                    job.train.epochs * per_epoch, per_epoch);
      };
      for (int64_t b = 0; b < per_epoch; ++b) {
        const Indices samples =
            loader->indices_of(epoch, b * job.train.batch_size, job.train.batch_size);
        if (epoch < o.first_epochs) {
          for (const float l : train_on(samples, epoch, lr_at(b))) remember(l);
          for (const int64_t s : samples) age[s] = 1;
          continue;
        }
        Indices unknown;
        for (const int64_t s : samples) {
          if (stale == 0 || !loss.contains(s) || age[s] >= stale) unknown.push_back(s);
        }
        looked.push_back(unknown);
        const auto found = look(unknown, epoch);
        for (size_t i = 0; i < unknown.size(); ++i) {
          loss[unknown[i]] = found[i];
          age[unknown[i]] = 0;
        }
        for (const int64_t s : samples) {
          remember(loss[s]);
          ++age[s];
        }
        for (const int64_t s : samples) {
          double below = 0;
          for (const float other : history) below += other < loss[s] ? 1 : 0;
          const double p = std::pow(below / static_cast<double>(history.size()), o.beta);
          if (draw_of(static_cast<uint64_t>(job.seed), epoch, s) < p) queue.push_back(s);
        }
        while (queue.size() >= batch) {
          const Indices next(queue.begin(), queue.begin() + static_cast<ptrdiff_t>(batch));
          const double lr = lr_at(b + 1);
          queue.erase(queue.begin(), queue.begin() + static_cast<ptrdiff_t>(batch));
          train_on(next, epoch, lr);
        }
      }
      if (!queue.empty()) train_on(queue, epoch, lr_at(per_epoch));
    }
  }
};

TEST(Selective, TrainsWhatTheAuthorsLoopTrains) {
  for (const double beta : {0.0, 1.0, 2.0}) {
    for (const int64_t first : {0, 1}) {
      for (const int64_t history : {20, 1024}) {
        spec::JobOptions job = selection_job("selective");
        job.train.selective.beta = beta;
        job.train.selective.first_epochs = first;
        job.train.selective.history = history;
        SelectiveTwin twin(job);
        twin.run(0);
        WatchedRun run(job);
        run.finish();
        EXPECT_EQ(run.story->trained(), twin.trained) << beta << " " << first << " " << history;
        expect_same_weights(run.replica, twin);
        EXPECT_EQ(run.replica.epoch(), 7);
      }
    }
  }
}

TEST(StaleSelective, TrainsWhatTheAuthorsLoopTrainsAndLooksAsSeldom) {
  for (const int64_t stale : {1, 2, 3, 100}) {
    spec::JobOptions job = selection_job("stale_selective");
    job.train.selective.stale_epochs = stale;
    SelectiveTwin twin(job);
    twin.run(stale);
    WatchedRun run(job);
    run.finish();
    const std::vector<Indices> looked = run.story->looked_at();
    EXPECT_EQ(looked, twin.looked) << stale;
    EXPECT_EQ(run.story->trained(), twin.trained) << stale;
    expect_same_weights(run.replica, twin);
    const int64_t examined = std::accumulate(
        looked.begin(), looked.end(), int64_t{0},
        [](int64_t n, const Indices& s) { return n + static_cast<int64_t>(s.size()); });
    const Counters& c = run.replica.state().counters;
    EXPECT_EQ(c.samples_forward, examined + c.samples_backward);
    if (stale == 100) {
      EXPECT_LT(examined, 60) << "those that the first epoch dropped";
    }
  }
}

// A loss table and a queue that are spread over ranks give what one rank gives, but for rounding.
TEST(Selective, TheRestOfAnEpochIsTrainedAndCountedWhole) {
  spec::JobOptions job = selection_job("selective");
  job.train.virtual_ranks = 4;
  WatchedRun run(job);
  run.finish();
  const Counters& c = run.replica.state().counters;
  int64_t trained = 0, shorter = 0;
  for (const Indices& samples : run.story->trained()) {
    trained += static_cast<int64_t>(samples.size());
    shorter += samples.size() < 12 ? 1 : 0;
  }
  EXPECT_EQ(trained, c.samples_backward);
  EXPECT_GE(shorter, 4);
  EXPECT_EQ(c.samples_forward, 6 * 96 + trained) << "each of six epochs is looked at";
  EXPECT_EQ(c.updates, static_cast<int64_t>(run.story->trained().size()));
  EXPECT_EQ(run.evaluations, 7) << "once per epoch, after its last update";
  EXPECT_TRUE(run.replica.state().extras().at("selective").values.at("queue").empty());
  const double flops = run.replica.state().counters.flops;
  const double per_sample = Bench(job).parts.flops_per_sample;
  EXPECT_EQ(flops, per_sample * static_cast<double>(c.samples_forward + 2 * trained));
  const auto& sums = run.replica.line().value().sums;
  EXPECT_EQ(sums.at("examined"), 6 * 96);
  EXPECT_EQ(sums.at("selected") + 96, trained);
}

// Such a run ends by its updates, and with them the part in which samples are chosen.
TEST(Selective, ChoosesNothingAfterTheEndOfARunThatIsCutShort) {
  for (const char* length : {"epochs", "updates"}) {
    spec::JobOptions job = selection_job("selective");
    job.train.max_steps = 20;
    job.train.selective.first_epochs = 0;
    job.train.selective.start = 0.1;
    job.train.selective.end = 0.5;
    job.train.selective.length = length;
    WatchedRun run(job);
    run.finish();
    int64_t updates = 0, looks = 0;
    for (const Story::Step& step : run.story->steps) {
      if (!step.update) {
        EXPECT_GE(updates, 2) << length;
        EXPECT_LT(updates, 10) << length;
        ++looks;
      }
      updates += step.update ? 1 : 0;
    }
    EXPECT_EQ(updates, 20) << length;
    EXPECT_GT(looks, 4) << length;
  }
}

TEST(Selective, StartEndAndInterruptTrainWholeBatches) {
  spec::JobOptions job = selection_job("selective");
  job.train.epochs = 10;
  job.train.selective.first_epochs = 0;
  job.train.selective.start = 0.2;
  job.train.selective.end = 0.8;
  job.train.selective.interrupt = 3;
  WatchedRun run(job);
  run.finish();
  std::set<int64_t> whole;  // updates on batches of the stream
  int64_t updates = 0, position = 0;
  const StreamOrder order(static_cast<uint64_t>(job.seed), job.loader.shuffle, 100);
  std::set<int64_t> looked_in;
  for (const Story::Step& s : run.story->steps) {
    const int64_t epoch = position / 8;
    const bool of_stream = s.samples == order.indices(epoch, position % 8 * 12, 12);
    if (!s.update) looked_in.insert(epoch);
    if (s.update && of_stream) {
      whole.insert(updates);
      EXPECT_TRUE(epoch < 2 || epoch >= 8 || updates % 3 == 2) << updates;
    }
    updates += s.update ? 1 : 0;
    position += of_stream ? 1 : 0;
  }
  EXPECT_EQ(position, 80);
  EXPECT_EQ(looked_in, (std::set<int64_t>{2, 3, 4, 5, 6, 7}));
  EXPECT_GT(whole.size(), 4U * 8);
}

TEST(Selective, ARunOfUpdatesTrainsAsOftenAsAPlainOne) {
  spec::JobOptions job = selection_job("selective");
  job.train.selective.length = "updates";
  WatchedRun run(job);
  run.finish();
  EXPECT_EQ(run.replica.updates(), 7 * 8);
  EXPECT_EQ(run.evaluations, 7);
  EXPECT_GT(run.replica.state().counters.cursor, 9 * 100) << "it looks at more epochs for it";
  int64_t update = 0;
  for (const Story::Step& s : run.story->steps) {
    if (!s.update) continue;
    EXPECT_DOUBLE_EQ(s.lr, 0.05 * (1 - static_cast<double>(update) / 56)) << update;
    ++update;
  }
}

TEST(Selective, LooksInBf16WithTheWeightsOfTheTraining) {
  for (const char* method : {"selective", "stale_selective"}) {
    spec::JobOptions job = selection_job(method);
    job.model.name = "resnet8";  // whose batch norms have running statistics
    job.model.width = 4;
    job.train.epochs = 3;
    job.train.selective.stale_epochs = 1;  // or three epochs have no look
    job.train.selective.precision = "bf16";
    SelectiveTwin twin(job);
    twin.run(job.train.method == "selective" ? 0 : job.train.selective.stale_epochs);
    WatchedRun run(job);
    run.finish();
    EXPECT_EQ(run.story->trained(), twin.trained) << method;
    expect_same_weights(run.replica, twin);
    job.train.selective.precision = "training";
    WatchedRun other(job);
    other.finish();
    EXPECT_FALSE(std::ranges::equal(other.replica.state().flat.weights(),
                                    run.replica.state().flat.weights()))
        << method << ": the precision of looks changes nothing";
  }
}

TEST(Selective, AModelThatAProgramBringsHasNoSecondOneForLooks) {
  spec::JobOptions job = selection_job("selective");
  job.train.selective.precision = "bf16";
  const std::string text = refusal_of([&] {
    WatchedRun run(job,
                   [&](Ingredients& given) { given.model = std::move(Bench(job).parts.model); });
  });
  EXPECT_NE(text.find("train.selective.precision"), std::string::npos) << text;
}

TEST(Selective, AModelThatCannotBeMadeInThePrecisionOfLooksNamesTheirOption) {
  spec::JobOptions job = selection_job("selective");
  job.model.name = "custom";
  job.model.library = TORCH_MODEL;
  job.train.selective.precision = "bf16";
  const std::string text = refusal_of([&] { WatchedRun run(job); });
  EXPECT_NE(text.find("set train.selective.precision = \"training\""), std::string::npos) << text;
  EXPECT_EQ(text.find("train.precision"), std::string::npos) << text;
}

TEST(Selective, HalfTheResolutionCostsAQuarterAndNeedsAModelThatPools) {
  spec::JobOptions job = selection_job("selective");
  job.model.name = "resnet8";
  job.model.width = 4;
  job.augment = {};
  job.data.train_limit = 60;
  job.train.epochs = 2;
  job.train.selective.half_resolution = true;
  WatchedRun run(job);
  run.finish();
  const Counters& c = run.replica.state().counters;
  const double per_sample = Bench(job).parts.flops_per_sample;
  const auto trained = static_cast<double>(c.samples_backward);
  const auto looked = static_cast<double>(c.samples_forward) - trained;
  EXPECT_EQ(looked, 60);
  const double cost = (c.flops / per_sample - 3 * trained) / looked;
  EXPECT_NEAR(cost, 0.25, 0.03) << "all but the last layer";
  job.model.name = "cnn";
  job.model.width = 0;
  const std::string text = refusal_of([&] { WatchedRun other(job); });
  EXPECT_NE(text.find("half_resolution"), std::string::npos) << text;
  EXPECT_NE(text.find("cnn"), std::string::npos) << text;
}

}  // namespace
}  // namespace ductile::train
