#include "ductile/emulate/crew.h"

#include <algorithm>
#include <limits>

#include <sys/prctl.h>

#include "ductile/base/interruption.h"

namespace ductile::emulate {

void Crew::Member::wait(const std::function<bool()>& until) {
  while (!until()) {
    until_ = &until;
    state_ = State::waiting;
    crew_.block(*this);
  }
}

void Crew::Member::sleep(double seconds) {
  wake_ = able_at_ = able_at_ + seconds;
  state_ = State::sleeping;
  crew_.block(*this);
  Lateness& late = crew_.lateness_;
  const double by = std::max(0.0, crew_.now() - wake_) * crew_.scale_;
  ++late.sleeps;
  late.mean += (by - late.mean) / static_cast<double>(late.sleeps);
  late.worst = std::max(late.worst, by);
}

void Crew::add(std::function<void(Member&)> body) { members_.emplace_back(*this, std::move(body)); }

Crew::Point Crew::at(double seconds) const {
  const std::chrono::duration<double> since(seconds * scale_);
  return start_ + std::chrono::duration_cast<std::chrono::steady_clock::duration>(since);
}

double Crew::now() const {
  if (clock_ == Clock::simulated) return now_;
  const std::chrono::duration<double> since = std::chrono::steady_clock::now() - start_;
  return since.count() / scale_;
}

bool Crew::run() {
  std::unique_lock lock(mutex_);
  left_ = size();
  start_ = std::chrono::steady_clock::now();
  std::exception_ptr unwanted;
  try {
    for (Member& m : members_) m.thread_ = std::thread([this, &m] { body_of(m); });
  } catch (...) {
    for (const Member& m : members_) left_ -= !m.thread_.joinable();
    unwanted = std::current_exception();
    end_all();
  }
  if (unwanted == nullptr && clock_ == Clock::simulated) pass_on();
  while (left_ > 0) {
    all_ended_.wait_for(lock, std::chrono::milliseconds(50), [&] { return left_ == 0; });
    if (left_ == 0 || unwanted) continue;
    lock.unlock();
    try {
      ask_whether_wanted();
    } catch (...) {
      unwanted = std::current_exception();
    }
    lock.lock();
    if (unwanted) end_all();
  }
  lock.unlock();
  for (Member& m : members_) {
    if (m.thread_.joinable()) m.thread_.join();
  }
  if (unwanted) std::rethrow_exception(unwanted);
  if (error_) std::rethrow_exception(error_);
  return !is_stuck_;
}

void Crew::body_of(Member& member) {
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // by default the kernel may add 50 us to each sleep
  std::unique_lock lock(mutex_);
  member.lock_ = &lock;
  try {
    if (clock_ == Clock::simulated) {
      member.turn_.wait(lock, [&] { return turn_ == &member || is_over_; });
    }
    if (!is_over_) member.body_(member);
  } catch (const Ended&) {
  } catch (...) {
    if (!error_) error_ = std::current_exception();
    end_all();
  }
  member.state_ = Member::State::ended;
  let_go_on();
  if (clock_ == Clock::simulated) pass_on();
  --left_;
  all_ended_.notify_one();
}

void Crew::block(Member& member) {
  let_go_on();
  std::unique_lock<std::mutex>& lock = *member.lock_;
  if (clock_ == Clock::simulated) {
    pass_on();
    member.turn_.wait(lock, [&] { return turn_ == &member || is_over_; });
  } else if (member.state_ == Member::State::sleeping) {
    member.turn_.wait_until(lock, at(member.wake_), [&] { return is_over_; });
  } else {
    member.turn_.wait(lock, [&] { return member.state_ == Member::State::able || is_over_; });
  }
  member.until_ = nullptr;
  if (is_over_) throw Ended{};
  member.state_ = Member::State::able;
}

// Whoever blocks or ends has changed what others wait for, so it looks at them. If then nobody can
// go on, now or later, nobody ever will.
void Crew::let_go_on() {
  if (is_over_) return;
  bool is_anyone_able = false, is_anyone_waiting = false;
  for (Member& m : members_) {
    if (m.state_ == Member::State::waiting && (*m.until_)()) {
      m.state_ = Member::State::able;
      m.able_at_ = std::max(m.able_at_, now());
      if (clock_ == Clock::real) m.turn_.notify_one();
    }
    is_anyone_waiting = is_anyone_waiting || m.state_ == Member::State::waiting;
    is_anyone_able =
        is_anyone_able || m.state_ == Member::State::able || m.state_ == Member::State::sleeping;
  }
  if (is_anyone_able || !is_anyone_waiting) return;
  is_stuck_ = true;
  end_all();
}

void Crew::pass_on() {
  if (is_over_) return;
  turn_ = nullptr;
  const auto first_able = [&] {
    return std::find_if(members_.begin(), members_.end(),
                        [](const Member& m) { return m.state_ == Member::State::able; });
  };
  auto next = first_able();
  if (next == members_.end()) {
    double wake = std::numeric_limits<double>::infinity();
    for (const Member& m : members_) {
      if (m.state_ == Member::State::sleeping) wake = std::min(wake, m.wake_);
    }
    for (Member& m : members_) {
      if (m.state_ == Member::State::sleeping && m.wake_ == wake) m.state_ = Member::State::able;
    }
    next = first_able();
    if (next == members_.end()) return;  // all have ended
    now_ = std::max(now_, wake);
  }
  turn_ = &*next;
  turn_->turn_.notify_one();
}

void Crew::end_all() {
  is_over_ = true;
  for (Member& m : members_) m.turn_.notify_one();
}

Lateness measure_lateness(int threads) {
  constexpr int kSleeps = 25;
  constexpr double kSeconds = 0.004;
  Crew crew(Crew::Clock::real, 1);
  for (int i = 0; i < threads; ++i) {
    crew.add([](Crew::Member& self) {
      for (int k = 0; k < kSleeps; ++k) self.sleep(kSeconds);
    });
  }
  crew.run();
  return crew.lateness();
}

}  // namespace ductile::emulate
