// The options of commands that try out: simulator, benchmarks, planner.
#include "ductile/base/table.h"
#include "ductile/cli/other_commands.h"
#include "ductile/fleet/command_line_impl.h"
#include "ductile/plan/baselines/baselines.h"
#include "ductile/sched/policy.h"

namespace ductile::cli {
namespace {

// The rows of a table, for the end of a command's help.
template <class Row>
std::string listed(std::string_view title, const Table<Row>& table) {
  size_t width = 0;
  for (const Row& row : table) width = std::max(width, row.name.size());
  std::string text = fmt::format("{}:\n", title);
  for (const Row& row : table) text += fmt::format("  {:{}}  {}\n", row.name, width, row.help);
  text.pop_back();
  return text;
}

// What the jobs and the policies of a simulation are told and meet.
void add_sim_conditions(CLI::App* sub, SimCommand& c) {
  sub->add_option("--budget", c.budget,
                  "what jobs declare of their length: none, exact, or a factor by which they are "
                  "wrong (default "
                  "none)")
      ->option_text("WHAT");
  sub->add_option(
         "--information", c.information,
         "what policies are told: own (each what it uses itself), published (what Pollux and "
         "Sia are told), full (what Ductile is told), profiled (full, and each job's step times "
         "from the start) (default own)")
      ->option_text("WHAT")
      ->check(CLI::IsMember({"own", "published", "full", "profiled"}));
  sub->add_flag("--unique", c.unique, "make each job the only one of its application");
  sub->add_option("--noise", c.noise,
                  "relative error of measured step times and noise scales (default 0)")
      ->option_text("X")
      ->check(Range(0.0, 2.0));
  sub->add_option(
         "--device-cost", c.device_cost,
         "for the policy ductile: seconds that a job may wait per device second saved (default "
         "0.005; with 0.01 it takes no more device hours than Sia at load 1)")
      ->option_text("X")
      ->check(Range(0.0, 1e6));
  sub->add_option("--interval", c.interval, "seconds between rounds (default 60; for gavel 360)")
      ->option_text("X")
      ->check(Range(0.1, 1e6));
  sub->add_flag("--as-service", c.as_service,
                "as in a service: rounds also at once where nothing runs, and one interval "
                "after the last");
  sub->add_option(
         "--restart", c.restart,
         "seconds that a job pauses at each start and change (default: that of its application)")
      ->option_text("X")
      ->check(Range(0.0, 1e6));
  sub->add_option(
         "--resize", c.resize,
         "seconds that a job pauses where its devices change while it runs, if less than a "
         "start (default: as a start)")
      ->option_text("X")
      ->check(Range(0.0, 1e6));
  sub->add_option(
         "--interference", c.interference,
         "share of progress lost by jobs that span several nodes and share one, 0 to 1 (default "
         "0)")
      ->option_text("X")
      ->check(Range(0.0, 1.0));
  sub->add_option(
         "--neighbours", c.neighbours,
         "how many times as long whole steps take while other jobs hold devices of the same "
         "node (default 1)")
      ->option_text("X")
      ->check(Range(1.0, 100.0));
}

void add_bench_all_reduce(CLI::App& bench, Parsed& parsed) {
  AllReduceBenchCommand& c = parsed.bench_all_reduce;
  CLI::App* sub =
      bench.add_subcommand("all-reduce", "compare all algorithms, predicted and measured");
  parsed.example[sub] =
      "Example:\n"
      "  ductile bench all-reduce --workers 4 --explain\n"
      "  ductile bench all-reduce --workers 4 --transport tcp --sizes 4K,1M,25M\n"
      "  ductile bench all-reduce --hosts node1:4,node2=10.0.0.2:4\n"
      "\n"
      "The command first measures the links between the workers, and keeps the result in\n"
      "~/.cache/ductile for the next start. It then prints, for each size, the time that the cost\n"
      "model predicts for each algorithm, the time that it takes, and the choice. Times are those\n"
      "of the slowest worker, float32 in place; the spread is the distance of the quartiles.\n";
  // `bench` hands on what it does not know to its scripts, so nothing may fall through to it.
  sub->fallthrough(false);
  sub->add_flag("-q,--quiet", parsed.quiet)->group("");
  sub->add_flag("-v,--verbose", parsed.verbose)->group("");
  sub->add_option("--workers", c.workers, "number of processes (default 2, or one per host)")
      ->option_text("N")
      ->check(Range(int64_t{1}, int64_t{128}));
  sub->add_option("--hosts", c.hosts,
                  "where the workers run: a,b:2,c=10.0.0.3+10.1.0.3:2 (host=addresses:workers)")
      ->option_text("LIST");
  sub->add_option("--launcher", c.launcher,
                  "command that starts a program on a host (default ssh {host})")
      ->option_text("COMMAND");
  sub->add_option("--transport", c.transport, "shm, tcp or ucx (default shm; tcp between hosts)")
      ->option_text("NAME")
      ->check(CLI::IsMember({"shm", "tcp", "ucx"}));
  sub->add_option("--sizes", c.sizes, "bytes of the vector (default 4K,64K,1M,16M)")
      ->option_text("LIST");
  sub->add_option("--algorithms", c.algorithms,
                  "only these algorithms, optionally with a number of pieces: ring:8,torus")
      ->option_text("LIST");
  sub->add_option("--seconds", c.seconds, "seconds per algorithm and size (default 0.15)")
      ->option_text("X")
      ->check(Range(0.001, 3600.0));
  sub->add_flag("--explain", c.explain, "explain each predicted time, and the choice");
  sub->add_flag("--recalibrate", c.recalibrate, "measure the links anew");
  add_json(*sub, c.json);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) {
      return bench_all_reduce(parsed.bench_all_reduce, context);
    };
  });
}

}  // namespace

void add_sim(CLI::App& app, Parsed& parsed) {
  SimCommand& c = parsed.sim;
  CLI::App* sub = app.add_subcommand("sim", other_help("sim"));
  parsed.example[sub] =
      "Example:\n"
      "  ductile sim                                   # 160 synthetic jobs, 64 devices\n"
      "  ductile sim jobs.csv --policy ductile,sia,tiresias --out lab\n"
      "  ductile sim --jobs 500 --load 1.5 --seeds 5 --scenario faults.toml\n"
      "\n"
      "The simulator runs each policy on the same jobs in virtual time and compares completion\n"
      "times, fairness and cost. --out also writes an HTML report with the cluster's timeline.\n";
  const Range count(int64_t{1}, int64_t{100'000'000});
  sub->add_option("workload", c.workloads,
                  "workload files (CSV) or folders of them (default: synthetic jobs)")
      ->option_text("[WORKLOAD...]");
  sub->footer(listed("Policies", sched::policies()) + "\n\n" + app.get_footer());
  sub->add_option("--policy", c.policies,
                  "which of the policies below (default " + c.policies + ")")
      ->option_text("LIST");
  sub->add_option("--cluster", c.cluster, "cluster file (default: 16 nodes with 4 t4 each)")
      ->option_text("FILE");
  sub->add_option("--applications", c.applications,
                  "folder of application traces (default: traces/ beside the workload, or the "
                  "built-in ones)")
      ->option_text("DIR");
  sub->add_option("--scenario", c.scenario, "file of the faults that occur")->option_text("FILE");
  sub->add_option("--load", c.load, "make arrivals X times as dense (default 1)")
      ->option_text("X")
      ->check(Range(1e-3, 1e3));
  sub->add_option("--jobs", c.jobs,
                  "the first N jobs of a file, or the number of synthetic jobs (default 160)")
      ->option_text("N")
      ->check(count);
  sub->add_option("--seeds", c.seeds, "number of seeds to repeat the runs with (default 1)")
      ->option_text("N")
      ->check(Range(int64_t{1}, int64_t{10000}));
  sub->add_option("--seed", c.seed, "the first seed (default 0)")
      ->option_text("N")
      ->check(Range(int64_t{0}, int64_t{1} << 40));
  add_sim_conditions(sub, c);
  sub->add_flag(
      "--bound", c.bound,
      "also estimate the least possible mean completion time, and each policy's distance from it");
  sub->add_flag("--tiers", c.tiers, "give synthetic jobs service levels");
  sub->add_option("--services", c.services,
                  "number of synthetic inference services to add (default 0)")
      ->option_text("N")
      ->check(Range(int64_t{0}, int64_t{100'000}));
  sub->add_option("--teams", c.teams, "number of teams that synthetic jobs belong to (default 1)")
      ->option_text("N")
      ->check(Range(int64_t{1}, int64_t{10'000}));
  sub->add_flag("--check", c.check, "check the invariants after each round");
  sub->add_flag("--control", c.control, "also send every change through the real control plane");
  sub->add_option("--out", c.out, "folder for report.html, runs.json and the workloads")
      ->option_text("DIR");
  add_json(*sub, c.json);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) { return sim(parsed.sim, context); };
  });
}

void add_bench(CLI::App& app, Parsed& parsed) {
  BenchCommand& c = parsed.bench;
  CLI::App* sub = app.add_subcommand("bench", other_help("bench"));
  parsed.example[sub] =
      "Example:\n"
      "  ductile bench                       # list the benchmarks\n"
      "  ductile bench all-reduce --workers 4 --explain\n"
      "  ductile bench optimizer\n"
      "\n"
      "The command runs a benchmark of the source tree. Arguments after its name are passed on to\n"
      "it; `ductile bench NAME --help` lists them.\n";
  add_bench_all_reduce(*sub, parsed);
  sub->add_option("name", c.name, "train, input, optimizer or checkpoint")->option_text(" ");
  sub->prefix_command();
  sub->fallthrough(false);
  sub->set_help_flag();  // --help after a benchmark's name goes to the benchmark
  sub->callback([&parsed, sub] {
    if (!sub->get_subcommands().empty()) return;
    parsed.bench.arguments = sub->remaining();
    const std::string& name = parsed.bench.name;
    if (name == "--help" || name == "-h") throw CLI::CallForHelp();
    if (name.empty() && !parsed.bench.arguments.empty()) {
      const std::string& first = parsed.bench.arguments.front();
      if (first == "--help" || first == "-h") throw CLI::CallForHelp();
    }
    parsed.chosen = [&parsed](Context& context) { return bench(parsed.bench, context); };
  });
}

namespace {

void add_plan_devices(CLI::App& sub, PlanCommand& c) {
  sub.add_option("--devices", c.devices,
                 "cluster file, or a number of V100s, four per node (default 8)")
      ->option_text("FILE|N");
  sub.add_option("--links", c.links,
                 "with a cluster file: the links as `ductile bench all-reduce` measured them "
                 "between its devices, in the file that it names")
      ->option_text("FILE");
}

}  // namespace

void add_plan(CLI::App& app, Parsed& parsed) {
  PlanCommand& c = parsed.plan;
  CLI::App* sub = app.add_subcommand("plan", other_help("plan"));
  parsed.example[sub] =
      "Example:\n"
      "  ductile plan                              # list the built-in graphs\n"
      "  ductile plan candle:8 --devices 16 --batch 1024 --baseline all\n"
      "  ductile plan model.json --devices cluster.toml --html > plan.html\n"
      "  ductile plan dlrm --devices 8 --emulate    # predicted and measured time\n"
      "\n"
      "The planner prints the stages, the time per iteration, the memory of each device, and how "
      "far\n"
      "the plan can be from the best one. It reads its own graph format and those of Piper,\n"
      "PipeDream and dnn-partitioning. See docs/guides/planner.md.\n";
  sub->add_option("graph", c.graph, "graph file, or a built-in one: mmt, dlrm, candle:8 ...")
      ->option_text("[GRAPH]");
  add_plan_devices(*sub, c);
  sub->add_option("--batch", c.batch, "samples per iteration (default 128)")
      ->option_text("N")
      ->check(Range(int64_t{1}, int64_t{1} << 40));
  sub->add_option("--micro-batch", c.micro_batch, "samples per micro-batch (default: the best)")
      ->option_text("N")
      ->check(Range(int64_t{1}, int64_t{1} << 40));
  sub->add_option("--objective", c.objective,
                  "time (of an iteration) or throughput (in the steady state) (default time)")
      ->option_text("NAME")
      ->check(CLI::IsMember({"time", "throughput"}));
  sub->add_option(
         "--optimizer-state", c.optimizer_state,
         "bytes per byte of parameters: 0 SGD, 1 momentum, 2 Adam (default: that of the graph)")
      ->option_text("X")
      ->check(Range(0.0, 100.0));
  sub->footer(listed("Planners to compare with", plan::baselines()) + "\n\n" + app.get_footer());
  sub->add_option("--baseline", c.baseline, "planners below to compare with, or all")
      ->option_text("LIST");
  sub->add_option("--time-limit", c.time_limit,
                  "seconds of search, after which the best plan so far is taken (default 60)")
      ->option_text("X")
      ->check(Range(0.001, 1e6));
  sub->add_flag(
      "--runnable", c.runnable,
      "only plans that `ductile train --plan` runs: no splits, the state of a stage whole");
  sub->add_option("--replicas", c.replicas,
                  "replicas of each stage (default: as many as serve it best)")
      ->option_text("N")
      ->check(Range(1, 1 << 16));
  sub->add_option("--plan", c.plan, "evaluate this plan instead of searching for one")
      ->option_text("FILE")
      ->excludes("--runnable")
      ->excludes("--replicas");
  sub->add_option(
         "--emit", c.emit,
         "write the plan as options of another system: megatron (without --plan, the best plan "
         "that this system can run)")
      ->option_text("NAME");
  CLI::Option* emulate =
      sub->add_flag("--emulate", c.emulate,
                    "also carry the plan out on threads that sleep in place of devices and network "
                    "cards, and compare the time with the predicted one")
          ->excludes("--emit");
  sub->add_option("--emulate-seconds", c.emulate_seconds,
                  "how long an emulated iteration is to last (default: 4 to 40 s, by how late "
                  "sleeps end on this machine)")
      ->option_text("X")
      ->check(Range(0.001, 1e5))
      ->needs(emulate);
  CLI::Option* svg =
      sub->add_flag("--svg", c.svg, "write the picture to stdout")->excludes(emulate);
  CLI::Option* html =
      sub->add_flag("--html", c.html, "write a page to stdout")->excludes(svg)->excludes(emulate);
  sub->add_flag("--graph", c.write_graph, "write the graph to stdout in our format");
  sub->add_option("--schema", c.schema, "write the JSON Schema of a graph, a plan or a cluster")
      ->option_text("NAME");
  sub->add_flag("--json", c.json, "write JSON to stdout")->excludes(svg)->excludes(html);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) { return plan(parsed.plan, context); };
  });
}

}  // namespace ductile::cli
