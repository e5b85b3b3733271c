#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

#include "ductile/cluster/store.h"

namespace ductile::cluster {

// The newest events as the text of an event stream, read from the store and written as text once
// for all streams. Thread-safe.
class EventFeed {
 public:
  // What there is behind what read() has just looked at.
  enum class Rest : uint8_t {
    none,
    more,
    forgotten,  // nothing was read: events after `at` are not remembered any more
  };

  // All that was committed when `commits` was asked for (CommitQueue::commits) is known from now
  // on.
  void follow(Reader& reader, uint64_t commits);
  bool knows(uint64_t commits) const;
  // The newest event that is known; -1: none was looked for.
  Revision newest() const;
  // Appends the text of events after `at`, of one job or (0) of all, at most kMostOfOne; moves `at`
  // behind what was looked at.
  Rest read(Revision& at, JobId job, std::string& text) const;

  static std::string text_of(const Event& event);

  static constexpr size_t kMost = 4096;  // events that are remembered
  static constexpr size_t kMostOfOne = 200;

 private:
  struct Entry {
    Revision seq;
    JobId job;
    std::string text;
  };
  mutable std::mutex mutex_;
  std::deque<Entry> entries_;
  Revision from_ = -1, to_ = -1;  // all events behind the one, up to the other, are remembered
  uint64_t commits_ = 0;
};

}  // namespace ductile::cluster
