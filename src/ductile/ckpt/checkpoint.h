#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/tensor.h"

// Reading checkpoints. A checkpoint folder holds
//
//   chunks/ab/abcdef...            content-addressed pieces, named by their xxh3-128
//   manifests/step-000000000123.json   one per checkpoint: step, state, tensors, chunks, a hash
//   tmp/                           what a save has not finished; worthless after a crash
//   lock                           held by the one process that saves
//
// A checkpoint exists when its manifest does: the manifest is renamed into place after all its
// chunks are durable; nothing is ever changed in place.
namespace ductile::ckpt {

// One checkpoint, opened. Cheap to copy (copies share it). Its manifest has been checked; chunks
// are checked at every read. Stays readable as long as the writer keeps the checkpoint. All methods
// may be called from several threads.
class Checkpoint {
 public:
  // Throws not_found, data_loss (naming the file), conflict for a format of a newer program, or
  // unavailable where the file cannot be read now. Does not read the chunks.
  static Checkpoint open(const fs::path& folder, int64_t step);

  int64_t step() const;
  const nlohmann::json& state() const;
  const std::vector<TensorInfo>& tensors() const;       // in stream order
  const TensorInfo* find(std::string_view name) const;  // null when there is none
  int64_t total_bytes() const;

  // Reads the whole tensor into exactly num_bytes bytes. Throws not_found; invalid_argument for a
  // wrong size; and, naming the chunk file, data_loss if it is damaged or missing and unavailable
  // if it cannot be read now. `into` is then undefined.
  void read(std::string_view name, std::span<std::byte> into) const;
  // Reads bytes [offset, offset + into.size()) of the tensor, for a layout other than the saved
  // one.
  void read_range(std::string_view name, int64_t offset, std::span<std::byte> into) const;

  // Reads every chunk once. Throws data_loss, or unavailable, naming the first bad file.
  void verify() const;

 private:
  struct Impl;
  explicit Checkpoint(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<const Impl> impl_;
};

struct LatestResult {
  std::optional<Checkpoint> checkpoint;
  std::vector<std::string> refused;  // newer ones that were skipped: "step-...: why"
};

// The newest checkpoint whose manifest and every chunk verify. If one is damaged or incomplete, the
// one before it is tried. If the folder does not exist or has no checkpoint, there is no result and
// no error. It throws rather than lose work silently: conflict for a checkpoint of a newer format,
// and unavailable for one that cannot be read now (no descriptors, no permission, a failing disk),
// which does not mean that its bytes are bad. It may run while a writer saves.
LatestResult open_latest(const fs::path& folder);

struct CheckpointSummary {
  int64_t step = 0;
  int64_t total_bytes = 0;
  int64_t num_tensors = 0;
  int64_t num_chunks = 0;
  std::string error;  // why the manifest is refused; empty for a sound one
  // The kind of `error`: data_loss for a damaged manifest, unavailable for one that cannot be read
  // now.
  ErrorCode error_code = ErrorCode::internal;
};

// Newest first; looks at manifests, not at chunks.
std::vector<CheckpointSummary> list(const fs::path& folder);

struct VerifyResult {
  std::vector<int64_t> good;         // steps, newest first
  std::vector<std::string> refused;  // "step-...: why", newest first
  int64_t num_chunks = 0;            // files looked at
  int64_t chunk_bytes = 0;           // their sizes together
  int64_t unused_chunks = 0;         // that no good checkpoint needs
  int64_t temporaries = 0;           // left by a crash, or being written now

  bool ok() const { return refused.empty(); }
};

// Reads everything. Changes nothing; may run while a writer saves.
VerifyResult verify(const fs::path& folder);

// Keeps the `keep` (>= 1) newest complete checkpoints and removes everything else: other manifests,
// chunks that no kept checkpoint needs, leftovers. Removes nothing when no checkpoint is complete.
// Returns the bytes freed. Throws conflict while a process saves into the folder, or when it holds
// checkpoints of a newer format. A crash at any point leaves what is kept intact.
int64_t collect_garbage(const fs::path& folder, int64_t keep);

// Removes the files of saves that nobody will publish or finish; checkpoints and their chunks stay.
// Call it when no process saves any more. Throws conflict while one saves, and unavailable if the
// disk fails.
void remove_leftovers(const fs::path& folder);

}  // namespace ductile::ckpt
