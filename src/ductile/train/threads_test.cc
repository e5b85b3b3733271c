// Steps start no threads: what computes is started once and used again.
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/nn/model.h"
#include "ductile/spec/models.h"
#include "ductile/train/environment.h"
#include "ductile/train/replica.h"
#include "ductile/train/same_job.h"

namespace ductile::train {
namespace {

std::set<std::string> threads_of_this_process() {
  std::set<std::string> ids;
  for (const auto& entry : fs::directory_iterator("/proc/self/task"))
    ids.insert(entry.path().filename().string());
  return ids;
}

spec::JobOptions job_of(const std::string& model, int64_t threads) {
  spec::JobOptions job;
  job.data.train_limit = 64;
  job.data.test_limit = 16;
  job.model.name = model;
  job.loader.threads = 1;
  job.train.batch_size = 8;
  job.train.virtual_ranks = 4;
  job.train.epochs = 10;
  job.train.threads = threads;
  return job;
}

// New threads get new numbers, so a thread that is replaced shows.
TEST(ComputeThreads, AStepStartsNoneAfterTheFirst) {
  const int before = at::get_num_threads();
  for (const char* model : {"mlp", "cnn", "resnet8", "resnet18-cifar"}) {
    for (const int threads : {1, 2, 3}) {
      const spec::JobOptions job = job_of(model, threads);
      at::set_num_threads(threads);
      Replica replica(job);
      replica.host_all();
      std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
      const int steps = std::string(model) == "resnet18-cifar" ? 3 : 20;
      std::set<std::string> first;
      for (int step = 0; step < steps; ++step) {
        replica.compute(4, sum);
        replica.apply(sum);
        if (step == 0) first = threads_of_this_process();
      }
      for (const std::string& id : threads_of_this_process()) {
        EXPECT_TRUE(first.contains(id))
            << model << " with " << threads << " threads started one after the first step";
      }
    }
  }
  at::set_num_threads(before);
}

TEST(ComputeThreads, AreSettledWhereTheModelMayRoundByThem) {
  spec::JobOptions job = job_of("cnn", 0);
  resolve_threads(job);
  EXPECT_EQ(job.train.threads, 0);
  job.model.name = "custom";
  job.model.library = TORCH_MODEL;
  resolve_threads(job);
  EXPECT_EQ(job.train.threads, 1);
  job.train.threads = 3;
  resolve_threads(job);
  EXPECT_EQ(job.train.threads, 3);
}

TEST(ComputeThreads, MayDifferInAResumedRunWhereTheyChangeNoBit) {
  const auto json = [](int64_t threads) {
    spec::JobOptions job = job_of("cnn", threads);
    return OptionSet(job).to_json();
  };
  check_same_job(json(2), json(3), /*thread_invariant=*/true);
  check_same_job(json(0), json(3), false);  // of a version that left it open
  EXPECT_THROW(check_same_job(json(2), json(3), false), Error);
}

}  // namespace
}  // namespace ductile::train
