#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/cli/commands.h"
#include "ductile/cluster/client.h"

// What the commands that ask a service share.
namespace ductile::cli {

// `ductile server --check` and `--backup`.
ExitCode check_the_store(const fs::path& folder, Context& context);
// Throws conflict where the store in this folder is of several nodes, which `ductile up` knows not.
void require_store_of_one_machine(const fs::path& folder);
ExitCode back_up_the_store(const ServiceCommand& command, Context& context);

// The job's path in the service's interface.
std::string path_of(const std::string& job, const char* rest = "");

// Runs a command; where no service answers, now or later, it says how to start one. What is not
// done in time has the same exit code.
ExitCode unless_unreachable(Context& context, const std::function<ExitCode()>& run);

// Runs `ask` with the service that is meant, for its exit code. Throws cluster::Unreachable where
// none answers.
ExitCode ask_service(const ServiceCommand& command, Context& context,
                     const std::function<ExitCode(const cluster::Client&)>& ask);
// The same of what either throws or is done.
ExitCode with_service(const ServiceCommand& command, Context& context,
                      const std::function<void(const cluster::Client&)>& ask);

// A field of a request's body, and what the command line calls it.
struct FieldFlag {
  std::string_view field, flag;
};

// What a service says of a request, with the flag in place of a field whose value it refuses: of
// `own` (what a command calls otherwise than most), or of the one table of all.
std::string with_flags(const std::string& text, std::span<const FieldFlag> own = {});
// Client::post() of a body that was made of flags: its errors name them.
nlohmann::ordered_json post_flags(const cluster::Client& client, const std::string& path,
                                  const nlohmann::json& body, std::span<const FieldFlag> own = {});

// Of a command with GPUs: that no node where it may run has so many, so that it waits for one to
// come; empty: one has. Nodes of a pool, and those that do not answer yet, may have them.
std::string lack_of_gpus(const ServiceCommand& command, const cluster::Client& client);

// A service that somebody follows may be away for a while: it is restarted, or busy.
class Absence {
 public:
  // `patience`: seconds without an answer after which nobody waits any more.
  Absence(Console& console, double patience) : console_(console), patience_(patience) {}

  // An answer did not come; for a handler of that error. Says so once; throws it again if it is
  // none that goes by, or has gone on for too long.
  void begin(const Error& error);
  void end();  // an answer came

 private:
  Console& console_;
  const double patience_;
  std::optional<std::chrono::steady_clock::time_point> since_;
};

// Does it for each job, also where it fails for another one; of several jobs each trouble is said
// on a line of its own, and the exit code is that of the first one. One job alone, and a service
// that does not answer, fail as any command does, by throwing: nobody is asked about the jobs that
// are left, and the error names them, after `left_over`. Under --json what `act` gives is printed:
// of several jobs a list, in which one that failed, or was left, is {"job", "error"}.
ExitCode for_each_job(const std::vector<std::string>& jobs, bool json, Console& console,
                      const std::function<nlohmann::ordered_json(const std::string& job)>& act,
                      std::string_view left_over = "not asked");

// The same names, where a pattern (* and ?) stands for those jobs of the user who asks that have
// not ended and whose names fit; one that fits none stays as it is.
std::vector<std::string> with_own_matches(const std::vector<std::string>& jobs,
                                          const cluster::Client& client);

bool is_pattern(const std::string& text);

// What `find` gives for the text of a job. Where there is no such job, and the text is a pattern
// that fitted none (with_own_matches), the error says that.
template <class Find>
auto find_or_none_fits(const std::string& text, const Find& find) {
  try {
    return find();
  } catch (const Error& error) {
    const bool is_path = text.find('/') != std::string::npos;
    if (error.code() != ErrorCode::not_found || !is_pattern(text) || is_path) throw;
    fail(ErrorCode::not_found,
         "{0}: none of your jobs that have not ended has a name like that; `ductile jobs --all "
         "--name '{0}'` lists those that have",
         text);
  }
}

// The numbers of the jobs that --after names, in order: by number or name; "17-26" by numbers; the
// newest array of that name of the user who asks; a pattern, as above. Throws invalid_argument,
// not_found, and conflict where a name may mean several.
std::vector<int64_t> earlier_jobs(const std::vector<std::string>& after,
                                  const cluster::Client& client);
// The numbers of the newest array of that name, in order, of a list of jobs that has the newest
// first: its members are called NAME-INDEX, and came with one request, so that their numbers follow
// each other and their indices rise. Empty: there is none.
std::vector<int64_t> members_of_array(const std::string& name, const nlohmann::ordered_json& jobs);

// Until these jobs of the service have ended, also while it is away. The exit code is 0 if they
// have finished, that of a command that ended by itself, else kJobFailed; of several the largest.
// Ctrl-C ends this program and not the jobs, and says so. Under --json what became of the job is
// printed, or of several a list.
ExitCode await_jobs(const cluster::Client& client, const std::vector<int64_t>& ids, bool json,
                    Absence absence, Console& console);

// The numbers that --array names, in order: "0-9", "1,3,10-20:2". Throws invalid_argument.
std::vector<int64_t> indices_of(const std::string& array);

// How many devices it holds; empty for none.
std::string held_text(const nlohmann::ordered_json& job);

// How far a training job is, "37 %"; `whole`: also in steps, and how long it has still to go.
// Empty: that is not known.
std::string done_text(const nlohmann::ordered_json& job, bool whole);

// What `ductile why` and `ductile status` show of a job of that service.
std::string job_table(const nlohmann::ordered_json& job, const cluster::Client& client);

}  // namespace ductile::cli
