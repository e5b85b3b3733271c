#include "ductile/cluster/ledger.h"

#include <algorithm>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"

namespace ductile::cluster {

void Ledger::end_spans(JobId job, double time) {
  const auto found = held_.find(job);
  if (found == held_.end()) return;
  for (HeldSpan& span : found->second) {
    span.to = std::max(time, span.from);  // a clock may have been set back
    sums_[job] += static_cast<double>(span.devices) * (*span.to - span.from);
    ended_.push_back(std::move(span));
    if (ended_.size() > kMostSpans) ended_.pop_front();
  }
  held_.erase(found);
}

void Ledger::add(const Event& event) {
  if (event.seq <= seen_) return;
  seen_ = event.seq;
  if (event.kind != "allocation") {
    // A phase other than running takes everything.
    for (const char* phase : {"queued", "paused", "finished", "failed", "cancelled"})
      if (event.kind == phase) end_spans(event.job, event.time);
    return;
  }
  const auto body = parse_json(event.body);
  if (!body.is_object() || !body.contains("nodes") || !body["nodes"].is_object()) return;
  end_spans(event.job, event.time);
  for (const auto& [node, devices] : body["nodes"].items()) {
    if (!devices.is_number_integer() || devices.get<int64_t>() < 1) continue;
    held_[event.job].push_back({event.job, node, devices.get<int64_t>(), event.time, {}});
  }
}

std::vector<HeldSpan> Ledger::spans(double since) const {
  std::vector<HeldSpan> out;
  for (const HeldSpan& span : ended_)
    if (*span.to > since) out.push_back(span);
  for (const auto& [job, spans] : held_) out.insert(out.end(), spans.begin(), spans.end());
  return out;
}

double Ledger::device_seconds(JobId job, double now) const {
  const auto sum = sums_.find(job);
  double out = sum == sums_.end() ? 0 : sum->second;
  if (const auto held = held_.find(job); held != held_.end())
    for (const HeldSpan& span : held->second)
      out += static_cast<double>(span.devices) * std::max(0.0, now - span.from);
  return out;
}

void Ledger::keep_only(const std::set<JobId>& jobs) {
  std::erase_if(sums_, [&](const auto& sum) { return !jobs.contains(sum.first); });
}

}  // namespace ductile::cluster
