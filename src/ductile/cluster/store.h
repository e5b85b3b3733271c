#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <sys/stat.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/cluster/database.h"
#include "ductile/cluster/records.h"
#include "ductile/cluster/tokens.h"

// What the service of a cluster remembers: jobs, what they hold, drained nodes, every event, and
// the answers to requests. One SQLite file.
//
// Writing: one process, which holds the lock of a Store, through Change objects that live inside a
// transaction (commit_queue.h makes those). Reading: any number of Readers, in any process.
namespace ductile::cluster {

// Thrown as not_found for what was there, and was removed because of its age or number.
struct Gone : Error {
  Gone(double since, const std::string& text) : Error(ErrorCode::not_found, text), since(since) {}
  double since;        // when it was removed, or some of it last
  Revision begin = 0;  // of events: those after this one are all there
};

// What a list of jobs is narrowed to; what is not given does not matter.
struct JobFilter {
  std::vector<Phase> phases;  // one of these; empty: any
  bool live = false;          // has not ended
  std::optional<std::string> name, owner, team;
  std::optional<std::string> pattern;  // of its name: * stands for any text, ? for one character
  std::optional<std::string> part;     // of its name, owner or team, without regard to case
};

// Reads what is committed. One thread at a time uses a Reader; each call sees one state of the
// store, and no writer waits for it.
class Reader {
 public:
  // Throws as Database does, and as require_newest_schema().
  explicit Reader(const fs::path& file, const char* vfs = nullptr);

  // While it lives, all that is read here is of one moment (database.h). Not two at once.
  ReadTransaction at_once() { return ReadTransaction(database_); }
  // Also of one that could not be ended: such a Reader stays at its moment.
  bool is_at_once() const { return database_.in_transaction(); }

  // Throws not_found for an unknown job, and Gone for one that was removed.
  JobRecord job(JobId id);
  std::optional<JobRecord> job_if_kept(JobId id);  // none: it was removed
  std::string spec(JobId id);
  // By number, or where no job has it, by name: the newest job of that name that has not ended,
  // else the newest of that name. Throws not_found, with the nearest name of a job that has not
  // ended.
  JobRecord find(std::string_view number_or_name);
  // The newest first: at most `limit` jobs whose number is below `before` (0: from the newest on).
  // The last one's number leads to the next page.
  std::vector<JobRecord> jobs(const JobFilter& filter, JobId before, int64_t limit);
  // Those that have not ended, in order of submission: what a server takes up when it starts.
  std::vector<JobRecord> live_jobs();
  std::map<Phase, int64_t> count_by_phase();
  // Whose jobs there are, and of which teams: the first 100 names.
  std::vector<std::string> owners();
  std::vector<std::string> teams();
  // What is still to finish before the job begins, in order.
  std::vector<EarlierJob> awaited_by(JobId job);
  // These, what they wait for, what that waits for, and so on.
  std::set<JobId> finished_before(std::vector<JobId> jobs);

  // In order: at most `limit` events after number `after`, of one job where one is given.
  std::vector<Event> events(Revision after, int64_t limit, std::optional<JobId> job = {});
  // Of all jobs, none left out: throws Gone where some of those after `after` were removed, or the
  // store has no event of that number yet. 0 is moved behind the last one that was removed.
  std::vector<Event> whole_events(Revision& after, int64_t limit);
  // The newest `count`, in order.
  std::vector<Event> newest_events(int64_t count, std::optional<JobId> job = {});
  JobId last_job();                                     // 0: none yet; also one that was removed
  bool knows_runs();                                    // whether any job was given a run directory
  std::vector<std::string> newest_runs(int64_t limit);  // run directories, of the newest jobs first
  Revision last_event();                                // 0: none yet; also one that was removed
  int64_t count_events();
  Revision removed_events();  // not all up to this one are there any more; 0: all are
  // Throws Gone if events after this one were removed. To be asked after they were read.
  void require_events_after(Revision after);
  void require_event(Revision known);  // throws Gone for a number that no event has had yet

  std::vector<Holding> holdings(JobId job);
  std::vector<Holder> holders();  // of all jobs, by job and node
  std::map<JobId, std::vector<Holding>> all_holdings();
  // Those that say who held what (ledger.h).
  std::vector<Event> allocation_events(Revision after, int64_t limit);
  // Of every job there is, in order of submission.
  struct JobOwner {
    JobId id;
    std::string team, tier, owner;
    Phase phase;
  };
  void for_each_owner(const std::function<void(const JobOwner&)>& look);
  std::vector<Drain> drains();
  // In the order of the service that wrote them.
  std::vector<NodeRecord> nodes();
  // All, the oldest first, with those that were revoked.
  std::vector<TokenRecord> tokens();
  std::string memory(std::string_view name);  // empty: nothing

  // Everything that is wrong with the file, in sentences; empty if it is whole. Reads all of it.
  std::vector<std::string> check();

 private:
  Database database_;
};

// The writes of one transaction. All of them appear together, or none does. Every write that
// changes a job adds an event, whose number becomes the job's revision. `now`: seconds since 1970.
class Change {
 public:
  // `short_of_room`: the disk has none left but what is kept for what ends jobs.
  explicit Change(Database& database, bool short_of_room = false)
      : database_(database), short_of_room_(short_of_room) {}
  bool short_of_room() const { return short_of_room_; }

  // `spec`: what to run, a text that the store keeps unchanged and does not read.
  // Throws not_found where it is to begin after an unknown job, and conflict where one of these has
  // ended and not finished, so that it never would begin.
  JobId submit(const Submission& submission, std::string_view spec, double now,
               const Beginning& beginning = {});
  // Throws conflict where no `more` jobs can begin after one of these, since too many do: the end
  // of one job is written as one change.
  void require_room_behind(const std::vector<JobId>& jobs, int64_t more);
  // The next job has a number after this one.
  void number_jobs_after(JobId last);

  // These and record() throw not_found for an unknown job, conflict where its phase does not allow
  // this, as that of a job that has ended allows nothing. What a call did before it threw stays in
  // the transaction: a change that goes on after that may leave half of it there.
  // `exit_code`: of a command that has ended by itself. Where a job has finished, others wait for
  // it no more.
  void set_phase(JobId job, Phase phase, std::string_view reason, double now,
                 std::optional<int64_t> exit_code = {});
  void set_wish(JobId job, Wish wish, std::string_view principal, double now);
  // How many devices its user wants it to have; throws invalid_argument for a range that is none.
  void set_devices(JobId job, int64_t least, int64_t most, std::string_view principal, double now);
  void set_reason(JobId job, std::string_view reason, double now);  // no event if it is the same
  void set_run(JobId job, std::string_view run, double now);
  // What the job holds from now on; nothing: empty. Gives the allocation's generation.
  int64_t set_holdings(JobId job, const std::vector<Holding>& holdings, std::string_view reason,
                       double now);

  // The nodes that there are, in place of those before.
  void set_nodes(const std::vector<NodeRecord>& nodes, double now);
  void set_node(const NodeRecord& node);  // one of them; its event has the time `since`

  bool has_node(std::string_view node);

  // From `in` seconds on, for `lasts` seconds or, without these, until undrain(). It replaces
  // another drain of the node.
  void drain(std::string_view node, std::string_view reason, double now, double in = 0,
             std::optional<double> lasts = {});
  // Throws not_found if the node is not drained, and no drain of it is to come.
  void undrain(std::string_view node, double now);
  void end_drains(double now);  // those that are over

  // Gives its number. Throws conflict if a token of that name is not revoked.
  int64_t add_token(const TokenRecord& token, std::string_view by);
  // Throws not_found if none of that name is left to revoke.
  void revoke_token(std::string_view name, std::string_view by, double now);
  // What is to be known after a restart, under a name; it replaces what was there.
  void set_memory(std::string_view name, std::string_view value);

  void forget_memory(std::string_view name);

  // An event of its own, of a job or (0) of none. `body`: JSON.
  Revision record(JobId job, std::string_view kind, std::string_view body, double now);

  // A request that may be sent twice is carried out once: the answer that this principal's request
  // with the same key was given; none if it is new. Throws conflict if that one asked for something
  // else, by its digest.
  std::optional<std::string> answered(std::string_view principal, std::string_view key,
                                      std::string_view digest);
  void remember_answer(std::string_view principal, std::string_view key, std::string_view digest,
                       std::string_view answer, double now);
  // Forgets the answers given before `time`.
  void forget_answers(double time);

  // Removes what need not be kept at `now`: about `most` rows at a time, each job with all of its
  // events as a whole, and as many answers to requests. Whether there may be more. What was noted
  // of the speed, the load and the reasons of jobs that live, and events of no job, are removed by
  // age alone.
  bool prune(const Retention& retention, double now, int64_t most);

  // As it is inside this transaction.
  JobRecord job(JobId id);
  // Rises with each row that is written, by whichever Change of the store.
  int64_t rows_written() const { return database_.all_changes(); }

 private:
  JobRecord live_job(JobId id);
  std::vector<JobId> unfinished(const std::vector<JobId>& jobs);
  void end_waits(JobId job, Phase phase, double now);
  Revision touch(JobId job, std::string_view kind, const std::string& body, double now);

  Database& database_;
  const bool short_of_room_;
};

// The right to write a store: made, migrated and locked. While it lives, another one for the same
// file throws conflict, which names the process that has it.
class Store {
 public:
  explicit Store(const fs::path& file, const char* vfs = nullptr);

  Database& database() { return database_; }
  // Throws unavailable if another file, or none, has taken the place of the one that is written.
  void require_file() const;
  // Throws unavailable (StoreFault::full) where the disk has no room left but the little that is
  // kept for what ends jobs, so much that each that runs can be ended. Room that was used is kept
  // anew as soon as there is some. Belongs to the thread that writes.
  void require_room();
  // Whoever wants this store from now on is told that its process is about to end.
  void note_stop() const;

 private:
  Descriptor lock_;
  Database database_;
  fs::path log_;  // SQLite's, of what is not yet in the file
  struct stat made_ {};
};

}  // namespace ductile::cluster
