#include "ductile/cluster/curve_cache.h"

#include <algorithm>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/run/report.h"

namespace ductile::cluster {
namespace {

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

CurveCache::CurveCache(Read read, Now now)
    : read_(read ? std::move(read)
                 : [](const run::RunFolder& folder) { return dump_json(run::chart_data(folder)); }),
      now_(std::move(now)) {}

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
  const std::shared_ptr<Entry> entry = entry_of(run);
  std::unique_lock lock(entry->mutex);
  // Whoever has nothing to show waits for the one who reads.
  entry->known.wait(lock, [&] { return !entry->reading || entry->curves; });
  const std::string version = version_of(folder);
  const bool is_newest = !entry->failure && entry->curves && entry->curves->version == version;
  if (!entry->reading && !is_newest && now_() >= entry->again) {
    entry->reading = true;
    lock.unlock();
    read(*entry, folder, version);
    lock.lock();
  }
  if (entry->failure) std::rethrow_exception(entry->failure);
  return *entry->curves;
}

void CurveCache::read(Entry& entry, const run::RunFolder& folder, std::string version) const {
  const auto begin = now_();
  std::optional<Curves> curves;
  std::exception_ptr failure;
  try {
    curves = Curves{std::move(version), read_(folder)};
  } catch (...) {
    failure = std::current_exception();
  }
  const auto end = now_();
  const std::lock_guard lock(entry.mutex);
  entry.reading = false;
  entry.failure = failure;
  if (curves) entry.curves = std::move(curves);
  entry.again = end + 10 * (end - begin);
  entry.known.notify_all();
}

}  // namespace ductile::cluster
