#include "ductile/sched/sla.h"

#include <algorithm>

#include "ductile/base/error.h"

namespace ductile::sched {

std::string_view to_string(Tier tier) {
  switch (tier) {
    case Tier::premium:
      return "premium";
    case Tier::standard:
      return "standard";
    case Tier::basic:
      return "basic";
  }
  return "?";
}

double guarantee(Tier tier) {
  switch (tier) {
    case Tier::premium:
      return 0.95;
    case Tier::standard:
      return 0.70;
    case Tier::basic:
      return 0;
  }
  return 0;
}

SlaAccount::SlaAccount(double start, double window) : window_(window) {
  DUCTILE_CHECK(window > 0, "a window of {} s", window);
  open_.from = open_.to = start;
}

void SlaAccount::pass(double now, double demand, double granted, std::vector<SlaWindow>& closed) {
  const double rate = now > open_.to ? granted / (now - open_.to) : 0;
  while (open_.to < now) {
    const double until = std::min(now, open_.from + window_);
    open_.asked += demand * (until - open_.to);
    open_.granted += rate * (until - open_.to);
    open_.to = until;
    if (until < open_.from + window_) break;
    closed.push_back(open_);
    open_ = {until, until, 0, 0};
  }
}

void SlaAccount::end(std::vector<SlaWindow>& closed) {
  if (open_.to - open_.from >= window_ / 2) closed.push_back(open_);
  open_ = {open_.to, open_.to, 0, 0};
}

Owed owed_devices(Tier tier, double promised, double margin, double demand, const SlaWindow& open,
                  double window) {
  if (promised <= 0 || demand <= 0) return {};
  const double rest = std::max(0.0, window * demand - open.asked);
  if (tier == Tier::premium)
    return {open.granted + rest < (promised + 0.02) * (open.asked + rest) ? 2 * demand : demand,
            true};
  const double missing = (promised + margin) * (open.asked + rest) - open.granted;
  if (missing <= 0) return {};
  return {demand, rest - missing < 0.05 * window * demand};
}

}  // namespace ductile::sched
