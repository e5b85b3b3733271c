#include "ductile/optim/batch_order.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "ductile/base/json_value.h"
#include "ductile/optim/rate_control.h"

namespace ductile::optim {
namespace {

using Json = nlohmann::json;

spec::JobOptions job_of() {
  spec::JobOptions job;
  job.train.rate_control = "goodput";
  job.train.batch_size = 32;
  job.train.virtual_ranks = 4;
  job.train.noise.max_batch = 128;
  job.train.noise.patience = 10;
  return job;
}

Json decisions_of(const Json& memory) { return memory.value("decisions", Json::array()); }

TEST(BatchOrderTest, OnlyABatchThatTheJobAllowsIsOrdered) {
  const spec::JobOptions job = job_of();
  const Json fresh = Json::object();
  EXPECT_EQ(order_of(job, fresh, 1000, 50, 64), 64);
  EXPECT_EQ(order_of(job, fresh, 1000, 50, 128), 128);
  EXPECT_EQ(order_of(job, fresh, 1000, 50, 32), 0) << "it is so already";
  EXPECT_EQ(order_of(job, fresh, 1000, 50, 28), 0) << "below train.batch_size";
  EXPECT_EQ(order_of(job, fresh, 1000, 50, 66), 0) << "no whole number of samples for each rank";
  spec::JobOptions large = job;
  large.train.noise.max_batch = int64_t{1} << 40;
  const int64_t exact = int64_t{1} << 30;
  EXPECT_EQ(order_of(large, fresh, exact << 1, 50, exact), exact);
  EXPECT_EQ(order_of(large, fresh, exact << 1, 50, exact + 4), 0)
      << "the ranks' sum would round it";
  for (const int64_t absurd : {int64_t{0}, int64_t{-64}, -std::numeric_limits<int64_t>::max()})
    EXPECT_EQ(order_of(job, fresh, 1000, 50, absurd), 0);
  spec::JobOptions constant = job;
  constant.train.noise.max_batch = 32;
  EXPECT_EQ(order_of(constant, fresh, 1000, 50, 64), 0) << "a job whose batch may not grow";
}

// Whoever orders knows neither the size of the training set nor how the batch is divided.
TEST(BatchOrderTest, AnOrderOfTooManySamplesIsTheLargestBatchThatTheJobAllows) {
  const spec::JobOptions job = job_of();
  const Json fresh = Json::object();
  const int64_t largest = std::numeric_limits<int64_t>::max();
  for (const int64_t wish : {int64_t{132}, int64_t{1} << 40, largest})
    EXPECT_EQ(order_of(job, fresh, 1000, 50, wish), 128) << "train.noise.max_batch";
  EXPECT_EQ(order_of(job, fresh, 100, 50, 128), 100) << "the training set";
  EXPECT_EQ(order_of(job, fresh, 103, 50, 128), 100) << "in whole samples for each rank";
  EXPECT_EQ(order_of(job, {{"batch_size", 100}}, 103, 50, 128), 0) << "it is so already";
  EXPECT_EQ(order_of(job, fresh, 35, 50, 128), 0) << "there is no room to grow";
  spec::JobOptions odd = job;
  odd.train.noise.max_batch = 66;
  EXPECT_EQ(order_of(odd, fresh, 1000, 50, 128), 64);
}

TEST(BatchOrderTest, TwoOrdersAreAsFarApartAsTheJobSays) {
  const spec::JobOptions job = job_of();
  const Json memory = {{"batch_size", 64}, {"since", 20}};
  EXPECT_EQ(order_of(job, memory, 1000, 28, 32), 0);
  EXPECT_EQ(order_of(job, memory, 1000, 29, 32), 32);
  EXPECT_EQ(order_of(job, memory, 1000, 29, 64), 0);
}

TEST(BatchOrderTest, TheControlObeysAndRemembers) {
  for (const char* optimizer : {"sgd", "adamw"}) {
    spec::JobOptions job = job_of();
    job.optimizer.name = optimizer;
    const auto control = make_rate_control(job);
    const auto schedule = make_schedule_control(job);
    Json memory = Json::object(), none = Json::object();
    Observed seen;
    seen.total = 100;
    seen.noise = noise::GradientNoise{2.0, 3.0};
    EXPECT_EQ(control->next(seen, memory).batch_size, 32);
    EXPECT_EQ(decisions_of(memory), Json::array());

    seen.position = seen.updates = 12;
    seen.figures[std::string(kBatchOrder)] = 96;
    const Hyper larger = control->next(seen, memory);
    EXPECT_EQ(larger.batch_size, 96);
    const double expected =
        job.optimizer.name == "sgd" ? noise::adascale_factor(*seen.noise, 3) : std::sqrt(3.0);
    EXPECT_DOUBLE_EQ(larger.lr, schedule->next(seen, none).lr * expected);

    seen.figures[std::string(kBatchOrder)] = 0;
    seen.updates = 13;
    EXPECT_EQ(control->next(seen, memory).batch_size, 96) << "until another one is ordered";
    seen.updates = 40;
    seen.figures[std::string(kBatchOrder)] = 32;
    const Hyper smaller = control->next(seen, memory);
    EXPECT_EQ(smaller.batch_size, 32);
    EXPECT_DOUBLE_EQ(smaller.lr, schedule->next(seen, none).lr);
    EXPECT_EQ(decisions_of(memory), Json({{12, 96}, {40, 32}}));
  }
}

}  // namespace
}  // namespace ductile::optim
