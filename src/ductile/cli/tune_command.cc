#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/held_signals.h"
#include "ductile/cli/trust.h"
#include "ductile/page/numbers.h"
#include "ductile/page/terminal.h"
#include "ductile/process/worker.h"
#include "ductile/run/folder.h"
#include "ductile/trials/session.h"
#include "ductile/trials/setup.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;

// The program that trains a trial: this one.
fs::path own_program() { return fs::read_symlink("/proc/self/exe"); }

// The session's job has the options of the environment already, below those of --set. A trial would
// read them once more, above both.
void forget_options_of_environment() {
  spec::JobOptions job;
  for (const std::string& name : OptionSet(job).environment_names()) ::unsetenv(name.c_str());
}

trials::Session begin(const TuneCommand& command, Context& context) {
  if (command.resume) {
    if (!command.trust) require_trusted(*command.resume);
    trials::Session session = trials::Session::open(*command.resume);
    session.change(command.assignments);
    return session;
  }
  JobConfig config;
  config.read(command.job, context.environment);
  config.make_paths_absolute();
  spec::require_data(config.job);  // of which each trial would complain, again and again
  trials::Tuning tuning = command.space ? trials::read_tuning(read_text(*command.space),
                                                              command.space->string(), config.job)
                                        : trials::default_tuning(config.job);
  for (const std::string& assignment : command.assignments)
    trials::set_option(tuning.setup, assignment);
  trials::check_metric(tuning.setup, config.job);
  trials::check_budget(tuning.setup, config.job);
  for (const std::string& text : trials::read_by_some(tuning.space, config.job))
    context.console.say("warning: {}", text);
  if (const std::string text = trials::no_short_runs(tuning.setup, config.job); !text.empty())
    context.console.say("warning: {}", text);
  const fs::path folder =
      command.out ? *command.out
                  : fs::path(config.job.runs) / (run::file_name_of(config.job.name) + "-tune");
  return trials::Session::create(fs::absolute(folder), config.options.to_toml(), tuning);
}

// Somebody may have deleted it since it was finished.
bool is_there(const fs::path& run) { return kind_of(run / "job.toml") != FileKind::none; }

Json result_of(const trials::Session& session, bool is_over) {
  const int64_t best = session.best();
  const fs::path folder = fs::absolute(session.folder());  // --resume takes a relative one
  Json out = {{"status", is_over ? "done" : "interrupted"},
              {"session", folder.string()},
              {"report", (folder / "report.html").string()},
              {"trials", session.trials().size()},
              {"epochs", session.epochs_spent()},
              {"wall_seconds", session.wall_seconds()},
              {"core_seconds", session.core_seconds()}};
  if (best < 0) return out;
  const auto& winner = session.trials()[static_cast<size_t>(best)];
  const fs::path run = fs::absolute(session.trial_folder(best));
  out["best"] = {{"trial", best},
                 {"run", is_there(run) ? Json(run.string()) : Json()},
                 {session.tuning().setup.metric, *session.value_of(best)},
                 {"values", session.tuning().space.values(winner.setting)}};
  return out;
}

void print_summary(Console& console, const trials::Session& session) {
  std::vector<std::vector<std::string>> rows;
  if (const int64_t best = session.best(); best >= 0) {
    const std::string& metric = session.tuning().setup.metric;
    rows.push_back({"best " + metric, page::as_metric(metric, *session.value_of(best))});
    for (const std::string& a : trials::shown(
             session.tuning().space, session.trials()[static_cast<size_t>(best)].setting)) {
      const size_t at = a.find('=');
      rows.push_back({a.substr(0, at), a.substr(at + 1)});
    }
    const fs::path run = session.trial_folder(best);
    rows.push_back({"run", run.string() + (is_there(run) ? "" : " (it is gone)")});
    rows.push_back({"job", (session.folder() / "best.toml").string()});
  }
  rows.push_back({"trials", page::with_thousands(static_cast<double>(session.trials().size()))});
  rows.push_back({"epochs", page::as_number(session.epochs_spent())});
  rows.push_back({"time", page::as_duration(session.wall_seconds())});
  rows.push_back({"core time", page::as_duration(session.core_seconds())});
  rows.push_back({"report", (session.folder() / "report.html").string()});
  console.print("{}", page::table(rows));
}

}  // namespace

ExitCode tune(const TuneCommand& command, Context& context) {
  Console& console = context.console;
  process::find_worker();  // what a trial would miss is said now
  trials::Session session = begin(command, context);
  forget_options_of_environment();
  console.say("session {}", session.folder().string());
  const HeldSignals signals;
  trials::Session::Environment environment;
  environment.program = own_program();
  environment.trust = command.trust;
  environment.mask = &signals.before();
  environment.on_news = [&](const std::string& text) { console.say("{}", text); };
  environment.interrupted = [&] {
    signalfd_siginfo info{};
    while (::read(signals.fd(), &info, sizeof info) == sizeof info) {
      const auto signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) return true;
    }
    return false;
  };
  const bool is_over = session.run(environment);
  if (command.json) {
    console.print("{}\n", dump_json(result_of(session, is_over), 2));
  } else if (is_over) {
    print_summary(console, session);
  }
  if (is_over && session.best() < 0) {
    console.error(fmt::format("no trial brought a value; {} says what became of each",
                              (session.folder() / "report.html").string()));
    return kJobFailed;
  }
  if (is_over) return kDone;
  console.err() << "Interrupted. To go on: ductile tune --resume " << session.folder().string()
                << std::endl;
  return kInterrupted;
}

}  // namespace ductile::cli
