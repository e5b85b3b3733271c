#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ductile/base/dtype.h"
#include "ductile/data/dataset.h"
#include "ductile/spec/job.h"

namespace ductile::data {

// One micro-batch: the samples of one virtual rank in one step.
struct Batch {
  DType dtype = DType::f32;           // i64 for tokens
  Shape shape;                        // [B, C, H, W], or [B, T]
  bool channels_last = false;         // input is stored [B, H, W, C]; shape stays [B, C, H, W]
  const std::byte* input = nullptr;   // 64-byte aligned
  const int64_t* labels = nullptr;    // [B], or [B, T]: the token after each input token
  std::span<const uint64_t> samples;  // dataset index of each sample
  int64_t num_samples = 0;            // B
  int64_t epoch = 0;
  int64_t step = 0;  // within the epoch
  int64_t part = 0;  // virtual rank
};

// Which batches a loader makes. Step s of an epoch holds the sampler's positions [s*B, (s+1)*B);
// part v is the v-th of `parts` equal slices. A loader serves parts [first_part, +num_parts).
struct LoaderTask {
  uint64_t seed = 0;
  int64_t batch_size = 1;  // of all parts together; divisible by parts
  int64_t parts = 1;
  int64_t first_part = 0;
  int64_t num_parts = 1;
  bool training = true;
  int64_t start_epoch = 0;
  int64_t start_step = 0;
  bool channels_last = true;
};

struct LoaderStats {
  int threads = 0;                 // at work now
  double wait_seconds = 0;         // next() had to wait, all calls together
  int64_t batches = 0;             // handed out
  int64_t bad_samples = 0;         // distinct samples left out, those at opening included
  std::vector<BadItem> bad_items;  // the first few
};

// Reads, decodes, augments and assembles batches ahead of the caller.
//
// The bytes of a batch depend on the dataset, the options and (seed, epoch, step, part) only: not
// on the number of threads, on which loader makes it, or on where the run was restarted. Opening at
// (start_epoch, start_step) costs the same as at the start.
//
// Training: batches come without end in the order (epoch, step, part); the last incomplete batch of
// an epoch is dropped. Evaluation: sequential, in the dataset's order, one pass; the last batch may
// be short (parts without samples are not delivered) and nullptr follows.
//
// A bad sample throws from next(), at its batch, with its file and offset. With
// on_bad_sample = "skip" it is counted instead; in training the next good sample of the dataset
// takes its place, in evaluation its batch is shorter.
//
// Threads: next() is for one consumer thread; stats() for any. Worker threads run at most
// `prefetch` batches ahead. With threads = 0 one starts, and others up to the number of cores join
// while the consumer is seen waiting.
class Loader {
 public:
  // Resolves `augment` against the dataset (a no-op on resolved options; give those resolved
  // against the training set for a test set). Throws invalid_argument for a task that does not fit.
  Loader(std::shared_ptr<const Dataset> dataset, const spec::AugmentOptions& augment,
         const spec::LoaderOptions& options, LoaderTask task);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  ~Loader();

  // The next batch. Its memory returns to the loader's pool when the last reference goes, which may
  // be after the loader's own end.
  std::shared_ptr<const Batch> next();

  int64_t steps_per_epoch() const;
  // [C, H, W] after crop, or [T].
  Shape sample_shape() const;
  LoaderStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::data
