#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ductile/sim/experiment.h"

namespace ductile::sim {

// A page that needs nothing but itself: the policies' figures, distributions of completion times,
// goodput and queue over time, and for each run the cluster's timeline with devices as rows (nodes,
// where there are more than 256 devices) and jobs as bars. Same runs, same bytes.
// `about`: under the heading, what the runs were made with.
std::string report_html(const std::vector<ExperimentRun>& runs, const sched::Cluster& cluster,
                        std::string_view about = {});

}  // namespace ductile::sim
