// Runs that the store does not know: it was lost, or is an older copy.
#include <string>
#include <utility>

#include <fmt/format.h>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/log.h"
#include "ductile/cluster/command_impl.h"
#include "ductile/cluster/service_impl.h"

namespace ductile::cluster {

// A store that was lost, or put back as it was earlier, leaves its runs. The jobs of this one go on
// behind their numbers, so that nobody takes a job for another one by its number or its run
// directory.
void Service::Impl::count_beyond_old_runs() {
  const JobId known = reader_.last_job(), last = last_run_in(runs_.path);
  if (last <= known) return;
  const std::string text =
      known > 0
          ? behind_text(runs_.path, known, last)
          : fmt::format(
                "the store is new, and {} has runs of an earlier one, up to job {}: those jobs are "
                "not known here, and the first new one is job {}. If the earlier store was moved "
                "away by mistake, stop the service, put it back and start again; `ductile train "
                "--resume RUN` goes on with a run",
                runs_.path.string(), last, last + 1);
  log_line(text);
  try {
    queue_.commit(
        [known, last, body = dump_json(nlohmann::json{{"reason", text}})](Change& change) {
          change.number_jobs_after(last);
          change.record(0, known > 0 ? "old_store" : "new_store", body, wall_seconds());
        });
  } catch (const Error& error) {  // then run directories alone tell the jobs apart
    if (error.code() != ErrorCode::unavailable) throw;
    log_line(fmt::format("store: {}; its jobs are numbered from {}", error.what(), known + 1));
  }
}

// A job goes on with the run that is its own, and one that is done is not run again.
void Service::Impl::recall_run(JobRecord& record) {
  if (const fs::path run = forgotten_run(runs_.path, record); !run.empty()) {
    record.run = run.string();
    log_line(fmt::format(
        "job {} ({}) has never begun by the store, which is an older copy, and its run {} is "
        "there: it goes on with that one, and is finished if that is",
        record.id, record.submission.name, record.run));
    writer_.write([id = record.id, run = record.run](Change& change) {
      change.set_run(id, run, wall_seconds());
    });
  }
  recall_command(record);
}

// A command that may run although it waits by the store, which is an older copy. It has no devices
// by the store, and others may have those that it uses: go_on() lets it end in good order, and it
// waits for its turn, unless it has ended by itself. What its user wants comes after that.
void Service::Impl::recall_command(JobRecord& record) {
  if (record.phase == Phase::running || record.run.empty() || record.submission.kind != "command")
    return;
  try {
    const fs::path run = runs_.path / fs::path(record.run).filename();
    const auto orders = read_orders(run);
    if (!orders || !may_run(*orders, look_at_attempt(run))) return;
  } catch (const Error&) {  // which its runner says when it begins
    return;
  }
  const bool was_paused = std::exchange(record.phase, Phase::running) == Phase::paused;
  record.reason = "It may still run, although by the store, an older copy, it waits: it is ended.";
  log_line(fmt::format("job {} ({}): {}", record.id, record.submission.name, record.reason));
  writer_.write([id = record.id, reason = record.reason, was_paused](Change& change) {
    const double now = wall_seconds();
    if (was_paused) change.set_phase(id, Phase::queued, reason, now);
    change.set_phase(id, Phase::running, reason, now);
  });
}

}  // namespace ductile::cluster
