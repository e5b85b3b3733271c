// What is done with several jobs at once, and what is waited for.
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <utility>

#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/cli/exit_code.h"
#include "ductile/fleet/service_request_impl.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kLookAtEnd{100}, kLookAtEndThere{1000};

std::string farewell;  // for the handler of a signal

// Says that the job goes on, and ends at once, also while a service that hangs is asked.
void leave_waiting(int) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, farewell.data(), farewell.size());
  ::_exit(kInterrupted);
}

// While it lives Ctrl-C says this and ends the program. Where signals are ignored, as by `nohup`,
// they stay so.
class Farewell {
 public:
  explicit Farewell(std::string text) {
    farewell = std::move(text);
    ::sigaction(SIGINT, nullptr, &before_);
    if (before_.sa_handler == SIG_IGN) return;
    struct sigaction leave {};
    leave.sa_handler = leave_waiting;
    ::sigaction(SIGINT, &leave, nullptr);
  }
  Farewell(const Farewell&) = delete;
  Farewell& operator=(const Farewell&) = delete;
  ~Farewell() { ::sigaction(SIGINT, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

ExitCode code_of_job(const Json& job) {
  if (job.at("phase") == "finished") return kDone;
  const int code = job.value("exit_code", 0);
  return code == 0 ? kJobFailed : static_cast<ExitCode>(code);
}

}  // namespace

ExitCode for_each_job(const std::vector<std::string>& jobs, bool json, Console& console,
                      const std::function<Json(const std::string& job)>& act) {
  if (jobs.size() == 1) {
    const Json answer = act(jobs.front());
    if (json) console.print("{}\n", dump_json(answer, 2));
    return kDone;
  }
  ExitCode code = kDone;
  Json answers = Json::array();
  for (const std::string& job : jobs) {
    try {
      answers.push_back(act(job));
    } catch (const Error& error) {
      const std::string text = error.what();
      console.error(text.starts_with(job + ":") ? text : fmt::format("{}: {}", job, text));
      if (code == kDone) code = exit_code(error.code());
      answers.push_back(Json{{"job", job}, {"error", text}});
    }
  }
  if (json) console.print("{}\n", dump_json(answers, 2));
  return code;
}

ExitCode await_job(const cluster::Client& client, int64_t id, bool json, Console& console) {
  const Farewell farewell_said(
      console.verbosity < 0
          ? ""
          : fmt::format("\nthis command ends, and job {0} goes on; what becomes of it: ductile why "
                        "{0}; to end it: ductile cancel {0}\n",
                        id));
  console.out() << std::flush;  // the job's number, for who is not patient
  bool said = false;
  for (;; std::this_thread::sleep_for(client.is_local() ? kLookAtEnd : kLookAtEndThere)) {
    try {
      const Json job = client.get(path_of(std::to_string(id)));
      said = false;
      if (job.at("ended").is_null()) continue;
      if (json) console.print("{}\n", dump_json(job, 2));
      if (!json)
        console.say("job {} is {}: {}", id, job.at("phase").get<std::string>(),
                    job.at("reason").get<std::string>());
      return code_of_job(job);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unavailable && error.code() != ErrorCode::deadline) throw;
      if (!std::exchange(said, true)) console.say("{}; waiting for it", error.what());
    }
  }
}

}  // namespace ductile::cli
