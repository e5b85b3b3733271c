// The options of commands that follow what trains.
#include "ductile/cli/other_commands.h"
#include "ductile/fleet/command_line_impl.h"
#include "ductile/fleet/service_request_impl.h"

namespace ductile::cli {
namespace {

// `several`: it takes more than one job.
CLI::App* add_live_command(CLI::App& app, Parsed& parsed, const char* name, const char* example,
                           ExitCode (*run)(const LiveCommand&, Context&), bool several = false) {
  LiveCommand& c = parsed.live;
  CLI::App* sub = app.add_subcommand(name, other_help(name));
  parsed.example[sub] = fmt::format("Example:\n  ductile {} {}\n", name, example);
  CLI::Option* job =
      several ? sub->add_option("job", c.jobs,
                                "a run directory, or the number or name of a service's job; "
                                "several, one after the other")
              : sub->add_option("job", c.job,
                                "a run directory, or the number or name of a service's job");
  job->option_text(" ")->required();
  add_service_at(*sub, c.at);
  sub->callback([&parsed, run] {
    parsed.chosen = [&parsed, run](Context& context) {
      return unless_unreachable(context, [&] { return run(parsed.live, context); });
    };
  });
  return sub;
}

}  // namespace

void add_report(CLI::App& app, Parsed& parsed) {
  CLI::App* sub = app.add_subcommand("report", other_help("report"));
  parsed.example[sub] =
      "Example:\n"
      "  ductile report runs/latest\n"
      "\n"
      "The report can be written while the run is live. The command prints the path of the "
      "report;\n"
      "--json prints its numbers instead.\n";
  sub->add_option("job", parsed.report.job,
                  "a run directory, or the number or name of a service's job")
      ->option_text(" ")
      ->required();
  add_service_at(*sub, parsed.report.at);
  add_json(*sub, parsed.report.json);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) {
      return unless_unreachable(context, [&] { return report(parsed.report, context); });
    };
  });
}

void add_live(CLI::App& app, Parsed& parsed) {
  LiveCommand& c = parsed.live;
  const Range count(int64_t{1}, int64_t{1} << 20);
  CLI::App* sub = add_live_command(
      app, parsed, "status",
      "runs/latest\n\nThe command works from another terminal while `ductile train` runs.", status);
  add_json(*sub, c.json);
  sub = add_live_command(
      app, parsed, "resize",
      "runs/latest 4\n  ductile resize trial --min 2 --max 8\n\nThe job goes on during the change, "
      "and its result stays the same. Of a service's job it is what\nits user wants; the service "
      "follows as devices become free.",
      resize);
  sub->add_option("workers", c.workers, "number of workers")->option_text(" ")->check(count);
  sub->add_option("--min", c.min, "of a service's job: devices without which it does not run")
      ->option_text("N")
      ->check(count);
  sub->add_option("--max", c.max, "of a service's job: devices beyond which it does not grow")
      ->option_text("N")
      ->check(count);
  add_json(*sub, c.json);
  sub = add_live_command(app, parsed, "preempt",
                         "runs/latest\n\nThe command returns when all processes of the job have "
                         "ended. A service's job "
                         "stays paused until\n`ductile resume`.",
                         preempt, true);
  add_json(*sub, c.json);
  sub = add_live_command(
      app, parsed, "resume",
      "runs/latest --workers 2\n\nThe job resumes bit-exactly, with any number of workers.", resume,
      true);
  sub->add_option("--workers", c.workers, "number of workers (default: as many as before)")
      ->option_text("N")
      ->check(count);
  add_hosts(*sub, c.hosts);
  add_trust(*sub, c.trust);
  add_json(*sub, c.json);
  sub = add_live_command(app, parsed, "logs", "runs/latest --follow", logs);
  sub->add_option("-n,--lines", c.lines, "print the last N lines")
      ->option_text("N")
      ->check(Range(int64_t{0}, int64_t{1} << 40));
  sub->add_flag("-f,--follow", c.follow,
                "follow the log until the job ends; of a service's job also while it waits");
  add_patience(*sub, c.patience);
  sub = add_live_command(app, parsed, "reload",
                         "digits --checkpoint 1200\n\nThe job is one of `ductile submit "
                         "--service`. Its replicas load the weights one after the other,\nand no "
                         "request is lost. What became of it: ductile events digits.",
                         reload);
  sub->add_option("--checkpoint", c.checkpoint, "that of this step (default: the newest)")
      ->option_text("STEP")
      ->check(Range(int64_t{0}, int64_t{1} << 60));
  add_json(*sub, c.json);
}

}  // namespace ductile::cli
