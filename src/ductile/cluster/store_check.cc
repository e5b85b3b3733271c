#include "ductile/cluster/store_check.h"

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/cluster/runs_folder_impl.h"
#include "ductile/cluster/schema.h"
#include "ductile/cluster/store.h"

namespace ductile::cluster {
namespace {

constexpr int64_t kPage = 1000;

// Who holds what by the events, which the ledger is made of; that of a job that holds nothing is
// not there.
std::map<JobId, std::vector<Holding>> holdings_by_events(Reader& reader,
                                                         std::vector<std::string>& faults) {
  std::map<JobId, std::vector<Holding>> out;
  Revision seen = 0;
  while (true) {
    const std::vector<Event> events = reader.allocation_events(seen, kPage);
    for (const Event& event : events) {
      seen = event.seq;
      out.erase(event.job);
      if (event.kind != "allocation") continue;
      const auto body = parse_json(event.body);
      if (!body.is_object() || !body.contains("nodes") || !body["nodes"].is_object()) {
        faults.push_back(fmt::format("event {}: an allocation that names no nodes", event.seq));
        continue;
      }
      for (const auto& [node, devices] : body["nodes"].items())
        if (devices.is_number_integer() && devices.get<int64_t>() > 0)
          out[event.job].push_back({node, devices.get<int64_t>()});
    }
    if (static_cast<int64_t>(events.size()) < kPage) return out;
  }
}

void check_ledger(Reader& reader, std::vector<std::string>& faults) {
  auto told = holdings_by_events(reader, faults);
  const auto held = reader.all_holdings();
  for (const auto& [job, holdings] : held) {
    if (told[job] != holdings)
      faults.push_back(fmt::format("job {}: holds other devices than its last event says", job));
  }
  for (const auto& [job, holdings] : told) {
    if (!holdings.empty() && !held.contains(job))
      faults.push_back(
          fmt::format("job {}: holds nothing, and its last event says that it does", job));
  }
}

// Runs of which the store does not know: it is an older copy. What is there is looked at first, and
// the store as it is after that, since a service may run.
void check_age(Reader& reader, const fs::path& folder, StoreReport& report) {
  if (const std::string made = reader.memory(kBackupMark); !made.empty())
    report.notes.push_back(backup_text(made));
  fs::path runs = folder / "runs";
  for (const std::string& newest : reader.newest_runs(1)) runs = fs::path(newest).parent_path();
  const JobId there = last_run_in(runs), known = reader.last_job();
  if (there > known) report.losses.push_back(behind_text(runs, known, there));
  report.is_behind = there > known;
  for (const JobRecord& job : reader.live_jobs()) {
    const fs::path run = forgotten_run(runs, job);
    if (run.empty()) continue;
    const auto now = reader.job_if_kept(job.id);  // it may just have begun
    if (!now || !now->run.empty() || has_ended(now->phase)) continue;
    report.is_behind = true;
    report.losses.push_back(fmt::format(
        "job {} ({}) is {} and has never begun, and its run {} is there: the store is an older "
        "copy; the next service goes on with that run, and the job is finished if that is",
        job.id, job.submission.name, to_string(now->phase), run.string()));
  }
}

// A job and the run directory that its record names.
struct NamedRun {
  JobId id;
  std::string name, run;
};

std::vector<NamedRun> count_jobs(Reader& reader, StoreReport& report) {
  std::vector<NamedRun> out;
  for (JobId before = 0;;) {
    const std::vector<JobRecord> jobs = reader.jobs({}, before, kPage);
    for (const JobRecord& job : jobs) {
      ++report.jobs;
      if (!has_ended(job.phase)) ++report.live;
      if (!job.run.empty()) out.push_back({job.id, job.submission.name, job.run});
    }
    if (static_cast<int64_t>(jobs.size()) < kPage) return out;
    before = jobs.back().id;
  }
}

// The store says that a job runs before its run directory is made.
bool may_not_have_made_its_run(const JobRecord& job) {
  constexpr double kBegins = 120;
  return job.started && std::abs(wall_seconds() - *job.started) < kBegins;
}

// The store may have changed since it was read, so that what is missing is missing by what it says
// now.
void note_missing_run(Reader& reader, const NamedRun& named, StoreReport& report) {
  const auto gone = [&](Phase phase) {
    return fmt::format("job {} ({}) is {}: its run directory {} is not there", named.id, named.name,
                       to_string(phase), named.run);
  };
  const auto job = reader.job_if_kept(named.id);
  if (!job) return;
  if (has_ended(job->phase))
    report.notes.push_back(gone(job->phase));
  else if (may_not_have_made_its_run(*job))
    report.notes.push_back(gone(job->phase) +
                           "; it first began within the last two minutes, and may not have made it "
                           "yet: look again");
  else
    report.losses.push_back(gone(job->phase) +
                            "; put it back, or cancel the job: it would begin from the start");
}

void check_runs(Reader& reader, const std::vector<NamedRun>& runs, StoreReport& report) {
  const std::string mark = reader.memory(kRunsMark);
  std::set<std::string> absences;
  for (const NamedRun& named : runs) {
    std::error_code ignored;
    if (fs::is_directory(named.run, ignored)) continue;
    const std::string absence = absence_of_runs({fs::path(named.run).parent_path(), mark});
    if (absence.empty())
      note_missing_run(reader, named, report);
    else if (absences.insert(absence).second)
      report.losses.push_back(absence);
  }
}

// All of it as it is at one moment, since a service may write it: what jobs hold and the events
// that say so would else be of two. Directories are looked at after that, as they may be slow, and
// the store's log grows as long as its moment is kept.
std::vector<NamedRun> check_contents(Reader& reader, StoreReport& report) {
  const auto at_once = reader.at_once();
  report.events = reader.count_events();
  report.faults = reader.check();
  check_ledger(reader, report.faults);
  return count_jobs(reader, report);
}

}  // namespace

StoreReport check_store(const fs::path& folder) {
  StoreReport out;
  out.file = folder / "store.db";
  std::error_code ignored;
  if (!fs::exists(out.file, ignored))
    fail(ErrorCode::not_found,
         "{}: there is no store; --check takes the folder of a service, such as "
         "~/.local/state/ductile",
         out.file.string());
  Reader reader(out.file);
  out.schema = newest_schema();  // a Reader takes no other
  try {
    const std::vector<NamedRun> runs = check_contents(reader, out);
    check_runs(reader, runs, out);
    check_age(reader, folder, out);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data_loss) throw;
    out.faults.push_back(error.what());
  }
  if (!out.faults.empty())
    out.remedy = fmt::format(
        "stop the service, keep a copy of {0} with the files {0}-wal and {0}-shm, and put back a "
        "backup, or what `sqlite3 {0} .recover` can still read; the runs are not in the store, and "
        "`ductile train --resume` goes on with each of them",
        out.file.string());
  return out;
}

}  // namespace ductile::cluster
