#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "ductile/base/descriptor.h"
#include "ductile/cluster/api.h"
#include "ductile/cluster/limits_impl.h"
#include "ductile/cluster/records.h"

namespace ductile::cluster {

class Wire;

// The event streams of all clients, written by one thread, so that hundreds of them are to the
// processors as one, which gives way to the others: a request waits behind none. A stream is
// written to at most once in rest_of() their number, with all that has happened since, and a few
// streams at a time. Those that are at the same event send the same bytes, which were made once. A
// client that takes nothing holds up its own stream alone, and that for `patience`; one that is
// told nothing else is told so each `heartbeat`. A stream whose client has gone is over at once.
class EventStreams {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  struct Stream {
    Wire* wire = nullptr;  // is used until `over` is called
    Limits::Seat seat;
    JobId job = 0;                  // whose events; 0: all
    Revision at = 0;                // events after this one
    std::function<bool()> welcome;  // whether its client may still see events
    std::function<void()> over;     // the last that is called; it may destroy the wire
  };

  // The api must outlive it.
  EventStreams(Api& api, Duration patience, Duration heartbeat);
  EventStreams(const EventStreams&) = delete;
  EventStreams& operator=(const EventStreams&) = delete;
  ~EventStreams();

  // Thread-safe. False after end(): it was not taken, and `over` is not called.
  bool add(Stream stream);
  // All streams are over when it returns.
  void end();

  // Between two writes of a stream, and between two looks at a stream that had nothing to say, of
  // so many streams. Each write wakes a client, and costs as much as a small request: of many
  // streams each is written to less often, so that all of them are not written to more often than
  // kMostWrites times a second.
  static std::chrono::milliseconds rest_of(size_t streams);
  static constexpr std::chrono::milliseconds kRest{80};
  static constexpr size_t kMostWrites = 2500;

 private:
  using Bytes = std::shared_ptr<const std::string>;
  struct Entry;
  using Entries = std::multimap<Time, std::unique_ptr<Entry>>;  // by when they are looked at again

  struct Entry {
    explicit Entry(Stream from, Time now) : stream(std::move(from)), spoken(now) {}
    Stream stream;
    Bytes bytes;               // that are being written; null: none
    size_t written = 0;        // of these
    Time begun{};              // when they were
    Time looked{};             // at what has happened
    Time spoken;               // when it was last told anything
    bool waits = false;        // all that had happened was sent
    Entries::iterator here{};  // of the thread's entries
  };
  // What comes after an event, of one job or of all.
  struct Block {
    Bytes bytes;      // null: nothing
    Revision to = 0;  // the event that it ends with, or that was looked at last
    bool more = false;
  };

  void run();
  bool take_new();
  void look(Time now);
  void serve_some(Time now);
  void keep(Entries::node_type node);
  std::optional<Time> serve(Entry& entry, Time now);
  const Block* block_after(Revision at, JobId job);
  bool write(Entry& entry, Time now) const;
  void rest();
  void await(Time until, bool bell) const;
  void watch(Entry& entry) const;
  void look_at_clients();
  void finish(Entry& entry) const;
  void finish_all();

  Api& api_;
  const Duration patience_, heartbeat_;
  Descriptor bell_;     // rung by commits, new streams and the end
  Descriptor clients_;  // an epoll of the streams' sockets, which tells who has gone
  uint64_t follower_ = 0;
  std::mutex mutex_;
  bool ending_ = false;
  Entries added_;
  // Of the thread.
  Entries entries_;
  std::map<std::pair<JobId, Revision>, Block> blocks_;  // of the streams that are served together
  bool may_read_ = true;                                // the store, for one of these
  std::optional<uint64_t> commits_;                     // that were looked at
  Time looked_{};                                       // when they were
  bool rung_ = false;                                   // since then
  std::thread thread_;
};

}  // namespace ductile::cluster
