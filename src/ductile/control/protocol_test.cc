#include "ductile/control/protocol.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/control/membership.h"

namespace ductile::control {
namespace {

using nlohmann::json;

GenerationPlan some_plan() {
  return {7,
          41,
          {{3, "10.0.0.1:99", {0, 3}, StateSource::apply_voted, 0, {{0, 4}, {7, 8}}},
           {5, "shm", {3, 8}, StateSource::peer, 3}}};
}

WorkerStatus some_report() {
  WorkerStatus report;
  report.worker = 3;
  report.sequence = 12;
  report.address = "10.0.0.1:99";
  report.phase = WorkerPhase::halted;
  report.generation = 6;
  report.promised = 7;
  report.step = 40;
  report.voted = true;
  report.num_parts = 8;
  report.held = {{0, 4}, {7, 8}};
  report.next = {{2, 3}};
  report.can_save = true;
  report.suspects = {4, 5};
  report.save = {2, SaveStatus::State::failed, 40, "disk full", {100, 20, 0.5, 2, 1.5, 4}};
  report.unreadable = 30;
  report.faulted = true;
  report.leaving = true;
  report.error = "label 12 of sample 7 is none of 10 classes";
  report.error_code = ErrorCode::data_loss;
  report.note = "a peer kept silent";
  report.cost = {12.5, 40, 300.25, 1 << 20};
  return report;
}

std::vector<Instruction> some_instructions() {
  return {{1, 3, Ack{12}},
          {1, 3, Ack{13, run::Cost{7, 12.5, std::nullopt, 1 << 20}}},
          {1, 3, Halt{7, true, "from 1 to 2 workers"}},
          {1, 3, Halt{8, true, "preemption", true}},
          {2, 5, Enter{std::make_shared<GenerationPlan>(some_plan()), "worker 4 is gone"}},
          {2, 5, Save{7, 3, 100, "time for one"}},
          {2, 5, Stop{"finished"}}};
}

std::vector<Event> some_events() {
  return {StartJob{2},
          ResizeJob{3},
          ResizeJob{3, {4, 5}},
          PreemptJob{},
          ResumeJob{0},
          StopJob{},
          SaveJob{},
          LaunchFailed{4, "no such file"},
          LaunchFailed{5, "no host has room", true, true},
          WorkerExited{4, 3, 9},
          ConnectionClosed{4},
          WorkerReported{some_report()},
          CheckpointPublished{40},
          PublishFailed{40, "disk full"},
          Tick{}};
}

TEST(Protocol, PartsCoverAStateWhereNoneIsMissing) {
  const Parts low = {{0, 2}}, high = {{3, 5}}, middle = {{1, 4}};
  EXPECT_TRUE(covers({&low, &high, &middle}, 5));
  EXPECT_TRUE(covers({&high, &middle, &low}, 5));
  EXPECT_FALSE(covers({&high, &low}, 5));
  EXPECT_FALSE(covers({&middle, &high}, 5));
  EXPECT_FALSE(covers({&low, &middle}, 5));
  EXPECT_FALSE(covers({&low}, 0));  // not known yet
}

TEST(Protocol, ReportsAndInstructionsSurviveTheWire) {
  EXPECT_EQ(worker_status_from_json(json::parse(to_json(some_report()).dump())), some_report());
  for (const Instruction& instruction : some_instructions())
    EXPECT_EQ(instruction_from_json(json::parse(to_json(instruction).dump())), instruction);
}

// Those of a worker that is older than its controller, or of a state that an older one saved.
TEST(Protocol, AReportWithoutTheFiguresOfItsSaveIsRead) {
  json value = to_json(some_report());
  value.at("save").erase("figures");
  WorkerStatus want = some_report();
  want.save.figures = {};
  EXPECT_EQ(worker_status_from_json(value), want);
}

TEST(Protocol, EventsAndCommandsSurviveJson) {
  for (const Event& event : some_events()) {
    const json written = to_json(event);
    EXPECT_EQ(event_from_json(written).index(), event.index());
    EXPECT_EQ(to_json(event_from_json(written)), written);
  }
  const std::vector<Command> commands = {LaunchWorker{3, "2 workers are wanted"},
                                         KillWorker{3, "silent"},
                                         SendInstruction{some_instructions()[2]},
                                         PublishCheckpoint{3, 7, 40, {100, 20, 0.5, 2, 1.5, 4}},
                                         Release{"preempted"},
                                         Note{"lost", "worker 3"}};
  for (const Command& command : commands) {
    const json written = to_json(command);
    EXPECT_EQ(command_from_json(written).index(), command.index());
    EXPECT_EQ(to_json(command_from_json(written)), written);
  }
}

// Whatever a stranger sends is refused by name, never taken for something else, never a crash.
TEST(Protocol, AlteredMessagesAreRefused) {
  const auto refused = [](const auto& read, const json& value) {
    try {
      read(value);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return;
    }
  };
  const std::vector<json> junk = {
      nullptr, true, -3, 1.5, "x", json::array(), json::object(), uint64_t{1} << 63};
  const auto attack = [&](const auto& read, const json& sound) {
    for (const json& value : junk) refused(read, value);
    for (const auto& [key, value] : sound.items()) {
      json without = sound;
      without.erase(key);
      if (key == "can_save")
        EXPECT_NO_THROW(read(without)) << "workers of earlier versions do not say it";
      else
        EXPECT_THROW(read(without), Error) << key;
      for (const json& other : junk) {
        json altered = sound;
        altered[key] = other;
        refused(read, altered);
      }
    }
  };
  attack([](const json& v) { return worker_status_from_json(v); }, to_json(some_report()));
  for (const Instruction& instruction : some_instructions())
    attack([](const json& v) { return instruction_from_json(v); }, to_json(instruction));
  for (const Event& event : some_events())
    attack([](const json& v) { return event_from_json(v); }, to_json(event));
}

TEST(Protocol, AnErrorNamesTheKeyAndWhatWouldBeRight) {
  json value = to_json(some_report());
  value["phase"] = "asleep";
  try {
    worker_status_from_json(value);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "report: phase = \"asleep\" is not known; allowed: \"loading\", \"ready\", "
              "\"restoring\", \"running\", \"halted\", \"done\"");
  }
}

}  // namespace
}  // namespace ductile::control
