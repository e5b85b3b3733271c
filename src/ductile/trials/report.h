#pragma once

#include <string>
#include <string_view>

namespace ductile::trials {

class Session;

extern const std::string_view kTuneReportJs;  // tune_report.js

// The page of a session: what was found, the curve of each of the best trials, the best value
// against the epochs spent, and every trial with why it was kept or dropped.
std::string report_html(const Session& session);

// Writes it as report.html; an error of the disk is no error of the search and is ignored.
void leave_report(const Session& session);

}  // namespace ductile::trials
