#pragma once

#include <span>
#include <vector>

namespace ductile::sched {

// A corner of a job's concave curve: progress per second on accelerators that cost `cost`.
struct CurvePoint {
  double cost = 0;
  double rate = 0;
};

// Keeps, in place, the corners of the least concave curve above the points and the origin, sorted
// by cost.
void keep_concave(std::vector<CurvePoint>& points);

// A job, or, if its size is uncertain, a part of it: `share` of the job has this much work left.
struct SizedJob {
  int job = 0;          // index of the result it counts towards
  double size = 0;      // work left; only the order of sizes matters
  double share = 1;     // in (0, 1]; the shares of one job sum to 1
  int curve_begin = 0;  // its concave curve: [curve_begin, curve_end) of the points
  int curve_end = 0;
};

// The value of a unit of each job's progress: the rate at which the least total completion time of
// all jobs falls with the work that this job has left.
//
// Minimising the sum of completion times of jobs with concave speed-ups is an optimal control
// problem. Its Hamiltonian, (unfinished jobs) - sum_j w_j rate_j, is zero along an optimal path,
// and each w_j is constant until the job finishes. So if the jobs finish in order of size, the
// largest m jobs must satisfy for every m
//     max over allocations of  sum_{j <= m} w_j rate_j  =  m,
// which gives w_1, w_2, ... one after the other. For equal power-law speed-ups this is heSRPT
// (Berg, Vesilo and Harchol-Balter, Performance 2020). Here the curves may be any concave ones, and
// one price for all accelerators represents the allocation (costs are the relative prices of
// types). The value of a configuration to a job is then w_j x rate, and the best total value equals
// the number of jobs: every round maximises the decrease of the future total completion time.
//
// `capacity` is the cost of all accelerators. `standing` is a number of additional jobs that
// outlast all of these (future jobs), so that the last work also delays others; they could use all
// accelerators. Of jobs of equal size the first one counts as the smaller. Parts of one job need
// not be adjacent. The time is O(jobs x grid).
std::vector<double> shadow_costs(std::vector<SizedJob> jobs, std::span<const CurvePoint> points,
                                 double capacity, int num_jobs, double standing = 0);

}  // namespace ductile::sched
