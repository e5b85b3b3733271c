// What is out of sight was not deleted: the folder of the runs is known by its mark.
#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <sys/stat.h>

#include "ductile/base/error.h"
#include "ductile/base/log.h"
#include "ductile/cluster/runs_folder_impl.h"
#include "ductile/cluster/service.h"
#include "ductile/cluster/store.h"
#include "ductile/cluster/store_check.h"
#include "ductile/net/secret.h"
#include "ductile/page/terminal.h"
#include "ductile/run/folder.h"
#include "ductile/run/runs_mark.h"

namespace ductile::cluster {
namespace {

// A mark in a folder that has none; that of another store, which was lost, stays. Whoever cannot
// write one goes on without.
std::string marked(const fs::path& runs) try {
  if (std::string found = run::runs_mark(runs); !found.empty()) return found;
  const std::string mark = net::to_hex(net::random_nonce()).substr(0, 16);
  write_file_atomic(run::runs_mark_file(runs), mark + "\n");
  return mark;
} catch (const Error& error) {
  log_line(fmt::format("{}; another disk in its place would not be noticed", error.what()));
  return "";
}

// What each run has from its beginning: of a training job, of a command.
constexpr const char* kFirstFiles[] = {"job.toml", "orders.json"};

// The run of a job, and not only what a process that lost its folder has made in its place.
bool is_run(const fs::path& run) {
  std::error_code unknown;
  return std::ranges::any_of(kFirstFiles,
                             [&](const char* file) { return fs::exists(run / file, unknown); });
}

// Also one that answers requests for another run.
bool was_begun(const fs::path& run) {
  std::error_code unknown;
  return is_run(run) || fs::exists(run / "membership.json", unknown);
}

bool is_known_there(const RunsFolder& runs, Reader& reader) {
  constexpr int64_t kNewest = 100;
  return std::ranges::any_of(reader.newest_runs(kNewest), [&](const std::string& run) {
    return is_run(runs.path / fs::path(run).filename());
  });
}

// What may be wrong with how the service was started; empty: nothing is.
std::string other_shared(const RunsFolder& runs) {
  if (runs.before.empty()) return "";
  return fmt::format(
      "the newest run of this store was in {}, so the service may have been started without "
      "--shared, or with another one than before: start it with --shared {}; else ",
      runs.before.string(), page::shell_word(runs.before.parent_path().string()));
}

// What stands in the mark's place, of a folder that is there. Empty: the right one.
std::string strangeness_of(const RunsFolder& runs) {
  const std::string path = runs.path.string(), file = run::runs_mark_file(runs.path).string();
  const std::string remedy = fmt::format(
      "{}mount the right disk, and the jobs go on; if this is the right one, or the runs are lost "
      "for good, echo {} > {}, and jobs whose runs are not there begin anew",
      other_shared(runs), runs.mark, file);
  try {
    const std::string found = run::runs_mark(runs.path);
    if (found == runs.mark) return "";
    if (found.empty())
      return fmt::format(
          "The folder of the runs {} is another one than before, since it has no mark {}, as where "
          "an empty disk is mounted in place of the right one: {}",
          path, file, remedy);
    return fmt::format(
        "The folder of the runs {} is another one than before, since its mark {} is {} and not {}, "
        "as where another disk is mounted in place of the right one: {}",
        path, file, found, runs.mark, remedy);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data_loss) return "";  // it cannot be seen now
    return fmt::format("The mark of the folder of the runs is damaged, {}: {}", error.what(),
                       remedy);
  }
}

}  // namespace

RunsFolder runs_of(const ServiceOptions& options, Reader& reader) {
  RunsFolder out{(options.shared.empty() ? options.folder : options.shared) / "runs", ""};
  const bool knows_runs = reader.knows_runs();
  if (knows_runs) {
    out.mark = reader.memory(kRunsMark);
    for (const std::string& run : reader.newest_runs(1)) out.before = fs::path(run).parent_path();
    if (out.before == out.path) out.before.clear();
    if (!restore_mark(out, reader)) require_folder_of_runs(out);
    out.before.clear();
  }
  std::error_code error;
  fs::create_directories(out.path, error);
  if (error) fail_errno(out.path.string() + ": the service keeps its runs there", error.value());
  if (out.mark.empty()) out.mark = marked(out.path);
  return out;
}

std::string absence_of_runs(const RunsFolder& runs, const fs::path& run) {
  std::error_code unknown;
  const bool is_there = fs::exists(runs.path, unknown);
  if (unknown) return "";
  if (!is_there)
    return fmt::format(
        "The folder of the runs {0} is not there, as where its disk is not mounted: {2}mount the "
        "disk or put the folder back, and the jobs go on; if the runs are lost for good, mkdir "
        "{0}{1}, and they begin anew",
        runs.path.string(),
        runs.mark.empty()
            ? ""
            : fmt::format(" && echo {} > {}", runs.mark, run::runs_mark_file(runs.path).string()),
        other_shared(runs));
  if (runs.mark.empty()) return "";
  const bool is_marked = fs::exists(run::runs_mark_file(runs.path), unknown) || unknown;
  if (!is_marked && !run.empty() && is_run(run)) return "";
  return strangeness_of(runs);
}

void require_folder_of_runs(const RunsFolder& runs, const fs::path& run) {
  if (const std::string absence = absence_of_runs(runs, run); !absence.empty())
    fail(ErrorCode::unavailable, "{}", absence);
}

JobId last_run_in(const fs::path& runs) {
  constexpr JobId kMost = 1'000'000'000'000;  // what is larger was made by nobody's job
  JobId last = 0;
  std::error_code error;
  for (fs::directory_iterator it(runs, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    JobId id = 0;
    const auto [rest, wrong] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (wrong == std::errc() && rest != name.data() + name.size() && *rest == '-' && id <= kMost &&
        id > last && was_begun(it->path()))
      last = id;
  }
  return last;
}

std::string name_of_run(const JobRecord& job) {
  return fmt::format("{}-{}", job.id, run::file_name_of(job.submission.name));
}

fs::path forgotten_run(const fs::path& runs, const JobRecord& job) {
  constexpr double kRounded = 2;  // seconds that a file system may round a time by
  if (!job.run.empty() || job.submission.kind == "serve") return {};
  const fs::path run = runs / name_of_run(job);
  const char* file = job.submission.kind == "command" ? "orders.json" : "job.toml";
  struct stat made {};
  if (::stat((run / file).c_str(), &made) != 0) return {};
  return static_cast<double>(made.st_mtim.tv_sec) + kRounded < job.submitted ? fs::path() : run;
}

std::string behind_text(const fs::path& runs, JobId known, JobId there) {
  return fmt::format(
      "the store knows jobs up to {}, and {} has runs up to job {}: the store is an older copy, as "
      "store.db is without its store.db-wal, and what happened since is not known here. If there "
      "is a newer one, stop the service, put it back with its -wal and start again; else new jobs "
      "are numbered from {} on, and `ductile train --resume RUN` goes on with a run that no job "
      "has; {}",
      known, runs.string(), there, there + 1, kForgotten);
}

bool restore_mark(const RunsFolder& runs, Reader& reader) try {
  if (runs.mark.empty() || !run::runs_mark(runs.path).empty() || !is_known_there(runs, reader))
    return false;
  write_file_atomic(run::runs_mark_file(runs.path), runs.mark + "\n");
  log_line(fmt::format("{} was missing beside the runs, and was written again",
                       run::runs_mark_file(runs.path).string()));
  return true;
} catch (const Error&) {  // it cannot be read, or written, now
  return false;
}

}  // namespace ductile::cluster
