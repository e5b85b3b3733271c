// Time and memory of a scheduling round against size, on one core.
//
//   scheduler_scale [ROUNDS]
//
// Cluster: DuctilePolicy::decide on whole JobViews, T4s in nodes of 4 (64 GPUs) or 8. A round in
// which all jobs report new noise estimates and a twentieth are replaced. Fleet: FleetScheduler,
// regions of three types; full (every job weighed and priced anew) and incremental (1 % of the jobs
// replaced, failures in every region). CPU time; medians and worst of ROUNDS (default 20).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <vector>

#include <sys/resource.h>

#include "ductile/base/rng.h"
#include "ductile/sched/ductile_policy.h"
#include "ductile/sched/fleet.h"

namespace ductile::sched {
namespace {

double cpu_ms() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

double peak_mb() {
  rusage r{};
  getrusage(RUSAGE_SELF, &r);
  return static_cast<double>(r.ru_maxrss) / 1024;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

JobView make_job(Rng& rng, JobId id, double now) {
  JobView v;
  v.id = id;
  v.name = "job";
  v.application = std::string(1, static_cast<char>('a' + rng.below(20)));
  v.arrival = now;
  v.max_devices = 64;
  v.remaining = std::exp(rng.uniform(5, 12));
  TypeModel m;
  m.fitted = true;
  m.perf = {rng.uniform(0.02, 0.2), rng.uniform(0.0005, 0.005), 0.1, 0.005, 0.03, 0.002, 1.8};
  m.max_profiled = 1 << rng.below(6);
  m.limits = {128, 16384, 16, 512};
  m.unit_rate = 500;
  v.types = {m};
  v.noise = GradientNoise{1, std::exp(rng.uniform(0, 4))};
  return v;
}

void cluster(int32_t nodes, int32_t per_node, int jobs, int rounds) {
  const Cluster c = homogeneous_cluster(nodes, per_node);
  DuctilePolicy policy;
  Rng rng(1);
  std::vector<JobView> views;
  JobId next = 0;
  for (int i = 0; i < jobs; ++i) views.push_back(make_job(rng, next++, 0));
  std::vector<double> times;
  double first = 0, gap = 0;
  for (int r = 0; r <= rounds; ++r) {
    const double now = 60.0 * r;
    const double start = cpu_ms();
    const Decisions d = policy.decide({now, 60, c, views});
    const double spent = cpu_ms() - start;
    (r == 0 ? first : times.emplace_back()) = spent;
    if (d.bound > 0) gap = std::max(gap, 1 - d.objective / d.bound);
    std::vector<const Allocation*> given(static_cast<size_t>(next));
    for (const Decision& k : d.changes) given[static_cast<size_t>(k.job)] = &k.allocation;
    for (JobView& v : views) {
      if (given[static_cast<size_t>(v.id)]) v.allocation = *given[static_cast<size_t>(v.id)];
      if (v.allocation.empty()) continue;
      v.attained_service += 60.0 * device_count(v.allocation);
      v.progress += 100;
      v.remaining = std::max(1.0, *v.remaining - 100);
      v.noise->var *= rng.uniform(0.97, 1.05);
      ++v.model_version;
    }
    for (int k = 0; k < jobs / 20; ++k) {
      const auto at = static_cast<ptrdiff_t>(rng.below(static_cast<uint32_t>(views.size())));
      views.erase(views.begin() + at);
      views.push_back(make_job(rng, next++, now));
    }
  }
  std::printf("| cluster | %d | %d | 1 | %.2f | %.2f | %.2f | %.3f %% | %.0f |\n", nodes * per_node,
              jobs, first, median(times), *std::max_element(times.begin(), times.end()), 100 * gap,
              peak_mb());
  std::fflush(stdout);
}

FleetJob fleet_job(Rng& rng, int32_t regions) {
  FleetJob j;
  j.tier = static_cast<Tier>(rng.below(3));
  j.team = static_cast<int32_t>(rng.below(50));
  j.home = static_cast<int32_t>(rng.below(static_cast<uint32_t>(regions)));
  j.demand = 2 << rng.below(5);
  if (rng.below(3) == 0) j.types = uint64_t{1} << rng.below(3);
  return j;
}

void fleet(int32_t regions, int64_t devices, int32_t jobs, int rounds) {
  std::vector<Pool> pools;
  std::vector<int32_t> region_of_cluster;
  for (int32_t r = 0; r < regions; ++r) {
    region_of_cluster.push_back(r);
    const int64_t mine = devices / regions;
    for (int32_t t = 0; t < 3; ++t) {
      Pool p;
      p.cluster = r;
      p.type = t;
      p.per_node = 8;
      p.devices = t == 0 ? mine - 2 * (mine / 24 * 8) : mine / 24 * 8;
      p.whole_nodes = static_cast<int32_t>(p.devices / 8);
      pools.push_back(p);
    }
  }
  FleetScheduler f(pools, region_of_cluster);
  Rng rng(2);
  for (int32_t j = 0; j < jobs; ++j) f.set_job(j, fleet_job(rng, regions), 0);
  std::vector<double> full, incremental;
  std::vector<ClosedWindow> closed;
  double now = 0, gap = 0;
  FleetScheduler::Summary s = f.decide(now, true);
  for (int r = 0; r < rounds; ++r) {
    double start = cpu_ms();
    s = f.decide(now, true);
    full.push_back(cpu_ms() - start);
    gap = std::max(gap, 1 - s.objective / s.bound);
    for (int k = 0; k < 3; ++k) {
      now += 60;
      f.account(now, 60, closed);
      for (int32_t i = 0; i < jobs / 100; ++i) {
        const auto j = static_cast<int32_t>(rng.below(static_cast<uint32_t>(jobs)));
        f.remove_job(j);
        f.set_job(j, fleet_job(rng, regions), now);
      }
      for (size_t p = 0; p < pools.size(); ++p)
        f.set_capacity(static_cast<int32_t>(p), pools[p].devices - 8 * rng.below(3));
      start = cpu_ms();
      s = f.decide(now, false);
      incremental.push_back(cpu_ms() - start);
      gap = std::max(gap, 1 - s.objective / s.bound);
    }
  }
  std::printf("| fleet | %lld | %d | %d | %.2f | %.2f | %.2f | %.3f %% | %.0f |\n",
              static_cast<long long>(devices), jobs, regions, median(full), median(incremental),
              *std::max_element(incremental.begin(), incremental.end()), 100 * gap, peak_mb());
  std::fflush(stdout);
}

}  // namespace
}  // namespace ductile::sched

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  using namespace ductile::sched;
  std::printf(
      "| level | devices | jobs | regions | first or full, ms | round, ms | worst round, ms | "
      "largest gap proven | peak MB |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  cluster(16, 4, 160, rounds);
  cluster(64, 8, 1250, rounds);
  cluster(256, 8, 5000, rounds);
  for (int32_t n : {1, 2, 5, 10, 20}) fleet(n, 50000LL * n, 5000 * n, rounds / 4 + 1);
  return 0;
}
