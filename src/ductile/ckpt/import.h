#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ductile/base/files.h"

namespace ductile::ckpt {

struct Imported {
  int64_t tensors = 0;
  int64_t values = 0;
  int64_t left_out = 0;   // tensors whose names do not begin with the prefix
  int64_t converted = 0;  // tensors of another floating-point type than fp32
};

// Makes one file of weights, as a job may begin with (model.weights), of safetensors files from
// elsewhere, such as the shards of one model. Floating-point values become fp32; whole numbers stay
// as they are. With a `prefix` only the tensors whose names begin with it are taken, without it.
// The file gets the digest that Ductile's own files have.
//
// Files may come from anyone. Throws data_loss for a damaged one; invalid_argument, naming file and
// tensor, for a name that occurs twice, a type that Ductile does not have, a value of fp64 that
// fp32 does not have, and if no tensor is left; unavailable if `out` cannot be written, and then
// leaves what was there.
Imported import_weights(std::span<const fs::path> files, const std::string& prefix,
                        const fs::path& out);

}  // namespace ductile::ckpt
