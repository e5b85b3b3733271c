// Jobs that begin after others: what is written of them.
#include <algorithm>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/cluster/store.h"

namespace ductile::cluster {

// Those of them that have not finished yet, each once.
std::vector<JobId> Change::unfinished(const std::vector<JobId>& jobs) {
  std::vector<JobId> out;
  for (const JobId id : jobs) {
    const JobRecord earlier = job(id);
    if (earlier.phase == Phase::finished) continue;
    if (has_ended(earlier.phase))
      fail(ErrorCode::conflict,
           "job {} ({}) is {}, so what is to begin after it has finished would never begin", id,
           earlier.submission.name, to_string(earlier.phase));
    if (earlier.submission.kind == "serve")
      fail(ErrorCode::conflict,
           "job {} ({}) answers requests until it is cancelled, so what is to begin after it has "
           "finished would never begin",
           id, earlier.submission.name);
    out.push_back(id);
  }
  std::ranges::sort(out);
  out.erase(std::ranges::unique(out).begin(), out.end());
  return out;
}

void Change::require_room_behind(const std::vector<JobId>& jobs, int64_t more) {
  constexpr int64_t kMostLater = 5000;
  for (const JobId id : jobs) {
    const int64_t later = database_.integer("SELECT count(*) FROM waits WHERE earlier = ?", 0, id);
    if (later + more > kMostLater)
      fail(ErrorCode::conflict,
           "job {}: {} more cannot begin after it, since {} do already, and {} at most can", id,
           more, later, kMostLater);
  }
}

// The job has ended in this phase. What waits for one that has not finished keeps its row, by which
// the service, or the next one, finds what is never to begin.
void Change::end_waits(JobId id, Phase phase, double now) {
  database_.run("DELETE FROM waits WHERE job = ?", id);
  if (phase != Phase::finished) return;
  std::vector<JobId> later;
  database_.query(
      "SELECT job FROM waits WHERE earlier = ? ORDER BY job",
      [&](const Row& row) { later.push_back(row.integer(0)); }, id);
  if (later.empty()) return;
  database_.run("DELETE FROM waits WHERE earlier = ?", id);
  for (const JobId next : later)
    touch(next, "after", dump_json(nlohmann::ordered_json{{"finished", id}}), now);
}

}  // namespace ductile::cluster
