#include <algorithm>
#include <cmath>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/sim/job_run_impl.h"

namespace ductile::sim {

using sched::Scaling;

// Steps at a batch that was new before a worker chooses again.
constexpr double kStepsToMeasure = 3;

// A measured profile ends at 64 devices: no job of the published simulators gets more.
constexpr int32_t kMostMeasured = 64;

// Local batches of each number of devices that a profiled job has measured.
constexpr int kProfiledBatches = 12;

JobRun::JobRun(const Submission& submission, const Application& app, const ReplayRules& rules,
               std::span<const std::string> types, const sched::PolicyTraits& traits,
               sched::FitCache& fits, sched::SharedMeasurements& shared,
               const Instruments& instruments)
    : submission_(submission),
      app_(app),
      rules_(rules),
      serves_(traits.serves),
      measures_(traits.measures),
      types_(types.begin(), types.end()),
      agent_(facts(types, traits), traits, fits, &shared),
      instruments_(instruments) {
  for (const sched::AgentType& type : agent_.facts().types) {
    profiles_.push_back(planned() ? nullptr : &app.profile(type.name));
    units_.push_back(type.unit);
  }
  if (submission.service)
    service_run_.emplace(*submission.service, app, types, submission.time, pause());
  for (int32_t e = 1; e <= app.epochs; ++e)
    epoch_ends_.push_back(app.progress_at(e) * submission.work);
  total_ = epoch_ends_.back();
}

void JobRun::measure_all(const sched::Cluster& cluster) {
  if (!measures_ || service_run_ || planned() || pipeline()) return;
  for (size_t t = 0; t < types_.size(); ++t) {
    const auto type = static_cast<int32_t>(t);
    const int32_t per_node = std::max(cluster.devices_per_node(type), 1);
    const auto most =
        static_cast<int32_t>(std::min<int64_t>(cluster.usable_devices(type), kMostMeasured));
    for (int32_t k = 1; k <= most; k = k < per_node ? std::min(2 * k, per_node) : k + per_node) {
      std::vector<int32_t> counts(static_cast<size_t>(k / per_node), per_node);
      if (k % per_node != 0) counts.push_back(k % per_node);
      const double low = profiles_[t]->min_local();
      const double high = std::max<double>(profiles_[t]->max_local(counts), low);
      for (int i = 0; i < kProfiledBatches; ++i) {
        const auto local = static_cast<int32_t>(
            std::lround(low * std::pow(high / low, i / (kProfiledBatches - 1.0))));
        const StepTime time = app_.step_time(types_[t], counts, local);
        const double gradient = std::max(time.step - time.sync, 1e-9);
        agent_.observe(type, {static_cast<int32_t>(counts.size()), k, local, gradient,
                              std::max(time.step, gradient)});
      }
    }
  }
  agent_.observe(app_.noise(app_.init_batch, 0));
}

sched::AgentFacts JobRun::facts(std::span<const std::string> types,
                                const sched::PolicyTraits& traits) const {
  const bool adapts = traits.uses == Scaling::adaptive, service = submission_.service.has_value();
  sched::AgentFacts out;
  out.application = submission_.application;
  out.scaling = submission_.scaling;
  if (app_.fixed_batch) out.scaling = std::min(out.scaling, Scaling::strong);
  // As many replicas as its load needs, or as it asks for.
  if (service) out.scaling = traits.serves ? Scaling::adaptive : Scaling::rigid;
  out.averages = !rules_.start_known;
  out.requested_replicas = submission_.devices;
  out.requested_batch = adapts && app_.adaptive_batch > 0 ? app_.adaptive_batch
                        : submission_.batch > 0           ? submission_.batch
                                                          : app_.init_batch;
  if (pipeline() && !service) out.pipeline_batch = app_.micro_batches;
  out.most_devices = app_.most_devices;
  if (adapts)
    out.most_devices =
        out.most_devices > 0 ? std::min(out.most_devices, kMostMeasured) : kMostMeasured;
  for (const PlanProfile& plan : app_.plans)
    for (size_t t = 0; t < types.size(); ++t)
      if (types[t] == plan.type)
        out.plans.push_back(
            {static_cast<int32_t>(t), plan.devices, plan.batch, plan.batch / plan.seconds});
  if (planned()) check_plans(out, traits);
  for (const std::string& type : types) {
    if (planned()) {
      out.types.push_back({type, app_.unit(type), {app_.init_batch, app_.max_batch, 1, 1}, 0});
      continue;
    }
    const Profile& profile = app_.profile(type);
    sched::AgentType known{type, service ? submission_.service->replica_devices : app_.unit(type),
                           app_.limits(profile), profile.unit_rate()};
    // A service knows as much of a job that it never ran; one of a fixed size only has to have any.
    if (!rules_.start_known && !service) known.unit_rate = out.scaling == Scaling::rigid ? 1 : 0;
    if (pipeline() && known.unit > 0)
      known.unit_rate =
          app_.micro_batches / app_.step_time(type, std::vector<int32_t>{known.unit}, 1).step;
    out.types.push_back(std::move(known));
  }
  return out;
}

// A job whose size is not free has a plan for exactly that, where its policy may put it.
void JobRun::check_plans(const sched::AgentFacts& facts, const sched::PolicyTraits& traits) const {
  if (submission_.service)
    fail(ErrorCode::invalid_argument,
         "{}: a service of application {}, which has plans for training alone", submission_.name,
         app_.name);
  if (facts.scaling != Scaling::rigid && traits.sees_plans) return;
  std::vector<uint8_t> there(types_.size());
  for (const sched::JobPlan& plan : facts.plans)
    if (plan.devices == facts.requested_replicas) there[static_cast<size_t>(plan.type)] = 1;
  const auto count = std::count(there.begin(), there.end(), 1);
  if (count > 0 && (traits.sees_types || count == static_cast<ptrdiff_t>(there.size()))) return;
  fail(ErrorCode::invalid_argument,
       "{}: it asks for {} devices, and plans.csv of application {} has no plan for so many{}; ask "
       "for a number that it has",
       submission_.name, facts.requested_replicas, app_.name,
       count > 0 ? " on every device type, of which the policy knows nothing" : "");
}

void JobRun::choose_batch() {
  if (planned()) return;
  const auto nodes = static_cast<int32_t>(counts_.size());
  sched::AgentShape shape{type_, nodes, replicas_};
  if (rules_.limit_by_placement) shape.max_local = profiles_[type_]->max_local(counts_);
  const sched::BatchChoice choice = agent_.choose_batch(shape);
  local_ = choice.local_batch;
  accumulation_ = choice.accumulation;
  if (rules_.limit_by_placement && !pipeline())
    if (const auto most = profiles_[type_]->max_local_of_replicas(replicas_))
      local_ = std::max(std::min(local_, *most), 1);
}

double JobRun::misread(uint64_t purpose, uint64_t reading) const {
  if (instruments_.noise <= 0) return 1;
  Rng rng(instruments_.seed, mix(purpose, instruments_.job), reading);
  return std::exp(instruments_.noise * rng.normal());
}

bool JobRun::observe(StepTime time) {
  if (instruments_.noise > 0) {
    const double grad = (time.step - time.sync) * misread(0x97ad, ++readings_);
    const double sync = time.sync * misread(0x51c, readings_);
    time = {grad + sync, sync};
  }
  const double grad = std::max(time.step - time.sync, 1e-9), step = std::max(time.step, grad);
  const auto nodes = static_cast<int32_t>(counts_.size());
  return agent_.observe(type_, {nodes, replicas_, local_, grad, step}) == sched::Observed::fresh;
}

// Once an epoch and batch.
void JobRun::observe_noise(const sched::GradientNoise& noise, double batch) {
  if (epoch_ == noise_epoch_ && batch == noise_batch_) return;
  agent_.observe({noise.sqr, noise.var * misread(0x9015e, static_cast<uint64_t>(epoch_))});
  noise_epoch_ = epoch_;
  noise_batch_ = batch;
}

std::optional<double> JobRun::advance(double now, double seconds, const Conditions& conditions) {
  if (service_run_) {
    service_run_->pass(now + seconds);
    const double left = std::clamp(service_run_->ends_at() - now, 0.0, seconds);
    service_ += left * devices_;
    finished_ = finished_ || now + seconds >= service_run_->ends_at();
    return finished_ ? std::optional(now + left) : std::nullopt;
  }
  if (counts_.empty() || finished_) return std::nullopt;
  const double delay = std::min(pause_left_, seconds);
  now += delay;
  service_ += delay * devices_;
  paused_ += delay;
  pause_left_ -= delay;
  seconds -= delay;
  while (seconds > 0 && !finished_) {
    DUCTILE_CHECK(epoch_ < app_.epochs, "{} goes on after its end", submission_.name);
    const sched::JobPlan* plan =
        planned() ? &agent_.facts().plans[static_cast<size_t>(plan_)] : nullptr;
    const double batch =
        plan ? plan->batch : static_cast<double>(replicas_) * local_ * (accumulation_ + 1);
    const double scale = batch / app_.init_batch;
    StepTime time = plan ? StepTime{plan->batch / plan->samples_per_second, 0}
                         : app_.step_time(types_[type_], counts_, local_);
    const double every = submission_.checkpoint_every;
    const double slice = every > 0 ? std::min(seconds, every - since_save_) : seconds;
    if (conditions.compute != 1 || conditions.network != 1 || conditions.steps != 1) {
      const double grad = (time.step - time.sync) * conditions.compute * conditions.steps;
      const double sync =
          time.sync * (counts_.size() > 1 ? conditions.network : 1) * conditions.steps;
      time = {grad + sync, sync};
    }
    const sched::GradientNoise noise = app_.noise(static_cast<int32_t>(batch), epoch_);
    const double gain = (noise.var + noise.sqr) / (noise.var / scale + noise.sqr);
    observe_noise(noise, batch);
    const bool fresh = !plan && observe(time);
    const double step = time.step + (time.step - time.sync) * accumulation_;
    rate_ = gain / step * (1.0 - conditions.interference);
    if (rules_.own_pause) rate_ *= 1 / app_.slowdown;
    const double next = epoch_ends_[epoch_];
    const double until = measures_ && fresh ? std::min(slice, kStepsToMeasure * step) : slice;
    if (progress_ + rate_ * until < next) {
      progress_ += rate_ * until;
      now += until;
      service_ += until * devices_;
      seconds -= until;
      since_save_ += until;
      if (every > 0 && since_save_ >= every) {
        since_save_ = 0;
        saved_progress_ = progress_;
      }
    } else {
      ++epoch_;
      const double left = (next - progress_) / rate_;
      const double delta = std::min(rules_.whole_seconds ? std::nearbyint(left) : left, slice);
      if (epoch_ == app_.epochs) {
        finished_ = true;
        service_ += delta * devices_;
        progress_ = next;
        return now + delta;
      }
      progress_ = next;
      now += delta;
      service_ += delta * devices_;
      seconds -= delta;
      since_save_ += delta;
    }
    choose_batch();
  }
  return std::nullopt;
}

void JobRun::reallocate(double now, const sched::Allocation& allocation, int32_t type,
                        double transfer) {
  go_back();
  const bool ran = !counts_.empty();
  allocation_ = allocation;
  counts_.clear();
  for (const sched::NodeShare& share : allocation) counts_.push_back(share.devices);
  devices_ = replicas_ = sched::device_count(allocation);
  last_change_ = now;
  if (allocation.empty()) {
    local_ = 0;
    rate_ = 0;
    if (service_run_) service_run_->set(now, {}, -1);
    return;
  }
  type_ = type;
  if (service_run_) {  // replicas start while others answer: no restart
    service_run_->set(now, allocation, type);
    starts_ += !ran;
  } else {
    replicas_ /= units_[type];
    DUCTILE_CHECK(replicas_ * units_[type] == devices_, "{}: {} devices for pipelines of {}",
                  submission_.name, devices_, units_[type]);
    if (planned()) {
      plan_ = agent_.choose_plan(type, devices_);
      DUCTILE_CHECK(plan_ >= 0, "{}: no plan for {} devices of {}", submission_.name, devices_,
                    types_[static_cast<size_t>(type)]);
    }
    choose_batch();
    const bool resized = ran && rules_.resize.has_value();
    pause_left_ = (resized ? std::max(pause_left_, *rules_.resize) : pause()) + transfer;
    starts_ += !resized;
  }
  if (first_start_ < 0) first_start_ = now;
}

// Back to the last checkpoint.
void JobRun::go_back() {
  if (submission_.checkpoint_every <= 0 || counts_.empty()) return;
  lost_ += since_save_;
  since_save_ = 0;
  progress_ = saved_progress_;
  while (epoch_ > 0 && epoch_ends_[epoch_ - 1] > progress_) --epoch_;
}

double JobRun::lose_work(double seconds) {
  const double before = progress_, floor = epoch_ > 0 ? epoch_ends_[epoch_ - 1] : 0;
  progress_ = std::max(progress_ - rate_ * seconds, floor);
  return rate_ > 0 ? (before - progress_) / rate_ : 0;
}

void JobRun::describe(sched::JobView& view) const {
  agent_.describe(view);
  view.name = submission_.name;
  view.arrival = submission_.time;
  view.preemptible = submission_.preemptible;
  view.tier = submission_.tier;
  view.team = submission_.team;
  view.restart_seconds = pause();
  view.resize_seconds = rules_.resize;
  if (!service_run_) return;
  view.scaling = Scaling::rigid;
  if (serves_)
    view.max_devices = INT32_MAX;
  else
    view.preemptible = false;
}

void JobRun::report(sched::JobView& view) {
  agent_.models(view);
  view.attained_service = service_;
  if (submission_.checkpoint_every > 0) view.unsaved_seconds = since_save_;
  view.progress = progress_;
  view.restarts = restarts();
  view.pause_left = pause_left_;
  view.started = first_start_;
  view.last_change = last_change_;
}

void JobRun::report_load(sched::JobView& view, double now, double ahead) const {
  const int32_t floor = submission_.devices / submission_.service->replica_devices;
  sched::ServiceView service = service_run_->view(now, ahead, floor);
  for (size_t t = 0; t < units_.size(); ++t)
    if (units_[t] == 0) service.rate[t] = 0;
  if (serves_) {
    view.service = std::move(service);
    return;
  }
  for (size_t t = 0; t < units_.size(); ++t) {
    view.types[t].requested_rate = view.types[t].unit_rate = service.rate[t] * floor;
    view.requested_batch = 1;
  }
}

}  // namespace ductile::sim
