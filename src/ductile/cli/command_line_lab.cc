// The options of commands that try out: simulator, benchmarks, planner.
#include "ductile/base/table.h"
#include "ductile/cli/command_line_impl.h"
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
  sub->add_option(
         "--budget", c.budget,
         "what jobs declare of their length: none, exact, or a factor they are wrong by; none")
      ->option_text("WHAT");
  sub->add_option("--information", c.information,
                  "what policies are told: own (each as it is), published (as Pollux's and Sia's), "
                  "full (as Ductile's); own")
      ->option_text("WHAT")
      ->check(CLI::IsMember({"own", "published", "full"}));
  sub->add_flag("--unique", c.unique, "each job is the only one of its application");
  sub->add_option("--noise", c.noise,
                  "measured step times and noise scales are off by this much; 0")
      ->option_text("X")
      ->check(CLI::Range(0.0, 2.0));
  sub->add_option("--device-cost", c.device_cost,
                  "Ductile's: seconds a job may wait for each device second saved; 0.005, and 0.01 "
                  "takes no more devices than Sia")
      ->option_text("X")
      ->check(CLI::Range(0.0, 1e6));
  sub->add_option("--interval", c.interval, "seconds between rounds; none: 60, Gavel 360")
      ->option_text("X")
      ->check(CLI::Range(0.1, 1e6));
  sub->add_option("--restart", c.restart,
                  "seconds a job pauses at each start and change; none: its application's own")
      ->option_text("X")
      ->check(CLI::Range(0.0, 1e6));
  sub->add_option("--interference", c.interference,
                  "progress lost by jobs on several nodes that share one, 0 to 1; 0")
      ->option_text("X")
      ->check(CLI::Range(0.0, 1.0));
}

void add_bench_all_reduce(CLI::App& bench, Parsed& parsed) {
  AllReduceBenchCommand& c = parsed.bench_all_reduce;
  CLI::App* sub = bench.add_subcommand("all-reduce", "every algorithm, predicted and measured");
  parsed.example[sub] =
      "Example:\n"
      "  ductile bench all-reduce --workers 4 --explain\n"
      "  ductile bench all-reduce --workers 4 --transport tcp --sizes 4K,1M,25M\n"
      "  ductile bench all-reduce --hosts node1:4,node2=10.0.0.2:4\n"
      "\n"
      "Measures the links between the workers (kept in ~/.cache/ductile for the next start), then\n"
      "for each size what the cost model says of each algorithm, what it takes, and which one is\n"
      "chosen. Times are those of the slowest worker, float32 in place; spread is the distance of\n"
      "the quartiles.\n";
  // `bench` hands on what it does not know to its scripts, so nothing may fall through to it.
  sub->fallthrough(false);
  sub->add_flag("-q,--quiet", parsed.quiet)->group("");
  sub->add_flag("-v,--verbose", parsed.verbose)->group("");
  sub->add_option("--workers", c.workers, "how many processes; none: two, or one a host")
      ->option_text("N")
      ->check(CLI::Range(int64_t{1}, int64_t{128}));
  sub->add_option("--hosts", c.hosts,
                  "where the workers run: a,b:2,c=10.0.0.3+10.1.0.3:2 (host=addresses:workers)")
      ->option_text("LIST");
  sub->add_option("--launcher", c.launcher, "what starts a program on a host; none: ssh {host}")
      ->option_text("COMMAND");
  sub->add_option("--transport", c.transport, "shm, tcp or ucx; none: shm, tcp between hosts")
      ->option_text("NAME")
      ->check(CLI::IsMember({"shm", "tcp", "ucx"}));
  sub->add_option("--sizes", c.sizes, "bytes of the vector; 4K,64K,1M,16M")->option_text("LIST");
  sub->add_option("--algorithms", c.algorithms, "only these, perhaps with pieces: ring:8,torus")
      ->option_text("LIST");
  sub->add_option("--seconds", c.seconds, "for each algorithm and size; 0.15")
      ->option_text("X")
      ->check(CLI::Range(0.001, 3600.0));
  sub->add_flag("--explain", c.explain, "what each price is made of, and why the choice");
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
  CLI::App* sub = app.add_subcommand("sim", "replay a workload under scheduling policies");
  parsed.example[sub] =
      "Example:\n"
      "  ductile sim                                   # 160 jobs made up, 64 devices\n"
      "  ductile sim jobs.csv --policy ductile,sia,tiresias --out lab\n"
      "  ductile sim --jobs 500 --load 1.5 --seeds 5 --scenario faults.toml\n"
      "\n"
      "Runs each policy on the same jobs in virtual time and compares completion times, fairness\n"
      "and cost. With --out also an HTML report with the cluster's timeline.\n";
  const CLI::Range count(int64_t{1}, int64_t{100'000'000});
  sub->add_option("workload", c.workloads, "workload files (CSV) or folders of them; none: made up")
      ->option_text("[WORKLOAD...]");
  sub->footer(listed("Policies", sched::policies()) + "\n\n" + app.get_footer());
  sub->add_option("--policy", c.policies, "which of those below; " + c.policies)
      ->option_text("LIST");
  sub->add_option("--cluster", c.cluster, "cluster file; none: 16 nodes of 4 t4")
      ->option_text("FILE");
  sub->add_option("--applications", c.applications,
                  "folder of application traces; none: traces/ beside the workload, else built in")
      ->option_text("DIR");
  sub->add_option("--scenario", c.scenario, "what goes wrong: a file of faults")
      ->option_text("FILE");
  sub->add_option("--load", c.load, "arrivals so many times as dense; 1")
      ->option_text("X")
      ->check(CLI::Range(1e-3, 1e3));
  sub->add_option("--jobs", c.jobs, "only the first N of a file; how many to make up: 160")
      ->option_text("N")
      ->check(count);
  sub->add_option("--seeds", c.seeds, "repeat with so many seeds; 1")
      ->option_text("N")
      ->check(CLI::Range(int64_t{1}, int64_t{10000}));
  sub->add_option("--seed", c.seed, "the first seed; 0")
      ->option_text("N")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  add_sim_conditions(sub, c);
  sub->add_flag("--bound", c.bound,
                "also an estimate of the least mean possible, and each policy's distance to it");
  sub->add_flag("--tiers", c.tiers, "made-up jobs have service levels");
  sub->add_option("--services", c.services, "make up so many inference services, too; 0")
      ->option_text("N")
      ->check(CLI::Range(int64_t{0}, int64_t{100'000}));
  sub->add_option("--teams", c.teams, "made-up jobs belong to so many teams; 1")
      ->option_text("N")
      ->check(CLI::Range(int64_t{1}, int64_t{10'000}));
  sub->add_flag("--check", c.check, "check the invariants each round");
  sub->add_flag("--control", c.control, "every change goes through the real control plane, too");
  sub->add_option("--out", c.out, "folder for report.html, runs.json and the workloads")
      ->option_text("DIR");
  add_json(*sub, c.json);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) { return sim(parsed.sim, context); };
  });
}

void add_bench(CLI::App& app, Parsed& parsed) {
  BenchCommand& c = parsed.bench;
  CLI::App* sub = app.add_subcommand("bench", "measure this build, beside its peers where present");
  parsed.example[sub] =
      "Example:\n"
      "  ductile bench                       # what there is\n"
      "  ductile bench all-reduce --workers 4 --explain\n"
      "  ductile bench optimizer\n"
      "\n"
      "Runs a benchmark of the source tree; what follows its name goes to it (try --help there).\n";
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

void add_plan(CLI::App& app, Parsed& parsed) {
  PlanCommand& c = parsed.plan;
  CLI::App* sub = app.add_subcommand("plan", "cut a model into pipeline stages for given devices");
  parsed.example[sub] =
      "Example:\n"
      "  ductile plan                              # the built-in graphs\n"
      "  ductile plan candle:8 --devices 16 --batch 1024 --baseline all\n"
      "  ductile plan model.json --devices devices.toml --html > plan.html\n"
      "\n"
      "Prints the stages, the time an iteration will take, the memory of each device and how far\n"
      "from the best the plan can be. Reads our format and those of Piper, PipeDream and\n"
      "dnn-partitioning. See docs/guides/planner.md.\n";
  sub->add_option("graph", c.graph, "graph file, or a built-in one: mmt, dlrm, candle:8 ...")
      ->option_text("[GRAPH]");
  sub->add_option("--devices", c.devices, "devices.toml, or a number of V100s, four a node; 8")
      ->option_text("FILE|N");
  sub->add_option("--batch", c.batch, "samples of an iteration; 128")
      ->option_text("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  sub->add_option("--micro-batch", c.micro_batch, "samples of a micro-batch; none: the best")
      ->option_text("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  sub->add_option("--objective", c.objective, "time of an iteration, or steady throughput; time")
      ->option_text("NAME")
      ->check(CLI::IsMember({"time", "throughput"}));
  sub->add_option("--optimizer-state", c.optimizer_state,
                  "bytes per byte of parameters: 0 SGD, 1 momentum, 2 Adam; none: the graph's")
      ->option_text("X")
      ->check(CLI::Range(0.0, 100.0));
  sub->footer(listed("Planners to compare with", plan::baselines()) + "\n\n" + app.get_footer());
  sub->add_option("--baseline", c.baseline, "compare with these of the planners below, or all")
      ->option_text("LIST");
  sub->add_option("--time-limit", c.time_limit, "seconds of search; then the best so far; 60")
      ->option_text("X")
      ->check(CLI::Range(0.001, 1e6));
  sub->add_option("--plan", c.plan, "evaluate this plan instead of searching one")
      ->option_text("FILE");
  sub->add_option("--emit", c.emit,
                  "write the options that make another system run the plan (with --plan that one, "
                  "else the best it can run): megatron")
      ->option_text("NAME");
  CLI::Option* svg = sub->add_flag("--svg", c.svg, "write the picture to stdout");
  CLI::Option* html = sub->add_flag("--html", c.html, "write a page to stdout")->excludes(svg);
  sub->add_flag("--graph", c.write_graph, "write the graph to stdout in our format");
  sub->add_option("--schema", c.schema, "write the JSON Schema of a graph or a plan")
      ->option_text("NAME");
  sub->add_flag("--json", c.json, "write JSON to stdout")->excludes(svg)->excludes(html);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) { return plan(parsed.plan, context); };
  });
}

}  // namespace ductile::cli
