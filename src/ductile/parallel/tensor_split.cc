#include "ductile/parallel/tensor_split.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include "ductile/base/error.h"

namespace ductile::parallel {
namespace {

using nn::kModelInput;
using nn::NamedTensor;
using nn::Operator;
using nn::OperatorGraph;
using nn::Source;

// The number of columns of an operator that declares how it is divided; 0 for any other.
int64_t num_columns(const Operator& op) {
  if (!op.columns.run || op.num_outputs != 1 || !op.buffers.empty()) return 0;
  DUCTILE_CHECK(op.columns.dims.size() == op.parameters.size(), "operator {} has {} parameters",
                op.name, op.parameters.size());
  for (size_t i = 0; i < op.parameters.size(); ++i) {
    if (op.columns.dims[i] >= 0) return op.parameters[i].tensor.size(op.columns.dims[i]);
  }
  return 0;
}

// Rewrites a graph operator by operator, in order.
class Splitter {
 public:
  Splitter(const OperatorGraph& operators, const Pipeline& pipeline,
           std::span<const int64_t> degrees)
      : operators_(operators),
        pipeline_(pipeline),
        stage_of_(stages_of_operators(pipeline, operators)) {
    for (size_t s = 0; s < pipeline.stages.size(); ++s) {
      const auto parts = static_cast<size_t>(degrees.empty() ? 1 : degrees[s]);
      first_part_.push_back(static_cast<int>(out_.stages.size()));
      out_.stages.insert(out_.stages.end(), parts, static_cast<int>(s));
      for (const int op : pipeline.stages[s].recompute) recompute_.insert(op);
    }
    for (const Operator& op : operators.operators()) {
      for (const NamedTensor& p : op.parameters) ++holders_[p.name];
    }
  }

  TensorSplit run() {
    const auto& ops = operators_.operators();
    std::vector<bool> divided(pipeline_.stages.size(), false);
    for (size_t op = 0; op < ops.size(); ++op) {
      const auto stage = static_cast<size_t>(stage_of_[op]);
      const bool divides = degree(stage) > 1 && can_divide(ops[op], degree(stage));
      if (divides) divided[stage] = true;
      if (divides) {
        divide(static_cast<int>(op));
      } else {
        keep(static_cast<int>(op));
      }
    }
    for (size_t s = 0; s < divided.size(); ++s) {
      if (degree(s) == 1 || divided[s]) continue;
      fail(ErrorCode::invalid_argument,
           "stage {} is to be divided among {} parts, and none of its operators can be: linear "
           "layers can that say how (those of the built-in models; add_dense and add_columns of "
           "nn::OperatorModel), with at least as many columns as parts and weights that no other "
           "operator holds; plan it with tensor = 1",
           s, degree(s));
    }
    std::vector<Source> results;
    for (const Source& source : operators_.results()) {
      const bool made = source.op != kModelInput;
      results.push_back(
          made ? read(source, static_cast<size_t>(stage_of_[static_cast<size_t>(source.op)]), 0)
               : source);
    }
    out_.graph.set_results(std::move(results));
    cut_into_chains();
    check(out_.pipeline, out_.graph);
    return std::move(out_);
  }

 private:
  int degree(size_t stage) const {
    const int end = stage + 1 < first_part_.size() ? first_part_[stage + 1] : out_.num_parts();
    return end - first_part_[stage];
  }

  bool can_divide(const Operator& op, int64_t parts) const {
    if (num_columns(op) < parts) return false;
    for (size_t i = 0; i < op.parameters.size(); ++i) {
      if (op.columns.dims[i] >= 0 && holders_.at(op.parameters[i].name) > 1) return false;
    }
    return true;
  }

  int add(Operator op, int part, bool recomputed) {
    const int number = out_.graph.add(std::move(op));
    part_of_.push_back(part);
    if (recomputed) recomputed_.insert(number);
    return number;
  }

  // The tensor where a part of a stage has it whole.
  Source read(const Source& source, size_t stage, int part) {
    const auto found = made_.find(source);
    if (found == made_.end()) return source;  // of the model
    const std::vector<Source>& slices = found->second;
    if (slices.size() == 1) return slices.front();
    const auto maker = static_cast<size_t>(source.op);
    // Other stages read what the first part has joined.
    const int reader = static_cast<size_t>(stage_of_[maker]) == stage ? part : 0;
    const std::pair<Source, int> key(source, reader);
    if (const auto place = joined_.find(key); place != joined_.end()) return place->second;
    Operator join;
    join.name = fmt::format("{}/joined/{}", operators_.operators()[maker].name, reader);
    join.kind = "join";
    join.inputs = slices;
    join.run = [](std::span<const at::Tensor> in) {
      return nn::Tensors{at::cat(at::TensorList(in.data(), in.size()), -1)};
    };
    const int owner = first_part_[static_cast<size_t>(stage_of_[maker])] + reader;
    const Source joined{add(std::move(join), owner, false), 0};
    joined_.emplace(key, joined);
    return joined;
  }

  std::vector<Source> inputs_of(const Operator& op, size_t stage, int part) {
    std::vector<Source> out;
    for (const Source& source : op.inputs) out.push_back(read(source, stage, part));
    return out;
  }

  void keep(int number) {
    Operator op = operators_.operators()[static_cast<size_t>(number)];
    const auto stage = static_cast<size_t>(stage_of_[static_cast<size_t>(number)]);
    op.inputs = inputs_of(op, stage, 0);
    const int outputs = op.num_outputs;
    const int now = add(std::move(op), first_part_[stage], recompute_.contains(number));
    for (int i = 0; i < outputs; ++i) made_[{number, i}].push_back({now, i});
    // The next one is the next one here, too, or nobody goes it.
    if (const auto* const both = operators_.shortcut(number)) out_.graph.add_shortcut(now, *both);
  }

  // Parts have equal numbers of columns, or one more than others.
  void divide(int number) {
    const Operator& whole = operators_.operators()[static_cast<size_t>(number)];
    const auto stage = static_cast<size_t>(stage_of_[static_cast<size_t>(number)]);
    const int64_t columns = num_columns(whole), parts = degree(stage);
    std::vector<Operator> pieces;
    for (int64_t p = 0; p < parts; ++p) {
      const int64_t begin = columns * p / parts, end = columns * (p + 1) / parts;
      Operator& piece = pieces.emplace_back();
      piece.name = fmt::format("{}/{}", whole.name, p);
      piece.kind = whole.kind;
      piece.random = whole.random;
      piece.inputs = inputs_of(whole, stage, static_cast<int>(p));
      nn::Tensors tensors;
      for (size_t i = 0; i < whole.parameters.size(); ++i) {
        piece.parameters.push_back(
            slice_of(whole.parameters[i], whole.columns.dims[i], p, begin, end));
        tensors.push_back(piece.parameters.back().tensor);
      }
      piece.run = [run = whole.columns.run, tensors = std::move(tensors),
                   begin](std::span<const at::Tensor> in) {
        return nn::Tensors{run(in, tensors, begin)};
      };
    }
    // After all joins that they read, so that they stand together.
    std::vector<Source>& slices = made_[{number, 0}];
    for (size_t p = 0; p < pieces.size(); ++p) {
      slices.push_back({add(std::move(pieces[p]), first_part_[stage] + static_cast<int>(p),
                            recompute_.contains(number)),
                        0});
    }
  }

  // Cut along `dim`; whole where that is -1.
  NamedTensor slice_of(const NamedTensor& whole, int dim, int64_t part, int64_t begin,
                       int64_t end) {
    if (dim < 0) return whole;
    const at::NoGradGuard no_grad;
    NamedTensor out = whole;
    out.name = fmt::format("{}/{}", whole.name, part);
    out.tensor = whole.tensor.narrow(dim, begin, end - begin).detach();
    out.tensor.set_requires_grad(whole.tensor.requires_grad());
    out_.slices[whole.name].push_back({out.name, whole.tensor, out.tensor, dim, begin});
    return out;
  }

  // The stages of the new pipeline: operators of one part that have seen as many changes of the
  // part on their way from where the stage of the plan begins.
  void cut_into_chains() {
    const auto& ops = out_.graph.operators();
    std::vector<int> changes(ops.size(), 0);
    // By stage; the keys are numbers of changes and parts.
    std::vector<std::map<std::pair<int, int>, std::vector<int>>> chains(pipeline_.stages.size());
    const auto plan_stage = [&](size_t op) {
      return static_cast<size_t>(out_.stages[static_cast<size_t>(part_of_[op])]);
    };
    for (size_t op = 0; op < ops.size(); ++op) {
      for (const Source& source : ops[op].inputs) {
        if (source.op == kModelInput) continue;
        const auto maker = static_cast<size_t>(source.op);
        if (plan_stage(maker) != plan_stage(op)) continue;
        const int crosses = part_of_[maker] != part_of_[op] ? 1 : 0;
        changes[op] = std::max(changes[op], changes[maker] + crosses);
      }
      chains[plan_stage(op)][{changes[op], part_of_[op]}].push_back(static_cast<int>(op));
    }
    out_.pipeline = pipeline_;
    out_.pipeline.stages.clear();
    for (size_t s = 0; s < chains.size(); ++s) {
      if (chains[s].empty()) keep_empty(s);
      for (auto& [key, own] : chains[s]) {
        Pipeline::Stage& stage = out_.pipeline.stages.emplace_back(pipeline_.stages[s]);
        stage.recompute.clear();
        for (const int op : own) {
          if (recomputed_.contains(op)) stage.recompute.push_back(op);
        }
        stage.ops = std::move(own);
        out_.parts.push_back(key.second);
      }
    }
  }

  // A stage without operators has its part, too.
  void keep_empty(size_t stage) {
    out_.pipeline.stages.push_back(pipeline_.stages[stage]);
    out_.parts.push_back(first_part_[stage]);
  }

  const OperatorGraph& operators_;
  const Pipeline& pipeline_;
  const std::vector<int> stage_of_;             // by operator as given
  std::vector<int> first_part_;                 // by stage of the plan
  std::map<std::string, int> holders_;          // numbers of operators, by parameter
  std::set<int> recompute_, recomputed_;        // operators as given, and as they are now
  std::map<Source, std::vector<Source>> made_;  // what was given, as it is now: whole or slices
  std::map<std::pair<Source, int>, Source> joined_;  // by tensor and part of its stage
  std::vector<int> part_of_;                         // by operator as it is now
  TensorSplit out_;
};

}  // namespace

std::vector<int> TensorSplit::parts_of_operators() const {
  std::vector<int> out = stages_of_operators(pipeline, graph);
  for (int& of : out) of = parts[static_cast<size_t>(of)];
  return out;
}

void TensorSplit::follow() const {
  for (const auto& [name, of_parameter] : slices) {
    for (const Slice& slice : of_parameter) {
      slice.tensor.set_requires_grad(slice.whole.requires_grad());
    }
  }
}

void TensorSplit::add_trace(const Trace& recorded, Trace& to) const {
  // The plan's stage, if the part is its first; or -1.
  const auto shown = [&](int stage) {
    const int part = parts[static_cast<size_t>(stage)];
    const int of_plan = stages[static_cast<size_t>(part)];
    const bool first = part == 0 || stages[static_cast<size_t>(part) - 1] != of_plan;
    return first ? of_plan : -1;
  };
  for (TraceInterval interval : recorded.intervals) {
    interval.stage = shown(interval.stage);
    if (interval.stage >= 0) to.intervals.push_back(interval);
  }
  std::map<int, int64_t> memory;
  for (const auto& [stage, bytes] : recorded.memory) {
    if (const int of_plan = shown(stage); of_plan >= 0) memory[of_plan] += bytes;
  }
  for (const auto& [stage, bytes] : memory) to.memory[stage] = bytes;
}

TensorSplit split_tensors(const OperatorGraph& operators, const Pipeline& pipeline,
                          std::span<const int64_t> degrees) {
  if (!degrees.empty() && degrees.size() != pipeline.stages.size()) {
    fail(ErrorCode::invalid_argument, "{} tensor degrees for {} stages", degrees.size(),
         pipeline.stages.size());
  }
  for (const int64_t degree : degrees) {
    if (degree < 1) fail(ErrorCode::invalid_argument, "a tensor degree of {}", degree);
  }
  if (std::ranges::all_of(degrees, [](int64_t degree) { return degree == 1; })) {
    TensorSplit out;
    out.graph = operators;
    out.pipeline = pipeline;
    for (size_t s = 0; s < pipeline.stages.size(); ++s) {
      out.parts.push_back(static_cast<int>(s));
      out.stages.push_back(static_cast<int>(s));
    }
    return out;
  }
  if (pipeline.is_replicated()) {
    fail(ErrorCode::invalid_argument,
         "stages that are divided among parts have no replicas of their own so far");
  }
  return Splitter(operators, pipeline, degrees).run();
}

}  // namespace ductile::parallel
