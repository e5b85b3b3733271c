#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/base/paths.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/digest.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/elastic_run.h"
#include "ductile/cli/existing_run.h"
#include "ductile/cli/other_plan.h"
#include "ductile/cli/own_plan.h"
#include "ductile/cli/pipeline_plan.h"
#include "ductile/cli/plan_memory.h"
#include "ductile/cli/plan_placement.h"
#include "ductile/cli/replan.h"
#include "ductile/cli/run_summary.h"
#include "ductile/cli/saved_job.h"
#include "ductile/cli/trust.h"
#include "ductile/cli/weights_import.h"
#include "ductile/cli/worker_process.h"
#include "ductile/link/plan_change.h"
#include "ductile/page/numbers.h"
#include "ductile/page/terminal.h"
#include "ductile/process/worker.h"
#include "ductile/run/checkpoints.h"
#include "ductile/run/diary.h"
#include "ductile/run/folder.h"
#include "ductile/run/history.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/lock.h"
#include "ductile/run/new_folder.h"
#include "ductile/run/progress.h"
#include "ductile/run/progress_line.h"
#include "ductile/run/report.h"
#include "ductile/run/trace.h"
#include "ductile/run/tuning_cost.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;

// The worker links torch and can load the library of a user's own model: whether its bits are the
// same with any number of threads.
bool thread_invariant(const std::string& library) {
  const auto answer = ask_worker({.arguments = {"--model", library}});
  return answer && answer->value("thread_invariant", false);
}

// Where train.threads leaves the number open and the bits depend on it, it is 1 for the job's life.
void settle_threads(JobConfig& config, Console& console) {
  spec::JobOptions& job = config.job;
  if (job.train.threads > 0) return;
  if (!job.python.object.empty()) {
    job.train.threads = 1;
    console.say(
        "train.threads = 1 for the life of the job, since results of a model of your own "
        "may depend on the number; --workers uses more cores");
    return;
  }
  if (job.model.library.empty()) return;
  if (thread_invariant(job.model.library)) return;
  job.train.threads = 1;
  console.say(
      "train.threads = 1 for the life of the job: the results of model.library may depend on the "
      "number; --workers uses more cores");
}

// The run directory of a new run, with these files and the resolved job in it.
run::RunFolder new_run(const TrainCommand& command, JobConfig& config,
                       std::span<const run::FirstFile> files, Console& console) {
  config.make_paths_absolute();
  settle_threads(config, console);
  const std::string job = config.options.to_toml();
  if (!command.out) return run::create_folder(config.job.runs, config.job.name, job, files);
  try {
    return run::create_folder_at(*command.out, job, files);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::conflict) throw;
    refuse_existing(*command.out);
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
    } else if (const auto* failed = std::get_if<run::Failed>(&*known)) {
      error_ = failed->text;
    } else if (const auto* told = std::get_if<run::Message>(&*known)) {
      message(*told);
    }
  }

  // What the controller notes and a user wants to know at once.
  void note(const control::Note& note) {
    // What is tried again every second fails for the same reason for as long as that lasts.
    if (note.event == "checkpoint_failed" && note.text == std::exchange(failed_save_, note.text))
      return;
    for (const std::string_view event :
         {"lost", "silent", "launch_failed", "checkpoint_failed", "checkpoint_unreadable", "disk",
          "unsaved", "report", "signal"}) {
      if (note.event == event) return message({"warning", note.text});
    }
    if (note.event == "resize" || note.event == "generation") message({"info", note.text});
  }

  void finish() {
    if (bar_) bar_->finish();
    bar_.reset();
  }

  const std::string& error() const { return error_; }  // a worker's last word; empty: none

 private:
  void message(const run::Message& m) {
    if (m.level == "info" && console_.verbosity < 0) return;
    if (bar_) {
      bar_->message(m.text);
    } else {
      console_.line(m.text);
    }
  }

  Console& console_;
  std::optional<page::ProgressBar> bar_;
  std::string error_;
  std::string failed_save_;  // the last one that was told
};

// What the controller wrote at the run's end, what trials inside the run cost, and with which batch
// a run ended that changed it; null where there is nothing.
Json last_summary(const run::RunFolder& folder) {
  Json summary;
  std::vector<nlohmann::json> events;  // those that say what trials cost
  double batch = NAN;
  run::for_each_diary_line(folder.events_file(), [&](nlohmann::json& line) {
    const nlohmann::json kind = line.value("kind", nlohmann::json());
    if (kind == "end") summary = Json(line);
    if (kind == "hyper" && line.contains("hyper") && line["hyper"].is_object())
      batch = run::number_at(line["hyper"], "batch_size", batch);
    if (kind == "tune" || kind == "start" || kind == "resume" || kind == "end")
      events.push_back(std::move(line));
  });
  if (!summary.is_object()) return summary;
  for (const char* key : {"kind", "time", "seconds"}) summary.erase(key);
  if (std::isfinite(batch)) summary["last_batch"] = std::llround(batch);
  if (const nlohmann::json tuning = run::tuning_json(events); !tuning.is_null())
    summary["tuning"] = Json(tuning);
  return summary;
}

// 0: as many as before. Hosts that are named get as many as they take.
int64_t count_workers(const TrainCommand& command, const server::HostSetup& setup,
                      const spec::JobOptions& job) {
  int64_t places = 0;
  for (const server::Host& host : setup.hosts) places += std::max<int64_t>(host.places, 1);
  if (command.workers) {
    if (const int64_t most = setup.places(); most > 0 && *command.workers > most)
      fail(ErrorCode::invalid_argument, "--workers {}: the hosts take {}", *command.workers, most);
    check_workers(job, setup, *command.workers);
    return *command.workers;
  }
  return command.hosts.hosts ? std::min(places, job.train.virtual_ranks) : 0;
}

// Whether so many workers, or as many as before, have room for the plan that was given.
void check_room(const TrainCommand& command, const spec::JobOptions& job, const std::string& plan,
                int64_t workers, const server::HostSetup& setup) {
  if (!command.plan) return;
  const int64_t before =
      command.resume ? Replanner::workers_before(run::RunFolder::open(*command.resume)) : 1;
  check_fewest(job, plan, *command.plan, workers > 0 ? workers : before, setup);
}

std::string resume_command(const run::RunFolder& folder) {
  return fmt::format("ductile train --resume {}", folder.path().string());
}

// How a run ended, for people and for programs.
struct Outcome {
  ExitCode code = kDone;
  std::string status;     // done, interrupted, failed
  std::string error;      // of a failed one
  bool resumable = true;  // failed: the same command may get further when something was mended
  ErrorCode error_code = ErrorCode::internal;  // of a failed one
  std::string lost = {};                       // interrupted: what was not saved, in words
};

Outcome failed(ErrorCode code, const std::string& text) {
  // A job that is not as it has to be fails again, however often it is tried.
  if (code == ErrorCode::invalid_argument) return {kUsage, "failed", text, false, code};
  // Nor does one get further whose files are damaged: its message says what has to be mended first.
  return {kJobFailed, "failed", text, code != ErrorCode::conflict && code != ErrorCode::data_loss,
          code};
}

Outcome outcome_of(const link::JobEnd& end, const Listener& listener,
                   const run::RunFolder& folder) {
  if (end.killed || end.phase == control::Phase::preempted) {
    Outcome outcome{kInterrupted, "interrupted", ""};
    if (end.killed && end.step > std::max<int64_t>(end.checkpoint, 0))
      outcome.lost =
          fmt::format("The workers were ended before they had saved: {} will be done again.",
                      end.checkpoint > 0 ? fmt::format("the steps since {}", end.checkpoint)
                                         : std::string("all steps"));
    return outcome;
  }
  if (end.phase == control::Phase::finished) return {kDone, "done", ""};
  if (!end.crashed) return failed(end.error_code, end.reason);
  std::string words = listener.error();
  if (words.empty()) words = process::log_tail(folder.log_file(), 10);
  return failed(end.error_code,
                fmt::format("{}{}{}", end.reason, words.empty() ? "" : ":\n", words));
}

// What was read before there was a lock.
struct ReadJob {
  OtherPlan other;      // that was given: without a run to go on with, its text alone
  std::string resumed;  // resumed_job()
};
ReadJob read_job(const TrainCommand& command, Context& context, JobConfig& config) {
  ReadJob read;
  std::string& plan = read.other.text;
  if (command.resume) {
    const run::RunFolder folder = run::RunFolder::open(*command.resume);
    read.resumed = resumed_job(folder, command.plan.has_value());
    config.read_saved_text(read.resumed, folder.job_file());
    if (command.plan) read.other = other_plan(config.job, *command.plan, had_parts(folder));
  } else if (command.replay) {
    config.read_saved(run::RunFolder::open(*command.replay).job_file());
    if (config.job.train.pipelined.replans > 0)
      fail(ErrorCode::conflict,
           "--replay {}: the run went on by another plan, so its result is that of no plan alone, "
           "and cannot be repeated",
           command.replay->string());
  } else if (command.plan) {
    plan = read_planned(command.job, *command.plan, command.plan_text, context.environment, config);
  } else {
    config.read(command.job, context.environment);
  }
  if (command.plan) {
    spec::check(config.job);
    check_memory(config.job, plan, *command.plan);
    const std::string note = note_on_split(config.job, plan, *command.plan);
    if (!note.empty()) context.console.say("{}", note);
    const int64_t ranks = config.job.train.virtual_ranks;
    const bool alone = !command.resume && !command.workers && !command.hosts.hosts;
    if (alone && ranks > 1 && !command.dry_run)
      context.console.say(
          "one worker hosts all of the plan, whose stages take turns; --workers {} runs them side "
          "by side",
          ranks);
  }
  if (!command.resume && !command.replay) config.warn(context.console);
  if (command.runs) config.job.runs = command.runs->string();
  return read;
}

// What becomes of it. Returns whether the run is to go on by the plan of before: nobody asked this
// command for the one that was refused.
bool settle_plan(const TrainCommand& command, const Outcome& outcome, const run::RunFolder& folder,
                 link::PlanChange& change, Console& console) {
  if (!change.is_open()) return false;
  if (outcome.code == kDone) {  // no step was left to do, and the report is there already
    change.accept();
    if (const std::string trouble = run::leave_report(folder); !trouble.empty())
      console.say("{}", trouble);
  }
  if (outcome.code != kUsage || change.stays()) return false;
  // Before the plan: a kill in between leaves one that is taken back once more.
  if (change.workers_before() > 0) leave_state(folder, change.workers_before());
  change.take_back();
  if (command.plan) return false;
  console.say("the plan that the run was given last is refused: {}; it goes on by the one before",
              outcome.error);
  return true;
}

// Weights that a new run begins with. They are read before there is a run.
class GivenWeights {
 public:
  GivenWeights(const fs::path& file, const JobConfig& config) {
    import_weights({&file, 1},
                   {.interpreter = config.job.python.interpreter, .zygote = config.loaded}, file_);
    read_ = MappedFile(file_);
  }
  run::FirstFile first_file() const { return {run::kInitialWeights, read_.bytes()}; }

 private:
  TempFolder folder_;
  fs::path file_ = folder_.path() / run::kInitialWeights;
  MappedFile read_;
};

std::unique_ptr<GivenWeights> given_weights(const TrainCommand& command, const JobConfig& config) {
  if (command.weights && config.job.tune.online)
    fail(ErrorCode::invalid_argument,
         "--weights {}: a run that begins with given weights cannot have tune.online = true",
         command.weights->string());
  std::optional<fs::path> file = command.weights;
  if (command.replay) {
    file = run::initial_weights_of(run::RunFolder::open(*command.replay));
    if (kind_of(*file) == FileKind::none) file.reset();
  }
  if (!file) return nullptr;
  return std::make_unique<GivenWeights>(*file, config);
}

// A finished run, as another one repeats it.
struct Original {
  std::string run;
  std::string digest;
  nlohmann::json batches;  // what was ordered, and after how many updates
};

Original original_of(const fs::path& run) {
  const run::RunFolder folder = run::RunFolder::open(run);
  Original out{folder.path().string(), "", nlohmann::json::array()};
  const Json end = last_summary(folder);
  const std::string status = end.is_object() ? end.value("status", "") : "";
  if (status == "done" || status == "target_reached") out.digest = end.value("digest", "");
  const auto saved = ckpt::list(folder.checkpoints());
  if (out.digest.empty() || saved.empty())
    fail(ErrorCode::conflict,
         "--replay {0}: the run has no result to repeat; let it finish first, with "
         "`ductile train --resume {0}`, and with checkpoint.at_end = true",
         run.string());
  // The newest one, which knows all that was ordered.
  const auto newest = ckpt::Checkpoint::open(folder.checkpoints(), saved.front().step);
  if (ckpt::state_digest(newest) != out.digest)
    fail(
        ErrorCode::conflict,
        "--replay {0}: its newest checkpoint, of step {1}, is not the state that it ended with: it "
        "goes on, or its files belong to another run; let it finish, with `ductile train --resume "
        "{0}`, and with checkpoint.at_end = true",
        run.string(), saved.front().step);
  const nlohmann::json::json_pointer where("/extra/rate_control/values/decisions");
  if (newest.state().contains(where)) out.batches = newest.state().at(where);
  return out;
}

// What a run repeats is kept in its folder, for a resumption: files by name.
std::map<std::string, std::string> files_of(const Original& original) {
  const nlohmann::json replay = {
      {"run", original.run}, {"digest", original.digest}, {"batches", original.batches}};
  std::map<std::string, std::string> out = {{"replay.json", dump_json(replay) + "\n"}};
  if (!original.batches.empty())
    out["batch.json"] = dump_json(nlohmann::json{{"replay", original.batches}}) + "\n";
  return out;
}

std::optional<Original> kept(const run::RunFolder& folder) {
  const fs::path file = folder.replay_file();
  if (kind_of(file) == FileKind::none) return std::nullopt;
  const nlohmann::json value = parse_json(read_file(file), file.string(), ErrorCode::data_loss);
  try {
    const JsonFields fields(value, file.string());
    return Original{fields.text("run"), fields.text("digest"), fields.array("batches")};
  } catch (const Error& error) {
    fail(ErrorCode::data_loss,
         "{}; remove the file, and the run goes on without being compared with the one that it "
         "repeats",
         error.message());
  }
}

// A new run has all that it begins with from the moment on at which it is a run. One that was
// killed before it had its weights would begin with drawn ones when it is resumed.
run::RunFolder begin_run(const TrainCommand& command, JobConfig& config, const std::string& plan,
                         const std::optional<Original>& original, Console& console) {
  const std::unique_ptr<GivenWeights> weights = given_weights(command, config);
  std::map<std::string, std::string> texts;
  if (original) texts = files_of(*original);
  if (command.plan) texts["plan.json"] = plan;
  std::vector<run::FirstFile> files;
  for (const auto& [name, text] : texts) files.push_back({name, std::as_bytes(std::span(text))});
  if (weights) files.push_back(weights->first_file());
  return new_run(command, config, files, console);
}

// Whether the new run has the bits of the one that it repeats.
void compare(const Original& original, const Json& figures, Outcome& outcome, Console& console) {
  if (outcome.code != kDone) return;
  const std::string digest = figures.is_object() ? figures.value("digest", "") : "";
  if (digest == original.digest)
    return console.say("the same bits as {}: {}", original.run, digest);
  outcome = {kJobFailed, "failed",
             fmt::format("the result is not that of {}: its digest is {}, and this one's {}; the "
                         "data, the program or the kind of processor is another one",
                         original.run, original.digest, digest),
             false, ErrorCode::conflict};
}

Outcome outcome_of_workers(const run::RunLock& lock, const run::RunFolder& folder,
                           JobConfig& config, const ElasticRun& run, const Listener& listener) {
  try {
    return outcome_of(run_elastic(lock, folder, config.job, run, std::move(config.loaded)),
                      listener, folder);
  } catch (const Error& e) {  // what is stored of the job keeps it from going on, or the machine
    if (e.code() != ErrorCode::data_loss && e.code() != ErrorCode::unavailable) throw;
    return failed(e.code(), e.what());
  }
}

// How the run ended.
ExitCode tell(const TrainCommand& command, const Outcome& outcome, const Json& figures,
              const run::RunFolder& folder, Console& console) {
  if (command.json) {
    Json result = {{"status", outcome.status},
                   {"run", folder.path().string()},
                   {"report", folder.report_file().string()},
                   {"result", figures}};
    if (!outcome.error.empty()) {
      result["error"] = outcome.error;
      result["code"] = to_string(outcome.error_code);
    }
    if (outcome.code != kDone && outcome.resumable) result["resume"] = resume_command(folder);
    console.print("{}\n", dump_json(result, 2));
  } else if (outcome.code == kDone) {
    print_summary(console, figures, folder);
  }
  if (outcome.status == "failed") console.error(outcome.error);
  if (outcome.code == kInterrupted) {
    if (!outcome.lost.empty()) console.err() << outcome.lost << std::endl;
    console.err() << "Interrupted. To go on: " << resume_command(folder) << std::endl;
  } else if (outcome.code == kJobFailed) {
    console.err() << "The log is " << folder.log_file().string() << std::endl;
    if (outcome.resumable && !ckpt::list(folder.checkpoints()).empty()) {
      console.err() << "To go on from the last checkpoint: " << resume_command(folder) << std::endl;
    }
  }
  return outcome.code;
}

// The same run, with so many workers of those that it had.
void go_on(TrainCommand& command, const run::RunFolder& folder, int64_t workers) {
  TrainCommand next;
  next.resume = folder.path();
  next.workers = workers;
  next.trust = true;  // it is the run of this command
  next.json = command.json;
  next.goes_on = true;
  command = std::move(next);
}

ExitCode print_job(const TrainCommand& command, JobConfig& config, Console& console) {
  const std::string text = command.json ? dump_json(config.options.to_json(), 2) + "\n"
                                        : config.options.to_toml();  // its paths as they were given
  if (!check_operators(command, config)) return kInterrupted;
  console.print("{}", text);
  return kDone;
}

// Nothing where it is to be done again. `there`: the hosts that the run still has, where some were
// lost while it ran.
std::optional<ExitCode> carry_out(TrainCommand& command, Context& context,
                                  std::vector<std::string>& there) {
  Console& console = context.console;
  JobConfig config;
  config.keeps_loaded = !command.dry_run && !command.hosts.hosts;
  const auto [other, resumed] = read_job(command, context, config);
  const std::string& plan = other.text;
  std::optional<Original> original;
  if (command.replay) original = original_of(*command.replay);
  const server::HostSetup setup = host_setup_of(
      command.hosts, command.resume
                         ? server::load_host_setup(run::RunFolder::open(*command.resume).path())
                         : server::HostSetup());
  const int64_t workers = count_workers(command, setup, config.job);
  check_room(command, config.job, plan, workers, setup);
  if (command.out && kind_of(*command.out) != FileKind::none) refuse_existing(*command.out);
  if (command.dry_run) return print_job(command, config, console);
  for (const auto& saved : {command.resume, command.replay})
    if (saved && !command.trust) require_trusted(run::RunFolder::open(*saved).path());
  if (setup.hosts.empty())  // before there is a run, or it is changed
    require_data(config.job,
                 command.resume ? "put the data, or a link to them, back there and resume" : "");
  const fs::path program = process::find_worker();
  if (!config.job.python.object.empty()) process::python_worker(program);  // it is there
  if (!check_operators(command, config)) return kInterrupted;
  const run::RunFolder folder = command.resume
                                    ? run::RunFolder::open(*command.resume)
                                    : begin_run(command, config, plan, original, console);
  // Before anything in the folder is changed.
  const run::RunLock lock(folder.path(), run::RunLock::kController);
  folder.remove_leftovers();
  if (command.resume) {
    check_unchanged(folder, resumed, command.plan.has_value());
    original = kept(folder);
    if (command.plan) check_may_change(folder, other, original.has_value());
    if (!command.plan && !link::PlanChange::left_open(folder)) check_saved_job(folder, config.job);
    if (original)
      for (const auto& [name, text] : files_of(*original))
        write_file_atomic(folder.path() / name, text);
    settle_threads(config, console);  // of a version that left it open
  }
  std::optional<link::PlanChange> change =
      changed_plan(command, other, config, folder, program, console);
  console.say("run {}", folder.path().string());
  Replanner replanner(config, folder, setup, program, console);
  const int64_t given =
      command.resume ? replanner.begin(workers, command.hosts.hosts.has_value()) : workers;
  if (replanner.planned_anew()) change = link::PlanChange::left_open(folder);

  const PlanPlacement::Seats seats =
      seats_of_run(config.job, folder, command.plan.value_or(run::plan_file(folder)),
                   hosts_left(setup, there), given, command.hosts.hosts.has_value());
  const bool is_asked = !command.goes_on && !replanner.planned_anew();  // for these hosts
  if (is_asked && !seats.note.empty()) console.say("{}", seats.note);

  Listener listener(console, console.verbosity >= 0 && !command.json);
  ElasticRun run{program, given, setup, command.hosts.hosts.has_value(), {}, {}};
  run.rank_hosts = seats.rank_hosts;
  run.fewest = replanner.fewest();
  run.patience = config.job.train.pipelined.replan_after;
  run.on_short = [&](const WorkersLeft& left) { return replanner.find_plan(left); };
  run.on_interrupt = [&] { replanner.give_up(); };
  run.on_line = [&](std::string_view line) {
    listener.line(line);
    if (change) change->hear(line);
  };
  run.on_note = [&](const control::Note& note) { listener.note(note); };
  Outcome outcome = outcome_of_workers(lock, folder, config, run, listener);
  const Json figures = last_summary(folder);
  listener.finish();
  if (change && settle_plan(command, outcome, folder, *change, console)) return std::nullopt;
  if (const auto left = replanner.put_found()) {
    go_on(command, folder, left->count);
    there = left->hosts;
    return std::nullopt;
  }
  if (original) compare(*original, figures, outcome, console);
  return tell(command, outcome, figures, folder, console);
}

ExitCode carry_out_to_the_end(TrainCommand command, Context& context) {
  std::vector<std::string> there;
  while (true) {
    if (const auto code = carry_out(command, context, there)) return *code;
  }
}

}  // namespace

ExitCode train(const TrainCommand& command, Context& context) {
  try {
    if (!command.devices) return carry_out_to_the_end(command, context);
    const auto planned = with_own_plan(command, context);
    return planned ? carry_out_to_the_end(*planned, context) : kInterrupted;
  } catch (const Error& error) {
    // An exit code stands for several kinds of errors, which a program has to tell apart.
    if (command.json)
      context.console.print("{}\n", dump_json(Json{{"status", "failed"},
                                                   {"error", error.what()},
                                                   {"code", to_string(error.code())}},
                                              2));
    throw;
  }
}

}  // namespace ductile::cli
