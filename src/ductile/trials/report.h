#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace ductile::trials {

class Session;
struct TrialRecord;

extern const std::string_view kTuneReportJs;  // tune_report.js

// The page of a session: what was found, the curves of the trials, and every trial with why it was
// kept or dropped.
std::string report_html(const Session& session);

// What its chart draws: a curve for each trial that has values, in this order, the best first.
// Eight that did not diverge have colours and names; up to 300 others are "faint", with at most 40
// points each, and so that the others can be seen beside them: values far above theirs, of a metric
// that is to be low, are cut.
nlohmann::json curves_of(const std::vector<TrialRecord>& trials, const std::vector<int64_t>& order,
                         std::string_view metric);

// Writes it as report.html; an error of the disk is no error of the search and is ignored.
void leave_report(const Session& session);

}  // namespace ductile::trials
