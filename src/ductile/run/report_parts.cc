#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <map>

#include <fmt/format.h>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/page/numbers.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/metrics.h"
#include "ductile/run/report_impl.h"

namespace ductile::run::report {
namespace {

using nlohmann::json;
using page::as_bytes;
using page::as_duration;
using page::as_number;
using page::as_percent;
using page::with_thousands;

constexpr size_t kMarks = 500;  // of what is plain, and of what is not: of more, evenly chosen ones

std::string count_text(double value) { return std::isfinite(value) ? with_thousands(value) : "?"; }

// "key value, key value" of the fields that have no sentence of their own.
std::string other_fields(const json& event) {
  std::string out;
  for (const auto& [key, value] : event.items()) {
    if (key == "time" || key == "seconds" || key == "kind" || key == "step" || key == "host") {
      continue;
    }
    if (!out.empty()) out += ", ";
    out += key + " " + (value.is_string() ? value.get<std::string>() : dump_json(value));
    if (out.size() > 400) return out.substr(0, 400) + " ...";
  }
  return out;
}

void append(std::string& out, const std::string& more) {
  if (!out.empty()) out += ", ";
  out += more;
}

}  // namespace

std::string class_name(const json& of) {
  const std::string name = text_at(of, "name");
  return name.empty() ? text_at(of, "class") : name;
}

namespace {

std::string evaluation_text(const json& event) {
  std::string out;
  for (const char* key : {"accuracy", "loss", "perplexity"}) {
    const double value = number_at(event, key);
    if (!event.contains(key)) continue;
    append(out, std::string(key) + " " +
                    (std::string_view(key) == "accuracy" ? as_percent(value) : as_number(value)));
  }
  if (const auto worst = event.find("worst_class"); worst != event.end() && worst->is_object())
    append(out, fmt::format("worst class {} with {}", class_name(*worst),
                            as_percent(number_at(*worst, "accuracy"))));
  if (event.contains("duration")) append(out, "took " + as_duration(number_at(event, "duration")));
  return "Evaluated: " + (out.empty() ? other_fields(event) : out);
}

std::string checkpoint_text(const json& event) {
  std::string out;
  if (event.contains("bytes")) append(out, as_bytes(number_at(event, "bytes")));
  if (event.contains("bytes_written")) {
    append(out, as_bytes(number_at(event, "bytes_written")) + " of it new");
  }
  if (event.contains("blocking_ms")) {
    append(out, fmt::format("training waited {:.1f} ms", number_at(event, "blocking_ms")));
  }
  return "Checkpoint" + (out.empty() ? out : ": " + out);
}

// Six digits are more than a screen shows.
json short_number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

json points_json(const std::vector<Point>& points) {
  json step = json::array(), epoch = json::array(), seconds = json::array(), value = json::array();
  for (const Point& p : points) {
    step.push_back(p.step);
    epoch.push_back(short_number(p.epoch));
    seconds.push_back(std::round(p.seconds * 100) / 100);
    value.push_back(short_number(p.value));
  }
  return {{"step", step}, {"epoch", epoch}, {"seconds", seconds}, {"value", value}};
}

// What a metric's name says: who measured it and what.
struct Named {
  std::string who;   // "train", "eval" or empty
  std::string what;  // "loss"
};

Named named(const std::string& name) {
  for (const char* who : {"train", "eval"}) {
    const std::string prefix = std::string(who) + "/";
    if (name.starts_with(prefix)) return {who, name.substr(prefix.size())};
  }
  return {"", name};
}

std::string title_of(const std::string& what) {
  static const std::map<std::string, std::string> kTitles = {
      {"loss", "Loss"},
      {"accuracy", "Accuracy"},
      {"perplexity", "Perplexity"},
      {"calibration_error", "Calibration error"},
      {"lr", "Learning rate"},
      {"batch_size", "Batch size"},
      {"noise_scale", "Gradient noise scale (samples)"},
      {"samples_per_second", "Throughput (samples/s)"},
      {"examined", "Samples offered, per update"},
      {"selected", "Samples chosen, per update"},
      {"reweighted", "Samples with a larger weight, per update"},
  };
  const auto at = kTitles.find(what);
  return at == kTitles.end() ? what : at->second;
}

int rank_of(const std::string& what) {
  static constexpr std::string_view kOrder[] = {
      "loss", "accuracy",   "perplexity",  "calibration_error",
      "lr",   "batch_size", "noise_scale", "samples_per_second"};
  return static_cast<int>(std::find(std::begin(kOrder), std::end(kOrder), what) -
                          std::begin(kOrder));
}

// The epoch after a step, between those that the metrics tell: the events of whoever leads the
// workers know their step alone.
class EpochOfStep {
 public:
  explicit EpochOfStep(const History& history) {
    for (const Curve& curve : history.curves)
      for (const Point& p : curve.points) told_[static_cast<double>(p.step)] = p.epoch;
  }

  // What the event says itself, if it does; NaN of one that says no step either.
  double of(const json& event) const {
    const double own = number_at(event, "epoch"), step = number_at(event, "step");
    if (std::isfinite(own) || !std::isfinite(step)) return own;
    const auto after = told_.upper_bound(step);
    if (after == told_.begin()) return 0;
    const auto before = std::prev(after);
    if (after == told_.end()) return before->second;
    const double share = (step - before->first) / (after->first - before->first);
    return before->second + share * (after->second - before->second);
  }

 private:
  std::map<double, double> told_ = {{0, 0}};
};

// The number of workers over the run, a step curve: from the first event that says, changed by each
// resize. Empty when it never changes.
json workers_curve(const History& history, const EpochOfStep& epochs) {
  std::vector<Point> points;
  bool resized = false;
  for (const json& event : history.events) {
    const std::string kind = text_at(event, "kind");
    const double workers = number_at(event, kind == "resize" ? "to" : "workers");
    if (kind != "start" && kind != "resume" && kind != "resize") continue;
    if (!std::isfinite(workers)) continue;
    resized |= kind == "resize";
    const double epoch = epochs.of(event);
    Point p{.step = static_cast<int64_t>(number_at(event, "step", 0)),
            .epoch = std::isfinite(epoch) ? epoch : 0,
            .seconds = number_at(event, "seconds", 0),
            .value = workers};
    points.push_back(p);
  }
  if (!resized) return nullptr;
  Point end = points.back();
  end.step = std::max(end.step, history.steps);
  end.epoch = std::max(end.epoch, history.epoch);
  end.seconds = std::max(end.seconds, history.seconds);
  points.push_back(end);
  return points_json(points);
}

bool says(const json& event, const char* key) { return event.contains(key) && event[key] == true; }

std::string replan_text(const json& event, bool same) {
  const double workers = number_at(event, "workers");
  const std::string who = fmt::format(
      "Planned anew for {} worker{}, whose memory did not hold the stages of the plan "
      "before",
      count_text(workers), workers == 1 ? "" : "s");
  const std::string step = count_text(number_at(event, "step"));
  const std::string kept =
      event.contains("plan_before") ? "; the plan before is " + text_at(event, "plan_before") : "";
  if (!same)
    return fmt::format("{}: from step {} on the result is that of another plan{}", who, step, kept);
  if (number_at(event, "from") == number_at(event, "to") && !event.contains("given"))
    return fmt::format("{}: they keep less from step {} on, and the result is the same{}", who,
                       step, kept);
  return fmt::format("{}: from step {} on they run other stages, and the result is the same{}{}",
                     who, step, says(event, "may_round") ? ", but for rounding" : "", kept);
}

// "4 stages, 1 replica of each and 8 micro-batches".
std::string plan_text(const json& event, const char* key) {
  if (!event.contains(key) || !event[key].is_object()) return "?";
  const json& plan = event[key];
  const std::string replicas = text_at(plan, "replicas");
  return fmt::format("{}, {} replica{} of each and {} micro-batches",
                     page::plural(number_at(plan, "stages", 0), "stage"), replicas,
                     replicas == "1" ? "" : "s", count_text(number_at(plan, "micro_batches")));
}

std::string other_plan_text(const json& event, bool same) {
  std::string result = "the result is that of another plan";
  if (same) result = "the result is the same to the bit";
  if (same && says(event, "may_round"))
    result +=
        ", unless three or more operators read a tensor, or several hold a weight, across a cut";
  return fmt::format("Another plan, which its user gave it: {} in place of {}; from step {} on {}",
                     plan_text(event, "now"), plan_text(event, "before"),
                     count_text(number_at(event, "step")), result);
}

std::string capitalised(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z')
    text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

// Of the controller: "launch", "worker 1: 2 workers are wanted".
std::string control_text(const json& event) {
  std::string what = text_at(event, "event"), text = text_at(event, "text");
  if (what == "generation") return capitalised(std::move(text));
  if (what == "phase") {  // "queued -> starting: why"
    const size_t arrow = text.find(" -> ");
    if (arrow != std::string::npos) text.replace(arrow, 4, " to ");
    return "From " + text;
  }
  std::ranges::replace(what, '_', ' ');
  return fmt::format("{}: {}", capitalised(std::move(what)), text);
}

// What a worker knew of the run when it had done its last step.
std::string summary_text(const json& event) {
  std::string text = "Figures of the run";
  const auto best = event.find("best");
  if (best == event.end() || !best->is_object()) return text;
  const double accuracy = number_at(*best, "accuracy"), loss = number_at(*best, "loss");
  if (std::isfinite(accuracy)) text += ": best accuracy " + as_percent(accuracy);
  if (std::isfinite(loss))
    text += fmt::format("{}loss {}", std::isfinite(accuracy) ? ", " : ": ", as_number(loss));
  return text;
}

}  // namespace

std::string text_at(const json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end()) return {};
  return at->is_string() ? at->get<std::string>() : dump_json(*at);
}

Row describe_event(const json& event) {
  const std::string kind = text_at(event, "kind");
  const std::string step = count_text(number_at(event, "step"));
  if (kind == "start") {
    const double workers = number_at(event, "workers");
    const char* how = number_at(event, "step") > 0 ? "Went on" : "Started";  // with other workers
    return {kind, "plain",
            std::isfinite(workers)
                ? fmt::format("{} with {:.0f} worker{}", how, workers, workers == 1 ? "" : "s")
                : how};
  }
  if (kind == "resume") return {kind, "notice", "Resumed from the state after step " + step};
  if (kind == "checkpoint") return {kind, "plain", checkpoint_text(event)};
  if (kind == "evaluation") return {kind, "plain", evaluation_text(event)};
  if (kind == "signal") {
    return {kind, "notice", "Received " + text_at(event, "signal") + ": saving and stopping"};
  }
  if (kind == "resize") {
    std::string text =
        fmt::format("Resized from {} to {} workers", count_text(number_at(event, "from")),
                    count_text(number_at(event, "to")));
    if (event.contains("blocking_ms")) {
      text += fmt::format(", training waited {:.0f} ms", number_at(event, "blocking_ms"));
    }
    if (event.contains("reason")) text += ": " + text_at(event, "reason");
    return {kind, "notice", text};
  }
  if (kind == "target") {
    const std::string metric = text_at(event, "metric");
    const double value = number_at(event, "value");
    return {kind, "good",
            fmt::format("Target reached: {} {}", metric,
                        metric == "accuracy" ? as_percent(value) : as_number(value))};
  }
  if (kind == "bad_samples") {
    return {kind, "bad", "Samples skipped because they could not be read: " + other_fields(event)};
  }
  if (kind == "replan") {
    const bool same = says(event, "same_result");
    return {kind, same ? "notice" : "bad",
            says(event, "asked") ? other_plan_text(event, same) : replan_text(event, same)};
  }
  if (kind == "control" && event.contains("event") && event.contains("text"))
    return {kind, "plain", control_text(event)};
  if (kind == "summary") return {kind, "plain", summary_text(event)};
  if (kind == "tune") return {kind, "plain", tuning_text(event)};
  if (kind == "memory") return {kind, "plain", memory_text(event)};
  if (kind == "error") return {kind, "bad", text_at(event, "message")};
  if (kind == "end") {
    const std::string status = text_at(event, "status");
    if (status == "done") return {kind, "good", "Finished"};
    if (status == "target_reached") return {kind, "good", "Finished: the target is reached"};
    if (status == "interrupted") return {kind, "notice", "Stopped on request; can be resumed"};
    return {kind, "bad", "Failed: " + text_at(event, "message")};
  }
  return {kind, "plain", other_fields(event)};
}

json chart_data(const History& history, const spec::JobOptions& job) {
  std::map<std::pair<int, std::string>, json> panels;
  for (const Curve& curve : history.curves) {
    const Named name = named(curve.name);
    const bool is_constant = curve.lowest && curve.lowest->value == curve.highest->value;
    if (name.what == kBatchSize && is_constant) continue;
    json& panel = panels[{rank_of(name.what), name.what}];
    if (panel.is_null()) {
      panel = {{"title", title_of(name.what)},
               {"unit", name.what == "accuracy" || name.what == "calibration_error"    ? "percent"
                        : name.what == "samples_per_second" || name.what == kBatchSize ? "count"
                                                                                       : "number"},
               {"log", name.what == "loss" || name.what == "perplexity"},
               {"zero", name.what == "samples_per_second"},
               {"series", json::array()}};
    }
    json series = points_json(curve.points);
    series["name"] = name.who == "eval" ? "test" : name.who;
    series["smooth"] = name.who == "train" || name.what == "samples_per_second";
    if (curve.non_finite > 0) {
      series["bad"] = curve.non_finite;
      series["bad_step"] = curve.first_non_finite_step;
    }
    if (name.who == "train") {
      panel["series"].insert(panel["series"].begin(), series);
    } else {
      panel["series"].push_back(series);
    }
    if (name.who == "eval" && name.what == job.target.metric) panel["target"] = job.target.value;
  }
  json list = json::array();
  for (auto& [key, panel] : panels) list.push_back(std::move(panel));
  const EpochOfStep epochs(history);
  if (json workers = workers_curve(history, epochs); !workers.is_null()) {
    workers["name"] = "";
    list.push_back({{"title", "Workers"},
                    {"unit", "count"},
                    {"zero", true},
                    {"steps", true},
                    {"series", json::array({workers})}});
  }

  const std::vector<ShownEvent> events = shown_events(history, job);
  json marks = json::array(), kinds = json::object();
  size_t plain = 0, seen[2] = {};
  for (const ShownEvent& shown : events) plain += shown.row.tone == "plain" ? 1U : 0U;
  for (const auto& [event, row] : events) {
    json& count = kinds[row.kind];
    count = count.is_null() ? 1 : count.get<int64_t>() + 1;
    const bool is_plain = row.tone == "plain";
    const size_t each = ((is_plain ? plain : events.size() - plain) + kMarks - 1) / kMarks;
    // The bands of the strip begin where the run does.
    const bool begins = row.kind == "start" || row.kind == "resume";
    if (seen[is_plain ? 1 : 0]++ % each != 0 && !begins) continue;
    json mark = {{"kind", row.kind}, {"tone", row.tone}, {"text", row.text}};
    for (const char* key : {"step", "epoch", "seconds"}) {
      const bool is_epoch = std::string_view(key) == "epoch";
      const double value = is_epoch ? epochs.of(*event) : number_at(*event, key);
      if (std::isfinite(value)) mark[key] = value;
    }
    marks.push_back(std::move(mark));
  }
  return {{"panels", list},
          {"marks", marks},
          {"kinds", kinds},
          {"steps", history.steps},
          {"epoch", short_number(history.epoch)},
          {"seconds", short_number(history.seconds)}};
}

}  // namespace ductile::run::report
