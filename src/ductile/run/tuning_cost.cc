#include "ductile/run/tuning_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "ductile/base/json_value.h"
#include "ductile/run/json_lines.h"

namespace ductile::run {
namespace {

using nlohmann::json;

constexpr double kNotKnown = std::numeric_limits<double>::quiet_NaN();

// The text at a key; empty where there is none.
std::string word_at(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

// The number of the trial that a move speaks of. The file may be anybody's.
std::optional<int64_t> trial_in(const json& move) {
  const double trial = move.is_object() ? number_at(move, "trial") : kNotKnown;
  if (!(trial >= 0 && trial < 1e9)) return std::nullopt;
  return static_cast<int64_t>(trial);
}

// Not less than nothing: a controller that was killed may not have saved the last of what it knew.
double more_than(double before, double now) { return now < before ? 0 : now - before; }

// Reads events in the order in which they were written. Whatever passes between two of them goes to
// the trial that was under way.
class TuningReader {
 public:
  void read(const json& event) {
    const std::string kind = word_at(event, "kind");
    if (kind == "start" || kind == "resume") {
      pass(event, number_at(event, "core_seconds", kNotKnown));
      take_back(event, /*also_its_own=*/false);
      under_way_ = trial_of_last();
      samples_at_end_ = kNotKnown;
    } else if (kind == "tune") {
      const auto moves = event.find("moves");
      if (moves == event.end() || !moves->is_array()) return;
      pass(event, number_at(event, "core_seconds", kNotKnown));
      take_back(event, /*also_its_own=*/true);
      record_.entries.push_back({&event, next_search()});
      under_way_ = trial_of_last();
      if (under_way_) record_.costs.try_emplace(*under_way_);
    } else if (kind == "end") {
      const auto cost = event.find("cost");
      const bool has_cost = cost != event.end() && cost->is_object();
      pass(event, has_cost ? number_at(*cost, "core_seconds", kNotKnown) : kNotKnown);
      under_way_.reset();  // until the run goes on
      samples_at_end_ = number_at(event, "samples", kNotKnown);
    }
  }

  TuningRecord take() {
    for (size_t i = 0; i < record_.entries.size(); ++i) {
      add_samples(i);
      add_kept(record_.entries[i]);
    }
    add_dropped();
    return std::move(record_);
  }

 private:
  using Trial = TuningRecord::Trial;

  void pass(const json& event, double core_seconds) {
    const double seconds = number_at(event, "seconds", kNotKnown);
    if (under_way_) {
      TrialCost& cost = record_.costs[*under_way_];
      cost.wall_seconds += more_than(seconds_, seconds);
      cost.core_seconds += more_than(core_seconds_, core_seconds);
    }
    seconds_ = seconds;
    core_seconds_ = core_seconds;
  }

  // The state of this event's step has nothing of what was told of later ones; if the step is told
  // of again, nothing of that either.
  void take_back(const json& event, bool also_its_own) {
    const double step = number_at(event, "step");
    while (!record_.entries.empty()) {
      const double last = number_at(*record_.entries.back().event, "step");
      if (!(last > step || (also_its_own && last == step))) return;
      record_.entries.pop_back();
    }
  }

  int next_search() const {
    if (record_.entries.empty()) return 1;
    const TuningRecord::Entry& last = record_.entries.back();
    return last.search + (word_at(*last.event, "what") == "search_over" ? 1 : 0);
  }

  // Which trial an event leaves under way; none where the search is over.
  static std::optional<Trial> trial_of(const TuningRecord::Entry& entry) {
    std::optional<Trial> out;
    for (const json& move : entry.event->at("moves")) {
      const std::optional<int64_t> trial = trial_in(move);
      const std::string what = trial ? word_at(move, "what") : "";
      if (what == "started" || what == "resumed") out = Trial(entry.search, *trial);
    }
    return out;
  }
  std::optional<Trial> trial_of_last() const {
    return record_.entries.empty() ? std::nullopt : trial_of(record_.entries.back());
  }

  void add_samples(size_t i) {
    const std::optional<Trial> trial = trial_of(record_.entries[i]);
    if (!trial) return;
    const double before = number_at(*record_.entries[i].event, "samples", kNotKnown);
    if (i + 1 < record_.entries.size()) {
      const double after = number_at(*record_.entries[i + 1].event, "samples", kNotKnown);
      record_.costs[*trial].samples += more_than(before, after);
    } else if (std::isnan(before) || !std::isnan(samples_at_end_)) {
      record_.costs[*trial].samples += more_than(before, samples_at_end_);
    }
  }

  void add_kept(const TuningRecord::Entry& entry) {
    for (const json& move : entry.event->at("moves")) {
      const std::optional<int64_t> trial = trial_in(move);
      if (trial && word_at(move, "what") == "chosen") record_.kept.emplace(entry.search, *trial);
    }
  }

  // All after the step to which the run went back, of earlier trials as well. Events of earlier
  // versions do not say which it is.
  void add_undone(const json& event) {
    std::vector<std::pair<double, double>>& dropped = record_.dropped;
    for (const json& move : event.at("moves")) {
      if (!move.is_object() || word_at(move, "what") != "went_back") continue;
      const double end = number_at(event, "step");
      double begin = number_at(move, "step", kNotKnown);
      if (!(begin < end) || (!dropped.empty() && end < dropped.back().second)) continue;
      while (!dropped.empty() && dropped.back().second >= begin) {
        begin = std::min(begin, dropped.back().first);
        dropped.pop_back();
      }
      dropped.emplace_back(begin, end);
    }
  }

  void add_dropped() {
    const std::optional<Trial> last = trial_of_last();
    for (size_t i = 0; i < record_.entries.size(); ++i) {
      add_undone(*record_.entries[i].event);
      const std::optional<Trial> trial = trial_of(record_.entries[i]);
      if (!trial || trial == last || record_.kept.contains(*trial)) continue;
      const double begin = number_at(*record_.entries[i].event, "step");
      const double end = number_at(*record_.entries[i + 1].event, "step");  // it is not the last
      const double before = record_.dropped.empty() ? -1 : record_.dropped.back().second;
      if (begin < end && begin >= before) record_.dropped.emplace_back(begin, end);
    }
  }

  TuningRecord record_;
  std::optional<Trial> under_way_;
  double seconds_ = kNotKnown, core_seconds_ = kNotKnown;  // when the last event was written
  double samples_at_end_ = kNotKnown;
};

json count_or_null(double value) {
  return std::abs(value) < 9e18 ? json(std::llround(value)) : json();
}
json json_or_null(double value) { return std::isfinite(value) ? json(value) : json(); }

// What the last search ended with; null: the job's own setting, or the run went back from it.
json kept_setting(const TuningRecord& record) {
  json out;
  for (const TuningRecord::Entry& entry : record.entries) {
    for (const json& move : entry.event->at("moves")) {
      const std::string what = move.is_object() ? word_at(move, "what") : "";
      if (what == "went_back") out = nullptr;
      if (what != "chosen") continue;
      const auto setting = move.find("setting");
      out = setting != move.end() && setting->is_object() ? *setting : json();
    }
  }
  return out;
}

}  // namespace

TrialCost& TrialCost::operator+=(const TrialCost& other) {
  samples += other.samples;
  wall_seconds += other.wall_seconds;
  core_seconds += other.core_seconds;
  return *this;
}

bool TuningRecord::is_dropped(double step) const {
  const auto at = std::ranges::lower_bound(dropped, step, {}, &std::pair<double, double>::second);
  return at != dropped.end() && step > at->first;
}

TuningRecord read_tuning(const std::vector<json>& events) {
  TuningReader reader;
  for (const json& event : events) reader.read(event);
  return reader.take();
}

TrialCost cost_of_trials(const TuningRecord& record) {
  TrialCost sum;
  for (const auto& [trial, cost] : record.costs) sum += cost;
  return sum;
}

TrialCost cost_of_kept_trials(const TuningRecord& record) {
  TrialCost sum;
  for (const TuningRecord::Trial& trial : record.kept)
    if (const auto found = record.costs.find(trial); found != record.costs.end())
      sum += found->second;
  return sum;
}

json tuning_json(const std::vector<json>& events) {
  const TuningRecord record = read_tuning(events);
  if (record.costs.empty()) return nullptr;
  const TrialCost all = cost_of_trials(record), kept = cost_of_kept_trials(record);
  return {{"searches", record.costs.rbegin()->first.first},
          {"trials", record.costs.size()},
          {"samples", count_or_null(all.samples)},
          {"samples_kept", count_or_null(kept.samples)},
          {"wall_seconds", json_or_null(all.wall_seconds)},
          {"core_seconds", json_or_null(all.core_seconds)},
          {"kept", kept_setting(record)}};
}

}  // namespace ductile::run
