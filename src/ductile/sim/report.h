#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ductile/sim/metrics.h"
#include "ductile/sim/simulator.h"

namespace ductile::sim {

// One policy on one workload, for the report.
struct ReportRun {
  SimResult result;
  Summary summary;
  int64_t seed = 0;
};

// A page that needs nothing but itself: the policies' figures, distributions of completion times,
// goodput and queue over time, and for each run the cluster's timeline with devices as rows (nodes,
// where there are more than 256 devices) and jobs as bars. Same runs, same bytes.
// `about`: under the heading, what the runs were made with.
std::string report_html(const std::vector<ReportRun>& runs, const sched::Cluster& cluster,
                        std::string_view about = {});

}  // namespace ductile::sim
