#pragma once

#include <string>
#include <string_view>

#include "ductile/cluster/database.h"
#include "ductile/cluster/records.h"

namespace ductile::cluster {

// A query for whole jobs: `rest` follows "FROM jobs".
std::string select_jobs(std::string_view rest);
// A row of its result. Throws data_loss for a word that nobody wrote there.
JobRecord job_of(const Row& row);

}  // namespace ductile::cluster
