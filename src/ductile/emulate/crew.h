#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace ductile::emulate {

// What a sleep or a wait costs beyond what was asked, in seconds of the clock.
struct Lateness {
  int64_t sleeps = 0;
  double mean = 0;
  double worst = 0;
};

// Threads that sleep and wait for one another, each in the place of a device or of a network card.
// A body runs under the lock of the crew, except while it sleeps or waits, so that bodies share
// their data without locks of their own.
//
// With the real clock, bodies sleep side by side. With the simulated one a sleep takes no time: as
// soon as no body can go on, time jumps to the next end of a sleep. Bodies then run one after the
// other, of several that can go on the one that was added first, so equal runs are equal to the
// bit.
class Crew {
 public:
  enum class Clock { real, simulated };

  // One body's sight of the crew. Both methods may leave by an exception that only the crew
  // catches, when it ends early.
  class Member {
   public:
    // Sleeps until `until` holds. A condition may read what bodies share, and change nothing.
    void wait(const std::function<bool()>& until);
    // Sleeps for as many seconds of the plan. They count from the end of the sleep before, as it
    // was asked, or from the moment in which what this body has waited for since came true. So a
    // late end delays others, but not the next sleep of this body, nor does the time count that a
    // thread takes to wake up.
    void sleep(double seconds);

    // For Crew::add().
    Member(Crew& crew, std::function<void(Member&)> body) : crew_(crew), body_(std::move(body)) {}

   private:
    friend class Crew;
    enum class State { able, sleeping, waiting, ended };

    Crew& crew_;
    std::function<void(Member&)> body_;
    State state_ = State::able;
    const std::function<bool()>* until_ = nullptr;
    double wake_ = 0;  // seconds of the plan
    // The end of its last sleep, as it was asked, or when what it waited for since came true.
    double able_at_ = 0;
    std::condition_variable turn_;
    std::unique_lock<std::mutex>* lock_ = nullptr;  // of its thread, while the body runs
    std::thread thread_;
  };

  // `scale`: seconds of the clock for a second of the plan, above 0.
  Crew(Clock clock, double scale) : clock_(clock), scale_(scale) {}
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  void add(std::function<void(Member&)> body);
  // Runs all bodies, once. False: those that had not ended waited for one another, and were ended.
  // Throws what a body throws, and what ask_whether_wanted() (base/interruption.h) throws in this
  // thread; no thread is left then either.
  bool run();

  // Seconds of the plan since run() began. For bodies, and after run().
  double now() const;
  // Of the sleeps since the last reset_lateness(). For bodies, and after run().
  const Lateness& lateness() const { return lateness_; }
  void reset_lateness() { lateness_ = {}; }
  int size() const { return static_cast<int>(members_.size()); }

 private:
  using Point = std::chrono::steady_clock::time_point;
  struct Ended {};  // thrown through a body that is to end

  Point at(double seconds) const;
  void body_of(Member& member);
  void block(Member& member);
  void let_go_on();
  void pass_on();
  void end_all();

  const Clock clock_;
  const double scale_;
  std::mutex mutex_;
  std::deque<Member> members_;  // their addresses stay
  Point start_;
  double now_ = 0;          // simulated
  Member* turn_ = nullptr;  // simulated: who runs
  bool is_over_ = false, is_stuck_ = false;
  int left_ = 0;  // bodies that have not ended
  std::condition_variable all_ended_;
  std::exception_ptr error_;
  Lateness lateness_;
};

// How late sleeps end on this machine as it is now, with as many sleeping threads.
Lateness measure_lateness(int threads);

}  // namespace ductile::emulate
