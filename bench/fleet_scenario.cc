// A day of a fleet under four regimes in one run: Ductile's fleet scheduler (another algorithm than
// the policy of one cluster), static partitions by tier, one queue without preemption, and
// priorities that preempt. All see the same arrivals, faults and loads.
//
//   fleet_scenario bench/fleet/ten_regions.toml [HOURS [SEEDS]]
//
// Prints a Markdown table. Decision times are CPU time of one core.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include <toml++/toml.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/sched/fleet.h"
#include "fleet_regimes.h"

namespace ductile::sched {
namespace {

struct Settings {
  double hours, round, load, sigma, mean_hours, typed, restart;
  uint64_t seed;
  int32_t teams, regions;
  std::vector<std::pair<std::string, int32_t>> nodes;  // a region's
  double spot_share;
  std::vector<int32_t> demands;
  std::vector<double> weights;
  std::array<double, 3> tiers;
  double service_share, swing, step_minutes;
  int32_t replicas;
  double mtbf_hours, repair_hours, reclaim_hours, away_hours;
  double notice, lost_work;
  // Planned maintenance: each region in turn, a part of its nodes.
  double maintenance_every_hours, maintenance_hours, maintenance_share, maintenance_notice;
};

template <class T>
T get(const toml::table& t, const char* path) {
  const auto v = t.at_path(path).value<T>();
  if (!v) fail(ErrorCode::invalid_argument, "scenario: {} is missing", path);
  return *v;
}

Settings read(const char* file) {
  const toml::table t = toml::parse_file(file);
  Settings s{};
  s.hours = get<double>(t, "hours");
  s.round = get<double>(t, "round_seconds");
  s.seed = static_cast<uint64_t>(get<int64_t>(t, "seed"));
  s.teams = static_cast<int32_t>(get<int64_t>(t, "teams"));
  s.regions = static_cast<int32_t>(get<int64_t>(t, "region[0].count"));
  s.spot_share = get<double>(t, "region[0].spot_share");
  for (auto&& [name, count] : *t.at_path("region[0].nodes").as_table())
    s.nodes.push_back({std::string(name.str()), static_cast<int32_t>(*count.value<int64_t>())});
  for (auto&& d : *t.at_path("jobs.demands").as_array())
    s.demands.push_back(static_cast<int32_t>(*d.value<int64_t>()));
  for (auto&& d : *t.at_path("jobs.demand_weights").as_array())
    s.weights.push_back(*d.value<double>());
  s.tiers = {get<double>(t, "jobs.tiers.premium"), get<double>(t, "jobs.tiers.standard"),
             get<double>(t, "jobs.tiers.basic")};
  s.mean_hours = get<double>(t, "jobs.mean_hours");
  s.sigma = get<double>(t, "jobs.sigma");
  s.load = get<double>(t, "jobs.load");
  s.typed = get<double>(t, "jobs.typed");
  s.restart = get<double>(t, "jobs.restart_seconds");
  s.service_share = get<double>(t, "services.share");
  s.swing = get<double>(t, "services.swing");
  s.step_minutes = get<double>(t, "services.step_minutes");
  s.replicas = static_cast<int32_t>(get<int64_t>(t, "services.replicas"));
  s.mtbf_hours = get<double>(t, "faults.node_mtbf_hours");
  s.repair_hours = get<double>(t, "faults.repair_hours");
  s.reclaim_hours = get<double>(t, "faults.spot_reclaim_hours");
  s.away_hours = get<double>(t, "faults.spot_away_hours");
  s.notice = get<double>(t, "faults.spot_notice_seconds");
  s.lost_work = get<double>(t, "faults.lost_work_seconds");
  s.maintenance_every_hours = get<double>(t, "maintenance.every_hours");
  s.maintenance_hours = get<double>(t, "maintenance.hours");
  s.maintenance_share = get<double>(t, "maintenance.share");
  s.maintenance_notice = get<double>(t, "maintenance.notice_seconds");
  return s;
}

struct Outcome {
  std::array<int64_t, 3> windows{}, met{};
  std::array<double, 3> worst{1e9, 1e9, 1e9}, fraction{};
  std::array<double, 3> jct{};
  std::array<int64_t, 3> finished{};
  double used = 0, usable = 0;  // device-seconds while work waited
  double decide = 0, slowest = 0;
  int64_t rounds = 0, changes = 0, losses = 0, moves = 0;
  double redone = 0;  // device hours
  double mean_jobs = 0;
};

class World {
 public:
  explicit World(const Settings& s) : s_(s) {
    for (int32_t r = 0; r < s.regions; ++r) {
      region_of_cluster_.push_back(r);
      for (size_t t = 0; t < s.nodes.size(); ++t) {
        Pool p;
        p.cluster = r;
        p.type = static_cast<int32_t>(t);
        p.per_node = kPerNode;
        p.whole_nodes = s.nodes[t].second;
        p.devices = int64_t{s.nodes[t].second} * kPerNode;
        total_ += static_cast<double>(p.devices);
        pools_.push_back(p);
      }
    }
    make_jobs();
  }
  double devices() const { return total_; }
  size_t jobs() const { return jobs_.size(); }

  Outcome run(
      const std::function<std::unique_ptr<Regime>(
          const std::vector<Pool>&, const std::vector<int32_t>&, const std::vector<Job>&)>& make) {
    std::vector<Job> jobs = jobs_;
    auto regime = make(pools_, region_of_cluster_, jobs);
    Rng rng(s_.seed, 7);
    Outcome out;
    std::vector<int64_t> capacity;
    for (const Pool& p : pools_) capacity.push_back(p.devices);
    std::vector<Loss> losses;                   // to come
    std::vector<std::pair<double, Loss>> back;  // nodes to come back, and when
    std::vector<int32_t> alive;
    size_t next = 0;
    const double end = s_.hours * 3600;
    const double guarantee[3] = {0.95, 0.70, 0};
    for (double now = 0; now < end; now += s_.round) {
      for (; next < jobs.size() && jobs[next].arrival <= now; ++next) {
        alive.push_back(static_cast<int32_t>(next));
        jobs[next].window_start = now;
        regime->arrived(static_cast<int32_t>(next), now);
      }
      if (std::fmod(now, s_.step_minutes * 60) < s_.round)
        for (int32_t j : alive)
          if (Job& job = jobs[static_cast<size_t>(j)]; job.service) {
            job.what.demand = service_demand(job, now);
            regime->changed(j, now);
          }
      faults(rng, now, jobs, alive, capacity, losses, back, *regime, out);
      const double cpu = static_cast<double>(clock());
      regime->decide(now);
      const double spent = (static_cast<double>(clock()) - cpu) / CLOCKS_PER_SEC;
      out.decide += spent;
      out.slowest = std::max(out.slowest, spent);
      ++out.rounds;
      std::vector<int64_t> used(pools_.size());
      bool waits = false;
      for (int32_t j : alive) {
        Job& job = jobs[static_cast<size_t>(j)];
        const auto [pool, devices] = regime->held(j);
        if (pool != job.pool || (devices != job.devices && !job.service)) {
          if (pool >= 0) {
            job.pause = s_.restart;
            ++out.changes;
          }
        }
        job.pool = pool;
        job.devices = pool >= 0 ? devices : 0;
        if (pool >= 0) used[static_cast<size_t>(pool)] += devices;
        waits = waits || pool < 0;
      }
      for (size_t p = 0; p < pools_.size(); ++p)
        DUCTILE_CHECK(used[p] <= std::max<int64_t>(capacity[p], 0), "pool {}: {} of {} used", p,
                      used[p], capacity[p]);
      if (waits)
        for (size_t p = 0; p < pools_.size(); ++p) {
          out.used += static_cast<double>(used[p]) * s_.round;
          out.usable += static_cast<double>(capacity[p]) * s_.round;
        }
      // Time passes.
      regime->account(now + s_.round, s_.round);
      size_t kept = 0;
      out.mean_jobs += static_cast<double>(alive.size());
      for (int32_t j : alive) {
        Job& job = jobs[static_cast<size_t>(j)];
        const double paused = std::min(job.pause, s_.round);
        job.pause -= paused;
        const double ran = job.pool >= 0 ? s_.round - paused : 0;
        job.granted += ran * job.devices;
        job.asked += s_.round * job.what.demand;
        if (now + s_.round - job.window_start >= 3600) {
          const auto t = static_cast<size_t>(job.what.tier);
          const double f = job.granted / job.asked;
          ++out.windows[t];
          out.met[t] += f >= guarantee[t] - 1e-9;
          out.worst[t] = std::min(out.worst[t], f);
          out.fraction[t] += f;
          job.window_start = now + s_.round;
          job.granted = job.asked = 0;
        }
        const double ratio = static_cast<double>(job.devices) / job.what.demand;
        job.work -= ran * (ratio > 1 ? std::pow(ratio, job.what.scaling) : ratio);
        if (!job.service && job.work <= 0) {
          job.finish = now + s_.round;
          out.jct[static_cast<size_t>(job.what.tier)] += job.finish - job.arrival;
          ++out.finished[static_cast<size_t>(job.what.tier)];
          regime->ended(j);
          continue;
        }
        alive[kept++] = j;
      }
      alive.resize(kept);
    }
    return out;
  }

 private:
  int32_t service_demand(const Job& job, double now) const {
    const double load = 1 + s_.swing * std::sin(2 * M_PI * (now / 86400 + job.phase));
    return std::max(1, static_cast<int32_t>(std::lround(job.base * load / s_.replicas))) *
           s_.replicas;
  }

  void make_jobs() {
    Rng rng(s_.seed);
    // Services: one of 25 replicas at the mean each, spread over the regions.
    const double each = 25.0 * s_.replicas;
    const int services = static_cast<int>(total_ * s_.service_share / each);
    for (int i = 0; i < services; ++i) {
      Job j;
      j.service = true;
      j.what.tier = Tier::premium;
      j.what.home = i % s_.regions;
      j.what.movable = j.what.elastic = false;
      j.what.team = static_cast<int32_t>(rng.below(static_cast<uint32_t>(s_.teams)));
      j.what.restart_seconds = s_.restart;
      j.base = each;
      j.phase = j.what.home / static_cast<double>(s_.regions);
      j.work = 1e18;
      j.what.demand = service_demand(j, 0);
      jobs_.push_back(j);
    }
    double mean_demand = 0, sum = 0;
    for (size_t i = 0; i < s_.demands.size(); ++i) {
      mean_demand += s_.demands[i] * s_.weights[i];
      sum += s_.weights[i];
    }
    mean_demand /= sum;
    const double per_second =
        total_ * (1 - s_.service_share) * s_.load / (mean_demand * s_.mean_hours * 3600);
    for (double now = 0; now < s_.hours * 3600;) {
      now -= std::log(1 - rng.uniform(0, 0.999999)) / per_second;
      Job j;
      double pick = rng.uniform(0, sum);
      size_t d = 0;
      while (d + 1 < s_.demands.size() && pick >= s_.weights[d]) pick -= s_.weights[d++];
      j.what.demand = s_.demands[d];
      const double u = rng.uniform();
      j.what.tier = u < s_.tiers[0]                 ? Tier::premium
                    : u < s_.tiers[0] + s_.tiers[1] ? Tier::standard
                                                    : Tier::basic;
      j.what.home = static_cast<int32_t>(rng.below(static_cast<uint32_t>(s_.regions)));
      j.what.team = static_cast<int32_t>(rng.below(static_cast<uint32_t>(s_.teams)));
      j.what.restart_seconds = s_.restart;
      if (rng.uniform() < s_.typed) {
        int32_t nodes = 0;
        for (const auto& n : s_.nodes) nodes += n.second;
        auto at = static_cast<int32_t>(rng.below(static_cast<uint32_t>(nodes)));
        size_t t = 0;
        while (at >= s_.nodes[t].second) at -= s_.nodes[t++].second;
        j.what.type = static_cast<int32_t>(t);
      }
      j.arrival = now;
      j.work = 3600 * s_.mean_hours * std::exp(s_.sigma * rng.normal() - s_.sigma * s_.sigma / 2);
      jobs_.push_back(j);
    }
  }

  struct Loss {
    double at;
    int32_t pool;
    int32_t nodes;
    double away;  // s
    bool announced;
  };

  // Nodes fail and are repaired; spot nodes are taken, after a notice, and given back; each region
  // in turn has some of its nodes maintained. The jobs on them restart; without a notice, or where
  // the regime does not heed it, they also do again what they have done since their last
  // checkpoint.
  void faults(Rng& rng, double now, std::vector<Job>& jobs, const std::vector<int32_t>& alive,
              std::vector<int64_t>& capacity, std::vector<Loss>& losses,
              std::vector<std::pair<double, Loss>>& back, Regime& regime, Outcome& out) {
    std::vector<uint8_t> touched(pools_.size());
    std::erase_if(back, [&](const auto& entry) {
      if (entry.first > now) return false;
      capacity[static_cast<size_t>(entry.second.pool)] += int64_t{entry.second.nodes} * kPerNode;
      touched[static_cast<size_t>(entry.second.pool)] = 1;
      return true;
    });
    const auto announce = [&](const Loss& loss) {
      regime.announced(loss.pool, int64_t{loss.nodes} * kPerNode, loss.at);
      losses.push_back(loss);
    };
    for (size_t p = 0; p < pools_.size(); ++p) {
      const double nodes = pools_[p].whole_nodes, hours = s_.round / 3600;
      const auto drawn = [&](double expect) {
        int32_t count = 0;
        for (; expect > 0; expect -= 1) count += rng.uniform() < std::min(1.0, expect);
        return count;
      };
      for (int32_t n = drawn(hours * nodes / s_.mtbf_hours); n > 0; --n)
        losses.push_back({now, static_cast<int32_t>(p), 1, 3600 * s_.repair_hours, false});
      for (int32_t n = drawn(hours * nodes * s_.spot_share / s_.reclaim_hours); n > 0; --n)
        announce({now + s_.notice, static_cast<int32_t>(p), 1, 3600 * s_.away_hours, true});
    }
    const double every = 3600 * s_.maintenance_every_hours;
    if (now > 0 && std::fmod(now, every) < s_.round) {
      const auto region = static_cast<int32_t>(now / every) % s_.regions;
      for (size_t p = 0; p < pools_.size(); ++p)
        if (region_of_cluster_[static_cast<size_t>(pools_[p].cluster)] == region)
          announce({now + s_.maintenance_notice, static_cast<int32_t>(p),
                    static_cast<int32_t>(pools_[p].whole_nodes * s_.maintenance_share),
                    3600 * s_.maintenance_hours, true});
    }
    std::vector<std::vector<int32_t>> on_pool;
    for (const Loss& loss : losses) {
      if (loss.at > now) continue;
      const auto p = static_cast<size_t>(loss.pool);
      const int64_t before = capacity[p];
      capacity[p] -= int64_t{loss.nodes} * kPerNode;
      touched[p] = 1;
      back.push_back({now + loss.away, loss});
      if (on_pool.empty()) {
        on_pool.resize(pools_.size());
        for (int32_t j : alive)
          if (jobs[static_cast<size_t>(j)].pool >= 0)
            on_pool[static_cast<size_t>(jobs[static_cast<size_t>(j)].pool)].push_back(j);
      }
      // Random nodes of the pool: who holds one restarts (services go on, one replica short).
      const bool heeded = loss.announced && regime.heeds();
      for (int32_t n = 0; n < loss.nodes; ++n) {
        auto at =
            static_cast<int64_t>(rng.below(static_cast<uint32_t>(std::max<int64_t>(before, 1))));
        for (int32_t j : on_pool[p]) {
          Job& job = jobs[static_cast<size_t>(j)];
          at -= job.devices;
          if (at >= 0) continue;
          if (!job.service) {
            job.pause = s_.restart;
            regime.lost(j);
            ++(heeded ? out.moves : out.losses);
            if (!heeded) {
              job.work += s_.lost_work;
              out.redone += s_.lost_work * job.devices / 3600;
            }
          }
          break;
        }
      }
    }
    std::erase_if(losses, [&](const Loss& loss) { return loss.at <= now; });
    for (size_t p = 0; p < pools_.size(); ++p)
      if (touched[p]) regime.capacity(static_cast<int32_t>(p), capacity[p]);
  }

  Settings s_;
  std::vector<Pool> pools_;
  std::vector<int32_t> region_of_cluster_;
  std::vector<Job> jobs_;
  double total_ = 0;
};

void print(const char* name, const Outcome& o) {
  const auto share = [&](size_t t) {
    return 100.0 * static_cast<double>(o.met[t]) /
           static_cast<double>(std::max<int64_t>(1, o.windows[t]));
  };
  // No window of a tier has closed: there is nothing to say of it.
  const auto windows = [&](size_t t, const char* format) {
    if (o.windows[t] == 0) return std::string("-");
    char text[64];
    std::snprintf(text, sizeof text, format, share(t), o.worst[t]);
    return std::string(text);
  };
  std::printf(
      "| %s | %s | %s | %.2f | %.1f %% | %lld | %.2f / %.2f / "
      "%.2f | %lld | %lld / %.0f | %.1f / %.1f |\n",
      name, windows(0, "%.3f %% (worst %.3f)").c_str(), windows(1, "%.2f %% (worst %.2f)").c_str(),
      o.fraction[2] / static_cast<double>(std::max<int64_t>(1, o.windows[2])),
      100 * o.used / std::max(1.0, o.usable),
      static_cast<long long>(o.finished[0] + o.finished[1] + o.finished[2]),
      o.jct[0] / 3600 / static_cast<double>(std::max<int64_t>(1, o.finished[0])),
      o.jct[1] / 3600 / static_cast<double>(std::max<int64_t>(1, o.finished[1])),
      o.jct[2] / 3600 / static_cast<double>(std::max<int64_t>(1, o.finished[2])),
      static_cast<long long>(o.changes), static_cast<long long>(o.losses), o.redone,
      1e3 * o.decide / static_cast<double>(o.rounds), 1e3 * o.slowest);
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: fleet_scenario SCENARIO.toml [HOURS [SEEDS]]\n");
    return 2;
  }
  Settings s = read(argv[1]);
  if (argc > 2) s.hours = std::stod(argv[2]);
  const int seeds = argc > 3 ? std::stoi(argv[3]) : 1;
  // Partitions: what each tier asks for on average, services counted with Premium.
  const double training = (1 - s.service_share);
  const std::array<double, 3> shares{s.service_share + training * s.tiers[0], training * s.tiers[1],
                                     training * s.tiers[2]};
  for (int k = 0; k < seeds; ++k, ++s.seed) {
    World world(s);
    std::printf("Seed %llu: %.0f devices, %zu jobs in %.0f hours\n\n",
                static_cast<unsigned long long>(s.seed), world.devices(), world.jobs(), s.hours);
    std::printf(
        "| regime | Premium windows met | Standard windows met | Basic, of demand | used while "
        "work "
        "waits | jobs done | JCT h, P / S / B | starts and moves | hit without warning / device "
        "hours done again | decision ms, mean / worst |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    print("Ductile", world.run([](const auto& p, const auto& r, const auto& j) {
      return std::make_unique<Ours>(p, r, j);
    }));
    print("static partitions", world.run([&](const auto& p, const auto& r, const auto& j) {
      return std::make_unique<Rigid>(p, r, j, Serving::partitions, shares);
    }));
    print("no preemption", world.run([&](const auto& p, const auto& r, const auto& j) {
      return std::make_unique<Rigid>(p, r, j, Serving::queue, shares);
    }));
    print("preemptive priority", world.run([&](const auto& p, const auto& r, const auto& j) {
      return std::make_unique<Rigid>(p, r, j, Serving::priority, shares);
    }));
    std::printf("\n");
  }
  return 0;
}

}  // namespace
}  // namespace ductile::sched

int main(int argc, char** argv) {
  try {
    return ductile::sched::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fleet_scenario: %s\n", e.what());
    return 1;
  }
}
