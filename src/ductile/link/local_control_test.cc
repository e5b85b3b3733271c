// A job trained by the thread that controls it: a torch-free worker whose state tells whether any
// step was lost, doubled, or computed from another state.
#include "ductile/link/local_control.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/ckpt/publish.h"
#include "ductile/link/addresses.h"
#include "ductile/link/saved_state.h"
#include "ductile/link/testing/test_loop.h"
#include "ductile/run/diary.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/meters.h"

namespace ductile::link::testing {
namespace {

using namespace control;
using namespace std::chrono_literals;
using nlohmann::json;

class LocalControlTest : public ::testing::Test {
 protected:
  LocalControlTest() : run_(folder_.path() / "run-1") {
    fs::create_directories(run_ / "checkpoints");
    fs::create_directories(run_ / "tensorboard");
    write_file_atomic(run_ / "job.toml", std::string_view(""));
    options_.run = run_;
    options_.membership.virtual_ranks = kLoopRanks;
    options_.membership.checkpoint_steps = 10;
    options_.membership.backoff_base = 5ms;
    options_.membership.checkpoint_retry = 5ms;
    options_.on_note = [this](const Note& note) {
      notes_.push_back(note.event + ": " + note.text);
    };
  }

  JobEnd train(Loop& loop) {
    const run::RunLock lock(run_, run::RunLock::kLocal);
    LocalControl control(lock, options_);
    loop.published = [&](int64_t step) { return control.membership().checkpoint() >= step; };
    loop.run(control, run_ / "checkpoints");
    return control.end();
  }
  JobEnd train() {
    Loop loop;
    return train(loop);
  }
  static std::function<void(CommandSource&, int64_t)> preempting_at(int64_t at) {
    return [at](CommandSource& source, int64_t step) {
      if (step == at) source.tell(LeaveAsked{SIGTERM});
    };
  }
  void expect_result(const JobEnd& end, bool saved = true) {
    EXPECT_EQ(end.phase, Phase::finished) << end.reason << "\n" << events();
    EXPECT_EQ(end.step, 60);
    if (!saved) return;
    EXPECT_EQ(end.checkpoint, 60);
    EXPECT_EQ(read_checkpoint(run_ / "checkpoints", 60), run_undisturbed(60, kLoopRanks));
    EXPECT_TRUE(ckpt::verify(run_ / "checkpoints").ok());
  }
  std::string events() const { return read_file(run_ / "events.jsonl"); }
  std::vector<json> events_of(const std::string& kind) const {
    std::vector<json> found;
    run::for_each_json_line(run_ / "events.jsonl", [&](json& line) {
      if (line.value("kind", "") == kind) found.push_back(line);
    });
    return found;
  }
  bool noted(const std::string& text) const {
    for (const std::string& note : notes_)
      if (note.find(text) != std::string::npos) return true;
    return false;
  }
  void damage(int64_t step) {
    const fs::path manifest =
        run_ / "checkpoints" / "manifests" / fmt::format("step-{:012d}.json", step);
    const json root = json::parse(read_file(manifest));
    for (const json& chunk : root.at("manifest").at("chunks")) {
      const auto hex = chunk.at(0).get<std::string>();
      std::ofstream(run_ / "checkpoints" / "chunks" / hex.substr(0, 2) / hex) << "rot";
    }
  }

  TempFolder folder_;
  fs::path run_;
  LocalControlOptions options_;
  std::vector<std::string> notes_;
};

TEST_F(LocalControlTest, RunsAJobToItsEnd) {
  expect_result(train());
  ASSERT_EQ(events_of("end").size(), 1u);
  const json end = events_of("end").front();
  EXPECT_EQ(end.at("status"), "done");
  EXPECT_EQ(end.at("checkpoint"), 60);
  EXPECT_GE(end.at("cost").at("core_seconds"), 0);
  EXPECT_GT(end.at("cost").at("peak_rss_bytes"), 0);
  EXPECT_TRUE(is_file(run_ / "report.html"));
  EXPECT_NE(events().find("\"generation\":1"), std::string::npos);
}

// What a leader wrote down of an earlier state counts, but for the hash of that state.
TEST_F(LocalControlTest, TheEndDropsADigestOfAnotherStep) {
  for (const int64_t step : {40, 60}) {
    SCOPED_TRACE(step);
    for (const char* name : {"checkpoints", "membership.json", "events.jsonl"})
      fs::remove_all(run_ / name);
    fs::create_directories(run_ / "checkpoints");
    Loop loop{.before_step = [&](CommandSource&, int64_t at) {
      if (at != step - 1) return;
      run::Diary(run_ / "events.jsonl")
          .append({{"kind", "summary"}, {"step", step}, {"updates", 7}, {"digest", "00ff"}});
    }};
    expect_result(train(loop));
    const json end = events_of("end").back();
    EXPECT_EQ(end.at("step"), 60);
    EXPECT_EQ(end.at("updates"), 7);
    EXPECT_EQ(end.value("digest", ""), step == 60 ? "00ff" : "");
  }
}

// Those of workers that went on while the controller was away count.
TEST_F(LocalControlTest, TheClockOfTheRunGoesOnFromItsLastLineInEitherFile) {
  Loop first{.before_step = preempting_at(33)};
  train(first);
  std::ofstream(run_ / "metrics.jsonl") << "{\"step\":30,\"seconds\":1000.5}\n";
  const size_t before = run::read_json_lines(run_ / "events.jsonl").size();
  double told = 0;
  Loop second{.before_step = [&](CommandSource& source, int64_t) {
    told = source.job_cost().value().wall_seconds;
  }};
  expect_result(train(second));
  EXPECT_GE(told, 1000.5);
  EXPECT_GE(events_of("end").back().at("cost").at("wall_seconds").get<double>(), told);
  std::vector<json> lines = run::read_json_lines(run_ / "events.jsonl");
  lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(before));
  for (const json& line : lines) EXPECT_GE(line.at("seconds"), 1000.5) << line;
}

TEST_F(LocalControlTest, APreemptedJobIsSavedAndResumedWithoutLosingAStep) {
  Loop first{.before_step = preempting_at(33)};
  const JobEnd end = train(first);
  EXPECT_EQ(end.phase, Phase::preempted);
  EXPECT_EQ(end.step, 34);
  EXPECT_EQ(end.checkpoint, 34);
  EXPECT_EQ(events_of("end").back().at("status"), "interrupted");
  ASSERT_EQ(events_of("signal").size(), 1u);
  EXPECT_EQ(events_of("signal").front().at("signal"), "SIGTERM");
  Loop second;
  expect_result(train(second));
  EXPECT_EQ(second.steps_done, 60 - 34);
}

TEST_F(LocalControlTest, IsPreemptedFromAnotherThreadAndBeforeTheFirstStep) {
  const run::RunLock lock(run_, run::RunLock::kLocal);
  LocalControl control(lock, options_);
  control.preempt();
  Loop loop;
  loop.run(control, run_ / "checkpoints");
  const JobEnd end = control.end();
  EXPECT_EQ(end.phase, Phase::preempted);
  EXPECT_EQ(loop.steps_done, 0);
  EXPECT_TRUE(events_of("signal").empty());
}

// The writer has done its part before that.
TEST_F(LocalControlTest, TheDiaryTellsOfACheckpointOnceItIsThere) {
  options_.keep_checkpoints = 100;
  const auto told = [&] {
    std::vector<int64_t> steps;
    for (const json& event : events_of("checkpoint")) steps.push_back(event.at("step"));
    return steps;
  };
  Loop loop{.before_step = [&](CommandSource&, int64_t) {
    const std::vector<int64_t> there = ckpt::verify(run_ / "checkpoints").good;
    for (const int64_t step : told()) EXPECT_EQ(std::ranges::count(there, step), 1) << step;
  }};
  expect_result(train(loop));
  EXPECT_EQ(told(), (std::vector<int64_t>{10, 20, 30, 40, 50, 60}));
  EXPECT_EQ(events_of("checkpoint").back().at("bytes"), 8);
  EXPECT_EQ(events_of("checkpoint").back().at("bytes_written"), 4);
}

// It is no worker's: it makes no line of a worker void, and no generation makes it void.
TEST_F(LocalControlTest, ThatACheckpointIsThereCountsWhateverTheGenerationsAre) {
  options_.keep_checkpoints = 100;
  expect_result(train());
  std::string text = "{\"kind\":\"note\",\"generation\":1}\n";
  for (const json& event : events_of("checkpoint")) {
    EXPECT_FALSE(event.contains("generation")) << event;
    text += event.dump() + "\n{\"kind\":\"note\",\"generation\":1}\n";
  }
  const auto counted = [&](const std::string& lines, const std::string& kind) {
    write_file_atomic(run_ / "events.jsonl", lines);
    int64_t count = 0;
    run::for_each_diary_line(run_ / "events.jsonl",
                             [&](const json& line) { count += line.at("kind") == kind ? 1 : 0; });
    return count;
  };
  EXPECT_EQ(counted(text, "checkpoint"), 6);
  EXPECT_EQ(counted(text, "note"), 7);
  EXPECT_EQ(counted("{\"kind\":\"other\",\"generation\":9}\n" + text, "checkpoint"), 6);
}

// Killed after it had published a checkpoint: before it wrote that down, or after.
TEST_F(LocalControlTest, TheDiaryTellsOnceOfACheckpointThatAControlBeforeThisOnePublished) {
  for (const bool noted : {false, true}) {
    SCOPED_TRACE(noted);
    for (const char* name : {"checkpoints", "membership.json", "events.jsonl"})
      fs::remove_all(run_ / name);
    fs::create_directories(run_ / "checkpoints");
    Loop first{.before_step = preempting_at(33)};
    train(first);
    json saved = read_state(state_file(run_)).value();
    saved["publishing"] = {
        {"worker", 1}, {"generation", 1}, {"step", 34}, {"figures", to_json(SaveFigures{8, 4})}};
    write_file_atomic(state_file(run_), sealed(saved));
    std::string kept;
    for (const json& line : run::read_json_lines(run_ / "events.jsonl")) {
      if (noted || line.value("kind", "") != "checkpoint" || line.at("step") != 34)
        kept += line.dump() + "\n";
    }
    write_file_atomic(run_ / "events.jsonl", kept);
    expect_result(train());
    std::vector<json> told = events_of("checkpoint");
    std::erase_if(told, [](const json& event) { return event.at("step") != 34; });
    ASSERT_EQ(told.size(), 1U);
    EXPECT_EQ(told.front().at("bytes"), 8);
  }
}

TEST_F(LocalControlTest, AProcessThatWasKilledIsFollowedFromTheLastCheckpoint) {
  const pid_t child = ::fork();
  if (child == 0) {
    Loop loop{.before_step = [](CommandSource&, int64_t step) {
      if (step == 35) ::kill(::getpid(), SIGKILL);
    }};
    train(loop);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  const auto begin = std::chrono::steady_clock::now();
  Loop loop;
  expect_result(train(loop));
  // Nobody waits for a lease of a worker that died with the lock. (Its lease is ten seconds.)
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 8s);
  EXPECT_LE(loop.steps_done, 40);
}

TEST_F(LocalControlTest, FallsBackToTheCheckpointBeforeADamagedOne) {
  Loop first{.before_step = preempting_at(33)};
  train(first);
  damage(34);
  Loop second;
  expect_result(train(second));
  EXPECT_EQ(second.steps_done, 30);
  EXPECT_TRUE(noted("falling back to step 30"));
}

TEST_F(LocalControlTest, WhereAllCheckpointsAreDamagedNothingIsBegunAnew) {
  Loop first{.before_step = preempting_at(33)};
  train(first);
  damage(30);
  damage(34);
  Loop second;
  const JobEnd end = train(second);
  EXPECT_EQ(end.phase, Phase::failed);
  EXPECT_EQ(second.steps_done, 0);
  EXPECT_NE(end.reason.find("put back what is damaged"), std::string::npos) << end.reason;
}

TEST_F(LocalControlTest, WhereAllCheckpointsAreGoneNothingIsBegunAnew) {
  Loop first{.before_step = preempting_at(33)};
  train(first);
  fs::remove_all(run_ / "checkpoints");
  fs::create_directories(run_ / "checkpoints");
  try {
    train();
    ADD_FAILURE() << "it began anew";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::data_loss);
  }
}

TEST_F(LocalControlTest, AFaultOfTheJobEndsItAsFailedWithItsTextAndKind) {
  Loop loop{.before_step = [](CommandSource&, int64_t step) {
    if (step == 17) fail(ErrorCode::invalid_argument, "sample 17 cannot be read");
  }};
  const JobEnd end = train(loop);
  EXPECT_EQ(end.phase, Phase::failed);
  EXPECT_EQ(end.reason, "sample 17 cannot be read");
  EXPECT_EQ(end.error_code, ErrorCode::invalid_argument);
  EXPECT_EQ(events_of("end").back().at("status"), "failed");
  EXPECT_EQ(events_of("end").back().at("message"), "sample 17 cannot be read");
  expect_result(train());  // from step 10 on
}

// By the diary it is known that there were some.
TEST_F(LocalControlTest, WhereStateAndCheckpointsAreGoneNothingIsBegunAnew) {
  Loop first{.before_step = preempting_at(33)};
  train(first);
  for (const char* name : {"checkpoints", "membership.json"}) fs::remove_all(run_ / name);
  fs::create_directories(run_ / "checkpoints");
  try {
    train();
    ADD_FAILURE() << "it began anew";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data_loss);
    EXPECT_NE(std::string(error.what()).find("had a checkpoint of step 34"), std::string::npos)
        << error.what();
  }
  fs::remove(run_ / "events.jsonl");
  expect_result(train());
}

TEST_F(LocalControlTest, AnErrorBeforeTheJobWasLoadedEndsItAtOnce) {
  const run::RunLock lock(run_, run::RunLock::kLocal);
  LocalControl control(lock, options_);
  control.tell(JobError{"there is no data", ErrorCode::not_found});
  EXPECT_TRUE(std::holds_alternative<Exit>(control.next(1s).value()));
  EXPECT_FALSE(control.next());
  const JobEnd end = control.end();
  EXPECT_EQ(end.phase, Phase::failed);
  EXPECT_EQ(end.reason, "there is no data");
  EXPECT_EQ(end.error_code, ErrorCode::not_found);
}

TEST_F(LocalControlTest, WhatTheHostRefusesForAWhileCostsNoStep) {
  int refused = 0;
  Loop loop{.before_step = [&](CommandSource&, int64_t step) {
    if (step == 20 && ++refused <= 3) fail(ErrorCode::unavailable, "no memory");
  }};
  expect_result(train(loop));
  EXPECT_EQ(loop.steps_done, 60);
  EXPECT_EQ(refused, 4);
}

TEST_F(LocalControlTest, WhatTheHostRefusesForEverEndsTheJobWithTheReason) {
  options_.membership.max_failures = 3;
  Loop loop{.before_step = [](CommandSource&, int64_t step) {
    if (step == 20) fail(ErrorCode::unavailable, "no memory");
  }};
  const JobEnd end = train(loop);
  EXPECT_EQ(end.phase, Phase::failed);
  EXPECT_NE(end.reason.find("no memory"), std::string::npos) << end.reason;
}

TEST_F(LocalControlTest, AWorkerThatDoesNotKnowItsStateEndsTheJob) {
  const run::RunLock lock(run_, run::RunLock::kLocal);
  LocalControl control(lock, options_);
  control.tell(Loaded{});
  auto plan = std::get<Restore>(control.next(1s).value()).plan;
  control.tell(Restored{plan->number, 0, false});
  control.next(1s);
  control.tell(Reduced{plan->number, 0});
  control.next(1s);
  control.tell(AllVoted{plan->number, 0, 0});
  ASSERT_TRUE(std::holds_alternative<Apply>(control.next(1s).value()));
  control.tell(Faulted{plan->number, "no memory while it applied"});
  EXPECT_TRUE(std::holds_alternative<Exit>(control.next(1s).value()));
  const JobEnd end = control.end();
  EXPECT_EQ(end.phase, Phase::failed);
  EXPECT_NE(end.reason.find("no memory while it applied"), std::string::npos) << end.reason;
}

TEST_F(LocalControlTest, AJobWhoseResultIsNotToBeKeptAsACheckpoint) {
  options_.membership.save_result = false;
  options_.membership.checkpoint_steps = 25;
  const JobEnd end = train();
  expect_result(end, false);
  EXPECT_EQ(end.checkpoint, 50);
  EXPECT_EQ(events_of("end").back().at("status"), "done");
}

TEST_F(LocalControlTest, AStateThatCannotBeSavedNowIsWaitedFor) {
  options_.membership.checkpoint_steps = 2;  // so there is something to save all the time
  Loop loop{.before_step = [&](CommandSource&, int64_t step) {
    const fs::path state = run_ / "membership.json";
    if (step == 25) {  // nothing can be renamed over a folder
      fs::rename(state, run_ / "kept");
      fs::create_directory(state);
    }
    const bool seen = noted("could not be saved") || step == 49;
    if (step > 25 && seen && fs::is_directory(state)) fs::remove(state);
  }};
  expect_result(train(loop));
  EXPECT_TRUE(noted("could not be saved"));
}

TEST_F(LocalControlTest, AJobThatIsDoneEndsWhereItsStateCanNeverBeSaved) {
  options_.membership.finish_deadline = 100ms;
  options_.membership.checkpoint_steps = 0;
  Loop loop{.before_step = [&](CommandSource&, int64_t step) {
    if (step != 25) return;
    fs::remove(run_ / "membership.json");
    fs::create_directory(run_ / "membership.json");
  }};
  const JobEnd end = train(loop);
  EXPECT_EQ(end.phase, Phase::failed);
  EXPECT_NE(end.reason.find("could not be saved within"), std::string::npos) << end.reason;
  fs::remove(run_ / "membership.json");
  expect_result(train());
}

TEST_F(LocalControlTest, TheCostOfThePartsOfARunIsAddedUp) {
  const auto burn = [](CommandSource& source, int64_t step) {
    const auto until = std::chrono::steady_clock::now() + 20ms;
    while (std::chrono::steady_clock::now() < until) continue;
    if (step == 20) source.tell(LeaveAsked{});
  };
  run::CostMeter meter;  // of this process, which has done other things before
  const double begin = meter.read().core_seconds;
  Loop first{.before_step = burn};
  train(first);
  const double before = events_of("end").back().at("cost").at("core_seconds");
  EXPECT_GT(before, 0.05);
  train();
  const double after = events_of("end").back().at("cost").at("core_seconds");
  EXPECT_GE(after, before);
  EXPECT_LE(after, meter.read().core_seconds - begin) << "nothing counts twice";
  EXPECT_GE(events_of("end").back().at("cost").at("wall_seconds").get<double>(),
            events_of("end").front().at("cost").at("wall_seconds").get<double>());
}

TEST_F(LocalControlTest, BeginsWithTheCheckpointsOfARunThatHadNoControl) {
  const State half = run_undisturbed(30, kLoopRanks);
  write_checkpoint(run_ / "checkpoints", half, "single");
  ckpt::publish(run_ / "checkpoints", 30, "single");
  Loop loop;
  expect_result(train(loop));
  EXPECT_EQ(loop.steps_done, 30);
}

TEST_F(LocalControlTest, AnOldRunWhoseCheckpointsAreGoneIsNotBegunAnew) {
  write_file_atomic(run_ / "events.jsonl",
                    std::string_view("{\"kind\":\"checkpoint\",\"step\":30}\n"));
  EXPECT_THROW(train(), Error);
}

TEST_F(LocalControlTest, WhatEndsBeforeExitIsKilledAndGoesOnFromTheCheckpoint) {
  {
    const run::RunLock lock(run_, run::RunLock::kLocal);
    LocalControl control(lock, options_);
    control.tell(Loaded{});
    const JobEnd end = control.end();
    EXPECT_TRUE(end.killed);
    EXPECT_EQ(events_of("end").back().at("status"), "interrupted");
  }
  expect_result(train());
}

TEST_F(LocalControlTest, TheEndSaysHowManyStepsWereNotSaved) {
  const run::RunLock lock(run_, run::RunLock::kLocal);
  LocalControl control(lock, options_);
  control.tell(Loaded{});
  const auto plan = std::get<Restore>(control.next(1s).value()).plan;
  control.tell(Restored{plan->number, 0, false});
  control.next(1s);
  control.tell(Reduced{plan->number, 0});
  control.next(1s);
  control.tell(AllVoted{plan->number, 0, 0});
  ASSERT_TRUE(std::holds_alternative<Apply>(control.next(1s).value()));
  control.tell(Restored{plan->number, 1, false});
  for (int i = 0; i < 1000 && control.membership().step() < 1; ++i) control.next(10ms);
  const JobEnd end = control.end();
  EXPECT_TRUE(end.killed);
  EXPECT_EQ(end.step, 1);
  EXPECT_EQ(end.unsaved_steps, 1);
  EXPECT_EQ(events_of("end").back().at("unsaved_steps"), 1);
}

// What a killed controller with workers of its own leaves: they may act until their lease is over.
TEST_F(LocalControlTest, WorkersOfAKilledControllerAreWaitedFor) {
  options_.membership.reattach = 100ms;
  options_.membership.lease = 300ms;
  options_.membership.clock_drift = 10ms;
  options_.membership.stop_deadline = 10ms;
  MembershipOptions two = options_.membership;
  Membership other(two);
  other.apply(StartJob{2}, Time{0});
  for (const WorkerId worker : {1, 2}) {
    WorkerStatus report;
    report.worker = worker;
    report.sequence = 1;
    report.address = "elsewhere";
    report.phase = WorkerPhase::ready;
    other.apply(WorkerReported{report}, Time{1000});
  }
  ASSERT_EQ(other.generation().members.size(), 2u);
  write_file_atomic(state_file(run_), sealed(other.save()));
  const auto begin = std::chrono::steady_clock::now();
  Loop loop;
  expect_result(train(loop));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 300ms);
  EXPECT_EQ(loop.steps_done, 60);
}

}  // namespace
}  // namespace ductile::link::testing
