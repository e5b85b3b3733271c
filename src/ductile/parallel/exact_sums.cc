#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "ductile/base/error.h"
#include "ductile/parallel/exact_sums_impl.h"
#include "ductile/parallel/stage_executor.h"

namespace ductile::parallel {

using nn::NamedTensor;
using nn::Tensors;

ExactSums::ExactSums(const nn::OperatorGraph& graph, const std::vector<bool>& wants)
    : graph_(graph) {
  std::map<std::string, std::set<size_t>> holders;
  for (size_t i = 0; i < graph.operators().size(); ++i) {
    if (!wants[i]) continue;
    for (const NamedTensor& p : graph.operators()[i].parameters) {
      if (p.tensor.requires_grad()) holders[p.name].insert(i);
    }
  }
  for (const auto& [name, ops] : holders) {
    if (ops.size() > 1) shared_.insert(name);
  }
}

void ExactSums::add(int op, const std::vector<size_t>& which, const Tensors& found) {
  const at::NoGradGuard no_grad;
  const std::vector<NamedTensor>& parameters =
      graph_.operators()[static_cast<size_t>(op)].parameters;
  std::vector<OfParameter>& sums = parameters_[op];
  sums.resize(parameters.size());
  for (size_t n = 0; n < which.size(); ++n) {
    const NamedTensor& parameter = parameters[which[n]];
    OfParameter& of = sums[which[n]];
    const at::ScalarType type = sum_type(parameter.tensor.scalar_type());
    if (shared_.contains(parameter.name)) {
      // A copy, as of the others, whose memory is counted as that of sums.
      of.parts.push_back(found[n].defined() ? found[n].clone() : found[n]);
    } else if (found[n].defined()) {
      of.sum.push(found[n].to(type, /*non_blocking=*/false, /*copy=*/true));
    } else {
      of.sum.push(at::zeros(parameter.tensor.sizes(), at::TensorOptions(type)));
    }
  }
}

void ExactSums::add_buffers(int op) {
  const at::NoGradGuard no_grad;
  const std::vector<NamedTensor>& buffers = graph_.operators()[static_cast<size_t>(op)].buffers;
  std::vector<TensorTree>& sums = buffers_[op];
  sums.resize(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) sums[i].push(buffers[i].tensor.clone());
}

Tensors ExactSums::weights(int op, int64_t num_micro_batches) const {
  const auto found = parameters_.find(op);
  if (found == parameters_.end()) return {};
  const nn::Operator& o = graph_.operators()[static_cast<size_t>(op)];
  Tensors out;
  for (size_t i = 0; i < found->second.size(); ++i) {
    const OfParameter& of = found->second[i];
    const bool is_shared = shared_.contains(o.parameters[i].name);
    const int64_t came = is_shared ? std::ssize(of.parts) : of.sum.num_leaves();
    if (came != 0 && came != num_micro_batches) {
      fail(ErrorCode::conflict,
           "train.pipeline_exact: gradients of {} came from {} of {} micro-batches; operator {} "
           "depends on its values in a way that stages cannot sum exactly; set "
           "train.pipeline_exact = false",
           o.parameters[i].name, came, num_micro_batches, o.name);
    }
    out.push_back(of.sum.sum());
  }
  return out;
}

Tensors ExactSums::parts(int op, size_t parameter) const {
  const auto found = parameters_.find(op);
  if (found == parameters_.end() || parameter >= found->second.size()) return {};
  const Tensors& parts = found->second[parameter].parts;
  const auto defined = [](const at::Tensor& part) { return part.defined(); };
  return std::ranges::any_of(parts, defined) ? parts : Tensors();
}

Tensors ExactSums::buffers(int op) const {
  Tensors out;
  const auto found = buffers_.find(op);
  if (found == buffers_.end()) return out;
  for (const TensorTree& sum : found->second) out.push_back(sum.sum());
  return out;
}

void ExactSums::clear() {
  parameters_.clear();
  buffers_.clear();
}

}  // namespace ductile::parallel
