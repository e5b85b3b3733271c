#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/ckpt/checkpoint.h"

namespace ductile::ckpt {

// The checkpoint of that step, or without one the newest sound one; `refused` then gets what
// open_latest() skipped. Throws not_found if there is none, data_loss if none is sound, naming the
// newest and why.
Checkpoint open_checkpoint(const fs::path& folder, std::optional<int64_t> step,
                           std::vector<std::string>& refused);

// What `ductile ckpt list`, `show` and `verify` print with --json, and the Python module returns.

// One row for each: step, bytes, tensors, chunks, and `error` where the manifest is refused.
nlohmann::ordered_json to_json(const std::vector<CheckpointSummary>& found);
// Step, digest, bytes, tensors (name, dtype, shape, bytes), state. It reads all of the checkpoint,
// for the digest, and throws as Checkpoint::read does.
nlohmann::ordered_json to_json(const Checkpoint& checkpoint);
nlohmann::ordered_json to_json(const VerifyResult& result);

// A row for each tensor of a file.
nlohmann::ordered_json to_json(const std::vector<TensorInfo>& tensors);

}  // namespace ductile::ckpt
