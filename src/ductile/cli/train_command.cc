#include <algorithm>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/paths.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/elastic_run.h"
#include "ductile/cli/trust.h"
#include "ductile/cli/worker_process.h"
#include "ductile/page/numbers.h"
#include "ductile/page/terminal.h"
#include "ductile/process/worker.h"
#include "ductile/run/diary.h"
#include "ductile/run/folder.h"
#include "ductile/run/history.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/lock.h"
#include "ductile/run/progress.h"
#include "ductile/run/progress_line.h"
#include "ductile/run/report.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;

// The worker links torch and can load the library of a user's own model: whether its bits are the
// same with any number of threads.
bool thread_invariant(const fs::path& worker, const std::string& library) {
  WorkerLaunch launch;
  launch.program = worker;
  launch.arguments = {"--model", library};
  launch.environment = process::worker_environment(1);
  launch.log = "/dev/null";
  std::optional<bool> answer;
  std::optional<run::Failed> failed;
  run_worker(launch, [&](std::string_view line) {
    const auto known = run::decode(line);
    if (!known) return;
    if (const auto* done = std::get_if<run::Done>(&*known))
      answer = done->figures.value("thread_invariant", false);
    if (const auto* f = std::get_if<run::Failed>(&*known)) failed = *f;
  });
  if (failed) throw Error(failed->code, failed->text);
  if (!answer) {
    fail(ErrorCode::unavailable, "{} --model {} ended without an answer; run it by hand to see why",
         worker.string(), library);
  }
  return *answer;
}

// Where train.threads leaves the number open and the bits depend on it, it is 1 for the job's life.
void settle_threads(const fs::path& worker, JobConfig& config, Console& console) {
  spec::JobOptions& job = config.job;
  if (job.train.threads > 0 || job.model.library.empty()) return;
  if (thread_invariant(worker, job.model.library)) return;
  job.train.threads = 1;
  console.say(
      "train.threads = 1 for the life of the job: the results of model.library may depend on the "
      "number; --workers uses more cores");
}

// The run directory of a new run, with the resolved job in it.
run::RunFolder new_run(const TrainCommand& command, JobConfig& config, const fs::path& worker,
                       Console& console) {
  config.make_paths_absolute();
  settle_threads(worker, config, console);
  const std::string job = config.options.to_toml();
  if (!command.out) return run::RunFolder::create(config.job.runs, config.job.name, job);
  try {
    return run::RunFolder::create_at(*command.out, job);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::conflict) throw;
    if (kind_of(*command.out / "job.toml") == FileKind::none)
      fail(ErrorCode::conflict,
           "--out {}: exists already, and is no run; remove it, or name another",
           command.out->string());
    fail(ErrorCode::conflict,
         "--out {0}: exists already; name another folder, or go on with `ductile train --resume "
         "{0}`",
         command.out->string());
  }
}

// What a worker says while it runs, sorted.
class Listener {
 public:
  Listener(Console& console, bool bar) : console_(console) {
    if (bar) bar_.emplace(STDERR_FILENO);
  }

  void line(std::string_view text) {
    const auto known = run::decode(text);
    if (!known) return;
    if (const auto* progress = std::get_if<run::Progress>(&*known)) {
      if (bar_) bar_->show(run::progress_line(*progress));
    } else if (const auto* done = std::get_if<run::Done>(&*known)) {
      done_ = done->figures;
    } else if (const auto* failed = std::get_if<run::Failed>(&*known)) {
      error_ = failed->text;
    } else {
      message(std::get<run::Message>(*known));
    }
  }

  // What the controller of several workers notes and a user wants to know at once.
  void note(const control::Note& note) {
    for (const std::string_view event : {"lost", "launch_failed", "checkpoint_failed",
                                         "checkpoint_unreadable", "disk", "report", "signal"}) {
      if (note.event == event) return message({"warning", note.text});
    }
    if (note.event == "resize" || note.event == "generation") message({"info", note.text});
  }

  void finish() {
    if (bar_) bar_->finish();
    bar_.reset();
  }

  void leave_report(const run::RunFolder& folder) {
    if (const std::string text = run::leave_report(folder); !text.empty())
      message({"warning", text});
  }

  const Json& done() const { return done_; }  // null until the worker is done
  void done(Json figures) { done_ = std::move(figures); }
  const std::string& error() const { return error_; }  // empty where it named none

 private:
  void message(const run::Message& m) {
    if (m.level == "info" && console_.verbosity < 0) return;
    if (bar_) {
      bar_->message(m.text);
    } else {
      console_.err() << m.text << std::endl;
    }
  }

  Console& console_;
  std::optional<page::ProgressBar> bar_;
  Json done_;
  std::string error_;
};

// What the controller wrote at the run's end; null where there is nothing.
Json last_summary(const run::RunFolder& folder) {
  Json summary;
  run::for_each_diary_line(folder.events_file(), [&](const nlohmann::json& line) {
    if (line.value("kind", nlohmann::json()) == "end") summary = Json(line);
  });
  return summary;
}

// 0: as many as before. Hosts that are named get as many as they take.
int64_t count_workers(const TrainCommand& command, const server::Fleet& fleet,
                      const spec::JobOptions& job) {
  int64_t places = 0;
  for (const server::Host& host : fleet.hosts) places += std::max<int64_t>(host.places, 1);
  if (command.workers) {
    if (const int64_t most = fleet.places(); most > 0 && *command.workers > most)
      fail(ErrorCode::invalid_argument, "--workers {}: the hosts take {}", *command.workers, most);
    check_workers(job, fleet, *command.workers);
    return *command.workers;
  }
  return command.hosts.hosts ? std::min(places, job.train.virtual_ranks) : 0;
}

std::string resume_command(const run::RunFolder& folder) {
  return fmt::format("ductile train --resume {}", folder.path().string());
}

// How a run ended, for people and for programs.
struct Outcome {
  ExitCode code = kDone;
  std::string status;  // done, interrupted, failed
  std::string error;   // for failed: what the worker said last
};

Outcome outcome_of(const WorkerEnd& end, const Listener& listener, const run::RunFolder& folder) {
  if (end.signal == 0 && end.exit_code == 0) {
    if (!listener.done().is_null()) return {kDone, "done", ""};
    return {
        kJobFailed, "failed",
        "the worker ended (exit code 0) without a word of its result: something in it, such as a "
        "model of your own, ended the process"};
  }
  if (end.interrupted && (end.exit_code == kInterrupted || end.signal != 0)) {
    return {kInterrupted, "interrupted", ""};
  }
  if (end.signal == 0 && end.exit_code == kInterrupted) return {kInterrupted, "interrupted", ""};
  if (!listener.error().empty()) {  // the worker ended by itself and said why
    return {end.exit_code == kUsage ? kUsage : kJobFailed, "failed", listener.error()};
  }
  const std::string log = process::log_tail(folder.log_file(), 10);
  std::string how =
      end.signal != 0
          ? fmt::format("killed by {} ({})",
                        sigabbrev_np(end.signal) ? sigabbrev_np(end.signal) : "signal", end.signal)
          : fmt::format("exit code {}", end.exit_code);
  if (end.signal == SIGKILL) how += "; the kernel does this when memory runs out";
  return {end.signal == 0 && end.exit_code == kUsage ? kUsage : kJobFailed, "failed",
          fmt::format("the worker died ({}){}{}", how, log.empty() ? "" : ":\n", log)};
}

Outcome outcome_of(const server::JobEnd& end) {
  if (end.killed || end.phase == control::Phase::preempted)
    return {kInterrupted, "interrupted", ""};
  if (end.phase == control::Phase::finished) return {kDone, "done", ""};
  return {kJobFailed, "failed", end.reason};
}

// The numbers of a run that people ask for first; `done` is the worker's last line.
void print_summary(Console& console, const Json& done, const run::RunFolder& folder) {
  std::vector<std::vector<std::string>> rows;
  const auto number = [](const Json& from, const char* key) -> std::optional<double> {
    if (!from.is_object() || !from.contains(key) || !from[key].is_number()) return std::nullopt;
    return from[key].get<double>();
  };
  const auto row = [&](const char* name, std::optional<double> value, auto&& text) {
    if (value) rows.push_back({name, text(*value)});
  };
  const Json nothing = Json::object();
  const auto part = [&](const char* key) -> const Json& {
    return done.is_object() && done.contains(key) ? done[key] : nothing;
  };
  if (done.is_object() && done.value("status", "") == "target_reached")
    rows.push_back({"ending", "target reached"});
  row("steps", number(done, "step"), page::with_thousands);
  row("epochs", number(done, "epoch"), page::as_number);
  row("accuracy", number(part("final"), "accuracy"), page::as_percent);
  row("loss", number(part("final"), "loss"), page::as_number);
  row("best accuracy", number(part("best"), "accuracy"), page::as_percent);
  row("samples/s", number(done, "samples_per_second"), page::with_thousands);
  row("time", number(part("cost"), "wall_seconds"), page::as_duration);
  row("core time", number(part("cost"), "core_seconds"), page::as_duration);
  row("energy", number(part("cost"), "energy_joules"),
      [](double joules) { return page::with_thousands(joules) + " J"; });
  rows.push_back({"run", folder.path().string()});
  rows.push_back({"report", folder.report_file().string()});
  console.print("{}", page::table(rows));
}

}  // namespace

ExitCode train(const TrainCommand& command, Context& context) {
  Console& console = context.console;
  JobConfig config;
  if (command.resume) {
    const run::RunFolder folder = run::RunFolder::open(*command.resume);
    config.read({folder.job_file(), {}}, nullptr);
  } else {
    config.read(command.job, context.environment);
    if (command.runs) config.job.runs = command.runs->string();
  }
  if (command.dry_run) {
    if (command.json) {
      console.print("{}\n", dump_json(config.options.to_json(), 2));
    } else {
      console.print("{}", config.options.to_toml());
    }
    return kDone;
  }
  if (command.resume && !command.trust)
    require_trusted(run::RunFolder::open(*command.resume).path());
  // Once a job has had a controller only a controller knows which of its checkpoints count.
  const fs::path before = command.resume ? run::RunFolder::open(*command.resume).path() : "";
  const server::Fleet fleet =
      fleet_of(command.hosts, command.resume ? server::load_fleet(before) : server::Fleet());
  const bool elastic =
      command.workers || !fleet.hosts.empty() || (command.resume && server::was_elastic(before));
  const int64_t workers = count_workers(command, fleet, config.job);
  const fs::path program = process::find_worker();
  const run::RunFolder folder = command.resume ? run::RunFolder::open(*command.resume)
                                               : new_run(command, config, program, console);
  // Before anything in the folder is changed; a plain worker holds it as well, since it may outlive
  // this process.
  const run::RunLock lock(folder.path(),
                          elastic ? run::RunLock::kController : run::RunLock::kPlain);
  folder.remove_leftovers();
  if (command.resume) settle_threads(program, config, console);  // of a version that left it open
  console.say("run {}", folder.path().string());

  Listener listener(console, console.verbosity >= 0 && !command.json);
  Outcome outcome;
  if (elastic) {
    ElasticRun run{program, workers, fleet, command.hosts.hosts.has_value(), {}, {}};
    run.on_line = [&](std::string_view line) { listener.line(line); };
    run.on_note = [&](const control::Note& note) { listener.note(note); };
    try {
      outcome = outcome_of(run_elastic(lock, folder, config.job, run));
    } catch (const Error& e) {  // what is stored of the job keeps it from going on, or the machine
      if (e.code() != ErrorCode::data_loss && e.code() != ErrorCode::unavailable) throw;
      outcome = {kJobFailed, "failed", e.what()};
    }
    listener.done(last_summary(folder));
    listener.finish();
  } else {
    WorkerLaunch launch;
    launch.program = program;
    launch.arguments = {"--run", folder.path().string()};
    if (command.resume) launch.arguments.push_back("--resume");
    launch.environment = process::worker_environment(config.job.train.threads);
    launch.log = folder.log_file();
    launch.kept_fd = lock.fd();
    for (const auto& [name, value] : launch.environment)
      console.explain("worker: {}={}", name, value);
    const WorkerEnd end = run_worker(launch, [&](std::string_view line) { listener.line(line); });
    listener.finish();
    // Its last word to us may have got lost; what it wrote down has not.
    if (listener.done().is_null()) {
      const run::Status status = run::read_history(folder).status;
      if (status == run::Status::done || status == run::Status::target_reached)
        listener.done(last_summary(folder));
    }
    outcome = outcome_of(end, listener, folder);
  }
  if (outcome.status == "failed" && !elastic)
    listener.leave_report(folder);  // a dead worker wrote none
  if (command.json) {
    Json result = {{"status", outcome.status},
                   {"run", folder.path().string()},
                   {"report", folder.report_file().string()},
                   {"result", listener.done()}};
    if (!outcome.error.empty()) result["error"] = outcome.error;
    if (outcome.code != kDone) result["resume"] = resume_command(folder);
    console.print("{}\n", dump_json(result, 2));
  } else if (outcome.code == kDone) {
    print_summary(console, listener.done(), folder);
  }
  if (outcome.status == "failed") console.error(outcome.error);
  if (outcome.code == kInterrupted) {
    console.err() << "Interrupted. To go on: " << resume_command(folder) << std::endl;
  } else if (outcome.code == kJobFailed) {
    console.err() << "The log is " << folder.log_file().string() << std::endl;
    if (!ckpt::list(folder.checkpoints()).empty()) {
      console.err() << "To go on from the last checkpoint: " << resume_command(folder) << std::endl;
    }
  }
  return outcome.code;
}

}  // namespace ductile::cli
