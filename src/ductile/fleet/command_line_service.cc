// The options of the commands of a service: the one that starts it, and those that ask it.
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <system_error>

#include "ductile/cli/other_commands.h"
#include "ductile/fleet/command_line_impl.h"
#include "ductile/fleet/service_request_impl.h"
#include "ductile/sched/policy.h"

namespace ductile::cli {
namespace {

void add_service_folder(CLI::App& app, ServiceAt& at) {
  app.add_option("--folder", at.folder, "the service's folder (default: ~/.local/state/ductile)")
      ->option_text("DIR");
}

CLI::App* asks_service(CLI::App* sub, Parsed& parsed,
                       ExitCode (*run)(const ServiceCommand&, Context&)) {
  ServiceCommand& c = parsed.service;
  const bool is_service = run == up || run == server;
  is_service ? add_service_folder(*sub, c.at) : add_service_at(*sub, c.at);
  sub->callback([&parsed, run] {
    parsed.chosen = [&parsed, run](Context& context) {
      return unless_unreachable(context, [&] { return run(parsed.service, context); });
    };
  });
  return sub;
}

CLI::App* add_service_command(CLI::App& app, Parsed& parsed, const char* name, const char* example,
                              ExitCode (*run)(const ServiceCommand&, Context&)) {
  CLI::App* sub = app.add_subcommand(name, other_help(name));
  parsed.example[sub] = fmt::format("Example:\n  ductile {}{}\n", name, example);
  return asks_service(sub, parsed, run);
}

void add_job_names(CLI::App& sub, ServiceCommand& c) {
  sub.add_option(
         "job", c.jobs,
         "a job's number or name, or a pattern as 'sweep-*' of names of your own jobs that have "
         "not ended; several, one after the other")
      ->option_text(" ")
      ->required();
  add_json(sub, c.json);
}

void add_policy(CLI::App& sub, ServiceCommand& c) {
  sub.add_option("--policy", c.policy, "who runs when: a scheduling policy (default ductile)")
      ->option_text("NAME")
      ->check(CLI::IsMember(sched::policy_names()));
  sub.add_option("--interval", c.interval,
                 "seconds between two rounds of the policy where nothing happens (default 10)")
      ->option_text("SECONDS")
      ->check(Range(0.5, 3600.0));
}

void add_page(CLI::App& sub, ServiceCommand& c) {
  sub.add_option(
         "--port", c.port,
         fmt::format("of the page, on this machine (default {}, or any free one)", kPagePort))
      ->option_text("N")
      ->check(Range(1, 65535));
  sub.add_flag("--no-page", c.no_page, "no page for browsers: the unix socket alone");
  sub.add_option("--https", c.https,
                 "take requests from other machines there, by TLS 1.3 and with a token")
      ->option_text("ADDRESS:PORT");
  sub.add_option("--certificate", c.certificate,
                 "of --https, as PEM (default: one is made, and clients pin its key)")
      ->option_text("FILE");
  sub.add_option("--key", c.key, "of the certificate, as PEM")->option_text("FILE");
}

void add_quota(CLI::App& sub, ServiceCommand& c) {
  sub.add_option("--quota", c.quotas,
                 "devices that the jobs of a team hold at most, and GPUs: --quota vision=4, or "
                 "vision=4+2 (repeatable)")
      ->option_text("TEAM=N[+N]")
      ->allow_extra_args(false);
  sub.add_option("--share", c.shares,
                 "part of all devices that a team is entitled to: --share vision=0.5; above it its "
                 "jobs count for less while others wait (repeatable)")
      ->option_text("TEAM=PART")
      ->allow_extra_args(false);
  sub.add_option("--data", c.data,
                 "a folder in which jobs of users who are no admins may name their data: your user "
                 "reads it for them (repeatable)")
      ->option_text("DIR")
      ->allow_extra_args(false);
}

void add_retention(CLI::App& sub, ServiceCommand& c) {
  sub.add_option("--keep-days", c.keep_days,
                 "forget jobs that ended so many days ago, and their events; 0: never (default 90)")
      ->option_text("N")
      ->check(Range(0.0, 36500.0));
  sub.add_option("--keep-jobs", c.keep_jobs,
                 "of jobs that have ended, keep so many at most; 0: all (default 100,000)")
      ->option_text("N")
      ->check(Range(int64_t{0}, int64_t{1} << 40));
}

}  // namespace

namespace {

// "30m" becomes "1800". Gives what is wrong with it; empty: nothing.
std::string to_seconds(std::string& text) {
  static const std::map<char, double> kUnits = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const auto unit = rest == end ? kUnits.begin() : kUnits.find(*rest);
  const bool whole = rest == end || (rest + 1 == end && unit != kUnits.end());
  const double seconds = rest == end ? value : whole ? value * unit->second : 0;
  if (error != std::errc() || !whole || !std::isfinite(seconds) || seconds < 0)
    return fmt::format(
        "'{}': a time is wanted, in seconds or with s, m, h or d behind it: 90, 30m, 12h, 2d",
        text);
  text = fmt::format("{}", seconds);
  return "";
}

}  // namespace

CLI::Option* add_seconds(CLI::App& sub, const char* name, double& seconds, const char* help) {
  return sub.add_option(name, seconds, help)
      ->option_text("TIME")
      ->transform(CLI::Validator(to_seconds, "TIME"));
}

void add_patience(CLI::App& sub, double& seconds) {
  add_seconds(sub, "--patience", seconds,
              "with --follow or --wait: how long a service that has answered may be away: 90, 30m "
              "(default 1h); then the exit code is 5");
}

void add_service_at(CLI::App& app, ServiceAt& at) {
  add_service_folder(app, at);
  app.add_option("--server", at.server,
                 "an access file, for a service on another machine (default: $DUCTILE_SERVER)")
      ->option_text("FILE")
      ->excludes("--folder");
}

namespace {

// When it begins, and when the command returns.
void add_order(CLI::App& sub, ServiceCommand& c) {
  sub.add_option(
         "--after", c.after,
         "begin once these jobs have finished: numbers, names, 17-26 for a range of numbers, "
         "the name of an array for all of it; cancelled if one of them fails or is "
         "cancelled (repeatable)")
      ->option_text("JOB[,JOB]")
      ->delimiter(',')
      ->allow_extra_args(false);
  sub.add_option(
         "--array", c.array,
         "submit a job for each of these numbers, called NAME-N: a command finds its own as "
         "DUCTILE_ARRAY_INDEX, and {index} in a --set becomes it")
      ->option_text("0-9,20-30:2");
  sub.add_flag("--hold", c.hold, "begin once `ductile resume` says so");
  sub.add_flag("--wait", c.wait,
               "return when the job has ended, with its exit code; Ctrl-C ends the waiting alone");
  add_patience(sub, c.patience);
}

void add_job_filters(CLI::App& sub, ServiceCommand& c) {
  sub.add_flag("--all", c.all, "also jobs that have ended");
  sub.add_option("--user", c.user, "jobs that this user submitted")->option_text("NAME");
  sub.add_option("--team", c.team, "jobs of this team")->option_text("NAME");
  sub.add_option(
         "--phase", c.phases,
         "jobs in one of these phases: queued, running, paused, finished, failed, cancelled")
      ->option_text("PHASE[,PHASE]");
  sub.add_option("--name", c.name,
                 "jobs of this name; * in it stands for any text, and ? for one character")
      ->option_text("PATTERN");
}

void add_served(CLI::App& sub, ServiceCommand& c) {
  sub.add_option("--service", c.served,
                 "answer inference requests for this run, or for the run of this job, on as many "
                 "devices as the load needs, from --min to --max")
      ->option_text("RUN");
  sub.add_option("--port", c.port, "of --service: its port on the service's machine (default: any)")
      ->option_text("N")
      ->check(Range(1, 65535));
  sub.add_option("--checkpoint", c.checkpoint,
                 "of --service: begin with the weights of this checkpoint (default: the newest)")
      ->option_text("STEP")
      ->check(Range(int64_t{0}, int64_t{1} << 60));
  sub.add_flag("--follow", c.follow, "of --service: take newer weights as soon as they are there");
  sub.add_option("--max-batch", c.max_batch,
                 "of --service: samples that are computed at once (default 32)")
      ->option_text("N")
      ->check(Range(1, 4096));
  sub.add_option("--target", c.target,
                 "of --service: seconds within which 99 % of the requests are to be answered "
                 "(default 0.5)")
      ->option_text("SECONDS")
      ->check(Range(0.001, 3600.0));
}

void add_submit(CLI::App& app, Parsed& parsed, const Range& count) {
  ServiceCommand& c = parsed.service;
  CLI::App* sub = add_service_command(
      app, parsed, "submit",
      " job.toml --name trial --max 4\n  ductile submit --devices 2 --retries 3 -- python train.py "
      "--lr 0.1\n  ductile submit --service runs/latest --name digits --max 4\n\nThe command "
      "prints the job's number. The result of a Ductile job is that of "
      "`ductile train` to\nthe bit. What follows -- is any program: it runs on a fixed number of "
      "devices, in the folder of\nthis command, and is told by its environment where to save "
      "(DUCTILE_CHECKPOINT_DIR) and how often it\nhas begun before (DUCTILE_RESTART).",
      submit);
  add_job(*sub, c.request);
  sub->add_option("--name", c.name, "what to call it (default: the name of job file or program)")
      ->option_text("TEXT");
  sub->add_option("--team", c.team, "whose quota it uses")->option_text("NAME");
  sub->add_option("--tier", c.tier, "premium, standard or basic (default standard)")
      ->option_text("NAME")
      ->check(CLI::IsMember({"premium", "standard", "basic"}));
  sub->add_option("--min", c.min, "devices without which it does not run (default 1)")
      ->option_text("N")
      ->check(count);
  sub->add_option("--max", c.max, "devices beyond which it never grows (default: virtual ranks)")
      ->option_text("N")
      ->check(count);
  sub->add_option("--plan", c.plans,
                  "train by stages, by a plan that `ductile plan --json` wrote; of several "
                  "(repeatable) the service chooses one when the job begins, and each has a result "
                  "of its own")
      ->option_text("FILE")
      ->allow_extra_args(false);
  CLI::Option* region =
      sub->add_option("--region", c.region,
                      "region of the cluster file where its data are (default: everywhere)")
          ->option_text("NAME");
  add_seconds(*sub, "--transfer", c.transfer,
              "with --region: time to bring its data to another region: 90, 30m (default 0)")
      ->needs(region);
  sub->add_flag("--stay", c.stay, "with --region: it runs in that region alone")->needs(region);
  sub->add_option("--devices", c.planned_for,
                  "of a command: the number of devices that it runs on (default 1); of a Ductile "
                  "job: measure the model here, plan its stages for the devices in this cluster "
                  "file, and train by that plan")
      ->option_text("N|FILE")
      ->excludes("--plan");
  sub->add_option(
         "--replicas", c.replicas,
         "with --devices, of a Ductile job: replicas of each stage; 1 cuts the model where "
         "a stage with replicas would be faster (default: as many as serve it best)")
      ->option_text("N")
      ->check(Range(1, 1 << 16))
      ->needs("--devices");
  sub->add_option("--gpus", c.gpus,
                  "of a command: GPUs of one node that it has for itself; it sees no others "
                  "(default 0)")
      ->option_text("N")
      ->check(Range(int64_t{0}, int64_t{1024}));
  add_served(*sub, c);
  sub->add_option("--env", c.environment,
                  "of a command: a variable of its environment; without a value, the one here "
                  "(repeatable)")
      ->option_text("NAME[=VALUE]")
      ->allow_extra_args(false);
  sub->add_option("--retries", c.retries, "of a command: starts after it failed (default 0)")
      ->option_text("N")
      ->check(Range(int64_t{0}, int64_t{1000}));
  add_seconds(*sub, "--time-limit", c.time_limit,
              "of a command: time that it may run at a stretch: 90, 30m, 12h (default: any)");
  add_seconds(*sub, "--grace", c.grace,
              "of a command: time to save between SIGTERM and SIGKILL (default 30)");
  add_order(*sub, c);
  add_json(*sub, c.json);
}

void add_cluster(CLI::App& app, Parsed& parsed) {
  ServiceCommand& c = parsed.service;
  CLI::App* sub = add_service_command(app, parsed, "events",
                                      " trial --follow\n\nWithout a job the command lists the "
                                      "events of all of them.",
                                      events);
  sub->add_option("job", c.job, "a job's number or name")->option_text("[JOB]");
  sub->add_option("-n,--lines", c.lines, "print the last N events (default 50)")
      ->option_text("N")
      ->check(Range(int64_t{1}, int64_t{1000}));
  sub->add_flag("-f,--follow", c.follow,
                "go on as things happen, until Ctrl-C, also over a restart of the service");
  add_patience(*sub, c.patience);
  add_json(*sub, c.json);
  sub = add_service_command(app, parsed, "nodes", "", nodes);
  add_json(*sub, c.json);
  for (const bool away : {true, false}) {
    sub = add_service_command(app, parsed, away ? "drain" : "undrain",
                              away ? " node1 --reason \"new disk\" --in 30m --for 2h\n\nWhat runs "
                                     "there goes on elsewhere, "
                                     "or is saved and waits where there is no room."
                                   : " node1",
                              away ? drain : undrain);
    sub->add_option("node", c.node, "a node, as `ductile nodes` calls it")
        ->option_text(" ")
        ->required();
    if (away) {
      sub->add_option("--reason", c.reason, "for those who wonder")->option_text("TEXT");
      add_seconds(*sub, "--in", c.in,
                  "begin in this time: 90, 30m, 12h; what runs there moves before (default: now)");
      add_seconds(
          *sub, "--for", c.lasts,
          "the node comes back by itself after this time (default: with `ductile undrain`)");
    }
    add_json(*sub, c.json);
  }
}

void add_token(CLI::App& app, Parsed& parsed) {
  ServiceCommand& c = parsed.service;
  CLI::App* token = app.add_subcommand("token", other_help("token"));
  token->require_subcommand(1);
  add_service_at(*token, c.at);  // before the verb, as well as behind it
  parsed.example[token] =
      "Example:\n  ductile token add ann --role submit --team vision -o ann.json\n"
      "  ductile jobs --server ann.json          # on another machine\n"
      "  ductile token revoke ann\n";
  const auto add = [&](const char* name, const char* help, const std::string& example,
                       ExitCode (*run)(const ServiceCommand&, Context&)) {
    CLI::App* sub = asks_service(token->add_subcommand(name, help), parsed, run);
    parsed.example[sub] = fmt::format("Example:\n  ductile token {}{}\n", name, example);
    return sub;
  };
  CLI::App* sub = add("add", "make a token, and an access file with it",
                      " ann --role submit --team vision -o ann.json\n\nThe token is shown once; "
                      "whoever has it is let in. What it stands for is the owner of the jobs that\n"
                      "it submits.",
                      token_add);
  sub->add_option("name", c.token, "whom it stands for")->option_text(" ")->required();
  sub->add_option("--role", c.role, "read, submit or admin: each may do what the ones before may")
      ->option_text("ROLE")
      ->required()
      ->check(CLI::IsMember({"read", "submit", "admin"}));
  sub->add_option("--team", c.team, "whose jobs it submits, and may act on")->option_text("NAME");
  add_seconds(*sub, "--expires", c.expires,
              "after which it lets nobody in: 12h, 90d (default: never)");
  sub->add_option("-o,--out", c.out, "the access file (default: it is printed)")
      ->option_text("FILE");
  add_json(*add("list", "list the tokens, but not what they are", "", token_list), c.json);
  sub = add("revoke", "let nobody in by a token any more", " ann", token_revoke);
  sub->add_option("name", c.token, "as `ductile token list` calls it")
      ->option_text(" ")
      ->required();
  add_json(*sub, c.json);
}

}  // namespace

void add_service(CLI::App& app, Parsed& parsed) {
  ServiceCommand& c = parsed.service;
  const Range count(int64_t{1}, int64_t{1} << 20);
  CLI::App* sub = add_service_command(
      app, parsed, "up",
      "\n  ductile submit --name trial     # in another terminal: a small example, or job.toml\n"
      "  ductile jobs\n\nThe command runs until Ctrl-C, which saves all jobs; the next one goes on "
      "with them.",
      up);
  sub->add_option("--devices", c.devices,
                  "workers that run at once (default: the hardware threads)")
      ->option_text("N")
      ->check(count);
  add_quota(*sub, c);
  add_policy(*sub, c);
  add_page(*sub, c);
  add_retention(*sub, c);
  sub = add_service_command(
      app, parsed, "server",
      " cluster.toml --shared /home/me/ductile\n\nThe command is `ductile up` for the nodes that "
      "the cluster file names, and needs what `ductile train --hosts` needs.",
      server);
  CLI::Option* const cluster =
      sub->add_option("cluster", c.cluster, "the cluster file")->option_text(" ");
  sub->add_option(
         "--check", c.check,
         "look at the whole store of a service's folder, also while none runs; exit code 1 "
         "if something is wrong")
      ->option_text("DIR")
      ->excludes(cluster);
  sub->add_option("--backup", c.backup,
                  "write a copy of the store of the service in --folder to a new file, also while "
                  "it runs, and begin nothing")
      ->option_text("FILE")
      ->excludes(cluster);
  sub->add_option("--shared", c.shared,
                  "a folder that all nodes see, for the runs (default: the service's folder)")
      ->option_text("DIR");
  sub->add_option("--launcher", c.launcher, "starts a program on a node (default 'ssh {host}')")
      ->option_text("COMMAND");
  sub->add_option("--listen", c.listen,
                  "the address under which the nodes reach this machine (default: detected)")
      ->option_text("ADDRESS");
  sub->add_option("--grace", c.grace,
                  "seconds that jobs keep their places on a node that does not answer (default 30)")
      ->option_text("SECONDS")
      ->check(Range(0.0, 1e6));
  add_policy(*sub, c);
  add_quota(*sub, c);
  add_page(*sub, c);
  add_retention(*sub, c);
  add_submit(app, parsed, count);
  sub = add_service_command(app, parsed, "jobs",
                            " --user ann --phase running,queued\n\nWithout --all or --phase the "
                            "command lists jobs that have not ended.",
                            jobs);
  add_job_filters(*sub, c);
  add_json(*sub, c.json);
  add_job_names(*add_service_command(app, parsed, "why", " 17", why), c);
  add_job_names(*add_service_command(app, parsed, "cancel", " 17 trial", cancel), c);
  add_cluster(app, parsed);
  add_token(app, parsed);
  add_json(*add_service_command(app, parsed, "page",
                                "\n\nThe link logs one browser in as you. Over a network, first: "
                                "ssh -L 8470:127.0.0.1:8470 HOST",
                                page_link),
           c.json);
}

}  // namespace ductile::cli
