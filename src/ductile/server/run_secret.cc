#include "ductile/server/run_secret.h"

#include <cstdint>
#include <string>
#include <system_error>

#include "ductile/base/error.h"
#include "ductile/base/paths.h"
#include "ductile/link/saved_state.h"
#include "ductile/link/worker_processes.h"
#include "ductile/run/runs_mark.h"
#include "ductile/server/agent_protocol_impl.h"
#include "ductile/server/hosts.h"
#include "ductile/server/job_host.h"

namespace ductile::server {
namespace {

// A secret file without content knows nothing that could be lost, but workers that live may know
// what was in it: a new one would make strangers of them.
void remove_empty(const fs::path& run, const fs::path& file) {
  if (const auto workers = link::workers_of(run); !workers.empty())
    fail(ErrorCode::conflict,
         "{}: is empty, and a worker of this run is alive (process {}); end it (kill {}), then "
         "resume",
         file.string(), workers.front(), workers.front());
  if (kind_of(link::state_file(run)) != FileKind::none && !load_host_setup(run).hosts.empty())
    fail(
        ErrorCode::conflict,
        "{}: is empty, and workers of this run may be alive on its hosts; see that none is, remove "
        "the file, then resume",
        file.string());
  fs::remove(file);
}

fs::path folder_of(const fs::path& run) {
  return run.has_parent_path() ? run.parent_path() : fs::path(".");
}

std::string secret_text(const fs::path& run) {
  try {
    return read_text(run / "secret");
  } catch (const Error&) {
    return "";
  }
}

}  // namespace

net::Secret secret_of(const fs::path& run) {
  const fs::path file = run / "secret";
  std::error_code error;
  if (fs::file_size(file, error) == 0 && !error) remove_empty(run, file);
  if (kind_of(file) == FileKind::none) net::Secret::create_file(file);
  return net::Secret::from_file(file);
}

RunMark mark_of(const fs::path& run) {
  RunMark out{secret_text(run), ""};
  try {
    out.runs = run::runs_mark(folder_of(run));
  } catch (const Error&) {  // then the folder counts as the same as long as it is there
  }
  return out;
}

void require_run(const fs::path& run, const RunMark& mark) {
  const fs::path runs = folder_of(run);
  const auto is_run = [&] {
    const std::string now = secret_text(run);
    return kind_of(run / "job.toml") != FileKind::none && (now.empty() || now == mark.secret);
  };
  bool is_there = true, is_other = false;
  try {
    if (is_run()) return;
    is_there = kind_of(runs) != FileKind::none;
    if (is_there && is_run()) return;  // its disk has come between the two looks
    is_other = is_there && !mark.runs.empty() && run::is_another_folder(runs, mark.runs);
  } catch (const Error&) {
    return;
  }
  if (is_other)
    fail(ErrorCode::unavailable,
         "{0}: the run's folder is not there, and {1} is another folder than the one that it lay "
         "in, as where an empty disk, or another one, is mounted in place of the right one; the "
         "workers were ended: mount the right disk, and go on (ductile train --resume {0})",
         run.string(), runs.string());
  if (!is_there)
    fail(ErrorCode::unavailable,
         "{0}: neither the run's folder nor the one that it lies in, {1}, is there now, as where "
         "their disk is not mounted, and the workers were ended: mount the disk or put the folders "
         "back, and go on (ductile train --resume {0})",
         run.string(), runs.string());
  fail(ErrorCode::data_loss,
       "{0}: the run's folder was deleted or moved away while it was in training, and its workers "
       "were ended: put it back and go on (ductile train --resume {0}), or start the job again",
       run.string());
}

}  // namespace ductile::server
