#include "ductile/cli/weights_import.h"

#include <fstream>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/paths.h"
#include "ductile/cli/python_job.h"
#include "ductile/cli/work_folder.h"
#include "ductile/cli/worker_process.h"
#include "ductile/process/worker.h"

namespace ductile::cli {
namespace {

// What torch.save() writes is a zip file, or in old versions a pickle. A safetensors file may begin
// with the same bytes, which are the length of its header; the header follows.
bool is_of_torch(const fs::path& file) {
  char begin[9] = {};
  std::ifstream(file, std::ios::binary).read(begin, sizeof begin);
  if (begin[8] == '{') return false;
  return (begin[0] == 'P' && begin[1] == 'K') || begin[0] == '\x80';
}

void convert(const fs::path& file, const WeightsImport& how, const fs::path& out) {
  WorkerQuestion question;
  question.program = process::python_worker(process::find_worker());
  question.arguments = {"--interpreter",  find_interpreter(how.interpreter),
                        "--read-weights", fs::absolute(file).string(),
                        "--to",           out.string(),
                        "--key",          how.key};
  question.zygote = how.zygote;
  if (!ask_worker(question))
    fail(ErrorCode::unavailable, "{}: interrupted while it was read", file.string());
}

}  // namespace

ckpt::Imported import_weights(std::span<const fs::path> files, const WeightsImport& how,
                              const fs::path& out) {
  const WorkFolder folder;
  std::vector<fs::path> read;
  for (const fs::path& file : files) {
    if (kind_of(file) == FileKind::none)
      fail(ErrorCode::not_found, "{}: no such file", file.string());
    if (kind_of(file) != FileKind::file)
      fail(ErrorCode::invalid_argument, "{}: is no file", file.string());
    read.push_back(file);
    if (!is_of_torch(file)) continue;
    read.back() = folder.path() / fmt::format("{}.safetensors", read.size());
    convert(file, how, read.back());
  }
  return ckpt::import_weights(read, how.prefix, out);
}

}  // namespace ductile::cli
