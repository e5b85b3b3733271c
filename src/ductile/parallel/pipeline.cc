#include "ductile/parallel/pipeline.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "ductile/base/error.h"
#include "ductile/nn/generator.h"
#include "ductile/parallel/kept_buffers_impl.h"

namespace ductile::parallel {
namespace {

using nn::kModelInput;
using nn::Operator;
using nn::OperatorGraph;
using nn::Source;
using spec::Task;

void check_acyclic(const std::vector<Transfer>& transfers, size_t num_stages) {
  std::vector<std::set<int>> before(num_stages);
  for (const Transfer& t : transfers) before[static_cast<size_t>(t.to)].insert(t.from);
  std::set<int> left;
  for (size_t s = 0; s < num_stages; ++s) left.insert(static_cast<int>(s));
  while (!left.empty()) {
    const auto next = std::ranges::find_if(left, [&](int s) {
      return std::ranges::none_of(before[static_cast<size_t>(s)],
                                  [&](int b) { return left.contains(b); });
    });
    if (next == left.end()) {
      fail(ErrorCode::invalid_argument, "the stages form a cycle; stage {} is in it or behind it",
           *left.begin());
    }
    left.erase(next);
  }
}

// Micro-batches are taken in order within each kind, so counts tell all.
void check_order(const Pipeline& pipeline, size_t s) {
  int64_t done[3] = {};
  const auto& [forward, backward, weights] = done;
  for (const Task task : pipeline.stages[s].order) {
    ++done[static_cast<size_t>(task)];
    if (backward > forward || weights > backward) {
      fail(ErrorCode::invalid_argument,
           "stage {}: its order has a backward task before what it needs: {}", s,
           spec::to_letters(pipeline.stages[s].order));
    }
  }
  const int64_t m = pipeline.num_micro_batches;
  if (forward != m || backward != m || weights != (pipeline.split ? m : 0)) {
    fail(ErrorCode::invalid_argument,
         "stage {}: its order has {} F, {} B and {} W; {} micro-batches need {}, {} and {}", s,
         forward, backward, weights, m, m, m, pipeline.split ? m : 0);
  }
}

// Orders that are right by themselves may wait for one another, which no worker could notice that
// hosts one of them alone: they are carried out here without any work.
void check_order_ends(const Pipeline& pipeline, const std::vector<Transfer>& transfers) {
  struct Progress {
    size_t next = 0;
    int64_t forward = 0, backward = 0;
    std::set<size_t> before, behind;  // stages that bring tensors, and those that bring gradients
  };
  std::vector<Progress> stages(pipeline.stages.size());
  for (const Transfer& t : transfers) {
    stages[static_cast<size_t>(t.to)].before.insert(static_cast<size_t>(t.from));
    if (t.gradient) stages[static_cast<size_t>(t.from)].behind.insert(static_cast<size_t>(t.to));
  }
  const auto step = [&](Progress& s, Task task) {
    if (task == Task::forward) {
      if (std::ranges::any_of(s.before, [&](size_t b) { return stages[b].forward <= s.forward; })) {
        return false;
      }
      ++s.forward;
    } else if (task == Task::backward) {
      if (std::ranges::any_of(s.behind,
                              [&](size_t b) { return stages[b].backward <= s.backward; })) {
        return false;
      }
      ++s.backward;
    }
    ++s.next;
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t i = 0; i < stages.size(); ++i) {
      const std::vector<Task>& order = pipeline.stages[i].order;
      while (stages[i].next < order.size() && step(stages[i], order[stages[i].next])) moved = true;
    }
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    const std::vector<Task>& order = pipeline.stages[i].order;
    if (stages[i].next == order.size()) continue;
    fail(ErrorCode::invalid_argument,
         "the orders of the stages wait for one another: stage {} never comes to task {} of {}; "
         "let it do more forward tasks first, or plan anew",
         i, stages[i].next + 1, spec::to_letters(order));
  }
}

}  // namespace

std::vector<int> stages_of_operators(const Pipeline& pipeline, const OperatorGraph& operators) {
  const auto& ops = operators.operators();
  std::vector<int> stage(ops.size(), -1);
  for (size_t s = 0; s < pipeline.stages.size(); ++s) {
    for (const int op : pipeline.stages[s].ops) {
      if (op < 0 || static_cast<size_t>(op) >= ops.size()) {
        fail(ErrorCode::invalid_argument, "stage {}: there is no operator {}; the model has {}", s,
             op, ops.size());
      }
      int& of = stage[static_cast<size_t>(op)];
      if (of >= 0) {
        fail(ErrorCode::invalid_argument, "operator {} is in stage {} and in stage {}",
             ops[static_cast<size_t>(op)].name, of, s);
      }
      of = static_cast<int>(s);
    }
  }
  for (size_t op = 0; op < ops.size(); ++op) {
    if (stage[op] < 0) {
      fail(ErrorCode::invalid_argument, "operator {} is in no stage", ops[op].name);
    }
  }
  return stage;
}

std::vector<Transfer> transfers_of(const Pipeline& pipeline, const OperatorGraph& operators) {
  const std::vector<int> stage = stages_of_operators(pipeline, operators);
  const std::vector<bool> wants = StageExecutor::wants_gradient(operators);
  struct Reader {
    int last = 0;
    bool gradient = false;
  };
  std::map<std::pair<Source, int>, Reader> readers;  // of each stage
  for (size_t op = 0; op < operators.operators().size(); ++op) {
    for (const Source& s : operators.operators()[op].inputs) {
      if (s.op == kModelInput || stage[static_cast<size_t>(s.op)] == stage[op]) continue;
      Reader& reader = readers[{s, stage[op]}];
      reader.last = static_cast<int>(op);
      reader.gradient = reader.gradient || wants[op];
    }
  }
  std::vector<Transfer> out;
  for (const auto& [key, reader] : readers) {
    const auto& [source, to] = key;
    out.push_back({source, stage[static_cast<size_t>(source.op)], to, reader.last,
                   reader.gradient && wants[static_cast<size_t>(source.op)]});
  }
  return out;
}

void check(const Pipeline& pipeline, const OperatorGraph& operators) {
  if (pipeline.num_micro_batches < 1) {
    fail(ErrorCode::invalid_argument, "a pipeline needs micro-batches; there are {}",
         pipeline.num_micro_batches);
  }
  for (size_t s = 0; s < pipeline.stages.size(); ++s) {
    if (pipeline.stages[s].replicas >= 1) continue;
    fail(ErrorCode::invalid_argument, "stage {} has {} replicas; a stage has at least one", s,
         pipeline.stages[s].replicas);
  }
  if (pipeline.exact && pipeline.is_replicated()) {
    fail(ErrorCode::invalid_argument,
         "train.pipeline_exact: the replicas of a stage share each micro-batch, which is then no "
         "virtual rank; give each stage one replica, or set train.pipeline_exact = false");
  }
  const std::vector<Transfer> transfers = transfers_of(pipeline, operators);
  check_acyclic(transfers, pipeline.stages.size());
  for (size_t s = 0; s < pipeline.stages.size(); ++s) check_order(pipeline, s);
  check_order_ends(pipeline, transfers);
}

TensorForms tensor_forms(const OperatorGraph& operators, const nn::Tensors& inputs) {
  const at::NoGradGuard no_grad;
  std::map<Source, at::Tensor> made;
  TensorForms out;
  for (size_t i = 0; i < operators.operators().size(); ++i) {
    const Operator& op = operators.operators()[i];
    nn::Tensors in;
    for (const Source& s : op.inputs) {
      in.push_back(s.op == kModelInput ? inputs.at(static_cast<size_t>(s.output)) : made.at(s));
    }
    const KeptBuffers buffers(op);
    // Others draw what they are seeded for, perhaps in another thread.
    std::unique_lock<std::mutex> draws;
    if (op.random) draws = std::unique_lock(nn::generator_mutex());
    const nn::Tensors result = op.run(in);
    buffers.put_back();
    for (size_t k = 0; k < result.size(); ++k) {
      const Source source{static_cast<int>(i), static_cast<int>(k)};
      const at::Tensor dense =
          result[k].is_non_overlapping_and_dense() ? result[k] : result[k].contiguous();
      out[source] = {dense.sizes().vec(), dense.strides().vec(), dense.scalar_type()};
      made[source] = result[k];
    }
  }
  return out;
}

}  // namespace ductile::parallel
