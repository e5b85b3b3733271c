#include "ductile/sched/queueing.h"

#include <algorithm>
#include <cmath>

namespace ductile::sched {

double erlang_c(int32_t servers, double offered) {
  if (offered <= 0) return 0;
  if (servers <= 0 || offered >= servers) return 1;
  // Erlang B by its recursion, which has no large numbers in it.
  double blocked = 1;
  for (int32_t k = 1; k <= servers; ++k) blocked = offered * blocked / (k + offered * blocked);
  return blocked / (1 - offered / servers * (1 - blocked));
}

double on_time_share(double load, int32_t replicas, double rate, double target) {
  if (load <= 0) return 1;
  const double spare = replicas * rate - load, wait = target - 1 / rate;
  if (replicas <= 0 || spare <= 0 || wait < 0) return 0;
  return 1 - erlang_c(replicas, load / rate) * std::exp(-spare * wait);
}

double mean_latency(double load, int32_t replicas, double rate) {
  const double spare = replicas * rate - load;
  if (replicas <= 0 || spare <= 0) return INFINITY;
  return 1 / rate + erlang_c(replicas, load / rate) / spare;
}

int32_t replicas_needed(double load, double rate, double target, double goal, int32_t least) {
  if (load <= 0 || rate <= 0) return least;
  const auto keep_up = [&](double busy) {
    return std::max(least, static_cast<int32_t>(std::ceil(load / rate / busy)));
  };
  if (target < 1 / rate) return keep_up(0.8);
  int32_t low = keep_up(1), high = low;  // low - 1 is never enough
  while (on_time_share(load, high, rate, target) < goal) high = 2 * high + 1;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    if (on_time_share(load, middle, rate, target) >= goal)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

}  // namespace ductile::sched
