#pragma once

#include <memory>
#include <span>
#include <string>

#include "ductile/base/files.h"
#include "ductile/ckpt/import.h"
#include "ductile/process/zygote.h"

namespace ductile::cli {

// What is wanted of files of weights from elsewhere.
struct WeightsImport {
  std::string prefix = {};  // of the tensors that are taken
  std::string key = {};     // of the state_dict in a file of torch.save(); empty: it is found
  std::string interpreter =
      {};  // the Python that reads such a file; empty: as find_interpreter() does
  std::shared_ptr<process::Zygote> zygote = {};  // of that Python; forks the one that reads it
};

// Makes one file of weights as a job may begin with (ckpt/import.h). A file is recognised by its
// contents: one that torch.save() wrote is read by a Python with torch, which takes tensors and
// plain containers from it and runs nothing that it holds. Throws what that Python reports, and the
// errors of ckpt::import_weights().
ckpt::Imported import_weights(std::span<const fs::path> files, const WeightsImport& how,
                              const fs::path& out);

}  // namespace ductile::cli
