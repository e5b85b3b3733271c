#pragma once

#include <cstdint>
#include <optional>

namespace ductile::cluster {

// How far the processes of a job are. `generation` rises whenever other processes do the steps, and
// `start` is the step from which the present ones went on.
struct Reached {
  int64_t generation = 0, start = 0, step = 0;
};

// Measures for how long a job stands still at a start or a change of its devices: from the last
// step before it to the begin of the first step after it. A job that goes on while other processes
// come loses only the handing over. Pure: the caller has the clock.
class PauseMeter {
 public:
  // A change that was not seen after as many seconds is given up: perhaps it changes nothing.
  static constexpr double kLongest = 600;

  // Other devices were asked for. What was begun before counts from its own begin.
  void begin(double now);
  // Other processes do the steps from now on. Those that are seen before are of long ago, or of an
  // earlier service, and go on without a pause.
  void formed();
  // Told often while measures(); returns the seconds once, when two later steps were seen. Steps
  // take their time, too: the second one says how much.
  std::optional<double> see(double now, const Reached& reached);
  bool measures() const { return measures_; }

 private:
  bool measures_ = false;
  double begun_ = 0, stopped_ = 0;  // the begin, and the last step since
  std::optional<Reached> known_;    // of the processes before the change
  struct Rise {
    double time;
    Reached at;
  };
  std::optional<Rise> first_;  // a step of the processes after it
};

}  // namespace ductile::cluster
