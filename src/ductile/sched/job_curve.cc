#include "ductile/sched/job_curve.h"

#include <algorithm>
#include <cmath>

#include "ductile/sched/hetero.h"
#include "ductile/sched/saved_state_impl.h"

namespace ductile::sched {

namespace {

constexpr size_t kMostApplications = 1 << 14, kMostTypes = 1024, kMostBuckets = 1 << 13;

size_t bucket(double progress) {
  return std::min(kMostBuckets - 1,
                  static_cast<size_t>(8 * std::log2(1 + std::max(0.0, progress))));
}
}  // namespace

void ApplicationModels::learn(const JobView& job) {
  if (job.application.empty()) return;
  bool anything = job.noise.has_value();
  for (const TypeModel& t : job.types) anything = anything || t.fitted;
  if (!anything) return;
  if (models_.size() == kMostApplications && !models_.contains(job.application)) models_.clear();
  ApplicationModel& model = models_[job.application];
  if (model.types.size() < job.types.size()) model.types.resize(job.types.size());
  for (size_t t = 0; t < job.types.size(); ++t)
    if (job.types[t].fitted && job.types[t].max_profiled >= model.types[t].max_profiled)
      model.types[t] = job.types[t];
  if (!job.noise) return;
  const size_t at = bucket(job.progress);
  if (model.noise.size() <= at) model.noise.resize(at + 1);
  model.noise[at] = job.noise;
}

std::optional<GradientNoise> ApplicationModel::noise_at(double progress) const {
  const size_t first = bucket(progress);
  for (size_t b = first; b < noise.size(); ++b)
    if (noise[b]) return noise[b];
  for (size_t b = std::min(first, noise.size()); b-- > 0;)
    if (noise[b]) return noise[b];
  return std::nullopt;
}

const ApplicationModel* ApplicationModels::find(const std::string& application) const {
  const auto found = models_.find(application);
  return found == models_.end() ? nullptr : &found->second;
}

nlohmann::json ApplicationModels::state() const {
  nlohmann::json out = nlohmann::json::object();
  for (const auto& [application, model] : models_) {
    nlohmann::json types = nlohmann::json::array(), noise = nlohmann::json::array();
    for (const TypeModel& type : model.types) types.push_back(to_json(type));
    for (size_t b = 0; b < model.noise.size(); ++b)
      if (model.noise[b]) noise.push_back({b, to_json(*model.noise[b])});
    out[application] = {{"types", std::move(types)}, {"noise", std::move(noise)}};
  }
  return out;
}

ApplicationModels ApplicationModels::from_state(const nlohmann::json& state,
                                                const std::string& where) {
  return as_data_loss([&] {
    if (!state.is_object() || state.size() > kMostApplications)
      fail(ErrorCode::data_loss, "{}: no object of at most 16384 applications", where);
    ApplicationModels out;
    for (const auto& [application, item] : state.items()) {
      const JsonFields f(item, fmt::format("{}: {}", where, application));
      f.only({"types", "noise"});
      ApplicationModel& model = out.models_[application];
      for (const nlohmann::json& type : f.array("types"))
        model.types.push_back(type_model_from(type, f.where()));
      if (model.types.size() > kMostTypes)
        f.wrong("types", "a list of at most 1024 types", f.at("types"));
      for (const nlohmann::json& entry : f.array("noise")) {
        if (!entry.is_array() || entry.size() != 2)
          f.wrong("noise", "a list of [place, noise]", entry);
        const auto at = static_cast<size_t>(f.as_integer(entry[0], "noise", 0, kMostBuckets - 1));
        if (model.noise.size() <= at) model.noise.resize(at + 1);
        model.noise[at] = noise_from(f, entry[1], "noise");
      }
    }
    return out;
  });
}

namespace {

// Plans are for a number of devices each, whatever is usual.
std::vector<int32_t> counts_of_plans(const JobView& job, const Pool& pool, int32_t least,
                                     int32_t most) {
  std::vector<int32_t> counts;
  for (const JobPlan& plan : job.plans)
    if (plan.type == pool.type && plan.devices >= least && plan.devices <= most &&
        plan.devices <= pool.devices)
      counts.push_back(plan.devices);
  std::ranges::sort(counts);
  const auto repeated = std::ranges::unique(counts);
  counts.erase(repeated.begin(), repeated.end());
  return counts;
}

// The sizes that a job is offered; `limit`: what was seen of it lets it grow so far.
std::vector<int32_t> counts_of(const JobView& job, const TypeModel& type, const Pool& pool,
                               int32_t least, int32_t most, int32_t limit) {
  std::vector<int32_t> counts;
  if (job.scaling == Scaling::rigid) {
    if (job.requested_devices <= pool.devices) counts.push_back(job.requested_devices);
    return counts;
  }
  if (!job.plans.empty()) return counts_of_plans(job, pool, least, most);
  counts = device_counts(pool, type.unit, least, std::min(most, std::max(least, limit)));
  if (!counts.empty()) return counts;
  // The least size is not one of the usual ones: the next that is.
  counts = device_counts(pool, type.unit, least, most);
  if (counts.size() > 1) counts.erase(counts.begin() + 1, counts.end());
  // No usual size is in between: the job asks for this one, or for nothing.
  const int32_t whole = (least + type.unit - 1) / type.unit * type.unit;
  if (counts.empty() && whole <= std::min<int64_t>(most, pool.devices)) counts.push_back(whole);
  return counts;
}

}  // namespace

std::vector<Configuration> configurations(const JobView& job, const ApplicationModel* application,
                                          std::span<const Pool> pools,
                                          std::span<const int32_t> per_node, double growth,
                                          const std::optional<GradientNoise>& noise) {
  // The job as it would look had it learned what its application's other jobs have.
  JobView known;
  known.scaling = job.scaling;
  known.requested_devices = job.requested_devices;
  known.requested_batch = job.requested_batch;
  known.min_devices = job.min_devices;
  known.max_devices = job.max_devices;
  known.types = job.types;
  known.plans = job.plans;
  if (application) {
    for (size_t t = 0; t < known.types.size() && t < application->types.size(); ++t) {
      const TypeModel& theirs = application->types[t];
      TypeModel& mine = known.types[t];
      if (!theirs.fitted || (mine.fitted && mine.max_profiled >= theirs.max_profiled)) continue;
      mine.fitted = true;
      mine.perf = theirs.perf;
      mine.steps = theirs.steps;
      mine.max_profiled = theirs.max_profiled;
    }
  }
  known.noise = noise.value_or(GradientNoise{1, 1});

  int32_t seen = 0;
  const TypeModel* any = nullptr;
  for (TypeModel& t : known.types) {
    if (t.fitted && t.unit_rate <= 0)
      t.unit_rate = t.limits.max_local / gradient_seconds(t.perf, t.limits.max_local);
    if (t.fitted) seen = std::max(seen, t.max_profiled);
    if (t.allowed && (t.fitted || t.unit_rate > 0) && (!any || t.fitted > any->fitted)) any = &t;
  }
  const bool anything = any != nullptr || !job.plans.empty();
  // A type of which nothing is known is taken for half as fast as one that is.
  std::vector<double> trust(known.types.size(), 1.0);
  if (any != nullptr) {
    const TypeModel model = *any;
    for (size_t t = 0; t < known.types.size(); ++t) {
      TypeModel& type = known.types[t];
      if (type.fitted || type.unit_rate > 0) continue;
      type.fitted = model.fitted;
      type.perf = model.perf;
      type.steps = model.steps;
      type.unit_rate = model.unit_rate;
      trust[t] = 0.5;
    }
  }
  std::vector<Configuration> result;
  for (size_t p = 0; p < pools.size(); ++p) {
    const Pool& pool = pools[p];
    const auto t = static_cast<size_t>(pool.type);
    if (t >= known.types.size() || !known.types[t].allowed || pool.devices <= 0) continue;
    const TypeModel& type = known.types[t];
    int32_t most = job.max_devices;
    if (type.max_useful > 0) most = std::min(most, type.max_useful);
    const int32_t least = std::max(job.min_devices, type.unit);
    const int32_t limit = job.plans.empty() ? static_cast<int32_t>(growth * seen) : most;
    for (const int32_t k : counts_of(job, type, pool, least, most, limit)) {
      Configuration c{static_cast<int32_t>(p), k, (k + pool.per_node - 1) / pool.per_node, 0};
      if (anything)
        c.rate = trust[t] * estimated_goodput(known, pool.type, c.nodes, k, per_node) /
                 std::max(1, type.limits.init_batch);
      else
        c.rate = k;
      if (c.rate > 0 && std::isfinite(c.rate)) result.push_back(c);
    }
  }
  return result;
}

}  // namespace ductile::sched
