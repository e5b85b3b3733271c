// What a store forgets, and how it remembers that it was there.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "ductile/cluster/database.h"
#include "ductile/cluster/store.h"

namespace ductile::cluster {
namespace {

// Its number joins those beside it that were removed on the same day, so that what was removed
// takes a row for each gap and each day at most.
void note_removed(Database& database, JobId id, double now) {
  constexpr double kDay = 86400;
  const auto same_day = [&](double time) {
    return std::floor(time / kDay) == std::floor(now / kDay);
  };
  JobId first = id, last = id;
  database.query(
      "SELECT first, last, time FROM removed_jobs WHERE first < ? ORDER BY first DESC LIMIT 1",
      [&](const Row& row) {
        if (row.integer(1) == id - 1 && same_day(row.real(2))) first = row.integer(0);
      },
      id);
  database.query(
      "SELECT last, time FROM removed_jobs WHERE first = ?",
      [&](const Row& row) {
        if (same_day(row.real(1))) last = row.integer(0);
      },
      id + 1);
  if (last != id) database.run("DELETE FROM removed_jobs WHERE first = ?", id + 1);
  database.run("INSERT OR REPLACE INTO removed_jobs (first, last, time) VALUES (?, ?, ?)", first,
               last, now);
}

struct Count {
  int64_t rows = 0;
  Revision event = 0;  // the newest that was removed
};

void remove_job(Database& database, JobId id, double now, Count& count) {
  count.event =
      std::max(count.event, database.integer("SELECT max(seq) FROM events WHERE job = ?", 0, id));
  for (const char* sql : {"DELETE FROM events WHERE job = ?", "DELETE FROM holdings WHERE job = ?",
                          "DELETE FROM waits WHERE job = ?", "DELETE FROM specs WHERE job = ?",
                          "DELETE FROM jobs WHERE id = ?"}) {
    database.run(sql, id);
    count.rows += database.changed_rows();
  }
  note_removed(database, id, now);
}

// The answers beyond the newest ones that are kept, from the oldest on, about `most` of them. How
// many were removed. Whoever sends a request again does so within minutes.
int64_t remove_answers(Database& database, int64_t kept, double now, int64_t most) {
  constexpr double kSoonest = 600;
  std::optional<double> last, part;
  database.query(
      "SELECT time FROM requests ORDER BY time DESC LIMIT 1 OFFSET ?",
      [&](const Row& row) { last = row.real(0); }, kept);
  if (!last) return 0;
  database.query(
      "SELECT time FROM requests ORDER BY time LIMIT 1 OFFSET ?",
      [&](const Row& row) { part = row.real(0); }, most - 1);
  database.run("DELETE FROM requests WHERE time <= ?",
               std::min({*last, now - kSoonest, part.value_or(*last)}));
  return database.changed_rows();
}

}  // namespace

bool Change::prune(const Retention& retention, double now, int64_t most) {
  const double before = retention.seconds > 0 ? now - retention.seconds : -1;
  int64_t too_many = 0;
  if (retention.jobs > 0)
    too_many =
        database_.integer("SELECT count(*) FROM jobs WHERE ended IS NOT NULL", 0) - retention.jobs;
  std::vector<JobId> jobs;
  database_.query(
      "SELECT id, ended FROM jobs WHERE ended IS NOT NULL ORDER BY ended, id LIMIT ?",
      [&](const Row& row) {
        if (static_cast<int64_t>(jobs.size()) < too_many || row.real(1) < before)
          jobs.push_back(row.integer(0));
      },
      most);
  Count count;
  for (const JobId id : jobs) {
    if (count.rows >= most) break;
    remove_job(database_, id, now, count);
  }
  if (count.rows < most && before >= 0) {
    std::vector<Revision> events;
    // The event that is a job's revision stays as long as the job.
    database_.query(
        "SELECT seq FROM events INDEXED BY passing_events WHERE time < ? AND (job IS NULL OR kind "
        "IN ('speed', 'load', 'serving', 'reason')) AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = "
        "events.job AND revision = events.seq) ORDER BY time LIMIT ?",
        [&](const Row& row) { events.push_back(row.integer(0)); }, before, most);
    for (const Revision seq : events) {
      database_.run("DELETE FROM events WHERE seq = ?", seq);
      count.event = std::max(count.event, seq);
    }
    count.rows += static_cast<int64_t>(events.size());
  }
  if (count.event > 0)
    database_.run(
        "INSERT INTO removed_events (one, event, time) VALUES (1, ?, ?) ON CONFLICT (one) DO "
        "UPDATE SET event = max(event, excluded.event), time = excluded.time",
        count.event, now);
  const int64_t answers =
      retention.answers > 0 ? remove_answers(database_, retention.answers, now, most) : 0;
  return count.rows >= most || answers >= most;
}

}  // namespace ductile::cluster
