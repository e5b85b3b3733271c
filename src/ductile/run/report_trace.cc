// The recorded steps of a pipeline, beside what its plan predicted.
#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "ductile/page/html.h"
#include "ductile/page/numbers.h"
#include "ductile/run/report_impl.h"
#include "ductile/run/trace.h"

namespace ductile::run::report {
namespace {

using page::as_short_duration;

constexpr double kWidth = 1200, kLeft = 90, kRow = 26, kBar = 16, kWire = 5;
constexpr int kMostStages = 64;
constexpr size_t kMostBoxes = 20'000;

struct Kind {
  const char* name;
  const char* css;
  const char* words;
};
constexpr std::array<Kind, 5> kKinds = {{{"forward", "f", "forward"},
                                         {"backward", "b", "backward"},
                                         {"weights", "w", "weight gradient"},
                                         {"transfer", "t", "transfer"},
                                         {"wait", "i", "wait"}}};

const Kind* kind_of(const std::string& name) {
  const auto found =
      std::ranges::find_if(kKinds, [&](const Kind& kind) { return name == kind.name; });
  return found == kKinds.end() ? nullptr : &*found;
}

// Rows of stages over `seconds`, which both pictures share.
std::string picture(const StageTimeline& timeline, int stages, double seconds, const char* label) {
  const int rows = std::min(stages, kMostStages);
  const double scale = (kWidth - kLeft) / seconds;
  std::string out =
      fmt::format("<svg class=\"trace\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                  kWidth, rows * kRow, label);
  for (int s = 0; s < rows; ++s) {
    out += fmt::format(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">stage {}</text><rect class=\"lane\" x=\"{}\" "
        "y=\"{}\" width=\"{}\" height=\"{}\"/>\n",
        kLeft - 8, s * kRow + 12, s, kLeft, s * kRow, kWidth - kLeft, kBar);
  }
  size_t boxes = 0;
  for (const StageInterval& i : timeline.intervals) {
    const Kind* kind = kind_of(i.kind);
    if (kind == nullptr || i.stage >= rows || ++boxes > kMostBoxes) continue;
    const bool beside = i.to >= 0;
    out += fmt::format(
        "<rect class=\"{}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\"><title>stage {}: "
        "{} "
        "of micro-batch {}, {} to {}</title></rect>\n",
        kind->css, kLeft + i.begin * scale, i.stage * kRow + (beside ? kBar + 2 : 0),
        std::max((i.end - i.begin) * scale, 0.3), beside ? kWire : kBar, i.stage, kind->words,
        i.micro_batch, as_short_duration(i.begin), as_short_duration(i.end));
  }
  return out + "</svg>\n";
}

// Seconds of each kind, by stage.
std::vector<std::array<double, kKinds.size()>> sums_of(const StageTimeline& timeline, int stages) {
  std::vector<std::array<double, kKinds.size()>> out(static_cast<size_t>(stages));
  for (const StageInterval& i : timeline.intervals) {
    const Kind* kind = kind_of(i.kind);
    if (kind == nullptr || i.stage >= stages) continue;
    out[static_cast<size_t>(i.stage)][static_cast<size_t>(kind - kKinds.data())] += i.end - i.begin;
  }
  return out;
}

std::string memory_of(const StageTimeline& timeline, int stage) {
  const auto found = timeline.memory.find(stage);
  return found == timeline.memory.end() ? std::string() : page::as_bytes(found->second);
}

std::string sums_table(const StageTimeline& recorded, const StageTimeline& predicted, int stages) {
  std::vector<page::HtmlTable::Column> columns = {{"Stage", true}, {"Worker", true}};
  for (const Kind& kind : kKinds) columns.push_back({kind.words, true});
  const bool compares = !predicted.intervals.empty();
  columns.push_back({"computing", true});
  if (compares) columns.push_back({"computing, predicted", true});
  const bool has_memory = !recorded.memory.empty(), compares_memory = !predicted.memory.empty();
  if (has_memory) columns.push_back({"memory", true});
  if (has_memory && compares_memory) columns.push_back({"memory, predicted", true});
  page::HtmlTable table(columns, "stages");
  const auto own = sums_of(recorded, stages), plan = sums_of(predicted, stages);
  const auto computing = [](const auto& of) { return of[0] + of[1] + of[2]; };
  std::map<int, int> workers;
  for (const StageInterval& i : recorded.intervals) workers[i.stage] = i.worker;
  for (int s = 0; s < stages; ++s) {
    const auto at = static_cast<size_t>(s);
    std::vector<page::Cell> cells = {std::to_string(s), std::to_string(workers[s])};
    for (const double sum : own[at]) cells.emplace_back(as_short_duration(sum));
    cells.emplace_back(as_short_duration(computing(own[at])));
    if (compares) cells.emplace_back(as_short_duration(computing(plan[at])));
    if (has_memory) cells.emplace_back(memory_of(recorded, s));
    if (has_memory && compares_memory) cells.emplace_back(memory_of(predicted, s));
    table.row(cells);
  }
  return table.html();
}

}  // namespace

std::string trace_html(const RunFolder& folder, int64_t pipelines) {
  std::vector<StageTimeline> steps = read_trace(folder);
  if (steps.empty()) return {};
  std::ranges::sort(steps, {}, &StageTimeline::seconds);
  const StageTimeline& shown = steps[steps.size() / 2];
  const StageTimeline predicted = predicted_timeline(folder);
  const int stages = std::max(shown.num_stages(), predicted.num_stages());
  const double seconds = std::max({shown.seconds(), predicted.seconds(), 1e-9});
  std::string out =
      fmt::format("<p>Step {}, the median of {} recorded: {} from the first task to the last",
                  page::with_thousands(static_cast<double>(shown.step)), steps.size(),
                  as_short_duration(shown.seconds()));
  if (!predicted.intervals.empty()) {
    out += fmt::format("; the plan predicted {}, {:.2f} times as long",
                       as_short_duration(predicted.seconds()),
                       predicted.seconds() / std::max(shown.seconds(), 1e-9));
  }
  if (pipelines > 1) out += fmt::format(". It is that of the first of {} pipelines", pipelines);
  out += ". trace.json has all of them for Perfetto.</p>\n<p class=\"keys\">";
  for (const Kind& kind : kKinds) {
    out += fmt::format(
        "<svg class=\"trace key\" viewBox=\"0 0 12 12\"><rect class=\"{}\" width=\"12\" "
        "height=\"12\"/></svg> {} ",
        kind.css, kind.words);
  }
  out += "</p>\n<p class=\"label\">Recorded</p>\n";
  out += picture(shown, stages, seconds, "recorded timeline");
  if (!predicted.intervals.empty()) {
    out += "<p class=\"label\">Predicted</p>\n";
    out += picture(predicted, stages, seconds, "predicted timeline");
  }
  out += sums_table(shown, predicted, stages);
  if (!shown.memory.empty()) {
    out +=
        "<p>Memory is the most at one time that a stage has beside its weights, their gradients "
        "and "
        "the optimiser's state, as libtorch's allocator counts it.</p>\n";
  }
  return out;
}

}  // namespace ductile::run::report
