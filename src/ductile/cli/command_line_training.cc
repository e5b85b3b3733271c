// The options of commands that train.
#include "ductile/cli/parsed.h"

namespace ductile::cli {
void add_trust(CLI::App& app, bool& trust) {
  app.add_flag(
      "--trust", trust,
      "resume a run of another user, whose files name programs to run (launcher, library)");
}

void add_hosts(CLI::App& app, HostsRequest& hosts) {
  app.add_option(
         "--hosts", hosts.hosts,
         "where the workers run: a,b:2,c=10.0.0.3:4 (host=address:workers), a file of these, or "
         "a cluster file (.toml)")
      ->option_text("LIST");
  app.add_option("--launcher", hosts.launcher,
                 "command that starts a program on a host (default ssh {host})")
      ->option_text("COMMAND");
  app.add_option("--listen", hosts.listen,
                 "address at which the hosts reach this machine (default: detected)")
      ->option_text("ADDRESS");
}

void add_plan(CLI::App& sub, TrainCommand& c) {
  sub.add_option(
         "--plan", c.plan,
         "run by this pipeline plan, as `ductile plan --json` writes it: its stages are "
         "the virtual ranks; a resumed run goes on by it from its last checkpoint, and says "
         "whether the result is the same")
      ->option_text("FILE")
      ->excludes("--replay");
  sub.add_option(
         "--devices", c.devices,
         "measure the model, plan its stages for the devices in this cluster file, or for so many "
         "of this machine, and run by that plan, which the run keeps; as many workers as it has "
         "devices")
      ->option_text("FILE|N")
      ->excludes("--plan")
      ->excludes("--resume")
      ->excludes("--replay");
  sub.add_option("--replicas", c.replicas,
                 "with --devices: replicas of each stage; 1 cuts the model where a stage with "
                 "replicas would be faster (default: as many as serve it best)")
      ->option_text("N")
      ->check(Range(1, 1 << 16))
      ->needs("--devices");
}

void add_train(CLI::App& app, Parsed& parsed) {
  TrainCommand& c = parsed.train;
  CLI::App* sub = app.add_subcommand("train", "train a model");
  parsed.example[sub] =
      "Example:\n"
      "  ductile train job.toml --set train.epochs=5\n"
      "  ductile train job.toml --workers 4 --set train.virtual_ranks=8\n"
      "  ductile train job.toml --hosts node1:4,node2:4 --set train.virtual_ranks=8\n"
      "  ductile train train.py:Job --workers 4 -- --the-scripts-own-arguments\n"
      "  ductile train job.toml --devices machine.toml\n"
      "  ductile train --resume runs/latest\n"
      "\n"
      "The command draws a progress bar and leaves a run directory with checkpoints, metrics and\n"
      "report.html. Without a job file it trains a small network on embedded images.\n";
  add_job(*sub, c.job);
  CLI::Option* runs =
      sub->add_option("--runs", c.runs, "folder in which the run directory is made");
  runs->option_text("DIR");
  CLI::Option* out =
      sub->add_option("--out", c.out, "the run directory itself, which must not exist yet");
  out->option_text("DIR")->excludes(runs);
  sub->add_option("--resume", c.resume, "resume this run, bit-exactly")
      ->option_text("RUN")
      ->excludes(runs)
      ->excludes(out)
      ->excludes("job")
      ->excludes("--set");
  sub->add_option_function<std::string>(
         "--verify",
         [&c](const std::string& every) {
           c.job.assignments.push_back("python.verify_every=" + (every.empty() ? "100" : every));
         },
         "of a Python job: every N steps (100) compute a virtual rank twice and compare the bits")
      ->option_text("[N]")
      ->excludes("--resume")
      ->expected(0, 1)
      ->default_str("100");
  sub->add_option("--replay", c.replay,
                  "train anew as this finished run did, with the batches that it records "
                  "(train.rate_control = \"goodput\"); says whether the result has the same bits")
      ->option_text("RUN")
      ->excludes("--resume")
      ->excludes("job")
      ->excludes("--set");
  sub->add_option("--workers", c.workers,
                  "number of processes that share the job (default 1, or as many as before)")
      ->option_text("N")
      ->check(Range(int64_t{1}, int64_t{1} << 20));
  add_plan(*sub, c);
  sub->add_option(
         "--weights", c.weights,
         "begin with the weights in this file, of torch.save() or safetensors, in place of "
         "drawn ones; the run keeps them as initial.safetensors")
      ->option_text("FILE")
      ->excludes("--resume")
      ->excludes("--replay");
  add_hosts(*sub, c.hosts);
  add_trust(*sub, c.trust);
  sub->add_flag("--dry-run", c.dry_run, "print the resolved job and do nothing");
  add_json(*sub, c.json);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) { return train(parsed.train, context); };
  });
}

void add_tune(CLI::App& app, Parsed& parsed) {
  TuneCommand& c = parsed.tune;
  CLI::App* sub = app.add_subcommand("tune", "find good options for a job");
  parsed.example[sub] =
      "Example:\n"
      "  ductile tune job.toml\n"
      "  ductile tune job.toml --space tune.toml --tune budget=60\n"
      "  ductile tune --resume runs/job-tune\n"
      "\n"
      "The command runs trials of the job with different options, gives more epochs to those that\n"
      "promise most, and finishes the best one. Trials are ordinary runs in the session's folder.\n"
      "It leaves best.toml, the job with the best options, and report.html.\n";
  add_job(*sub, c.job);
  sub->add_option(
         "--space", c.space,
         "tuning file: which options are tuned, and how (default: learning rate, momentum, "
         "weight decay)")
      ->option_text("FILE");
  sub->add_option("--tune", c.assignments,
                  "set an option of the tuner: --tune budget=40 (repeatable); with --resume: "
                  "budget, at_once "
                  "or finish")
      ->option_text("KEY=VALUE")
      ->allow_extra_args(false);
  CLI::Option* out =
      sub->add_option("--out", c.out, "folder of the session, which must not exist yet");
  out->option_text("DIR");
  sub->add_option("--resume", c.resume, "go on with this session")
      ->option_text("DIR")
      ->excludes(out)
      ->excludes("job")
      ->excludes("--set")
      ->excludes("--space");
  add_trust(*sub, c.trust);
  add_json(*sub, c.json);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) { return tune(parsed.tune, context); };
  });
}

// What `profile` and `capture` measure.
template <class Command>
void add_measurement(CLI::App& sub, Command& c) {
  sub.add_option("--shares", c.shares,
                 "numbers of samples that are measured (default: 1, 2, 4 ... up to the batch)")
      ->option_text("LIST")
      ->delimiter(',')
      ->check(Range(int64_t{1}, int64_t{1} << 40));
  sub.add_option("--rounds", c.rounds,
                 "passes for each number of samples, of which medians count (default 7)")
      ->option_text("N")
      ->check(Range(int64_t{1}, int64_t{10'000}));
}

void add_profile(CLI::App& app, Parsed& parsed) {
  ProfileCommand& c = parsed.profile;
  CLI::App* sub =
      app.add_subcommand("profile", "measure the operators of a job's model, for `ductile plan`");
  parsed.example[sub] =
      "Example:\n"
      "  ductile profile job.toml -o graph.json --devices machine.toml\n"
      "  ductile plan graph.json --devices machine.toml --batch 128 --runnable --json > plan.json\n"
      "  ductile train job.toml --plan plan.json --workers 2\n"
      "\n"
      "The command runs each operator forward and backward on samples of the training set, at\n"
      "several numbers of them, and writes the graph of the model with times and bytes.\n";
  add_job(*sub, c.job);
  sub->add_option("-o,--out", c.out, "write the graph to this file (default: stdout)")
      ->option_text("FILE");
  sub->add_option(
         "--devices", c.devices,
         "write this machine to this file, for `ductile plan --devices`: a device for each "
         "train.threads cores, their memory, and the link between them as it is measured")
      ->option_text("FILE");
  add_measurement(*sub, c);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) { return profile(parsed.profile, context); };
  });
}

void add_capture(CLI::App& app, Parsed& parsed) {
  CaptureCommand& c = parsed.capture;
  CLI::App* sub = app.add_subcommand(
      "capture", "find and measure the operators of a Python model, for `ductile plan`");
  parsed.example[sub] =
      "Example:\n"
      "  ductile capture train.py:Job -o graph.json --batch 64\n"
      "  ductile capture torchvision.models:resnet18 --input 3,224,224 -o graph.json\n"
      "  ductile capture net.py:Net --model net.pt -o graph.json\n"
      "  ductile plan graph.json --devices cluster.toml --batch 128\n"
      "\n"
      "The command runs the model in its own Python, records what it calls, and runs these\n"
      "operators one by one: they have to give the bits of the model. It writes the graph with\n"
      "times and bytes. What is no graph of operators is named with its line.\n";
  sub->add_option("class", c.job.file,
                  "FILE.py:CLASS or MODULE:CLASS: a ductile.Job, a torch.nn.Module with a method "
                  "example(self, samples), or a function that makes one")
      ->option_text("FILE.py:CLASS")
      ->required();
  sub->add_option("-o,--out", c.out, "write the graph to this file (default: stdout)")
      ->option_text("FILE");
  sub->add_option("--model", c.model,
                  "write the operators of a torch.nn.Module, too, as a file for model.library of a "
                  "job, which runs them without Python for the numbers of samples of --shares")
      ->option_text("FILE");
  sub->add_option("--leaf", c.leaves,
                  "keep this module whole: its path in the model, or its class (repeatable)")
      ->option_text("NAME")
      ->allow_extra_args(false);
  sub->add_option("--input", c.inputs,
                  "shape of one sample of an input, in place of example(): 3,224,224, or 1000:16 "
                  "for 16 whole numbers below 1000 (repeatable)")
      ->option_text("SHAPE")
      ->allow_extra_args(false);
  sub->add_option("--batch", c.batch,
                  "the most samples at once (default: the batch of a job, else 32)")
      ->option_text("N")
      ->check(Range(int64_t{2}, int64_t{1} << 40));
  add_measurement(*sub, c);
  sub->add_flag("--no-times", c.no_times,
                "measure no times: give those of a V100, from operations and bytes");
  sub->add_flag("--no-check", c.no_check, "do not compare the operators' bits with the model's");
  add_set(*sub, c.job.assignments);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) { return capture(parsed.capture, context); };
  });
}

void add_config(CLI::App& app, Parsed& parsed) {
  ConfigCommand& c = parsed.config;
  CLI::App* sub = app.add_subcommand("config", "print every option with its origin");
  parsed.example[sub] =
      "Example:\n"
      "  ductile config job.toml --set train.epochs=5 --changed\n"
      "\n"
      "The command prints the job as `ductile train` would run it: each value and its origin.\n"
      "Precedence: defaults < job file < DUCTILE_... environment < --set.\n";
  add_job(*sub, c.job);
  sub->add_flag("--changed", c.changed, "print only values that differ from their default");
  CLI::Option* origin =
      sub->add_flag("--origin", c.origin, "one line per value: key, value, origin");
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
  CLI::App* sub = app.add_subcommand("doctor", "show what this machine has and what is missing");
  parsed.example[sub] =
      "Example:\n"
      "  ductile doctor\n"
      "\n"
      "The command lists what training would find here (cores, memory, torch and its BLAS, bf16,\n"
      "UCX, NCCL, GPUs, compilers) and, for what is missing, the command that installs it.\n";
  add_json(*sub, parsed.doctor.json);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) { return doctor(parsed.doctor, context); };
  });
}

namespace {

// A command that uses the trained model of a run.
CLI::App* add_model_command(CLI::App& app, Parsed& parsed, const char* name, const char* help,
                            const char* example, ExitCode (*run)(const TrainedCommand&, Context&)) {
  TrainedCommand& c = parsed.trained;
  CLI::App* sub = app.add_subcommand(name, help);
  parsed.example[sub] = example;
  sub->add_option("run", c.run, "a run directory")->option_text(" ")->required();
  sub->add_option("--checkpoint", c.checkpoint,
                  "use the weights of this checkpoint (default: the final weights)")
      ->option_text("STEP")
      ->check(Range(int64_t{0}, int64_t{1} << 60));
  sub->add_flag("--trust", c.trust,
                "use a run of another user, whose files name a program to load (library)");
  sub->callback([&parsed, run] {
    parsed.chosen = [&parsed, run](Context& context) { return run(parsed.trained, context); };
  });
  return sub;
}

void add_minima(CLI::App& app, Parsed& parsed) {
  TrainedCommand& c = parsed.trained;
  minima::Options& m = c.measure;
  CLI::App* sub = add_model_command(
      app, parsed, "minima", "measure how sharp the minimum is that a run found",
      "Example:\n"
      "  ductile minima runs/latest\n"
      "  ductile minima runs/latest --samples 5000 --slices 2d\n"
      "\n"
      "The command prints Keskar's sharpness, the largest eigenvalue of the Hessian and what they "
      "cost,\nand adds them with slices of the loss to the run's report. It changes nothing else "
      "of the run.\n",
      minima);
  sub->add_option("--samples", m.samples,
                  "measure the loss on this many training samples (default 1,000)")
      ->option_text("N")
      ->check(Range(int64_t{1}, int64_t{1} << 40));
  sub->add_option(
         "--epsilon", m.epsilon,
         "half the side of the box around each weight w, relative to |w| + 1 (default 1e-3 "
         "and 5e-4; repeatable)")
      ->option_text("E")
      ->allow_extra_args(false)
      ->check(positive_number());
  sub->add_option("--subspace", m.subspace,
                  "seek the maximum in a random subspace of this many dimensions (default: among "
                  "all weights)")
      ->option_text("P")
      ->check(Range(int64_t{0}, int64_t{10'000}));
  sub->add_option("--steps", m.steps, "gradients of each ascent, 2 or more (default 20)")
      ->option_text("N")
      ->check(Range(int64_t{2}, int64_t{1'000'000}));
  sub->add_option("--lanczos", m.lanczos,
                  "products with the Hessian at most; 0: no eigenvalues (default 40)")
      ->option_text("N")
      ->check(Range(int64_t{0}, int64_t{300}));
  sub->add_option("--slices", m.slices, "slices of the loss: 1d, 2d or none (default 1d)")
      ->option_text("KIND")
      ->check(CLI::IsMember({"1d", "2d", "none"}));
  sub->add_option("--seed", m.seed, "of samples, starts and directions (default 1)")
      ->option_text("N")
      ->check(Range(int64_t{0}, int64_t{1} << 60));
  add_json(*sub, c.json);
}

}  // namespace

void add_trained(CLI::App& app, Parsed& parsed) {
  TrainedCommand& c = parsed.trained;
  const auto add = [&](const char* name, const char* help, const char* example,
                       ExitCode (*run)(const TrainedCommand&, Context&)) {
    CLI::App* sub = add_model_command(app, parsed, name, help, example, run);
    sub->add_option("--data", c.data,
                    "data of the form that the run was trained on (default: its evaluation set)")
        ->option_text("PATH");
    return sub;
  };
  CLI::App* sub = add("eval", "measure the trained model of a run",
                      "Example:\n"
                      "  ductile eval runs/latest\n"
                      "  ductile eval runs/latest --data other/photos --json\n"
                      "\n"
                      "The command prints loss and accuracy, the accuracy of each class, which "
                      "classes are taken\nfor which, and how far the probabilities can be "
                      "believed.\n",
                      eval);
  add_json(*sub, c.json);
  sub =
      add("predict", "let the trained model of a run name the classes of samples",
          "Example:\n"
          "  ductile predict runs/latest --data photos\n"
          "  ductile predict runs/latest --data photos --top 3 --csv\n"
          "\n"
          "The data may also be an image, or a folder of images without classes. Each sample is a "
          "line of\nJSON; of a language model it holds the loss of the sequence.\n",
          predict);
  sub->add_option("--top", c.top, "print this many of the most likely classes (default 1)")
      ->option_text("K")
      ->check(Range(int64_t{1}, int64_t{1} << 24));
  CLI::Option* json =
      sub->add_flag("--json", c.json, "write a line of JSON for each sample: the default");
  sub->add_flag("--csv", c.csv, "write CSV with a row of heads")->excludes(json);
  sub->add_flag("--skip-bad", c.skip_bad,
                "leave out samples that cannot be read, and name them at the end (default: as the "
                "run's data.on_bad_sample)");
  add_minima(app, parsed);
}

void add_models(CLI::App& app, Parsed& parsed) {
  CLI::App* sub = app.add_subcommand("models", "list the built-in models");
  parsed.example[sub] =
      "Example:\n"
      "  ductile models\n"
      "  ductile train job.toml --set model.name=resnet20\n";
  add_json(*sub, parsed.models.json);
  sub->callback([&parsed] {
    parsed.chosen = [&parsed](Context& context) { return models(parsed.models, context); };
  });
}

}  // namespace ductile::cli
