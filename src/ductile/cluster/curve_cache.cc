#include "ductile/cluster/curve_cache.h"

#include <algorithm>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/run/report.h"

namespace ductile::cluster {
namespace {

using Clock = std::chrono::steady_clock;

// Lines are only ever added to either file.
std::string version_of(const run::RunFolder& folder) {
  std::string out;
  for (const fs::path& file : {folder.metrics_file(), folder.events_file()}) {
    std::error_code error;
    const auto size = fs::file_size(file, error);
    out += (out.empty() ? "" : "-") + std::to_string(error ? 0 : size);
  }
  return out;
}

}  // namespace

CurveCache::Curves CurveCache::of(const fs::path& run) {
  const auto folder = run::RunFolder::open(run);
  const std::string version = version_of(folder);
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(entries_, [&](const Entry& e) { return e.run == run; });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    if (found->curves.version == version || Clock::now() < found->again) return found->curves;
  }
  const auto begin = Clock::now();
  Curves curves{version, dump_json(run::chart_data(folder))};
  if (found == entries_.end()) entries_.emplace_front();
  entries_.front() = {run, std::move(curves), Clock::now() + 10 * (Clock::now() - begin)};
  if (entries_.size() > kMost) entries_.pop_back();
  return entries_.front().curves;
}

}  // namespace ductile::cluster
