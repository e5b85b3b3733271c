// Lists of a store that pages are made of, and how its jobs are numbered.
#include "ductile/cluster/store.h"

namespace ductile::cluster {

JobId Reader::last_job() {
  return database_.integer("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'", 0);
}

void Change::number_jobs_after(JobId last) {
  if (database_.integer("SELECT count(*) FROM sqlite_sequence WHERE name = 'jobs'", 0) > 0)
    fail(ErrorCode::conflict, "jobs were numbered before");
  database_.run("INSERT INTO sqlite_sequence (name, seq) VALUES ('jobs', ?)", last);
}

std::map<JobId, std::vector<Holding>> Reader::all_holdings() {
  std::map<JobId, std::vector<Holding>> out;
  database_.query("SELECT job, node, devices FROM holdings ORDER BY job, node",
                  [&](const Row& row) {
                    out[row.integer(0)].push_back({row.text(1), row.integer(2)});
                  });
  return out;
}

std::vector<Event> Reader::allocation_events(Revision after, int64_t limit) {
  std::vector<Event> out;
  database_.query(
      "SELECT seq, time, job, kind, body FROM events WHERE seq > ? AND job IS NOT NULL AND kind IN "
      "('allocation', 'queued', 'paused', 'finished', 'failed', 'cancelled') "
      "ORDER BY seq LIMIT ?",
      [&](const Row& row) {
        out.push_back({row.integer(0), row.real(1), row.integer(2), row.text(3), row.text(4)});
      },
      after, limit);
  return out;
}

void Reader::for_each_owner(const std::function<void(const JobOwner&)>& look) {
  database_.query("SELECT id, team, tier, owner, phase FROM jobs ORDER BY id", [&](const Row& row) {
    look({row.integer(0), row.text(1), row.text(2), row.text(3), phase_from(row.text(4))});
  });
}

}  // namespace ductile::cluster
