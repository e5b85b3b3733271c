#pragma once

#include <string>
#include <string_view>

#include "ductile/base/files.h"

// The run directory: everything one training run leaves behind, and how it is laid out.
namespace ductile::run {

// A handle on one run directory: `<runs>/<name>-YYYYmmdd-HHMMSS[-n]`. Only paths; it holds nothing
// open and may be copied and shared freely.
//
//   job.toml       the resolved job          metrics.jsonl  numbers by step
//   worker.log     what the worker said      tensorboard/   the same numbers as event files
//   events.jsonl   what happened, and when   checkpoints/   restorable states
//   report.html    all of it, for people
class RunFolder {
 public:
  // Makes a new folder under `runs` (made as well where missing), with `checkpoints/`,
  // `tensorboard/` and `job` as job.toml in it, and points the symbolic link `<runs>/latest` at it.
  // Safe when several processes create at once: each gets a folder of its own. Characters of the
  // job's name that do not belong in a file name become '-'. Throws unavailable (disk full, no
  // permission); then no folder is left.
  static RunFolder create(const fs::path& runs, std::string_view job_name,
                          std::string_view job = "");
  // The same under a path of the user's choice, and without a link. Throws conflict where something
  // is there already.
  static RunFolder create_at(const fs::path& path, std::string_view job);

  // An existing run, by its folder or a link to it (`runs/latest`); links are resolved now, so a
  // later run does not move this handle. Throws not_found where there is none.
  static RunFolder open(const fs::path& path);

  // Removes what a process that was killed inside a write has left of the files that only the
  // holder of the run's lock writes (run/lock.h); that one calls it. Best effort.
  void remove_leftovers() const;

  const fs::path& path() const { return path_; }
  std::string name() const { return path_.filename().string(); }
  fs::path job_file() const { return path_ / "job.toml"; }
  fs::path events_file() const { return path_ / "events.jsonl"; }
  fs::path metrics_file() const { return path_ / "metrics.jsonl"; }
  fs::path log_file() const { return path_ / "worker.log"; }
  fs::path report_file() const { return path_ / "report.html"; }
  fs::path checkpoints() const { return path_ / "checkpoints"; }
  fs::path tensorboard() const { return path_ / "tensorboard"; }

 private:
  explicit RunFolder(fs::path path) : path_(std::move(path)) {}
  static RunFolder fill(const fs::path& path, std::string_view job);

  fs::path path_;
};

// A job's name as part of a file name: letters, digits, '.', '_' and '-' stay, runs of others
// become one '-', no leading dot or dash, at most 80 characters, never empty.
std::string file_name_of(std::string_view job_name);

}  // namespace ductile::run
