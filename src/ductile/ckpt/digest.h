#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/tensor.h"

namespace ductile::ckpt {

// A hash of a job's whole state after `step`: of each tensor's name, type, shape and bytes, and of
// the values, except "job" (the options, some of which only affect speed), "cost", and
// "metric_line" (what is to be written down of the steps before), which are not part of the state.
// Two runs have the same digest if they have the same state to the bit, whatever workers, kills and
// resumes led there. 32 hexadecimal digits (xxh3-128).
std::string state_digest(int64_t step, const nlohmann::json& values,
                         std::span<const TensorView> tensors);
// A hash of tensors alone, in the same form: of weights.
std::string tensors_digest(std::span<const TensorView> tensors);
// Both of tensors that are fetched in pieces of at most 1 MiB, in the order of their names, each
// from front to back. Throw what `read` throws.
std::string state_digest(int64_t step, const nlohmann::json& values,
                         std::span<const TensorInfo> tensors, const TensorReader& read);
std::string tensors_digest(std::span<const TensorInfo> tensors, const TensorReader& read);
// The first one for a checkpoint; it reads all of it. Throws as Checkpoint::read does.
std::string state_digest(const Checkpoint& checkpoint);

}  // namespace ductile::ckpt
