// Random scripts for the loop, against a slow twin: it knows by poll(), a sorted list and a queue
// what a turn has to call.
#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/net/loop.h"
#include "ductile/net/testing/socket_pair.h"

namespace ductile::net {
namespace {

using std::chrono::milliseconds;
using testing::SocketPair;
using namespace std::chrono_literals;

class Script {
 public:
  explicit Script(uint64_t seed) : random_(seed), loop_([this] { return now_; }) {}

  void run(int turns) {
    for (int turn = 0; turn < turns && !::testing::Test::HasFailure(); ++turn) {
      for (int i = below(6); i >= 0; --i) act();
      now_ += milliseconds(below(4));
      expect_turn();
    }
  }

 private:
  struct Watched {
    SocketPair pair;
    Loop::Watch watch;
    Interest interest = Interest::none;
    bool open = true;  // the far end
  };
  struct Timed {
    Loop::Timer timer;
    Deadline when;
    uint64_t made;
    milliseconds interval;
  };

  int below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }

  template <class Map>
  auto any(Map& map) {
    auto it = map.begin();
    std::advance(it, below(static_cast<int>(map.size())));
    return it;
  }

  // What a script does between turns, and in callbacks.
  void act() {
    switch (below(10)) {
      case 0:
        return add_watch();
      case 1:
        if (!watched_.empty() && below(2) == 0) watched_.erase(any(watched_));
        return;
      case 2:
      case 3:
        if (!watched_.empty()) set_interest(*any(watched_)->second);
        return;
      case 4:
      case 5:
        if (!watched_.empty())
          if (Watched& w = *any(watched_)->second; w.open) [[maybe_unused]]
            const ssize_t n = ::write(w.pair.far.get(), "x", 1);
        return;
      case 6:
        if (!watched_.empty() && below(3) == 0) {
          Watched& w = *any(watched_)->second;
          w.pair.far.close();
          w.open = false;
        }
        return;
      case 7:
        return add_timer();
      case 8:
        if (!timed_.empty() && below(2) == 0) timed_.erase(any(timed_));
        return;
      default:
        const int id = next_id_++;
        posted_.push_back(id);
        if (stage_ == 0) ++posts_due_;
        loop_.post([this, id] { on_post(id); });
    }
  }

  void add_watch() {
    if (watched_.size() >= 20) return;
    const int id = next_id_++;
    auto w = std::make_unique<Watched>();
    w->interest = static_cast<Interest>(below(4));
    w->watch =
        loop_.watch(w->pair.near.get(), w->interest, [this, id](Ready ready) { on_fd(id, ready); });
    watched_[id] = std::move(w);
  }

  void set_interest(Watched& w) {
    w.interest = static_cast<Interest>(below(4));
    w.watch.set(w.interest);
  }

  void add_timer() {
    if (timed_.size() >= 20) return;
    const int id = next_id_++;
    const milliseconds wait(below(8) - 2), interval(below(3) == 0 ? 1 + below(5) : 0);
    auto t = std::make_unique<Timed>();
    t->interval = interval;
    t->when = now_ + (interval > 0ms ? interval : wait);
    t->made = ++made_;
    t->timer = interval > 0ms ? loop_.every(interval, [this, id] { on_timer(id); })
                              : loop_.at(t->when, [this, id] { on_timer(id); });
    timed_[id] = std::move(t);
  }

  std::optional<Ready> truth(const Watched& w) const {
    const auto bits = static_cast<uint8_t>(w.interest);
    if (bits == 0) return std::nullopt;
    pollfd item{
        w.pair.near.get(),
        static_cast<short>(((bits & 1) ? POLLIN | POLLRDHUP : 0) | ((bits & 2) ? POLLOUT : 0)), 0};
    ::poll(&item, 1, 0);
    const bool ended = (item.revents & (POLLERR | POLLHUP)) != 0;
    const bool closed = ended || (item.revents & POLLRDHUP) != 0;
    const Ready ready{(bits & 1) != 0 && (closed || (item.revents & POLLIN) != 0),
                      (bits & 2) != 0 && (ended || (item.revents & POLLOUT) != 0), closed};
    if (!ready.readable && !ready.writable) return std::nullopt;
    return ready;
  }

  void expect_turn() {
    fds_due_.clear();
    for (const auto& [id, w] : watched_)
      if (const auto ready = truth(*w)) fds_due_[id] = *ready;
    posts_due_ = posted_.size();
    std::vector<std::tuple<Deadline, uint64_t, int>> sorted;
    for (const auto& [id, t] : timed_)
      if (t->when <= now_) sorted.emplace_back(t->when, t->made, id);
    std::sort(sorted.begin(), sorted.end());
    // What is made in this turn has later numbers; what posts and descriptors make comes yet.
    turn_ = now_;
    stage_ = 0;
    loop_.turn(now_);
    // What is left must have ended, or changed, meanwhile.
    for (const auto& [id, ready] : fds_due_) {
      const auto w = watched_.find(id);
      const bool still =
          w != watched_.end() && (static_cast<uint8_t>(w->second->interest) &
                                  ((ready.readable ? 1 : 0) | (ready.writable ? 2 : 0))) != 0;
      EXPECT_FALSE(still && !changed_.contains(id)) << "descriptor " << id << " was not called";
    }
    changed_.clear();
    EXPECT_EQ(posts_due_, 0u);
    for (const auto& [when, made, id] : sorted) {
      const auto t = timed_.find(id);
      EXPECT_FALSE(t != timed_.end() && t->second->made == made) << "timer " << id << " was not";
    }
  }

  void on_fd(int id, Ready ready) {
    EXPECT_EQ(stage_, 0) << "descriptors come first";
    const auto due = fds_due_.find(id);
    ASSERT_NE(due, fds_due_.end()) << "descriptor " << id << " was not ready, or was called twice";
    const auto w = watched_.find(id);
    ASSERT_NE(w, watched_.end()) << "descriptor " << id << " has ended";
    const auto bits = static_cast<uint8_t>(w->second->interest);
    EXPECT_TRUE(!ready.readable || (bits & 1) != 0);
    EXPECT_TRUE(!ready.writable || (bits & 2) != 0);
    EXPECT_TRUE(changed_.contains(id) || ready == due->second);
    fds_due_.erase(due);
    if (below(2) == 0) w->second->pair.drain();
    nested();
  }

  void on_post(int id) {
    stage_ = std::max(stage_, 1);
    EXPECT_EQ(stage_, 1) << "posted functions come second";
    ASSERT_GT(posts_due_, 0u);
    ASSERT_EQ(posted_.front(), id);
    posted_.pop_front();
    --posts_due_;
    nested();
  }

  void on_timer(int id) {
    if (stage_ < 2) made_before_timers_ = made_;
    stage_ = 2;
    const auto t = timed_.find(id);
    ASSERT_NE(t, timed_.end()) << "timer " << id << " was cancelled";
    EXPECT_LE(t->second->when, turn_);
    EXPECT_LE(t->second->made, made_before_timers_) << "made in this turn's timers";
    // No other one was before it.
    for (const auto& [other, o] : timed_) {
      const bool before = o->made <= made_before_timers_ &&
                          std::pair(o->when, o->made) < std::pair(t->second->when, t->second->made);
      EXPECT_FALSE(before) << "timer " << other << " comes before " << id;
    }
    if (t->second->interval > 0ms) {
      while (t->second->when <= turn_) t->second->when += t->second->interval;
      t->second->made = ++made_;
    } else {
      timed_.erase(t);
    }
    nested();
  }

  // Descriptors that a callback touches may be called as they were or as they are.
  void nested() {
    if (below(3) != 0) return;
    std::map<int, Interest> before;
    for (const auto& [id, w] : watched_) before[id] = w->interest;
    act();
    for (const auto& [id, w] : watched_)
      if (const auto b = before.find(id); b == before.end() || b->second != w->interest)
        changed_.insert(id);
  }

  std::mt19937_64 random_;
  Deadline now_{1s};
  Loop loop_;
  int next_id_ = 0;
  uint64_t made_ = 0, made_before_timers_ = 0;
  int stage_ = 0;
  Deadline turn_;
  std::map<int, std::unique_ptr<Watched>> watched_;
  std::map<int, std::unique_ptr<Timed>> timed_;
  std::deque<int> posted_;
  std::map<int, Ready> fds_due_;
  std::set<int> changed_;
  size_t posts_due_ = 0;
};

TEST(Loop, DoesInRandomScriptsWhatItsSlowTwinSays) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Script(seed).run(60);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace ductile::net
