#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ductile/base/files.h"
#include "ductile/base/options.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/digest.h"
#include "ductile/run/diary.h"
#include "ductile/run/folder.h"
#include "ductile/spec/job.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/replica.h"
#include "ductile/train/testing/local_cluster.h"

// Small jobs by stages, in this thread alone and on workers that come and go.
namespace ductile::train::testing {

inline spec::JobOptions small_job(const char* model, int64_t stages) {
  spec::JobOptions job;
  job.name = "stages";
  job.data.train_limit = 96;
  job.data.test_limit = 16;
  job.model.name = model;
  job.model.hidden = {12, 9};
  job.model.width = 4;
  job.loader.threads = 1;
  job.optimizer.lr = 0.02;
  job.train.epochs = 2;
  job.train.batch_size = 24;
  job.train.method = "pipelined";
  job.train.virtual_ranks = stages;
  job.train.pipelined.micro_batches = 3;
  job.train.threads = 1;
  job.checkpoint.every_seconds = 0;
  job.checkpoint.every_steps = 3;
  return job;
}

// A job whose state is in nine blocks and lies where it is read: fc1 and fc2 in the first seven,
// fc3 in the last three, fc4 in the last one. The fourth stage has no weights.
inline spec::JobOptions sharded_job() {
  spec::JobOptions job = small_job("mlp", 4);
  job.model.hidden = {96, 256, 160};
  job.optimizer.name = "adamw";
  job.optimizer.lr = 0.002;
  job.train.shard_optimizer = true;
  return job;
}

// The same job by a rule whose rates follow norms, of which several workers have a part each.
inline spec::JobOptions with_lars(spec::JobOptions job) {
  job.optimizer.name = "lars";
  job.optimizer.lr = 0.05;
  job.optimizer.lars.trust_coefficient = 0.1;  // so that eight steps change each weight
  return job;
}

// The same job in half precision, with a loss scale that its first gradients overflow by, and most
// do not: it begins where one of 1/8 does, as a bias of the last layer has where two labels of a
// micro-batch are equal.
inline spec::JobOptions overflowing(spec::JobOptions job) {
  job.train.precision = "fp16";
  job.train.loss_scale = 1 << 19;
  return job;
}

// The job reads random tokens below `vocabulary`, from a file in `folder`.
inline void read_tokens(spec::JobOptions& job, int64_t vocabulary, const fs::path& folder) {
  std::vector<uint16_t> tokens(4000);
  Rng rng(1, 2);
  for (uint16_t& t : tokens)
    t = static_cast<uint16_t>(rng.below(static_cast<uint32_t>(vocabulary)));
  const fs::path file = folder / "tokens.bin";
  write_file_atomic(
      file, std::string_view(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()));
  job.data.format = "tokens";
  job.data.path = job.data.test_path = file.string();
  job.data.tokens.sequence_length = 8;
  job.model.vocab_size = vocabulary;
}

// A small gpt on such tokens, without dropout.
inline spec::JobOptions gpt_job(int64_t stages, int64_t vocabulary, const fs::path& folder) {
  spec::JobOptions job = small_job("gpt", stages);
  read_tokens(job, vocabulary, folder);
  job.model.layers = job.model.heads = 2;
  job.model.dim = 16;
  job.model.dropout = 0;
  job.optimizer.name = "adamw";
  job.optimizer.lr = 0.002;
  return job;
}

// A job from its first step to its last in this thread, on all stages.
inline std::unique_ptr<Replica> run_serial(const spec::JobOptions& job) {
  auto replica = std::make_unique<Replica>(job);
  replica->host_all();
  std::vector<float> sum(static_cast<size_t>(replica->vector_size()));
  while (replica->updates() < replica->total_updates()) {
    replica->compute(replica->num_ranks(), sum);
    replica->apply(sum);
  }
  return replica;
}

inline std::vector<float> weights_of(Replica& replica) {
  const auto weights = replica.state().flat.weights();
  std::vector<float> out(weights.begin(), weights.end());
  const auto buffers = replica.state().flat.buffer_values();
  out.insert(out.end(), buffers.begin(), buffers.end());
  return out;
}

struct OneRun {
  explicit OneRun(spec::JobOptions job)
      : folder(run::RunFolder::create(place.path(), "stages", OptionSet(job).to_toml())) {}
  std::string digest() const {
    const auto newest = ckpt::open_latest(folder.checkpoints());
    return newest.checkpoint ? ckpt::state_digest(*newest.checkpoint) : "no checkpoint";
  }
  // A replica with the state of the newest checkpoint, which there is to be.
  std::unique_ptr<Replica> newest(const spec::JobOptions& job) const {
    auto replica = std::make_unique<Replica>(job);
    const auto found = ckpt::open_latest(folder.checkpoints());
    EXPECT_TRUE(found.checkpoint.has_value());
    if (found.checkpoint) replica->restore(*found.checkpoint);
    return replica;
  }
  // Where it stopped before, as this job: to `step`, where it is preempted, or to its end.
  void go_on(const spec::JobOptions& job, int64_t workers, int64_t step, bool to_its_end) const {
    LocalCluster cluster(folder, job, recipe_of(job));
    cluster.start(workers);
    cluster.run_to(step);
    if (to_its_end) {
      EXPECT_EQ(cluster.finish().phase, control::Phase::finished);
    } else {
      cluster.preempt();
    }
  }
  TempFolder place;
  run::RunFolder folder;
};

// `run` goes on by itself on 1 to 4 workers that are killed and resized, up to its end.
inline void disturb(const OneRun& run, const spec::JobOptions& job, int64_t steps, uint64_t seed) {
  LocalCluster cluster(run.folder, job, recipe_of(job));
  Rng rng(seed, 1);
  cluster.start(1 + static_cast<int64_t>(seed));
  int64_t at = 0;
  while (!cluster.over()) {
    at += 1 + static_cast<int64_t>(rng.below(3));
    cluster.run_to(std::min(at, steps));
    if (at >= steps) break;
    if (rng.below(2) == 0) {
      cluster.kill_some(rng.below(100));
    } else {
      cluster.resize(1 + static_cast<int64_t>(rng.below(4)));
    }
  }
  EXPECT_EQ(cluster.finish().phase, control::Phase::finished);
}

// For each seed a disturbed run, which ends with the weights of the serial one.
inline void disturb_and_compare(const spec::JobOptions& job, const std::vector<uint64_t>& seeds) {
  const auto whole = weights_of(*run_serial(job));
  for (const uint64_t seed : seeds) {
    const OneRun run(job);
    disturb(run, job, 8, seed);
    EXPECT_EQ(weights_of(*run.newest(job)), whole)
        << job.model.name << ", " << job.optimizer.name << ", seed " << seed;
  }
}

// The job on four workers, which save it together while it goes on: what they saved is the state of
// an undisturbed job.
inline void save_together_and_compare(spec::JobOptions job) {
  job.train.epochs = 1'000'000;
  job.checkpoint.every_steps = 2;
  job.checkpoint.keep = 100;
  const OneRun run(job);
  {
    LocalCluster cluster(run.folder, job, recipe_of(job));
    cluster.start(4);
    cluster.run_to(80);  // a save takes longer than a step
    cluster.preempt();
  }
  const std::vector<int64_t> published = ckpt::verify(run.folder.checkpoints()).good;
  int64_t together = 0;
  run::for_each_diary_line(run.folder.events_file(), [&](const nlohmann::json& line) {
    if (line.value("kind", "") != "checkpoint" || line.value("parts", 1) != 4) return;
    const auto step = line.at("step").get<int64_t>();
    EXPECT_NE(std::find(published.begin(), published.end(), step), published.end())
        << "the diary tells of a checkpoint of step " << step << " that is not there";
    ++together;
    Replica saved(job), undisturbed(job);
    saved.restore(ckpt::Checkpoint::open(run.folder.checkpoints(), step));
    undisturbed.host_all();
    std::vector<float> sum(static_cast<size_t>(undisturbed.vector_size()));
    while (undisturbed.step() < step) {
      undisturbed.compute(undisturbed.num_ranks(), sum);
      undisturbed.apply(sum);
    }
    EXPECT_EQ(ckpt::tensors_digest(saved.state().tensors()),
              ckpt::tensors_digest(undisturbed.state().tensors()))
        << "step " << step;
  });
  EXPECT_GT(together, 0);
}

}  // namespace ductile::train::testing
