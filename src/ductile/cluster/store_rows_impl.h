#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ductile/cluster/database.h"
#include "ductile/cluster/records.h"

namespace ductile::cluster {

// A query for whole jobs: `rest` follows "FROM jobs".
std::string select_jobs(std::string_view rest);
// A row of its result. Throws data_loss for a word that nobody wrote there.
JobRecord job_of(const Row& row);
// `names`: of jobs that have not ended. Throws not_found, with the pattern that names them all,
// where these are those of an array called `text`.
void require_no_array(std::string_view text, const std::vector<std::string>& names);

}  // namespace ductile::cluster
