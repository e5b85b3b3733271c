#include "ductile/sched/hetero.h"

#include <algorithm>

namespace ductile::sched {
namespace {

double fitted_goodput(const JobView& job, const TypeModel& model, int32_t nodes, int32_t replicas) {
  const GradientNoise noise = job.noise.value_or(GradientNoise{});
  if (model.unit_batch > 0)  // a pipeline: each more is as many samples more
    return model.unit_batch * replicas > model.limits.max_batch
               ? 0
               : goodput(model.perf, noise, model.limits, nodes, replicas, model.unit_batch, 0);
  if (job.scaling == Scaling::adaptive && model.steps)
    return model.steps->best_batch(noise, model.limits, nodes, replicas).goodput;
  if (job.scaling == Scaling::adaptive)
    return best_batch(model.perf, noise, model.limits, nodes, replicas).goodput;
  const int32_t batch = job.requested_batch > 0 ? job.requested_batch : model.limits.init_batch;
  const BatchChoice split = split_batch(model.limits, replicas, batch);
  if (split.local_batch < 1) return 0;
  if (model.steps) {  // with what was measured since the fit
    const double done =
        static_cast<double>(replicas) * split.local_batch * (split.accumulation + 1);
    const double seconds =
        split.accumulation * model.steps->gradient_seconds(nodes, replicas, split.local_batch) +
        model.steps->step_seconds(nodes, replicas, split.local_batch);
    return done / seconds * efficiency(noise, done / model.limits.init_batch);
  }
  return goodput(model.perf, noise, model.limits, nodes, replicas, split.local_batch,
                 split.accumulation);
}

}  // namespace

double goodput(const JobPlan& plan, const GradientNoise& noise, int32_t init_batch) {
  return plan.samples_per_second * efficiency(noise, static_cast<double>(plan.batch) / init_batch);
}

int32_t best_plan(std::span<const JobPlan> plans, int32_t type, int32_t devices,
                  const GradientNoise& noise, int32_t init_batch) {
  int32_t best = -1;
  double most = 0;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].type != type || plans[i].devices != devices) continue;
    const double here = goodput(plans[i], noise, init_batch);
    if (here > most) most = here, best = static_cast<int32_t>(i);
  }
  return best;
}

int32_t reference_type(const JobView& job, int32_t type) {
  if (job.types[type].fitted) return type;
  for (size_t other = 0; other < job.types.size(); ++other)
    if (job.types[other].fitted) return static_cast<int32_t>(other);
  return -1;
}

double estimated_goodput(const JobView& job, int32_t type, int32_t nodes, int32_t devices,
                         std::span<const int32_t> per_node) {
  const TypeModel& model = job.types[type];
  if (!model.allowed || devices < model.unit) return 0;
  if (!job.plans.empty()) {
    const GradientNoise noise = job.noise.value_or(GradientNoise{});
    const int32_t plan = best_plan(job.plans, type, devices, noise, model.limits.init_batch);
    return plan < 0 ? 0
                    : goodput(job.plans[static_cast<size_t>(plan)], noise, model.limits.init_batch);
  }
  const int32_t replicas = devices / model.unit;
  const int32_t source = reference_type(job, type);
  if (source == type) return fitted_goodput(job, model, nodes, replicas);
  if (source < 0) return model.unit_rate * replicas;
  const TypeModel& other = job.types[source];
  if (other.unit_rate <= 0) return 0;
  const int32_t room = std::max(per_node[source], 1);
  const int32_t other_nodes = std::min((replicas * other.unit + room - 1) / room, replicas);
  return model.unit_rate / other.unit_rate * fitted_goodput(job, other, other_nodes, replicas);
}

}  // namespace ductile::sched
