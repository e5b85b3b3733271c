#include "ductile/cluster/schema.h"

#include <iterator>

#include "ductile/base/error.h"

namespace ductile::cluster {
namespace {

constexpr int64_t kApplication = 0x6475636c;  // "ducl", in the header of the file

// Migration n leads from schema n to n + 1. One that a release has run is never changed.
constexpr const char* kMigrations[] = {
    R"(
CREATE TABLE jobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,  -- rises with submission, and is never used twice
  name TEXT NOT NULL,
  owner TEXT NOT NULL,
  team TEXT NOT NULL,
  tier TEXT NOT NULL,
  kind TEXT NOT NULL,
  min_devices INTEGER NOT NULL CHECK (min_devices >= 1),
  max_devices INTEGER NOT NULL CHECK (max_devices >= min_devices),
  phase TEXT NOT NULL CHECK (phase IN
    ('queued', 'running', 'paused', 'finished', 'failed', 'cancelled')),
  wish TEXT NOT NULL CHECK (wish IN ('run', 'pause', 'cancel')),
  reason TEXT NOT NULL,
  run TEXT NOT NULL,
  submitted REAL NOT NULL,
  started REAL,
  ended REAL CHECK ((ended IS NULL) = (phase IN ('queued', 'running', 'paused'))),
  generation INTEGER NOT NULL,           -- of the allocation; a fencing token
  revision INTEGER NOT NULL              -- the last event that changed the job
) STRICT;
CREATE INDEX jobs_live ON jobs (id) WHERE ended IS NULL;
CREATE INDEX jobs_of_phase ON jobs (phase, id);
CREATE INDEX jobs_of_name ON jobs (name, id);
CREATE INDEX jobs_of_owner ON jobs (owner, id);
CREATE INDEX jobs_of_team ON jobs (team, id);
CREATE INDEX live_jobs_of_name ON jobs (name, id) WHERE ended IS NULL;
CREATE INDEX live_jobs_of_owner ON jobs (owner, id) WHERE ended IS NULL;
CREATE INDEX live_jobs_of_team ON jobs (team, id) WHERE ended IS NULL;

-- What was submitted, unchanged. Apart from the jobs, so that lists read few pages.
CREATE TABLE specs (
  job INTEGER PRIMARY KEY REFERENCES jobs (id),
  spec TEXT NOT NULL
) STRICT;

CREATE TABLE events (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  time REAL NOT NULL,
  job INTEGER REFERENCES jobs (id),
  kind TEXT NOT NULL,
  body TEXT NOT NULL
) STRICT;
CREATE INDEX events_of_job ON events (job, seq);

CREATE TABLE holdings (
  job INTEGER NOT NULL REFERENCES jobs (id),
  node TEXT NOT NULL,
  devices INTEGER NOT NULL CHECK (devices >= 1),
  PRIMARY KEY (job, node)
) STRICT, WITHOUT ROWID;

CREATE TABLE drains (
  node TEXT PRIMARY KEY,
  time REAL NOT NULL,
  reason TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE requests (
  principal TEXT NOT NULL,
  key TEXT NOT NULL,
  digest TEXT NOT NULL,
  answer TEXT NOT NULL,
  time REAL NOT NULL,
  PRIMARY KEY (principal, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX requests_by_time ON requests (time);
)",
    R"(
CREATE TABLE nodes (
  node TEXT PRIMARY KEY,
  place INTEGER NOT NULL,
  type TEXT NOT NULL,
  devices INTEGER NOT NULL CHECK (devices >= 1),
  state TEXT NOT NULL CHECK (state IN ('up', 'away', 'lost')),
  why TEXT NOT NULL,
  since REAL NOT NULL
) STRICT, WITHOUT ROWID;
)",
    R"(
CREATE TABLE tokens (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  role TEXT NOT NULL CHECK (role IN ('read', 'submit', 'admin')),
  team TEXT NOT NULL,
  digest TEXT NOT NULL UNIQUE,           -- SHA-256; the token itself is nowhere
  made REAL NOT NULL,
  expires REAL,
  revoked REAL
) STRICT;
CREATE UNIQUE INDEX living_tokens ON tokens (name) WHERE revoked IS NULL;
)",
    R"(
-- What the service would otherwise have to learn again; of no other consequence.
CREATE TABLE memory (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
)",
    R"(
-- Numbers of jobs that were removed, from `first` to `last`, and when the last of them was.
CREATE TABLE removed_jobs (
  first INTEGER PRIMARY KEY,
  last INTEGER NOT NULL CHECK (last >= first),
  time REAL NOT NULL
) STRICT;
-- Events up to `event` are not all there any more.
CREATE TABLE removed_events (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  event INTEGER NOT NULL,
  time REAL NOT NULL
) STRICT;
CREATE INDEX ended_jobs ON jobs (ended, id) WHERE ended IS NOT NULL;
)",
    R"(
-- Those that age alone removes, whatever becomes of their jobs.
CREATE INDEX passing_events ON events (time)
  WHERE job IS NULL OR kind IN ('speed', 'load', 'serving');
)",
    R"(
-- Planned maintenance: a drain that begins later, and one that ends by itself.
ALTER TABLE drains ADD COLUMN starts REAL NOT NULL DEFAULT 0;
ALTER TABLE drains ADD COLUMN ends REAL;
)",
    R"(
ALTER TABLE jobs ADD COLUMN region TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN transfer REAL NOT NULL DEFAULT 0 CHECK (transfer >= 0);
ALTER TABLE jobs ADD COLUMN movable INTEGER NOT NULL DEFAULT 1 CHECK (movable IN (0, 1));
ALTER TABLE nodes ADD COLUMN region TEXT NOT NULL DEFAULT 'home';
)",
    R"(
DROP INDEX passing_events;
CREATE INDEX passing_events ON events (time)
  WHERE job IS NULL OR kind IN ('speed', 'load', 'serving', 'reason');
)",
    R"(
-- Who paused a job, or submitted it to be held; nobody, or nobody who was noted: empty.
ALTER TABLE jobs ADD COLUMN held_by TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN exit_code INTEGER;  -- of a command that has ended by itself
-- Jobs that are to finish before others begin. A row goes when its earlier job has finished, or its
-- job has ended. Only earlier jobs are named, so that no two wait for each other.
CREATE TABLE waits (
  job INTEGER NOT NULL REFERENCES jobs (id),
  earlier INTEGER NOT NULL CHECK (earlier < job),
  PRIMARY KEY (job, earlier)
) STRICT, WITHOUT ROWID;
CREATE INDEX waits_of_earlier ON waits (earlier);
-- All that lists are narrowed by: a scan of it reads no job that does not fit.
CREATE INDEX jobs_listed ON jobs (id, phase, owner, team, name);
)",
};

// The schema's number. Throws where this program must not touch the file.
int schema_of(Database& database) {
  const int64_t application = database.integer("PRAGMA application_id", 0);
  const auto schema = static_cast<int>(database.integer("PRAGMA user_version", 0));
  const bool empty = database.integer("SELECT count(*) FROM sqlite_schema", 0) == 0;
  if (application != kApplication && !(empty && application == 0 && schema == 0))
    fail(ErrorCode::data_loss,
         "{}: a database, but no store of Ductile; name another file, or move this one away",
         database.file().string());
  if (schema > newest_schema())
    fail(ErrorCode::conflict,
         "{}: has schema {}, which a newer Ductile wrote; this one knows schemas up to {}: use the "
         "newer one",
         database.file().string(), schema, newest_schema());
  return schema;
}

}  // namespace

std::string migration(int from) {
  if (from < 0 || from >= newest_schema())
    fail(ErrorCode::invalid_argument, "no migration leads on from schema {}", from);
  return kMigrations[from];
}

int newest_schema() { return static_cast<int>(std::size(kMigrations)); }

void migrate(Database& database) {
  Transaction transaction(database);  // of two servers at once, one finds the work done
  const int schema = schema_of(database);
  for (int i = schema; i < newest_schema(); ++i) database.execute(kMigrations[i]);
  if (schema < newest_schema())
    database.execute(fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {};",
                                 kApplication, newest_schema()));
  transaction.commit();
}

void require_written(Database& database) {
  if (schema_of(database) == 0)
    fail(ErrorCode::data_loss,
         "{}: is empty: no service has written to it, or what it had is lost; if jobs were in it, "
         "put back a backup",
         database.file().string());
}

void require_newest_schema(Database& database) {
  require_written(database);
  const int schema = schema_of(database);
  if (schema < newest_schema())
    fail(ErrorCode::conflict,
         "{}: has schema {}, older than this program's {}; the server brings it up to date when it "
         "starts",
         database.file().string(), schema, newest_schema());
}

}  // namespace ductile::cluster
