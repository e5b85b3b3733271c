#include "ductile/nn/operators.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ops/scalar_tensor.h>

#include "ductile/base/error.h"
#include "ductile/nn/evaluates_whole.h"

namespace ductile::nn {

DeclaresOperators::~DeclaresOperators() = default;
EvaluatesWhole::~EvaluatesWhole() = default;
ForwardsSeveral::~ForwardsSeveral() = default;
TakesSomeSamples::~TakesSomeSamples() = default;

std::vector<int64_t> numbers_of_samples(const Model& model) {
  const auto* some = dynamic_cast<const TakesSomeSamples*>(&model);
  return some != nullptr ? some->numbers_of_samples() : std::vector<int64_t>();
}

void OperatorGraph::check(const Source& source, const std::string& reader) const {
  const bool known = source.output >= 0 &&
                     (source.op == kModelInput ||
                      (source.op >= 0 && static_cast<size_t>(source.op) < operators_.size() &&
                       source.output < operators_[static_cast<size_t>(source.op)].num_outputs));
  if (!known) {
    fail(ErrorCode::invalid_argument,
         "{} reads output {} of operator {}, which is not there; operators stand behind those that "
         "they read",
         reader, source.output, source.op);
  }
}

int OperatorGraph::add(Operator op) {
  DUCTILE_CHECK(results_.empty(), "operator {} after set_results", op.name);
  for (const Operator& other : operators_) {
    if (other.name == op.name) {
      fail(ErrorCode::conflict, "the model has two operators named {}", op.name);
    }
  }
  for (const Source& source : op.inputs) {
    check(source, "operator " + op.name);
    if (source.op == kModelInput) num_inputs_ = std::max(num_inputs_, source.output + 1);
  }
  operators_.push_back(std::move(op));
  return static_cast<int>(operators_.size()) - 1;
}

void OperatorGraph::add_first_of(const OperatorGraph& other, size_t count) {
  DUCTILE_CHECK(operators_.empty(), "operators of another graph behind own ones");
  for (size_t i = 0; i < count; ++i) {
    const int number = add(other.operators_.at(i));
    if (const Run* const both = other.shortcut(number)) add_shortcut(number, *both);
  }
}

void OperatorGraph::add_shortcut(int op, Run run) {
  DUCTILE_CHECK(results_.empty() && op >= 0, "a shortcut after set_results, or from nowhere");
  shortcuts_[op] = std::move(run);
}

const OperatorGraph::Run* OperatorGraph::shortcut(int op) const {
  const auto found = shortcuts_.find(op);
  return found == shortcuts_.end() ? nullptr : &found->second;
}

// Whether operator `op` makes what the next one reads, and nobody and nothing else.
bool OperatorGraph::leads_to_next(int op) const {
  const auto next = static_cast<size_t>(op) + 1;
  const std::vector<Source> made = {{op, 0}};
  if (next >= operators_.size() || operators_[next].inputs != made ||
      operators_[next - 1].num_outputs != 1)
    return false;
  int64_t readers = std::ranges::count(results_, made[0]);
  for (const Operator& reader : operators_) readers += std::ranges::count(reader.inputs, made[0]);
  return readers == 1;
}

void OperatorGraph::set_results(std::vector<Source> results) {
  for (const Source& source : results) check(source, "the result");
  results_ = std::move(results);
  std::erase_if(shortcuts_, [&](const auto& from) { return !leads_to_next(from.first); });
  std::map<Source, bool> read;
  for (const Source& source : results_) read[source] = true;
  last_.assign(operators_.size(), {});
  unread_.assign(operators_.size(), {});
  for (size_t i = operators_.size(); i-- > 0;) {
    const Operator& op = operators_[i];
    last_[i].assign(op.inputs.size(), false);
    for (size_t k = op.inputs.size(); k-- > 0;) {
      last_[i][k] = !std::exchange(read[op.inputs[k]], true);
    }
    for (int k = 0; k < op.num_outputs; ++k) {
      const Source made{static_cast<int>(i), k};
      if (!read.contains(made)) unread_[i].push_back(made);
    }
  }
}

int OperatorGraph::find(const std::string& name) const {
  for (size_t i = 0; i < operators_.size(); ++i) {
    if (operators_[i].name == name) return static_cast<int>(i);
  }
  fail(ErrorCode::not_found, "the model has no operator \"{}\"; it has {} of them, from \"{}\" on",
       name, operators_.size(), operators_.empty() ? "" : operators_.front().name);
}

Tensors OperatorGraph::run(std::span<const at::Tensor> inputs) const {
  DUCTILE_CHECK(!results_.empty(), "a graph without results");
  if (inputs.size() < static_cast<size_t>(num_inputs_)) {
    fail(ErrorCode::invalid_argument, "the model reads {} inputs; {} are given", num_inputs_,
         inputs.size());
  }
  std::vector<Tensors> made(operators_.size());
  const auto at = [&](const Source& s) -> at::Tensor& {
    return made[static_cast<size_t>(s.op)][static_cast<size_t>(s.output)];
  };
  Tensors taken;
  for (size_t i = 0; i < operators_.size(); ++i) {
    const Operator& op = operators_[i];
    taken.clear();
    for (size_t k = 0; k < op.inputs.size(); ++k) {
      const Source& s = op.inputs[k];
      if (s.op == kModelInput) {
        taken.push_back(inputs[static_cast<size_t>(s.output)]);
      } else if (last_[i][k]) {
        taken.push_back(std::move(at(s)));
      } else {
        taken.push_back(at(s));
      }
    }
    if (const Run* const both = shortcut(static_cast<int>(i))) {
      made[++i] = (*both)(taken);
    } else {
      made[i] = op.run(taken);
    }
    const Operator& last = operators_[i];
    DUCTILE_CHECK(made[i].size() == static_cast<size_t>(last.num_outputs),
                  "operator {} made {} tensors, not {}", last.name, made[i].size(),
                  last.num_outputs);
    for (const Source& s : unread_[i]) at(s) = at::Tensor();
  }
  Tensors out;
  for (const Source& s : results_) {
    out.push_back(s.op == kModelInput ? inputs[static_cast<size_t>(s.output)] : at(s));
  }
  return out;
}

at::Tensor forward(Model& model, std::span<const at::Tensor> inputs) {
  if (inputs.size() == 1) return model.forward(inputs.front());
  if (auto* several = dynamic_cast<ForwardsSeveral*>(&model)) {
    return several->forward_several(inputs);
  }
  const auto* declares = dynamic_cast<const DeclaresOperators*>(&model);
  if (declares == nullptr) {
    fail(ErrorCode::invalid_argument,
         "{} inputs for a model that reads one; a model of several inputs declares its operators "
         "(nn::OperatorModel does)",
         inputs.size());
  }
  return declares->operators().run(inputs).front();
}

bool operators_evaluate(const Model& model) {
  return dynamic_cast<const EvaluatesWhole*>(&model) == nullptr;
}

OperatorGraph operators_of(Model& model) {
  if (const auto* declares = dynamic_cast<const DeclaresOperators*>(&model)) {
    return declares->operators();
  }
  Operator whole;
  whole.name = "model";
  whole.kind = "opaque";
  whole.inputs = {{kModelInput, 0}};
  whole.parameters = model.parameters();
  whole.buffers = model.buffers();
  whole.random = true;  // nobody knows
  whole.run = [&model](std::span<const at::Tensor> in) { return Tensors{model.forward(in[0])}; };
  OperatorGraph graph;
  graph.add(std::move(whole));
  graph.set_results({{0, 0}});
  return graph;
}

OperatorGraph training_operators(Model& model, double label_smoothing) {
  const OperatorGraph declared = operators_of(model);
  OperatorGraph graph;
  graph.add_first_of(declared, declared.operators().size());
  Operator loss;
  loss.name = kLossOperator;
  loss.kind = "loss";
  loss.inputs = {declared.results().front(), {kModelInput, declared.num_inputs()}};
  loss.num_outputs = 3;
  loss.run = [&model, label_smoothing](std::span<const at::Tensor> in) {
    const LossOutput out = model.loss(in[0], in[1], label_smoothing);
    return Tensors{out.losses, at::scalar_tensor(out.correct, at::kLong),
                   at::scalar_tensor(out.predictions, at::kLong)};
  };
  const int at = graph.add(std::move(loss));
  graph.set_results({{at, 0}, {at, 1}, {at, 2}});
  return graph;
}

}  // namespace ductile::nn
