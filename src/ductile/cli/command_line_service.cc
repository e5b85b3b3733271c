// The options of the commands of a service: the one that starts it, and those that ask it.
#include "ductile/cli/command_line_impl.h"
#include "ductile/sched/policy.h"

namespace ductile::cli {
namespace {

CLI::App* add_service_command(CLI::App& app, Parsed& parsed, const char* name, const char* help,
                              const char* example,
                              ExitCode (*run)(const ServiceCommand&, Context&)) {
  ServiceCommand& c = parsed.service;
  CLI::App* sub = app.add_subcommand(name, help);
  parsed.example[sub] = fmt::format("Example:\n  ductile {}{}\n", name, example);
  sub->add_option("--folder", c.folder, "the service's folder (default: ~/.local/state/ductile)")
      ->option_text("DIR");
  sub->callback([&parsed, run] {
    parsed.chosen = [&parsed, run](Context& context) { return run(parsed.service, context); };
  });
  return sub;
}

void add_job_name(CLI::App& sub, ServiceCommand& c) {
  sub.add_option("job", c.job, "a job's number or name")->option_text(" ")->required();
  add_json(sub, c.json);
}

void add_policy(CLI::App& sub, ServiceCommand& c) {
  sub.add_option("--policy", c.policy, "who runs when: a scheduling policy (default ductile)")
      ->option_text("NAME")
      ->check(CLI::IsMember(sched::policy_names()));
}

void add_page(CLI::App& sub, ServiceCommand& c) {
  sub.add_option(
         "--port", c.port,
         fmt::format("of the page, on this machine (default {}, or any free one)", kPagePort))
      ->option_text("N")
      ->check(CLI::Range(1, 65535));
  sub.add_flag("--no-page", c.no_page, "no page for browsers: the unix socket alone");
}

}  // namespace

void add_service(CLI::App& app, Parsed& parsed) {
  ServiceCommand& c = parsed.service;
  const CLI::Range count(int64_t{1}, int64_t{1} << 20);
  CLI::App* sub = add_service_command(
      app, parsed, "up", "run a service that takes jobs and shares this machine among them",
      "\n\nThe command runs until Ctrl-C, which saves all jobs; the next `ductile up` goes on with "
      "them.",
      up);
  sub->add_option("--devices", c.devices, "workers that run at once (default: the cores)")
      ->option_text("N")
      ->check(count);
  add_policy(*sub, c);
  add_page(*sub, c);
  sub = add_service_command(
      app, parsed, "server", "run a service that shares the nodes of a cluster among jobs",
      " cluster.toml --shared /home/me/ductile\n\nThe command is `ductile up` for the nodes that "
      "the cluster file names, and needs what `ductile train --hosts` needs.",
      server);
  sub->add_option("cluster", c.cluster, "the cluster file")->option_text(" ")->required();
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
      ->check(CLI::Range(0.0, 1e6));
  add_policy(*sub, c);
  add_page(*sub, c);
  sub = add_service_command(
      app, parsed, "submit", "hand a job to the service",
      " job.toml --name trial --max 4\n\nThe command prints the job's number. The job's result is "
      "that of `ductile train` to the bit.",
      submit);
  add_job(*sub, c.request);
  sub->add_option("--name", c.name, "what to call it (default: the job file's name)")
      ->option_text("TEXT");
  sub->add_option("--team", c.team, "whose share it uses")->option_text("NAME");
  sub->add_option("--tier", c.tier, "premium, standard or basic (default standard)")
      ->option_text("NAME")
      ->check(CLI::IsMember({"premium", "standard", "basic"}));
  sub->add_option("--min", c.min, "devices without which it does not run (default 1)")
      ->option_text("N")
      ->check(count);
  sub->add_option("--max", c.max, "devices beyond which it never grows (default: virtual ranks)")
      ->option_text("N")
      ->check(count);
  add_json(*sub, c.json);
  sub =
      add_service_command(app, parsed, "jobs", "list the jobs of the service",
                          " --all\n\nWithout --all the command lists jobs that run or wait.", jobs);
  sub->add_flag("--all", c.all, "also jobs that have ended");
  add_json(*sub, c.json);
  add_job_name(*add_service_command(app, parsed, "why", "say why a job waits, or runs as it does",
                                    " 17", why),
               c);
  add_job_name(*add_service_command(app, parsed, "cancel", "end a job for good", " 17", cancel), c);
  add_json(*add_service_command(app, parsed, "page", "print a link to the service's page",
                                "\n\nThe link logs one browser in as you. Over a network, first: "
                                "ssh -L 8470:127.0.0.1:8470 HOST",
                                page_link),
           c.json);
}

}  // namespace ductile::cli
