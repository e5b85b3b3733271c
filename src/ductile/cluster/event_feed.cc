#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/json.h"
#include "ductile/cluster/event_feed_impl.h"
#include "ductile/cluster/routes_impl.h"

namespace ductile::cluster {

std::string EventFeed::text_of(const Event& event) {
  return fmt::format("id: {}\nevent: {}\ndata: {}\n\n", event.seq, event.kind,
                     dump_json(to_json(event)));
}

void EventFeed::follow(Reader& reader, uint64_t commits) {
  const std::lock_guard lock(mutex_);
  if (to_ >= 0 && commits_ >= commits) return;
  if (to_ < 0) from_ = to_ = reader.last_event();  // streams that are behind read the store
  // Nobody listened for long: what memory would forget again is not read. Who is behind asks the
  // store.
  constexpr auto kRemembered = static_cast<Revision>(kMost);
  if (const Revision last = reader.last_event(); last - to_ > kRemembered) {
    entries_.clear();
    from_ = to_ = last - kRemembered;
  }
  const Revision before = to_;
  while (true) {
    const std::vector<Event> events = reader.events(to_, static_cast<int64_t>(kMost));
    for (const Event& event : events) {
      entries_.push_back({event.seq, event.job, text_of(event)});
      to_ = event.seq;
    }
    for (; entries_.size() > kMost; entries_.pop_front()) from_ = entries_.front().seq;
    if (events.size() < kMost) break;
  }
  // What was removed before anybody looked at it is missing here.
  if (const Revision removed = reader.removed_events(); removed > before) {
    from_ = std::max(from_, removed);
    to_ = std::max(to_, removed);
    while (!entries_.empty() && entries_.front().seq <= from_) entries_.pop_front();
  }
  commits_ = commits;
}

bool EventFeed::knows(uint64_t commits) const {
  const std::lock_guard lock(mutex_);
  return to_ >= 0 && commits_ >= commits;
}

Revision EventFeed::newest() const {
  const std::lock_guard lock(mutex_);
  return to_;
}

EventFeed::Rest EventFeed::read(Revision& at, JobId job, std::string& text) const {
  const std::lock_guard lock(mutex_);
  if (at < from_ || to_ < 0) return Rest::forgotten;
  auto entry = std::ranges::upper_bound(entries_, at, {}, &Entry::seq);
  for (size_t count = 0; entry != entries_.end() && count < kMostOfOne; ++entry) {
    at = entry->seq;
    if (job != 0 && entry->job != job) continue;
    text += entry->text;
    ++count;
  }
  return entry == entries_.end() ? Rest::none : Rest::more;
}

}  // namespace ductile::cluster
