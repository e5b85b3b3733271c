#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/link/addresses.h"
#include "ductile/link/command_source.h"
#include "ductile/link/testing/test_model.h"

// A torch-free step loop of a job that one worker trains.
namespace ductile::link::testing {

using namespace control;
using namespace std::chrono_literals;

inline constexpr int64_t kLoopRanks = 4;

struct Loop {
  int64_t steps = 60;
  std::function<void(CommandSource&, int64_t step)> before_step;  // may throw
  std::function<bool(int64_t step)> published = [](int64_t) { return true; };
  int64_t steps_done = 0;
  uint64_t value = 0;  // in the end

  // The step loop, as any worker has it.
  void run(CommandSource& source, const fs::path& checkpoints) {
    std::shared_ptr<const GenerationPlan> plan = std::make_shared<GenerationPlan>();
    State state;
    uint64_t reduction = 0;
    source.tell(Loaded{});
    while (const auto command = source.next(60s)) {
      try {
        if (const auto* restore = std::get_if<Restore>(&*command)) {
          plan = restore->plan;
          ASSERT_EQ(plan->members.size(), 1u);
          if (restore->self.source == StateSource::checkpoint) {
            try {
              state = read_checkpoint(checkpoints, plan->start);
            } catch (const std::exception& e) {
              source.tell(restore_event_of(e, plan->number));
              continue;
            }
          } else if (restore->self.source == StateSource::initial) {
            state = State{};
          }
          source.tell(Restored{plan->number, plan->start, plan->start == steps});
        } else if (const auto* run = std::get_if<RunStep>(&*command)) {
          plan = run->plan;
          if (before_step) before_step(source, run->step);
          std::vector<uint64_t> leaves;
          for (int64_t r = 0; r < kLoopRanks; ++r)
            leaves.push_back(leaf(state.value, run->step, r));
          reduction = reduce(leaves);
          source.tell(Reduced{plan->number, run->step});
        } else if (const auto* vote = std::get_if<CastVote>(&*command)) {
          source.tell(AllVoted{vote->generation, vote->step, vote->stop});
        } else if (const auto* applied = std::get_if<Apply>(&*command)) {
          state = {applied->step + 1, apply(state.value, reduction)};
          ++steps_done;
          source.tell(Restored{applied->generation, state.step, state.step == steps});
        } else if (const auto* abandon = std::get_if<Abandon>(&*command)) {
          source.tell(Abandoned{abandon->generation});
        } else if (const auto* save = std::get_if<WriteCheckpoint>(&*command)) {
          try {
            write_checkpoint(checkpoints, state, checkpoint_tag(source.worker()));
            source.tell(Saved{save->attempt, save->step, {8, 4}});
            // These steps take no time: a checkpoint would come too late for what a test does next.
            for (int i = 0; i < 100 && !published(save->step); ++i) {
              std::this_thread::sleep_for(2ms);
              source.tell(Beat{});
            }
          } catch (const std::exception& e) {
            source.tell(SaveFailed{save->attempt, e.what()});
          }
        }
      } catch (const std::exception& e) {
        source.tell(event_of(e, plan->number));
      }
    }
    value = state.value;
  }
};

}  // namespace ductile::link::testing
