// Lists of a store that people and pages ask for, and how its jobs and events are numbered.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "ductile/cluster/store.h"
#include "ductile/cluster/store_rows_impl.h"

namespace ductile::cluster {
namespace {

// As SQLite's GLOB takes it, to which brackets mean something, too. Its time grows with the lengths
// of pattern and name, and not with what stars could stand for: where a later star finds nothing,
// no earlier one is tried further.
std::string glob_of(const std::string& pattern) {
  std::string out;
  for (const char c : pattern) out += c == '[' ? std::string("[[]") : std::string(1, c);
  return out;
}

// "phase IN ('queued', 'running')".
std::string one_of(const std::vector<Phase>& phases) {
  std::vector<std::string> words;
  for (const Phase phase : phases) words.push_back(fmt::format("'{}'", to_string(phase)));
  return fmt::format("phase IN ({})", fmt::join(words, ", "));
}

// All that are there, each looked up behind the last one, so that this takes as long as there are
// names and not jobs.
std::vector<std::string> names_in(Database& database, std::string_view column) {
  constexpr int64_t kMost = 100;
  std::vector<std::string> out;
  database.query(
      fmt::format("WITH RECURSIVE each (x) AS (SELECT min({0}) FROM jobs UNION ALL SELECT (SELECT "
                  "min({0}) FROM jobs WHERE {0} > x) FROM each WHERE x IS NOT NULL) SELECT x FROM "
                  "each WHERE x IS NOT NULL AND x <> '' LIMIT ?",
                  column),
      [&](const Row& row) { out.push_back(row.text(0)); }, kMost);
  return out;
}

}  // namespace

// What is narrowed in one way has an index of its own. All else goes over the one that has every
// column which lists are narrowed by, in their order, and reads the jobs that it lists alone. One
// text of SQL per set of filters, so that each is prepared once; an absent one takes an argument,
// too.
std::vector<JobRecord> Reader::jobs(const JobFilter& filter, JobId before, int64_t limit) {
  std::vector<Phase> phases = filter.phases;
  if (filter.live) std::erase_if(phases, has_ended);
  if (phases.empty() && !filter.phases.empty()) return {};
  std::ranges::sort(phases);
  phases.erase(std::ranges::unique(phases).begin(), phases.end());
  const size_t given = static_cast<size_t>(filter.name.has_value()) +
                       static_cast<size_t>(filter.owner.has_value()) +
                       static_cast<size_t>(filter.team.has_value()) + phases.size();
  const bool indexed = given <= 1 && !filter.pattern && !filter.part;
  std::string where = indexed       ? ""
                      : filter.live ? "INDEXED BY jobs_live "
                                    : "INDEXED BY jobs_listed ";
  where += "WHERE id < ?";
  if (filter.live) where += " AND ended IS NULL";
  if (!phases.empty()) where += " AND " + one_of(phases);
  const auto condition = [&](const char* text, bool is_given) {
    where += is_given ? text : " AND ? = ''";
  };
  condition(" AND name = ?", filter.name.has_value());
  condition(" AND owner = ?", filter.owner.has_value());
  condition(" AND team = ?", filter.team.has_value());
  condition(" AND name GLOB ?", filter.pattern.has_value());
  condition(" AND instr(lower(name || char(10) || owner || char(10) || team), lower(?)) > 0",
            filter.part.has_value());
  where += " ORDER BY id DESC LIMIT ?";
  if (!indexed) where = fmt::format("WHERE id IN (SELECT id FROM jobs {}) ORDER BY id DESC", where);
  std::vector<JobRecord> out;
  database_.query(
      select_jobs(where), [&](const Row& row) { out.push_back(job_of(row)); },
      before > 0 ? before : INT64_MAX, filter.name.value_or(""), filter.owner.value_or(""),
      filter.team.value_or(""), filter.pattern ? glob_of(*filter.pattern) : "",
      filter.part.value_or(""), limit);
  return out;
}

std::vector<std::string> Reader::owners() { return names_in(database_, "owner"); }

std::vector<std::string> Reader::teams() { return names_in(database_, "team"); }

std::vector<EarlierJob> Reader::awaited_by(JobId job) {
  std::vector<EarlierJob> out;
  database_.query(
      "SELECT earlier, name, phase FROM waits LEFT JOIN jobs ON id = earlier WHERE job = ? ORDER "
      "BY earlier",
      [&](const Row& row) {
        EarlierJob& one = out.emplace_back(EarlierJob{row.integer(0), "", {}});
        if (row.is_null(1)) return;
        one.name = row.text(1);
        one.phase = phase_from(row.text(2));
      },
      job);
  return out;
}

std::set<JobId> Reader::finished_before(std::vector<JobId> jobs) {
  std::set<JobId> out;
  while (!jobs.empty()) {
    const JobId next = jobs.back();
    jobs.pop_back();
    if (!out.insert(next).second) continue;
    for (const EarlierJob& earlier : awaited_by(next)) jobs.push_back(earlier.id);
  }
  return out;
}

JobId Reader::last_job() {
  return database_.integer("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'", 0);
}

Revision Reader::last_event() {
  return database_.integer("SELECT seq FROM sqlite_sequence WHERE name = 'events'", 0);
}

// Whoever waited for what follows an event of another store would wait for as long as that was
// older, and then miss what this one has counted meanwhile.
void Reader::require_event(Revision known) {
  const Revision last = last_event();
  if (known <= last) return;
  Gone gone(0, fmt::format("event {} is none of this store, whose last one is {}: the store was "
                           "lost, or put back as it was before; begin after {}",
                           known, last, last));
  gone.begin = last;
  throw gone;
}

void require_no_array(std::string_view text, const std::vector<std::string>& names) {
  const std::string begin = std::string(text) + "-";
  const auto of_array = [&](const std::string& name) {
    return name.size() > begin.size() && name.starts_with(begin) &&
           name.find_first_not_of("0123456789", begin.size()) == std::string::npos;
  };
  if (std::ranges::none_of(names, of_array)) return;
  fail(ErrorCode::not_found,
       "there is no job \"{0}\", but jobs of an array of that name, such as \"{1}\": '{0}-*' names "
       "all of them that have not ended",
       text, *std::ranges::find_if(names, of_array));
}

bool Reader::knows_runs() {
  return database_.integer("SELECT EXISTS (SELECT 1 FROM jobs WHERE run <> '')", 0) > 0;
}

std::vector<std::string> Reader::newest_runs(int64_t limit) {
  std::vector<std::string> out;
  database_.query(
      "SELECT run FROM jobs WHERE run <> '' ORDER BY id DESC LIMIT ?",
      [&](const Row& row) { out.push_back(row.text(0)); }, limit);
  return out;
}

void Change::number_jobs_after(JobId last) {
  database_.run("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'jobs'", last);
  if (database_.changed_rows() == 0)
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
