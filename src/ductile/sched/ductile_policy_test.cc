#include "ductile/sched/ductile_policy.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/sched/hetero.h"
#include "ductile/sched/pools.h"

namespace ductile::sched {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// A small world with everything that may go wrong in one: random devices, jobs of every kind, nodes
// that fail, come back and are announced to leave. Follows from the seed alone.
class World {
 public:
  explicit World(uint64_t seed) : rng_(99, seed) {
    const char* names[] = {"t4", "rtx", "a100"};
    const uint32_t types = 1 + rng_.below(3);
    for (uint32_t t = 0; t < types; ++t)
      cluster_.add_nodes(names[t], static_cast<int32_t>(1 + rng_.below(4)), 1 << rng_.below(4));
    const uint32_t jobs = 2 + rng_.below(7);
    for (uint32_t i = 0; i < jobs; ++i) add_job(static_cast<JobId>(i));
  }

  // Runs until every job is done; throws where a rule is broken or a job starves.
  void run() {
    DuctileOptions options;
    options.budgets = rng_.below(2) == 0;
    DuctilePolicy policy(options);
    int rounds = 0;
    size_t done = 0;
    while (done < all_.size()) {
      if (++rounds > 3000) {
        std::string why;
        for (const Job& j : all_)
          if (j.left > 0)
            why += fmt::format(
                "job {} of {} devices ({}), {:.0f} steps left, {} restarts, has {}: {}\n",
                j.view.id, j.view.requested_devices, to_string(j.view.scaling), j.left,
                j.view.restarts, device_count(j.view.allocation), policy.explain(j.view.id));
        fail(ErrorCode::internal, "starved: {}", why);
      }
      // Faults end in time, so that a job can be expected to.
      const bool faults = rounds < 300;
      for (int32_t n = 0; n < cluster_.nodes(); ++n) {
        const auto i = static_cast<size_t>(n);
        if (!faults) {
          cluster_.node_up[i] = 1;
          cluster_.node_leaves_at[i] = kNever;
        } else if (cluster_.node_leaves_at[i] <= now_) {
          cluster_.node_up[i] = 0;
          cluster_.node_leaves_at[i] = kNever;
        } else if (rng_.below(25) == 0) {
          cluster_.node_up[i] ^= 1;
        } else if (rng_.below(40) == 0) {
          cluster_.node_leaves_at[i] = now_ + rng_.below(600);
        }
        if (!cluster_.node_up[i]) lose(n);
      }
      std::vector<JobView> views;
      for (const Job& j : all_)
        if (j.view.arrival <= now_ && j.left > 0) views.push_back(j.view);
      const Round round{now_, 60, cluster_, views};
      const Decisions decisions = policy.decide(round);
      check_decisions(round, decisions);
      DUCTILE_CHECK(decisions.objective <= decisions.bound * (1 + 1e-9));
      for (const Decision& d : decisions.changes) {
        DUCTILE_CHECK(!d.reason.empty());
        apply(all_[static_cast<size_t>(d.job)], d.allocation);
      }
      for (const JobView& v : views) {
        const std::string why = policy.explain(v.id);
        const bool waits = all_[static_cast<size_t>(v.id)].view.allocation.empty();
        DUCTILE_CHECK(why.starts_with(waits ? "waits: " : "runs on "), "{}", why);
        DUCTILE_CHECK(why.find("price") == std::string::npos, "{}", why);
      }
      check_devices();
      for (Job& j : all_)
        if (j.left > 0 && advance(j)) ++done;
      now_ += 60;
    }
  }

 private:
  struct Job {
    JobView view;
    double left = 0;  // steps
    PerfParams perf;
  };

  void add_job(JobId id) {
    Job j;
    JobView& v = j.view;
    v.id = id;
    v.name = "job";
    v.application =
        rng_.below(3) == 0 ? "" : std::string(1, static_cast<char>('a' + rng_.below(2)));
    v.arrival = rng_.below(4) * 60;
    const uint32_t kind = rng_.below(6);
    v.scaling = kind == 0 ? Scaling::rigid : kind == 1 ? Scaling::strong : Scaling::adaptive;
    v.preemptible = rng_.below(6) != 0;
    v.saves = v.scaling != Scaling::rigid;
    int64_t most = 0;
    for (int32_t t = 0; t < cluster_.type_count(); ++t)
      most = std::max(most, cluster_.usable_devices(t));
    v.max_devices = static_cast<int32_t>(most);
    v.requested_devices = static_cast<int32_t>(1 + rng_.below(static_cast<uint32_t>(most)));
    v.requested_batch = 128 * v.requested_devices;
    v.restart_seconds = rng_.below(90);
    j.perf = {rng_.uniform(0.01, 0.1), rng_.uniform(0.0005, 0.004), 0.1, 0.01, 0.03, 0.003, 1.5};
    for (int32_t t = 0; t < cluster_.type_count(); ++t) {
      TypeModel m;
      m.limits = {64, 64 * 256, 8, 256};
      m.unit_rate = rng_.below(3) == 0 ? 0 : rng_.uniform(50, 400);
      v.types.push_back(m);
    }
    j.left = std::exp(rng_.uniform(3, 9));
    v.remaining = rng_.below(3) == 0 ? std::optional<double>() : j.left * rng_.uniform(0.5, 2);
    all_.push_back(j);
  }

  void apply(Job& j, const Allocation& allocation) {
    j.view.restarts += !j.view.allocation.empty();
    j.view.allocation = allocation;
    j.view.last_change = now_;
    j.view.pause_left = allocation.empty() ? 0 : j.view.restart_seconds;
  }

  void lose(int32_t node) {
    for (Job& j : all_)
      for (const NodeShare& s : j.view.allocation)
        if (s.node == node) {
          apply(j, {});
          break;
        }
  }

  void check_devices() const {
    std::map<int32_t, int32_t> used, spanning;
    for (const Job& j : all_)
      for (const NodeShare& s : j.view.allocation) {
        used[s.node] += s.devices;
        spanning[s.node] += j.view.allocation.size() > 1;
      }
    for (auto [node, devices] : used) {
      DUCTILE_CHECK(devices <= cluster_.usable(node), "node {}: {} used", node, devices);
      DUCTILE_CHECK(spanning[node] <= 1, "node {}: {} spanning jobs", node, spanning[node]);
    }
  }

  bool advance(Job& j) {
    JobView& v = j.view;
    if (v.allocation.empty()) return false;
    const double seconds = std::max(0.0, 60 - v.pause_left);
    v.pause_left = std::max(0.0, v.pause_left - 60);
    const int32_t devices = device_count(v.allocation);
    const auto type =
        static_cast<size_t>(cluster_.node_type[static_cast<size_t>(v.allocation[0].node)]);
    v.attained_service += 60.0 * devices;
    const GradientNoise noise{1, 3};
    TypeModel& m = v.types[type];
    m.fitted = true;
    m.perf = j.perf;
    m.max_profiled = std::max(m.max_profiled, devices);
    v.noise = noise;
    ++v.model_version;
    const BatchChoice b =
        best_batch(j.perf, noise, m.limits, static_cast<int32_t>(v.allocation.size()), devices);
    const double made = std::max(b.goodput / 64, 0.5) * seconds;
    v.progress += made;
    j.left -= made;
    if (v.remaining) v.remaining = std::max(0.0, *v.remaining - made);
    if (j.left > 0) return false;
    v.allocation.clear();
    return true;
  }

  Rng rng_;
  Cluster cluster_;
  std::vector<Job> all_;
  double now_ = 0;
};

// DUCTILE_SCHED_SEED=n replays one world, DUCTILE_SCHED_WORLDS=n sets how many.
TEST(DuctilePolicy, BreaksNoRuleAndStarvesNoJobInTenThousandRandomWorlds) {
  const char* only = std::getenv("DUCTILE_SCHED_SEED");
  const char* count = std::getenv("DUCTILE_SCHED_WORLDS");
  const uint64_t first = only ? std::strtoull(only, nullptr, 10) : 0;
  const uint64_t worlds = only ? 1 : count ? std::strtoull(count, nullptr, 10) : 10000;
  for (uint64_t seed = first; seed < first + worlds; ++seed) {
    try {
      World(seed).run();
    } catch (const std::exception& e) {
      FAIL() << e.what() << "\nreplay with DUCTILE_SCHED_SEED=" << seed;
    }
  }
}

JobView simple_job(JobId id, double remaining) {
  JobView v;
  v.id = id;
  v.name = "job-" + std::to_string(id);
  v.max_devices = 64;
  v.remaining = remaining;
  TypeModel m;
  m.fitted = true;
  m.perf = {0.05, 0.001, 0.02, 0.001, 0.01, 0.001, 2};
  m.max_profiled = 32;
  m.limits = {128, 8192, 16, 512};
  v.types = {m};
  v.noise = GradientNoise{1, 20};
  return v;
}

// Progress a second of a simple_job() on one device.
double simple_rate() {
  const JobView job = simple_job(0, 1);
  const std::vector<int32_t> per_node{1};
  return estimated_goodput(job, 0, 1, 1, per_node) / job.types[0].limits.init_batch;
}

TEST(DuctilePolicy, ServesTheShortJobFirstAndSaysWhatTheLongOneWaitsFor) {
  const Cluster cluster = homogeneous_cluster(1, 1);
  DuctilePolicy policy;
  const std::vector<JobView> jobs{simple_job(1, 1e6), simple_job(2, 1e3)};
  const Decisions d = policy.decide({0, 60, cluster, jobs});
  ASSERT_EQ(d.changes.size(), 1u);
  EXPECT_EQ(d.changes[0].job, 2);
  const std::string why = policy.explain(1);
  EXPECT_TRUE(
      why.starts_with("waits: it can start on 1 t4. None of 1 are free: job-2 holds 1. It "
                      "starts when 1 more is free"))
      << why;
  EXPECT_EQ(why.find("about"), std::string::npos) << why << ": nobody knows when";
  EXPECT_EQ(policy.explain(2), "runs on 1 t4, all that there are");
  EXPECT_EQ(policy.explain(3), "");
}

TEST(DuctilePolicy, SaysWhoHoldsMostAndWhoComesBefore) {
  const Cluster cluster = homogeneous_cluster(2, 4);
  DuctilePolicy policy;
  std::vector<JobView> jobs;
  for (JobId id = 1; id <= 12; ++id) {
    jobs.push_back(simple_job(id, 1e3 * static_cast<double>(id)));
    jobs.back().scaling = Scaling::rigid;
    jobs.back().min_devices = jobs.back().max_devices = jobs.back().requested_devices = 2;
  }
  policy.decide({0, 60, cluster, jobs});
  const std::string last = policy.explain(12);
  EXPECT_NE(last.find("it can start on 2 t4. None of 8 are free: job-1 holds 2, job-2 holds 2, "
                      "job-3 holds 2 and 1 other job holds 2; "),
            std::string::npos)
      << last;
  EXPECT_NE(last.find(" other waiting jobs come before it. It starts after them"),
            std::string::npos)
      << last;
  // Shorter ones come first, each with two devices.
  for (JobId id = 5; id <= 12; ++id) {
    const int64_t before = id - 5;
    const std::string jobs = before == 0 ? "; job-"
                             : before == 1
                                 ? "; 1 other waiting job comes before it. "
                                 : fmt::format("; {} other waiting jobs come before it. ", before);
    const std::string why = policy.explain(id);
    EXPECT_EQ(why.find(jobs) != std::string::npos, before > 0) << why;
    const int64_t needed = 2 * (before + 1);  // of 8
    EXPECT_NE(why.find(needed > 8 ? "It starts after them"
                                  : fmt::format("It starts when {} more are free", needed)),
              std::string::npos)
        << why;
  }
}

// One node, which leaves in two rounds: what runs there goes on until the last round before that,
// or until it ends; what waits starts if it can end in time.
TEST(DuctilePolicy, UsesANodeThatLeavesAsLongAsItIsThere) {
  Cluster cluster = homogeneous_cluster(1, 1);
  cluster.node_leaves_at[0] = 120;
  const auto changes = [&](double now, double seconds, bool runs) {
    DuctilePolicy policy;
    JobView job = simple_job(1, seconds * simple_rate());
    if (runs) job.allocation = {{0, 1}};
    return policy.decide({now, 60, cluster, std::vector<JobView>{job}}).changes;
  };
  EXPECT_TRUE(changes(0, 1e5, true).empty());
  EXPECT_TRUE(changes(60, 40, true).empty());
  const auto stopped = changes(60, 1e5, true);
  ASSERT_EQ(stopped.size(), 1u);
  EXPECT_TRUE(stopped[0].allocation.empty());
  EXPECT_NE(stopped[0].reason.find("leaves"), std::string::npos) << stopped[0].reason;
  EXPECT_EQ(changes(0, 60, false).size(), 1u);  // 30 s of a start, and then 60
  EXPECT_TRUE(changes(0, 1e3, false).empty());
}

// One device, a job that runs on it and one that waits, both of known length. Letting the second go
// first gains only where it is shorter by its own start and the other's second start.
TEST(DuctilePolicy, PreemptsNoJobForOneThatIsNotShorterByWhatItCosts) {
  const Cluster cluster = homogeneous_cluster(1, 1);
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Rng rng(seed, 5);
    std::vector<JobView> jobs{simple_job(1, 1e3), simple_job(2, 1e3)};
    const double rate = simple_rate();
    const double restart = rng.uniform(1, 250), pause = rng.uniform(0, 1) * restart;
    const double left = rng.uniform(1, 2 * restart);
    jobs[0].remaining = left * rate;
    jobs[0].progress = rng.uniform(0, 36000) * rate;  // what was done is no reason
    jobs[0].allocation = {{0, 1}};
    jobs[0].pause_left = pause;
    jobs[1].remaining = rng.uniform(0.5, 2) * left * rate;
    for (JobView& job : jobs) job.restart_seconds = restart;
    DuctilePolicy policy;
    const Decisions d = policy.decide({600, 60, cluster, jobs});
    // The first first: (pause + left) for both, then the second; and the other way round.
    const double gain = (pause + left) - (*jobs[1].remaining / rate + 2 * restart);
    EXPECT_TRUE(gain >= 0 || d.changes.empty())
        << "seed " << seed << ": " << left << " s left after " << pause << ", waiting "
        << *jobs[1].remaining / rate << " s, a restart takes " << restart;
  }
}

// What a policy offers its allocator of jobs that it has known for long is what one offers that
// sees them for the first time: as a job nears its end, a stop costs it a larger part of what is
// left.
TEST(DuctilePolicy, OffersAJobNearItsEndAsIfItSawItForTheFirstTime) {
  const Cluster cluster = homogeneous_cluster(1, 1);
  const double rate = simple_rate();
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed, 6);
    const double end = rng.uniform(120, 1200);
    std::vector<JobView> jobs{simple_job(1, 0), simple_job(2, rng.uniform(1, 2) * end * rate)};
    jobs[0].allocation = {{0, 1}};
    for (JobView& job : jobs) job.restart_seconds = rng.uniform(10, 120);
    DuctilePolicy policy;
    for (double now = 0; now < end; now += 15) {
      jobs[0].remaining = (end - now) * rate;
      jobs[0].progress = now * rate;
      jobs[0].attained_service = now;
      const Round round{now, 15, cluster, jobs};
      policy.decide(round);
      nlohmann::json memory = policy.state();
      for (nlohmann::json& job : memory["jobs"]) job["given"][0] = -1;  // so all is offered anew
      DuctilePolicy other;
      other.restore(memory, "memory");
      other.decide(round);
      const nlohmann::json known = policy.state()["allocator"]["jobs"],
                           anew = other.state()["allocator"]["jobs"];
      ASSERT_EQ(known.size(), anew.size());
      for (size_t j = 0; j < known.size(); ++j) {
        ASSERT_EQ(known[j][0].size(), anew[j][0].size());
        for (size_t c = 0; c < known[j][0].size(); ++c) {
          const double a = known[j][0][c][2], b = anew[j][0][c][2];
          ASSERT_NEAR(a, b, 0.05 * std::abs(b))
              << "seed " << seed << ", " << end - now << " s left";
        }
      }
    }
  }
}

// Ten hours of work and ten seconds before the end.
TEST(DuctilePolicy, PreemptsNoLongJobThatIsAboutToEnd) {
  const Cluster cluster = homogeneous_cluster(1, 1);
  std::vector<JobView> jobs{simple_job(1, 10 * simple_rate()), simple_job(2, 60 * simple_rate())};
  jobs[0].progress = 36000 * simple_rate();
  jobs[0].attained_service = 36000;
  jobs[0].allocation = {{0, 1}};
  for (JobView& job : jobs) job.restart_seconds = 30;
  DuctilePolicy policy;
  EXPECT_TRUE(policy.decide({36000, 60, cluster, jobs}).changes.empty());
  // If its budget is spent it may go on for long.
  jobs[0].remaining = 0;
  EXPECT_EQ(DuctilePolicy().decide({36000, 60, cluster, jobs}).changes.size(), 2u);
}

// What a start takes is lost whenever the job starts, so it is no reason to let the job wait for
// one that goes on for much longer.
TEST(DuctilePolicy, StartsAJobThatIsShorterThanItsStart) {
  const Cluster cluster = homogeneous_cluster(1, 1);
  std::vector<JobView> jobs{simple_job(1, 2000 * simple_rate()), simple_job(2, 10 * simple_rate())};
  jobs[0].allocation = {{0, 1}};
  for (JobView& job : jobs) job.restart_seconds = 30;
  DuctilePolicy policy;
  const Decisions d = policy.decide({600, 60, cluster, jobs});
  ASSERT_EQ(d.changes.size(), 2u);
  for (const Decision& change : d.changes) EXPECT_EQ(change.allocation.empty(), change.job == 1);
}

// Two jobs of five minutes are always there, beside one of a thousand seconds, on one device.
// Returns when the long one starts.
double start_of_the_long_one(double fairness) {
  const Cluster cluster = homogeneous_cluster(1, 1);
  DuctileOptions options;
  options.fairness = fairness;
  DuctilePolicy policy(options);
  JobId next = 2;
  std::vector<JobView> jobs{simple_job(1, 1000 * simple_rate())};
  for (double now = 0; now < 1e5; now += 60) {
    while (jobs.size() < 3) {
      jobs.push_back(simple_job(next++, 300 * simple_rate()));
      jobs.back().arrival = now;
    }
    for (const Decision& d : policy.decide({now, 60, cluster, jobs}).changes)
      for (JobView& job : jobs)
        if (job.id == d.job) job.allocation = d.allocation;
    if (!jobs[0].allocation.empty()) return now;
    for (JobView& job : jobs)
      if (!job.allocation.empty()) {
        job.progress += 60 * simple_rate();
        job.attained_service += 60;
        *job.remaining -= 60 * simple_rate();
      }
    std::erase_if(jobs, [](const JobView& job) { return *job.remaining < 1e-6; });
  }
  return kNever;
}

TEST(DuctilePolicy, AJobThatIsLaterThanMostGoesBeforeShorterOnes) {
  const double favoured = start_of_the_long_one(1.2);  // the default
  const double patient = start_of_the_long_one(1e9);   // by patience alone
  EXPECT_GT(favoured, 600);
  EXPECT_LT(favoured, 0.8 * patient);
  EXPECT_LT(patient, 1e5);
}

// Jobs that can run nowhere are not late, and say nothing of whether the others are.
TEST(DuctilePolicy, JobsThatCanRunNowhereMakeTheOthersTakeNoTurns) {
  const Cluster cluster = homogeneous_cluster(1, 1);
  int stops[2] = {0, 0};
  for (const bool idle : {false, true}) {
    DuctilePolicy policy;
    std::vector<JobView> jobs;
    for (JobId id = 1; id <= 8; ++id)
      jobs.push_back(simple_job(id, (2000 + 100 * static_cast<double>(id)) * simple_rate()));
    for (JobId id = 9; idle && id <= 24; ++id) {
      jobs.push_back(simple_job(id, 1000 * simple_rate()));
      jobs.back().types[0].allowed = false;
    }
    for (double now = 0; now < 1e5; now += 60) {
      for (const Decision& d : policy.decide({now, 60, cluster, jobs}).changes)
        for (JobView& job : jobs)
          if (job.id == d.job) {
            stops[idle] += d.allocation.empty();
            job.allocation = d.allocation;
          }
      for (JobView& job : jobs)
        if (!job.allocation.empty()) {
          job.progress += 60 * simple_rate();
          job.attained_service += 60;
          *job.remaining -= 60 * simple_rate();
        }
      std::erase_if(jobs, [](const JobView& job) { return *job.remaining < 1e-6; });
    }
  }
  EXPECT_EQ(stops[1], stops[0]);
}

// Pauses of 80 s, rounds of 60 s: a better pool does not make a job give up its start.
TEST(DuctilePolicy, GivesUpNoStartThatTakesLongerThanARound) {
  Cluster cluster;
  cluster.add_nodes("slow", 1, 4);
  cluster.add_nodes("fast", 1, 4);
  std::vector<JobView> jobs{simple_job(1, 1e7)};
  TypeModel fast = jobs[0].types[0];
  fast.perf = {0.01, 0.0002, 0.004, 0.0002, 0.002, 0.0002, 2};
  jobs[0].types.push_back(fast);
  jobs[0].allocation = {{0, 4}};
  for (const double restart : {30.0, 80.0})
    for (const double pause : {0.0, 20.0}) {
      jobs[0].restart_seconds = restart;
      jobs[0].pause_left = pause;
      DuctilePolicy policy;
      EXPECT_EQ(policy.decide({600, 60, cluster, jobs}).changes.empty(), restart > 60 && pause > 0)
          << restart << " " << pause;
    }
  // One that takes longer than the job's usual start.
  jobs[0].restart_seconds = 30;
  jobs[0].pause_left = 500;
  EXPECT_TRUE(DuctilePolicy().decide({600, 60, cluster, jobs}).changes.empty());
}

TEST(DuctilePolicy, ACostOfDevicesMakesJobsSmallerAndKeepsNoneWaiting) {
  const Cluster cluster = homogeneous_cluster(8, 4);
  int32_t before = INT32_MAX;
  for (const double cost : {0.0, 0.01, 0.03, 1e6}) {
    DuctileOptions options;
    options.device_cost = cost;
    DuctilePolicy policy(options);
    std::vector<JobView> jobs{simple_job(1, 1e5), simple_job(2, 1e7)};
    for (JobView& job : jobs) job.types[0].perf = {0.05, 0.001, 0.1, 0.02, 0.05, 0.01, 1};
    const Decisions d = policy.decide({0, 60, cluster, jobs});
    ASSERT_EQ(d.changes.size(), 2u) << cost;
    int32_t held = 0;
    for (const Decision& change : d.changes) held += device_count(change.allocation);
    EXPECT_LE(held, before) << cost;
    before = held;
  }
  EXPECT_LT(before, 32);
}

TEST(DuctilePolicy, DoesNotMoveWhatWouldGainLessThanTheRestartCosts) {
  const Cluster cluster = homogeneous_cluster(4, 4);
  DuctilePolicy policy;
  std::vector<JobView> jobs{simple_job(1, 1e5)};
  Decisions d = policy.decide({0, 60, cluster, jobs});
  ASSERT_EQ(d.changes.size(), 1u);
  jobs[0].allocation = d.changes[0].allocation;
  for (int i = 1; i < 20; ++i) {
    jobs[0].noise->var *= 1.01;
    ++jobs[0].model_version;
    d = policy.decide({60.0 * i, 60, cluster, jobs});
    EXPECT_TRUE(d.changes.empty());
  }
}

TEST(DuctilePolicy, LeavesANodeBeforeItGoes) {
  Cluster cluster = homogeneous_cluster(2, 4);
  DuctilePolicy policy;
  std::vector<JobView> jobs{simple_job(1, 1e5)};
  jobs[0].max_devices = 4;
  Decisions d = policy.decide({0, 60, cluster, jobs});
  ASSERT_EQ(d.changes.size(), 1u);
  jobs[0].allocation = d.changes[0].allocation;
  const int32_t node = jobs[0].allocation[0].node;
  cluster.node_leaves_at[static_cast<size_t>(node)] = 100;
  d = policy.decide({60, 60, cluster, jobs});
  ASSERT_EQ(d.changes.size(), 1u);
  ASSERT_EQ(d.changes[0].allocation.size(), 1u);
  EXPECT_NE(d.changes[0].allocation[0].node, node);
}

TEST(DuctilePolicy, IsTheSameToTheByteInEveryRun) {
  const Cluster cluster = homogeneous_cluster(4, 4);
  std::string said[2];
  for (std::string& s : said) {
    DuctilePolicy policy;
    std::vector<JobView> jobs;
    for (int i = 0; i < 12; ++i) jobs.push_back(simple_job(i, 1e3 * (1 + i * i % 7)));
    for (int r = 0; r < 10; ++r)
      for (const Decision& d : policy.decide({60.0 * r, 60, cluster, jobs}).changes) {
        jobs[static_cast<size_t>(d.job)].allocation = d.allocation;
        s += fmt::format("{} {} {};", d.job, device_count(d.allocation), d.reason);
      }
  }
  EXPECT_EQ(said[0], said[1]);
}

}  // namespace
}  // namespace ductile::sched
