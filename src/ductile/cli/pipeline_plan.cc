#include "ductile/cli/pipeline_plan.h"

#include <string>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/json_value.h"

namespace ductile::cli {
namespace {

constexpr int64_t kMost = int64_t{1} << 53;

// Operators by name. Options separate them by spaces.
std::vector<std::string> names_of(const JsonFields& stage, const char* key) {
  std::vector<std::string> out;
  if (!stage.has(key)) return out;
  for (const nlohmann::json& item : stage.array(key)) {
    if (!item.is_string()) {
      fail(ErrorCode::invalid_argument, "{}: {} is no list of names", stage.where(), key);
    }
    const std::string& name = out.emplace_back(item.get<std::string>());
    if (name.empty() || name.find_first_of(" \t\n") != std::string::npos) {
      fail(ErrorCode::invalid_argument, "{}: the operator \"{}\" has a space in its name",
           stage.where(), name);
    }
  }
  return out;
}

}  // namespace

void set_plan(spec::JobOptions& job, const fs::path& file) {
  nlohmann::json plan = parse_json(read_file(file), file.string(), ErrorCode::invalid_argument);
  if (plan.is_object() && plan.contains("plan")) plan = nlohmann::json(plan["plan"]);
  if (!plan.is_object() || !plan.contains("stages") || !plan["stages"].is_array() ||
      plan["stages"].empty()) {
    fail(ErrorCode::invalid_argument, "{}: no plan; `ductile plan GRAPH --json` writes one",
         file.string());
  }
  const int64_t batch =
      JsonFields(plan, file.string()).integer_or("batch", job.train.batch_size, 1, kMost);
  if (batch != job.train.batch_size) {
    fail(ErrorCode::invalid_argument,
         "{}: the plan is for batches of {} samples, and train.batch_size = {}; plan with --batch "
         "{}, or set train.batch_size = {}",
         file.string(), batch, job.train.batch_size, job.train.batch_size, batch);
  }
  spec::PipelinedOptions options;
  int64_t micro_batch = 0;
  for (const nlohmann::json& item : plan["stages"]) {
    const JsonFields stage(item, fmt::format("{}: stage {}", file.string(), options.stages.size()));
    for (const char* key : {"replicas", "tensor"}) {
      if (const int64_t number = stage.integer_or(key, 1, 1, kMost); number > 1) {
        fail(ErrorCode::invalid_argument,
             "{}: {} = {}: a stage runs on one worker so far; plan with as many devices as stages",
             stage.where(), key, number);
      }
    }
    const int64_t own = stage.integer_or("micro_batch", batch, 1, kMost);
    if (micro_batch == 0) micro_batch = own;
    if (own != micro_batch || batch % own != 0) {
      fail(ErrorCode::invalid_argument,
           "{}: micro_batch = {}: stages have equal micro-batches so far, which divide the {} "
           "samples of a batch; stage 0 has {}",
           stage.where(), own, batch, micro_batch);
    }
    std::string ops;
    for (const std::string& name : names_of(stage, "ops")) {
      ops += (ops.empty() ? "" : " ") + name;
    }
    options.stages.push_back(std::move(ops));
    for (std::string& name : names_of(stage, "recompute")) {
      options.recompute.push_back(std::move(name));
    }
    if (!stage.has("order")) {
      fail(ErrorCode::invalid_argument,
           "{} has no order of tasks; `ductile plan GRAPH --json` writes it", stage.where());
    }
    options.orders.push_back(stage.text("order"));
  }
  options.micro_batches = batch / micro_batch;
  job.train.method = "pipelined";
  job.train.virtual_ranks = static_cast<int64_t>(options.stages.size());
  job.train.pipelined = std::move(options);
}

}  // namespace ductile::cli
