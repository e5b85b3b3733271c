#include "ductile/net/loop.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <future>
#include <mutex>
#include <vector>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ductile/base/error.h"

namespace ductile::net {
namespace {

constexpr uint64_t kWake = 0;  // watches have numbers from 1 on

bool has(Interest interest, Interest part) {
  return (static_cast<uint8_t>(interest) & static_cast<uint8_t>(part)) != 0;
}

uint32_t events_of(Interest interest) {
  return (has(interest, Interest::read) ? EPOLLIN | EPOLLRDHUP : 0u) |
         (has(interest, Interest::write) ? EPOLLOUT : 0u);
}

Ready ready_of(uint32_t events, Interest interest) {
  const bool ended = (events & (EPOLLERR | EPOLLHUP)) != 0;
  const bool closed = ended || (events & EPOLLRDHUP) != 0;
  return {has(interest, Interest::read) && (closed || (events & EPOLLIN) != 0),
          has(interest, Interest::write) && (ended || (events & EPOLLOUT) != 0), closed};
}

int milliseconds_until(Deadline deadline, Deadline now) {
  if (deadline <= now) return 0;
  // Bounded first: what is far away overflows when it is rounded.
  const auto left = std::min<Clock::duration>(deadline - now, std::chrono::hours(1));
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
}

}  // namespace

struct Loop::WatchEntry {
  Loop* loop;  // null: has ended, or the loop has
  uint64_t number;
  int fd;
  Interest interest;
  OnReady on_ready;
};

struct Loop::TimerEntry {
  Loop* loop;  // null: is not armed
  TimerKey key;
  Clock::duration interval;  // 0: once
  Callback callback;
};

// What the loop shares with other threads.
struct Loop::Post {
  std::mutex mutex;
  std::deque<Callback> posted;
  bool signalled = false;  // the eventfd was written to since the loop took from `posted`
  bool open = true;
  std::atomic<bool> stop = false;
  Descriptor wake;
};

// ---- Handles.

void Loop::Watch::end() {
  const std::shared_ptr<WatchEntry> entry = std::move(entry_);
  if (entry && entry->loop != nullptr) entry->loop->forget(*entry);
}

void Loop::Watch::set(Interest interest) {
  if (entry_ && entry_->loop != nullptr) entry_->loop->set(*entry_, interest);
}

void Loop::Timer::cancel() {
  const std::shared_ptr<TimerEntry> entry = std::move(entry_);
  if (!entry || entry->loop == nullptr) return;
  entry->loop->timers_.erase(entry->key);
  entry->loop = nullptr;
}

bool Loop::Timer::armed() const { return entry_ && entry_->loop != nullptr; }

bool Loop::Mailbox::post(Callback callback) const {
  const std::lock_guard lock(post_->mutex);
  if (!post_->open) return false;
  post_->posted.push_back(std::move(callback));
  if (!std::exchange(post_->signalled, true)) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(post_->wake.get(), &one, sizeof one);
  }
  return true;
}

// ---- The loop.

Loop::Loop(Now now)
    : now_(std::move(now)),
      epoll_(opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      mailbox_(std::make_shared<Post>()) {
  mailbox_.post_->wake = opened(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWake;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, mailbox_.post_->wake.get(), &event) != 0)
    fail_errno("epoll_ctl", errno);
}

Loop::~Loop() {
  for (auto& [number, entry] : watches_) entry->loop = nullptr;
  for (auto& [key, entry] : timers_) entry->loop = nullptr;
  std::deque<Callback> left;  // destroyed without the lock: they may own anything
  const std::lock_guard lock(mailbox_.post_->mutex);
  mailbox_.post_->open = false;
  left.swap(mailbox_.post_->posted);
}

void Loop::wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(mailbox_.post_->wake.get(), &one, sizeof one);
}

void Loop::control(int operation, const WatchEntry& entry, Interest interest) const {
  epoll_event event{};
  event.events = events_of(interest);
  event.data.u64 = entry.number;
  if (epoll_ctl(epoll_.get(), operation, entry.fd, &event) == 0) return;
  if (errno == EEXIST)
    fail(ErrorCode::conflict, "descriptor {} is watched twice in one loop; end the other watch",
         entry.fd);
  fail_errno(fmt::format("cannot watch descriptor {}", entry.fd), errno);
}

Loop::Watch Loop::watch(int fd, Interest interest, OnReady on_ready) {
  auto entry = std::make_shared<WatchEntry>(
      WatchEntry{this, ++last_number_, fd, interest, std::move(on_ready)});
  if (interest != Interest::none) control(EPOLL_CTL_ADD, *entry, interest);
  watches_[entry->number] = entry;
  by_fd_[fd] = entry->number;
  return Watch(std::move(entry));
}

void Loop::set(WatchEntry& entry, Interest interest) {
  if (interest == entry.interest) return;
  if (interest == Interest::none) {
    // Not by an empty mask: a hang-up is told even to that one, again and again.
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, entry.fd, nullptr);
  } else {
    control(entry.interest == Interest::none ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, entry, interest);
  }
  entry.interest = interest;
}

void Loop::forget(WatchEntry& entry) {
  const auto owner = by_fd_.find(entry.fd);
  // Where the descriptor was closed first, another one may have its number by now.
  if (owner != by_fd_.end() && owner->second == entry.number) {
    if (entry.interest != Interest::none) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, entry.fd, nullptr);
    by_fd_.erase(owner);
  }
  entry.loop = nullptr;
  watches_.erase(entry.number);
}

// A closed descriptor that some process still has a copy of keeps its place in the kernel's list,
// from which nobody can take it any more: it would wake the loop for ever.
void Loop::rebuild() {
  Descriptor fresh(epoll_create1(EPOLL_CLOEXEC));
  if (!fresh) return;  // later
  const auto add = [&](int fd, uint32_t events, uint64_t number) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = number;
    return epoll_ctl(fresh.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  };
  if (!add(mailbox_.post_->wake.get(), EPOLLIN, kWake)) return;
  for (const auto& [number, entry] : watches_) {
    if (entry->interest == Interest::none || by_fd_[entry->fd] != number) continue;
    if (!add(entry->fd, events_of(entry->interest), number) && errno != EBADF) return;
  }
  epoll_ = std::move(fresh);
}

Loop::Timer Loop::at(Deadline when, Callback callback) {
  auto entry = std::make_shared<TimerEntry>(TimerEntry{this, {}, {}, std::move(callback)});
  arm(entry, when);
  return Timer(std::move(entry));
}

Loop::Timer Loop::every(Clock::duration interval, Callback callback) {
  DUCTILE_CHECK(interval > Clock::duration::zero(), "a timer repeats after some time");
  auto entry = std::make_shared<TimerEntry>(TimerEntry{this, {}, interval, std::move(callback)});
  arm(entry, now() + interval);
  return Timer(std::move(entry));
}

void Loop::arm(const std::shared_ptr<TimerEntry>& entry, Deadline when) {
  entry->key = {when, ++last_number_};
  timers_[entry->key] = entry;
}

void Loop::run() { run_until(Deadline::max()); }

bool Loop::run_until(Deadline deadline) {
  std::atomic<bool>& stop = mailbox_.post_->stop;
  do {
    if (stop.exchange(false)) return true;
    turn(deadline);
  } while (stop || now() < deadline);
  return false;
}

void Loop::stop() {
  mailbox_.post_->stop = true;
  wake();
}

void Loop::turn(Deadline deadline) {
  std::array<epoll_event, kMost> events;
  const Deadline looked = now();
  const int count = look(events.data(), deadline);
  call_ready(events.data(), count);
  call_posted();
  call_timers(looked);
}

// How many descriptors are ready. 0 as well where a signal came.
int Loop::look(epoll_event* events, Deadline deadline) {
  const Deadline next =
      timers_.empty() ? deadline : std::min(deadline, timers_.begin()->first.first);
  int wait = milliseconds_until(next, now());
  {
    const std::lock_guard lock(mailbox_.post_->mutex);
    if (!mailbox_.post_->posted.empty() || mailbox_.post_->stop) wait = 0;
  }
  const int count = epoll_wait(epoll_.get(), events, kMost, wait);
  if (count < 0 && errno != EINTR) fail_errno("epoll_wait", errno);
  return std::max(count, 0);
}

void Loop::call_ready(const epoll_event* events, int count) {
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWake) {
      uint64_t ignored;
      [[maybe_unused]] const ssize_t got =
          ::read(mailbox_.post_->wake.get(), &ignored, sizeof ignored);
    } else if (!watches_.contains(events[i].data.u64)) {
      rebuild();
    }
  }
  for (int i = 0; i < count; ++i) {
    const auto found = watches_.find(events[i].data.u64);
    if (found == watches_.end()) continue;  // it ended in this turn
    const std::shared_ptr<WatchEntry> entry = found->second;
    const Ready ready = ready_of(events[i].events, entry->interest);
    if (ready.readable || ready.writable) entry->on_ready(ready);
  }
}

void Loop::call_posted() {
  Post& post = *mailbox_.post_;
  size_t most = kMost;
  for (size_t done = 0; done < most; ++done) {
    Callback callback;
    {
      const std::lock_guard lock(post.mutex);
      post.signalled = false;
      if (done == 0) most = std::min(most, post.posted.size());
      if (post.posted.empty()) return;
      callback = std::move(post.posted.front());
      post.posted.pop_front();
    }
    callback();
  }
}

// Those that callbacks make now wait for the next turn, and so do those that repeat.
void Loop::call_timers(Deadline looked) {
  const uint64_t last = last_number_;
  auto next = timers_.begin();
  while (next != timers_.end() && next->first.first <= looked) {
    if (next->first.second > last) {
      ++next;
      continue;
    }
    const TimerKey key = next->first;
    const std::shared_ptr<TimerEntry> entry = next->second;
    timers_.erase(next);
    if (entry->interval > Clock::duration::zero()) {
      const auto missed = (looked - key.first) / entry->interval;
      arm(entry, key.first + (missed + 1) * entry->interval);
    } else {
      entry->loop = nullptr;
    }
    entry->callback();
    next = timers_.upper_bound(key);
  }
}

void LoopThread::call(const std::function<void()>& what) {
  std::packaged_task<void()> task(what);
  std::future<void> done = task.get_future();
  loop_.post([&task] { task(); });
  done.get();
}

}  // namespace ductile::net
