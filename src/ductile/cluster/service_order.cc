// Jobs that begin after others have finished, and those that somebody holds.
#include <algorithm>
#include <set>
#include <string>

#include <fmt/format.h>

#include "ductile/cluster/service_impl.h"
#include "ductile/cluster/service_spec_impl.h"

namespace ductile::cluster {
namespace {

constexpr size_t kMostInText = 5;  // jobs

// Why what was to follow never begins.
std::string text_of_never(JobId id, const std::string& name, const std::string& what) {
  return fmt::format("It was to begin after job {}{} had finished, which {}, so it was cancelled.",
                     id, name.empty() ? "" : fmt::format(" ({})", name), what);
}

}  // namespace

std::string text_of_order(const std::set<JobId>& after) {
  std::string names;
  size_t count = 0;
  for (const JobId id : after) {
    if (++count > kMostInText) break;
    const bool last = count == std::min(after.size(), kMostInText);
    names += fmt::format("{}{}", count == 1 ? "" : last ? " and " : ", ", id);
  }
  if (after.size() > kMostInText) names += fmt::format(" and {} more", after.size() - kMostInText);
  return fmt::format("It begins after job{} {} {} finished.", after.size() == 1 ? "" : "s", names,
                     after.size() == 1 ? "has" : "have");
}

std::string who_paused(const JobRecord& record) {
  const bool own = record.held_by.empty() || record.held_by == record.submission.owner;
  return own ? "its user" : record.held_by;
}

std::string text_of_pause(const JobRecord& record) {
  const std::string who = who_paused(record);
  return fmt::format("{} paused it.", who == "its user" ? "Its user" : who);
}

// Notes what the job, which is just taken up, begins after; why it never does, or empty.
std::string Service::Impl::await_earlier(Live& live) {
  for (const EarlierJob& earlier : reader_.awaited_by(live.record.id)) {
    if (earlier.phase == Phase::finished) continue;
    if (!earlier.phase) return text_of_never(earlier.id, "", "has ended otherwise and was removed");
    if (has_ended(*earlier.phase))
      return text_of_never(earlier.id, earlier.name,
                           *earlier.phase == Phase::failed ? "failed" : "was cancelled");
    live.after.insert(earlier.id);
    later_[earlier.id].insert(live.record.id);
  }
  return "";
}

// The store says that the job is over. What was to follow begins in its turn once nothing else is
// to finish before it, or never.
void Service::Impl::go_on_after(JobId id, const std::string& name, Phase phase) {
  const auto later = later_.extract(id);
  if (later.empty() || stopping_) return;
  for (const JobId next : later.mapped()) {
    const auto known = live_.find(next);
    if (known == live_.end() || known->second.after.erase(id) == 0) continue;
    Live& live = known->second;
    if (phase != Phase::finished) {
      end(next, Phase::cancelled,
          text_of_never(id, name, phase == Phase::failed ? "failed" : "was cancelled"));
    } else if (live.record.phase == Phase::queued) {
      admit(live);
    }
  }
}

}  // namespace ductile::cluster
