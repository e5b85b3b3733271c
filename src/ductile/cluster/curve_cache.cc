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

std::shared_ptr<CurveCache::Entry> CurveCache::entry_of(const fs::path& run) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::ranges::find_if(entries_, [&](const auto& entry) { return entry->run == run; });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
  } else {
    entries_.push_front(std::make_shared<Entry>(run));
    if (entries_.size() > kMost) entries_.pop_back();  // who reads it now has it still
  }
  return entries_.front();
}

CurveCache::Curves CurveCache::of(const fs::path& run) {
  const auto folder = run::RunFolder::open(run);
  const std::string version = version_of(folder);
  const std::shared_ptr<Entry> entry = entry_of(run);
  const std::lock_guard lock(entry->mutex);
  if (entry->curves.version == version || Clock::now() < entry->again) return entry->curves;
  const auto begin = Clock::now();
  entry->curves = {version, dump_json(run::chart_data(folder))};
  const auto end = Clock::now();
  entry->again = end + 10 * (end - begin);
  return entry->curves;
}

}  // namespace ductile::cluster
