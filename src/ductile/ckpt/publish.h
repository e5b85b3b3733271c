#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ductile/base/files.h"
#include "ductile/ckpt/disk.h"

// Checkpoints that are written by one process and made to count by another: for jobs whose writers
// are replaced, and may wake up after that. A writer (WriterOptions::pending) leaves
//
//   pending/step-000000000123.TAG.json   a complete manifest that nobody reads as a checkpoint
//   tmp/step-000000000123.TAG.json       the same while its chunks are still being written
//
// and holds no lock; publish() renames the first into manifests/. A writer that sleeps for hours
// can leave garbage, never a checkpoint, and stops nobody.
namespace ductile::ckpt {

struct PublishOptions {
  int64_t keep = 2;      // checkpoints that stay, the new one among them, >= 1
  Disk* disk = nullptr;  // the real one when null
};

struct PublishResult {
  bool was_published = false;  // it counted already: nothing was renamed
  int64_t freed_bytes = 0;
  std::string warning;  // it counts, but what is no longer needed could not be removed
};

// Makes the pending checkpoint of `step` that the writer with this `tag` left the newest one:
// durable when it returns. Doing it again is harmless, also after a crash in the middle.
//
// Then removes what is no longer needed: checkpoints of earlier steps beyond the `keep` newest
// (never one of a later step), pending ones of this step and before, unfinished saves of this step
// and before, and chunks that nothing kept, pending or being written names. A save that
// loses a chunk all the same is refused here when its turn comes; the next one writes it anew.
//
// Throws not_found where no such checkpoint was written; data_loss where its manifest or a chunk is
// missing or torn; conflict while another process publishes or saves with the folder's lock;
// unavailable where the disk fails. After a throw it does not count, unless it had counted before,
// or the disk refused to take it back, too.
PublishResult publish(const fs::path& folder, int64_t step, std::string_view tag,
                      const PublishOptions& options = {});

}  // namespace ductile::ckpt
