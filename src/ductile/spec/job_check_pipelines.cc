#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "ductile/spec/job.h"
#include "ductile/spec/job_check_impl.h"
#include "ductile/spec/model_identity.h"

namespace ductile::spec {
namespace {

// The micro-batches are leaves of the canonical tree over virtual ranks: where there are several
// pipelines, each has to be a node of it, and so has each sum over them.
void check_exact_pipelines(const JobOptions& job, const Bad& bad) {
  if (!job.train.pipeline_exact) return;
  if (!is_pipelined(job)) {
    bad(
        fmt::format("train.pipeline_exact = true needs train.method = \"pipelined\", and it is "
                    "\"{}\"",
                    job.train.method));
  }
  if (job.train.reduction != "canonical") {
    bad(
        fmt::format("train.pipeline_exact = true needs train.reduction = \"canonical\": \"{}\" has "
                    "no bits that stay",
                    job.train.reduction));
  }
  const PipelinedOptions& o = job.train.pipelined;
  const auto is_power = [](int64_t n) { return std::has_single_bit(static_cast<uint64_t>(n)); };
  if (o.replicas > 1 && !is_power(o.micro_batches)) {
    bad(
        fmt::format("train.pipeline_exact = true with several replicas needs a number of "
                    "micro-batches that is a power of two, and train.pipelined.micro_batches = {}: "
                    "gradients would be added in another order than those of virtual ranks",
                    o.micro_batches));
  }
  if (o.replicas > 2 && !is_power(num_stages(job))) {
    bad(
        fmt::format("train.pipeline_exact = true with more than two replicas needs a number of "
                    "stages that is a power of two, and there are {}: gradients would be added in "
                    "another order than those of virtual ranks",
                    num_stages(job)));
  }
}

void check_tensor(const JobOptions& job, const Bad& bad) {
  const PipelinedOptions& o = job.train.pipelined;
  if (!o.stage_replicas.empty()) {
    bad("train.pipelined.tensor does not fit train.pipelined.stage_replicas: stages that are "
        "divided have as many replicas as all others so far; leave one of the two out");
  }
  if (!o.stages.empty() && o.stages.size() != o.tensor.size()) {
    bad(
        fmt::format("train.pipelined.tensor has {} numbers for {} stages; give one for each, or "
                    "none",
                    o.tensor.size(), o.stages.size()));
  }
  const int64_t parts = std::accumulate(o.tensor.begin(), o.tensor.end(), int64_t{0});
  if (parts * o.replicas != job.train.virtual_ranks) {
    bad(
        fmt::format("train.pipelined.tensor has {} parts of stages, train.pipelined.replicas = {} "
                    "and train.virtual_ranks = {}; each part of each pipeline is a virtual rank, "
                    "so set train.virtual_ranks = {}",
                    parts, o.replicas, job.train.virtual_ranks, parts * o.replicas));
  }
  if (job.train.pipeline_exact && divides_tensors(job)) {
    bad("train.pipeline_exact = true needs train.pipelined.tensor = []: gradients of what the "
        "parts of a stage read are added part by part, which is another order than that of one "
        "process");
  }
}

// Replicas of a stage share its micro-batches.
void check_stage_replicas(const JobOptions& job, const Bad& bad) {
  const PipelinedOptions& o = job.train.pipelined;
  const std::vector<int64_t>& each = o.stage_replicas;
  if (each.empty()) return;
  if (o.replicas > 1) {
    bad(
        fmt::format("train.pipelined.stage_replicas and train.pipelined.replicas = {}: replicas of "
                    "stages are those of one pipeline; leave one of the two out",
                    o.replicas));
  }
  if (job.train.pipeline_exact) {
    bad("train.pipeline_exact = true does not fit train.pipelined.stage_replicas: the replicas of "
        "a stage share each micro-batch, which is then no virtual rank; leave one of the two out");
  }
  if (!o.stages.empty() && o.stages.size() != each.size()) {
    bad(
        fmt::format("train.pipelined.stage_replicas has {} numbers for {} stages; give one for "
                    "each, or none",
                    each.size(), o.stages.size()));
  }
  const int64_t all = std::accumulate(each.begin(), each.end(), int64_t{0});
  if (all != job.train.virtual_ranks) {
    bad(
        fmt::format("train.pipelined.stage_replicas are {} replicas, and train.virtual_ranks = {}; "
                    "each is a virtual rank, so set train.virtual_ranks = {}",
                    all, job.train.virtual_ranks, all));
  }
  const int64_t samples = job.train.batch_size / o.micro_batches;
  for (size_t s = 0; s < each.size(); ++s) {
    if (samples % each[s] == 0) continue;
    bad(
        fmt::format("train.pipelined.stage_replicas: the {} replicas of stage {} do not divide the "
                    "{} samples of a micro-batch (train.batch_size = {} in "
                    "train.pipelined.micro_batches = {}); each has an equal part of them",
                    each[s], s, samples, job.train.batch_size, o.micro_batches));
  }
}

void check_pipelined(const JobOptions& job, const Bad& bad) {
  if (!is_pipelined(job)) return;
  const PipelinedOptions& o = job.train.pipelined;
  check_stage_replicas(job, bad);
  const int64_t ranks = job.train.virtual_ranks;
  const auto given = static_cast<int64_t>(o.stages.size());
  if (!o.tensor.empty()) {
    check_tensor(job, bad);
  } else if (given > 0 && o.stage_replicas.empty() && given * o.replicas != ranks) {
    bad(
        fmt::format("train.pipelined.stages has {} stages, train.pipelined.replicas = {} and "
                    "train.virtual_ranks = {}; each stage of each pipeline is a virtual rank, so "
                    "set train.virtual_ranks = {}",
                    given, o.replicas, ranks, given * o.replicas));
  }
  if (ranks % o.replicas != 0) {
    bad(
        fmt::format("train.virtual_ranks = {} is not divisible by train.pipelined.replicas = {}: "
                    "each stage of each pipeline is a virtual rank",
                    ranks, o.replicas));
  }
  (void)model_identity(o.model);  // throws where it is none
  const auto orders = static_cast<int64_t>(o.orders.size());
  if (orders > 0 && orders != num_stages(job)) {
    bad(
        fmt::format("train.pipelined.orders has {} orders for {} stages; give one for each, or "
                    "none",
                    orders, num_stages(job)));
  }
  const auto needs = [&](bool has, const char* what, const char* why) {
    if (!has) bad(fmt::format("train.method = \"pipelined\" needs {}: {}", what, why));
  };
  needs(job.train.rate_control == "schedule", "train.rate_control = \"schedule\"",
        "the other controls compare the gradients of parts of a batch, or probe the loss");
  needs(job.train.bn_group == 1, "train.bn_group = 1", "a micro-batch is normalised by itself");
  needs(job.train.staleness == 0, "train.staleness = 0",
        "its virtual ranks are stages and not parts of a batch");
  needs(!job.tune.online, "tune.online = false", "the tuner's trials are not run by stages");
}

}  // namespace

void check_pipelines(const JobOptions& job, const Bad& bad) {
  check_pipelined(job, bad);
  check_exact_pipelines(job, bad);
}

}  // namespace ductile::spec
