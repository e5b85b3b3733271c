#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/tensor.h"

namespace ductile::ckpt {

// A hash of a job's whole state after `step`: of each tensor's name, type, shape and bytes, and of
// the values, but for what does not belong to the state: "job" (the options, some of which only
// shape speed) and "cost". Two runs have the same digest where they hold the same state to the bit,
// whatever number of workers, kills and resumes led there. 32 hexadecimal digits (xxh3-128).
std::string state_digest(int64_t step, const nlohmann::json& values,
                         std::span<const TensorView> tensors);
// The same of a checkpoint; reads all of it. Throws as Checkpoint::read does.
std::string state_digest(const Checkpoint& checkpoint);

}  // namespace ductile::ckpt
