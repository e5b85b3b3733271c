#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/cli/console.h"
#include "ductile/cli/exit_code.h"
#include "ductile/cli/job_config.h"
#include "ductile/minima/measure.h"

// One struct and one function per command. The structs hold what the command line said; each
// function writes to the console and returns the exit code, or throws ductile::Error, which the
// caller maps.
namespace ductile::cli {

// What a command may know of the process it runs in.
struct Context {
  Console& console;
  const char* const* environment;  // NAME=value ..., ends with nullptr
  std::string command = {};        // as it was called
};

// Where workers run, as the command line says it; what is not said is as before, or this machine.
struct HostsRequest {
  std::optional<std::string> hosts;     // a list, or a file of them
  std::optional<std::string> launcher;  // a command with {host} in it
  std::optional<std::string> listen;    // this machine's address
};

struct TrainCommand {
  JobRequest job;
  std::optional<fs::path> out;           // the run directory itself
  std::optional<fs::path> runs;          // the folder in which one is made
  std::optional<fs::path> resume;        // an existing run directory
  std::optional<fs::path> replay;        // the same: a new run does what that one recorded
  std::optional<int64_t> workers;        // default: one, or as many as before, or as the hosts take
  std::optional<fs::path> plan;          // a pipeline plan, which the job is to run by
  std::optional<std::string> plan_text;  // `plan` is no file, but the name of this one
  std::optional<std::string> devices;    // a cluster file, or how many, for which one is made first
  std::optional<int64_t> replicas;       // of each stage of that plan
  std::optional<fs::path> weights;       // those that it begins with, in place of drawn ones
  HostsRequest hosts;
  bool trust = false;  // resume: also what belongs to another user
  bool dry_run = false;
  bool json = false;
  bool goes_on = false;  // with the workers that are left of its own: their hosts are no choice
};
ExitCode train(const TrainCommand& command, Context& context);

struct TuneCommand {
  JobRequest job;
  std::optional<fs::path> space;         // a tuning file; default: the usual space
  std::vector<std::string> assignments;  // --tune budget=40
  std::optional<fs::path> out;           // the session's folder
  std::optional<fs::path> resume;        // an existing one
  bool trust = false;                    // resume: also what belongs to another user
  bool json = false;
};
ExitCode tune(const TuneCommand& command, Context& context);

// Which service: one of them is given, or neither (client_of() in job_reference.h).
struct ServiceAt {
  std::optional<fs::path> folder;  // of a service on this machine
  std::optional<fs::path> server;  // an access file
};

// What acts on a job: one of a service, or a run directory (job_reference.h).
struct LiveCommand {
  std::string job;                // a run directory, or a job's number or name
  std::vector<std::string> jobs;  // preempt, resume: one or several of these
  ServiceAt at;
  std::optional<int64_t> workers;   // resize, resume
  std::optional<int64_t> min, max;  // resize
  HostsRequest hosts;               // resume
  bool trust = false;               // resume
  int64_t lines = 50;               // logs
  bool follow = false;              // logs
  double patience = 3600;           // logs: seconds that a service may be away
  bool json = false;
  // reload: of this step; none: the newest
  std::optional<int64_t> checkpoint;
};
ExitCode status(const LiveCommand& command, Context& context);
ExitCode resize(const LiveCommand& command, Context& context);
ExitCode preempt(const LiveCommand& command, Context& context);
ExitCode resume(const LiveCommand& command, Context& context);
ExitCode logs(const LiveCommand& command, Context& context);
ExitCode reload(const LiveCommand& command, Context& context);

// The service of this machine, and its jobs.
inline constexpr uint16_t kPagePort = 8470;

struct ServiceCommand {
  ServiceAt at;
  // up
  std::optional<int64_t> devices;  // default: the hardware threads that this process may use
  std::string policy = "ductile";
  double interval = 10;             // seconds between two rounds of it
  std::vector<std::string> quotas;  // TEAM=DEVICES
  std::vector<std::string> shares;  // TEAM=PART
  std::vector<std::string> data;    // folders in which the jobs of others may name files
  double keep_days = 90;            // jobs that have ended; 0: for ever
  int64_t keep_jobs = 100'000;      // the same
  std::optional<uint16_t> port;     // of the page; default: kPagePort, or any free one
  bool no_page = false;
  std::string https;                         // ADDRESS:PORT; empty: not beyond this machine
  std::optional<fs::path> certificate, key;  // the operator's own
  // server
  fs::path cluster;                // the cluster file
  std::optional<fs::path> check;   // look at the store in this folder, and run nothing
  std::optional<fs::path> backup;  // copy the service's store to this file, and run nothing
  std::optional<fs::path> shared;
  std::string launcher = "ssh {host}", listen;
  double grace = 30;  // seconds; of submit, too
  // token
  std::string token, role;      // its name
  double expires = 0;           // seconds; 0: never
  std::optional<fs::path> out;  // where the access file goes; none: stdout
  // submit
  JobRequest request;
  std::optional<std::string> name;  // default: the job file's
  std::string team, tier = "standard";
  std::optional<int64_t> min, max;       // devices; default: 1, and a device for each virtual rank
  std::vector<fs::path> plans;           // of a Ductile job: of several the service chooses one
  std::optional<std::string> plan_text;  // the only one of them is the name of this one
  // --devices: of a command a number, 1 where it is not there; of a Ductile job what own_plan()
  // takes.
  std::optional<std::string> planned_for;
  std::optional<int64_t> replicas;  // of each stage of that plan
  std::string region;               // of its data; empty: everywhere
  double transfer = 0;              // seconds to bring them to another one
  bool stay = false;                // in that region
  std::optional<std::vector<std::string>>
      command;                           // a program and its arguments, instead of a Ductile job
  std::vector<std::string> environment;  // of it: NAME=VALUE, or NAME for the value here
  int64_t gpus = 0;                      // of one node, that it has for itself
  int64_t retries = 0;
  double time_limit = 0;              // seconds
  std::optional<std::string> served;  // a run, or a job whose run is to be served
  std::optional<int64_t> checkpoint;  // of it: to begin with
  int64_t max_batch = 32;             // of it
  double target = 0.5;                // of it: seconds
  std::string array;                  // submit: indices of its jobs: 0-9, 1,3,10-20:2
  std::vector<std::string> after;     // submit: jobs that are to finish before it begins
  bool hold = false;                  // submit: until it is resumed
  bool wait = false;                  // submit: until it has ended
  std::vector<std::string> jobs;      // why, cancel: numbers or names
  std::string job;                    // events: a number or a name; empty: all
  std::string node;                   // drain, undrain
  std::string reason;                 // drain
  double in = 0, lasts = 0;           // drain: seconds; 0: at once, until undrain
  int64_t lines = 50;                 // events
  bool follow = false;                // events
  double patience = 3600;             // events: seconds that a service may be away
  bool all = false;                   // jobs: also those that have ended
  std::string user, phases;           // jobs: only these; `team`, and `name` as a pattern, too
  bool json = false;
};
ExitCode up(const ServiceCommand& command, Context& context);
ExitCode server(const ServiceCommand& command, Context& context);
ExitCode submit(const ServiceCommand& command, Context& context);
ExitCode jobs(const ServiceCommand& command, Context& context);
ExitCode why(const ServiceCommand& command, Context& context);
ExitCode cancel(const ServiceCommand& command, Context& context);
ExitCode events(const ServiceCommand& command, Context& context);
ExitCode nodes(const ServiceCommand& command, Context& context);
ExitCode drain(const ServiceCommand& command, Context& context);
ExitCode undrain(const ServiceCommand& command, Context& context);
ExitCode page_link(const ServiceCommand& command, Context& context);

struct ProfileCommand {
  JobRequest job;
  std::optional<fs::path> out;      // a file; else stdout
  std::optional<fs::path> devices;  // a cluster file of this machine, to be written
  std::vector<int64_t> shares;      // samples at once; empty: powers of two up to the batch
  int64_t rounds = 7;
};
ExitCode profile(const ProfileCommand& command, Context& context);

struct CaptureCommand {
  JobRequest job;                   // FILE.py:CLASS; of --set, the interpreter and its threads
  std::optional<fs::path> out;      // a file; else stdout
  std::optional<fs::path> model;    // a file for the operators themselves
  std::vector<std::string> leaves;  // modules that stay whole
  std::vector<std::string> inputs;  // shapes of a sample, for a module without example()
  std::optional<int64_t> batch;     // samples at once, at most
  std::vector<int64_t> shares;      // empty: powers of two up to the batch
  int64_t rounds = 7;
  bool no_times = false, no_check = false;
};
ExitCode capture(const CaptureCommand& command, Context& context);

struct ConfigCommand {
  JobRequest job;
  bool changed = false;   // only values that differ from their default
  bool origin = false;    // one line per value: key, value, origin
  bool schema = false;    // the JSON Schema of a job
  bool markdown = false;  // the reference page of all options
  bool json = false;
};
ExitCode config(const ConfigCommand& command, Context& context);

struct DoctorCommand {
  bool json = false;
};
ExitCode doctor(const DoctorCommand& command, Context& context);

struct DataInspectCommand {
  fs::path path;  // data, or a job file that names some
  std::vector<std::string> assignments;
  std::string split = "both";  // train, test, both
  bool json = false;
};
ExitCode data_inspect(const DataInspectCommand& command, Context& context);

struct DataConvertCommand {
  fs::path source;
  fs::path destination;
  std::string to = "tar";  // tar, records
  std::vector<std::string> assignments;
  std::string split = "both";  // train, test, both
  int64_t shard_mb = 256;
  bool raw = false;
  int64_t short_side = 0;
  bool json = false;
};
ExitCode data_convert(const DataConvertCommand& command, Context& context);

struct CkptCommand {
  fs::path run;
  std::optional<int64_t> step;  // default: the newest
  fs::path output;              // export, import
  std::vector<fs::path> files;  // import
  std::string prefix, key;      // import: of tensors; of the state_dict
  std::string python;           // import: the Python that reads files of torch.save()
  bool json = false;
};
ExitCode ckpt_list(const CkptCommand& command, Context& context);
ExitCode ckpt_show(const CkptCommand& command, Context& context);
ExitCode ckpt_verify(const CkptCommand& command, Context& context);
ExitCode ckpt_export(const CkptCommand& command, Context& context);
ExitCode ckpt_import(const CkptCommand& command, Context& context);

// What uses the trained model of a run.
struct TrainedCommand {
  fs::path run;
  std::optional<fs::path> data;       // default: the evaluation set of the run
  std::optional<int64_t> checkpoint;  // default: the final weights
  int64_t top = 1;                    // predict
  bool csv = false;                   // predict
  bool skip_bad = false;              // predict
  bool trust = false;
  bool json = false;        // eval, minima; predict writes JSON anyway
  minima::Options measure;  // minima
};
ExitCode eval(const TrainedCommand& command, Context& context);
ExitCode predict(const TrainedCommand& command, Context& context);
ExitCode minima(const TrainedCommand& command, Context& context);

struct ServeCommand {
  fs::path run;
  std::string host = "127.0.0.1";
  int64_t port = 0;
  std::optional<int64_t> checkpoint;  // default: the newest weights
  std::optional<std::string> name;    // default: the job's
  bool follow = false;
  int64_t max_batch = 32, max_waiting = 1024, threads = 0, replicas = 1;
  double max_delay = 0;  // milliseconds
  bool trust = false;
};
ExitCode serve(const ServeCommand& command, Context& context);

struct ModelsCommand {
  bool json = false;
};
ExitCode models(const ModelsCommand& command, Context& context);

struct ReportCommand {
  std::string job;  // a run directory, or a job's number or name
  ServiceAt at;
  bool json = false;
};
ExitCode report(const ReportCommand& command, Context& context);

ExitCode token_add(const ServiceCommand& command, Context& context);
ExitCode token_list(const ServiceCommand& command, Context& context);
ExitCode token_revoke(const ServiceCommand& command, Context& context);

struct PlanCommand {
  std::string graph;              // a file, or a built-in one; empty: list those
  std::string devices = "8";      // a file, or how many
  std::optional<fs::path> links;  // as they were measured between the devices of that file
  int64_t batch = 128;
  std::string objective = "time";  // time, throughput
  std::string baseline;            // a list, or all
  double time_limit = 60;
  std::optional<int64_t> micro_batch;     // default: all are tried
  std::optional<double> optimizer_state;  // bytes per byte of parameters; default: the graph's
  std::optional<fs::path> plan;           // evaluate this one
  std::optional<std::string> emit;        // megatron
  std::optional<std::string> schema;      // graph, plan, cluster
  int64_t replicas = 0;                   // of each stage; 0: as many as serve it best
  bool runnable = false;                  // only what `ductile train --plan` runs
  bool emulate = false;                   // carry the plans out on sleeping threads
  double emulate_seconds = 0;             // of the clock, for an iteration; 0: chosen
  bool write_graph = false;               // print the graph in our own format
  bool json = false;
  bool svg = false;
  bool html = false;
};
ExitCode plan(const PlanCommand& command, Context& context);

struct SimCommand {
  std::vector<std::string> workloads;  // files, folders; default: synthetic jobs
  std::string policies = "ductile,sia,tiresias,fifo";
  std::optional<fs::path> cluster;       // default: 16 nodes with 4 t4 each
  std::optional<fs::path> applications;  // default: traces beside the workload, or built in
  std::optional<fs::path> scenario;
  std::optional<fs::path> out;
  double load = 1;
  int64_t jobs = 0;  // 0: 160 synthetic ones, or all of a file
  int64_t seeds = 1;
  int64_t seed = 0;
  std::string budget = "none";        // exact, none, or a factor
  std::string information = "own";    // own, published, full, profiled
  std::optional<double> device_cost;  // default: that of the policy
  double noise = 0;
  bool unique = false;
  std::optional<double> interval;
  std::optional<double> restart;  // seconds; default: those of the applications
  std::optional<double> resize;   // seconds; default: as a restart
  double interference = 0;
  double neighbours = 1;
  bool as_service = false;
  bool bound = false;
  bool tiers = false;
  int64_t services = 0, teams = 1;  // synthetic ones
  bool control = false;
  bool check = false;
  bool json = false;
};
ExitCode sim(const SimCommand& command, Context& context);

struct BenchCommand {
  std::string name;  // empty: list them
  std::vector<std::string> arguments;
};
ExitCode bench(const BenchCommand& command, Context& context);

struct AllReduceBenchCommand {
  std::optional<int64_t> workers;  // default: two, or one per host
  std::string hosts;               // a list, or a file of them; empty: this machine
  std::string launcher = "ssh {host}";
  std::string transport;  // shm, tcp, ucx; empty: shm on one machine, else tcp
  std::string sizes = "4K,64K,1M,16M";
  std::string algorithms;  // "ring:8,torus"; empty: all
  double seconds = 0.15;
  bool explain = false;
  bool recalibrate = false;
  bool json = false;
};
ExitCode bench_all_reduce(const AllReduceBenchCommand& command, Context& context);

}  // namespace ductile::cli
