#pragma once

#include <string>
#include <string_view>

#include "ductile/base/files.h"

// The run directory: everything one training run leaves behind, and how it is laid out.
namespace ductile::run {

// A handle on one run directory: `<runs>/<name>-YYYYmmdd-HHMMSS[-n]`. It has only paths, keeps no
// file open, and may be copied and shared freely.
//
//   job.toml       the resolved job          metrics.jsonl  numbers by step
//   worker.log     what the worker printed   tensorboard/   the same numbers as event files
//   events.jsonl   what happened, and when   checkpoints/   restorable states
//   report.html    all of it, for people     minima.jsonl   sharpness, where it was measured
//   plan.json      a pipeline's plan         trace.jsonl    its recorded steps, and trace.json
class RunFolder {
 public:
  // Creates a new folder under `runs` (and `runs` itself if it is missing), with `checkpoints/`,
  // `tensorboard/` and `job` as job.toml in it, and points the symbolic link `<runs>/latest` to it.
  // Several processes may do so at once: each gets a folder of its own. Characters of the job's
  // name that do not belong in a file name become '-'. Throws unavailable (disk full, no
  // permission), and then leaves no folder.
  static RunFolder create(const fs::path& runs, std::string_view job_name,
                          std::string_view job = "");
  // The same under a path that somebody chose, and without a link. Throws conflict if something is
  // there already, and not_found if the folder that it is to lie in is not there.
  static RunFolder create_at(const fs::path& path, std::string_view job);

  // An existing run, by its folder or a link to it (`runs/latest`). Links are resolved now, so a
  // later run does not move this handle. Throws not_found if there is none, or if
  // it is a session of `ductile tune`.
  static RunFolder open(const fs::path& path);

  // Removes what a process that was killed during a write has left of the files that only the
  // holder of the run's lock writes (run/lock.h). That holder calls it. Failures are ignored.
  void remove_leftovers() const;

  const fs::path& path() const { return path_; }
  std::string name() const { return path_.filename().string(); }
  fs::path job_file() const { return path_ / "job.toml"; }
  fs::path events_file() const { return path_ / "events.jsonl"; }
  fs::path metrics_file() const { return path_ / "metrics.jsonl"; }
  fs::path batch_file() const { return path_ / "batch.json"; }    // train/batch_orders.h
  fs::path replay_file() const { return path_ / "replay.json"; }  // which run this one repeats
  fs::path log_file() const { return path_ / "worker.log"; }
  fs::path model_file() const { return path_ / "model.safetensors"; }
  fs::path report_file() const { return path_ / "report.html"; }
  fs::path checkpoints() const { return path_ / "checkpoints"; }
  fs::path tensorboard() const { return path_ / "tensorboard"; }

 private:
  explicit RunFolder(fs::path path) : path_(std::move(path)) {}

  fs::path path_;
};

// A job's name as part of a file name. Letters, digits, '.', '_' and '-' stay; each run of other
// characters becomes one '-'. It has no leading dot or dash, at most 80 characters, and is never
// empty.
std::string file_name_of(std::string_view job_name);

}  // namespace ductile::run
