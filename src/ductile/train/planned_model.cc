#include "ductile/train/planned_model.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/core/Tensor.h>

#include "ductile/base/error.h"

namespace ductile::train {
namespace {

// Names end with a zero, which none contains, so that no two models have one text.
void add_word(std::string& text, std::string_view word) {
  text += word;
  text += '\0';
}

std::string operators_text(const nn::OperatorGraph& operators) {
  std::string text;
  for (const nn::Operator& op : operators.operators()) {
    add_word(text, op.name);
    add_word(text, op.kind);
    for (const nn::Source& source : op.inputs)
      add_word(text, fmt::format("{}.{}", source.op, source.output));
    add_word(text, fmt::format("{} outputs", op.num_outputs));
    for (const nn::NamedTensor& p : op.parameters) add_word(text, p.name);
    add_word(text, "");
  }
  return fmt::format("{} ({})", operators.operators().size(), spec::short_digest(text));
}

// A parameter of several operators counts once.
std::string parameters_text(const nn::OperatorGraph& operators) {
  std::map<std::string, const at::Tensor*> parameters;
  for (const nn::Operator& op : operators.operators()) {
    for (const nn::NamedTensor& p : op.parameters) parameters.emplace(p.name, &p.tensor);
  }
  std::string text;
  int64_t numbers = 0;
  for (const auto& [name, tensor] : parameters) {
    add_word(text, name);
    add_word(text, fmt::format("{}", fmt::join(tensor->sizes(), "x")));
    numbers += tensor->numel();
  }
  return fmt::format("{} of {} numbers ({})", parameters.size(), numbers, spec::short_digest(text));
}

// "float32 3x32x32"; of many inputs the first ones, and a digest of all.
std::string samples_text(const DataForm& form) {
  constexpr size_t kShown = 80;
  std::string text;
  for (const at::Tensor& input : form.blank_inputs(1)) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ",
                        input.is_floating_point() ? "float32" : "int64",
                        fmt::join(input.sizes().slice(1), "x"));
  }
  if (text.size() <= kShown) return text;
  return fmt::format("{}... ({})", text.substr(0, kShown), spec::short_digest(text));
}

}  // namespace

spec::ModelIdentity identity_of(const spec::JobOptions& job, const nn::OperatorGraph& operators,
                                const DataForm& form) {
  return {job.model.name, operators_text(operators), parameters_text(operators),
          samples_text(form)};
}

void check_planned_model(const spec::JobOptions& job, const nn::OperatorGraph& operators,
                         const DataForm& form) {
  const spec::ModelIdentity planned = spec::model_identity(job.train.pipelined.model);
  if (planned.empty()) return;
  const spec::ModelIdentity own = identity_of(job, operators, form);
  const std::string difference = spec::difference(planned, own);
  if (difference.empty()) return;
  fail(ErrorCode::invalid_argument,
       "the plan is for another model ({}) than the job's ({}): {}; profile this model and plan "
       "anew (ductile profile, then ductile plan --runnable), or train the model that was planned",
       planned.name, own.name, difference);
}

}  // namespace ductile::train
