#pragma once

#include <cstdint>

// How many replicas an inference service needs: c servers, one queue, requests at random times
// (M/M/c; Erlang 1917). The time of one request itself is taken as constant, 1/rate.
namespace ductile::sched {

// The share of requests that find all servers busy; `offered` = load/rate < servers, else 1.
double erlang_c(int32_t servers, double offered);

// The share of `load` requests per second that `replicas`, each serving `rate` per second, answer
// within `target` seconds. 0 where they cannot keep up or one request alone takes longer.
double on_time_share(double load, int32_t replicas, double rate, double target);

// The mean seconds from a request to its answer; +inf where they cannot keep up.
double mean_latency(double load, int32_t replicas, double rate);

// The least number of replicas, at least `least`, that answers the share `goal` (< 1) on time.
// Where no number can (1/rate > target): the least that keeps up at 80 % busy.
int32_t replicas_needed(double load, double rate, double target, double goal, int32_t least);

}  // namespace ductile::sched
