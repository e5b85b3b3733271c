#include "ductile/cluster/store.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/table.h"
#include "ductile/cluster/lock_impl.h"
#include "ductile/cluster/schema.h"
#include "ductile/cluster/store_rows_impl.h"
#include "ductile/page/numbers.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kJobColumns =
    "id, name, owner, team, tier, kind, min_devices, max_devices, phase, wish, reason, run, "
    "submitted, started, ended, generation, revision, region, transfer, movable, held_by, "
    "exit_code";

}  // namespace

std::string select_jobs(std::string_view rest) {
  return fmt::format("SELECT {} FROM jobs {}", kJobColumns, rest);
}

JobRecord job_of(const Row& row) try {
  JobRecord out;
  int c = 0;
  out.id = row.integer(c++);
  Submission& s = out.submission;
  for (std::string* text : {&s.name, &s.owner, &s.team, &s.tier, &s.kind}) *text = row.text(c++);
  s.min_devices = row.integer(c++);
  s.max_devices = row.integer(c++);
  out.phase = phase_from(row.text(c++));
  out.wish = wish_from(row.text(c++));
  out.reason = row.text(c++);
  out.run = row.text(c++);
  out.submitted = row.real(c++);
  for (std::optional<double>* time : {&out.started, &out.ended}) {
    if (!row.is_null(c)) *time = row.real(c);
    ++c;
  }
  out.generation = row.integer(c++);
  out.revision = row.integer(c++);
  s.region = row.text(c++);
  s.transfer = row.real(c++);
  s.movable = row.integer(c++) != 0;
  out.held_by = row.text(c++);
  if (!row.is_null(c)) out.exit_code = row.integer(c);
  return out;
} catch (const Error& error) {  // a word that nobody wrote there
  fail(ErrorCode::data_loss, "job {}: its row is damaged: {}", row.integer(0), error.what());
}

namespace {

void require_never_removed(Database& database, JobId id) {
  database.query(
      "SELECT time FROM removed_jobs WHERE first <= ? AND last >= ? ORDER BY first DESC LIMIT 1",
      [&](const Row& row) {
        const double time = row.real(0);
        throw Gone(time, fmt::format("job {} had ended, and was removed from the store; since {} "
                                     "it is not there any more, but its run directory may be",
                                     id, page::local_time(time)));
      },
      id, id);
}

JobRecord read_job(Database& database, JobId id) {
  std::optional<JobRecord> found;
  database.query(
      select_jobs("WHERE id = ?"), [&](const Row& row) { found = job_of(row); }, id);
  if (!found) require_never_removed(database, id);
  if (!found) fail(ErrorCode::not_found, "there is no job {}", id);
  return *std::move(found);
}

}  // namespace

Reader::Reader(const fs::path& file, const char* vfs)
    : database_(file, Database::Access::read, vfs) {
  require_newest_schema(database_);
}

JobRecord Reader::job(JobId id) { return read_job(database_, id); }

std::string Reader::spec(JobId id) {
  std::optional<std::string> found;
  database_.query(
      "SELECT spec FROM specs WHERE job = ?", [&](const Row& row) { found = row.text(0); }, id);
  if (!found) fail(ErrorCode::not_found, "there is no job {}", id);
  return *std::move(found);
}

JobRecord Reader::find(std::string_view text) {
  JobId id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  const bool number = error == std::errc() && end == text.data() + text.size();
  std::optional<JobRecord> found;
  const auto take = [&](const Row& row) { found = job_of(row); };
  if (number) database_.query(select_jobs("WHERE id = ?"), take, id);
  // Each has its index: many jobs may have one name.
  for (const char* which : {"WHERE name = ? AND ended IS NULL ORDER BY id DESC LIMIT 1",
                            "WHERE name = ? ORDER BY id DESC LIMIT 1"}) {
    if (!found) database_.query(select_jobs(which), take, text);
  }
  if (found) return *std::move(found);
  std::vector<std::string> names;
  database_.query("SELECT DISTINCT name FROM jobs WHERE ended IS NULL ORDER BY id DESC LIMIT 1000",
                  [&](const Row& row) { names.push_back(row.text(0)); });
  const auto nearest = nearest_name(text, names);
  if (number) require_never_removed(database_, id);
  if (number) fail(ErrorCode::not_found, "there is no job {}", text);
  require_no_array(text, names);
  fail(ErrorCode::not_found, "there is no job \"{}\"{}", text,
       nearest ? fmt::format("; did you mean \"{}\"?", *nearest) : "");
}

std::vector<JobRecord> Reader::live_jobs() {
  std::vector<JobRecord> out;
  database_.query(select_jobs("WHERE ended IS NULL ORDER BY id"),
                  [&](const Row& row) { out.push_back(job_of(row)); });
  return out;
}

std::map<Phase, int64_t> Reader::count_by_phase() {
  std::map<Phase, int64_t> out;
  database_.query("SELECT phase, count(*) FROM jobs GROUP BY phase",
                  [&](const Row& row) { out[phase_from(row.text(0))] = row.integer(1); });
  return out;
}

std::vector<Event> Reader::events(Revision after, int64_t limit, std::optional<JobId> job) {
  std::vector<Event> out;
  const auto add = [&](const Row& row) {
    out.push_back({row.integer(0), row.real(1), row.integer(2), row.text(3), row.text(4)});
  };
  if (job) {
    database_.query(
        "SELECT seq, time, job, kind, body FROM events WHERE job = ? AND seq > ? ORDER BY seq "
        "LIMIT ?",
        add, *job, after, limit);
  } else {
    database_.query(
        "SELECT seq, time, job, kind, body FROM events WHERE seq > ? ORDER BY seq LIMIT ?", add,
        after, limit);
  }
  return out;
}

std::vector<Event> Reader::whole_events(Revision& after, int64_t limit) {
  const Revision begin = after > 0 ? after : removed_events();
  std::vector<Event> out = events(begin, limit);
  require_events_after(begin);
  require_event(begin);
  after = begin;
  return out;
}

std::vector<Event> Reader::newest_events(int64_t count, std::optional<JobId> job) {
  std::vector<Event> out;
  const auto add = [&](const Row& row) {
    out.push_back({row.integer(0), row.real(1), row.integer(2), row.text(3), row.text(4)});
  };
  if (job) {
    database_.query(
        "SELECT seq, time, job, kind, body FROM events WHERE job = ? ORDER BY seq DESC LIMIT ?",
        add, *job, count);
  } else {
    database_.query("SELECT seq, time, job, kind, body FROM events ORDER BY seq DESC LIMIT ?", add,
                    count);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

int64_t Reader::count_events() { return database_.integer("SELECT count(*) FROM events", 0); }

std::optional<JobRecord> Reader::job_if_kept(JobId id) try { return job(id); } catch (const Gone&) {
  return std::nullopt;
}

Revision Reader::removed_events() {
  return database_.integer("SELECT event FROM removed_events", 0);
}

void Reader::require_events_after(Revision after) {
  database_.query(
      "SELECT event, time FROM removed_events WHERE event > ?",
      [&](const Row& row) {
        Gone gone(row.real(1), fmt::format("not all events after {} are kept, since those of jobs "
                                           "that ended long ago are removed; begin after {}",
                                           after, row.integer(0)));
        gone.begin = row.integer(0);
        throw gone;
      },
      after);
}

std::vector<Holding> Reader::holdings(JobId job) {
  std::vector<Holding> out;
  database_.query(
      "SELECT node, devices FROM holdings WHERE job = ? ORDER BY node",
      [&](const Row& row) {
        out.push_back({row.text(0), row.integer(1)});
      },
      job);
  return out;
}

std::vector<Holder> Reader::holders() {
  std::vector<Holder> out;
  database_.query(
      "SELECT job, name, team, tier, node, devices FROM holdings JOIN jobs ON id = job "
      "ORDER BY job, node",
      [&](const Row& row) {
        out.push_back(
            {row.integer(0), row.text(1), row.text(2), row.text(3), row.text(4), row.integer(5)});
      });
  return out;
}

std::vector<Drain> Reader::drains() {
  std::vector<Drain> out;
  database_.query("SELECT node, time, reason, starts, ends FROM drains ORDER BY node",
                  [&](const Row& row) {
                    Drain drain{row.text(0), row.real(1), row.text(2), row.real(3), {}};
                    if (!row.is_null(4)) drain.ends = row.real(4);
                    out.push_back(std::move(drain));
                  });
  return out;
}

std::vector<NodeRecord> Reader::nodes() {
  std::vector<NodeRecord> out;
  database_.query(
      "SELECT node, type, devices, state, why, since, region FROM nodes ORDER BY place",
      [&](const Row& row) {
        out.push_back({row.text(0), row.text(1), row.integer(2), node_state_from(row.text(3)),
                       row.text(4), row.real(5), row.text(6)});
      });
  return out;
}

std::string Reader::memory(std::string_view name) {
  std::string value;
  database_.query(
      "SELECT value FROM memory WHERE name = ?", [&](const Row& row) { value = row.text(0); },
      name);
  return value;
}

std::vector<std::string> Reader::check() {
  std::vector<std::string> out;
  const auto each = [&](const char* sql, auto&& say) {
    database_.query(sql, [&](const Row& row) { out.push_back(say(row)); });
  };
  database_.query("PRAGMA integrity_check(20)", [&](const Row& row) {
    if (row.text(0) != "ok") out.push_back("SQLite: " + row.text(0));
  });
  each("PRAGMA foreign_key_check", [](const Row& row) {
    return fmt::format("a row of {} is of a job that is not there", row.text(0));
  });
  each(
      "SELECT id, revision FROM jobs WHERE NOT EXISTS "
      "(SELECT 1 FROM events WHERE seq = revision AND job = id)",
      [](const Row& row) {
        return fmt::format("job {}: event {}, which changed it last, is not its own",
                           row.integer(0), row.integer(1));
      });
  each(
      "SELECT id FROM jobs WHERE NOT EXISTS "
      "(SELECT 1 FROM events WHERE job = id AND kind = 'submitted')",
      [](const Row& row) {
        return fmt::format("job {}: has no event that submitted it", row.integer(0));
      });
  each("SELECT id FROM jobs WHERE NOT EXISTS (SELECT 1 FROM specs WHERE job = id)",
       [](const Row& row) { return fmt::format("job {}: its spec is lost", row.integer(0)); });
  each("SELECT id FROM jobs JOIN removed_jobs ON id BETWEEN first AND last", [](const Row& row) {
    return fmt::format("job {}: is there, and is said to be removed", row.integer(0));
  });
  each(
      "SELECT DISTINCT id, phase FROM jobs JOIN waits ON job = id WHERE phase NOT IN "
      "('queued', 'paused')",
      [](const Row& row) {
        return fmt::format("job {}: waits for others to finish, and is {}", row.integer(0),
                           row.text(1));
      });
  each("SELECT seq FROM events WHERE NOT json_valid(body)",
       [](const Row& row) { return fmt::format("event {}: its body is no JSON", row.integer(0)); });
  each("SELECT DISTINCT id, phase FROM jobs JOIN holdings ON job = id WHERE phase <> 'running'",
       [](const Row& row) {
         return fmt::format("job {}: holds devices and is {}", row.integer(0), row.text(1));
       });
  return out;
}

Revision Change::record(JobId job, std::string_view kind, std::string_view body, double now) {
  constexpr std::string_view kInsert =
      "INSERT INTO events (time, job, kind, body) VALUES (?, ?, ?, ?)";
  if (job == 0) {
    database_.run(kInsert, now, nullptr, kind, body);
  } else {
    this->job(job);  // throws for an unknown one
    database_.run(kInsert, now, job, kind, body);
  }
  return database_.last_insert();
}

// An event of the job, which becomes its revision.
Revision Change::touch(JobId job, std::string_view kind, const std::string& body, double now) {
  const Revision seq = record(job, kind, body, now);
  database_.run("UPDATE jobs SET revision = ? WHERE id = ?", seq, job);
  return seq;
}

JobRecord Change::job(JobId id) { return read_job(database_, id); }

JobRecord Change::live_job(JobId id) {
  JobRecord out = job(id);
  if (has_ended(out.phase))
    fail(ErrorCode::conflict, "job {} is {} already", id, to_string(out.phase));
  return out;
}

JobId Change::submit(const Submission& s, std::string_view spec, double now,
                     const Beginning& beginning) {
  if (s.min_devices < 1 || s.max_devices < s.min_devices)
    fail(ErrorCode::invalid_argument, "job \"{}\": from {} to {} devices; a job takes at least one",
         s.name, s.min_devices, s.max_devices);
  const std::vector<JobId> after = unfinished(beginning.after);
  const bool held = beginning.held;
  database_.run(
      "INSERT INTO jobs (name, owner, team, tier, kind, min_devices, max_devices, phase, wish, "
      "reason, run, submitted, generation, revision, region, transfer, movable, held_by) "
      "VALUES (?, ?, ?, ?, ?, ?, ?, 'queued', ?, 'It was just submitted.', '', ?, 0, 0, ?, ?, ?, "
      "?)",
      s.name, s.owner, s.team, s.tier, s.kind, s.min_devices, s.max_devices,
      to_string(held ? Wish::pause : Wish::run), now, s.region, s.transfer, int64_t{s.movable},
      held ? s.owner : "");
  const JobId id = database_.last_insert();
  database_.run("INSERT INTO specs (job, spec) VALUES (?, ?)", id, spec);
  for (const JobId earlier : after)
    database_.run("INSERT INTO waits (job, earlier) VALUES (?, ?)", id, earlier);
  Json body = {{"name", s.name}, {"owner", s.owner}};
  if (!after.empty()) body["after"] = after;
  if (beginning.array > 0) body["array"] = beginning.array;
  touch(id, "submitted", dump_json(body), now);
  if (held)
    set_phase(id, Phase::paused, fmt::format("It is held by {}, who submitted it so.", s.owner),
              now);
  return id;
}

void Change::set_phase(JobId id, Phase phase, std::string_view reason, double now,
                       std::optional<int64_t> exit_code) {
  const JobRecord before = job(id);
  if (!may_follow(before.phase, phase))
    fail(ErrorCode::conflict, "job {} is {}; it cannot become {}", id, to_string(before.phase),
         to_string(phase));
  if (phase != Phase::running) database_.run("DELETE FROM holdings WHERE job = ?", id);
  std::optional<double> started = before.started, ended;
  if (phase == Phase::running && !started) started = now;
  if (has_ended(phase)) ended = now;
  database_.run(
      "UPDATE jobs SET phase = ?, reason = ?, started = ?, ended = ?, exit_code = ? WHERE id = ?",
      to_string(phase), reason, started, ended, exit_code, id);
  Json body = {{"reason", reason}};
  if (exit_code) body["exit_code"] = *exit_code;
  touch(id, to_string(phase), dump_json(body), now);
  if (ended) end_waits(id, phase, now);
}

void Change::set_wish(JobId id, Wish wish, std::string_view principal, double now) {
  const JobRecord before = live_job(id);
  if (before.wish == Wish::cancel && wish != Wish::cancel)
    fail(ErrorCode::conflict, "job {} is being cancelled", id);
  if (before.wish == wish) return;
  database_.run("UPDATE jobs SET wish = ?, held_by = ? WHERE id = ?", to_string(wish),
                wish == Wish::run     ? std::string_view("")
                : wish == Wish::pause ? principal
                                      : std::string_view(before.held_by),
                id);
  touch(id, "wish", dump_json(Json{{"wish", to_string(wish)}, {"by", principal}}), now);
}

void Change::set_devices(JobId id, int64_t least, int64_t most, std::string_view principal,
                         double now) {
  const JobRecord before = live_job(id);
  if (least < 1 || most < least)
    fail(ErrorCode::invalid_argument, "job {}: from {} to {} devices; a job takes at least one", id,
         least, most);
  const Submission& s = before.submission;
  if (s.min_devices == least && s.max_devices == most) return;
  database_.run("UPDATE jobs SET min_devices = ?, max_devices = ? WHERE id = ?", least, most, id);
  touch(id, "devices",
        dump_json(Json{{"min_devices", least}, {"max_devices", most}, {"by", principal}}), now);
}

void Change::set_reason(JobId id, std::string_view reason, double now) {
  if (live_job(id).reason == reason) return;
  database_.run("UPDATE jobs SET reason = ? WHERE id = ?", reason, id);
  touch(id, "reason", dump_json(Json{{"reason", reason}}), now);
}

void Change::set_run(JobId id, std::string_view run, double now) {
  if (live_job(id).run == run) return;
  database_.run("UPDATE jobs SET run = ? WHERE id = ?", run, id);
  touch(id, "run", dump_json(Json{{"run", run}}), now);
}

int64_t Change::set_holdings(JobId id, const std::vector<Holding>& holdings,
                             std::string_view reason, double now) {
  const JobRecord before = live_job(id);
  if (before.phase != Phase::running && !holdings.empty())
    fail(ErrorCode::conflict, "job {} is {}; only a running one holds devices", id,
         to_string(before.phase));
  database_.run("DELETE FROM holdings WHERE job = ?", id);
  Json held = Json::object();
  for (const Holding& h : holdings) {
    database_.run("INSERT INTO holdings (job, node, devices) VALUES (?, ?, ?)", id, h.node,
                  h.devices);
    held[h.node] = h.devices;
  }
  const int64_t generation = before.generation + 1;
  database_.run("UPDATE jobs SET generation = ?, reason = ? WHERE id = ?", generation, reason, id);
  touch(id, "allocation",
        dump_json(Json{{"generation", generation}, {"nodes", held}, {"reason", reason}}), now);
  return generation;
}

void Change::set_nodes(const std::vector<NodeRecord>& nodes, double now) {
  database_.run("DELETE FROM nodes");
  Json names = Json::array();
  for (size_t place = 0; place < nodes.size(); ++place) {
    const NodeRecord& node = nodes[place];
    database_.run(
        "INSERT INTO nodes (node, place, type, devices, state, why, since, region) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        node.node, static_cast<int64_t>(place), node.type, node.devices, to_string(node.state),
        node.why, node.since, node.region);
    names.push_back(node.node);
  }
  record(0, "nodes", dump_json(Json{{"nodes", names}}), now);
}

void Change::set_node(const NodeRecord& node) {
  database_.run("UPDATE nodes SET state = ?, why = ?, since = ? WHERE node = ?",
                to_string(node.state), node.why, node.since, node.node);
  if (database_.changed_rows() == 0)
    fail(ErrorCode::not_found, "there is no node \"{}\"", node.node);
  record(0, "node",
         dump_json(Json{{"node", node.node}, {"state", to_string(node.state)}, {"why", node.why}}),
         node.since);
}

bool Change::has_node(std::string_view node) {
  return database_.integer("SELECT count(*) FROM nodes WHERE node = ?", 0, node) > 0;
}

void Change::drain(std::string_view node, std::string_view reason, double now, double in,
                   std::optional<double> lasts) {
  std::optional<double> ends;
  if (lasts) ends = now + in + *lasts;
  database_.run(
      "INSERT OR REPLACE INTO drains (node, time, reason, starts, ends) VALUES (?, ?, ?, ?, ?)",
      node, now, reason, now + in, ends);
  Json body = {{"node", node}, {"reason", reason}};
  if (in > 0) body["starts"] = now + in;
  if (ends) body["ends"] = *ends;
  record(0, "drain", dump_json(body), now);
}

void Change::end_drains(double now) {
  std::vector<std::string> over;
  database_.query(
      "SELECT node FROM drains WHERE ends <= ?",
      [&](const Row& row) { over.push_back(row.text(0)); }, now);
  for (const std::string& node : over) undrain(node, now);
}

void Change::undrain(std::string_view node, double now) {
  database_.run("DELETE FROM drains WHERE node = ?", node);
  if (database_.changed_rows() == 0) fail(ErrorCode::not_found, "node \"{}\" is not drained", node);
  record(0, "undrain", dump_json(Json{{"node", node}}), now);
}

void Change::set_memory(std::string_view name, std::string_view value) {
  database_.run("INSERT OR REPLACE INTO memory (name, value) VALUES (?, ?)", name, value);
}

void Change::forget_memory(std::string_view name) {
  database_.run("DELETE FROM memory WHERE name = ?", name);
}

std::optional<std::string> Change::answered(std::string_view principal, std::string_view key,
                                            std::string_view digest) {
  std::optional<std::string> answer;
  database_.query(
      "SELECT digest, answer FROM requests WHERE principal = ? AND key = ?",
      [&](const Row& row) {
        if (row.text(0) != digest)
          fail(ErrorCode::conflict,
               "the key \"{}\" was used for another request; take a new key for a new request",
               key);
        answer = row.text(1);
      },
      principal, key);
  return answer;
}

void Change::remember_answer(std::string_view principal, std::string_view key,
                             std::string_view digest, std::string_view answer, double now) {
  database_.run(
      "INSERT INTO requests (principal, key, digest, answer, time) VALUES (?, ?, ?, ?, ?)",
      principal, key, digest, answer, now);
}

void Change::forget_answers(double time) {
  database_.run("DELETE FROM requests WHERE time < ?", time);
}

namespace {

// SQLite would open it for reading alone, and a service of it would only ever wait.
const fs::path& require_writable(const fs::path& file) {
  const bool is_there = ::faccessat(AT_FDCWD, file.c_str(), F_OK, AT_EACCESS) == 0;
  const fs::path what = is_there || file.parent_path().empty() ? file : file.parent_path();
  const bool may = ::faccessat(AT_FDCWD, what.c_str(), W_OK, AT_EACCESS) == 0;
  if (may || (errno != EACCES && errno != EPERM && errno != EROFS)) return file;
  throw StoreError(
      Error(ErrorCode::unavailable,
            fmt::format("{}: {}, and a service writes to its store: give this user the right to "
                        "(chmod, chown), mount its disk for writing, or choose another folder",
                        what.string(), std::strerror(errno))),
      StoreFault::read_only);
}

}  // namespace

namespace {

// Of a file that can be read in a moment; the whole of a larger one is for `server --check`.
void require_whole(Database& database) {
  constexpr uintmax_t kMost = uintmax_t{64} << 20;
  std::error_code unknown;
  const uintmax_t size = fs::file_size(database.file(), unknown);
  if (unknown || size > kMost) return;
  database.query("PRAGMA quick_check(1)", [&](const Row& row) {
    if (row.text(0) != "ok")
      fail(ErrorCode::data_loss,
           "{0} is damaged ({1}): put back a backup, or what `sqlite3 {0} .recover` can still "
           "read; `ductile server --check {2}` says more",
           database.file().string(), row.text(0), database.file().parent_path().string());
  });
}

}  // namespace

Store::Store(const fs::path& file, const char* vfs)
    : lock_(lock_of(require_writable(file))), database_(file, Database::Access::write, vfs) {
  require_whole(database_);
  migrate(database_);
  database_.use_wal();
  std::error_code unknown;
  const fs::path real = fs::canonical(database_.file(), unknown);
  log_ = (unknown ? database_.file() : real).string() + "-wal";
  if (::stat(database_.file().c_str(), &made_) != 0) fail_errno(database_.file().string(), errno);
  if ((made_.st_mode & 0077) != 0) fs::permissions(database_.file(), fs::perms(0600));
}

void Store::note_stop() const { note_stop_in(lock_); }

void Store::require_file() const {
  struct stat is {};
  if (::stat(database_.file().c_str(), &is) == 0 && is.st_dev == made_.st_dev &&
      is.st_ino == made_.st_ino)
    return;
  throw StoreError(
      Error(ErrorCode::unavailable,
            fmt::format("{}: was removed or replaced while it was in use, and what is written now "
                        "would be lost: put it back, or restart the server to go on with what is "
                        "there",
                        database_.file().string())),
      StoreFault::missing);
}

}  // namespace ductile::cluster
