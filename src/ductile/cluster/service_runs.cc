// Runs that the store does not know: it was lost, or is an older copy.
#include <charconv>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/log.h"
#include "ductile/cluster/command_impl.h"
#include "ductile/cluster/service_impl.h"
#include "ductile/cluster/store_check.h"

namespace ductile::cluster {
namespace {

// What an attempt by these orders holds; nothing where they do not say so.
std::vector<Holding> held_by(const KeeperOrders& orders) {
  for (const auto& [name, value] : orders.command.environment) {
    int64_t devices = 0;
    if (name == "DUCTILE_DEVICES")
      std::from_chars(value.data(), value.data() + value.size(), devices);
    if (devices > 0) return {{orders.node, devices}};
  }
  return {};
}

}  // namespace

// Once, by a service that has begun: it is a store of its own from then on. One that could not
// begin, as where its port is taken, leaves that to the next.
void Service::Impl::tell_of_backup() {
  const std::string made = reader_.memory(kBackupMark);
  if (made.empty()) return;
  const std::string text = backup_text(made);
  log_line(text);
  try {
    queue_.commit([body = dump_json(nlohmann::json{{"reason", text}})](Change& change) {
      change.forget_memory(kBackupMark);
      change.record(0, "old_store", body, wall_seconds());
    });
  } catch (const Error& error) {  // then the next service says it again
    if (error.code() != ErrorCode::unavailable) throw;
  }
}

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

// A command that may run although it waits by the store, which is an older copy. From here on it
// counts as one that ran when the last service ended: go_on() keeps it where its devices are given
// to nobody else by the store and its user wants it, and lets it end in good order where not.
void Service::Impl::recall_command(JobRecord& record) {
  if (record.phase == Phase::running || record.run.empty() || record.submission.kind != "command")
    return;
  std::vector<Holding> held;
  try {
    const fs::path run = runs_.path / fs::path(record.run).filename();
    const auto orders = read_orders(run);
    if (!orders || !may_run(*orders, look_at_attempt(run))) return;
    held = held_by(*orders);
  } catch (const Error&) {  // which its runner says when it begins
    return;
  }
  const std::string why =
      "It may have run on, although it waited by the store, which is an older copy.";
  log_line(fmt::format("job {} ({}): {}", record.id, record.submission.name, why));
  try {
    queue_.commit([&](Change& change) {
      const double now = wall_seconds();
      if (record.phase == Phase::paused) change.set_phase(record.id, Phase::queued, why, now);
      change.set_phase(record.id, Phase::running, why, now);
      if (!held.empty()) change.set_holdings(record.id, held, why, now);
    });
  } catch (const Error& error) {  // then it is found when the job begins
    if (error.code() != ErrorCode::unavailable) throw;
    return log_line(fmt::format("store: {}", error.what()));
  }
  record.phase = Phase::running;
  record.reason = why;
}

}  // namespace ductile::cluster
