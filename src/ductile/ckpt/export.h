#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/ckpt/checkpoint.h"

namespace ductile::ckpt {

// The name a tensor of a checkpoint gets in the exported file; empty to leave it out.
using ExportName = std::function<std::string(std::string_view name)>;

// A tensor of a checkpoint, times a factor.
struct ExportTerm {
  std::string tensor;
  double factor = 1;
};
// The terms, all fp32 and of one shape, whose sum is exported in place of a tensor; none where the
// tensor itself is.
using ExportSum = std::function<std::vector<ExportTerm>(std::string_view name)>;

// Writes tensors of a checkpoint as a safetensors file, atomically, with the step in its metadata;
// needs little memory whatever the size. Throws data_loss naming the chunk that does not verify,
// invalid_argument when two tensors get one name, unavailable when the file cannot be written.
void export_safetensors(const Checkpoint& checkpoint, const ExportName& rename,
                        const fs::path& file, const ExportSum& sum = {});

}  // namespace ductile::ckpt
