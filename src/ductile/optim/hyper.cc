#include "ductile/optim/hyper.h"

#include <array>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"

namespace ductile::optim {
namespace {

constexpr std::array<HyperField, 6> kFields{
    {{"lr", &Hyper::lr, "optimizer.lr"},
     {"momentum", &Hyper::momentum, "optimizer.momentum"},
     {"weight_decay", &Hyper::weight_decay, "optimizer.weight_decay"},
     {"beta1", &Hyper::beta1, "optimizer.adam.beta1"},
     {"beta2", &Hyper::beta2, "optimizer.adam.beta2"},
     {"clip_norm", &Hyper::clip_norm, "optimizer.clip_norm"}}};

const nlohmann::json& number_at(const nlohmann::json& value, std::string_view name) {
  const auto found = value.is_object() ? value.find(name) : value.end();
  if (!value.is_object() || found == value.end() || !found->is_number()) {
    fail(ErrorCode::invalid_argument, "the hyperparameters hold no number \"{}\"", name);
  }
  return *found;
}

}  // namespace

std::span<const HyperField> hyper_fields() { return kFields; }

Hyper Hyper::of(const spec::OptimizerOptions& options) {
  return {.lr = options.lr,
          .momentum = options.momentum,
          .weight_decay = options.weight_decay,
          .beta1 = options.adam.beta1,
          .beta2 = options.adam.beta2,
          .clip_norm = options.clip_norm};
}

Hyper Hyper::of(const spec::JobOptions& job) {
  Hyper hyper = of(job.optimizer);
  hyper.batch_size = job.train.batch_size;
  hyper.staleness = job.train.staleness;
  return hyper;
}

void Hyper::set(std::string_view key, double value) {
  for (const HyperField& f : kFields) {
    if (f.key != key) continue;
    this->*f.field = value;
    return;
  }
  options[std::string(key)] = value;
}

nlohmann::json to_json(const Hyper& hyper) {
  nlohmann::json out = nlohmann::json::object();
  for (const HyperField& f : kFields) out[std::string(f.name)] = hyper.*f.field;
  out["batch_size"] = hyper.batch_size;
  out["staleness"] = hyper.staleness;
  if (!hyper.options.empty()) out["options"] = hyper.options;
  return out;
}

Hyper hyper_from_json(const nlohmann::json& value) {
  Hyper hyper;
  for (const HyperField& f : kFields) hyper.*f.field = number_at(value, f.name).get<double>();
  hyper.batch_size = number_at(value, "batch_size").get<int64_t>();
  hyper.staleness = number_at(value, "staleness").get<int64_t>();
  const auto options = value.find("options");
  if (options == value.end()) return hyper;
  if (!options->is_object())
    fail(ErrorCode::invalid_argument, "the hyperparameters' \"options\" are no object");
  for (const auto& [key, number] : options->items()) {
    if (!number.is_number())
      fail(ErrorCode::invalid_argument, "the hyperparameters hold no number \"{}\"", key);
    hyper.options[key] = number.get<double>();
  }
  return hyper;
}

}  // namespace ductile::optim
