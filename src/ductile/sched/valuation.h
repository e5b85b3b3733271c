#pragma once

#include "ductile/sched/sla.h"

// What a change of a job's devices is worth, and what it costs: the one valuation of Ductile's
// policy, of the policy over regions and of the fleet scheduler. What a tier's window still needs
// is owed_devices() (sla.h).
namespace ductile::sched {

// What is left of the value of something that lasts `horizon` seconds if the first `pause` seconds
// of it, a restart or a move, are lost: a factor in (0, 1].
inline double after_pause(double horizon, double pause) { return horizon / (horizon + pause); }

// What the jobs of a team count that holds `held` devices of the `entitled` ones: less above its
// share. In coarse steps: a factor that follows every job would make teams take turns.
inline double team_factor(double held, double entitled) {
  return held <= 1.25 * entitled ? 1 : held <= 2 * entitled ? 0.6 : 0.3;
}

// Worked for above what a tier is promised.
constexpr double kPromiseMargin = 0.03;

}  // namespace ductile::sched
