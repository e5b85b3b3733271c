#include <algorithm>
#include <chrono>
#include <exception>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/cli/commands.h"
#include "ductile/fleet/job_reference.h"
#include "ductile/fleet/metric_text_impl.h"
#include "ductile/fleet/service_request_impl.h"
#include "ductile/page/terminal.h"
#include "ductile/run/folder.h"
#include "ductile/run/history.h"
#include "ductile/server/client.h"
#include "ductile/server/job_host.h"

namespace ductile::cli {
namespace {

using nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr std::chrono::seconds kPreemptPatience{120};
constexpr std::chrono::milliseconds kLook{100};
constexpr std::chrono::milliseconds kLookHere{20};     // for what takes less than a second
constexpr std::chrono::milliseconds kLookThere{1000};  // over a network

JobReference find_one(const std::string& text, const LiveCommand& command, const Context& context) {
  return find_or_none_fits(text, [&] { return find_job(text, command.at, context); });
}

JobReference named(const LiveCommand& command, const Context& context) {
  return find_job(command.job, command.at, context);
}

// Patterns are of a service's jobs, where one answers.
std::vector<std::string> named_jobs(const LiveCommand& command, const Context& context) {
  if (std::ranges::none_of(command.jobs, is_pattern)) return command.jobs;
  const cluster::Client client = client_of(command.at, context);
  return client.reachable() ? with_own_matches(command.jobs, client) : command.jobs;
}

// Of a service's job, which was asked at `asked`: until it is paused, has ended, or is to do
// something else again. One that waits is not paused before the service has seen that it is to be,
// and may just begin to run. Gives what became of it, in words.
std::string await_pause(const JobReference::OfService& job,
                        std::chrono::steady_clock::time_point asked) {
  const auto deadline = asked + kPreemptPatience;
  while (true) {
    const OrderedJson now = job.record();
    const auto phase = now.at("phase").get<std::string>(), wish = now.at("wish").get<std::string>();
    if (phase == "paused")
      return fmt::format("paused; to go on: ductile resume {}{}", job.id, job.client.option());
    if (!now.at("ended").is_null())
      return fmt::format("job {} is {}: {}", job.id, phase, now.at("reason").get<std::string>());
    if (wish != "pause")
      return fmt::format("job {} is not paused, since somebody has {} it meanwhile", job.id,
                         wish == "cancel" ? "cancelled" : "resumed");
    if (std::chrono::steady_clock::now() > deadline)
      fail(ErrorCode::deadline, "{}",
           job.client.with_option(fmt::format(
               "job {0} is not paused after {1} seconds; `ductile why {0}` says what it does",
               job.id, kPreemptPatience.count())));
    std::this_thread::sleep_for(job.client.is_local() ? kLookHere : kLook);
  }
}

std::string ranks_of(const json& worker) {
  if (!worker.contains("ranks")) return "-";
  const auto begin = worker["ranks"].at(0).get<int64_t>();
  const auto end = worker["ranks"].at(1).get<int64_t>();
  return end - begin == 1 ? std::to_string(begin) : fmt::format("{}-{}", begin, end - 1);
}

void print_answer(const LiveCommand& command, Console& console, const json& answer,
                  const std::string& text) {
  if (command.json) {
    console.print("{}\n", dump_json(answer, 2));
  } else {
    console.say("{}", text);
  }
}

// From the beginning of the last `lines` lines.
std::streamoff tail_begin(const std::string& text, int64_t lines) {
  size_t at = text.size();
  if (at > 0 && text.back() == '\n') --at;
  for (int64_t i = 0; i < lines; ++i) {
    at = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
    if (at == std::string::npos) return 0;
  }
  return static_cast<std::streamoff>(at + 1);
}

}  // namespace

namespace {

// " of 1300 (37 %)"; empty where its workers have not said how many there are.
std::string part_done(const json& step, const fs::path& run) {
  const int64_t total = run::told_steps(run::RunFolder::open(run));
  const auto done = step.get<int64_t>();
  if (total <= 0 || done < 0) return "";
  return fmt::format(" of {} ({} %)", total, std::min<int64_t>(100, 100 * done / total));
}

// What a run's controller says of it.
void print_status(Console& console, const json& answer, const fs::path& run) {
  const auto number = [&](const char* key) {
    return std::to_string(answer.at(key).get<int64_t>());
  };
  const int64_t checkpoint = answer.at("checkpoint");
  console.print(
      "{}", page::table({{"phase", answer.at("phase").get<std::string>()},
                         {"now", answer.at("why").get<std::string>()},
                         {"step", number("step") + part_done(answer.at("step"), run)},
                         {"checkpoint", checkpoint < 0 ? "none" : std::to_string(checkpoint)},
                         {"workers wanted", number("wanted")},
                         {"generation",
                          std::to_string(answer.at("generation").at("number").get<int64_t>())}}));
  std::vector<std::vector<std::string>> rows = {
      {"worker", "phase", "step", "virtual ranks", "host", "process", ""}};
  for (const json& worker : answer.at("workers")) {
    rows.push_back(
        {std::to_string(worker.at("id").get<int64_t>()), worker.at("phase").get<std::string>(),
         std::to_string(worker.at("step").get<int64_t>()), ranks_of(worker),
         worker.value("host", ""),
         worker.contains("process") ? std::to_string(worker["process"].get<int64_t>()) : "",
         worker.at("connected").get<bool>() ? "" : "not connected"});
  }
  if (rows.size() > 1) console.print("\n{}", page::table(rows));
}

}  // namespace

ExitCode status(const LiveCommand& command, Context& context) {
  const JobReference job = named(command, context);
  Console& console = context.console;
  nlohmann::ordered_json record;
  if (job.service) record = job.service->record();
  // A job of a service that is not training now has no controller, which is no error.
  const bool trains =
      !job.service || (record.at("phase") == "running" && record.at("kind") == "train" &&
                       job.service->client.is_local() && server::has_controller(job.run));
  json answer;
  if (trains) answer = server::ask(job.run, {{"request", "status"}});
  if (command.json) {
    if (!job.service) console.print("{}\n", dump_json(answer, 2));
    if (!job.service) return kDone;
    if (trains) record["controller"] = answer;
    console.print("{}\n", dump_json(record, 2));
    return kDone;
  }
  if (job.service)
    console.print("{}{}", job_table(record, job.service->client), trains ? "\n" : "");
  if (trains) print_status(console, answer, job.run);
  return kDone;
}

ExitCode resize(const LiveCommand& command, Context& context) {
  const JobReference job = named(command, context);
  const bool range = command.min || command.max;
  if (command.workers.has_value() == range)
    fail(ErrorCode::invalid_argument,
         "resize: a number of workers is required, or --min and --max of a service's job");
  if (!job.service) {
    if (range)
      fail(ErrorCode::invalid_argument,
           "--min and --max are of a service's job; {} is a run of its own: ductile resize {} N",
           job.run.string(), job.run.string());
    const json answer =
        server::ask(job.run, {{"request", "resize"}, {"workers", *command.workers}});
    print_answer(
        command, context.console, answer,
        fmt::format("resizing to {} worker{}", *command.workers, *command.workers == 1 ? "" : "s"));
    return kDone;
  }
  json body = json::object();
  if (const auto least = command.workers ? command.workers : command.min)
    body["min_devices"] = *least;
  if (const auto most = command.workers ? command.workers : command.max)
    body["max_devices"] = *most;
  constexpr FieldFlag kOfNumber[] = {{"min_devices", "devices"}, {"max_devices", "devices"}};
  std::span<const FieldFlag> own;
  if (!range) own = kOfNumber;
  const json answer = post_flags(job.service->client, job.service->acts("/resize"), body, own);
  print_answer(command, context.console, answer,
               fmt::format("job {} is to have {} to {} devices", job.service->id,
                           answer.at("min_devices").get<int64_t>(),
                           answer.at("max_devices").get<int64_t>()));
  return kDone;
}

ExitCode reload(const LiveCommand& command, Context& context) {
  const JobReference job = named(command, context);
  if (!job.service)
    fail(ErrorCode::invalid_argument,
         "reload: {} is a run directory; what answers requests is a job of a service (ductile "
         "submit --service {})",
         job.run.string(), job.run.string());
  json body = json::object();
  if (command.checkpoint) body["version"] = *command.checkpoint;
  const json answer = job.service->client.post(job.service->acts("/reload"), body);
  print_answer(command, context.console, answer,
               command.checkpoint
                   ? fmt::format("job {} is to answer with the weights of step {}", job.service->id,
                                 *command.checkpoint)
                   : fmt::format("job {} is to answer with the newest weights", job.service->id));
  return kDone;
}

namespace {

// What a job was asked, or why it could not be.
struct Asked {
  std::optional<JobReference> job;
  json answer;
  std::exception_ptr error;
  bool lost = false;  // the error is that its service gave no answer
};

Asked ask_to_preempt(const std::string& text, const LiveCommand& command, const Context& context) {
  Asked out;
  try {
    out.job.emplace(find_one(text, command, context));
    out.answer =
        out.job->service
            ? json(out.job->service->client.post(out.job->service->acts("/pause"), json::object()))
            : server::ask(out.job->run, {{"request", "preempt"}});
  } catch (const cluster::Unreachable&) {
    out.error = std::current_exception();
    out.lost = true;
  } catch (const Error&) {
    out.error = std::current_exception();
  }
  return out;
}

}  // namespace

// All are asked before one is waited for, so that they save at the same time, and none is waited
// for longer than from then on: one that does not come to an end delays what is said of the others,
// and that once. A service that gives no answer is asked nothing more.
ExitCode preempt(const LiveCommand& command, Context& context) {
  const std::vector<std::string> jobs = named_jobs(command, context);
  std::vector<Asked> asked;
  bool lost = false;
  for (const std::string& text : jobs) {
    asked.push_back(ask_to_preempt(text, command, context));
    if ((lost = asked.back().lost)) break;
  }
  const auto all_asked = std::chrono::steady_clock::now();
  auto next = asked.begin();
  const auto await = [&](const std::string&) -> OrderedJson {
    const Asked& one = *next++;
    if (one.error) std::rethrow_exception(one.error);
    if (one.job->service && lost) {
      if (!command.json)
        context.console.say("job {} was asked to pause, and is not waited for",
                            one.job->service->id);
      return one.answer;
    }
    std::string became;
    if (one.job->service) {
      became = await_pause(*one.job->service, all_asked);
    } else {
      server::await_end(one.job->run, kPreemptPatience, all_asked);
      became = server::what_became_of(one.job->run);
    }
    if (!command.json) context.console.say("{}", became);
    return one.answer;
  };
  return for_each_job(jobs, command.json, context.console, await,
                      lost ? "not asked" : "asked and not waited for");
}

namespace {

ExitCode resume_run(const fs::path& run, const LiveCommand& command, Context& context) {
  if (server::has_controller(run)) {  // it is being preempted: that is taken back
    const json answer =
        server::ask(run, {{"request", "resume"}, {"workers", command.workers.value_or(0)}});
    print_answer(command, context.console, answer, "resuming");
    return kDone;
  }
  TrainCommand again;
  again.resume = run;
  again.workers = command.workers;
  again.hosts = command.hosts;
  again.trust = command.trust;
  again.json = command.json;
  return train(again, context);
}

json resume_of_service(const JobReference& job, const LiveCommand& command, Console& console) {
  if (!job.service)
    fail(ErrorCode::invalid_argument,
         "{}: a run of its own trains in this terminal, so it is resumed alone", job.run.string());
  const int64_t id = job.service->id;
  if (command.workers || command.hosts.hosts)
    fail(ErrorCode::invalid_argument, "{}",
         job.service->client.with_option(
             fmt::format("--workers and --hosts are of a run of its own; of a service's job "
                         "`ductile resize {} N` says how many devices it is to have",
                         id)));
  json answer = job.service->client.post(job.service->acts("/resume"), json::object());
  if (!command.json) console.say("job {} goes on when it is its turn", id);
  return answer;
}

}  // namespace

ExitCode resume(const LiveCommand& command, Context& context) {
  const std::vector<std::string> jobs = named_jobs(command, context);
  if (jobs.size() == 1) {
    const JobReference job = find_one(jobs.front(), command, context);
    if (!job.service) return resume_run(job.run, command, context);
  }
  return for_each_job(
      jobs, command.json, context.console, [&](const std::string& text) -> OrderedJson {
        return resume_of_service(find_one(text, command, context), command, context.console);
      });
}

namespace {

// What is written to a file, as it comes; the file may not be there yet, and another one may take
// its place.
class FollowedFile {
 public:
  // Throws invalid_argument for what could keep the reader waiting, as a FIFO does, which a command
  // may have put there.
  bool open(const fs::path& path) {
    if (file_.is_open()) return true;
    if (!is_file(path)) return false;
    path_ = path;
    file_.open(path, std::ios::binary);
    is_another();
    return file_.is_open();
  }
  std::string rest() {
    std::string text = rest_of_this();
    if (!is_another() || !is_file(path_)) return text;
    text += rest_of_this();  // what was written to it before the other one came
    file_.close();
    file_.open(path_, std::ios::binary);
    return text + rest_of_this();
  }

 private:
  std::string rest_of_this() {
    file_.clear();
    return {std::istreambuf_iterator<char>(file_), std::istreambuf_iterator<char>()};
  }
  // Whether another file has the name since the last look.
  bool is_another() {
    struct stat now {};
    if (::stat(path_.c_str(), &now) != 0) return false;
    const bool other = now.st_dev != seen_.st_dev || now.st_ino != seen_.st_ino;
    seen_ = now;
    return other;
  }

  fs::path path_;
  std::ifstream file_;
  struct stat seen_ {};
};

// What a run says, as it comes: its numbers, and behind these what its workers print.
class LogReader {
 public:
  explicit LogReader(Console& console) : console_(console) {}

  bool open(const fs::path& run) {
    run_ = run;
    const bool prints = log_.open(run / "worker.log");
    return numbers_.open(run / "metrics.jsonl") || prints;
  }
  void print_last(int64_t lines) {
    const std::string text = news();
    console_.out() << text.substr(static_cast<size_t>(tail_begin(text, lines))) << std::flush;
  }
  void print_rest() { console_.out() << news() << std::flush; }

 private:
  std::string news() {
    std::string out;
    if (numbers_.open(run_ / "metrics.jsonl")) out = numbers_text_.add(numbers_.rest());
    return log_.open(run_ / "worker.log") ? out + log_.rest() : out;
  }

  Console& console_;
  fs::path run_;
  FollowedFile log_, numbers_;
  MetricText numbers_text_;
};

// The same of a job of a service on another machine, which sends it.
class RemoteLog {
 public:
  RemoteLog(const JobReference::OfService& job, Console& console) : job_(job), console_(console) {}

  void print_last(int64_t lines) {
    look();
    unprinted_.erase(0, static_cast<size_t>(tail_begin(unprinted_, lines)));
    print();
  }
  void print_rest() {
    look();
    print();
  }

 private:
  // What came before a request failed is printed after the next one.
  void look() {
    try {
      read(numbers_, "/metrics",
           [&](const std::string& text) { unprinted_ += numbers_text_.add(text); });
    } catch (const Error& older) {  // than this route
      if (older.code() != ErrorCode::not_found) throw;
    }
    read(log_, "/log", [&](const std::string& text) { unprinted_ += text; });
  }
  void print() { console_.out() << std::exchange(unprinted_, {}) << std::flush; }
  // What came since the last call; at first the end of what there is.
  template <class Take>
  void read(std::optional<int64_t>& next, const std::string& what, const Take& take) {
    for (bool more = true; more;) {
      const std::string from = next ? fmt::format("?from={}", *next) : "";
      const json answer = job_.client.get(job_.path((what + from).c_str()));
      const auto now = answer.at("next").get<int64_t>();
      take(answer.at("text").get<std::string>());
      more = next && *next != now;
      next = now;
    }
  }

  const JobReference::OfService& job_;
  Console& console_;
  std::optional<int64_t> log_, numbers_;
  MetricText numbers_text_;
  std::string unprinted_;
};

// Until the job has ended, also while the service is away.
ExitCode follow_remote(const JobReference::OfService& job, int64_t lines, Console& console,
                       Absence absence) {
  RemoteLog log(job, console);
  bool begun = false;
  for (;; std::this_thread::sleep_for(kLookThere)) {
    try {
      const nlohmann::ordered_json record = job.record();
      if (record.at("run") != "") begun ? log.print_rest() : log.print_last(lines);
      begun = begun || record.at("run") != "";
      absence.end();
      if (record.at("ended").is_null()) continue;
      console.say("job {} is {}: {}", job.id, record.at("phase").get<std::string>(),
                  record.at("reason").get<std::string>());
      return record.at("phase") == "finished" ? kDone : kJobFailed;
    } catch (const Error& error) {
      absence.begin(error);
    }
  }
}

// Across preemptions, waiting and restarts of the service, until the job has ended.
ExitCode follow(const JobReference::OfService& job, int64_t lines, Console& console,
                Absence absence) {
  LogReader log(console);
  bool begun = false;
  for (;; std::this_thread::sleep_for(kLook)) {
    nlohmann::ordered_json record;
    try {
      record = job.record();  // before reading: nothing is missed at the end
      absence.end();
    } catch (const Error& error) {
      absence.begin(error);
    }
    const std::string run = record.is_null() ? "" : record.at("run").get<std::string>();
    if (begun || (!run.empty() && log.open(run))) {
      begun ? log.print_rest() : log.print_last(lines);
      begun = true;
    }
    if (record.is_null() || record.at("ended").is_null()) continue;
    console.say("job {} is {}: {}", job.id, record.at("phase").get<std::string>(),
                record.at("reason").get<std::string>());
    return record.at("phase") == "finished" ? kDone : kJobFailed;
  }
}

}  // namespace

ExitCode logs(const LiveCommand& command, Context& context) {
  const JobReference job = named(command, context);
  const Absence absence(context.console, command.patience);
  if (job.service && !job.service->client.is_local()) {
    if (command.follow) return follow_remote(*job.service, command.lines, context.console, absence);
    RemoteLog(*job.service, context.console).print_last(command.lines);
    return kDone;
  }
  if (job.service && command.follow)
    return follow(*job.service, command.lines, context.console, absence);
  const fs::path run = run_of(job);
  LogReader log(context.console);
  if (!log.open(run))
    fail(ErrorCode::not_found, "{}: no worker has said anything yet",
         (run / "worker.log").string());
  log.print_last(command.lines);
  for (bool live = command.follow; live;) {
    live = server::has_controller(job.run);  // before reading: nothing is missed at the end
    log.print_rest();
    if (live) std::this_thread::sleep_for(kLook);
  }
  return kDone;
}

}  // namespace ductile::cli
