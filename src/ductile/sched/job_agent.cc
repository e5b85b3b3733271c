#include "ductile/sched/job_agent.h"

#include <algorithm>
#include <cmath>

#include "ductile/base/json_fields.h"
#include "ductile/sched/hetero.h"
#include "ductile/sched/saved_state_impl.h"

namespace ductile::sched {
namespace {

using nlohmann::json;

constexpr double kLeastNoise = 1e-30, kMostNoise = 1e30;

bool is_possible(const GradientNoise& noise) {
  return noise.sqr >= 0 && noise.sqr <= kMostNoise && noise.var >= 0 && noise.var <= kMostNoise;
}

void check(const AgentFacts& facts) {
  DUCTILE_CHECK(facts.requested_replicas >= 1 && facts.requested_batch >= 1 &&
                    facts.pipeline_batch >= 0 && facts.most_devices >= 0,
                "a job that asks for {} replicas and batch {}", facts.requested_replicas,
                facts.requested_batch);
  for (const JobPlan& plan : facts.plans)
    DUCTILE_CHECK(plan.type >= 0 && plan.type < static_cast<int32_t>(facts.types.size()) &&
                      plan.devices >= 1 && plan.batch >= 1 && plan.samples_per_second > 0,
                  "a plan for {} devices of type {}, batch {}, {} samples/s", plan.devices,
                  plan.type, plan.batch, plan.samples_per_second);
  for (const AgentType& type : facts.types)
    DUCTILE_CHECK(type.unit >= 0 && type.limits.min_local >= 1 && type.limits.max_local >= 1 &&
                      type.limits.init_batch >= 1 && type.limits.max_batch >= 1,
                  "device type {}: a unit of {} devices, or a batch below 1", type.name, type.unit);
}

}  // namespace

JobAgent::JobAgent(AgentFacts facts, const PolicyTraits& traits, FitCache& fits,
                   SharedMeasurements* shared)
    : facts_(std::move(facts)),
      traits_(traits),
      fits_(fits),
      shared_(traits.measures && !facts_.application.empty() ? shared : nullptr),
      scaling_(std::min(facts_.scaling, traits.uses)) {
  check(facts_);
  if (is_pipeline() && !traits.scales_pipelines) scaling_ = Scaling::rigid;
  if (!facts_.plans.empty() && !traits.sees_plans) scaling_ = Scaling::rigid;
  for (const AgentType& type : facts_.types) {
    measured_.push_back(shared_ ? shared_->of(facts_.application, type.name)
                                : std::make_shared<Measurements>());
    if (!measured_.back()->samples().empty()) shared_->keep(facts_.application, type.name);
  }
}

// Rises with whatever the choice of a batch depends on.
uint32_t JobAgent::version() const { return version_ + speeds_version(); }

uint32_t JobAgent::speeds_version() const {
  uint32_t version = 0;
  for (const auto& measured : measured_) version += measured->version();
  return version;
}

void JobAgent::refresh(int32_t type) {
  if (learns()) measured_[type]->refresh(fits_, traits_.measures);
}

Observed JobAgent::observe(int32_t type, const StepSample& steps) {
  Observed what = Observed::refused;
  if (type >= 0 && type < static_cast<int32_t>(measured_.size()) && facts_.types[type].unit > 0)
    what = measured_[type]->add(steps, traits_.measures || facts_.averages);
  if (what == Observed::fresh && shared_)
    shared_->keep(facts_.application, facts_.types[static_cast<size_t>(type)].name);
  refused_ += what == Observed::refused;
  return what;
}

Observed JobAgent::observe(const GradientNoise& noise) {
  if (!is_possible(noise)) {
    ++refused_;
    return Observed::refused;
  }
  const GradientNoise seen = traits_.measures ? smooth(noise) : noise;
  const Observed what = noise_ == seen ? Observed::known : Observed::fresh;
  if (what == Observed::fresh) ++version_;
  noise_ = seen;
  return what;
}

// A noise scale that moves one way is followed; one that goes up and down about a level (steps that
// undo the one before, as those of a level with white noise do by one half) is averaged.
GradientNoise JobAgent::smooth(const GradientNoise& seen) {
  const double sqr = std::max(seen.sqr, kLeastNoise);
  const double now = std::log(std::max(seen.var, kLeastNoise) / sqr);
  Smoothing& s = smoothing_;
  if (!noise_) {
    s.level = s.read = now;
    return seen;
  }
  const double step = now - s.read;
  s.square = 0.8 * s.square + step * step;
  s.product = 0.8 * s.product + step * s.step;
  s.read = now;
  s.step = step;
  const double undone = s.square > 0 ? -s.product / s.square : 0;
  s.level += std::clamp(1 - 2 * undone, 0.2, 1.0) * (now - s.level);
  return {seen.sqr, sqr * std::exp(s.level)};
}

BatchChoice JobAgent::search(const AgentShape& shape) const {
  BatchLimits limits = facts_.types[shape.type].limits;
  if (shape.max_local > 0) limits.max_local = shape.max_local;
  BatchChoice choice;
  if (scaling_ == Scaling::adaptive) {
    const Measurements& known = *measured_[shape.type];
    if (known.steps() && noise_)
      choice = known.steps()->best_batch(*noise_, limits, shape.nodes, shape.replicas);
    else if (known.perf() && noise_)
      choice = best_batch(*known.perf(), *noise_, limits, shape.nodes, shape.replicas);
    if (choice.local_batch == 0)
      choice = split_batch(limits, shape.replicas,
                           std::max(limits.init_batch, limits.min_local * shape.replicas));
  } else {
    choice = split_batch(limits, shape.replicas, facts_.requested_batch);
  }
  const int32_t count = shape.replicas * (choice.accumulation + 1);
  choice.local_batch = std::max(std::min(choice.local_batch, limits.max_batch / count), 1);
  return choice;
}

// The published update_local_bsz of Pollux and Sia.
BatchChoice JobAgent::choose_batch(const AgentShape& shape) {
  DUCTILE_CHECK(shape.type >= 0 && shape.type < static_cast<int32_t>(measured_.size()) &&
                    shape.nodes >= 1 && shape.replicas >= 1,
                "{} replicas on {} nodes of type {}", shape.replicas, shape.nodes, shape.type);
  if (is_pipeline()) return {0, facts_.pipeline_batch, 0};
  refresh(shape.type);
  if (!choice_ || chosen_version_ != version() || chosen_for_ != shape) {
    choice_ = search(shape);
    chosen_for_ = shape;
    chosen_version_ = version();
  }
  return *choice_;
}

int32_t JobAgent::choose_plan(int32_t type, int32_t devices) const {
  if (type < 0 || type >= static_cast<int32_t>(facts_.types.size())) return -1;
  return best_plan(facts_.plans, type, devices, noise_.value_or(GradientNoise{1, 1}),
                   facts_.types[static_cast<size_t>(type)].limits.init_batch);
}

// On the type on which what was asked for takes the fewest devices.
int32_t JobAgent::requested_devices() const {
  int32_t least = 0;
  for (const AgentType& type : facts_.types)
    if (is_pipeline() && type.unit > 0 && (least == 0 || type.unit < least)) least = type.unit;
  return facts_.requested_replicas * std::max(least, 1);
}

void JobAgent::describe(JobView& view) const {
  view.application = facts_.application;
  view.scaling = scaling_;
  view.requested_devices = requested_devices();
  view.requested_batch = facts_.requested_batch;
  view.types.resize(facts_.types.size());
  if (traits_.sees_plans) view.plans = facts_.plans;
  int32_t most = 1;
  for (const JobPlan& plan : facts_.plans) most = std::max(most, plan.devices);
  for (size_t t = 0; t < facts_.types.size(); ++t) {
    const AgentType& type = facts_.types[t];
    TypeModel& model = view.types[t];
    model.limits = type.limits;
    model.allowed = type.unit > 0;
    model.unit = std::max(type.unit, 1);
    model.unit_batch = facts_.pipeline_batch;
    model.unit_rate = type.unit_rate;
    if (scaling_ == Scaling::rigid) {
      model.max_useful = view.requested_devices;
      if (is_pipeline())
        model.allowed =
            model.allowed && model.unit * facts_.requested_replicas == view.requested_devices;
      if (!facts_.plans.empty())
        model.allowed = choose_plan(static_cast<int32_t>(t), view.requested_devices) >= 0;
      continue;
    }
    if (!facts_.plans.empty()) continue;
    const int32_t batch =
        scaling_ == Scaling::strong ? facts_.requested_batch : type.limits.max_batch;
    model.max_useful = model.unit * std::max(batch / type.limits.min_local, 1);
    if (facts_.most_devices > 0) model.max_useful = std::min(model.max_useful, facts_.most_devices);
    most = std::max(most, model.max_useful);
  }
  view.min_devices = scaling_ == Scaling::rigid ? view.requested_devices : 1;
  view.max_devices = scaling_ == Scaling::rigid ? view.requested_devices : most;
}

void JobAgent::models(JobView& view) {
  for (size_t t = 0; t < measured_.size(); ++t) refresh(static_cast<int32_t>(t));
  if (view.model_version == version() && view.noise == noise_) return;
  view.noise = noise_;
  for (size_t t = 0; t < measured_.size(); ++t) {
    TypeModel& model = view.types[t];
    const Measurements& known = *measured_[t];
    model.max_profiled = known.most_replicas() * facts_.types[t].unit;
    model.fitted = known.perf().has_value();
    if (model.fitted) model.perf = *known.perf();
    model.steps = known.steps();
  }
  view.model_version = version();
  view.speeds_version = speeds_version();
}

json JobAgent::state() const {
  const Smoothing& s = smoothing_;
  json out = {{"version", version_},
              {"refused", refused_},
              {"smoothing", {s.level, s.read, s.step, s.square, s.product}}};
  if (noise_) out["noise"] = {noise_->sqr, noise_->var};
  if (shared_) return out;
  out["types"] = json::array();
  for (const auto& measured : measured_) out["types"].push_back(measured->state());
  return out;
}

void JobAgent::restore(const json& state, const std::string& where) {
  as_data_loss([&] {
    const JsonFields f(state, where);
    f.only({"version", "refused", "smoothing", "noise", "types"});
    const auto version = static_cast<uint32_t>(f.integer("version", 0, UINT32_MAX));
    const int64_t refused = f.integer("refused", 0, INT64_MAX);
    const auto numbers = [&](const char* key, size_t count, double least, double most) {
      std::vector<double> out;
      for (const json& v : f.array(key)) out.push_back(f.as_number(v, key, least, most));
      if (out.size() != count) f.wrong(key, "a list of as many numbers as was saved", f.at(key));
      return out;
    };
    const std::vector<double> s = numbers("smoothing", 5, -1e6, 1e6);
    std::optional<GradientNoise> noise;
    if (f.has("noise")) {
      // The smoothed variance may be above every reading.
      const std::vector<double> pair = numbers("noise", 2, 0, kMostNoise * kMostNoise * kMostNoise);
      noise = GradientNoise{pair[0], pair[1]};
    }
    std::vector<Measurements> measured;
    if (!shared_) {
      for (const json& item : f.array("types"))
        measured.push_back(Measurements::from_state(
            item, fmt::format("{}: device type {}", where, measured.size())));
      if (measured.size() != measured_.size())
        f.wrong("types", "a list of as many as the job has types", f.at("types"));
    } else if (f.has("types")) {
      f.wrong("types", "absent where measurements are shared", f.at("types"));
    }
    for (size_t t = 0; t < measured.size(); ++t) *measured_[t] = std::move(measured[t]);
    version_ = version;
    refused_ = refused;
    smoothing_ = {s[0], s[1], s[2], s[3], s[4]};
    noise_ = noise;
    choice_.reset();
  });
}

}  // namespace ductile::sched
