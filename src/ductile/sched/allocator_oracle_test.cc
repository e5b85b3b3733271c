// The allocator against CBC (Debian coinor-cbc), on programmes as rounds pose them: configurations
// of powers of two and whole nodes on three device types, values from the throughput model of jobs
// of very different scaling, weights as shadow costs spread them. Prints the worst proven gap of
// each size. Passed over where there is no cbc.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/base/files.h"
#include "ductile/base/rng.h"
#include "ductile/sched/allocator.h"
#include "ductile/sched/goodput.h"

namespace ductile::sched {
namespace {

struct Programme {
  std::vector<int64_t> capacity;
  std::vector<std::vector<Option>> jobs;
};

// 24 : 16 : 24 of 64 devices in nodes of 4, 8 and 8, times `scale`.
Programme make(uint64_t seed, int scale, int jobs) {
  Rng rng(seed, 0xcbc);
  Programme out;
  out.capacity = {24 * scale, 16 * scale, 24 * scale};
  const int32_t per_node[] = {4, 8, 8};
  const double speed[] = {1, 4, 1.6};
  for (int j = 0; j < jobs; ++j) {
    std::vector<Option> options;
    const double weight = std::exp(1.5 * rng.normal());
    PerfParams perf;
    perf.alpha_c = 0.02 + 0.05 * rng.uniform();
    perf.beta_c = std::exp(rng.uniform(-8, -3));
    perf.alpha_r = 0.005 + 0.03 * rng.uniform();
    perf.beta_r = 0.002 * rng.uniform();
    perf.alpha_n = perf.alpha_r * rng.uniform(1.1, 6);
    perf.beta_n = 0.005 * rng.uniform();
    perf.gamma = rng.uniform(1, 3);
    const GradientNoise noise{1, std::exp(rng.uniform(-1, 5))};
    const BatchLimits limits{32, 2048, 8, 256};
    for (int32_t t = 0; t < 3; ++t) {
      if (rng.below(8) == 0) continue;
      const int32_t most = std::min<int32_t>(64, static_cast<int32_t>(out.capacity[t]));
      for (int32_t k = 1; k <= most; k = k < per_node[t] ? 2 * k : k + per_node[t]) {
        const int32_t nodes = (k + per_node[t] - 1) / per_node[t];
        const double rate = speed[t] * best_batch(perf, noise, limits, nodes, k).goodput;
        if (rate > 0) options.push_back({t, k, weight * rate});
      }
    }
    out.jobs.push_back(std::move(options));
  }
  return out;
}

// What CBC makes of it within its time, and whether it proved that.
std::pair<double, bool> solve_with_cbc(const Programme& p, const fs::path& folder) {
  std::string text = "Maximize\n obj:";
  std::vector<std::string> rows(p.capacity.size()), ones;
  std::string names;
  for (size_t j = 0; j < p.jobs.size(); ++j) {
    std::string one;
    for (size_t c = 0; c < p.jobs[j].size(); ++c) {
      const Option& o = p.jobs[j][c];
      text += fmt::format(" + {:.17g} x{}_{}\n", o.value, j, c);
      one += fmt::format(" + x{}_{}", j, c);
      rows[static_cast<size_t>(o.type)] += fmt::format(" + {} x{}_{}\n", o.gpus, j, c);
      names += fmt::format(" x{}_{}\n", j, c);
    }
    if (!one.empty()) ones.push_back(one);
  }
  text += "Subject To\n";
  for (size_t t = 0; t < rows.size(); ++t)
    if (!rows[t].empty()) text += fmt::format(" c{}:{} <= {}\n", t, rows[t], p.capacity[t]);
  for (size_t j = 0; j < ones.size(); ++j) text += fmt::format(" j{}:{} <= 1\n", j, ones[j]);
  text += "Binary\n" + names + "End\n";
  write_file_atomic(folder / "p.lp", text);
  const std::string command = fmt::format("cbc '{}' ratioGap 0 sec 4 solve > '{}' 2>&1",
                                          (folder / "p.lp").string(), (folder / "log").string());
  if (std::system(command.c_str()) != 0) return {0, false};
  std::istringstream log(read_file(folder / "log"));
  std::string line;
  double value = 0;
  bool optimal = false;
  while (std::getline(log, line)) {
    if (line.starts_with("Result - Optimal")) optimal = true;
    if (line.starts_with("Objective value:")) value = std::abs(std::stod(line.substr(16)));
  }
  return {value, optimal};
}

TEST(Oracle, CbcFindsNothingBetterThanTheBound) {
  if (std::system("cbc quit > /dev/null 2>&1") != 0) GTEST_SKIP() << "no cbc (coinor-cbc)";
  constexpr int kSeeds = 2;
  const TempFolder folder("oracle");
  std::printf(
      "| devices | jobs | worst proven gap | worst gap to CBC's optimum | proven optimal |\n"
      "| --- | --- | --- | --- | --- |\n");
  for (const auto& [scale, jobs] : {std::pair{1, 32}, std::pair{2, 64}, std::pair{4, 128},
                                    std::pair{8, 64}, std::pair{8, 400}}) {
    double worst = 0, worst_to_cbc = 0;
    int exact = 0, proved = 0;
    for (uint64_t seed = 0; static_cast<int>(seed) < kSeeds; ++seed) {
      const Programme p = make(seed, scale, jobs);
      Allocator allocator(p.capacity);
      for (size_t j = 0; j < p.jobs.size(); ++j) allocator.set_job(static_cast<int>(j), p.jobs[j]);
      const AllocatorResult& ours = allocator.solve();
      worst = std::max(worst, ours.gap());
      exact += ours.exact;
      const auto [theirs, optimal] = solve_with_cbc(p, folder.path());
      ASSERT_GT(theirs, 0) << read_file(folder.path() / "log");
      EXPECT_GE(ours.bound, theirs * (1 - 1e-6)) << "seed " << seed;
      if (!optimal) continue;
      ++proved;
      EXPECT_LE(ours.objective, theirs * (1 + 1e-6)) << "seed " << seed;
      worst_to_cbc = std::max(worst_to_cbc, 1 - ours.objective / theirs);
    }
    EXPECT_LE(worst, 0.015);
    EXPECT_LE(worst_to_cbc, 0.01);
    std::printf("| %d | %d | %.4f %% | %.4f %% (%d of %d solved by CBC) | %d of %d |\n", 64 * scale,
                jobs, 100 * worst, 100 * worst_to_cbc, proved, kSeeds, exact, kSeeds);
  }
}

}  // namespace
}  // namespace ductile::sched
