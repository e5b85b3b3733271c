#include "ductile/sched/measurements.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <string_view>

#include "ductile/base/json_fields.h"
#include "ductile/base/rng.h"
#include "ductile/sched/saved_state_impl.h"

namespace ductile::sched {
namespace {

using nlohmann::json;

// A reading that is off by more than this much (of the logarithm) is a straggler's; changes of the
// mean below the second are not worth a new model; beyond so many readings old ones fade.
constexpr double kStraggler = 0.35, kSameStep = 0.005;
constexpr int32_t kMostReadings = 64;

constexpr double kLeastSeconds = 1e-9, kMostSeconds = 1e6;
constexpr size_t kMostFits = 1 << 16;

// For each that is new so many are looked at of those that may go: where more are held than are
// kept, not all of them each time.
constexpr int kMostLooks = 8;

uint64_t hash_of(std::span<const StepSample> samples) {
  uint64_t key = samples.size();
  for (const StepSample& s : samples) {
    key = mix(key, (static_cast<uint64_t>(s.nodes) << 32) ^ static_cast<uint64_t>(s.replicas));
    key = mix(key, static_cast<uint64_t>(s.local_batch));
    key = mix(key, std::bit_cast<uint64_t>(s.gradient_seconds));
    key = mix(key, std::bit_cast<uint64_t>(s.step_seconds));
  }
  return key;
}

}  // namespace

PerfParams FitCache::fit(std::span<const StepSample> samples) {
  const uint64_t key = hash_of(samples);
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  if (known_.size() >= kMostFits) known_.clear();
  return known_.emplace(key, fit_perf(samples, least_gain_).perf).first->second;
}

bool Measurements::is_possible(const StepSample& s) {
  const auto counts = [](int32_t n) { return n >= 1 && n <= kMostCount; };
  return counts(s.nodes) && counts(s.replicas) && counts(s.local_batch) &&
         s.gradient_seconds >= kLeastSeconds && s.step_seconds >= s.gradient_seconds &&
         s.step_seconds <= kMostSeconds;
}

Observed Measurements::add(const StepSample& sample, bool averages) {
  if (!is_possible(sample)) return Observed::refused;
  const auto same_shape = [&](const StepSample& s) {
    return s.nodes == sample.nodes && s.replicas == sample.replicas;
  };
  const auto known = std::find_if(samples_.begin(), samples_.end(), [&](const StepSample& s) {
    return same_shape(s) && s.local_batch == sample.local_batch;
  });
  if (known != samples_.end()) {
    if (!averages) return Observed::known;
    return read_again(static_cast<size_t>(known - samples_.begin()), sample);
  }
  new_shape_ = new_shape_ || std::none_of(samples_.begin(), samples_.end(), same_shape);
  if (samples_.size() == kMostSamples) {
    samples_.erase(samples_.begin());
    readings_.erase(readings_.begin());
  }
  samples_.push_back(sample);
  readings_.push_back(1);
  most_replicas_ = std::max(most_replicas_, sample.replicas);
  dirty_ = true;
  ++version_;
  return Observed::fresh;
}

// Readings are averaged (their logarithms), since each is off by something; but one that is far
// below the mean says that those before it were a straggler's, and one far above it is a
// straggler's itself.
Observed Measurements::read_again(size_t sample, const StepSample& reading) {
  StepSample& known = samples_[sample];
  const double off = std::log(reading.step_seconds / known.step_seconds);
  if (off > kStraggler || off == 0) return Observed::known;
  int32_t& readings = readings_[sample];
  readings = off < -kStraggler ? 1 : std::min(readings + 1, kMostReadings);
  const double weight = 1.0 / readings;
  known.gradient_seconds *= std::pow(reading.gradient_seconds / known.gradient_seconds, weight);
  known.step_seconds *= std::pow(reading.step_seconds / known.step_seconds, weight);
  if (std::abs(off) * weight < kSameStep) return Observed::known;
  dirty_ = true;
  ++version_;
  return Observed::known;
}

void Measurements::refresh(FitCache& fits, bool corrects) {
  // A state that was saved without corrections has none yet.
  const bool whole = samples_.empty() || (perf_ && (steps_ || !corrects));
  if (!dirty_ && whole) return;
  // Where corrections do the rest, a fit after each new shape is enough.
  if (!corrects || new_shape_ || !perf_) perf_ = fits.fit(samples_);
  if (corrects) steps_ = std::make_shared<StepModel>(*perf_, samples_);
  new_shape_ = false;
  dirty_ = false;
  ++version_;
}

json Measurements::state() const {
  json samples = json::array();
  for (size_t i = 0; i < samples_.size(); ++i) {
    const StepSample& s = samples_[i];
    samples.push_back(
        {s.nodes, s.replicas, s.local_batch, s.gradient_seconds, s.step_seconds, readings_[i]});
  }
  json out = {{"samples", std::move(samples)},
              {"dirty", dirty_},
              {"new_shape", new_shape_},
              {"most_replicas", most_replicas_},
              {"version", version_}};
  if (perf_) out["perf"] = to_json(*perf_);
  if (steps_) out["shapes"] = to_json(steps_->shapes());
  return out;
}

Measurements Measurements::from_state(const json& state, const std::string& where) {
  return as_data_loss([&] {
    const JsonFields f(state, where);
    f.only({"samples", "dirty", "new_shape", "most_replicas", "version", "perf", "shapes"});
    Measurements out;
    for (const json& item : f.array("samples")) {
      if (!item.is_array() || item.size() != 6 || out.samples_.size() == kMostSamples)
        f.wrong("samples", "a list of at most 1024 lists of 6 numbers", item);
      // A mean may lie beside the bounds of its readings by a rounding.
      const auto seconds = [&](const json& v) {
        return f.as_number(v, "samples", kLeastSeconds / 2, kMostSeconds * 2);
      };
      out.samples_.push_back({count_from(f, item[0], "samples"), count_from(f, item[1], "samples"),
                              count_from(f, item[2], "samples"), seconds(item[3]),
                              seconds(item[4])});
      out.readings_.push_back(
          static_cast<int32_t>(f.as_integer(item[5], "samples", 1, kMostReadings)));
    }
    out.dirty_ = f.boolean("dirty");
    out.new_shape_ = f.boolean("new_shape");
    out.most_replicas_ = static_cast<int32_t>(f.integer("most_replicas", 0, kMostCount));
    out.version_ = static_cast<uint32_t>(f.integer("version", 0, UINT32_MAX));
    if (f.has("perf")) out.perf_ = perf_from(f);
    if (f.has("shapes")) {
      if (!out.perf_) f.wrong("shapes", "absent where there is no perf", f.at("shapes"));
      out.steps_ = std::make_shared<StepModel>(StepModel::of_shapes(*out.perf_, shapes_from(f)));
    }
    if (out.perf_ && !(out.perf_->alpha_c + out.perf_->beta_c > 0))
      f.wrong("perf", "a step that takes some time", f.at("perf"));
    if (!out.dirty_ && !out.perf_ && !out.samples_.empty())
      f.wrong("dirty", "true where samples have no perf", f.at("dirty"));
    if (out.dirty_ && out.samples_.empty())
      f.wrong("dirty", "false without samples", f.at("dirty"));
    return out;
  });
}

std::shared_ptr<Measurements> SharedMeasurements::of(const std::string& application,
                                                     const std::string& type) {
  const Key key(application, type);
  if (const auto known = known_.find(key); known != known_.end()) return known->second.measurements;
  std::weak_ptr<Measurements>& held = held_[key];
  std::shared_ptr<Measurements> out = held.lock();
  if (out == nullptr) held = out = std::make_shared<Measurements>();
  forget_released();
  forget_oldest();
  return out;
}

void SharedMeasurements::keep(const std::string& application, const std::string& type) {
  const Key key(application, type);
  auto known = known_.find(key);
  if (known == known_.end()) {
    const auto held = held_.find(key);
    std::shared_ptr<Measurements> measurements;
    if (held != held_.end()) measurements = held->second.lock();
    if (measurements == nullptr) return;
    held_.erase(held);
    known = known_.emplace(key, Entry{std::move(measurements), 0, {}}).first;
    known->second.place = queue_.insert(queue_.end(), &known->first);
  }
  known->second.used = ++uses_;
  queue_.splice(queue_.end(), queue_, known->second.place);
  forget_oldest();
}

// What somebody holds stays, and goes to the end of the queue.
void SharedMeasurements::forget_oldest() {
  for (int look = 0; look < kMostLooks && known_.size() > kMostKinds; ++look) {
    const auto oldest = known_.find(*queue_.front());
    if (oldest->second.measurements.use_count() > 1) {
      queue_.splice(queue_.end(), queue_, queue_.begin());
      continue;
    }
    queue_.pop_front();
    known_.erase(oldest);
    ++forgotten_;
  }
}

void SharedMeasurements::forget_released() {
  if (held_.size() <= most_held_) return;
  std::erase_if(held_, [](const auto& one) { return one.second.expired(); });
  most_held_ = 2 * held_.size() + kMostLooks;
}

std::vector<std::string> SharedMeasurements::newest(size_t most) const {
  std::map<std::string_view, uint64_t> used;
  for (const auto& [key, entry] : known_)
    if (!entry.measurements->samples().empty())
      used[key.first] = std::max(used[key.first], entry.used);
  std::vector<std::pair<uint64_t, std::string_view>> order;
  for (const auto& [name, when] : used) order.emplace_back(when, name);
  const auto end = order.begin() + static_cast<ptrdiff_t>(std::min(most, order.size()));
  std::partial_sort(order.begin(), end, order.end(), std::greater<>());
  std::vector<std::string> out;
  for (auto it = order.begin(); it != end; ++it) out.emplace_back(it->second);
  std::sort(out.begin(), out.end());
  return out;
}

Measurements* SharedMeasurements::find(const std::string& application,
                                       const std::string& type) const {
  const auto found = known_.find({application, type});
  return found == known_.end() ? nullptr : found->second.measurements.get();
}

json SharedMeasurements::state() const {
  std::vector<std::pair<const Key*, const Entry*>> order;
  for (const auto& [key, entry] : known_) order.emplace_back(&key, &entry);
  std::ranges::sort(order, {}, [](const auto& one) { return one.second->used; });
  json out = json::array();
  for (const auto& [key, entry] : order)
    out.push_back({key->first, key->second, entry->measurements->state()});
  return out;
}

void SharedMeasurements::restore(const json& state, const std::string& where) {
  if (!state.is_array()) fail(ErrorCode::data_loss, "{}: not a list", where);
  std::vector<std::pair<Key, Measurements>> all;
  for (const json& item : state) {
    if (!item.is_array() || item.size() != 3 || !item[0].is_string() || !item[1].is_string())
      fail(ErrorCode::data_loss, "{}: not a list of [application, device type, measurements]",
           where);
    const std::string application = item[0], type = item[1];
    all.emplace_back(
        Key(application, type),
        Measurements::from_state(item[2], fmt::format("{}: {} on {}", where, application, type)));
  }
  for (auto& [key, entry] : known_) {
    *entry.measurements = {};
    held_[key] = entry.measurements;
  }
  known_.clear();
  queue_.clear();
  ++forgotten_;
  for (auto& [key, value] : all) {
    if (value.samples().empty()) continue;  // older programs saved those of commands
    const std::shared_ptr<Measurements> measurements = of(key.first, key.second);
    *measurements = std::move(value);
    keep(key.first, key.second);
  }
}

}  // namespace ductile::sched
