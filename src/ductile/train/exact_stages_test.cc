// train.pipeline_exact: stages with the bits of the plain method, on any number of workers.
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/control/ranges.h"
#include "ductile/nn/operators.h"
#include "ductile/parallel/exchange.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/replica.h"
#include "ductile/train/testing/stage_jobs.h"

namespace ductile::train {
namespace {

using testing::disturb;
using testing::OneRun;
using testing::overflowing;
using testing::read_tokens;
using testing::run_serial;
using testing::small_job;
using testing::weights_of;
using testing::with_lars;

// Of weights and running statistics: 0 and -0 are two.
std::vector<uint32_t> bits_of(Replica& replica) {
  const std::vector<float> values = weights_of(replica);
  std::vector<uint32_t> out(values.size());
  std::memcpy(out.data(), values.data(), values.size() * sizeof(float));
  return out;
}

// Where `folder` has room for the data.
spec::JobOptions exact_job(const std::string& model, int64_t stages, int64_t replicas,
                           int64_t micro_batches, const fs::path& folder) {
  spec::JobOptions job = small_job(model.c_str(), stages * replicas);
  job.train.pipelined.replicas = replicas;
  job.train.pipelined.micro_batches = micro_batches;
  job.train.pipeline_exact = true;
  if (model != "gpt") return job;
  read_tokens(job, 20, folder);
  job.model.layers = job.model.heads = 2;
  job.model.dim = 16;
  return job;
}

// The ordinary job that such a one has the bits of.
spec::JobOptions plain_job(spec::JobOptions job) {
  job.train.virtual_ranks = spec::batch_parts(job);
  job.train.method = "plain";
  job.train.pipeline_exact = false;
  job.train.pipelined = {};
  return job;
}

TEST(ExactStages, HaveTheBitsOfThePlainMethod) {
  const TempFolder folder;
  for (const char* model : {"mlp", "cnn", "resnet8", "gpt"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      spec::JobOptions job = exact_job(model, 1, 1, 4, folder.path());
      job.train.precision = precision;
      const auto plain = run_serial(plain_job(job));
      for (const int64_t stages : {1, 2, 3, 4}) {
        job.train.virtual_ranks = stages;
        for (const char* order : {"", "F4B4", "F4B4W4"}) {
          job.train.pipelined.orders.assign(*order == 0 ? 0 : static_cast<size_t>(stages), order);
          const auto exact = run_serial(job);
          const std::string what = fmt::format("{}, {}, {}, {}", model, precision, stages, order);
          EXPECT_EQ(bits_of(*exact), bits_of(*plain)) << what;
          EXPECT_EQ(exact->state().loss, plain->state().loss) << what;
        }
      }
    }
  }
}

// The first matrix is in 25 blocks, of which each rank has what its operators read. Norms by layer
// and the norm of all, which tells of an overflow, are made of what several workers have.
TEST(ExactStages, HaveTheBitsOfThePlainMethodWhereTheStateLiesByStage) {
  const TempFolder folder;
  spec::JobOptions wide = exact_job("mlp", 4, 1, 4, folder.path());
  wide.model.hidden = {512, 48};
  for (spec::JobOptions job : {wide, with_lars(wide), overflowing(wide)}) {
    const auto plain = run_serial(plain_job(job));
    EXPECT_EQ(plain->skipped_steps() > 0, job.train.precision == "fp16");
    EXPECT_LE(2 * plain->skipped_steps(), plain->updates());
    job.train.shard_optimizer = true;
    for (const int64_t copies : {1, 2}) {
      job.train.shard_copies = copies;
      for (const uint64_t seed : {2, 3}) {
        const OneRun run(job);
        disturb(run, job, 8, seed);
        const auto got = run.newest(job);
        const std::string what = fmt::format("{}, {}, {} copies, seed {}", job.optimizer.name,
                                             job.train.precision, copies, seed);
        EXPECT_EQ(bits_of(*got), bits_of(*plain)) << what;
        EXPECT_EQ(got->skipped_steps(), plain->skipped_steps()) << what;
      }
    }
  }
}

// The last of two workers has three of five ranks, which are two nodes of the canonical tree: it
// sums each node in the blocks of its ranks alone. In one block two layers of different nodes meet,
// the larger of which begins before it; and a rank has -0 of what is not its own.
TEST(ExactStages, HaveTheBitsOfThePlainMethodWhereAWorkerSumsSeveralNodesInTheirOwnBlocks) {
  const TempFolder folder;
  int several = 0;
  for (const int64_t replicas : {1, 2}) {
    spec::JobOptions job = exact_job("mlp", 5, replicas, 4, folder.path());
    job.model.hidden = {40, 48, 256, 160};
    job.train.pipelined.stages = {"fc1", "fc2", "fc3", "fc4", "fc5"};
    const auto plain = bits_of(*run_serial(plain_job(job)));
    job.train.shard_optimizer = true;
    for (const int64_t copies : {1, 2}) {
      job.train.shard_copies = copies;
      for (const int64_t workers : {2, 3, 4}) {
        parallel::ExchangeLayout layout{{0}, 1};
        for (const control::RankRange& r : control::spread_ranks(5 * replicas, workers))
          layout.cut.push_back(r.end);
        const bool whole = Replica(job).shards().spread(layout.cut).whole;
        for (int w = 0; w < layout.num_workers(); ++w)
          several += !whole && layout.nodes(w).size() > 1;
        const OneRun run(job);
        run.go_on(job, workers, 8, /*to_its_end=*/true);
        EXPECT_EQ(bits_of(*run.newest(job)), plain)
            << replicas << " pipelines, " << copies << " copies, " << workers << " workers";
      }
    }
  }
  EXPECT_GT(several, 2) << "the state is not in parts, or no worker has several nodes";
}

// What the test above would not see if the order of sums were the same anyway.
TEST(ExactStages, StagesThatAreNotExactAddUpInAnotherOrder) {
  const TempFolder folder;
  spec::JobOptions job = exact_job("mlp", 2, 1, 4, folder.path());
  const auto plain = run_serial(plain_job(job));
  job.train.pipeline_exact = false;
  EXPECT_NE(bits_of(*run_serial(job)), bits_of(*plain));
}

TEST(ExactStages, SeveralPipelinesHaveTheBitsOfThePlainMethod) {
  const TempFolder folder;
  for (const char* model : {"cnn", "gpt"}) {
    for (const auto& [stages, replicas, micro_batches] :
         {std::tuple{2, 2, 2}, {3, 2, 4}, {2, 3, 2}, {1, 4, 2}, {1, 3, 1}}) {
      const auto job = exact_job(model, stages, replicas, micro_batches, folder.path());
      EXPECT_EQ(bits_of(*run_serial(job)), bits_of(*run_serial(plain_job(job))))
          << model << ": " << stages << " x " << replicas << " x " << micro_batches;
    }
  }
}

TEST(ExactStages, HaveTheBitsOfThePlainMethodThroughKillsAndResizes) {
  const TempFolder folder;
  struct Case {
    const char* model;
    int64_t stages, replicas, micro_batches;
    bool sharded;
  };
  for (const Case& c : {Case{"cnn", 4, 1, 4, false},
                        {"gpt", 4, 1, 3, false},
                        {"cnn", 2, 3, 2, false},
                        {"gpt", 3, 2, 4, true}}) {
    spec::JobOptions job = exact_job(c.model, c.stages, c.replicas, c.micro_batches, folder.path());
    job.train.shard_optimizer = c.sharded;
    const auto plain = bits_of(*run_serial(plain_job(job)));
    for (uint64_t seed = 0; seed < 3; ++seed) {
      const OneRun run(job);
      disturb(run, job, 8, seed);
      EXPECT_EQ(bits_of(*run.newest(job)), plain) << c.model << ", seed " << seed;
    }
  }
}

// What else an update is made of.
TEST(ExactStages, HaveTheBitsOfThePlainMethodWithOtherOptions) {
  const TempFolder folder;
  const auto expect_same = [](const spec::JobOptions& job, const char* what) {
    EXPECT_EQ(bits_of(*run_serial(job)), bits_of(*run_serial(plain_job(job)))) << what;
  };
  for (const int64_t micro_batches : {1, 3, 6, 8, 12}) {
    expect_same(exact_job("resnet8", 3, 1, micro_batches, folder.path()), "micro-batches");
  }
  spec::JobOptions job = exact_job("cnn", 3, 1, 6, folder.path());
  job.augment.pad = 2;
  job.train.label_smoothing = 0.1;
  job.optimizer.clip_norm = 0.5;
  job.optimizer.name = "adamw";
  job.optimizer.freeze = {"conv1:1"};
  expect_same(job, "clipped, smoothed, frozen");
  job = exact_job("resnet8", 2, 2, 2, folder.path());
  job.train.precision = "fp16";
  expect_same(job, "fp16");
  job = exact_job("gpt", 2, 3, 2, folder.path());
  job.model.dropout = 0.2;
  expect_same(job, "dropout in several pipelines");
}

// Wherever a model of the zoo is cut in two, it is exact, or refused by name.
TEST(ExactStages, AreExactOrRefusedForEveryCut) {
  const TempFolder folder;
  int exact = 0;
  for (const char* model : {"cnn", "resnet8", "gpt"}) {
    spec::JobOptions job = exact_job(model, 2, 1, 4, folder.path());
    job.train.max_steps = 2;
    std::vector<std::string> names;
    const Ingredients parts = recipe_of(job)();
    const nn::OperatorGraph graph = nn::operators_of(*parts.model);
    for (const nn::Operator& op : graph.operators()) names.push_back(op.name);
    const auto plain = bits_of(*run_serial(plain_job(job)));
    for (size_t cut = 1; cut < names.size(); ++cut) {
      std::string before, behind;
      for (size_t i = 0; i < names.size(); ++i) (i < cut ? before : behind) += names[i] + " ";
      job.train.pipelined.stages = {before, behind};
      try {
        EXPECT_EQ(bits_of(*run_serial(job)), plain) << model << ", cut at " << names[cut];
        ++exact;
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("train.pipeline_exact"), std::string::npos)
            << e.what();
      }
    }
  }
  EXPECT_GT(exact, 20);
}

// Operators of other stages draw from one generator in turn.
TEST(ExactStages, DrawWhatOneProcessDraws) {
  const TempFolder folder;
  for (const char* precision : {"fp32", "bf16"}) {
    spec::JobOptions job = exact_job("gpt", 4, 1, 4, folder.path());
    job.model.dropout = 0.1;
    job.train.precision = precision;
    const auto plain = bits_of(*run_serial(plain_job(job)));
    EXPECT_EQ(bits_of(*run_serial(job)), plain) << precision;
    job.train.pipelined.recompute = {"transformer.h.0.attn", "transformer.h.1.mlp.c_proj"};
    EXPECT_EQ(bits_of(*run_serial(job)), plain) << precision << ", recomputed";
    job.model.dropout = 0;
    EXPECT_NE(bits_of(*run_serial(job)), plain) << precision << ", without dropout";
  }
}

}  // namespace
}  // namespace ductile::train
