#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/page/html.h"
#include "ductile/run/folder.h"
#include "ductile/run/history.h"
#include "ductile/spec/job.h"

namespace ductile::run {

extern const std::string_view kReportCss, kReportJs;  // report.css, report.js

}  // namespace ductile::run

// The parts that report.cc puts together.
namespace ductile::run::report {

// The text of this name, other values as JSON; empty where there is none.
std::string text_at(const nlohmann::json& object, const char* key);

// One event as a row of the timeline: a kind known to the style sheet, and a sentence.
struct Row {
  std::string kind;  // the event's own
  std::string tone;  // plain, good, notice, bad
  std::string text;  // not escaped
};
Row describe_event(const nlohmann::json& event);

// The events that are listed, each as a row; `event` is in the history. Those that a table of their
// own has (trials of a tuner, rounds of probes) are not listed again. Of new hyperparameters the
// row tells which are others than before.
struct ShownEvent {
  const nlohmann::json* event;
  Row row;
};
std::vector<ShownEvent> shown_events(const History& history, const spec::JobOptions& job);

// Tiles and a section of what the last summary or end says: what was done, how good the classes
// are, the noise of the gradients. Nothing is shown where nothing is known.
void add_work(std::vector<page::Tile>& tiles, const nlohmann::json& figures);
void add_classes(std::vector<page::Tile>& tiles, const nlohmann::json& figures);
void add_noise(std::vector<page::Tile>& tiles, const nlohmann::json& figures);
std::string classes_html(const nlohmann::json& figures);

// What a class of an evaluation is called: its name, or its number.
std::string class_name(const nlohmann::json& of);

// The rounds of probes that chose learning rates (train.rate_control = "lrtuner"): for each its
// losses, fit and choice. Empty where there were none.
std::string probe_rounds_html(const History& history);

// What a tuner inside the run tried and kept (tune.online): a table of what it cost beside the
// whole run, and one of all trials; empty where there were none. And a sentence for what a search
// ended with or that the run went back. Other events of trials are in the tables alone.
bool is_trial(const nlohmann::json& event);
std::string tuning_html(const History& history);
std::string tuning_text(const nlohmann::json& event);

// What `ductile minima` measured: a row for each measurement. Empty where there was none.
std::string minima_html(const std::vector<nlohmann::json>& minima);
// The slices of the last measurement that has some, for the script; null where none has.
nlohmann::json slices_data(const std::vector<nlohmann::json>& minima);

// The recorded steps of a pipeline, beside what its plan predicted (run/trace.h). Empty where none
// was recorded.
std::string trace_html(const RunFolder& folder, int64_t pipelines);

// What the workers of a job by stages had in memory (the event `memory`): a sentence, and of the
// last one a table, beside what the run's plan counted. The table is empty where nothing was told.
std::string memory_text(const nlohmann::json& event);
std::string memory_html(const History& history, const RunFolder& folder);

// The data the script draws: panels of curves, marks, workers over time.
nlohmann::json chart_data(const History& history, const spec::JobOptions& job);

}  // namespace ductile::run::report
