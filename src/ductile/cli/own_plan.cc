#include "ductile/cli/own_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/machine.h"
#include "ductile/base/paths.h"
#include "ductile/cli/other_commands.h"
#include "ductile/cli/pipeline_plan.h"
#include "ductile/cli/this_machine.h"
#include "ductile/cli/work_folder.h"
#include "ductile/cli/worker_process.h"
#include "ductile/page/numbers.h"
#include "ductile/page/progress_bar.h"
#include "ductile/run/folder.h"
#include "ductile/spec/cluster.h"

namespace ductile::cli {
namespace {

using nlohmann::json;

// Threads of a worker, where there will be one on each device of this machine.
int64_t threads_of(const JobConfig& config, int64_t devices) {
  if (config.job.train.threads > 0) return config.job.train.threads;
  return std::max<int64_t>(1, cpu_share().usable() / std::max<int64_t>(1, devices));
}

}  // namespace

std::optional<json> measured_graph(const JobConfig& config, const std::vector<int64_t>& shares,
                                   int64_t rounds, int64_t threads, Console& console,
                                   std::vector<int64_t>* captured) {
  if (!config.job.python.object.empty())
    fail(ErrorCode::invalid_argument,
         "{}: the operators of a Python job's model are found by its own Python: ductile capture",
         config.job.python.object);
  const WorkFolder temporary;
  const auto folder = run::RunFolder::create_at(temporary.path() / "run", config.options.to_toml());
  page::ProgressBar bar(STDERR_FILENO);
  if (console.err_terminal && console.verbosity >= 0)
    bar.show({.parts = {{"profile"}, {page::as_percent(0)}}});
  const json options = {{"shares", shares}, {"rounds", rounds}};
  auto graph =
      ask_worker({.arguments = {"--run", folder.path().string(), "--profile", dump_json(options)},
                  .threads = threads,
                  .on_row = [&](const json& row) {
                    if (!console.err_terminal || console.verbosity < 0) return;
                    const double share = row.at("share");
                    bar.show({.parts = {{"profile"}, {page::as_percent(share)}}, .share = share});
                  }});
  bar.clear();
  if (graph && graph->contains("captured")) {
    if (captured != nullptr) *captured = graph->at("captured").get<std::vector<int64_t>>();
    graph->erase("captured");
  }
  return graph;
}

std::optional<std::string> fault_of_plan(const std::string& job) {
  std::optional<json> answer;
  try {
    const WorkFolder temporary;
    const auto folder = run::RunFolder::create_at(temporary.path() / "run", job);
    answer = ask_worker({.arguments = {"--run", folder.path().string(), "--stages"}});
  } catch (const Error&) {  // what is wrong with the job besides is said where it starts
    return std::string();
  }
  if (!answer) return std::nullopt;
  return answer->value("wrong", std::string());
}

bool check_operators(const TrainCommand& command, JobConfig& config) {
  const spec::TrainOptions& train = config.job.train;
  const bool is_cut = train.method == "pipelined" && train.pipelined.stages.empty() &&
                      spec::num_stages(config.job) > 1 && !command.resume && !command.replay;
  if (!command.plan && !is_cut) return true;
  if (command.plan_text && config.job.model.library.empty()) return true;
  config.make_paths_absolute();
  const std::optional<std::string> fault = fault_of_plan(config.options.to_toml());
  if (fault && !fault->empty())
    fail(ErrorCode::invalid_argument, "{}: {}",
         command.plan ? command.plan->string() : "train.method = \"pipelined\"", *fault);
  return fault.has_value();
}

namespace {

constexpr int64_t kMostDevices = 1024;  // of this machine

// What --devices says of this machine: a number; nothing where it names a file.
std::optional<int64_t> number_of_devices(const std::string& devices) {
  const bool digits = !devices.empty() && devices.size() <= 4 &&
                      std::ranges::all_of(devices, [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || kind_of(devices) != FileKind::none) return std::nullopt;
  const int64_t number = std::stoll(devices);
  if (number < 1 || number > kMostDevices)
    fail(ErrorCode::invalid_argument, "--devices {}: from 1 to {} devices of this machine", devices,
         kMostDevices);
  return number;
}

double predicted(const std::string& plan) {
  return parse_json(plan, "ductile plan", ErrorCode::internal)
      .at("evaluation")
      .at("seconds")
      .get<double>();
}

// The fastest plan, by its figures, whose replicas compute as many samples at once as the model was
// captured for.
std::string plan_of_captured(const std::vector<std::string>& words, const std::string& asked,
                             const std::vector<int64_t>& captured, const spec::JobOptions& job,
                             std::optional<int64_t> replicas) {
  std::string best;
  std::optional<Error> refused;
  for (const int64_t samples : captured) {
    const int64_t micro_batch = samples * replicas.value_or(1);
    if (job.train.batch_size % micro_batch != 0) continue;
    std::vector<std::string> some = words;
    some.insert(some.end(), {"--micro-batch", std::to_string(micro_batch)});
    try {
      std::string plan = fleet_output(some, asked);
      if (best.empty() || predicted(plan) < predicted(best)) best = std::move(plan);
    } catch (const Error& error) {  // another number may have room
      if (!refused) refused = error;
    }
  }
  if (!best.empty()) return best;
  if (refused) throw Error(*refused);
  fail(ErrorCode::invalid_argument,
       "{}: model.library was captured for {} samples at once, none of which divides a batch of {} "
       "among {}; capture it with --shares that name a micro-batch that does",
       asked, fmt::join(captured, ", "), job.train.batch_size,
       page::plural(static_cast<double>(replicas.value_or(1)), "replica"));
}

// The devices with so many bytes less on each.
std::string with_less_memory(spec::Cluster cluster, double bytes) {
  for (spec::NodeGroup& group : cluster.groups) group.memory = std::max(1.0, group.memory - bytes);
  return spec::to_toml(cluster);
}

// What own_plan() asks `ductile plan` with.
struct Question {
  fs::path graph, devices;
  std::string asked;              // said before errors
  std::vector<int64_t> captured;  // numbers of samples; empty: any
  std::optional<int64_t> replicas;
};

// The fastest plan that leaves so many bytes of each device free, with the figures of the devices
// as they are.
std::string found_plan(const Question& question, const spec::JobOptions& job, double free) {
  const std::string batch = std::to_string(job.train.batch_size);
  const auto words_for = [&](const fs::path& devices) {
    return std::vector<std::string>{
        "plan", question.graph.string(), "--devices", devices.string(), "--batch", batch, "--json"};
  };
  const UnnamedFile less(free > 0 ? with_less_memory(spec::read_cluster(question.devices), free)
                                  : "");
  std::vector<std::string> words = words_for(free > 0 ? less.path() : question.devices);
  words.emplace_back("--runnable");
  if (question.replicas)
    words.insert(words.end(), {"--replicas", std::to_string(*question.replicas)});
  std::string plan =
      question.captured.empty()
          ? fleet_output(words, question.asked)
          : plan_of_captured(words, question.asked, question.captured, job, question.replicas);
  if (free <= 0) return plan;
  const UnnamedFile file(plan);
  words = words_for(question.devices);
  words.insert(words.end(), {"--plan", file.path().string()});
  return fleet_output(words, question.asked);
}

// What has to be said of a plan that leaves the model whole, though there are several devices.
std::string why_uncut(size_t stages, int64_t ranks, int64_t devices, bool asked_replicas) {
  if (stages != 1 || devices == 1) return "";
  if (ranks == 1) return "; no cut of the model is faster by its figures";
  if (asked_replicas) return "";
  return "; the whole model on each device is faster by its figures than a cut, which --replicas 1 "
         "asks for";
}

}  // namespace

std::string plan_with_room(
    const std::function<std::optional<std::string>(double)>& search,
    const std::function<std::optional<LackOfRoom>(const std::string&)>& shortage) {
  constexpr int kMostSearches = 5;
  std::string first = search(0).value();
  const std::optional<LackOfRoom> refused = shortage(first);
  if (!refused) return first;
  if (refused->beside <= 0) fail(ErrorCode::invalid_argument, "{}", refused->text);
  // So much was too little, and with so much no plan was found.
  double low = 0, high = std::numeric_limits<double>::infinity(), free = refused->beside;
  for (int searches = 1; searches < kMostSearches; ++searches) {
    const std::optional<std::string> plan = search(free);
    const std::optional<LackOfRoom> lacks = plan ? shortage(*plan) : std::nullopt;
    if (plan && !lacks) return *plan;
    (plan ? low : high) = free;
    if (lacks && lacks->beside > low && lacks->beside < high) {
      free = lacks->beside;
    } else {
      free = std::isinf(high) ? 2 * free : (low + high) / 2;
    }
  }
  fail(ErrorCode::invalid_argument,
       "no plan was found that has room for what its workers hold of other stages; {}",
       refused->text);
}

std::optional<OwnPlan> own_plan(const JobRequest& request, const std::string& devices,
                                std::optional<int64_t> replicas, const Context& context) {
  const std::string asked = "--devices " + devices;
  require_stages(request, asked);
  const auto number = number_of_devices(devices);
  if (!number && kind_of(devices) == FileKind::none) {
    fail(ErrorCode::not_found,
         "{}: no such file; it describes the machine, as for `ductile plan`; `ductile profile "
         "--devices FILE` writes one for this machine",
         asked);
  }
  const int64_t num_devices = number ? *number : spec::read_cluster(devices).devices();
  JobConfig config;
  config.read(request, context.environment);
  config.make_paths_absolute();
  std::vector<int64_t> captured;
  const auto graph = measured_graph(config, {}, ProfileCommand().rounds,
                                    threads_of(config, num_devices), context.console, &captured);
  if (!graph) return std::nullopt;
  const UnnamedFile file(dump_json(*graph));
  const UnnamedFile machine(number ? describe_machine(*number) : "");
  const Question question{file.path(), number ? machine.path() : fs::path(devices), asked,
                          std::move(captured), replicas};
  OwnPlan out;
  out.name = fmt::format("the plan for {}", number ? asked : devices);
  out.text = plan_with_room(
      [&](double free) -> std::optional<std::string> {
        try {
          return found_plan(question, config.job, free);
        } catch (const Error& error) {
          if (free <= 0 || error.code() != ErrorCode::invalid_argument) throw;
          return std::nullopt;
        }
      },
      [&](const std::string& plan) {
        JobConfig planned;
        (void)read_planned(request, out.name, plan, context.environment, planned);
        return shortage_of(planned.job, plan, out.name);
      });
  const json report = parse_json(out.text, "ductile plan", ErrorCode::internal);
  out.ranks = 0;
  const json& stages = report.at("plan").at("stages");
  for (const json& stage : stages)
    out.ranks += stage.at("replicas").get<int64_t>() * stage.at("tensor").get<int64_t>();
  context.console.say("plan {} on {} of {} devices, {} an iteration predicted{}",
                      page::plural(static_cast<double>(stages.size()), "stage"), out.ranks,
                      num_devices,
                      page::as_short_duration(report.at("evaluation").at("seconds").get<double>()),
                      why_uncut(stages.size(), out.ranks, num_devices, replicas.has_value()));
  return out;
}

std::optional<TrainCommand> with_own_plan(const TrainCommand& command, const Context& context) {
  const auto own = own_plan(command.job, *command.devices, command.replicas, context);
  if (!own) return std::nullopt;
  TrainCommand out = command;
  out.plan = own->name;
  out.plan_text = own->text;
  if (!out.workers && !out.hosts.hosts) out.workers = own->ranks;
  return out;
}

}  // namespace ductile::cli
