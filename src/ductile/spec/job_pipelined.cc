#include <cstdint>
#include <vector>

#include "ductile/spec/job.h"

namespace ductile::spec {

void describe(Describer& d, PipelinedOptions& o) {
  d.field("replicas", o.replicas,
          "pipelines side by side, each with all stages and an equal part of every batch; "
          "train.virtual_ranks is this times the number of stages, or of their parts (tensor)")
      .range(1, 1 << 16);
  d.field("micro_batches", o.micro_batches,
          "equal parts of a pipeline's samples that pass through its stages")
      .range(1, 1 << 16);
  d.field("stages", o.stages,
          "each stage's operators, separated by spaces; `ductile train --plan` sets them; empty = "
          "as many as train.virtual_ranks says, of equal numbers of operators");
  d.field("orders", o.orders,
          "each stage's tasks, as in a plan: F2BFBFB2; W sums the gradients of weights; empty = "
          "one forward, one backward");
  d.field("recompute", o.recompute,
          "operators whose forward pass is repeated in the backward pass, to save memory");
  d.field("tensor", o.tensor,
          "each stage's parts, which divide the columns of its linear layers, with weights and "
          "state; each part is a virtual rank; `ductile train --plan` sets them; empty = 1")
      .range(1, 1 << 10);
  d.field(
       "trace_steps", o.trace_steps,
       "steps of which the stages' tasks are recorded with their times, in trace.json; they begin "
       "after the first three; 0 = none")
      .range(0, 100);
  d.field("stage_replicas", o.stage_replicas,
          "of each stage, how many replicas share each of its micro-batches in equal parts; "
          "train.virtual_ranks is their sum; `ductile train --plan` sets them; empty = one of each")
      .range(1, 1 << 16);
  d.field("model", o.model,
          "for which model the plan was made: its name, operators, parameters and samples; another "
          "model is refused; `ductile train --plan` sets it; empty = any that has the operators");
  d.field("replan_after", o.replan_after,
          "seconds that a run by a plan waits for lost workers, where those that are left have too "
          "little memory for its stages, before it is planned anew for these: by the same stages, "
          "which keep less, or where these have no room either by another plan, which changes the "
          "result from the last checkpoint on; 0 = it waits")
      .range(0, 1e6);
  d.field("replans", o.replans,
          "how often the result has become that of another plan, so or by one that the run was "
          "given; the run sets it, and a new run begins with 0")
      .range(0, 1 << 20);
}

bool same_result(const JobOptions& before, const JobOptions& now) {
  if (!is_pipelined(before) || !is_pipelined(now)) return false;
  if (before.train.pipeline_exact != now.train.pipeline_exact) return false;
  if (now.train.pipeline_exact) return batch_parts(before) == batch_parts(now);
  const PipelinedOptions &a = before.train.pipelined, &b = now.train.pipelined;
  if (a.replicas != b.replicas || a.micro_batches != b.micro_batches) return false;
  if (any_cut_will_do(before) && any_cut_will_do(now)) return true;
  const auto parts = [](const JobOptions& job) {  // ones say nothing
    return divides_tensors(job) ? job.train.pipelined.tensor : std::vector<int64_t>();
  };
  return before.train.virtual_ranks == now.train.virtual_ranks &&
         a.stage_replicas == b.stage_replicas && parts(before) == parts(now) &&
         a.stages == b.stages;
}

}  // namespace ductile::spec
