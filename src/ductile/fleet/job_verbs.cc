// What is done with several jobs at once, and what is waited for.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
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

// Where the service gave no answer, and what was left then.
cluster::Unreachable stopped_at(const cluster::Unreachable& nobody,
                                std::span<const std::string> jobs, std::string_view left_over) {
  constexpr size_t kMostNamed = 20;
  std::string text = fmt::format("{}; stopped at {}", nobody.what(), jobs.front());
  const auto left = jobs.subspan(1);
  const auto named = left.first(std::min(left.size(), kMostNamed));
  if (!left.empty()) text += fmt::format(", {}: {}", left_over, fmt::join(named, ", "));
  if (left.size() > named.size()) text += fmt::format(" and {} more", left.size() - named.size());
  return {nobody.code(), text};
}

}  // namespace

ExitCode for_each_job(const std::vector<std::string>& jobs, bool json, Console& console,
                      const std::function<Json(const std::string& job)>& act,
                      std::string_view left_over) {
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
    } catch (const cluster::Unreachable& nobody) {  // nor does anybody answer for the others
      const auto rest = std::span(jobs).subspan(answers.size());
      const cluster::Unreachable stopped = stopped_at(nobody, rest, left_over);
      for (const std::string& left : rest)
        answers.push_back(Json{{"job", left}, {"error", stopped.what()}});
      if (json) console.print("{}\n", dump_json(answers, 2));
      throw stopped;
    } catch (const Error& error) {
      const std::string text = error.what();
      console.error(text.starts_with(job + ":") ? text : fmt::format("{}: {}", job, text));
      const bool in_time = error.code() != ErrorCode::deadline;
      if (code == kDone) code = in_time ? exit_code(error.code()) : kServerUnreachable;
      answers.push_back(Json{{"job", job}, {"error", text}});
    }
  }
  if (json) console.print("{}\n", dump_json(answers, 2));
  return code;
}

bool is_pattern(const std::string& text) { return text.find_first_of("*?") != std::string::npos; }

std::vector<std::string> with_own_matches(const std::vector<std::string>& jobs,
                                          const cluster::Client& client) {
  std::vector<std::string> out;
  std::set<std::string> matched;  // a job is meant once, however often it is named
  for (const std::string& text : jobs) {
    const size_t before = out.size();
    bool any = false;
    if (is_pattern(text)) {
      const auto me = client.get("/v1/overview").at("principal").get<std::string>();
      const std::string page =
          fmt::format("/v1/jobs?live=1&limit=1000&user={}&name={}", cluster::percent_encoded(me),
                      cluster::percent_encoded(text));
      for (std::string next = page; !next.empty();) {
        const Json answer = client.get(next);
        for (const Json& job : answer.at("jobs")) {
          const std::string number = std::to_string(job.at("id").get<int64_t>());
          any = true;
          if (matched.insert(number).second) out.push_back(number);
        }
        next = answer.contains("before")
                   ? fmt::format("{}&before={}", page, answer["before"].get<int64_t>())
                   : "";
      }
      std::reverse(out.begin() + static_cast<std::ptrdiff_t>(before), out.end());
    }
    if (!any && matched.insert(text).second) out.push_back(text);
  }
  return out;
}

namespace {

// The job when it has ended.
Json ended_job(const cluster::Client& client, int64_t id, Absence& absence) {
  for (;; std::this_thread::sleep_for(client.is_local() ? kLookAtEnd : kLookAtEndThere)) {
    try {
      Json job = client.get(path_of(std::to_string(id)));
      absence.end();
      if (!job.at("ended").is_null()) return job;
    } catch (const Error& error) {
      absence.begin(error);
    }
  }
}

std::string text_of_farewell(const std::vector<int64_t>& ids, const std::string& same) {
  if (ids.size() == 1)
    return fmt::format(
        "\nthis command ends, and job {0} goes on; what becomes of it: ductile why {0}{1}; to end "
        "it: ductile cancel {0}{1}\n",
        ids.front(), same);
  return fmt::format(
      "\nthis command ends, and its jobs, {} to {}, go on; what becomes of them: ductile jobs{}\n",
      ids.front(), ids.back(), same);
}

}  // namespace

ExitCode await_jobs(const cluster::Client& client, const std::vector<int64_t>& ids, bool json,
                    Absence absence, Console& console) {
  const Farewell at_interrupt(console.verbosity < 0 ? "" : text_of_farewell(ids, client.option()));
  console.out() << std::flush;  // the jobs' numbers, for who is not patient
  ExitCode code = kDone;
  Json ended = Json::array();
  for (const int64_t id : ids) {
    const Json& job = ended.emplace_back(ended_job(client, id, absence));
    code = std::max(code, code_of_job(job));
    if (!json)
      console.say("job {} is {}: {}", id, job.at("phase").get<std::string>(),
                  job.at("reason").get<std::string>());
  }
  if (json) console.print("{}\n", dump_json(ids.size() == 1 ? ended.front() : ended, 2));
  return code;
}

std::vector<int64_t> indices_of(const std::string& array) {
  constexpr size_t kMost = 1000;
  constexpr int64_t kMostIndex = int64_t{1} << 53;
  const auto wrong = [&] {
    fail(ErrorCode::invalid_argument,
         "--array {}: up to {} different numbers from 0 on are wanted, such as 0-9, 1,3,5 or "
         "10-30:2",
         array, kMost);
  };
  std::set<int64_t> out;
  const char* at = array.data();
  const char* const end = at + array.size();
  const auto number = [&](int64_t least) {
    int64_t value = -1;
    const auto read = std::from_chars(at, end, value);
    if (read.ec != std::errc() || value < least || value > kMostIndex) wrong();
    at = read.ptr;
    return value;
  };
  const auto follows = [&](char c) { return at != end && *at == c && ++at; };
  do {
    const int64_t first = number(0);
    const int64_t last = follows('-') ? number(first) : first;
    const int64_t step = follows(':') ? number(1) : 1;
    for (int64_t index = first; index <= last; index += step)
      if (!out.insert(index).second || out.size() > kMost) wrong();
  } while (follows(','));
  if (at != end) wrong();
  return {out.begin(), out.end()};
}

}  // namespace ductile::cli
