#pragma once

#include <span>
#include <vector>

namespace ductile::sched {

// A corner of a job's concave curve: progress a second for accelerators worth `cost`.
struct CurvePoint {
  double cost = 0;
  double rate = 0;
};

// Keeps the corners of the least concave curve above the points, the origin included, sorted by
// cost. In place.
void keep_concave(std::vector<CurvePoint>& points);

// A job, or a part of one where its size is uncertain: `share` of it has that much work left.
struct SizedJob {
  int job = 0;          // index of the result it counts towards
  double size = 0;      // work left; only the order of sizes matters
  double share = 1;     // in (0, 1]; the shares of one job sum to 1
  int curve_begin = 0;  // its concave curve: [curve_begin, curve_end) of the points
  int curve_end = 0;
};

// What a unit of each job's progress is worth in time of others: the rate at which the least total
// completion time of all jobs falls with the work left of this one.
//
// Minimising the sum of completion times of jobs with concave speed-ups is an optimal control
// problem. Its Hamiltonian, (jobs alive) - sum_j w_j rate_j, is zero along an optimal path and each
// w_j is constant while the job lives, so when the jobs finish in order of size, the largest m jobs
// must satisfy for every m
//     max over allocations of  sum_{j <= m} w_j rate_j  =  m,
// which gives w_1, w_2, ... one after the other. For equal power-law speed-ups this is heSRPT
// (Berg, Vesilo and Harchol-Balter, Performance 2020); here the curves may be any, one price for
// all accelerators (relative prices of the types being given as costs) standing for the allocation.
// The value of a configuration to a job is then w_j x rate, and the best total value equals the
// number of jobs: every round maximises the decrease of the future total completion time.
//
// `capacity`: cost of all accelerators. `standing`: so many jobs that outlast all of these are
// reckoned with (jobs to come): work at the far end then costs others too. Parts of one job need
// not be adjacent. O(jobs x grid).
std::vector<double> shadow_costs(std::vector<SizedJob> jobs, std::span<const CurvePoint> points,
                                 double capacity, int num_jobs, double standing = 0);

}  // namespace ductile::sched
