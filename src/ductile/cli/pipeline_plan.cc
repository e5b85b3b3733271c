#include "ductile/cli/pipeline_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/cli/plan_placement.h"
#include "ductile/cli/python_job.h"
#include "ductile/page/numbers.h"
#include "ductile/spec/cluster.h"
#include "ductile/spec/model_identity.h"
#include "ductile/spec/stage_state.h"

namespace ductile::cli {
namespace {

constexpr int64_t kMost = int64_t{1} << 53;
constexpr size_t kLongestName = 1000;  // a refusal names it
constexpr int64_t kMostTensor = 1 << 10;
constexpr int64_t kMostParts = 1 << 16;  // stages, and micro-batches: what the options take
// Of all stages together in a step, which takes seconds for these alone; a signal waits for it.
constexpr int64_t kMostPasses = 1 << 20;

// Operators by name. Options separate them by spaces.
std::vector<std::string> names_of(const JsonFields& stage, const char* key) {
  std::vector<std::string> out;
  if (!stage.has(key)) return out;
  for (const nlohmann::json& item : stage.array(key)) {
    if (!item.is_string()) {
      fail(ErrorCode::invalid_argument, "{}: {} is no list of names", stage.where(), key);
    }
    const std::string& name = out.emplace_back(item.get<std::string>());
    if (name.empty() || name.find_first_of(" \t\n\v\f\r") != std::string::npos) {
      fail(ErrorCode::invalid_argument,
           "{}: the operator \"{}\" has a space in its name; write another name into the graph, "
           "and plan that anew",
           stage.where(), JsonFields::shorten(name));
    }
    if (name.size() > kLongestName) {
      fail(ErrorCode::invalid_argument,
           "{}: the operator \"{}\" has a name of {} bytes; no model has one of more than {}",
           stage.where(), JsonFields::shorten(name), name.size(), kLongestName);
    }
  }
  return out;
}

// All that the file says: `ductile plan --json` writes more than the plan.
nlohmann::json report_of(const std::string& text, const fs::path& file) {
  nlohmann::json report;
  try {
    report = parse_json(text, file.string(), ErrorCode::invalid_argument);
  } catch (const Error& e) {
    fail(e.code(), "{}; `ductile plan GRAPH --json` writes a plan", e.message());
  }
  if (report.is_object() && report.contains("feasible") && report["feasible"] == false) {
    const bool told = report.contains("advice") && report["advice"].is_string();
    fail(ErrorCode::invalid_argument, "{}: holds no plan, since none was found: {}", file.string(),
         told ? report["advice"].get<std::string>() : "feasible is false");
  }
  return report;
}

void check_format(const nlohmann::json& plan, const fs::path& file) {
  if (!plan.is_object() || !plan.contains("stages") || !plan["stages"].is_array() ||
      plan["stages"].empty() || !plan.contains("format") || plan["format"] != "ductile.plan") {
    fail(ErrorCode::invalid_argument,
         "{}: no plan; `ductile plan GRAPH --json` writes one, whose format is \"ductile.plan\"",
         file.string());
  }
  const JsonFields fields(plan, file.string());
  (void)fields.integer("version", 1, 1);
  fields.only({"format", "version", "graph", "model", "planner", "batch", "schedule",
               "predicted_seconds", "lower_bound", "bound_reason", "stages"});
}

// What a stage cannot be run with yet, or does not mean: a field that is misspelt would else be
// left out without a word.
void check_stage(const JsonFields& stage) {
  stage.only({"ops", "replicas", "tensor", "micro_batch", "k", "in_flight", "recompute",
              "shard_optimizer", "devices", "order"});
  if (stage.has("shard_optimizer") && stage.boolean("shard_optimizer")) {
    fail(
        ErrorCode::invalid_argument,
        "{}: shard_optimizer = true: a stage's replicas do not divide its state among them so far, "
        "each holds all of it (train.shard_optimizer = true keeps other stages' away from them); "
        "plan with --runnable, or with --replicas 1",
        stage.where());
  }
}

constexpr double kMostPlanSeconds = 1e9;  // of a step
constexpr double kMostBytes = 1e18, kMostFactor = 1e6;

// After a sentence without its point; empty: the plan counts all of it.
std::string remedy_of(const StateScale& scale) {
  if (scale.factor <= 1) return "";
  return fmt::format(
      ". The job has {:g} bytes of weights, gradients and optimiser state for each byte of "
      "weights, and the plan counts {:g}; `ductile plan --optimizer-state {:g}` counts as many.",
      scale.has, scale.planned, scale.optimizer);
}

// What a worker of a stage holds beside the stage's own memory, at most, of the weights, gradients
// and optimiser state of other stages; and why.
struct Beside {
  double bytes = 0;
  std::string why, remedy;
};
// `copied`: the most that a worker holds of another stage as a copy. `room`: what its device has
// beside the stage's own memory. A remedy names all that has to be set, as a second one that comes
// after the first was followed looks like its opposite.
Beside beside(const spec::JobOptions& job, double own, double copied, double whole, double room) {
  constexpr std::string_view kNoCopies =
      "train.shard_copies = 1, with which a lost worker costs the steps since the last "
      "checkpoint, or plan with replicas, which are copies";
  Beside out;
  const double copies = std::min(std::max(0.0, whole - own), copied);
  if (!job.train.shard_optimizer) {
    out.bytes = whole - own;
    out.why = "train.shard_optimizer = false";
    out.remedy = "set train.shard_optimizer = true, which divides them by stage";
    if (copies > room) out.remedy += fmt::format(", and {}", kNoCopies);
    return out;
  }
  out.bytes = copies;
  out.why = fmt::format("train.shard_copies = {}", job.train.shard_copies);
  out.remedy = fmt::format("set {}", kNoCopies);
  return out;
}

// Of the state of a stage, in copies beside those that its replicas are.
double copied_bytes(const spec::JobOptions& job, size_t stage, double state) {
  const std::vector<int64_t>& of_stages = job.train.pipelined.stage_replicas;
  const int64_t twins = stage < of_stages.size() ? of_stages[stage] : job.train.pipelined.replicas;
  return state * static_cast<double>(std::max<int64_t>(0, job.train.shard_copies - twins));
}

// Replicas and parts of all stages; returns the virtual ranks that they are.
int64_t set_ranks(spec::PipelinedOptions& options, std::vector<int64_t> replicas,
                  const fs::path& file) {
  const int64_t ranks =
      std::inner_product(replicas.begin(), replicas.end(), options.tensor.begin(), int64_t{0});
  if (std::ranges::count(options.tensor, 1) == std::ssize(options.tensor)) options.tensor.clear();
  if (std::ranges::count(replicas, replicas.front()) == std::ssize(replicas)) {
    options.replicas = replicas.front();  // whole pipelines side by side, which exchange less
  } else if (!options.tensor.empty()) {
    fail(ErrorCode::invalid_argument,
         "{}: stages that are divided (tensor > 1) have as many replicas as all others so far; "
         "plan with --replicas N, or with tensor = 1",
         file.string());
  } else {
    options.stage_replicas = std::move(replicas);
  }
  return ranks;
}

}  // namespace

bool may_lie_by_stage(const spec::JobOptions& job, bool asked_copies) {
  const bool parted = spec::num_stages(job) > 1 || spec::divides_tensors(job);
  return parted && !job.train.pipeline_exact && job.train.reduction == "canonical" &&
         (asked_copies || job.train.shard_copies > 1) && job.model.library.empty();
}

StateScale state_scale(const spec::JobOptions& job, const nlohmann::json& evaluation,
                       const std::string& where) {
  const JsonFields fields(evaluation, where);
  StateScale out;
  if (!fields.has("state_factor")) return out;  // of an earlier version
  const double state = fields.number("state_factor", 0, kMostFactor);
  out.planned = state + fields.number("optimizer_factor", 0, kMostFactor);
  out.has =
      spec::stage_state_factor(job) + static_cast<double>(spec::optimizer_arrays(job.optimizer));
  if (out.planned <= 0 || out.has <= out.planned) return out;
  out.factor = out.has / out.planned;
  out.optimizer = out.has - state;
  return out;
}

std::optional<LackOfRoom> shortage_of(const spec::JobOptions& job, const std::string& text,
                                      const fs::path& file) {
  const nlohmann::json report = parse_json(text, file.string(), ErrorCode::invalid_argument);
  const auto evaluation = report.find("evaluation");
  if (evaluation == report.end() || !evaluation->is_object() || !evaluation->contains("stages")) {
    return std::nullopt;  // a plan of somebody's own does not say what it needs
  }
  const JsonFields all(*evaluation, file.string());
  const StateScale scale = state_scale(job, *evaluation, file.string());
  const auto planned_state = [](const JsonFields& fields) {  // where stages take turns: not there
    return fields.has("state_memory") ? fields.number("state_memory", 0, kMostBytes) : 0.0;
  };
  const auto state_of = [&](const JsonFields& f) { return scale.factor * planned_state(f); };
  std::vector<JsonFields> stages;
  double copied = 0;
  for (const nlohmann::json& item : all.array("stages")) {
    stages.emplace_back(item, fmt::format("{}: stage {}", file.string(), stages.size()));
    copied = std::max(copied, copied_bytes(job, stages.size() - 1, state_of(stages.back())));
  }
  for (const JsonFields& stage : stages) {
    const double own =
        stage.number("peak_memory", 0, kMostBytes) + (scale.factor - 1) * planned_state(stage);
    const double limit = stage.number("memory_limit", 0, kMostBytes);
    if (own > limit) {
      return LackOfRoom{fmt::format(
          "{} needs {} of memory on each of its devices, and they have {} by the file of devices "
          "that it was planned for{}; plan with more devices, smaller micro-batches or "
          "recomputation, or for devices with more memory (ductile plan --devices){}",
          stage.where(), page::as_bytes(own), page::as_bytes(limit),
          limit == spec::NodeGroup().memory ? ", which may not say it (memory)" : "",
          remedy_of(scale))};
    }
    if (state_of(stage) == 0 || state_of(all) == 0) continue;
    const Beside others = beside(job, state_of(stage), copied, state_of(all), limit - own);
    if (own + others.bytes <= limit) continue;
    return LackOfRoom{
        fmt::format("{} needs {} of memory, and its worker holds up to {} of other "
                    "stages' weights, gradients "
                    "and optimiser state as well ({}); its devices have {}; {}, or "
                    "plan for devices with more "
                    "memory (ductile plan --devices){}",
                    stage.where(), page::as_bytes(own), page::as_bytes(others.bytes), others.why,
                    page::as_bytes(limit), others.remedy, remedy_of(scale)),
        others.bytes};
  }
  return std::nullopt;
}

void check_memory(const spec::JobOptions& job, const std::string& text, const fs::path& file) {
  if (const auto shortage = shortage_of(job, text, file))
    fail(ErrorCode::invalid_argument, "{}", shortage->text);
}

std::string note_on_split(const spec::JobOptions& job, const std::string& text,
                          const fs::path& file) {
  std::vector<size_t> divided;
  const std::vector<int64_t>& parts = job.train.pipelined.tensor;
  for (size_t s = 0; s < parts.size(); ++s) {
    if (parts[s] > 1) divided.push_back(s);
  }
  if (divided.empty()) return "";
  const nlohmann::json report = parse_json(text, file.string(), ErrorCode::invalid_argument);
  const bool judged = report.is_object() && report.contains("evaluation");
  if (!judged && predicted_seconds(text) <= 0) return "";
  return fmt::format(
      "{}: {} {} {} divided among parts (tensor > 1), and the plan's time and memory are those of "
      "another split, which divides all of an operator and sums its outputs; here linear layers "
      "are divided by columns, whose outputs are joined, and all else is the first part's: a step "
      "may take longer than predicted, and whether each part has room is not known",
      file.string(), divided.size() == 1 ? "stage" : "stages", fmt::join(divided, ", "),
      divided.size() == 1 ? "is" : "are");
}

namespace {

std::string read_plan_text(const fs::path& file) {
  if (kind_of(file) == FileKind::none)
    fail(ErrorCode::not_found, "--plan {}: no such file; `ductile plan GRAPH --json` writes a plan",
         file.string());
  return read_text(file);
}

}  // namespace

std::string set_plan(spec::JobOptions& job, const fs::path& file) {
  return set_plan_text(job, read_plan_text(file), file);
}

std::string set_plan_text(spec::JobOptions& job, std::string text, const fs::path& file) {
  nlohmann::json plan = report_of(text, file);
  if (plan.is_object() && plan.contains("plan")) plan = nlohmann::json(plan["plan"]);
  check_format(plan, file);
  const int64_t batch =
      JsonFields(plan, file.string()).integer_or("batch", job.train.batch_size, 1, kMost);
  if (batch != job.train.batch_size) {
    fail(ErrorCode::invalid_argument,
         "{}: the plan is for batches of {} samples, and train.batch_size = {}; plan with --batch "
         "{}, or set train.batch_size = {}",
         file.string(), batch, job.train.batch_size, job.train.batch_size, batch);
  }
  spec::PipelinedOptions options;
  options.trace_steps = job.train.pipelined.trace_steps;
  options.replan_after = job.train.pipelined.replan_after;
  options.replans = job.train.pipelined.replans;
  if (plan.contains("model")) {
    options.model = spec::to_texts(
        spec::model_identity_from_json(plan["model"], fmt::format("{}: model", file.string())));
  }
  int64_t micro_batch = 0;
  std::vector<int64_t> replicas;
  for (const nlohmann::json& item : plan["stages"]) {
    const JsonFields stage(item, fmt::format("{}: stage {}", file.string(), options.stages.size()));
    check_stage(stage);
    const int64_t own = stage.integer_or("micro_batch", batch, 1, kMost);
    if (micro_batch == 0) micro_batch = own;
    if (own != micro_batch || batch % own != 0) {
      fail(ErrorCode::invalid_argument,
           "{}: micro_batch = {}: stages have equal micro-batches so far, which divide the {} "
           "samples of a batch; stage 0 has {}",
           stage.where(), own, batch, micro_batch);
    }
    replicas.push_back(stage.integer_or("replicas", 1, 1, kMostParts));
    if (micro_batch % replicas.back() != 0) {
      fail(ErrorCode::invalid_argument,
           "{}: replicas = {}: they do not divide the {} samples of a micro-batch, of which each "
           "has an equal part",
           stage.where(), replicas.back(), micro_batch);
    }
    options.tensor.push_back(stage.integer_or("tensor", 1, 1, kMostTensor));
    const std::vector<std::string> names = names_of(stage, "ops");
    std::string ops;
    for (const std::string& name : names) ops += (ops.empty() ? "" : " ") + name;
    options.stages.push_back(std::move(ops));
    for (std::string& name : names_of(stage, "recompute")) {
      if (std::ranges::find(names, name) == names.end()) {
        fail(ErrorCode::invalid_argument, "{}: recompute names \"{}\", which is not in its ops",
             stage.where(), name);
      }
      options.recompute.push_back(std::move(name));
    }
    if (!stage.has("order")) {
      fail(ErrorCode::invalid_argument,
           "{} has no order of tasks; `ductile plan GRAPH --json` writes it", stage.where());
    }
    options.orders.push_back(stage.text("order"));
  }
  options.micro_batches = batch / micro_batch;
  const int64_t ranks = set_ranks(options, std::move(replicas), file);
  if (std::max(ranks, options.micro_batches) > kMostParts) {
    fail(ErrorCode::invalid_argument,
         "{}: {} stages, with all replicas, and {} micro-batches; a job has at most {} of each",
         file.string(), ranks, options.micro_batches, kMostParts);
  }
  if (ranks * options.micro_batches > kMostPasses) {
    fail(ErrorCode::invalid_argument,
         "{}: {} stages, with all replicas, of {} micro-batches each have {} passes in a step, and "
         "a job has at most {}; plan with larger micro-batches (--micro-batch) or fewer devices",
         file.string(), ranks, options.micro_batches, ranks * options.micro_batches, kMostPasses);
  }
  (void)PlanPlacement::of(text, file);  // throws where devices are damaged; a run seats by them
  job.train.method = "pipelined";
  job.train.virtual_ranks = ranks;
  job.train.pipelined = std::move(options);
  return text;
}

void require_stages(const JobRequest& request, const std::string& option) {
  const auto object = request.file ? python_object(*request.file) : std::nullopt;
  if (!object && !request.arguments) return;
  fail(ErrorCode::invalid_argument,
       "{}: a Python job is not trained by stages so far; leave the option out, or train its "
       "module in C++ (ductile capture --model, model.library)",
       option);
}

std::string read_planned(const JobRequest& request, const fs::path& file,
                         const std::optional<std::string>& text, const char* const* environment,
                         JobConfig& config) {
  require_stages(request, "--plan " + file.string());
  config.read_data(request, environment);
  std::map<std::string, std::string> asked;
  for (const OptionField& field : config.options.fields()) {
    const std::string value = to_toml(field.ref);
    if (!field.origin.is_default() && value != to_toml(field.default_value))
      asked[field.path] = value;
  }
  std::string plan = set_plan_text(config.job, text ? *text : read_plan_text(file), file);
  for (const auto& [path, value] : asked) {
    const OptionField& field = *config.options.find(path);
    const std::string now = to_toml(field.ref);
    if (now == value) continue;
    fail(ErrorCode::invalid_argument,
         "{}: {} is {}, and the job has {} ({}); leave one of the two out, or plan anew",
         file.string(), path, JsonFields::shorten(now), JsonFields::shorten(value),
         field.origin.text);
  }
  if (config.options.find("train.shard_optimizer")->origin.is_default()) {
    const bool asked = !config.options.find("train.shard_copies")->origin.is_default();
    config.job.train.shard_optimizer = may_lie_by_stage(config.job, asked);
  }
  return plan;
}

double predicted_seconds(const std::string& text) {
  const nlohmann::json report = parse_json(text, "plan", ErrorCode::invalid_argument);
  const auto number = [](const nlohmann::json& of, const char* key) {
    const bool has = of.is_object() && of.contains(key) && of.at(key).is_number();
    const double value = has ? of.at(key).get<double>() : 0;
    return value > 0 && value <= kMostPlanSeconds ? value : 0;
  };
  if (!report.is_object()) return 0;
  if (report.contains("evaluation"))
    if (const double judged = number(report.at("evaluation"), "seconds"); judged > 0) return judged;
  return number(report.contains("plan") ? report.at("plan") : report, "predicted_seconds");
}

}  // namespace ductile::cli
