#pragma once

#include <vector>

#include "ductile/sched/cluster.h"
#include "ductile/sim/application.h"
#include "ductile/sim/workload.h"

namespace ductile::sim {

struct LowerBound {
  double mean_jct = 0;        // seconds
  double solo_mean_jct = 0;   // the weaker one without contention: all prices nought
  int rounds = 0;             // of price adjustment
  std::vector<double> price;  // of a device of the first type, per bucket, in job-seconds a second
};

// An estimate, from below, of the mean completion time that a scheduler that knows the future could
// reach for the workload on the cluster: the Lagrangian dual of the relaxation in which the devices
// of each type are limited in number at every moment, and nothing else is (no nodes, no rounds, no
// restarts but the first start, batch size and devices free at every moment). With a price on each
// type in each bucket of time the jobs come apart; one dynamic programme over (time, progress) per
// application and length then gives each its least "time + price of what it uses", and
//     sum of those - price of all devices
// is a bound for any prices >= 0. They are improved for `rounds` rounds. An estimate and no proof,
// since a job changes its devices only between two of its pieces (2 to 20 of equal numbers of
// epochs), lengths are taken to the nearest of a grid, and of large batches every so many-th is
// tried. Derivation: docs/design/010-scheduler.md. Throws invalid_argument for services and
// pipelines.
LowerBound lower_bound(const Workload& workload, const Catalog& catalog,
                       const sched::Cluster& cluster, int rounds = 60);

}  // namespace ductile::sim
