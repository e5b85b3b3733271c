#include "ductile/cli/pipeline_plan.h"

#include <string>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::json;

// Operators by name. Options separate them by spaces.
std::vector<std::string> names_of(const Json& stage, const char* key, const std::string& where) {
  std::vector<std::string> out;
  if (!stage.contains(key)) return out;
  const Json& names = stage[key];
  bool good = names.is_array();
  for (size_t i = 0; good && i < names.size(); ++i) {
    good = names[i].is_string();
    if (good) out.push_back(names[i].get<std::string>());
  }
  if (!good) fail(ErrorCode::invalid_argument, "{}: {} is no list of names", where, key);
  for (const std::string& name : out) {
    if (name.empty() || name.find_first_of(" \t\n") != std::string::npos) {
      fail(ErrorCode::invalid_argument, "{}: the operator \"{}\" has a space in its name", where,
           name);
    }
  }
  return out;
}

int64_t whole(const Json& from, const char* key, int64_t otherwise, const std::string& where) {
  if (!from.contains(key)) return otherwise;
  if (!from[key].is_number_integer() || from[key].get<int64_t>() < 1) {
    fail(ErrorCode::invalid_argument, "{}: {} is no number of at least 1", where, key);
  }
  return from[key].get<int64_t>();
}

}  // namespace

void set_plan(spec::JobOptions& job, const fs::path& file) {
  Json plan = parse_json(read_file(file), file.string(), ErrorCode::invalid_argument);
  if (plan.is_object() && plan.contains("plan")) plan = Json(plan["plan"]);
  if (!plan.is_object() || !plan.contains("stages") || !plan["stages"].is_array() ||
      plan["stages"].empty()) {
    fail(ErrorCode::invalid_argument, "{}: no plan; `ductile plan GRAPH --json` writes one",
         file.string());
  }
  const int64_t batch = whole(plan, "batch", job.train.batch_size, file.string());
  if (batch != job.train.batch_size) {
    fail(ErrorCode::invalid_argument,
         "{}: the plan is for batches of {} samples, and train.batch_size = {}; plan with --batch "
         "{}, or set train.batch_size = {}",
         file.string(), batch, job.train.batch_size, job.train.batch_size, batch);
  }
  spec::PipelinedOptions options;
  int64_t micro_batch = 0;
  for (const Json& stage : plan["stages"]) {
    const std::string where = fmt::format("{}: stage {}", file.string(), options.stages.size());
    if (!stage.is_object()) fail(ErrorCode::invalid_argument, "{} is no object", where);
    for (const char* key : {"replicas", "tensor"}) {
      if (whole(stage, key, 1, where) > 1) {
        fail(ErrorCode::invalid_argument,
             "{}: {} = {}: a stage runs on one worker so far; plan with as many devices as stages",
             where, key, whole(stage, key, 1, where));
      }
    }
    const int64_t own = whole(stage, "micro_batch", batch, where);
    if (micro_batch == 0) micro_batch = own;
    if (own != micro_batch || batch % own != 0) {
      fail(ErrorCode::invalid_argument,
           "{}: micro_batch = {}: stages have equal micro-batches so far, which divide the {} "
           "samples of a batch; stage 0 has {}",
           where, own, batch, micro_batch);
    }
    std::string ops;
    for (const std::string& name : names_of(stage, "ops", where)) {
      ops += (ops.empty() ? "" : " ") + name;
    }
    options.stages.push_back(std::move(ops));
    for (std::string& name : names_of(stage, "recompute", where)) {
      options.recompute.push_back(std::move(name));
    }
    if (!stage.contains("order") || !stage["order"].is_string()) {
      fail(ErrorCode::invalid_argument,
           "{} has no order of tasks; `ductile plan GRAPH --json` writes it", where);
    }
    options.orders.push_back(stage["order"].get<std::string>());
  }
  options.micro_batches = batch / micro_batch;
  job.train.method = "pipelined";
  job.train.virtual_ranks = static_cast<int64_t>(options.stages.size());
  job.train.pipelined = std::move(options);
}

}  // namespace ductile::cli
