#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/control/membership.h"

namespace ductile::control {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A controller, and its workers played by hand: each test says what they report.
class MembershipTest : public ::testing::Test {
 protected:
  MembershipTest() {
    options_.virtual_ranks = 8;
    job_.emplace(options_);
  }

  void happen(const Event& event) { look_at(job_->apply(event, now_)); }
  void look_at(Outcome outcome) {
    last_ = std::move(outcome);
    for (const Command& command : last_.commands) {
      if (const auto* launch = std::get_if<LaunchWorker>(&command)) launched_ = launch->worker;
      const bool free = std::get_if<Note>(&command) != nullptr ||
                        std::get_if<SendInstruction>(&command) != nullptr;
      EXPECT_TRUE(free || last_.must_save) << dump_json(to_json(command));
    }
  }
  void say(WorkerId worker, WorkerPhase phase, Generation generation = 0, Generation promised = 0,
           int64_t step = -1, bool voted = false) {
    WorkerStatus& report = reports_[worker];
    report.worker = worker;
    report.phase = phase;
    report.generation = generation;
    report.promised = promised;
    report.step = step;
    report.voted = voted;
    if (!in_parts_.contains(worker)) {
      report.num_parts = step >= 0 ? 1 : 0;
      report.held = step >= 0 ? Parts{{0, 1}} : Parts{};
      report.next = voted ? report.held : Parts{};
    }
    repeat(worker);
  }
  void repeat(WorkerId worker) {
    ++reports_[worker].sequence;
    happen(WorkerReported{reports_[worker], hosts_[worker]});
  }
  void pass(Time time) {
    now_ += time;
    happen(Tick{});
  }
  // From now on it says that it has these of eight parts; otherwise it has all there are.
  void hold(WorkerId worker, Parts held, Parts next = {}) {
    in_parts_.insert(worker);
    reports_[worker].num_parts = 8;
    reports_[worker].held = std::move(held);
    reports_[worker].next = std::move(next);
  }
  // `count` workers run generation 1 before `step`.
  void run_with(int64_t count, int64_t step = 5) {
    happen(StartJob{count});
    for (int64_t w = 1; w <= count; ++w) say(static_cast<WorkerId>(w), WorkerPhase::ready);
    for (int64_t w = 1; w <= count; ++w)
      say(static_cast<WorkerId>(w), WorkerPhase::running, 1, 1, step);
    ASSERT_EQ(job_->phase(), Phase::running);
  }

  template <class C>
  std::vector<C> said() const {
    std::vector<C> found;
    for (const Command& command : last_.commands)
      if (const C* one = std::get_if<C>(&command)) found.push_back(*one);
    return found;
  }
  template <class C>
  std::vector<std::pair<WorkerId, C>> told() const {
    std::vector<std::pair<WorkerId, C>> found;
    for (const SendInstruction& send : said<SendInstruction>())
      if (const C* what = std::get_if<C>(&send.instruction.what))
        found.emplace_back(send.instruction.worker, *what);
    return found;
  }

  MembershipOptions options_;
  std::optional<Membership> job_;
  Time now_{1'000'000};
  Outcome last_;
  WorkerId launched_ = 0;
  std::map<WorkerId, WorkerStatus> reports_;
  std::map<WorkerId, std::string> hosts_;
  std::set<WorkerId> in_parts_;
};

}  // namespace ductile::control
