#pragma once

#include <vector>

#include "ductile/cluster/store.h"

namespace ductile::cluster::testing {

// All jobs that the filter leaves, asked for page by page.
inline std::vector<JobRecord> all_pages(Reader& reader, const JobFilter& filter) {
  constexpr int64_t kPage = 7;
  std::vector<JobRecord> out;
  for (JobId before = 0;;) {
    const auto page = reader.jobs(filter, before, kPage);
    if (page.empty()) return out;
    out.insert(out.end(), page.begin(), page.end());
    before = page.back().id;
  }
}

}  // namespace ductile::cluster::testing
