#include "ductile/run/trace.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/run/json_lines.h"

namespace ductile::run {
namespace {

using nlohmann::json;

json interval_json(const StageInterval& i) {
  return {{"kind", i.kind},     {"stage", i.stage},
          {"worker", i.worker}, {"micro_batch", i.micro_batch},
          {"begin", i.begin},   {"end", i.end}};
}

// What a job can have; the files may be anybody's.
constexpr int64_t kMostStages = 65'536;
constexpr double kMostSeconds = 1e9;
constexpr double kMostMemory = 1e18;
constexpr uintmax_t kMostBytes = 256 << 20;

int stage_from(const json& value) {
  const auto stage = value.get<int64_t>();
  if (stage < 0 || stage >= kMostStages) fail(ErrorCode::data_loss, "a stage {}", stage);
  return static_cast<int>(stage);
}

double bytes_from(const json& value) {
  const auto bytes = value.get<double>();
  if (!(bytes >= 0 && bytes <= kMostMemory)) fail(ErrorCode::data_loss, "{} bytes", bytes);
  return bytes;
}

// Throws what is no interval.
StageInterval interval_from(const json& value) {
  StageInterval out;
  value.at("kind").get_to(out.kind);
  out.stage = stage_from(value.at("stage"));
  out.worker = value.value("worker", -1);
  out.micro_batch = value.value("micro_batch", int64_t{0});
  value.at("begin").get_to(out.begin);
  value.at("end").get_to(out.end);
  if (value.contains("to")) out.to = stage_from(value.at("to"));
  if (!(out.begin >= 0) || !(out.end >= out.begin) || !(out.end <= kMostSeconds)) {
    fail(ErrorCode::data_loss, "an interval from {} to {}", out.begin, out.end);
  }
  return out;
}

// The Trace Event Format counts microseconds.
constexpr double kMicro = 1e6;

class ChromeTrace {
 public:
  void process(int pid, const std::string& name) { meta(pid, 0, "process_name", name); }

  void add(int pid, const StageInterval& i, double start, json args) {
    // Messages of a prediction travel beside what the stage computes: they get a thread of their
    // own.
    const bool beside = i.to >= 0;
    const int tid = 2 * i.stage + (beside ? 1 : 0);
    if (const auto [place, is_new] = threads_.try_emplace({pid, tid}); is_new) {
      meta(pid, tid, "thread_name", fmt::format("stage {}{}", i.stage, beside ? ", messages" : ""));
    }
    std::string name = fmt::format("{} {}", i.kind, i.micro_batch);
    if (beside) name += fmt::format(" to stage {}", i.to);
    args["micro_batch"] = i.micro_batch;
    events_.push_back({{"ph", "X"},
                       {"pid", pid},
                       {"tid", tid},
                       {"name", name},
                       {"cat", i.kind},
                       {"ts", (start + i.begin) * kMicro},
                       {"dur", (i.end - i.begin) * kMicro},
                       {"args", std::move(args)}});
  }

  std::string text() && {
    return dump_json(json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events_)}});
  }

 private:
  void meta(int pid, int tid, const char* what, const std::string& name) {
    events_.push_back(
        {{"ph", "M"}, {"pid", pid}, {"tid", tid}, {"name", what}, {"args", {{"name", name}}}});
  }

  json events_ = json::array();
  std::map<std::pair<int, int>, bool> threads_;
};

}  // namespace

double StageTimeline::seconds() const {
  double end = 0;
  for (const StageInterval& i : intervals) end = std::max(end, i.end);
  return end;
}

int StageTimeline::num_stages() const {
  int most = -1;
  for (const StageInterval& i : intervals) most = std::max(most, i.stage);
  return most + 1;
}

void append_trace(const RunFolder& folder, const StageTimeline& step) {
  json intervals = json::array();
  for (const StageInterval& i : step.intervals) intervals.push_back(interval_json(i));
  json line = {{"step", step.step}, {"time", step.time}, {"intervals", std::move(intervals)}};
  for (const auto& [stage, bytes] : step.memory) {
    line["memory"].push_back({{"stage", stage}, {"bytes", bytes}});
  }
  JsonLines(trace_file(folder)).append(line);
}

std::vector<StageTimeline> read_trace(const RunFolder& folder) {
  std::map<int64_t, StageTimeline> steps;
  std::error_code none;
  if (const auto size = fs::file_size(trace_file(folder), none); !none && size > kMostBytes) {
    return {};
  }
  for_each_json_line(trace_file(folder), [&](const json& line) {
    try {
      StageTimeline step;
      line.at("step").get_to(step.step);
      line.at("time").get_to(step.time);
      for (const json& i : line.at("intervals")) step.intervals.push_back(interval_from(i));
      for (const json& m : line.value("memory", json::array())) {
        step.memory[stage_from(m.at("stage"))] = bytes_from(m.at("bytes"));
      }
      steps[step.step] = std::move(step);
    } catch (const std::exception&) {  // as a torn line
    }
  });
  std::vector<StageTimeline> out;
  for (auto& [number, step] : steps) {
    if (!step.intervals.empty()) out.push_back(std::move(step));
  }
  return out;
}

StageTimeline predicted_timeline(const RunFolder& folder) {
  StageTimeline out;
  json plan;
  try {
    plan =
        parse_json(read_text(plan_file(folder)), plan_file(folder).string(), ErrorCode::data_loss);
    for (const json& i : plan.at("timeline")) out.intervals.push_back(interval_from(i));
  } catch (const std::exception&) {  // there is none
    out.intervals.clear();
  }
  try {
    int stage = 0;
    for (const json& of_stage : plan.at("evaluation").at("stages")) {
      if (of_stage.contains("state_memory")) {
        out.memory[stage] = std::max(
            0.0, bytes_from(of_stage.at("peak_memory")) - bytes_from(of_stage.at("state_memory")));
      }
      ++stage;
    }
  } catch (const std::exception&) {
    out.memory.clear();
  }
  return out;
}

void write_chrome_trace(const RunFolder& folder) {
  const std::vector<StageTimeline> steps = read_trace(folder);
  if (steps.empty()) return;
  // A step that was recorded again after a kill may have begun after a later one.
  const double start = std::ranges::min(steps, {}, &StageTimeline::time).time;
  ChromeTrace trace;
  trace.process(1, "recorded");
  for (const StageTimeline& step : steps) {
    for (const StageInterval& i : step.intervals) {
      trace.add(1, i, step.time - start, {{"step", step.step}, {"worker", i.worker}});
    }
  }
  const StageTimeline predicted = predicted_timeline(folder);
  if (!predicted.intervals.empty()) trace.process(2, "predicted");
  for (const StageInterval& i : predicted.intervals) trace.add(2, i, 0, json::object());
  write_file_atomic(chrome_trace_file(folder), std::move(trace).text());
}

}  // namespace ductile::run
