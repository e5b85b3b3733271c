// The service of this machine, and what people ask it for.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/log.h"
#include "ductile/base/machine.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/held_signals.h"
#include "ductile/cli/own_plan.h"
#include "ductile/cli/python_job.h"
#include "ductile/cli/trust.h"
#include "ductile/cluster/client.h"
#include "ductile/cluster/service.h"
#include "ductile/fleet/job_reference.h"
#include "ductile/fleet/service_request_impl.h"
#include "ductile/fleet/training_spec_impl.h"
#include "ductile/net/socket.h"
#include "ductile/page/numbers.h"
#include "ductile/page/terminal.h"
#include "ductile/process/file_limit.h"
#include "ductile/process/worker.h"
#include "ductile/run/folder.h"
#include "ductile/server/node_devices.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kUsualReplicas = 4;  // at most, where nobody says --max

// NAME=VALUE pairs of --env, and the PATH by which the program is found here.
Json environment_of(const ServiceCommand& command, const Context& context) {
  const auto here = [&](const std::string& name) -> std::optional<std::string> {
    for (const char* const* at = context.environment; *at != nullptr; ++at) {
      const std::string_view entry = *at;
      if (entry.starts_with(name + "=")) return std::string(entry.substr(name.size() + 1));
    }
    return std::nullopt;
  };
  Json out = Json::object();
  if (const auto path = here("PATH")) out["PATH"] = *path;
  for (const std::string& entry : command.environment) {
    const size_t equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    const auto value = equals == std::string::npos ? here(name) : entry.substr(equals + 1);
    if (!value)
      fail(ErrorCode::invalid_argument,
           "--env {}: there is no such variable here; give --env {}=...", name, name);
    out[name] = *value;
  }
  return out;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

int64_t number_of_devices(const std::string& text) {
  constexpr int64_t kMost = int64_t{1} << 20;
  int64_t out = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), out);
  if (!is_number(text) || read.ec != std::errc() || out < 1 || out > kMost)
    fail(ErrorCode::invalid_argument,
         "--devices {}: a command runs on a number of devices, from 1 to {}; a file is of a "
         "Ductile job",
         text, kMost);
  return out;
}

nlohmann::json command_body(const ServiceCommand& command, const Context& context) {
  if (command.command->empty()) fail(ErrorCode::invalid_argument, "submit: no command follows --");
  if (command.request.file || !command.request.assignments.empty())
    fail(ErrorCode::invalid_argument,
         "a job file and --set are of Ductile jobs; what follows -- is another program");
  if (command.min || command.max)
    fail(ErrorCode::invalid_argument,
         "--min and --max are of Ductile jobs; a command takes --devices N");
  if (!command.plans.empty() || command.replicas)
    fail(ErrorCode::invalid_argument,
         "--plan and --replicas are of Ductile jobs, which are trained by stages");
  const int64_t devices = command.planned_for ? number_of_devices(*command.planned_for) : 1;
  const std::string program = fs::path(command.command->front()).filename().string();
  nlohmann::json spec = {{"command", *command.command},
                         {"directory", fs::current_path().string()},
                         {"environment", environment_of(command, context)},
                         {"retries", command.retries},
                         {"time_limit", command.time_limit},
                         {"grace", command.grace}};
  if (command.gpus > 0) spec["gpus"] = command.gpus;  // an older service knows no such key
  return {{"name", command.name.value_or(program.empty() ? "command" : program)},
          {"team", command.team},
          {"tier", command.tier},
          {"kind", "command"},
          {"min_devices", devices},
          {"max_devices", devices},
          {"spec", std::move(spec)}};
}

nlohmann::json training_body(const ServiceCommand& command, const Context& context) {
  if (command.planned_for || command.gpus > 0 || !command.environment.empty() ||
      command.retries > 0 || command.time_limit > 0)
    fail(ErrorCode::invalid_argument,
         "--devices, --gpus, --env, --retries and --time-limit are of a command, which follows --; "
         "a Ductile job takes --min and --max, and computes on cores");
  JobRequest request = command.request;
  request.arguments = command.command;  // of a Python job
  TrainingSpec training = training_spec(command, request, context);
  const int64_t least =
      command.min.value_or(std::min(training.least, command.max.value_or(training.least)));
  if (command.min && least > training.ranks && command.plans.empty())
    fail(ErrorCode::invalid_argument,
         "--min {0}: train.virtual_ranks is {1}, and each device hosts at least one of them; --set "
         "train.virtual_ranks={0} lets the job have so many (its result depends on that number)",
         least, training.ranks);
  const int64_t most = std::max(least, training.ranks);
  return {{"name", command.name.value_or(training.name)},
          {"team", command.team},
          {"tier", command.tier},
          {"min_devices", least},
          {"max_devices", command.max.value_or(most)},
          {"spec", std::move(training.spec)}};
}

nlohmann::json serving_body(const ServiceCommand& command, const Context& context) {
  if (command.request.file || !command.request.assignments.empty() || command.planned_for ||
      command.gpus > 0 || !command.environment.empty() || command.retries > 0 ||
      command.time_limit > 0 || !command.plans.empty())
    fail(ErrorCode::invalid_argument,
         "a job file, --set, --devices, --gpus, --env, --retries, --time-limit and --plan are of "
         "other jobs; --service takes a run, --min and --max");
  // That of a job may be on the service's machine alone.
  const JobReference job = find_job(*command.served, command.at, context);
  fs::path run = job.run.empty() ? run_of(job) : job.run;
  std::string name = run::file_name_of(job.service ? job.service->name : run.filename().string());
  std::error_code missing;
  if (fs::exists(run, missing)) {
    const run::RunFolder folder = run::RunFolder::open(run);
    require_trusted(folder.path());
    JobConfig config;
    config.read_saved(folder.job_file());
    if (!job.service) name = run::file_name_of(config.job.name);
    run = folder.path();
  }
  nlohmann::json spec = {{"run", run.string()},
                         {"model", command.name ? run::file_name_of(*command.name) : name},
                         {"follow", command.follow},
                         {"max_batch", command.max_batch},
                         {"target", command.target}};
  if (command.port) spec["port"] = *command.port;
  if (command.checkpoint) spec["version"] = *command.checkpoint;
  const int64_t least = command.min.value_or(1);
  // Its model has the name of its job, and it one of its own, which means no other job.
  return {{"name", command.name.value_or(job.service ? name + "-service" : name)},
          {"team", command.team},
          {"tier", command.tier},
          {"kind", "serve"},
          {"min_devices", least},
          {"max_devices", command.max.value_or(std::max<int64_t>(least, kUsualReplicas))},
          {"spec", std::move(spec)}};
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

// "vision=4", or with GPUs "vision=4+2".
void read_quotas(const ServiceCommand& command, cluster::ServiceOptions& options) {
  for (const std::string& entry : command.quotas) {
    const size_t equals = entry.rfind('=');
    const std::string team = entry.substr(0, equals);
    int64_t devices = 0, gpus = 0;
    const char* const end = entry.data() + entry.size();
    const char* next = equals == std::string::npos
                           ? nullptr
                           : std::from_chars(entry.data() + equals + 1, end, devices).ptr;
    const bool with_gpus = next != nullptr && next != end && *next == '+';
    if (with_gpus) {
      const auto read = std::from_chars(next + 1, end, gpus);
      if (read.ec == std::errc()) next = read.ptr;
    }
    if (team.empty() || next != end || devices < 1 || gpus < 0)
      fail(ErrorCode::invalid_argument,
           "--quota {}: a team and a number of devices from 1 on are wanted, such as vision=4",
           entry);
    if (!options.quotas.emplace(team, devices).second)
      fail(ErrorCode::invalid_argument, "--quota {}: the team {} has a quota already", entry, team);
    if (with_gpus) options.gpu_quotas.emplace(team, gpus);
  }
}

// "vision=0.5".
void read_shares(const ServiceCommand& command, cluster::ServiceOptions& options) {
  double sum = 0;
  for (const std::string& entry : command.shares) {
    const size_t equals = entry.rfind('=');
    double part = 0;
    const char* const end = entry.data() + entry.size();
    const auto number = std::from_chars(entry.data() + (equals + 1), end, part);
    const bool named = equals != std::string::npos && equals > 0;
    if (!named || number.ec != std::errc() || number.ptr != end || !(part > 0 && part <= 1))
      fail(ErrorCode::invalid_argument,
           "--share {}: a team and a part of all devices, above 0 and at most 1, are wanted, such "
           "as vision=0.5",
           entry);
    const std::string team = entry.substr(0, equals);
    if (!options.shares.emplace(team, part).second)
      fail(ErrorCode::invalid_argument, "--share {}: the team {} has a share already", entry, team);
    sum += part;
  }
  if (sum > 1 + 1e-9)
    fail(ErrorCode::invalid_argument, "--share: the shares add up to {:.3g}, above 1", sum);
}

fs::path find_keeper() {
  const fs::path keeper = fs::read_symlink("/proc/self/exe").parent_path() / "ductile-keeper";
  if (access(keeper.c_str(), X_OK) != 0)
    fail(ErrorCode::not_found,
         "{}: not beside this program; install Ductile again; in the source tree, `scripts/build "
         "release ductile-keeper` builds it",
         keeper.string());
  return keeper;
}

}  // namespace

std::string path_of(const std::string& job, const char* rest) {
  return "/v1/jobs/" + cluster::percent_encoded(job) + rest;
}

ExitCode ask_service(const ServiceCommand& command, Context& context,
                     const std::function<ExitCode(const cluster::Client&)>& ask) {
  const cluster::Client client = client_of(command.at, context);
  if (!client.reachable()) throw cluster::Unreachable(ErrorCode::unavailable, client.where());
  return ask(client);
}

ExitCode with_service(const ServiceCommand& command, Context& context,
                      const std::function<void(const cluster::Client&)>& ask) {
  return ask_service(command, context, [&](const cluster::Client& client) {
    ask(client);
    return kDone;
  });
}

ExitCode unless_unreachable(Context& context, const std::function<ExitCode()>& run) {
  try {
    return run();
  } catch (const cluster::Unreachable& nobody) {
    context.console.error(nobody.what());
    return kServerUnreachable;
  } catch (const Error& error) {  // as of a run's controller, which is no service
    if (error.code() != ErrorCode::deadline) throw;
    context.console.error(error.what());
    return kServerUnreachable;
  }
}

std::string held_text(const Json& job) {
  int64_t devices = 0;
  for (const auto& [node, count] : job.at("holdings").items()) devices += count.get<int64_t>();
  return devices == 0 ? "" : std::to_string(devices);
}

std::string job_table(const Json& job, const cluster::Client& client) {
  std::vector<std::vector<std::string>> rows = {
      {"job",
       fmt::format("{} ({})", job.at("id").get<int64_t>(), job.at("name").get<std::string>())},
      {"phase", job.at("phase")},
      {"why", client.with_option(job.at("why").get<std::string>())}};
  if (const std::string held = held_text(job); !held.empty()) rows.push_back({"devices", held});
  if (const std::string done = done_text(job, true); !done.empty()) rows.push_back({"done", done});
  if (job.contains("spec") && job["spec"].value("gpus", int64_t{0}) > 0)
    rows.push_back({"gpus", fmt::format("{} of one node", job["spec"]["gpus"].get<int64_t>())});
  if (job.contains("serving")) {
    const Json& serving = job["serving"];
    rows.push_back({"address", serving.at("address")});
    const Json nodes = serving.value("nodes", Json::object());
    std::string places;
    for (const auto& [node, count] : nodes.items())
      places += fmt::format("{}{} on {}", places.empty() ? "" : ", ", count.get<int64_t>(), node);
    if (!places.empty()) rows.push_back({"replicas", places});
    rows.push_back({"load", fmt::format("{:.3g} requests a second, {} answered",
                                        serving.at("requests_per_second").get<double>(),
                                        serving.at("answered").get<int64_t>())});
  }
  if (job.at("run") != "") rows.push_back({"run", job.at("run")});
  return page::table(rows);
}

namespace {
// The link lets in whoever opens it first, so it goes to a person, and into no log file.
void say_page(cluster::Service& service, const std::string& same, Context& context) {
  Console& console = context.console;
  if (!console.err_terminal) {
    console.say("the page is http://127.0.0.1:{}/; `ductile page{}` prints a link that logs you in",
                service.port(), same);
    return;
  }
  console.say("the page, for the first browser that opens it: {}", service.page_link());
  console.say("`ductile page{}` prints a link for another one", same);
}

std::optional<cluster::HttpTls> tls_of(const ServiceCommand& command) {
  if (command.certificate.has_value() != command.key.has_value())
    fail(ErrorCode::invalid_argument, "--certificate and --key belong together; one is missing");
  if (command.https.empty()) {
    if (command.certificate)
      fail(ErrorCode::invalid_argument,
           "--certificate is for --https ADDRESS:PORT, which is missing");
    return std::nullopt;
  }
  if (command.https.starts_with("http://"))
    fail(ErrorCode::invalid_argument,
         "--https {}: nothing listens beyond this machine without TLS and a token; write {}",
         command.https, command.https.substr(7));
  std::optional<cluster::HttpTls> out;
  out.emplace().address = net::Address::parse(command.https);
  if (command.certificate) {
    out->certificate = fs::absolute(*command.certificate);
    out->key = fs::absolute(*command.key);
  }
  return out;
}

cluster::ServiceOptions options_of(const ServiceCommand& command, const Context& context) {
  cluster::ServiceOptions options;
  options.tls = tls_of(command);
  options.folder = fs::absolute(command.at.folder ? *command.at.folder
                                                  : cluster::usual_folder(context.environment));
  options.worker = process::find_worker();
  options.keeper = find_keeper();
  read_quotas(command, options);
  read_shares(command, options);
  for (const std::string& folder : command.data) {
    if (!fs::is_directory(folder))
      fail(ErrorCode::not_found, "--data {}: there is no such folder", folder);
    options.data.push_back(fs::canonical(folder));
  }
  options.policy = command.policy;
  options.interval = command.interval;
  options.retention = {command.keep_days * 86400, command.keep_jobs};
  if (!command.no_page) options.port = command.port.value_or(kPagePort);
  options.or_any_port = !command.port;
  return options;
}

// Ends the process where the rest takes too long, as where a disk does not answer: as long as it is
// there no other service can begin.
class LastResort {
 public:
  void begin(ExitCode code) {
    thread_ = std::jthread([this, code](const std::stop_token& stop) {
      constexpr std::chrono::seconds kPatience{60};
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, stop, kPatience, [] { return false; });
      if (stop.stop_requested()) return;
      log_line("the service ends without waiting for its disk any longer");
      ::_exit(code);
    });
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread thread_;
};

// Until a signal ends it; `what` are the devices, in words.
ExitCode serve(cluster::ServiceOptions options, const std::string& what, const ServiceAt& at,
               Context& context) {
  Console& console = context.console;
  process::raise_file_limit();  // each live job has about ten descriptors
  net::Loop loop;
  HeldSignals held;
  ExitCode code = kDone;
  options.on_failure = [&](const Error& error) {
    console.error(fmt::format(
        "{}; all jobs are saved, and the next service here goes on with them when that is mended",
        error.what()));
    code = exit_code(error.code());
    loop.stop();
  };
  const std::string same = at.folder ? same_service({options.folder, {}}) : "";
  LastResort last_resort;
  cluster::Service service(loop, options);
  console.say("{} in {}, policy {}; Ctrl-C saves all jobs", what, options.folder.string(),
              options.policy);
  console.say(
      "from another terminal: ductile submit{0} [job.toml], or for any program: ductile submit{0} "
      "-- COMMAND; then: ductile jobs{0}",
      same);
  if (options.port) say_page(service, same, context);
  if (options.tls)
    console.say(
        "for other machines: {}, with a token; {} has one of yours, and `ductile token "
        "add` makes others",
        service.address(), (options.folder / "access.json").string());
  EndRequests stopping;
  const auto watch = loop.watch(held.fd(), net::Interest::read, [&](net::Ready) {
    signalfd_siginfo info;
    while (read(held.fd(), &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGTSTP) raise(SIGSTOP);
      if (info.ssi_signo != SIGINT && info.ssi_signo != SIGTERM && info.ssi_signo != SIGHUP)
        continue;
      const bool is_first = !stopping.any();
      if (stopping.repeats()) return loop.stop();  // without saving
      if (!is_first) continue;
      console.say("saving the jobs; once more ends without saving");
      service.stop([&] { loop.stop(); });
    }
  });
  loop.run();
  last_resort.begin(code);
  return code;
}

}  // namespace

ExitCode up(const ServiceCommand& command, Context& context) {
  cluster::ServiceOptions options = options_of(command, context);
  require_store_of_one_machine(options.folder);
  const int64_t cores = cpu_share().usable();
  options.devices = command.devices.value_or(cores);
  if (options.devices > cores)
    context.console.say(
        "--devices {}: this machine lets Ductile use {}, so that devices share them and each is "
        "slower",
        options.devices, page::plural(static_cast<double>(cores), "hardware thread"));
  options.node = host_name();
  return serve(options,
               fmt::format("{} of {}", page::plural(static_cast<double>(options.devices), "device"),
                           options.node),
               command.at, context);
}

ExitCode server(const ServiceCommand& command, Context& context) {
  if (command.check) return check_the_store(*command.check, context);
  if (command.backup) return back_up_the_store(command, context);
  if (command.cluster.empty())
    fail(ErrorCode::invalid_argument,
         "server: a cluster file is wanted, or --check DIR, or --backup FILE");
  cluster::ServiceOptions options = options_of(command, context);
  options.cluster = spec::read_cluster(command.cluster);
  options.pools = spec::read_pools(command.cluster);
  if (command.shared) options.shared = fs::absolute(*command.shared);
  options.launcher = command.launcher;
  options.listen = command.listen;
  options.grace = command.grace;
  options.program = fs::read_symlink("/proc/self/exe");
  return serve(options,
               fmt::format("{} of {}",
                           page::plural(static_cast<double>(options.cluster->devices()), "device"),
                           page::plural(static_cast<double>(options.cluster->nodes()), "node")),
               command.at, context);
}

namespace {

bool is_training(const ServiceCommand& command) {
  return !command.command || (command.request.file && python_object(*command.request.file));
}

nlohmann::json body_of(const ServiceCommand& command, const Context& context) {
  return command.served         ? serving_body(command, context)
         : is_training(command) ? training_body(command, context)
                                : command_body(command, context);
}

// The same with --plan; nothing where a signal ended it.
std::optional<ServiceCommand> with_plan_of_its_own(const ServiceCommand& command,
                                                   const Context& context) {
  if (!command.array.empty())
    fail(ErrorCode::invalid_argument,
         "--devices {}: each job of --array would be measured; make one plan for all (ductile "
         "profile, ductile plan), and give it as --plan",
         *command.planned_for);
  ServiceCommand out = command;
  out.planned_for.reset();
  (void)training_body(out, context);  // what is wrong with it is said before it is measured
  JobRequest request = command.request;
  request.arguments = command.command;  // of a Python job
  const auto own = own_plan(request, *command.planned_for, command.replicas, context);
  if (!own) return std::nullopt;
  out.plans = {own->name};
  out.plan_text = own->text;
  return out;
}

// One request for all of them, which differ in what they run alone.
nlohmann::json array_body(const ServiceCommand& command, const Context& context) {
  constexpr std::string_view kIndex = "{index}";
  const auto has_index = [&](const std::string& text) {
    return text.find(kIndex) != std::string::npos;
  };
  if (command.served)
    fail(
        ErrorCode::invalid_argument,
        "--array submits training jobs or commands, of which there may be many; a --service is one "
        "job with as many replicas as it needs: leave one of the two out");
  if (is_training(command) && std::ranges::none_of(command.request.assignments, has_index))
    fail(ErrorCode::invalid_argument,
         "--array: no --set has {{index}} in it, so all jobs would be the same, as with "
         "--set seed={{index}} they would not");
  nlohmann::json out, members = nlohmann::json::array();
  for (const int64_t index : indices_of(command.array)) {
    const std::string number = std::to_string(index);
    ServiceCommand one = command;
    for (std::string& text : one.request.assignments)
      for (size_t at = 0; (at = text.find(kIndex, at)) != std::string::npos; at += number.size())
        text.replace(at, kIndex.size(), number);
    if (!is_training(command)) one.environment.push_back("DUCTILE_ARRAY_INDEX=" + number);
    nlohmann::json body = body_of(one, context);
    members.push_back({{"index", index}, {"spec", std::move(body["spec"])}});
    body.erase("spec");
    if (members.size() == 1) out = body;
    if (body != out)
      fail(ErrorCode::invalid_argument,
           "--array: job {} has another name or other numbers of devices than the one before; "
           "--name, --min and --max say the same for all",
           index);
  }
  out["array"] = std::move(members);
  return out;
}

void say_submitted(const std::vector<int64_t>& ids, const ServiceAt& at, Console& console) {
  const std::string same = same_service(at);
  if (ids.size() == 1)
    return console.say("job {0} is submitted; what becomes of it: ductile why {0}{1}", ids.front(),
                       same);
  console.say("{} jobs are submitted; what becomes of them: ductile jobs{}", ids.size(), same);
}

}  // namespace

ExitCode submit(const ServiceCommand& command, Context& context) {
  if (command.served && command.command)
    fail(ErrorCode::invalid_argument,
         "--service is a kind of job, and what follows -- another one");
  if (!command.served && (command.port || command.checkpoint || command.follow))
    fail(ErrorCode::invalid_argument, "--port, --checkpoint and --follow belong to --service RUN");
  if (!command.served && command.planned_for && is_training(command) &&
      !is_number(*command.planned_for)) {
    const auto planned = with_plan_of_its_own(command, context);
    return planned ? submit(*planned, context) : kInterrupted;
  }
  nlohmann::json body =
      command.array.empty() ? body_of(command, context) : array_body(command, context);
  if (!command.plans.empty() && !require_plans_of_model(body, command.plans)) return kInterrupted;
  if (!command.region.empty()) {
    body["region"] = command.region;
    body["transfer"] = command.transfer;
    body["movable"] = !command.stay;
  }
  return ask_service(command, context, [&](const cluster::Client& client) {
    if (command.hold) body["held"] = true;  // an older service knows no such keys
    if (!command.after.empty()) body["after"] = earlier_jobs(command.after, client);
    const std::string lack = lack_of_gpus(command, client);
    constexpr FieldFlag kOfCommand[] = {{"min_devices", "--devices"}, {"max_devices", "--devices"}};
    std::span<const FieldFlag> own;
    if (!command.served && !is_training(command)) own = kOfCommand;
    const Json answer = post_flags(client, "/v1/jobs", body, own);
    const std::vector<int64_t> ids = answer.contains("ids")
                                         ? answer["ids"].get<std::vector<int64_t>>()
                                         : std::vector<int64_t>{answer.at("id").get<int64_t>()};
    if (command.json && !command.wait) {
      context.console.print("{}\n", dump_json(answer, 2));
    } else if (!command.json) {
      for (const int64_t id : ids) context.console.print("{}\n", id);
      say_submitted(ids, command.at, context.console);
      if (!lack.empty())
        context.console.say("{}: {} until one has {}; what each has: ductile nodes{}", lack,
                            ids.size() == 1 ? "it waits" : "they wait", command.gpus,
                            same_service(command.at));
    }
    if (!command.wait) return kDone;
    return await_jobs(client, ids, command.json, Absence(context.console, command.patience),
                      context.console);
  });
}

}  // namespace ductile::cli
