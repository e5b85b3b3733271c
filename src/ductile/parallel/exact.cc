#include "ductile/parallel/exact.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "ductile/base/error.h"
#include "ductile/nn/generator.h"
#include "ductile/parallel/kept_buffers_impl.h"
#include "ductile/parallel/stage_executor.h"

namespace ductile::parallel {
namespace {

using nn::kModelInput;
using nn::NamedTensor;
using nn::Operator;
using nn::OperatorGraph;
using nn::Source;
using nn::Tensors;

// How often an operator uses a tensor: so many gradients come from it.
struct Use {
  int op = 0;
  int64_t times = 0;
};
using Uses = std::vector<Use>;  // of one tensor, from the last operator on

int64_t number_of(const Uses& uses) {
  int64_t sum = 0;
  for (const Use& use : uses) sum += use.times;
  return sum;
}

struct AllUses {
  std::map<Source, Uses> tensors;
  std::map<std::string, Uses> parameters;
  // Where an operator returns what it is given: that, by what it returns.
  std::map<Source, Source> aliases;
};

// For each leaf, the edges of the graph behind `outputs` that end there.
std::vector<int64_t> edges_to(const Tensors& leaves, const Tensors& outputs) {
  using torch::autograd::Node;
  std::vector<std::shared_ptr<Node>> ends;
  std::map<const Node*, size_t> places;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!leaves[i].requires_grad()) continue;
    ends.push_back(torch::autograd::impl::grad_accumulator(leaves[i]));
    places.emplace(ends.back().get(), i);
  }
  std::vector<int64_t> out(leaves.size(), 0);
  std::set<const Node*> seen;
  std::vector<const Node*> left;
  for (const at::Tensor& t : outputs) {
    if (t.grad_fn()) left.push_back(t.grad_fn().get());
  }
  while (!left.empty()) {
    const Node* const node = left.back();
    left.pop_back();
    if (!seen.insert(node).second) continue;
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (!edge.function) continue;
      const auto place = places.find(edge.function.get());
      if (place != places.end()) {
        ++out[place->second];
      } else {
        left.push_back(edge.function.get());
      }
    }
  }
  return out;
}

// Of one operator, which has run on `leaves`.
void note_uses(int number, const Operator& op, const Tensors& leaves, const Tensors& outputs,
               AllUses& uses) {
  Tensors ends = leaves;
  for (const NamedTensor& p : op.parameters) ends.push_back(p.tensor);
  std::vector<int64_t> times = edges_to(ends, outputs);
  for (size_t n = 0; n < leaves.size(); ++n) {
    if (!leaves[n].requires_grad()) continue;
    for (size_t k = 0; k < outputs.size(); ++k) {
      if (!outputs[k].is_same(leaves[n])) continue;
      uses.aliases[{number, static_cast<int>(k)}] = op.inputs[n];
      ++times[n];
    }
    Uses& of_tensor = uses.tensors[op.inputs[n]];
    of_tensor.insert(of_tensor.begin(), Use{number, times[n]});
  }
  for (size_t i = 0; i < op.parameters.size(); ++i) {
    if (!op.parameters[i].tensor.requires_grad()) continue;
    Uses& of_parameter = uses.parameters[op.parameters[i].name];
    of_parameter.insert(of_parameter.begin(), Use{number, times[leaves.size() + i]});
  }
}

AllUses uses_of(const OperatorGraph& operators, const Tensors& inputs) {
  const std::vector<bool> wants = StageExecutor::wants_gradient(operators);
  AllUses out;
  std::map<Source, at::Tensor> made;
  for (size_t i = 0; i < operators.operators().size(); ++i) {
    const Operator& op = operators.operators()[i];
    Tensors leaves;
    for (const Source& s : op.inputs) {
      const bool of_model = s.op == kModelInput;
      at::Tensor leaf = (of_model ? inputs.at(static_cast<size_t>(s.output)) : made.at(s)).detach();
      leaf.set_requires_grad(!of_model && wants[static_cast<size_t>(s.op)] &&
                             leaf.is_floating_point());
      leaves.push_back(std::move(leaf));
    }
    const KeptBuffers buffers(op);
    Tensors outputs;
    {
      const std::lock_guard lock(nn::generator_mutex());
      const at::AutoGradMode mode(wants[i]);
      outputs = op.run(leaves);
    }
    buffers.put_back();
    const auto number = static_cast<int>(i);
    if (wants[i]) note_uses(number, op, leaves, outputs, out);
    for (size_t k = 0; k < outputs.size(); ++k) {
      made[{number, static_cast<int>(k)}] = outputs[k].detach();
    }
  }
  return out;
}

std::string names_of(const OperatorGraph& operators, const Uses& uses) {
  std::string out;
  int last = kModelInput;
  for (auto use = uses.rbegin(); use != uses.rend(); ++use) {
    if (use->op == last) continue;
    last = use->op;
    out += (out.empty() ? "" : ", ") + operators.operators()[static_cast<size_t>(last)].name;
  }
  return out;
}

// Whether stages add the gradients of a tensor, which stage `maker` makes, as autograd does.
bool adds_in_order(const Uses& uses, const std::vector<int>& stage_of, int maker) {
  const auto stage = [&](const Use& use) { return stage_of[static_cast<size_t>(use.op)]; };
  // A stage that has no gradient sends zeros.
  for (const Use& use : uses) {
    if (use.times == 0 && stage(use) != maker) return false;
  }
  if (number_of(uses) <= 2) return true;
  for (size_t i = 1; i < uses.size(); ++i) {
    if (uses[i].times > 1 || uses[i].op == uses[i - 1].op) return false;
    if (stage(uses[i]) == maker) continue;
    const auto same = std::count_if(uses.begin(), uses.begin() + static_cast<ptrdiff_t>(i),
                                    [&](const Use& u) { return stage(u) == stage(uses[i]); });
    if (same != 0 && same != static_cast<ptrdiff_t>(i)) return false;
  }
  return true;
}

using Refuse = std::function<void(const Uses& uses, const std::string& what)>;

// In one process, who reads what an operator returns that is what it was given reads that, and its
// gradient stands where its own reader does.
void check_aliases(const AllUses& all, const Refuse& refuse, const OperatorGraph& operators) {
  struct Group {
    Uses uses;
    int64_t others = 0;     // uses that are no aliases
    bool branches = false;  // somebody beside an alias reads a tensor of it
  };
  std::map<Source, Group> groups;  // by the tensor that all others are
  std::map<Source, int64_t> of_aliases;
  for (const auto& [alias, source] : all.aliases) ++of_aliases[source];
  const auto root_of = [&](Source source) {
    for (auto at = all.aliases.find(source); at != all.aliases.end();
         at = all.aliases.find(source)) {
      source = at->second;
    }
    return source;
  };
  for (const auto& [source, uses] : all.tensors) {
    Group& group = groups[root_of(source)];
    group.uses.insert(group.uses.begin(), uses.begin(), uses.end());
    const auto aliases = of_aliases.find(source);
    const int64_t num_aliases = aliases == of_aliases.end() ? 0 : aliases->second;
    group.others += number_of(uses) - num_aliases;
    group.branches = group.branches || (num_aliases > 0 && number_of(uses) > 1);
  }
  for (const auto& [root, group] : groups) {
    if (!group.branches || group.others <= 2) continue;
    refuse(group.uses,
           "what " + operators.operators()[static_cast<size_t>(root.op)].name + " makes");
  }
}

}  // namespace

void check_exact(const Pipeline& pipeline, const OperatorGraph& operators, const Tensors& inputs) {
  const std::vector<int> stage_of = stages_of_operators(pipeline, operators);
  const AllUses all = uses_of(operators, inputs);
  const auto refuse = [&](const Uses& uses, const std::string& what) {
    fail(ErrorCode::invalid_argument,
         "train.pipeline_exact: operators {} use {}, and as they are divided among stages, its "
         "gradients would not be added in the order in which one process adds them; put them into "
         "one stage (train.pipelined.stages), or set train.pipeline_exact = false",
         names_of(operators, uses), what);
  };
  for (const auto& [source, uses] : all.tensors) {
    const auto maker = static_cast<size_t>(source.op);
    if (!adds_in_order(uses, stage_of, stage_of[maker])) {
      refuse(uses, "what " + operators.operators()[maker].name + " makes");
    }
  }
  check_aliases(all, refuse, operators);
  for (const auto& [name, uses] : all.parameters) {
    const bool once =
        std::all_of(uses.begin() + 1, uses.end(), [](const Use& use) { return use.times <= 1; });
    if (number_of(uses) > 2 && !once) refuse(uses, "parameter " + name);
  }
}

}  // namespace ductile::parallel
