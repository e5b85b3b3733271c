#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "ductile/run/folder.h"
#include "ductile/run/history.h"

namespace ductile::run {

// Writes report.html atomically from job.toml, events.jsonl, metrics.jsonl and minima.jsonl; where
// steps of a pipeline were recorded, from trace.jsonl and plan.json too, and trace.json (trace.h).
// Style, script and data are in the page, so it may be mailed or archived. It may be written at any
// time of a run, with any of the files missing, and again later. Curves are reduced to 2,000 points
// each, with their extremes. Every text from the run is escaped. Throws unavailable that names the
// file (disk full, no permission).
void write_report(const RunFolder& folder);

// The same at the end of a run, which does not fail if the page cannot be written. Returns "" if it
// was written, otherwise a warning that says why not, and what to do.
std::string leave_report(const RunFolder& folder);

// The same page from its parts. `job_toml` is the text of job.toml; empty: there is none.
std::string report_html(const RunFolder& folder, const History& history, std::string_view job_toml);

// What the page's charts are drawn from: "panels" of curves, "marks" of events and how many of each
// of their "kinds", "steps", "epoch" and "seconds". Damage and absence of files make it emptier.
nlohmann::json chart_data(const RunFolder& folder);

// The history as numbers (to_json()), without a target that the job has no more. Throws as
// write_report() does.
nlohmann::json report_json(const RunFolder& folder);

}  // namespace ductile::run
