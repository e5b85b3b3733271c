// Another plan for a run that goes on: what a checkpoint holds is there to the bit, and the steps
// after it are those of a serial executor of the new plan.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/digest.h"
#include "ductile/train/replica.h"
#include "ductile/train/testing/stage_jobs.h"

namespace ductile::train {
namespace {

using testing::OneRun;
using testing::small_job;
using testing::weights_of;

// Adam's two arrays, averages and running statistics: all kinds of state that there are.
spec::JobOptions job_of(int64_t stages, int64_t micro_batches = 3) {
  spec::JobOptions job = small_job("resnet8", stages);
  job.optimizer.name = "adamw";
  job.optimizer.lr = 0.002;
  job.train.ema_decay = 0.9;
  job.train.pipelined.micro_batches = micro_batches;
  return job;
}

// Plans of other results, which the jobs say.
spec::JobOptions in_micro_batches(int64_t stages, int64_t micro_batches) {
  spec::JobOptions job = job_of(stages, micro_batches);
  job.train.pipelined.replans = 1;
  return job;
}

spec::JobOptions in_pipelines() {
  spec::JobOptions job = in_micro_batches(4, 2);
  job.train.pipelined.replicas = 2;
  return job;
}

spec::JobOptions in_replicas() {
  spec::JobOptions job = in_micro_batches(3, 2);
  job.train.pipelined.stage_replicas = {2, 1};
  return job;
}

spec::JobOptions in_parts() {
  spec::JobOptions job = in_micro_batches(3, 3);
  job.train.pipelined.tensor = {1, 2};
  return job;
}

std::string tensors_of(Replica& replica) { return ckpt::tensors_digest(replica.state().tensors()); }

TEST(OtherPlan, TwoStagesBecomeFourAndThenOneWithTheSameBits) {
  const OneRun alone(job_of(2)), run(job_of(2));
  alone.go_on(job_of(2), 1, 8, /*to_its_end=*/true);
  run.go_on(job_of(2), 2, 2, false);
  spec::JobOptions four = job_of(4);
  four.train.shard_optimizer = true;
  four.train.pipelined.orders.assign(4, "F3B3W3");
  run.go_on(four, 4, 4, false);
  run.go_on(job_of(1), 1, 6, false);
  run.go_on(job_of(3), 2, 8, true);
  EXPECT_EQ(run.digest(), alone.digest());
}

TEST(OtherPlan, EveryTensorIsThereToTheBitRightAfterTheRestore) {
  const OneRun run(job_of(2));
  run.go_on(job_of(2), 2, 4, false);
  const auto newest = ckpt::open_latest(run.folder.checkpoints());
  ASSERT_TRUE(newest.checkpoint.has_value());
  const ckpt::Checkpoint& saved = *newest.checkpoint;
  const std::string whole = ckpt::tensors_digest(
      saved.tensors(), [&](size_t tensor, int64_t offset, std::span<std::byte> into) {
        saved.read_range(saved.tensors()[tensor].name, offset, into);
      });
  const std::vector<std::pair<const char*, spec::JobOptions>> others = {
      {"four stages", job_of(4)},
      {"one stage", job_of(1)},
      {"micro-batches", in_micro_batches(2, 4)},
      {"pipelines", in_pipelines()},
      {"replicas of a stage", in_replicas()},
      {"parts of a stage", in_parts()}};
  for (const auto& [name, job] : others) EXPECT_EQ(tensors_of(*run.newest(job)), whole) << name;
}

// Each worker reads what it is to hold; from there on the oracle is the plan itself in one process.
TEST(OtherPlan, GoesOnAsASerialExecutorOfThePlanDoes) {
  std::vector<spec::JobOptions> plans = {in_micro_batches(4, 4), in_pipelines(), in_replicas(),
                                         in_parts()};
  plans.front().train.shard_optimizer = true;
  for (const spec::JobOptions& plan : plans) {
    const OneRun run(job_of(2));
    run.go_on(job_of(2), 2, 4, false);
    const std::unique_ptr<Replica> serial = run.newest(plan);
    serial->host_all();
    std::vector<float> sum(static_cast<size_t>(serial->vector_size()));
    while (serial->updates() < serial->total_updates()) {
      serial->compute(serial->num_ranks(), sum);
      serial->apply(sum);
    }
    run.go_on(plan, 3, 6, false);
    run.go_on(plan, 2, 8, true);
    EXPECT_EQ(weights_of(*run.newest(plan)), weights_of(*serial))
        << plan.train.virtual_ranks << " ranks";
  }
}

}  // namespace
}  // namespace ductile::train
