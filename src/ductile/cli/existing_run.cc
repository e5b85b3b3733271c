#include "ductile/cli/existing_run.h"

#include <nlohmann/json.hpp>

#include "ductile/base/error.h"
#include "ductile/base/paths.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/run/diary.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/lock.h"
#include "ductile/run/new_folder.h"

namespace ductile::cli {
namespace {

// Whether the run's record ends with a failure.
bool has_failed(const fs::path& run) {
  bool out = false;
  try {
    run::for_each_diary_line(run / "events.jsonl", [&](const nlohmann::json& line) {
      const nlohmann::json kind = line.value("kind", nlohmann::json());
      if (kind == "end") out = line.value("status", nlohmann::json()) == "failed";
      if (kind == "start" || kind == "resume") out = false;
    });
  } catch (const Error&) {
    return false;
  }
  return out;
}

}  // namespace

void refuse_existing(const fs::path& out) {
  if (run::may_become_run(out))
    fail(ErrorCode::conflict,
         "--out {}: exists already, and another process may be making a run there; name another, "
         "or remove it where none is",
         out.string());
  if (kind_of(out / "job.toml") == FileKind::none)
    fail(ErrorCode::conflict, "--out {}: exists already, and is no run; remove it, or name another",
         out.string());
  if (kind_of(out / "tune.json") != FileKind::none)
    fail(
        ErrorCode::conflict,
        "--out {0}: a tuning session, which `ductile tune --resume {0}` goes on with; name another "
        "folder",
        out.string());
  // A job that was refused at its first step is refused again. Without its failure in the record
  // the run may be another host's, which has not saved yet.
  if (has_failed(out) && ckpt::list(out / "checkpoints").empty() && !run::lock_holder(out) &&
      kind_of(out / "model.safetensors") == FileKind::none)
    fail(ErrorCode::conflict,
         "--out {0}: exists already, and has no checkpoint; remove it, name another folder, or go "
         "on with `ductile train --resume {0}`, which takes the job of {0}/job.toml",
         out.string());
  fail(ErrorCode::conflict,
       "--out {0}: exists already; name another folder, or go on with `ductile train --resume {0}`",
       out.string());
}

}  // namespace ductile::cli
