#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "ductile/base/files.h"
#include "ductile/ckpt/checkpoint.h"

namespace ductile::ckpt {

// The name a tensor of a checkpoint gets in the exported file; empty to leave it out.
using ExportName = std::function<std::string(std::string_view name)>;

// Writes tensors of a checkpoint as a safetensors file, atomically, with the step in its metadata;
// needs little memory whatever the size. Throws data_loss naming the chunk that does not verify,
// invalid_argument when two tensors get one name, unavailable when the file cannot be written.
void export_safetensors(const Checkpoint& checkpoint, const ExportName& rename,
                        const fs::path& file);

}  // namespace ductile::ckpt
