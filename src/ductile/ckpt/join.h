#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/disk.h"
#include "ductile/ckpt/tensor.h"

// Checkpoints that several workers write together: each saves some of the tensors under a tag of
// its own (WriterOptions::pending_tag), and one of them makes a whole of these parts. A part is a
// pending checkpoint that nobody publishes (publish.h); publishing the whole removes it.
namespace ductile::ckpt {

// Elements [begin, begin + its own number) of a tensor that several parts hold together. In its
// part it is a tensor of its own, and apart (TensorView).
struct TensorPiece {
  std::string name, of;
  Shape shape;  // of the whole
  int64_t begin = 0;
};
// What a part is to be saved with as its state, that join_parts() knows its pieces.
nlohmann::json state_of_part(std::span<const TensorPiece> pieces);

// Whether the parts that the writers with these tags have of `step` are all durable.
bool parts_are_there(const fs::path& folder, int64_t step, std::span<const std::string> tags);

// Leaves a durable checkpoint of `step` under `tag`, which does not count until publish(): all
// tensors of these parts, which are `num_tensors`, one part after the other, then those of which
// parts hold pieces, and `state`. It is whole by itself, and no tensor is read or written. Returns
// the bytes of its tensors. Throws not_found if a part is missing, data_loss if its manifest is
// damaged or one of its chunks is missing or torn, conflict if two parts hold the same tensor or
// piece, or some are in none, and unavailable if the disk fails.
int64_t join_parts(const fs::path& folder, int64_t step, std::span<const std::string> tags,
                   int64_t num_tensors, std::string_view tag, const nlohmann::json& state,
                   Disk* disk = nullptr);

}  // namespace ductile::ckpt
