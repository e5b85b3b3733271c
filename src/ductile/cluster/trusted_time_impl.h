#pragma once

#include <optional>

namespace ductile::cluster {

// The time of day, for what must not believe a wrong one: what is too old is removed for good. A
// clock that has gone on by more than a day since it was last believed may be wrong (set by hand,
// or by a machine that began without its battery), or nobody was there for so long. It is believed
// again once it has gone on for a day without such a leap. One that is set back harms nothing: less
// is old then. It has no clock, so that the same calls give the same answers; times are seconds.
class TrustedTime {
 public:
  static constexpr double kDay = 86400;

  // `known`: that was the time of day once, as an earlier service believed.
  explicit TrustedTime(double known) : known_(known) {}

  // The time of day, of which the clock says `wall`; none while it is not believed. `steady` is of
  // a clock that is never set.
  std::optional<double> now(double wall, double steady);
  // The latest time that was believed: what the next service is to begin with.
  double known() const { return known_; }

 private:
  struct Doubt {
    double since = 0;  // of the clock that is never set
    double wall = 0;   // what the other said last
  };
  double known_;
  std::optional<Doubt> doubt_;
};

}  // namespace ductile::cluster
