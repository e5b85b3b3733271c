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

// One of several inputs of a batch.
struct BatchInput {
  DType dtype = DType::f32;         // or i64
  Shape shape;                      // [B, length]
  const std::byte* data = nullptr;  // 64-byte aligned
};

// One micro-batch: the samples of one virtual rank in one step, or those that fetch() was asked
// for.
struct Batch {
  DType dtype = DType::f32;           // i64 for tokens
  Shape shape;                        // [B, C, H, W], or [B, T]
  bool channels_last = false;         // input is stored [B, H, W, C]; shape stays [B, C, H, W]
  const std::byte* input = nullptr;   // 64-byte aligned
  const int64_t* labels = nullptr;    // [B], or [B, T]: the token after each input token
  std::span<const uint64_t> samples;  // dataset index of each sample
  int64_t num_samples = 0;            // B
  int64_t epoch = 0;
  int64_t first = 0;        // position in the epoch of its first sample; -1 in a fetched batch
  int64_t next_cursor = 0;  // where the step after this one starts; -1 in a fetched batch
  int64_t part = 0;         // virtual rank; 0 in a fetched batch
  // Of samples with several inputs, which are neither images nor tokens, in order; dtype, shape and
  // input are then those of the first.
  std::vector<BatchInput> inputs = {};
};

// Which batches a loader makes. The samples of a step follow from the cursor and the batch size
// alone (samples_of_step in cursor.h); part v is the v-th of `parts` equal slices of them. A loader
// serves the parts [first_part, first_part + num_parts).
struct LoaderTask {
  uint64_t seed = 0;
  int64_t batch_size = 1;  // of all parts together; divisible by parts
  int64_t parts = 1;
  int64_t first_part = 0;
  int64_t num_parts = 1;
  bool training = true;
  int64_t start = 0;  // the cursor of the first step; evaluation: the first sample
  bool channels_last = true;
  // Of the images that the model reads, where those of the data set may have other sizes; 0: they
  // are as large as the data set and the options say. A crop outranks them.
  int64_t height = 0, width = 0;
};

struct LoaderStats {
  int threads = 0;                 // at work now
  double wait_seconds = 0;         // next() and fetch() had to wait, all calls together
  int64_t batches = 0;             // handed out, fetched ones included
  int64_t bad_samples = 0;         // distinct samples left out, those at opening included
  std::vector<BadItem> bad_items;  // the first few
};

// Reads, decodes, augments and assembles batches ahead of the caller.
//
// The bytes of a sample depend on the dataset, the options and (seed, epoch, sample) only, and
// which samples a batch holds on (seed, cursor, batch size, part): not on the number of threads, on
// which loader makes it, or on where the run was restarted. Opening at any cursor costs the same.
//
// Training: batches come without end, step by step, with the parts of each step in order. If the
// rest of an epoch is too small for a step, it is dropped. Evaluation: one sequential pass in the
// dataset's order. The last batch may be short, parts without samples are not delivered, and
// nullptr follows.
//
// A bad sample throws at its batch, with its file and offset. With on_bad_sample = "skip" it is
// counted instead; in training the next good sample of the dataset takes its place, in evaluation
// its batch is shorter. This holds for next() and fetch() alike. An error of next() is final until
// restart(); one of fetch() leaves the stream as it was.
//
// Threads: one consumer thread calls next(), fetch() and restart(); any thread may call the rest.
// Worker threads run at most `prefetch` batches ahead. With threads = 0 there is one worker thread
// at first, and more, up to the number of cores, are added while the consumer has to wait.
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

  // The batch of exactly these dataset indices in this order, augmented as in `epoch`: each sample
  // has the bytes that the stream gives it there. Indices may repeat; none give an empty batch. The
  // worker threads make it before they go on with the stream, whose batches stay the same. Throws
  // invalid_argument for an index outside the dataset or a negative epoch.
  std::shared_ptr<const Batch> fetch(std::span<const int64_t> indices, int64_t epoch);

  // The dataset indices at positions [first, first + count) of an epoch, that is Permutation with
  // the task's seed, or the dataset's order without loader.shuffle and in evaluation. It is how a
  // caller finds what to fetch: a coming step's samples are at samples_of_step(...).first on.
  // Throws invalid_argument for positions outside the epoch.
  std::vector<int64_t> indices_of(int64_t epoch, int64_t first, int64_t count) const;

  // Continues at `cursor` with steps of `batch_size`, whatever was prefetched. This costs nothing
  // if the next batch is the right one already; otherwise the prefetched batches are discarded,
  // after a wait for the few samples that are being decoded. The threads stay. Throws
  // invalid_argument, and changes nothing, for a batch size or cursor that does not fit.
  void restart(int64_t cursor, int64_t batch_size);

  // [C, H, W] after crop, or [T]; of several inputs that of the first.
  Shape sample_shape() const;
  LoaderStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::data
