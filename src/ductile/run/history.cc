#include "ductile/run/history.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/run/diary.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/tuning_cost.h"

namespace ductile::run {
namespace {

using nlohmann::json;

double finite_at(const json& object, const char* key, double otherwise = 0) {
  const double value = number_at(object, key, otherwise);
  return std::isfinite(value) ? value : otherwise;
}

int64_t count_at(const json& object, const char* key, int64_t otherwise = 0) {
  const double value = finite_at(object, key, static_cast<double>(otherwise));
  return std::abs(value) < 9e18 ? static_cast<int64_t>(value) : otherwise;
}

std::string text_at(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

std::optional<Cost> cost_at(const json& event) {
  const auto at = event.find("cost");
  if (at == event.end()) return std::nullopt;
  try {
    return cost_from_json(*at);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Builds curves line by line.
class CurveReader {
 public:
  void read(const json& line, History& history) {
    Point point{.step = count_at(line, "step"),
                .epoch = finite_at(line, "epoch"),
                .seconds = finite_at(line, "seconds")};
    history.epoch = std::max(history.epoch, point.epoch);
    for (const auto& [key, value] : line.items()) {
      if (key == "step" || key == "epoch" || key == "time" || key == "seconds" ||
          key == "generation")
        continue;
      if (!number_from_json(value, point.value)) continue;
      add(curve(key), point);
    }
  }

  std::vector<Curve> take() {
    std::vector<Curve> out;
    for (Building& b : building_) {
      if (b.curve.count > 0) b.curve.mean = b.sum / static_cast<double>(b.curve.count);
      if (b.time > 0) b.curve.mean_rate = b.steps / b.time;
      b.curve.points = b.decimator.points();
      out.push_back(std::move(b.curve));
    }
    return out;
  }

 private:
  struct Building {
    Curve curve;
    Decimator decimator;
    double sum = 0;
    double steps = 0, time = 0;  // of a rate: the steps of its lines, and these over their rates
  };

  Building& curve(const std::string& name) {
    const auto [at, is_new] = index_.try_emplace(name, building_.size());
    if (is_new) building_.emplace_back().curve.name = name;
    return building_[at->second];
  }

  static void add(Building& b, const Point& point) {
    Curve& c = b.curve;
    if (!std::isfinite(point.value)) {
      if (c.non_finite++ == 0) c.first_non_finite_step = point.step;
      return;
    }
    ++c.count;
    b.sum += point.value;
    const double before = c.last ? static_cast<double>(c.last->step) : 0;
    const double steps = static_cast<double>(point.step) - before;
    if (steps > 0 && point.value > 0) {
      b.steps += steps;
      b.time += steps / point.value;
    }
    if (!c.first) c.first = point;
    c.last = point;
    if (!c.lowest || point.value < c.lowest->value) c.lowest = point;
    if (!c.highest || point.value > c.highest->value) c.highest = point;
    b.decimator.add(point);
  }

  std::unordered_map<std::string, size_t> index_;
  std::vector<Building> building_;
};

Status status_from(std::string_view text) {
  for (const Status s : {Status::done, Status::target_reached, Status::interrupted}) {
    if (text == to_string(s)) return s;
  }
  return Status::failed;
}

void read_event(const json& event, History& history) {
  const std::string kind = text_at(event, "kind");
  if (kind == "start" || kind == "resume") {
    history.status = Status::unfinished;
    history.error.clear();
    history.digest.clear();  // the state goes on
    history.figures.erase("weights_digest");
    if (const auto at = event.find("host"); at != event.end()) history.host = *at;
  }
  if (kind == "error") history.error = text_at(event, "message");
  if (kind == "end") {
    history.status = status_from(text_at(event, "status"));
    history.steps = std::max(history.steps, count_at(event, "step"));
    history.epoch = std::max(history.epoch, finite_at(event, "epoch"));
    history.digest = text_at(event, "digest");
    if (const std::string text = text_at(event, "message"); !text.empty()) history.error = text;
  }
  if (kind == "target") {
    TargetReached target{.metric = text_at(event, "metric"),
                         .threshold = finite_at(event, "threshold"),
                         .value = finite_at(event, "value"),
                         .step = count_at(event, "step"),
                         .seconds = finite_at(event, "seconds"),
                         .cost = cost_at(event)};
    if (event.contains("samples")) target.samples = count_at(event, "samples");
    history.target = target;
  }
  if (kind == "summary" || kind == "end") {
    // A part of the run whose workers died before they summed up has no figures of its own; those
    // of an earlier part are of this end only where it did not come further.
    const bool has_figures = kind == "summary" || event.contains("updates");
    if (has_figures || history.figures.empty() ||
        count_at(event, "step") != count_at(history.figures, "step")) {
      history.figures = event;
      history.samples.reset();
    }
    if (event.contains("samples")) history.samples = count_at(event, "samples");
  }
  if (const auto cost = cost_at(event)) history.cost = cost;
}

}  // namespace

std::string_view to_string(Status status) {
  switch (status) {
    case Status::unfinished:
      return "unfinished";
    case Status::done:
      return "done";
    case Status::target_reached:
      return "target_reached";
    case Status::interrupted:
      return "interrupted";
    case Status::failed:
      return "failed";
  }
  return "unfinished";
}

Decimator::Decimator(size_t limit) : max_spans_((std::max<size_t>(limit, 8) - 2) / 2) {
  max_spans_ -= max_spans_ % 2;  // spans merge in pairs
}

void Decimator::widen(Span& span, const Span& later) {
  const bool low_is_later = later.low.value < span.low.value;
  const bool high_is_later = later.high.value > span.high.value;
  if (low_is_later && high_is_later) {
    span.low_first = later.low_first;
  } else if (low_is_later != high_is_later) {
    span.low_first = high_is_later;
  }
  if (low_is_later) span.low = later.low;
  if (high_is_later) span.high = later.high;
  span.count += later.count;
}

void Decimator::add(const Point& point) {
  if (!first_) first_ = point;
  last_ = point;
  const Span one{point, point, true, 1};
  if (!spans_.empty() && spans_.back().count < span_points_) return widen(spans_.back(), one);
  if (spans_.size() == max_spans_) {
    for (size_t i = 0; i < spans_.size() / 2; ++i) {
      spans_[i] = spans_[2 * i];
      widen(spans_[i], spans_[2 * i + 1]);
    }
    spans_.resize(spans_.size() / 2);
    span_points_ *= 2;
  }
  spans_.push_back(one);
}

std::vector<Point> Decimator::points() const {
  std::vector<Point> out;
  const auto add = [&](const Point& p) {
    if (out.empty() || !(out.back() == p)) out.push_back(p);
  };
  if (first_) add(*first_);
  for (const Span& span : spans_) {
    add(span.low_first ? span.low : span.high);
    add(span.low_first ? span.high : span.low);
  }
  if (last_) add(*last_);
  return out;
}

const Curve* History::find(std::string_view name) const {
  const auto at =
      std::find_if(curves.begin(), curves.end(), [&](const Curve& c) { return c.name == name; });
  return at == curves.end() ? nullptr : &*at;
}

History read_history(const RunFolder& folder) {
  History history;
  const auto see_time = [&](const json& line) {
    const double time = finite_at(line, "time");
    if (time > 0 && (history.begin_time == 0 || time < history.begin_time)) {
      history.begin_time = time;
    }
    history.end_time = std::max(history.end_time, time);
    history.seconds = std::max(history.seconds, finite_at(line, "seconds"));
  };
  history.bad_lines += for_each_diary_line(folder.events_file(), [&](json& line) {
                         see_time(line);
                         read_event(line, history);
                         history.events.push_back(std::move(line));
                       }).bad;
  const TuningRecord tuning = read_tuning(history.events);
  CurveReader curves;
  history.bad_lines += for_each_diary_line(folder.metrics_file(), [&](json& line) {
                         see_time(line);
                         const int64_t step = count_at(line, "step");
                         history.steps = std::max(history.steps, step);
                         if (!tuning.is_dropped(static_cast<double>(step)))
                           curves.read(line, history);
                       }).bad;
  history.curves = curves.take();
  return history;
}

std::optional<int64_t> last_saved_step(const RunFolder& folder) {
  std::optional<int64_t> last;
  for_each_diary_line(folder.events_file(), [&](json& line) {
    if (text_at(line, "kind") == "checkpoint") last = count_at(line, "step");
  });
  return last;
}

std::optional<ToldEnd> told_end(const RunFolder& folder) {
  std::optional<ToldEnd> out;
  for_each_diary_line(folder.events_file(), [&](json& line) {
    out.reset();
    if (text_at(line, "kind") != "end") return;
    out = {.status = status_from(text_at(line, "status")),
           .step = count_at(line, "step"),
           .unsaved_steps = count_at(line, "unsaved_steps"),
           .error = text_at(line, "message")};
    if (line.contains("checkpoint")) out->checkpoint = count_at(line, "checkpoint");
  });
  return out;
}

std::optional<std::string> told_unsaved(const RunFolder& folder) {
  std::optional<std::string> out;
  for_each_diary_line(folder.events_file(), [&](json& line) {
    const std::string kind = text_at(line, "kind"), event = text_at(line, "event");
    if (kind == "control" && event == "unsaved") {
      out = text_at(line, "text");
    } else if (kind == "start" || kind == "resume" ||
               (kind == "control" && event != "end" && event != "report")) {
      out.reset();  // it goes on
    }
  });
  return out;
}

std::optional<DoneRun> done_run(const RunFolder& folder) {
  const auto end = told_end(folder);
  const bool reached = end && end->status == Status::target_reached;
  if (!reached && !(end && end->status == Status::done)) return std::nullopt;
  return DoneRun{end->step, reached};
}

int64_t told_steps(const RunFolder& folder) {
  int64_t out = 0;
  for_each_diary_line(folder.events_file(), [&](json& line) {
    const std::string kind = text_at(line, "kind");
    if (kind == "start" || kind == "resume") out = std::max<int64_t>(0, count_at(line, "steps"));
  });
  return out;
}

json to_json(const History& history) {
  const auto point = [](const std::optional<Point>& p) -> json {
    if (!p) return nullptr;
    return {{"step", p->step}, {"epoch", p->epoch}, {"seconds", p->seconds}, {"value", p->value}};
  };
  json value = {{"status", to_string(history.status)},
                {"steps", history.steps},
                {"epoch", history.epoch},
                {"seconds", history.seconds},
                {"samples", nullptr},
                {"samples_forward", nullptr},
                {"flops", nullptr},
                {"cost", nullptr},
                {"target", nullptr},
                {"digest", nullptr},
                {"metrics", json::object()}};
  if (history.status == Status::failed) value["error"] = history.error;
  if (history.samples) value["samples"] = *history.samples;
  if (history.cost) value["cost"] = to_json(*history.cost);
  if (!history.digest.empty()) value["digest"] = history.digest;
  for (const char* key :
       {"updates", "samples_forward", "flops", "noise", "final", "best", "weights_digest"}) {
    if (const auto at = history.figures.find(key); at != history.figures.end()) value[key] = *at;
  }
  if (history.target) {
    const TargetReached& t = *history.target;
    value["target"] = {{"metric", t.metric},
                       {"threshold", t.threshold},
                       {"value", t.value},
                       {"step", t.step},
                       {"seconds", t.seconds}};
    if (t.samples) value["target"]["samples"] = *t.samples;
    if (t.cost) value["target"]["cost"] = to_json(*t.cost);
  }
  if (json tuning = tuning_json(history.events); !tuning.is_null())
    value["tuning"] = std::move(tuning);
  for (const Curve& c : history.curves) {
    value["metrics"][c.name] = {
        {"last", point(c.last)}, {"lowest", point(c.lowest)}, {"highest", point(c.highest)},
        {"mean", c.mean},        {"count", c.count},          {"non_finite", c.non_finite}};
  }
  return value;
}

}  // namespace ductile::run
