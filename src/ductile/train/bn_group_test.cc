// Batch norm over groups of virtual ranks (train.bn_group), through the whole step.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/comm/arena.h"
#include "ductile/parallel/exchange.h"
#include "ductile/train/replica.h"

namespace ductile::train {
namespace {

using Vec = std::vector<float>;

spec::JobOptions job_of(const std::string& model, int64_t virtual_ranks, int64_t bn_group) {
  spec::JobOptions job;
  job.data.train_limit = 256;
  job.data.test_limit = 32;
  job.model.name = model;
  job.augment.pad = 2;
  job.optimizer.lr = 0.05;
  job.loader.threads = 1;
  job.train.epochs = 4;
  job.train.batch_size = 48;
  job.train.virtual_ranks = virtual_ranks;
  job.train.bn_group = bn_group;
  return job;
}

Vec sum_of_step(Replica& replica) {
  Vec sum(static_cast<size_t>(replica.vector_size()));
  replica.compute(replica.num_ranks(), sum);
  return sum;
}

double relative(std::span<const float> got, std::span<const float> want, double scale) {
  double worst = 0, largest = 1e-30;
  for (size_t i = 0; i < want.size(); ++i) {
    worst = std::max(worst, std::abs(got[i] * scale - want[i]));
    largest = std::max<double>(largest, std::abs(want[i]));
  }
  return worst / largest;
}

// The whole job's batch as one group is one process's batch: loss, gradient of every parameter,
// running statistics.
TEST(BnGroup, OfAllVirtualRanksIsTheBatchNormOfOneProcess) {
  for (const char* model : {"cnn", "resnet8"}) {
    Replica one(job_of(model, 1, 1)), eight(job_of(model, 8, 8)), apart(job_of(model, 8, 1));
    for (Replica* replica : {&one, &eight, &apart}) replica->host_all();
    const Vec want = sum_of_step(one), got = sum_of_step(eight), other = sum_of_step(apart);
    size_t at = 0;
    double worst_apart = 0;
    for (const optim::Segment& entry : one.layout().segments()) {
      const auto offset = static_cast<size_t>(entry.offset), size = static_cast<size_t>(entry.size);
      const auto part = [&](const Vec& v) { return std::span(v).subspan(offset, size); };
      EXPECT_LT(relative(part(got), part(want), 1.0 / 8), 1e-5) << model << " " << entry.name;
      worst_apart = std::max(worst_apart, relative(part(other), part(want), 1.0 / 8));
      at = std::max(at, offset + size);
    }
    EXPECT_GT(worst_apart, 1e-2) << "groups of one should differ";
    // Then running statistics and loss, which are means too; the counts after it are not.
    const size_t means = static_cast<size_t>(one.figures_begin()) + 1 - at;
    EXPECT_LT(
        relative(std::span(got).subspan(at, means), std::span(want).subspan(at, means), 1.0 / 8),
        1e-5)
        << model << ": running statistics, loss";
  }
}

// Replicas that share a job, one on a thread, as workers of one host would.
struct Workers {
  Workers(const spec::JobOptions& job, std::vector<int64_t> cut) {
    const int n = static_cast<int>(cut.size()) - 1;
    for (int r = 0; r < n; ++r) replicas.push_back(std::make_unique<Replica>(job));
    const parallel::ExchangeLayout layout{std::move(cut), replicas[0]->vector_size()};
    for (auto& arena :
         comm::Arena::for_threads(n, {.region_bytes = parallel::arena_bytes(layout)})) {
      exchanges.push_back(parallel::make_exchange(std::shared_ptr(std::move(arena)), layout));
    }
    for (int r = 0; r < n; ++r) {
      const auto at = static_cast<size_t>(r);
      replicas[at]->host(layout, r, exchanges[at].get());
    }
  }
  // body(r) on a thread for each worker; the errors' texts.
  std::vector<std::string> each(const std::function<void(size_t)>& body) {
    std::vector<std::string> errors(replicas.size());
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < replicas.size(); ++r) {
      threads.emplace_back([&, r] {
        try {
          body(r);
        } catch (const std::exception& e) {
          errors[r] = e.what();
          exchanges[r]->fail(e.what());
        }
      });
    }
    threads.clear();
    return errors;
  }
  void step(size_t r) {
    parallel::Exchange& exchange = *exchanges[r];
    for (size_t i = 0; i < exchange.nodes().size(); ++i) {
      replicas[r]->compute(exchange.nodes()[i].size(), exchange.partial(i));
    }
    replicas[r]->apply(exchange.reduce());
  }
  std::vector<std::unique_ptr<Replica>> replicas;
  std::vector<std::unique_ptr<parallel::Exchange>> exchanges;
};

std::string bytes_of(Replica& replica) {
  std::string all;
  for (const ckpt::TensorView& t : replica.state().tensors()) {
    all.append(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
  }
  return all;
}

TEST(BnGroup, GivesTheSameBitsForEverySpread) {
  for (const int64_t group : {2, 3, 6}) {
    const spec::JobOptions job = job_of("cnn", 6, group);
    Replica alone(job);
    alone.host_all();
    for (int s = 0; s < 3; ++s) alone.apply(sum_of_step(alone));
    for (const std::vector<int64_t>& cut :
         {std::vector<int64_t>{0, 3, 6}, {0, 1, 5, 6}, {0, 2, 3, 6}, {0, 1, 2, 3, 4, 5, 6}}) {
      Workers workers(job, cut);
      const auto errors = workers.each([&](size_t r) {
        for (int s = 0; s < 3; ++s) workers.step(r);
      });
      for (const std::string& e : errors) EXPECT_EQ(e, "");
      for (const auto& replica : workers.replicas) {
        EXPECT_TRUE(bytes_of(*replica) == bytes_of(alone)) << group << ", " << cut.size() - 1;
      }
    }
  }
}

// A worker that is lost between two batch norms of a group: the others get out, hold the state
// before the step, and go on with another spread.
TEST(BnGroup, AStepThatFailedInAMeetingIsDoneAgainWithTheSameBits) {
  const spec::JobOptions job = job_of("cnn", 6, 6);
  Replica alone(job);
  alone.host_all();
  for (int s = 0; s < 2; ++s) alone.apply(sum_of_step(alone));
  Workers workers(job, {0, 2, 4, 6});
  const auto errors = workers.each([&](size_t r) {
    workers.step(r);
    if (r == 1) fail(ErrorCode::peer_lost, "gone");
    workers.step(r);
  });
  for (const std::string& e : errors) EXPECT_NE(e.find("gone"), std::string::npos) << e;
  for (auto& replica : workers.replicas) {
    EXPECT_EQ(replica->step(), 1);
    replica->host_all();
    replica->apply(sum_of_step(*replica));
    EXPECT_TRUE(bytes_of(*replica) == bytes_of(alone));
  }
}

TEST(BnGroup, HalfPrecisionAndAveragesFollow) {
  for (const char* precision : {"bf16", "fp16"}) {
    spec::JobOptions job = job_of("cnn", 4, 2);
    job.train.precision = precision;
    job.train.ema_decay = 0.9;
    Replica alone(job);
    alone.host_all();
    for (int s = 0; s < 2; ++s) alone.apply(sum_of_step(alone));
    Workers workers(job, {0, 1, 4});
    for (const std::string& e : workers.each([&](size_t r) {
           for (int s = 0; s < 2; ++s) workers.step(r);
         })) {
      EXPECT_EQ(e, "");
    }
    EXPECT_TRUE(bytes_of(*workers.replicas[0]) == bytes_of(alone));
  }
}

TEST(BnGroup, IsRefusedWhereItMeansNothing) {
  const auto error_of = [](const std::function<void()>& action) -> std::string {
    try {
      action();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return e.what();
    }
    return "no error";
  };
  std::string text = error_of([] { Replica(job_of("mlp", 4, 2)); });
  EXPECT_NE(text.find("train.bn_group"), std::string::npos) << text;
  text = error_of([] { spec::check(job_of("cnn", 4, 3)); });
  EXPECT_NE(text.find("train.bn_group"), std::string::npos) << text;
  spec::JobOptions job = job_of("custom", 4, 2);
  job.model.library = TORCH_MODEL;
  Replica replica(job);
  replica.host_all();
  text = error_of([&] { sum_of_step(replica); });
  EXPECT_NE(text.find("conv_bn_act"), std::string::npos) << text;
}

}  // namespace
}  // namespace ductile::train
