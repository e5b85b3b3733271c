#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ductile/base/files.h"
#include "ductile/ckpt/disk.h"

// Checkpoints that one process writes and another one makes count, for jobs whose writers may be
// replaced and wake up later. A writer (WriterOptions::pending_tag) leaves
//
//   pending/step-000000000123.TAG.json   a complete manifest that nobody reads as a checkpoint
//   tmp/step-000000000123.TAG.json       the same while its chunks are still being written
//
// and holds no lock; publish() renames the first into manifests/. A writer that sleeps for hours
// can leave garbage but no checkpoint, and blocks nobody.
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

// Makes the pending checkpoint of `step`, which the writer with this `tag` left, the newest one. It
// is durable when publish() returns. Calling it again is harmless, also after a crash in the
// middle.
//
// Then removes what is no longer needed: checkpoints of earlier steps beyond the `keep` newest
// (never one of a later step), pending ones of this step and before, unfinished saves of this step
// and before, and chunks that are named by no manifest that is kept, pending or being written. If a
// save still loses a chunk, it is refused here when it is to be published, and the next save writes
// the chunk again.
//
// Throws not_found if no such checkpoint was written; data_loss if its manifest or a chunk is
// missing or torn; conflict while another process publishes or saves with the folder's lock;
// unavailable if the disk fails. After a throw the checkpoint does not count, unless it had counted
// before, or the disk also failed to undo the publication.
PublishResult publish(const fs::path& folder, int64_t step, std::string_view tag,
                      const PublishOptions& options = {});

}  // namespace ductile::ckpt
