#include <algorithm>
#include <cstdint>
#include <ctime>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ductile/cluster/connection_impl.h"
#include "ductile/cluster/event_feed_impl.h"
#include "ductile/cluster/event_streams_impl.h"

namespace ductile::cluster {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kNap{1};         // between two groups of streams that are served together
constexpr milliseconds kAskAgain{200};  // whether who is told nothing now may still be told
// Streams of a group at least; all of them are at most so many groups, so that each has its turn in
// time.
constexpr size_t kGroup = 8, kMostGroups = 40;
// Between two looks at commits: two hundred a second need not wake this thread as often, just when
// who committed is to be answered.
constexpr milliseconds kGather{15};
// Of its thread: clients may wait for their events for as long as others compute.
constexpr int kNice = 5;

// As chunks of HTTP 1.1 are written.
std::string chunk_of(std::string_view text) {
  return fmt::format("{:x}\r\n{}\r\n", text.size(), text);
}

}  // namespace

EventStreams::EventStreams(Api& api, Duration patience, Duration heartbeat)
    : api_(api),
      patience_(patience),
      heartbeat_(heartbeat),
      bell_(opened(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      clients_(opened(::epoll_create1(EPOLL_CLOEXEC), "epoll")),
      thread_([this] { run(); }) {
  try {
    follower_ = api_.follow_commits([bell = bell_.get()] { ::eventfd_write(bell, 1); });
  } catch (...) {
    end();
    throw;
  }
}

EventStreams::~EventStreams() { end(); }

milliseconds EventStreams::rest_of(size_t streams) {
  return std::max(kRest, milliseconds(1000 * streams / kMostWrites));
}

void EventStreams::end() {
  if (!thread_.joinable()) return;
  api_.unfollow_commits(follower_);
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ::eventfd_write(bell_.get(), 1);
  thread_.join();
}

// What takes memory is done here, where the client alone would suffer.
bool EventStreams::add(Stream stream) {
  const Time now = Clock::now();
  Entries one;
  one.emplace(now, std::make_unique<Entry>(std::move(stream), now));
  {
    const std::lock_guard lock(mutex_);
    if (ending_) return false;
    added_.merge(one);
  }
  ::eventfd_write(bell_.get(), 1);
  return true;
}

void EventStreams::run() {
  // Of Linux, where a thread has a number and a nice value of its own. Where it may not be changed
  // nothing else differs.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
  while (take_new()) {
    look_at_clients();
    const Time now = Clock::now();
    try {
      look(now);
    } catch (const std::exception& fault) {
      const auto* const error = dynamic_cast<const Error*>(&fault);
      // A store that cannot be read now is looked at again. Else clients come again, and are told
      // why.
      if (error == nullptr || error->code() != ErrorCode::unavailable) finish_all();
    }
    serve_some(now);
    rest();
  }
  finish_all();
}

// False: this is the end.
bool EventStreams::take_new() {
  Entries added;
  {
    const std::lock_guard lock(mutex_);
    added.swap(added_);
    if (ending_) {
      entries_.merge(added);
      return false;
    }
  }
  while (!added.empty()) {
    auto node = added.extract(added.begin());
    Entry& entry = *node.mapped();
    keep(std::move(node));
    watch(entry);
  }
  return true;
}

void EventStreams::keep(Entries::node_type node) {
  Entry& entry = *node.mapped();
  entry.here = entries_.insert(std::move(node));
}

// One that cannot be watched is noticed at the next word to it.
void EventStreams::watch(Entry& entry) const {
  epoll_event wanted{};
  wanted.events = EPOLLRDHUP;
  wanted.data.ptr = &entry;
  ::epoll_ctl(clients_.get(), EPOLL_CTL_ADD, entry.stream.wire->fd(), &wanted);
}

// A client that has closed its connection, and one that only says no more and still listens, look
// the same at first. So who ends its half is told something, to which the kernel of one that has
// gone answers that there is nobody.
void EventStreams::look_at_clients() {
  constexpr int kMost = 64;
  epoll_event events[kMost];
  for (int count = kMost; count == kMost;) {
    count = ::epoll_wait(clients_.get(), events, kMost, 0);
    for (int i = 0; i < count; ++i) {
      Entry& entry = *static_cast<Entry*>(events[i].data.ptr);
      auto node = entries_.extract(entry.here);
      epoll_event rest{};  // from here on nothing but its end
      rest.data.ptr = &entry;
      if ((events[i].events & (EPOLLHUP | EPOLLERR)) != 0 ||
          ::epoll_ctl(clients_.get(), EPOLL_CTL_MOD, entry.stream.wire->fd(), &rest) != 0) {
        finish(entry);
        continue;
      }
      node.key() = Clock::now();
      entry.spoken = node.key() - heartbeat_;
      keep(std::move(node));
    }
  }
}

// What has been committed meanwhile ends the wait of those that had all there was.
void EventStreams::look(Time now) {
  if (entries_.empty() || now < looked_ + kGather) return;
  looked_ = now;
  rung_ = false;
  const uint64_t commits = api_.look_at_events();
  if (std::exchange(commits_, commits) == commits) return;
  const milliseconds rest = rest_of(entries_.size());
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto here = it++;
    if (!std::exchange(here->second->waits, false)) continue;
    auto node = entries_.extract(here);
    node.key() = std::max(now, node.mapped()->looked + rest);
    keep(std::move(node));  // if it comes again here, it waits no more
  }
}

void EventStreams::serve_some(Time now) {
  blocks_.clear();
  may_read_ = true;
  size_t left = std::max(kGroup, (entries_.size() + kMostGroups - 1) / kMostGroups);
  for (; left > 0 && !entries_.empty() && entries_.begin()->first <= now; --left) {
    auto node = entries_.extract(entries_.begin());
    std::optional<Time> next;
    try {
      next = serve(*node.mapped(), now);
    } catch (const std::exception&) {  // its client comes again, and is told why
    }
    if (!next) {
      finish(*node.mapped());
      continue;
    }
    node.key() = *next;
    keep(std::move(node));
  }
}

// When it is to be served again; none: it is over.
std::optional<EventStreams::Time> EventStreams::serve(Entry& entry, Time now) {
  const milliseconds rest = rest_of(entries_.size());
  if (entry.bytes) {  // the rest of what was begun
    if (!write(entry, now)) return std::nullopt;
    if (entry.bytes) return now + rest;
  }
  Bytes bytes;
  bool more = false;
  if (!entry.waits) {
    const Block* const block = block_after(entry.stream.at, entry.stream.job);
    if (block == nullptr) return now + kNap;  // the store is read for another one now
    entry.stream.at = block->to;
    entry.looked = now;
    entry.waits = block->bytes == nullptr && !block->more;
    bytes = block->bytes;
    more = block->more;
  }
  if (!bytes && now >= entry.spoken + heartbeat_) {
    static const Bytes kNothing = std::make_shared<std::string>(chunk_of(": nothing new\n\n"));
    bytes = kNothing;
  }
  // After the look, so that nothing is sent that happened after a token was revoked. What was begun
  // before may still go on.
  if (!entry.stream.welcome()) return std::nullopt;
  if (!bytes) return std::min(now + kAskAgain, entry.spoken + heartbeat_);
  entry.bytes = std::move(bytes);
  entry.written = 0;
  entry.begun = entry.spoken = now;
  if (!write(entry, now)) return std::nullopt;
  return more && !entry.bytes ? now : now + rest;
}

// Null: not now, since the store is to be read for it, and was read for another one just now.
const EventStreams::Block* EventStreams::block_after(Revision at, JobId job) {
  const auto found = blocks_.find({job, at});
  if (found != blocks_.end()) return &found->second;
  Block block{.bytes = nullptr, .to = at, .more = false};
  std::string text;
  const EventFeed::Rest rest = api_.newest_events().read(block.to, job, text);
  block.more = rest == EventFeed::Rest::more;
  if (rest == EventFeed::Rest::forgotten) {
    if (!std::exchange(may_read_, false)) return nullptr;
    text = api_.stored_events(block.to, job);
    block.more = !text.empty();
  }
  if (!text.empty()) block.bytes = std::make_shared<std::string>(chunk_of(text));
  return &blocks_.emplace(std::pair(job, at), std::move(block)).first->second;
}

// False: its client is gone, or takes too little.
bool EventStreams::write(Entry& entry, Time now) const {
  const std::string& bytes = *entry.bytes;
  while (entry.written < bytes.size()) {
    const ssize_t n =
        entry.stream.wire->try_write(bytes.data() + entry.written, bytes.size() - entry.written);
    if (n < 0) return false;
    if (n == 0) return now < entry.begun + patience_;
    entry.written += static_cast<size_t>(n);
  }
  entry.bytes.reset();
  return true;
}

// Until a stream is to be served, a client has gone, or the bell rings. Others who want the
// processor get it between two groups of streams.
void EventStreams::rest() {
  const Time now = Clock::now();
  if (!entries_.empty() && entries_.begin()->first <= now) {
    std::this_thread::sleep_for(kNap);
  } else if (entries_.empty()) {
    await(Time::max(), true);
  } else {
    // For a moment the bell is not heard, so that what rang it is looked at with what follows.
    const Time until = entries_.begin()->first, gathered = looked_ + kGather;
    if (now < gathered) await(std::min(until, gathered), false);
    if (!rung_ && Clock::now() >= gathered) await(until, true);
  }
  eventfd_t times = 0;
  if (::eventfd_read(bell_.get(), &times) == 0) rung_ = true;
}

void EventStreams::await(Time until, bool bell) const {
  pollfd polled[] = {{clients_.get(), POLLIN, 0}, {bell_.get(), POLLIN, 0}};
  const nfds_t count = bell ? 2 : 1;
  if (until == Time::max()) {
    ::ppoll(polled, count, nullptr, nullptr);
    return;
  }
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t left = std::max<int64_t>(
      0, std::chrono::ceil<std::chrono::nanoseconds>(until - Clock::now()).count());
  const timespec wait{static_cast<time_t>(left / kSecond), static_cast<long>(left % kSecond)};
  ::ppoll(polled, count, &wait, nullptr);
}

void EventStreams::finish_all() {
  for (auto& [due, entry] : entries_) finish(*entry);
  entries_.clear();
}

// Not watched any more before its wire may go.
void EventStreams::finish(Entry& entry) const {
  ::epoll_ctl(clients_.get(), EPOLL_CTL_DEL, entry.stream.wire->fd(), nullptr);
  entry.stream.seat.release();
  entry.stream.over();
}

}  // namespace ductile::cluster
