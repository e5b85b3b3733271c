#include "ductile/control/testing/model_job.h"

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace ductile::control {
namespace {

int64_t number_from(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoll(text);
}

struct Sweep {
  uint64_t failed_seed = 0;
  std::string violation;  // of the smallest failing seed
  ModelJobResult sum;
  int64_t schedules = 0;
};

Sweep sweep(uint64_t first, int64_t count, Mutation mutation) {
  const unsigned num_threads = 2;
  std::vector<Sweep> parts(num_threads);
  std::atomic<bool> found{false};
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < num_threads; ++t) {
    threads.emplace_back([&, t] {
      Sweep& part = parts[t];
      for (int64_t i = t; i < count && !found; i += num_threads) {
        const ModelJobResult one = run_model_job(first + static_cast<uint64_t>(i), mutation);
        ++part.schedules;
        part.sum.events += one.events;
        part.sum.generations += one.generations;
        part.sum.kills += one.kills;
        part.sum.redone += one.redone;
        part.sum.fallbacks += one.fallbacks;
        part.sum.restarts += one.restarts;
        part.sum.publications += one.publications;
        part.sum.preemptions += one.preemptions;
        part.sum.seconds += one.seconds;
        if (one.violation.empty()) continue;
        part.failed_seed = first + static_cast<uint64_t>(i);
        part.violation = one.violation;
        found = true;
      }
    });
  }
  threads.clear();
  Sweep all = parts[0];
  const Sweep& other = parts[1];
  if (all.violation.empty()) {
    all.violation = other.violation;
    all.failed_seed = other.failed_seed;
  }
  all.schedules += other.schedules;
  all.sum.events += other.sum.events;
  all.sum.generations += other.sum.generations;
  all.sum.kills += other.sum.kills;
  all.sum.redone += other.sum.redone;
  all.sum.fallbacks += other.sum.fallbacks;
  all.sum.restarts += other.sum.restarts;
  all.sum.publications += other.sum.publications;
  all.sum.preemptions += other.sum.preemptions;
  all.sum.seconds += other.sum.seconds;
  return all;
}

// DUCTILE_SIM_SEED=n replays one schedule with a trace; DUCTILE_SIM_FIRST and DUCTILE_SIM_COUNT
// choose which ones are swept.
TEST(ModelJob, RandomSchedulesKeepEveryInvariant) {
  if (std::getenv("DUCTILE_SIM_SEED") != nullptr) {
    const ModelJobResult one = run_model_job(
        static_cast<uint64_t>(number_from("DUCTILE_SIM_SEED", 0)), Mutation::none, true);
    ASSERT_EQ(one.violation, "");
    return;
  }
  const Sweep all = sweep(static_cast<uint64_t>(number_from("DUCTILE_SIM_FIRST", 1)),
                          number_from("DUCTILE_SIM_COUNT", 40'000), Mutation::none);
  ASSERT_EQ(all.violation, "") << "replay with DUCTILE_SIM_SEED=" << all.failed_seed
                               << " ductile_control_test --gtest_filter=ModelJob.Random*";
  fmt::print(
      "{} schedules: {} events, {} generations, {} kills, {} steps begun again, {} returns to "
      "a checkpoint, {} controller restarts, {} checkpoints, {} preemptions, {:.0f} s of "
      "virtual time\n",
      all.schedules, all.sum.events, all.sum.generations, all.sum.kills, all.sum.redone,
      all.sum.fallbacks, all.sum.restarts, all.sum.publications, all.sum.preemptions,
      all.sum.seconds);
}

class BrokenMachine : public ::testing::TestWithParam<Mutation> {};

TEST_P(BrokenMachine, IsCaught) {
  const Sweep all = sweep(1, 20'000, GetParam());
  ASSERT_NE(all.violation, "") << "nothing noticed in " << all.schedules << " schedules";
  fmt::print("caught after {} schedules: {}\n", all.schedules, all.violation);
}

INSTANTIATE_TEST_SUITE_P(
    ModelJob, BrokenMachine,
    ::testing::Values(Mutation::commit_without_vote, Mutation::worker_publishes,
                      Mutation::no_generation_check, Mutation::saves_are_lost, Mutation::no_lease,
                      Mutation::record_is_not_read, Mutation::promise_is_not_kept,
                      Mutation::votes_are_forgotten, Mutation::refusals_are_damage,
                      Mutation::parts_are_claimed, Mutation::nobody_is_met),
    [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace ductile::control
