#pragma once

#include <string>
#include <string_view>

#include "ductile/run/folder.h"
#include "ductile/run/history.h"

namespace ductile::run {

// Writes report.html, atomically, from job.toml, events.jsonl and metrics.jsonl. The page needs
// nothing but itself: style, script and data are in it, so it may be mailed or archived. It may be
// written at any time of a run, with any of the files missing, and again later; curves are cut to
// 2,000 points each, extremes kept. Every text from the run is escaped. Throws unavailable naming
// the file (disk full, no permission).
void write_report(const RunFolder& folder);

// The same at the end of a run, which does not fail for want of a page: gives "" where it was
// written, else a warning that says why not and what to do.
std::string leave_report(const RunFolder& folder);

// The same page from parts. `job_toml` is the text of job.toml, empty when there is none.
std::string report_html(const RunFolder& folder, const History& history, std::string_view job_toml);

}  // namespace ductile::run
