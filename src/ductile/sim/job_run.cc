#include <algorithm>
#include <bit>
#include <cmath>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/sim/job_run_impl.h"

namespace ductile::sim {

using sched::Scaling;

// Steps at a batch that was new before a worker chooses again.
constexpr double kStepsToMeasure = 3;

// A reading that is off by more than this much (of the logarithm) is a straggler's; changes of the
// mean below the second are not worth a new model; beyond so many readings old ones fade.
constexpr double kStraggler = 0.35, kSameStep = 0.005;
constexpr int32_t kMostReadings = 64;

// A measured profile ends at 64 devices: no job of the published simulators gets more.
constexpr int32_t kMostMeasured = 64;

const sched::PerfParams& FitCache::fit(uint64_t key, std::span<const sched::StepSample> samples) {
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  return known_.emplace(key, sched::fit_perf(samples, least_gain_).perf).first->second;
}

JobRun::JobRun(const Submission& submission, const Application& app, const ReplayRules& rules,
               std::span<const std::string> types, const sched::PolicyTraits& traits,
               FitCache& fits, SharedMeasurements* shared, const Instruments& instruments)
    : submission_(submission),
      app_(app),
      rules_(rules),
      fits_(fits),
      scaling_(std::min(submission.scaling, traits.uses)),
      learns_(traits.uses == Scaling::adaptive),
      measures_(shared != nullptr),
      batch_(submission.batch > 0 ? submission.batch : app.init_batch),
      types_(types.begin(), types.end()),
      serves_(traits.serves),
      instruments_(instruments) {
  if (traits.uses == Scaling::adaptive && app.adaptive_batch > 0) batch_ = app.adaptive_batch;
  if (app.fixed_batch) scaling_ = std::min(scaling_, Scaling::strong);
  for (const std::string& type : types) {
    profiles_.push_back(&app.profile(type));
    limits_.push_back(app.limits(*profiles_.back()));
    units_.push_back(submission.service ? submission.service->replica_devices : app.unit(type));
  }
  if (pipeline() && !submission.service && !traits.scales_pipelines) scaling_ = Scaling::rigid;
  if (submission.service) {
    scaling_ = Scaling::rigid;
    service_run_.emplace(*submission.service, app, types, submission.time, pause());
  }
  for (size_t t = 0; t < types.size(); ++t) {
    std::shared_ptr<Learned> own;
    std::shared_ptr<Learned>& learned = shared ? (*shared)[{&app, types[t]}] : own;
    if (!learned) {
      learned = std::make_shared<Learned>();
      learned->key = mix(std::bit_cast<uint64_t>(&app), t + 1);
    }
    learned_.push_back(learned);
  }
  for (int32_t e = 1; e <= app.epochs; ++e)
    epoch_ends_.push_back(app.progress_at(e) * submission.work);
  total_ = epoch_ends_.back();
}

// Rises with whatever the choice of a batch depends on.
uint32_t JobRun::version() const {
  uint32_t version = version_;
  for (const auto& learned : learned_) version += learned->version;
  return version;
}

void JobRun::refresh(int32_t type) {
  Learned& learned = *learned_[type];
  if (!learned.dirty || !learns_) return;
  // Where corrections do the rest, a fit after each new shape is enough.
  if (!measures_ || learned.new_shape) learned.perf = fits_.fit(learned.key, learned.samples);
  if (measures_) learned.steps = std::make_shared<sched::StepModel>(*learned.perf, learned.samples);
  learned.new_shape = false;
  learned.dirty = false;
  ++learned.version;
}

// The published update_local_bsz of either simulator.
void JobRun::choose_batch() {
  if (pipeline()) {
    local_ = app_.micro_batches;
    accumulation_ = 0;
    return;
  }
  refresh(type_);
  if (chosen_version_ == version()) return;
  const auto nodes = static_cast<int32_t>(counts_.size());
  sched::BatchLimits limits = limits_[type_];
  if (rules_.limit_by_placement) limits.max_local = profiles_[type_]->max_local(counts_);
  sched::BatchChoice choice;
  if (scaling_ == Scaling::adaptive) {
    const Learned& learned = *learned_[type_];
    if (learned.steps && noise_)
      choice = learned.steps->best_batch(*noise_, limits, nodes, replicas_);
    else if (learned.perf && noise_)
      choice = sched::best_batch(*learned.perf, *noise_, limits, nodes, replicas_);
    if (choice.local_batch == 0)
      choice = sched::split_batch(limits, replicas_,
                                  std::max(limits.init_batch, limits.min_local * replicas_));
  } else {
    choice = sched::split_batch(limits, replicas_, batch_);
  }
  if (rules_.limit_by_placement)
    if (const auto most = profiles_[type_]->max_local_of_replicas(replicas_))
      choice.local_batch = std::min(choice.local_batch, *most);
  const int32_t count = replicas_ * (choice.accumulation + 1);
  local_ = std::max(std::min(choice.local_batch, limits.max_batch / count), 1);
  accumulation_ = choice.accumulation;
  chosen_version_ = version();
}

double JobRun::misread(uint64_t purpose, uint64_t reading) const {
  if (instruments_.noise <= 0) return 1;
  Rng rng(instruments_.seed, mix(purpose, instruments_.job), reading);
  return std::exp(instruments_.noise * rng.normal());
}

// Readings are averaged (their logarithms), since each is off by something; but one that is far
// below the mean says that those before it were a straggler's, and one far above it is a
// straggler's itself.
void JobRun::read_again(size_t sample, double grad, double step) {
  Learned& learned = *learned_[type_];
  sched::StepSample& known = learned.samples[sample];
  const double off = std::log(step / known.step_seconds);
  if (off > kStraggler || off == 0) return;
  int32_t& readings = learned.readings[sample];
  readings = off < -kStraggler ? 1 : std::min(readings + 1, kMostReadings);
  const double weight = 1.0 / readings;
  known.gradient_seconds *= std::pow(grad / known.gradient_seconds, weight);
  known.step_seconds *= std::pow(step / known.step_seconds, weight);
  if (std::abs(off) * weight < kSameStep) return;
  learned.dirty = true;
  ++learned.version;
}

// A noise scale that moves one way is followed; one that goes up and down about a level (steps that
// undo the one before, as those of a level with white noise do by one half) is averaged.
sched::GradientNoise JobRun::smooth(const sched::GradientNoise& seen) {
  const double now = std::log(std::max(seen.var, 1e-30) / std::max(seen.sqr, 1e-30));
  if (!noise_) {
    noise_level_ = noise_read_ = now;
    return seen;
  }
  const double step = now - noise_read_;
  step_square_ = 0.8 * step_square_ + step * step;
  step_product_ = 0.8 * step_product_ + step * noise_step_;
  noise_read_ = now;
  noise_step_ = step;
  const double undone = step_square_ > 0 ? -step_product_ / step_square_ : 0;
  noise_level_ += std::clamp(1 - 2 * undone, 0.2, 1.0) * (now - noise_level_);
  return {seen.sqr, seen.sqr * std::exp(noise_level_)};
}

bool JobRun::observe(StepTime time) {
  if (instruments_.noise > 0) {
    const double grad = (time.step - time.sync) * misread(0x97ad, ++readings_);
    const double sync = time.sync * misread(0x51c, readings_);
    time = {grad + sync, sync};
  }
  Learned& learned = *learned_[type_];
  const auto nodes = static_cast<int32_t>(counts_.size());
  const double grad = std::max(time.step - time.sync, 1e-9), step = std::max(time.step, grad);
  for (size_t i = 0; i < learned.samples.size(); ++i) {
    const sched::StepSample& known = learned.samples[i];
    if (known.nodes != nodes || known.replicas != replicas_ || known.local_batch != local_)
      continue;
    if (measures_) read_again(i, grad, step);
    return false;
  }
  learned.new_shape =
      learned.new_shape ||
      std::none_of(learned.samples.begin(), learned.samples.end(),
                   [&](const auto& s) { return s.nodes == nodes && s.replicas == replicas_; });
  learned.samples.push_back({nodes, replicas_, local_, grad, step});
  learned.readings.push_back(1);
  learned.key =
      mix(learned.key,
          mix(std::bit_cast<uint64_t>(time.step),
              std::bit_cast<uint64_t>(grad) ^ (static_cast<uint64_t>(nodes) << 40) ^
                  (static_cast<uint64_t>(replicas_) << 20) ^ static_cast<uint64_t>(local_)));
  learned.max_profiled = std::max(learned.max_profiled, replicas_ * units_[type_]);
  learned.dirty = true;
  ++learned.version;
  return true;
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
    const double batch = static_cast<double>(replicas_) * local_ * (accumulation_ + 1);
    const double scale = batch / app_.init_batch;
    StepTime time = app_.step_time(types_[type_], counts_, local_);
    const double every = submission_.checkpoint_every;
    const double slice = every > 0 ? std::min(seconds, every - since_save_) : seconds;
    if (conditions.compute != 1 || conditions.network != 1) {
      const double grad = (time.step - time.sync) * conditions.compute;
      const double sync = time.sync * (counts_.size() > 1 ? conditions.network : 1);
      time = {grad + sync, sync};
    }
    const sched::GradientNoise noise = app_.noise(static_cast<int32_t>(batch), epoch_);
    const double gain = (noise.var + noise.sqr) / (noise.var / scale + noise.sqr);
    if (epoch_ != noise_epoch_ || batch != noise_batch_) {
      sched::GradientNoise seen = {noise.sqr,
                                   noise.var * misread(0x9015e, static_cast<uint64_t>(epoch_))};
      if (measures_) seen = smooth(seen);
      if (!noise_ || *noise_ != seen) ++version_;
      noise_ = seen;
      noise_epoch_ = epoch_;
      noise_batch_ = batch;
    }
    const bool fresh = observe(time);
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
      const double delta = std::min(std::nearbyint((next - progress_) / rate_), slice);
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

void JobRun::reallocate(double now, const sched::Allocation& allocation, int32_t type) {
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
  chosen_version_ = UINT32_MAX;
  if (service_run_) {  // replicas start while others answer: no restart
    service_run_->set(now, allocation, type);
    starts_ += !ran;
  } else {
    replicas_ /= units_[type];
    DUCTILE_CHECK(replicas_ * units_[type] == devices_, "{}: {} devices for pipelines of {}",
                  submission_.name, devices_, units_[type]);
    choose_batch();
    pause_left_ = pause();
    ++starts_;
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

void JobRun::lose_work(double seconds) {
  const double floor = epoch_ > 0 ? epoch_ends_[epoch_ - 1] : 0;
  progress_ = std::max(progress_ - rate_ * seconds, floor);
}

void JobRun::describe(sched::JobView& view) const {
  view.name = submission_.name;
  view.application = submission_.application;
  view.arrival = submission_.time;
  view.scaling = scaling_;
  view.preemptible = submission_.preemptible;
  view.tier = submission_.tier;
  view.team = submission_.team;
  view.requested_devices = submission_.devices;
  if (pipeline() && !service_run_) {
    // The type on which what was asked for takes fewest devices, of those where it fits.
    int32_t least = 0;
    for (const int32_t unit : units_)
      if (unit > 0 && (least == 0 || unit < least)) least = unit;
    view.requested_devices = submission_.devices * std::max(least, 1);
  }
  view.requested_batch = batch_;
  view.restart_seconds = pause();
  view.types.resize(limits_.size());
  int32_t most = 1;
  for (size_t t = 0; t < limits_.size(); ++t) {
    sched::TypeModel& model = view.types[t];
    model.limits = limits_[t];
    model.allowed = units_[t] > 0;
    model.unit = std::max(units_[t], 1);
    if (pipeline() && !service_run_) model.unit_batch = app_.micro_batches;
    model.max_useful =
        model.unit * std::max((scaling_ == Scaling::strong ? batch_ : limits_[t].max_batch) /
                                  limits_[t].min_local,
                              1);
    if (app_.most_devices > 0) model.max_useful = std::min(model.max_useful, app_.most_devices);
    if (learns_) model.max_useful = std::min(model.max_useful, kMostMeasured);
    model.unit_rate = profiles_[t]->unit_rate();
    if (pipeline() && model.allowed)
      model.unit_rate =
          app_.micro_batches / app_.step_time(types_[t], std::vector<int32_t>{model.unit}, 1).step;
    most = std::max(most, model.max_useful);
  }
  if (service_run_ && serves_) {
    view.min_devices = 1;
    view.max_devices = INT32_MAX;
  } else if (scaling_ == Scaling::rigid) {
    view.min_devices = view.max_devices = view.requested_devices;
    for (sched::TypeModel& model : view.types) {
      model.max_useful = view.requested_devices;
      if (pipeline())
        model.allowed = model.allowed && model.unit * submission_.devices == view.requested_devices;
    }
    if (service_run_) view.preemptible = false;
  } else {
    view.min_devices = 1;
    view.max_devices = most;
  }
}

void JobRun::report(sched::JobView& view) {
  for (size_t t = 0; t < learned_.size(); ++t) refresh(static_cast<int32_t>(t));
  view.attained_service = service_;
  if (submission_.checkpoint_every > 0) view.unsaved_seconds = since_save_;
  view.progress = progress_;
  view.restarts = restarts();
  view.pause_left = pause_left_;
  view.started = first_start_;
  view.last_change = last_change_;
  if (view.model_version == version() && view.noise == noise_) return;
  view.noise = noise_;
  for (size_t t = 0; t < learned_.size(); ++t) {
    sched::TypeModel& model = view.types[t];
    const Learned& learned = *learned_[t];
    model.max_profiled = learned.max_profiled;
    model.fitted = learned.perf.has_value();
    if (model.fitted) model.perf = *learned.perf;
    model.steps = learned.steps;
  }
  view.model_version = version();
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
