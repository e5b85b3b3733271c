// The only file that sees CLI11; one file because the commands are one table, read as a whole.
#include "ductile/cli/command_line.h"

#include <functional>
#include <map>
#include <new>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/options.h"
#include "ductile/base/paths.h"
#include "ductile/base/text.h"
#include "ductile/cli/version.h"
#include "ductile/sched/policy.h"
#include "ductile/server/host_agent.h"

namespace ductile::cli {
namespace {

// CLI11's help without the lists of what excludes what.
class PlainFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string& text = option->get_option_text();
    return text.empty() ? "" : " " + text;
  }
};

// Everything the command line can say, and the command it chose.
struct Parsed {
  std::map<const CLI::App*, std::string> example;  // what the command's help begins with
  TrainCommand train;
  ConfigCommand config;
  DoctorCommand doctor;
  DataInspectCommand data_inspect;
  DataConvertCommand data_convert;
  CkptCommand ckpt;
  ModelsCommand models;
  LiveCommand live;
  ReportCommand report;
  PlanCommand plan;
  SimCommand sim;
  BenchCommand bench;
  AllReduceBenchCommand bench_all_reduce;
  bool quiet = false, verbose = false;
  std::function<ExitCode(Context&)> chosen;
};

void add_set(CLI::App& app, std::vector<std::string>& assignments) {
  app.add_option("--set", assignments, "set an option: --set train.epochs=5 (repeatable)")
      ->option_text("KEY=VALUE")
      ->allow_extra_args(false);
}

void add_job(CLI::App& app, JobRequest& job) {
  app.add_option("job", job.file, "job file (TOML); none: the embedded digits on the default cnn")
      ->option_text("[job.toml]");
  add_set(app, job.assignments);
}

void add_json(CLI::App& app, bool& json) { app.add_flag("--json", json, "write JSON to stdout"); }

std::string policy_list() {
  std::string text;
  for (const std::string& name : sched::policy_names()) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void add_trust(CLI::App& app, bool& trust) {
  app.add_flag("--trust", trust,
               "go on with a run of another user, whose files say what is run (launcher, library)");
}

void add_hosts(CLI::App& app, HostsRequest& hosts) {
  app.add_option("--hosts", hosts.hosts,
                 "where the workers run: a,b:2,c=10.0.0.3:4 (host=address:workers), or a file")
      ->option_text("LIST");
  app.add_option("--launcher", hosts.launcher, "what starts a program on a host; none: ssh {host}")
      ->option_text("COMMAND");
  app.add_option("--listen", hosts.listen, "this machine's address for the hosts; none: found out")
      ->option_text("ADDRESS");
}

void add_train(CLI::App& app, Parsed& parsed) {
  TrainCommand& c = parsed.train;
  CLI::App* sub = app.add_subcommand("train", "train a model");
  parsed.example[sub] =
      "Example:\n"
      "  ductile train job.toml --set train.epochs=5\n"
      "  ductile train job.toml --workers 4 --set train.virtual_ranks=8\n"
      "  ductile train job.toml --hosts node1:4,node2:4 --set train.virtual_ranks=8\n"
      "  ductile train --resume runs/latest\n"
      "\n"
      "Draws a progress bar and leaves a run directory with checkpoints, metrics and report.html.\n"
      "Without a job file: a small network on embedded images.\n";
  add_job(*sub, c.job);
  CLI::Option* runs =
      sub->add_option("--runs", c.runs, "folder in which the run directory is made");
  runs->option_text("DIR");
  CLI::Option* out =
      sub->add_option("--out", c.out, "the run directory itself; must not exist yet");
  out->option_text("DIR")->excludes(runs);
  sub->add_option("--resume", c.resume, "go on with this run, bit-exactly")
      ->option_text("RUN")
      ->excludes(runs)
      ->excludes(out)
      ->excludes("job")
      ->excludes("--set");
  sub->add_option("--workers", c.workers,
                  "processes that share the job; none: one, or as many as before")
      ->option_text("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  add_hosts(*sub, c.hosts);
  add_trust(*sub, c.trust);
  sub->add_flag("--dry-run", c.dry_run, "print the resolved job and do nothing");
  add_json(*sub, c.json);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) { return train(parsed.train, context); };
  });
}

void add_config(CLI::App& app, Parsed& parsed) {
  ConfigCommand& c = parsed.config;
  CLI::App* sub = app.add_subcommand("config", "print every option with its origin");
  parsed.example[sub] =
      "Example:\n"
      "  ductile config job.toml --set train.epochs=5 --changed\n"
      "\n"
      "The job as `ductile train` would run it: each value, and where it came from.\n"
      "Precedence: defaults < job file < DUCTILE_... environment < --set.\n";
  add_job(*sub, c.job);
  sub->add_flag("--changed", c.changed, "only values that differ from their default");
  CLI::Option* origin = sub->add_flag("--origin", c.origin, "one line a value: key, value, origin");
  CLI::Option* schema = sub->add_flag("--schema", c.schema, "print the JSON Schema of a job");
  sub->add_flag("--markdown", c.markdown, "print the reference page of all options")
      ->excludes(origin)
      ->excludes(schema);
  schema->excludes(origin);
  add_json(*sub, c.json);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) { return config(parsed.config, context); };
  });
}

void add_doctor(CLI::App& app, Parsed& parsed) {
  CLI::App* sub = app.add_subcommand("doctor", "what this machine has and what is missing");
  parsed.example[sub] =
      "Example:\n"
      "  ductile doctor\n"
      "\n"
      "Says what training would find here: cores, memory, torch and its BLAS, bf16, UCX, NCCL,\n"
      "GPUs, compilers; and for what is missing, the command that installs it.\n";
  add_json(*sub, parsed.doctor.json);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) { return doctor(parsed.doctor, context); };
  });
}

void add_split(CLI::App& app, std::string& split) {
  app.add_option("--split", split, "train, test or both")
      ->option_text("NAME")
      ->check(CLI::IsMember({"train", "test", "both"}));
}

void add_data(CLI::App& app, Parsed& parsed) {
  CLI::App* data = app.add_subcommand("data", "look into data, or convert it");
  data->require_subcommand(1);
  parsed.example[data] =
      "Example:\n"
      "  ductile data inspect images/\n"
      "  ductile data convert images/ shards/ --to tar\n";

  DataInspectCommand& i = parsed.data_inspect;
  CLI::App* inspect = data->add_subcommand("inspect", "counts, classes, shapes, mean, bad files");
  parsed.example[inspect] =
      "Example:\n"
      "  ductile data inspect images/\n"
      "  ductile data inspect job.toml --json\n"
      "\n"
      "Reads and decodes everything. Exit code 1 where a sample is bad. The format is told by the\n"
      "names of the files; --set data.format=... says it where they do not.\n";
  inspect->add_option("path", i.path, "data, or a job file that names it")
      ->option_text(" ")
      ->required();
  add_set(*inspect, i.assignments);
  add_split(*inspect, i.split);
  add_json(*inspect, i.json);
  inspect->callback([&parsed] {
    parsed.chosen = [&parsed](Context& c) { return data_inspect(parsed.data_inspect, c); };
  });

  DataConvertCommand& v = parsed.data_convert;
  CLI::App* convert = data->add_subcommand("convert", "rewrite an image set for faster reading");
  parsed.example[convert] =
      "Example:\n"
      "  ductile data convert images/ shards/ --to tar\n"
      "  ductile data convert images/ packed/ --to records --raw --short-side 256\n";
  convert->add_option("source", v.source, "data, or a job file that names it")
      ->option_text(" ")
      ->required();
  convert->add_option("destination", v.destination, "folder for the result")
      ->option_text(" ")
      ->required();
  convert->add_option("--to", v.to, "tar (WebDataset shards) or records (one packed file)")
      ->option_text("FORMAT")
      ->required()
      ->check(CLI::IsMember({"tar", "records"}));
  convert->add_option("--shard-mb", v.shard_mb, "MiB a shard, about (tar)")
      ->option_text("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  convert->add_flag("--raw", v.raw, "store decoded pixels (records)");
  convert->add_option("--short-side", v.short_side, "reduce the short side to this (with --raw)")
      ->option_text("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16));
  add_set(*convert, v.assignments);
  add_split(*convert, v.split);
  add_json(*convert, v.json);
  convert->callback([&parsed] {
    parsed.chosen = [&parsed](Context& c) { return data_convert(parsed.data_convert, c); };
  });
}

void add_ckpt(CLI::App& app, Parsed& parsed) {
  CkptCommand& c = parsed.ckpt;
  CLI::App* ckpt = app.add_subcommand("ckpt", "look into a run's checkpoints");
  ckpt->require_subcommand(1);
  parsed.example[ckpt] =
      "Example:\n"
      "  ductile ckpt list runs/latest\n"
      "  ductile ckpt export runs/latest -o model.safetensors\n";
  const auto add = [&](const char* name, const char* help, const char* example,
                       ExitCode (*run)(const CkptCommand&, Context&)) {
    CLI::App* sub = ckpt->add_subcommand(name, help);
    parsed.example[sub] = fmt::format("Example:\n  ductile ckpt {} {}\n", name, example);
    sub->add_option("run", c.run, "a run directory, or a folder of checkpoints")
        ->option_text(" ")
        ->required();
    add_json(*sub, c.json);
    sub->callback([&parsed, run] {
      parsed.chosen = [&parsed, run](Context& context) { return run(parsed.ckpt, context); };
    });
    return sub;
  };
  const auto add_step = [&](CLI::App* sub) {
    sub->add_option("--step", c.step, "the checkpoint of this step; none: the newest sound one")
        ->option_text("N");
  };
  add("list", "the checkpoints, newest first", "runs/latest", ckpt_list);
  add_step(add("show", "tensors and state of one checkpoint", "runs/latest --step 200", ckpt_show));
  add("verify", "read every chunk; exit code 1 where one is bad", "runs/latest", ckpt_verify);
  CLI::App* export_ = add("export", "write the trained weights as a safetensors file",
                          "runs/latest -o model.safetensors", ckpt_export);
  add_step(export_);
  export_->add_option("-o,--output", c.output, "the file to write")
      ->option_text("FILE")
      ->required();
}

void add_models(CLI::App& app, Parsed& parsed) {
  CLI::App* sub = app.add_subcommand("models", "the built-in models");
  parsed.example[sub] =
      "Example:\n"
      "  ductile models\n"
      "  ductile train job.toml --set model.name=resnet20\n";
  add_json(*sub, parsed.models.json);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) { return models(parsed.models, context); };
  });
}

void add_report(CLI::App& app, Parsed& parsed) {
  CLI::App* sub = app.add_subcommand("report", "write a run's report.html anew");
  parsed.example[sub] =
      "Example:\n"
      "  ductile report runs/latest\n"
      "\n"
      "May be run while the run goes on. Prints where the report lies; --json: its numbers.\n";
  sub->add_option("run", parsed.report.run, "a run directory")->option_text(" ")->required();
  add_json(*sub, parsed.report.json);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) { return report(parsed.report, context); };
  });
}

CLI::App* add_live_command(CLI::App& app, Parsed& parsed, const char* name, const char* help,
                           const char* example, ExitCode (*run)(const LiveCommand&, Context&)) {
  LiveCommand& c = parsed.live;
  CLI::App* sub = app.add_subcommand(name, help);
  parsed.example[sub] = fmt::format("Example:\n  ductile {} {}\n", name, example);
  sub->add_option("run", c.run, "a run directory")->option_text(" ")->required();
  sub->callback([&parsed, run] {
    parsed.chosen = [&parsed, run](Context& context) { return run(parsed.live, context); };
  });
  return sub;
}

void add_live(CLI::App& app, Parsed& parsed) {
  LiveCommand& c = parsed.live;
  const CLI::Range count(int64_t{1}, int64_t{1} << 20);
  CLI::App* sub = add_live_command(
      app, parsed, "status", "what a live job is doing, and why",
      "runs/latest\n\nWorks while `ductile train` runs, from another terminal.", status);
  add_json(*sub, c.json);
  sub = add_live_command(app, parsed, "resize", "give a live job another number of workers",
                         "runs/latest 4\n\nThe job goes on meanwhile; its result does not change.",
                         resize);
  sub->add_option("workers", c.workers, "how many")->option_text(" ")->required()->check(count);
  add_json(*sub, c.json);
  sub = add_live_command(app, parsed, "preempt", "save a live job and free what it uses",
                         "runs/latest\n\nReturns when all its processes are gone.", preempt);
  add_json(*sub, c.json);
  sub = add_live_command(app, parsed, "resume", "go on with a job that was preempted",
                         "runs/latest --workers 2\n\nBit-exactly, with any number of workers.",
                         resume);
  sub->add_option("--workers", c.workers, "how many; none: as many as before")
      ->option_text("N")
      ->check(count);
  add_hosts(*sub, c.hosts);
  add_trust(*sub, c.trust);
  add_json(*sub, c.json);
  sub = add_live_command(app, parsed, "logs", "what the workers of a run printed",
                         "runs/latest --follow", logs);
  sub->add_option("-n,--lines", c.lines, "the last N lines")
      ->option_text("N")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  sub->add_flag("-f,--follow", c.follow, "go on until the job ends");
}

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
  sub->add_option("--policy", c.policies, "which, of " + policy_list() + "; " + c.policies)
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
  sub->add_option(
         "--baseline", c.baseline,
         "compare with graphpipe, pipedream, piper, interleaved, zb-h1, zb-v, equal, data, "
         "or all")
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

// The innermost subcommand the user named.
CLI::App* innermost(CLI::App& app) {
  CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().back();
  return at;
}

std::string full_name(const CLI::App* app) {
  return app->get_parent() == nullptr ? app->get_name()
                                      : full_name(app->get_parent()) + " " + app->get_name();
}

// The words `app` knows: its subcommands, or its options where `option` holds.
std::vector<std::string> known_words(const CLI::App& app, bool option) {
  std::vector<std::string> words;
  if (!option) {
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
      words.push_back(sub->get_name());
    return words;
  }
  for (const CLI::App* at = &app; at != nullptr; at = at->get_parent()) {
    for (const CLI::Option* o : at->get_options()) {
      for (const std::string& name : o->get_lnames()) words.push_back("--" + name);
    }
  }
  return words;
}

// "data inspect: ", or nothing for the program itself.
std::string subject(const CLI::App& app) {
  const std::string name = full_name(&app);
  const size_t space = name.find(' ');
  return space == std::string::npos ? "" : name.substr(space + 1) + ": ";
}

// What to say of a word nobody took.
std::string unknown_word(const CLI::App& app, const std::string& word) {
  const bool option = word.size() > 1 && word.front() == '-';
  const std::string bare = word.substr(0, word.find('='));
  const auto words = known_words(app, option);
  const bool command = !option && !words.empty();
  std::string text = fmt::format("{}unknown {} '{}'", subject(app),
                                 option    ? "option"
                                 : command ? "command"
                                           : "argument",
                                 bare);
  if (const auto near = nearest_name(bare, words)) text += fmt::format("; did you mean {}?", *near);
  return text;
}

ExitCode usage_error(CLI::App& app, const CLI::ParseError& error, Console& console) {
  const CLI::App* at = innermost(app);
  const std::vector<std::string> unknown = app.remaining(true);
  std::string text =
      unknown.empty() ? subject(*at) + error.what() : unknown_word(*at, unknown.front());
  console.error(text);
  console.err() << "Try '" << full_name(at) << " --help'.\n";
  return kUsage;
}

}  // namespace

ExitCode run_command_line(int argc, const char* const* argv, Context& context) {
  for (int i = 0; i < argc; ++i)
    context.command += (i > 0 ? " " : "") + (i > 0 ? std::string(argv[i]) : "ductile");
  Console& console = context.console;
  Parsed parsed;
  CLI::App app("Trains deep networks on machines that come and go.", "ductile");
  app.formatter(std::make_shared<PlainFormatter>());
  parsed.example[&app] =
      "Example:\n"
      "  ductile train                       # embedded data: see it work\n"
      "  ductile train job.toml --set train.epochs=5\n";
  app.set_version_flag("--version", fmt::format("ductile {}", version()));
  app.require_subcommand(1);
  app.fallthrough();
  CLI::Option* quiet_flag =
      app.add_flag("-q,--quiet", parsed.quiet, "no talk, only data and errors");
  app.add_flag("-v,--verbose", parsed.verbose, "say more")->excludes(quiet_flag);
  app.get_option("--help")->description("print this help");
  app.get_option("--version")->description("print the version");
  app.footer(
      "Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 job failed, 4 not found or\n"
      "conflict, 5 server unreachable, 130 interrupted.");
  add_train(app, parsed);
  add_live(app, parsed);
  add_config(app, parsed);
  add_data(app, parsed);
  add_ckpt(app, parsed);
  add_models(app, parsed);
  add_report(app, parsed);
  add_plan(app, parsed);
  add_doctor(app, parsed);
  add_sim(app, parsed);
  add_bench(app, parsed);
  // What launcher commands start; not for people.
  app.add_subcommand(server::kHostAgent, "the agent of a host")->group("")->callback([&parsed] {
    parsed.chosen = [](Context&) {
      return server::run_host_agent(STDIN_FILENO, STDOUT_FILENO) == 0 ? kDone : kFailed;
    };
  });

  for (int i = 1; i < argc; ++i) {  // what is said here goes into files that are UTF-8
    if (const size_t at = find_not_utf8(argv[i]); at != std::string_view::npos) {
      console.error(fmt::format("'{}': byte {} is not UTF-8 text", to_utf8(argv[i]), at + 1));
      return kUsage;
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    const CLI::App* at = innermost(app);
    if (at->get_name() != "bench" && app.remaining_size(true) > 0)
      return usage_error(app, help, console);
    console.out() << parsed.example[at] << "\n" << app.help();
    return kDone;
  } catch (const CLI::CallForVersion& version) {
    console.out() << version.what() << "\n";
    return kDone;
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error, console);
  }
  console.verbosity = parsed.quiet ? -1 : parsed.verbose ? 1 : 0;

  try {
    return parsed.chosen(context);
  } catch (const Error& error) {
    console.error(error.what());
    return exit_code(error.code());
  } catch (const fs::filesystem_error& error) {
    const Error known = error_of(error);
    console.error(known.what());
    return exit_code(known.code());
  } catch (const std::bad_alloc&) {
    console.error("not enough memory");
    return kFailed;
  } catch (const std::exception& error) {
    console.error(fmt::format("unexpected: {}", error.what()));
    return kFailed;
  }
}

}  // namespace ductile::cli
