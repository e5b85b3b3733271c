#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/cli/commands.h"
#include "ductile/fleet/job_reference.h"
#include "ductile/fleet/service_request_impl.h"
#include "ductile/page/terminal.h"
#include "ductile/run/folder.h"
#include "ductile/server/client.h"
#include "ductile/server/job_host.h"

namespace ductile::cli {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kPreemptPatience{120};
constexpr std::chrono::milliseconds kLook{100};
constexpr std::chrono::milliseconds kLookHere{20};     // for what takes less than a second
constexpr std::chrono::milliseconds kLookThere{1000};  // over a network

JobReference named(const LiveCommand& command, const Context& context) {
  return find_job(command.job, command.at, context);
}

// Of a service's job: until it holds nothing any more.
void await_pause(const JobReference::OfService& job) {
  const auto deadline = std::chrono::steady_clock::now() + kPreemptPatience;
  while (job.record().at("phase") == "running") {
    if (std::chrono::steady_clock::now() > deadline)
      fail(ErrorCode::deadline,
           "job {} still saves after {} seconds; `ductile why {}` says what it does", job.id,
           kPreemptPatience.count(), job.id);
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

// What a run's controller says of it.
void print_status(Console& console, const json& answer) {
  const auto number = [&](const char* key) {
    return std::to_string(answer.at(key).get<int64_t>());
  };
  const int64_t checkpoint = answer.at("checkpoint");
  console.print(
      "{}", page::table({{"phase", answer.at("phase").get<std::string>()},
                         {"now", answer.at("why").get<std::string>()},
                         {"step", number("step")},
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
  if (job.service) console.print("{}{}", job_table(record), trains ? "\n" : "");
  if (trains) print_status(console, answer);
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
    print_answer(command, context.console, answer,
                 fmt::format("resizing to {} workers", *command.workers));
    return kDone;
  }
  json body = json::object();
  if (const auto least = command.workers ? command.workers : command.min)
    body["min_devices"] = *least;
  if (const auto most = command.workers ? command.workers : command.max)
    body["max_devices"] = *most;
  const json answer = job.service->client.post(job.service->path("/resize"), body);
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
  const json answer = job.service->client.post(job.service->path("/reload"), body);
  print_answer(command, context.console, answer,
               command.checkpoint
                   ? fmt::format("job {} is to answer with the weights of step {}", job.service->id,
                                 *command.checkpoint)
                   : fmt::format("job {} is to answer with the newest weights", job.service->id));
  return kDone;
}

ExitCode preempt(const LiveCommand& command, Context& context) {
  const JobReference job = named(command, context);
  if (job.service) {
    const json answer = job.service->client.post(job.service->path("/pause"), json::object());
    await_pause(*job.service);
    print_answer(command, context.console, answer,
                 fmt::format("paused; to go on: ductile resume {}", job.service->id));
    return kDone;
  }
  const json answer = server::ask(job.run, {{"request", "preempt"}});
  server::await_end(job.run, kPreemptPatience);
  print_answer(command, context.console, answer,
               fmt::format("preempted; to go on: ductile resume {}", job.run.string()));
  return kDone;
}

ExitCode resume(const LiveCommand& command, Context& context) {
  const JobReference job = named(command, context);
  if (job.service) {
    if (command.workers || command.hosts.hosts)
      fail(
          ErrorCode::invalid_argument,
          "--workers and --hosts are of a run of its own; of a service's job `ductile resize {} N` "
          "says how many devices it is to have",
          job.service->id);
    const json answer = job.service->client.post(job.service->path("/resume"), json::object());
    print_answer(command, context.console, answer,
                 fmt::format("job {} goes on when it is its turn", job.service->id));
    return kDone;
  }
  if (server::has_controller(job.run)) {  // it is being preempted: that is taken back
    const json answer =
        server::ask(job.run, {{"request", "resume"}, {"workers", command.workers.value_or(0)}});
    print_answer(command, context.console, answer, "resuming");
    return kDone;
  }
  TrainCommand again;
  again.resume = job.run;
  again.workers = command.workers;
  again.hosts = command.hosts;
  again.trust = command.trust;
  again.json = command.json;
  return train(again, context);
}

namespace {

// What is written to a file, as it comes; the file may not be there yet.
class LogReader {
 public:
  explicit LogReader(Console& console) : console_(console) {}

  bool open(const fs::path& file) {
    if (!log_.is_open()) log_.open(file, std::ios::binary);
    return log_.is_open();
  }
  void print_last(int64_t lines) {
    const std::string text = rest();
    console_.out() << text.substr(static_cast<size_t>(tail_begin(text, lines))) << std::flush;
  }
  void print_rest() { console_.out() << rest() << std::flush; }

 private:
  std::string rest() {
    log_.clear();
    return {std::istreambuf_iterator<char>(log_), std::istreambuf_iterator<char>()};
  }

  Console& console_;
  std::ifstream log_;
};

// The same of a job of a service on another machine, which sends it.
class RemoteLog {
 public:
  RemoteLog(const JobReference::OfService& job, Console& console) : job_(job), console_(console) {}

  void print_last(int64_t lines) {
    const json answer = job_.client.get(job_.path("/log"));
    next_ = answer.at("next");
    const auto text = answer.at("text").get<std::string>();
    console_.out() << text.substr(static_cast<size_t>(tail_begin(text, lines))) << std::flush;
  }
  void print_rest() {
    while (true) {
      const json answer = job_.client.get(job_.path(fmt::format("/log?from={}", next_).c_str()));
      if (answer.at("next") == next_) break;
      next_ = answer.at("next");
      console_.out() << answer.at("text").get<std::string>();
    }
    console_.out() << std::flush;
  }

 private:
  const JobReference::OfService& job_;
  Console& console_;
  int64_t next_ = 0;
};

// A service that is away, or busy.
bool may_come_back(const Error& error) {
  return error.code() == ErrorCode::unavailable || error.code() == ErrorCode::deadline;
}

// Until the job has ended, also while the service is away.
ExitCode follow_remote(const JobReference::OfService& job, int64_t lines, Console& console) {
  RemoteLog log(job, console);
  bool begun = false, said = false;
  for (;; std::this_thread::sleep_for(kLookThere)) {
    try {
      const nlohmann::ordered_json record = job.record();
      if (record.at("run") != "") begun ? log.print_rest() : log.print_last(lines);
      begun = begun || record.at("run") != "";
      said = false;
      if (record.at("ended").is_null()) continue;
      console.say("job {} is {}: {}", job.id, record.at("phase").get<std::string>(),
                  record.at("reason").get<std::string>());
      return record.at("phase") == "finished" ? kDone : kJobFailed;
    } catch (const Error& error) {
      if (!may_come_back(error)) throw;
      if (!std::exchange(said, true)) console.say("{}; waiting for it", error.what());
    }
  }
}

// Across preemptions, waiting and restarts of the service, until the job has ended.
ExitCode follow(const JobReference::OfService& job, int64_t lines, Console& console) {
  LogReader log(console);
  bool begun = false, said = false;
  for (;; std::this_thread::sleep_for(kLook)) {
    nlohmann::ordered_json record;
    try {
      record = job.record();  // before reading: nothing is missed at the end
      said = false;
    } catch (const Error& error) {
      if (!may_come_back(error)) throw;
      if (!std::exchange(said, true)) console.say("{}; waiting for it", error.what());
    }
    const std::string run = record.is_null() ? "" : record.at("run").get<std::string>();
    if (begun || (!run.empty() && log.open(fs::path(run) / "worker.log"))) {
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
  if (job.service && !job.service->client.is_local()) {
    if (command.follow) return follow_remote(*job.service, command.lines, context.console);
    RemoteLog(*job.service, context.console).print_last(command.lines);
    return kDone;
  }
  if (job.service && command.follow) return follow(*job.service, command.lines, context.console);
  const fs::path file = run_of(job) / "worker.log";
  LogReader log(context.console);
  if (!log.open(file))
    fail(ErrorCode::not_found, "{}: no worker has said anything yet", file.string());
  log.print_last(command.lines);
  for (bool live = command.follow; live;) {
    live = server::has_controller(job.run);  // before reading: nothing is missed at the end
    log.print_rest();
    if (live) std::this_thread::sleep_for(kLook);
  }
  return kDone;
}

}  // namespace ductile::cli
