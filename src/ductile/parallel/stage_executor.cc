#include "ductile/parallel/stage_executor.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/nn/first_half.h"
#include "ductile/nn/generator.h"
#include "ductile/parallel/allocation_count.h"
#include "ductile/parallel/draws.h"
#include "ductile/parallel/exact_sums_impl.h"
#include "ductile/parallel/kept_buffers_impl.h"

namespace ductile::parallel {
namespace {

using nn::kModelInput;
using nn::NamedTensor;
using nn::Operator;
using nn::Source;
using nn::Tensors;

bool has_gradient_type(const at::Tensor& t) { return t.is_floating_point(); }
bool cheap(const NamedTensor& p) { return p.tensor.dim() <= 1; }

std::vector<int> sorted(std::vector<int> ops, const char* what, size_t num_ops) {
  std::ranges::sort(ops);
  if (std::ranges::adjacent_find(ops) != ops.end()) {
    fail(ErrorCode::invalid_argument, "{}: operator {} is there twice", what,
         *std::ranges::adjacent_find(ops));
  }
  if (!ops.empty() && (ops.front() < 0 || static_cast<size_t>(ops.back()) >= num_ops)) {
    fail(ErrorCode::invalid_argument, "{}: there is no operator {}; the model has {}", what,
         ops.front() < 0 ? ops.front() : ops.back(), num_ops);
  }
  return ops;
}

}  // namespace

at::ScalarType sum_type(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

struct StageExecutor::Run {
  Tensors inputs;   // detached; leaves that want gradients require them
  Tensors outputs;  // with their graph; empty while recompute waits
  // The gradients of the outputs, in falling order of readers.
  std::vector<std::vector<Gradient>> gradients;
  Tensors sums;  // of these, kept for the weights

  // The outputs that are differentiated, and what comes to them.
  std::pair<Tensors, Tensors> with_gradients() const {
    std::pair<Tensors, Tensors> out;
    for (size_t k = 0; k < sums.size(); ++k) {
      if (!sums[k].defined() || !outputs[k].requires_grad()) continue;
      out.first.push_back(outputs[k]);
      out.second.push_back(sums[k]);
    }
    return out;
  }
};

struct StageExecutor::MicroBatch {
  std::optional<DrawState> draws;
  std::map<int, Run> runs;  // by the operator that makes the outputs
  std::map<Source, Gradient> input_gradients;
  bool backward_done = false;
};

StageExecutor::StageExecutor(const nn::OperatorGraph& graph, std::vector<int> ops,
                             StageExecutorOptions options)
    : graph_(graph),
      ops_(sorted(std::move(ops), "a stage", graph.operators().size())),
      options_(std::move(options)),
      wants_(wants_gradient(graph)),
      recompute_(graph.operators().size(), false),
      exact_(options_.exact ? std::make_unique<ExactSums>(graph, wants_) : nullptr) {
  const std::set<int> own(ops_.begin(), ops_.end());
  for (const int op : sorted(options_.recompute, "recompute", graph.operators().size())) {
    if (!own.contains(op)) {
      fail(ErrorCode::invalid_argument, "recompute names operator {} of another stage",
           graph.operators()[static_cast<size_t>(op)].name);
    }
    recompute_[static_cast<size_t>(op)] = true;
  }
  for (size_t i = 0; i < ops_.size(); ++i) {
    Unit& unit = units_.emplace_back(Unit{ops_[i], ops_[i], shortcut_from(i)});
    if (unit.shortcut != nullptr) unit.last = ops_[++i];
  }
  std::set<Source> in, out;
  for (size_t i = 0; i < graph.operators().size(); ++i) {
    const bool is_own = own.contains(static_cast<int>(i));
    for (const Source& s : graph.operators()[i].inputs) {
      const bool made_here = s.op != kModelInput && own.contains(s.op);
      if (is_own && !made_here) in.insert(s);
      if (!is_own && made_here) out.insert(s);
    }
  }
  for (const Source& s : graph.results()) {
    if (own.contains(s.op)) out.insert(s);
  }
  inputs_.assign(in.begin(), in.end());
  outputs_.assign(out.begin(), out.end());
}

StageExecutor::~StageExecutor() = default;

// That from the operator at `place` of ops_, if it is to be gone.
const nn::OperatorGraph::Run* StageExecutor::shortcut_from(size_t place) const {
  if (place + 1 == ops_.size() || ops_[place + 1] != ops_[place] + 1) return nullptr;
  const auto first = static_cast<size_t>(ops_[place]), second = first + 1;
  const Operator &a = graph_.operators()[first], &b = graph_.operators()[second];
  const bool bare = b.parameters.empty() && b.buffers.empty() && !a.random && !b.random;
  if (!bare || wants_[first] != wants_[second] || recompute_[first] != recompute_[second]) {
    return nullptr;
  }
  return graph_.shortcut(ops_[place]);
}

std::vector<bool> StageExecutor::wants_gradient(const nn::OperatorGraph& graph) {
  std::vector<bool> wants;
  for (const Operator& op : graph.operators()) {
    bool any = std::ranges::any_of(op.parameters,
                                   [](const NamedTensor& p) { return p.tensor.requires_grad(); });
    for (const Source& s : op.inputs) {
      any = any || (s.op != kModelInput && wants[static_cast<size_t>(s.op)]);
    }
    wants.push_back(any);
  }
  // No gradient comes to what the loss does not read.
  std::vector<bool> read(wants.size(), false);
  if (!graph.results().empty() && graph.results().front().op != kModelInput) {
    read[static_cast<size_t>(graph.results().front().op)] = true;
  }
  for (size_t i = wants.size(); i-- > 0;) {
    wants[i] = wants[i] && read[i];
    for (const Source& s : graph.operators()[i].inputs) {
      if (read[i] && s.op != kModelInput) read[static_cast<size_t>(s.op)] = true;
    }
  }
  return wants;
}

std::vector<bool> StageExecutor::leaves_weights(const nn::OperatorGraph& graph) {
  const std::vector<bool> wants = wants_gradient(graph);
  std::vector<bool> out;
  for (size_t i = 0; i < wants.size(); ++i) {
    const Operator& op = graph.operators()[i];
    const bool wants_inputs = std::ranges::any_of(op.inputs, [&](const Source& s) {
      return s.op != kModelInput && wants[static_cast<size_t>(s.op)];
    });
    out.push_back(wants[i] && std::ranges::any_of(op.parameters, [&](const NamedTensor& p) {
                    return p.tensor.requires_grad() && !(wants_inputs && cheap(p));
                  }));
  }
  return out;
}

bool StageExecutor::wants_gradient(const Source& source) const {
  return source.op != kModelInput && wants_[static_cast<size_t>(source.op)];
}

Tensors StageExecutor::call(const Unit& unit, int64_t micro_batch, const Tensors& inputs) {
  if (unit.shortcut != nullptr) return (*unit.shortcut)(inputs);
  const Operator& o = graph_.operators()[static_cast<size_t>(unit.op)];
  if (!o.random) return o.run(inputs);
  const std::lock_guard lock(nn::generator_mutex());
  if (exact_) return draw_as_rank(unit.op, micro_batch, inputs);
  nn::seed_step(
      mix(mix(seed_, static_cast<uint64_t>(micro_batch)), static_cast<uint64_t>(unit.op)));
  return o.run(inputs);
}

Tensors StageExecutor::draw_as_rank(int op, int64_t micro_batch, const Tensors& inputs) {
  DUCTILE_CHECK(draws_ != nullptr, "an exact stage draws, and what others draw is not known");
  const Operator& o = graph_.operators()[static_cast<size_t>(op)];
  std::optional<DrawState>& state = held_.at(micro_batch).draws;
  if (!state) state.emplace(mix(seed_, static_cast<uint64_t>(first_rank_ + micro_batch)));
  state->set(draws_->before[static_cast<size_t>(op)]);
  Tensors out = o.run(inputs);
  if (!state->drew(draws_->own[static_cast<size_t>(op)]) && !draws_->ends_with(op)) {
    fail(ErrorCode::conflict,
         "train.pipeline_exact: operator {} draws another number of random numbers for some "
         "samples than for others, so other stages do not know where it leaves the generator; set "
         "train.pipeline_exact = false",
         o.name);
  }
  return out;
}

StageExecutor::Tensors StageExecutor::forward(int64_t micro_batch, Tensors inputs) {
  DUCTILE_CHECK(inputs.size() == inputs_.size(), "{} inputs for {}", inputs.size(), inputs_.size());
  const auto [place, is_new] = held_.try_emplace(micro_batch);
  if (!is_new) fail(ErrorCode::conflict, "micro-batch {} is under way already", micro_batch);
  std::map<Source, at::Tensor> made;  // whoever reads one detaches it
  for (size_t i = 0; i < inputs.size(); ++i) made[inputs_[i]] = std::move(inputs[i]);
  for (const Unit& unit : units_) {
    const auto number = static_cast<size_t>(unit.op);
    const Operator& o = graph_.operators()[number];
    const bool differentiated = wants_[number];
    const bool again = differentiated && recompute_[number];
    Run run;
    for (const Source& s : o.inputs) {
      at::Tensor leaf = made.at(s).detach();
      leaf.set_requires_grad(wants_gradient(s) && has_gradient_type(leaf));
      run.inputs.push_back(std::move(leaf));
    }
    std::optional<KeptBuffers> before;
    if (exact_) before.emplace(o);
    {
      const at::AutoGradMode mode(differentiated && !again);
      run.outputs = call(unit, micro_batch, run.inputs);
    }
    if (before) {
      exact_->add_buffers(unit.op);
      before->put_back();
    }
    for (size_t k = 0; k < run.outputs.size(); ++k) {
      made[{unit.last, static_cast<int>(k)}] = run.outputs[k];
    }
    if (!differentiated) continue;
    run.gradients.resize(run.outputs.size());
    if (again) run.outputs.clear();
    place->second.runs.emplace(unit.last, std::move(run));
  }
  Tensors out;
  for (const Source& s : outputs_) out.push_back(made.at(s).detach());
  return out;
}

// Of a unit whose outputs were not kept. Its buffers have moved in the first run.
void StageExecutor::run_again(const Unit& unit, int64_t micro_batch, Run& run) {
  const KeptBuffers buffers(graph_.operators()[static_cast<size_t>(unit.op)]);
  {
    const at::AutoGradMode mode(true);
    run.outputs = call(unit, micro_batch, run.inputs);
  }
  buffers.put_back();
}

std::vector<StageExecutor::Gradient> StageExecutor::backward(
    int64_t micro_batch, std::vector<std::vector<Gradient>> output_gradients) {
  DUCTILE_CHECK(output_gradients.size() == outputs_.size(), "{} gradients for {}",
                output_gradients.size(), outputs_.size());
  const auto place = held_.find(micro_batch);
  if (place == held_.end() || place->second.backward_done) {
    fail(ErrorCode::conflict, "micro-batch {} waits for no backward pass", micro_batch);
  }
  MicroBatch& held = place->second;
  held.backward_done = true;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const auto run = held.runs.find(outputs_[i].op);
    if (run == held.runs.end()) continue;
    auto& to = run->second.gradients[static_cast<size_t>(outputs_[i].output)];
    for (Gradient& g : output_gradients[i]) {
      if (g.value.defined()) to.push_back(std::move(g));
    }
  }
  for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) {
    const auto run = held.runs.find(unit->last);
    if (run != held.runs.end()) differentiate(*unit, micro_batch, run->second, held);
  }
  std::vector<Gradient> out;
  for (const Source& s : inputs_) {
    const auto found = held.input_gradients.find(s);
    out.push_back(found == held.input_gradients.end() ? Gradient{} : std::move(found->second));
  }
  if (!options_.split) backward_weights(micro_batch);
  return out;
}

// The gradients of one unit's inputs, and of those weights that backward() sums.
void StageExecutor::differentiate(const Unit& unit, int64_t micro_batch, Run& run,
                                  MicroBatch& held) {
  const int op = unit.op;
  const Operator& o = graph_.operators()[static_cast<size_t>(op)];
  bool any = false;
  run.sums.resize(run.gradients.size());
  for (size_t k = 0; k < run.gradients.size(); ++k) {
    std::ranges::stable_sort(run.gradients[k], std::ranges::greater(), &Gradient::reader);
    for (Gradient& g : run.gradients[k]) {
      // Never in place: the same tensor may be the gradient of several others.
      run.sums[k] = run.sums[k].defined() ? run.sums[k].add(g.value) : std::move(g.value);
      any = true;
    }
    run.gradients[k].clear();
  }
  if (!any) return;
  if (recompute_[static_cast<size_t>(op)]) run_again(unit, micro_batch, run);

  const auto [outputs, gradients] = run.with_gradients();
  if (outputs.empty()) return;
  Tensors targets;
  std::vector<size_t> inputs, weights, later;
  for (size_t i = 0; i < run.inputs.size(); ++i) {
    if (run.inputs[i].requires_grad()) inputs.push_back(i);
  }
  for (size_t i = 0; i < o.parameters.size(); ++i) {
    if (!o.parameters[i].tensor.requires_grad()) continue;
    const bool now = !options_.split || (!inputs.empty() && cheap(o.parameters[i]));
    (now ? weights : later).push_back(i);
  }
  for (const size_t i : inputs) targets.push_back(run.inputs[i]);
  for (const size_t i : weights) targets.push_back(o.parameters[i].tensor);
  if (!targets.empty()) {
    std::optional<nn::FirstHalf> first;
    if (!later.empty()) first.emplace(gradients);
    Tensors found =
        torch::autograd::grad(outputs, targets, gradients, /*retain_graph=*/!later.empty(),
                              /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t n = 0; n < inputs.size(); ++n) {
      if (!found[n].defined()) continue;
      const Source& s = o.inputs[inputs[n]];
      const auto maker = held.runs.find(s.op);
      if (maker != held.runs.end()) {
        maker->second.gradients[static_cast<size_t>(s.output)].push_back({found[n], op});
        continue;
      }
      Gradient& sum = held.input_gradients[s];
      if (!sum.value.defined()) sum.reader = op;
      sum.value = sum.value.defined() ? sum.value.add(found[n]) : found[n];
    }
    found.erase(found.begin(), found.begin() + static_cast<ptrdiff_t>(inputs.size()));
    add_weights(op, weights, std::move(found));
  }
  if (later.empty()) run = Run{};  // its graph is not needed any more
}

void StageExecutor::backward_weights(int64_t micro_batch) {
  const auto place = held_.find(micro_batch);
  if (place == held_.end() || !place->second.backward_done) {
    fail(ErrorCode::conflict, "micro-batch {} waits for no backward pass to its weights",
         micro_batch);
  }
  // Those first whose gradients came last: they are still in the caches, which the others have left
  // in any case.
  for (const Unit& unit : units_) {
    const auto found = place->second.runs.find(unit.last);
    if (found == place->second.runs.end() || found->second.outputs.empty()) continue;
    Run run = std::move(found->second);
    const Operator& o = graph_.operators()[static_cast<size_t>(unit.op)];
    const bool wants_inputs =
        std::ranges::any_of(run.inputs, [](const at::Tensor& t) { return t.requires_grad(); });
    const auto [outputs, gradients] = run.with_gradients();
    Tensors targets;
    std::vector<size_t> weights;
    for (size_t i = 0; i < o.parameters.size(); ++i) {
      if (!o.parameters[i].tensor.requires_grad()) continue;
      if (wants_inputs && cheap(o.parameters[i])) continue;
      weights.push_back(i);
      targets.push_back(o.parameters[i].tensor);
    }
    if (outputs.empty() || targets.empty()) continue;
    add_weights(unit.op, weights,
                torch::autograd::grad(outputs, targets, gradients, /*retain_graph=*/false,
                                      /*create_graph=*/false, /*allow_unused=*/true));
  }
  held_.erase(place);
  ++num_done_;
}

void StageExecutor::add_weights(int op, const std::vector<size_t>& which, Tensors found) {
  if (which.empty()) return;
  const AllocationCount::OfSums sums_alone;
  if (exact_) return exact_->add(op, which, found);
  const at::NoGradGuard no_grad;
  Tensors& sums = weights_[op];
  sums.resize(graph_.operators()[static_cast<size_t>(op)].parameters.size());
  for (size_t n = 0; n < which.size(); ++n) {
    if (!found[n].defined()) continue;
    at::Tensor& sum = sums[which[n]];
    // What autograd returns may be a tensor that others hold.
    sum = sum.defined() ? sum.add_(found[n])
                        : found[n].to(sum_type(found[n].scalar_type()), /*non_blocking=*/false,
                                      /*copy=*/true);
  }
}

StageExecutor::Tensors StageExecutor::weight_gradients(int op) const {
  if (exact_) return exact_->weights(op, num_done_);
  const auto found = weights_.find(op);
  return found == weights_.end() ? Tensors() : found->second;
}

StageExecutor::Tensors StageExecutor::weight_parts(int op, size_t parameter) const {
  return exact_ ? exact_->parts(op, parameter) : Tensors();
}

StageExecutor::Tensors StageExecutor::buffer_sums(int op) const {
  return exact_ ? exact_->buffers(op) : Tensors();
}

void StageExecutor::clear() {
  held_.clear();
  weights_.clear();
  if (exact_) exact_->clear();
  num_done_ = 0;
}

int64_t StageExecutor::num_held() const { return static_cast<int64_t>(held_.size()); }

}  // namespace ductile::parallel
