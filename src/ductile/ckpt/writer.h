#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/disk.h"
#include "ductile/ckpt/tensor.h"

namespace ductile::ckpt {

struct WriterOptions {
  int64_t keep = 2;  // checkpoints that stay, >= 1
  // A multiple of 4096, at most 2^30. 0: chosen by the size of the state (about a 64th of it, 256
  // KiB to 4 MiB), so that chunks are small enough to find what did not change, and few enough to
  // fsync.
  int64_t chunk_bytes = 0;
  int nice = 10;  // of the writing thread, 0 (as the trainer) to 19 (only what others leave)
  // The step from which training continues, if it was resumed: checkpoints of later steps were
  // refused or given up. They do not count for `keep`, and each is removed only when a save of a
  // later step than its own is durable.
  std::optional<int64_t> resumed_step;
  // If not empty, save() leaves a durable checkpoint under this tag, which does not count until
  // publish() (publish.h) makes it count. No other writer of this folder may ever have the same
  // tag. Such a writer holds no lock and removes only its own leftovers, so any number of them may
  // work at once; the publisher takes care of `keep` and `resumed_step`.
  std::string pending_tag;
  // The copy of the state stays in memory from save to save. Without it each save gets its memory
  // anew, which takes a little longer, and gives it back when it is durable, or has failed.
  bool keep_memory = true;
  Disk* disk = nullptr;  // the real one when null; outlives the writer
};

struct SaveResult {
  int64_t step = 0;
  int64_t total_bytes = 0;   // of all tensors
  int64_t new_bytes = 0;     // in chunks that had to be written
  int64_t reused_bytes = 0;  // in chunks that were there, or twice in this checkpoint
  int64_t new_chunks = 0;
  int64_t reused_chunks = 0;
  int64_t freed_bytes = 0;   // by removing what is no longer kept
  double wait_seconds = 0;   // save() waited for the save before this one
  double copy_seconds = 0;   // save() copied; with wait_seconds, all that training noticed
  double write_seconds = 0;  // the background thread, from start to durable and cleaned
  double write_cpu_seconds = 0;
  int64_t parts = 1;    // that several workers wrote of it (join.h)
  std::string error;    // why the checkpoint was not written; empty when it was
  std::string warning;  // it was written, but older ones could not be cleaned away
};

// Saves checkpoints into one folder (layout: checkpoint.h), at most one at a time, from a
// background thread. What was durable stays usable through every failure and crash; a save that
// fails leaves the folder as it was and the writer usable. The folder's older checkpoints are
// removed only when a newer one is durable. Saving step s also removes checkpoints of steps above
// s: they belong to a history that was given up.
//
// The writer holds the folder's lock for its whole life, except with pending_tag, when it holds
// none. One thread at a time may call its methods.
class CheckpointWriter {
 public:
  // Makes the folder. Throws conflict when another process saves into it or a newer program did,
  // invalid_argument for impossible options, unavailable when the folder cannot be used.
  explicit CheckpointWriter(fs::path folder, WriterOptions options = {});
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter();  // waits for the save under way

  // Allocates, in the background, the memory into which save() copies such tensors, so that the
  // first save blocks no longer than later ones. If there is too little memory, that save throws.
  void prepare(std::span<const TensorView> tensors);

  // Waits for the previous save, copies the tensors, and returns; hashing and writing follow in the
  // background. `state` is any JSON value (text must be UTF-8; not-a-number becomes null). Throws
  // invalid_argument for a bad argument and unavailable if there is no memory for the copy.
  // Failures of the previous save are reported by wait() and take_result().
  void save(int64_t step, const nlohmann::json& state, std::span<const TensorView> tensors);

  // Whether save() would start at once.
  bool idle() const;

  // Waits until the last save is durable. Throws, once, the error of a failed save.
  void wait();

  // The oldest finished save, failed ones included, that was not taken yet.
  std::optional<SaveResult> take_result();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::ckpt
