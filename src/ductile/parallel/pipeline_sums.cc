#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "ductile/parallel/pipeline.h"
#include "ductile/parallel/pipeline_mail_impl.h"
#include "ductile/parallel/tensor_tree.h"

// What the micro-batches of a run come to: sums of gradients and of buffers.
namespace ductile::parallel {
namespace {

using nn::Operator;
using nn::Tensors;

// What operators have of a parameter, by row: of an exact pipeline a row for each micro-batch,
// where several hold the parameter, else one. They are added from the last operator on.
at::Tensor sum_of_row(const std::map<int, Tensors>& of_op, size_t row) {
  at::Tensor sum;
  for (auto part = of_op.rbegin(); part != of_op.rend(); ++part) {
    if (part->second.size() <= row || !part->second[row].defined()) continue;
    sum = sum.defined() ? sum.add(part->second[row]) : part->second[row];
  }
  return sum;
}

}  // namespace

// The sums of each parameter, over all operators that hold it. Stages that share a parameter send
// each other what their operators have, so that all add the same in the same order.
void PipelineHost::sum_gradients() {
  const auto& ops = operators_.operators();
  Parts parts;
  std::map<std::string, std::set<int>> holders;  // ranks
  std::map<std::string, const at::Tensor*> tensors;
  for (size_t op = 0; op < ops.size(); ++op) {
    if (!wants_[op]) continue;
    for (const nn::NamedTensor& p : ops[op].parameters) {
      if (!p.tensor.requires_grad()) continue;
      holders[p.name].insert(placement_.hosts[static_cast<size_t>(stage_of_[op])]);
      parts[p.name][static_cast<int>(op)] = {};
      tensors[p.name] = &p.tensor;
    }
  }
  for (const auto& stage : stages_) {
    for (const int op : stage->executor.ops()) {
      const Tensors sums = stage->executor.weight_gradients(op);
      for (size_t i = 0; i < sums.size(); ++i) {
        const auto of_op = parts.find(ops[static_cast<size_t>(op)].parameters[i].name);
        if (of_op == parts.end()) continue;  // it is not trained
        if (pipeline_.exact && of_op->second.size() > 1) {
          of_op->second[op] = stage->executor.weight_parts(op, i);
        } else if (sums[i].defined()) {
          of_op->second[op] = {sums[i]};
        }
      }
    }
  }
  exchange_tied(parts, holders, tensors);
  const at::NoGradGuard no_grad;
  for (const auto& [name, of_op] : parts) {
    if (!holders[name].contains(placement_.rank)) continue;
    at::Tensor sum;
    if (pipeline_.exact && of_op.size() > 1) {
      TensorTree tree;
      for (size_t m = 0; m < static_cast<size_t>(pipeline_.num_micro_batches); ++m) {
        const at::Tensor row = sum_of_row(of_op, m);
        if (!row.defined()) continue;
        tree.push(row.to(sum_type(row.scalar_type()), /*non_blocking=*/false, /*copy=*/true));
      }
      sum = tree.sum();
    } else {
      sum = sum_of_row(of_op, 0);
    }
    if (sum.defined()) gradients_[name] = sum;
  }
}

void PipelineHost::sum_buffers() {
  for (const auto& stage : stages_) {
    for (const int op : stage->executor.ops()) {
      const Tensors sums = stage->executor.buffer_sums(op);
      const Operator& o = operators_.operators()[static_cast<size_t>(op)];
      for (size_t i = 0; i < sums.size(); ++i) buffers_[o.buffers[i].name] = sums[i];
    }
  }
}

// Each part by itself: what stages and replicas have of a parameter is added by whoever adds the
// parts.
void PipelineHost::keep_outcomes() {
  const at::NoGradGuard no_grad;
  const auto& ops = operators_.operators();
  for (const auto& stage : stages_) {
    PartOutcome& out = outcomes_[stage->part];
    std::map<std::string, std::map<int, Tensors>> by_name;
    for (const int op : stage->executor.ops()) {
      const Tensors sums = stage->executor.weight_gradients(op);
      for (size_t i = 0; i < sums.size(); ++i) {
        const nn::NamedTensor& parameter = ops[static_cast<size_t>(op)].parameters[i];
        if (!sums[i].defined() || !parameter.tensor.requires_grad()) continue;
        by_name[parameter.name][op] = {sums[i]};
      }
    }
    for (const auto& [name, of_op] : by_name) out.gradients[name] = sum_of_row(of_op, 0);
    if (!stage->lends) stage->buffers->take_back();
    out.buffers = stage->buffers->values();
    out.results = std::move(stage->results);
    stage->buffers->restore();
  }
}

void PipelineHost::forget() {
  gradients_.clear();
  buffers_.clear();
  outcomes_.clear();
  for (const auto& stage : stages_) stage->executor.clear();
}

void PipelineHost::exchange_tied(Parts& parts, const std::map<std::string, std::set<int>>& holders,
                                 const std::map<std::string, const at::Tensor*>& tensors) {
  struct Awaited {
    int host;
    uint32_t tag;
    Tensors* rows;
  };
  std::vector<Awaited> awaited;
  const auto num_rows = static_cast<size_t>(pipeline_.exact ? pipeline_.num_micro_batches : 1);
  auto tag = placement_.first_tag + static_cast<uint32_t>(pieces_.size()) * 2;
  for (auto& [name, of_op] : parts) {
    const std::set<int>& ranks = holders.at(name);
    for (auto& [op, rows] : of_op) {
      const uint32_t own_tag = tag++;  // the same on all ranks
      if (ranks.size() < 2 || !ranks.contains(placement_.rank)) continue;
      const int host = placement_.hosts[static_cast<size_t>(stage_of_[static_cast<size_t>(op)])];
      const at::Tensor& like = *tensors.at(name);
      const at::TensorOptions type(pipeline_.exact ? like.scalar_type()
                                                   : sum_type(like.scalar_type()));
      rows.resize(num_rows);
      if (host != placement_.rank) {
        for (at::Tensor& row : rows) row = at::empty(like.sizes(), type);
        awaited.push_back({host, own_tag, &rows});
        continue;
      }
      const at::NoGradGuard no_grad;
      for (at::Tensor& row : rows) {
        // Where nothing came, an exact sum gets what changes nothing, not even the sign of a zero.
        row = row.defined() ? row.contiguous()
                            : at::full(like.sizes(), pipeline_.exact ? -0.0 : 0.0, type);
        for (const int rank : ranks) {
          if (rank == host) continue;
          mail_->sent.emplace_back(
              placement_.communicator->start_send(rank, own_tag, bytes_of(row)), row);
        }
      }
    }
  }
  for (size_t m = 0; m < num_rows; ++m) {
    std::vector<comm::Engine::Work> received;
    for (const Awaited& a : awaited) {
      received.push_back(
          placement_.communicator->start_receive(a.host, a.tag, bytes_of((*a.rows)[m])));
    }
    for (const comm::Engine::Work& work : received) work.wait();
  }
}

}  // namespace ductile::parallel
