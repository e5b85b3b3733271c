// Faults of hosts, disks and of the controller's own, told apart from faults of the job.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/control/testing/membership_story.h"

namespace ductile::control {
namespace {

class FaultsTest : public MembershipTest {
 protected:
  // Worker `id`, which runs on `host`, cannot begin.
  void fail_to_begin(WorkerId id, const std::string& host,
                     const std::string& error = "no samples") {
    hosts_[id] = host;
    reports_[id].error = error;
    say(id, WorkerPhase::loading);
  }
  // Until the next launch.
  WorkerId next_launch() {
    const WorkerId before = launched_;
    for (int i = 0; launched_ == before && i < 100; ++i) {
      now_ = std::max(now_ + Time{1}, std::min(job_->next_deadline(), now_ + seconds(60)));
      happen(Tick{});
    }
    return launched_;
  }
  size_t notes(const std::string& event) const {
    size_t count = 0;
    for (const Note& note : said<Note>()) count += note.event == event;
    return count;
  }
};

TEST_F(FaultsTest, AnErrorBeforeAWorkerTakesPartIsOfItsHost) {
  happen(StartJob{2});
  hosts_[1] = "a";
  say(1, WorkerPhase::ready);
  fail_to_begin(2, "b");
  EXPECT_EQ(job_->generation().members.size(), 1u);
  ASSERT_EQ(notes("lost"), 1u);
  happen(WorkerExited{2, 3, 0});
  EXPECT_EQ(job_->phase(), Phase::resizing);
  // However often, and though worker 1 makes no progress meanwhile: with ever longer pauses.
  Time longest{0};
  for (int round = 0; round < 30; ++round) {
    say(1, WorkerPhase::running, 1, 1, 0);
    const Time before = now_;
    const WorkerId next = launched_;
    while (launched_ == next) {
      now_ += milliseconds(100);
      repeat(1);
      if (launched_ != next) {
        EXPECT_EQ(said<LaunchWorker>()[0].avoid, std::vector<std::string>{"b"});
      }
    }
    longest = std::max(longest, now_ - before);
    fail_to_begin(launched_, "b");
    happen(WorkerExited{launched_, 3, 0});
    ASSERT_EQ(job_->phase(), Phase::resizing) << job_->reason();
  }
  EXPECT_GE(longest, seconds(25));
  // A loss of another kind is made good at once, and a host that is well again is as any other.
  happen(WorkerExited{1, 0, 9});
  EXPECT_NE(next_launch(), 0u);
  hosts_[launched_] = "b";
  say(launched_, WorkerPhase::ready);
  happen(ResizeJob{3});
  EXPECT_TRUE(said<LaunchWorker>().at(0).avoid.empty());
}

TEST_F(FaultsTest, AnErrorThatFollowsTheJobToAnotherHostIsTheJobs) {
  happen(StartJob{1});
  fail_to_begin(1, "a");
  EXPECT_EQ(job_->phase(), Phase::starting);
  happen(WorkerExited{1, 3, 0});
  ASSERT_EQ(next_launch(), 2u);
  EXPECT_EQ(said<LaunchWorker>()[0].avoid, std::vector<std::string>{"a"});
  fail_to_begin(2, "b");
  EXPECT_EQ(job_->phase(), Phase::failed);
  EXPECT_EQ(job_->reason(), "worker 2 on host b: no samples (an error on each of 2 hosts)");
}

TEST_F(FaultsTest, OthersThatMayStillBeginAreWaitedForBeforeAnErrorIsTheJobs) {
  happen(StartJob{3});
  fail_to_begin(1, "a");
  fail_to_begin(2, "b");
  EXPECT_EQ(job_->phase(), Phase::starting);
  hosts_[3] = "c";
  say(3, WorkerPhase::ready);
  EXPECT_EQ(said<LaunchWorker>().size(), 2u);
  now_ += options_.join_window;
  repeat(3);
  EXPECT_EQ(job_->generation().members.size(), 1u);
}

TEST_F(FaultsTest, AnErrorOnTheOnlyHostIsTheJobsAfterAFewTries) {
  happen(StartJob{2});
  int rounds = 0;
  for (; job_->phase() == Phase::starting && rounds < 10; ++rounds) {
    const WorkerId second = rounds == 0 ? launched_ : next_launch();
    for (const WorkerId id : {second - 1, second}) fail_to_begin(id, "");
    for (const WorkerId id : {second - 1, second}) happen(WorkerExited{id, 3, 0});
  }
  EXPECT_EQ(job_->phase(), Phase::failed);
  EXPECT_EQ(rounds, options_.max_begin_tries);
  EXPECT_EQ(job_->reason(), "worker 6: no samples");
}

// The other one has no room, or cannot be reached: that may change.
TEST_F(FaultsTest, AnErrorOnOneOfTwoHostsIsNotTheJobsForAWhile) {
  options_.num_hosts = 2;
  job_.emplace(options_);
  happen(StartJob{1});
  for (int64_t round = 0; round < options_.max_failures; ++round) {
    if (round > 0) next_launch();
    fail_to_begin(launched_, "a");
    happen(WorkerExited{launched_, 3, 0});
    ASSERT_EQ(job_->phase(), Phase::starting) << round << job_->reason();
  }
  fail_to_begin(next_launch(), "a");
  EXPECT_EQ(job_->phase(), Phase::failed);
  EXPECT_NE(job_->reason().find("on host a: no samples"), std::string::npos) << job_->reason();
}

TEST_F(FaultsTest, CrashesOfAnOnlyWorkerAreFewAndAResizeChangesThat) {
  const auto crash = [&] {
    if (job_->phase() == Phase::failed) return;
    say(launched_, WorkerPhase::ready);
    happen(WorkerExited{launched_, 0, 11});
    if (job_->phase() != Phase::failed) next_launch();
  };
  happen(StartJob{1});
  for (int64_t i = 0; i < options_.max_crashes_alone; ++i) crash();
  ASSERT_NE(job_->phase(), Phase::failed) << job_->reason();
  EXPECT_NE(job_->why(now_).find("crash 2 of at most 2"), std::string::npos) << job_->why(now_);
  const Membership before = *job_;
  crash();
  EXPECT_EQ(job_->phase(), Phase::failed);
  EXPECT_TRUE(job_->crashed());
  // Two workers are wanted instead, and then one again.
  job_ = before;
  const WorkerId first = launched_;
  happen(ResizeJob{2});
  const WorkerId second = launched_;
  say(first, WorkerPhase::ready);
  happen(WorkerExited{first, 0, 11});
  EXPECT_NE(job_->phase(), Phase::failed) << job_->reason();
  happen(ResizeJob{1});
  pass(seconds(1));
  say(second, WorkerPhase::ready);
  happen(WorkerExited{second, 0, 11});
  EXPECT_EQ(job_->phase(), Phase::failed);
}

// A full disk, no memory, no descriptor: as long as a result may wait for its disk.
TEST_F(FaultsTest, WhatAHostRefusesAnOnlyWorkerIsTriedAgainForAMinuteAndIsNoCrash) {
  run_with(1);
  reports_[1].faulted = true;
  reports_[1].note = "no space left on device";
  const Time begin = now_;
  for (int round = 0; job_->phase() != Phase::failed && round < 1000; ++round) {
    const Generation g = job_->generation().number;
    say(1, WorkerPhase::halted, g, g, 5);
    say(1, WorkerPhase::halted, g, g + 1, 5);
    for (int beat = 0; job_->generation().number == g && beat < 1000; ++beat) {
      if (job_->phase() == Phase::failed) break;
      now_ += milliseconds(50);
      repeat(1);
    }
  }
  EXPECT_EQ(job_->phase(), Phase::failed);
  EXPECT_GE(now_ - begin, options_.finish_deadline);
  EXPECT_LE(now_ - begin, 2 * options_.finish_deadline);
  EXPECT_NE(job_->reason().find("no space left on device"), std::string::npos) << job_->reason();
  EXPECT_FALSE(job_->crashed());
}

// The rest trains on, step after step, while the place of one cannot be filled.
TEST_F(FaultsTest, LaunchesThatFailBackOffWhateverTheOthersAchieve) {
  run_with(2);
  happen(WorkerExited{2, 0, 9});
  for (Generation g = 1; job_->generation().number < 2; ++g) {
    now_ += milliseconds(50);
    say(1, WorkerPhase::halted, 1, 2, 5);
  }
  int launches = 0;
  for (int64_t step = 6; step < 606; ++step) {  // a minute
    now_ += milliseconds(100);
    say(1, WorkerPhase::running, 2, 2, step);
    while (!said<LaunchWorker>().empty()) {
      ++launches;
      happen(LaunchFailed{said<LaunchWorker>().front().worker, "no host has room"});
    }
  }
  EXPECT_NE(job_->phase(), Phase::failed);
  EXPECT_GE(launches, 5);
  EXPECT_LE(launches, 15);
  // A step that takes long does not change that: the job goes on with those it has.
  for (int i = 0; i < 600; ++i) {
    now_ += seconds(1);
    repeat(1);
    while (!said<LaunchWorker>().empty())
      happen(LaunchFailed{said<LaunchWorker>().front().worker, "no host has room"});
  }
  EXPECT_EQ(job_->generation().number, 2u);
  EXPECT_NE(job_->phase(), Phase::failed);
}

TEST_F(FaultsTest, AfterAReturnToACheckpointStepsAreSavedAgainFromThere) {
  options_.checkpoint_steps = 10;
  options_.checkpoints = {100};
  job_.emplace(options_);
  happen(StartJob{1});
  say(1, WorkerPhase::ready);
  say(1, WorkerPhase::running, 1, 1, 155);  // steps that were never saved
  happen(WorkerExited{1, 0, 9});
  while (launched_ == 1) pass(milliseconds(100));
  say(2, WorkerPhase::ready);
  const Generation g = job_->generation().number;
  ASSERT_EQ(job_->generation().start, 100);
  say(2, WorkerPhase::running, g, g, 100);
  std::vector<std::pair<WorkerId, Save>> saves = told<Save>();
  for (int64_t step = 101; saves.empty() && step < 111; ++step) {
    now_ += milliseconds(100);
    say(2, WorkerPhase::running, g, g, step);
    saves = told<Save>();
  }
  ASSERT_FALSE(saves.empty());
  EXPECT_EQ(saves.front().second.at_step, 110);
}

// On nodes that may go at any time a job that has one worker loses what it did since then.
TEST_F(FaultsTest, WhereCheckpointsAreQuickTheyAreTakenOftenAndWhereTheyAreSlowNot) {
  options_.checkpoint_every = seconds(10);
  options_.checkpoint_soonest = seconds(1);
  job_.emplace(options_);
  run_with(1);
  const auto begin_after = [&](Time work) {  // without a checkpoint the job works for so long
    for (Time done{0}; told<Save>().empty() && done < work + seconds(1);
         done += milliseconds(100)) {
      now_ += milliseconds(100);
      say(1, WorkerPhase::running, 1, 1, reports_[1].step + 1);
      if (!told<Save>().empty()) return done + milliseconds(100);
    }
    return Time::max();
  };
  const auto publish_after = [&](Time writing) {
    const uint64_t attempt = told<Save>()[0].second.attempt;
    now_ += writing;
    reports_[1].save = {attempt, SaveStatus::State::written, reports_[1].step, ""};
    repeat(1);
    happen(CheckpointPublished{reports_[1].step});
  };
  ASSERT_EQ(told<Save>().size(), 1u);  // nothing was saved yet
  publish_after(milliseconds(10));
  EXPECT_EQ(begin_after(seconds(10)), seconds(1));
  publish_after(milliseconds(500));
  EXPECT_EQ(begin_after(seconds(10)), seconds(5));  // a tenth of the time
  publish_after(seconds(2));
  EXPECT_EQ(begin_after(seconds(10)), seconds(10));
}

TEST_F(FaultsTest, HostsThatCannotBeReachedAreWaitedFor) {
  happen(StartJob{2});
  size_t told = 0;
  Time longest{0};
  for (int round = 0; round < 40; ++round) {
    for (const WorkerId id : {launched_ - 1, launched_}) {
      happen(LaunchFailed{id, "no host has room: a cannot be reached", true});
      told += notes("launch_failed");
    }
    EXPECT_NE(job_->why(now_).find("waits for its hosts: no host has room"), std::string::npos);
    const Time before = now_;
    ASSERT_NE(next_launch(), 0u);
    longest = std::max(longest, now_ - before);
    ASSERT_EQ(job_->phase(), Phase::starting) << job_->reason();
  }
  EXPECT_EQ(told, 1u);
  EXPECT_EQ(longest, options_.backoff_max);
  say(launched_, WorkerPhase::ready);
  say(launched_ - 1, WorkerPhase::ready);
  EXPECT_EQ(job_->phase(), Phase::running);
  EXPECT_EQ(job_->why(now_).find("waits for its hosts"), std::string::npos);
}

// Nobody knows whether the silent ones are gone, and those that are to follow them have no place
// until it is known.
TEST_F(FaultsTest, PlacesThatSilentWorkersHoldAreWaitedForAndTakenWhenTheirLeasesEnd) {
  run_with(2);
  std::vector<WorkerId> killed;
  const auto note_kills = [&] {
    for (const KillWorker& kill : said<KillWorker>()) killed.push_back(kill.worker);
  };
  size_t tries = 0;
  const Time begun = now_;
  while (killed.empty() && now_ < begun + seconds(60)) {
    pass(milliseconds(100));
    note_kills();
    for (const LaunchWorker& launch : said<LaunchWorker>()) {
      ++tries;
      happen(LaunchFailed{launch.worker, "no host has room: a has 2", true, true});
      note_kills();
    }
    ASSERT_NE(job_->phase(), Phase::failed) << job_->reason();
  }
  EXPECT_GT(tries, 3u);
  EXPECT_GE(now_ - begun, options_.lease);
  ASSERT_EQ(killed, (std::vector<WorkerId>{1, 2}));
  const WorkerId before = launched_;
  for (const WorkerId id : killed) happen(WorkerExited{id, 0, 9});
  for (int i = 0; i < 3 && launched_ == before; ++i) pass(options_.backoff_base);
  EXPECT_GT(launched_, before);
}

// A job that needs two goes on with nobody where one is silent, though the other one has all.
TEST_F(FaultsTest, APlaceIsTakenFromASilentWorkerAlsoWhereTheOthersAreTooFew) {
  options_.min_workers = 2;
  job_.emplace(options_);
  run_with(2);
  std::vector<WorkerId> killed;
  const auto note_kills = [&] {
    for (const KillWorker& kill : said<KillWorker>()) killed.push_back(kill.worker);
  };
  bool halts = false;
  const Time begun = now_;
  while (killed.empty() && now_ < begun + seconds(120)) {
    now_ += milliseconds(100);
    if (halts)
      say(1, WorkerPhase::halted, 1, 2, 5);
    else
      say(1, WorkerPhase::running, 1, 1, 5);
    halts = halts || !told<Halt>().empty();
    note_kills();
    for (const LaunchWorker& launch : said<LaunchWorker>()) {
      happen(LaunchFailed{launch.worker, "no host has room: a has 1, b has 1", true, true});
      note_kills();
    }
    ASSERT_NE(job_->phase(), Phase::failed) << job_->reason();
  }
  EXPECT_EQ(killed, std::vector<WorkerId>{2});
  EXPECT_GE(now_ - begun, options_.lease);
}

// They go on with all they have when their hosts can be reached again.
TEST_F(FaultsTest, SilentWorkersOfHostsThatCannotBeReachedAreNotKilled) {
  run_with(1);
  for (int i = 0; i < 300; ++i) {
    pass(milliseconds(100));
    EXPECT_TRUE(said<KillWorker>().empty());
    for (const LaunchWorker& launch : said<LaunchWorker>())
      happen(LaunchFailed{launch.worker, "no host has room: a cannot be reached", true});
    ASSERT_NE(job_->phase(), Phase::failed) << job_->reason();
  }
}

TEST_F(FaultsTest, AResultThatCannotBeSavedEndsTheJobAtADeadline) {
  run_with(1);
  say(1, WorkerPhase::done, 1, 1, 20);
  const Time begun = now_;
  while (job_->phase() == Phase::finishing && now_ < begun + seconds(600)) {
    for (const auto& [worker, save] : told<Save>())
      reports_[1].save = {save.attempt, SaveStatus::State::failed, 20, "disk full"};
    now_ += milliseconds(500);
    repeat(1);
  }
  EXPECT_EQ(job_->phase(), Phase::failed);
  EXPECT_EQ(job_->reason(),
            "all 20 steps are done, but the result could not be saved within 60 s: disk full");
  EXPECT_EQ(job_->error_code(), ErrorCode::unavailable) << "it may be done again";
  EXPECT_GE(now_ - begun, options_.finish_deadline);
  EXPECT_LE(now_ - begun, options_.finish_deadline + seconds(3));
}

TEST_F(FaultsTest, AResultThatTakesLongToSaveIsWaitedFor) {
  run_with(1);
  say(1, WorkerPhase::done, 1, 1, 20);
  for (int i = 0; i < 600; ++i) {
    now_ += seconds(1);
    repeat(1);
  }
  EXPECT_EQ(job_->phase(), Phase::finishing);
}

TEST_F(FaultsTest, APreemptionOfAJobThatIsDoneIsRefusedUnlessItCannotSave) {
  run_with(1);
  say(1, WorkerPhase::done, 1, 1, 20);
  const auto saves = told<Save>();
  ASSERT_EQ(saves.size(), 1u);
  happen(PreemptJob{});
  ASSERT_EQ(notes("refused"), 1u);
  reports_[1].save = {saves[0].second.attempt, SaveStatus::State::failed, 20, "disk full"};
  repeat(1);
  happen(PreemptJob{});
  EXPECT_EQ(notes("refused"), 0u);
  EXPECT_EQ(notes("checkpoint_failed"), 1u);
  EXPECT_EQ(told<Stop>().size(), 1u);
  happen(WorkerExited{1, 0, 0});
  EXPECT_EQ(job_->phase(), Phase::preempted);
  happen(ResumeJob{});
  EXPECT_EQ(job_->phase(), Phase::starting);
}

TEST_F(FaultsTest, WhoseWordIsAmongThoseThatCameTogetherIsNotSilent) {
  run_with(2);
  Membership alone = *job_;
  now_ += milliseconds(2500);  // the controller was stopped
  std::vector<Event> events;
  for (const WorkerId id : {1, 2}) {
    ++reports_[id].sequence;
    events.emplace_back(WorkerReported{reports_[id]});
  }
  look_at(job_->apply(events, now_));
  EXPECT_EQ(notes("silent"), 0u);
  EXPECT_TRUE(told<Halt>().empty());
  look_at(alone.apply(events[0], now_));
  EXPECT_EQ(notes("silent"), 1u);
}

TEST_F(FaultsTest, AWorkerThatStopsAsItWasToldIsNotCalledUnreachable) {
  run_with(2);
  say(1, WorkerPhase::done, 1, 1, 20);
  happen(ConnectionClosed{2});
  EXPECT_EQ(notes("unreachable"), 1u) << "this one was not told yet";
  reports_[1].save = {1, SaveStatus::State::written, 20, ""};
  repeat(1);
  happen(CheckpointPublished{20});
  happen(ConnectionClosed{1});
  EXPECT_EQ(notes("unreachable"), 0u);
}

// Nobody else has the state, so nothing can go on before its lease ends: its user learns of it.
TEST_F(FaultsTest, AnOnlyWorkerThatIsSilentIsToldAndReplacedWhenItsLeaseEnds) {
  run_with(1);
  pass(options_.heartbeat_deadline);
  ASSERT_EQ(notes("silent"), 1u);
  std::string text;
  for (const Note& note : said<Note>())
    if (note.event == "silent") text = note.text;
  for (const char* part : {"worker 1: no heartbeat for 1500 ms", "kill -CONT", "ductile status",
                           "another worker takes its place, from the last checkpoint, in 10 s"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  ASSERT_EQ(launched_, 2u);
  EXPECT_NE(job_->why(now_).find("its lease is waited for: 10.5 s"), std::string::npos)
      << job_->why(now_);
  say(2, WorkerPhase::ready);
  for (int i = 0; i < 24 && job_->generation().number == 1; ++i) {
    now_ += milliseconds(500);
    repeat(2);
  }
  ASSERT_EQ(job_->generation().members.size(), 1u);
  EXPECT_EQ(job_->generation().members[0].worker, 2u);
  EXPECT_EQ(notes("lost"), 1u);
}

// It may go on by what is saved. So it is waited for from when that says something else.
TEST_F(FaultsTest, TheLeaseOfASilentWorkerCountsFromWhenTheDiskSaysThatItIsOver) {
  run_with(1);
  EXPECT_TRUE(may_go_on(job_->save(), 1, 1));
  pass(seconds(600));  // the controller was stopped, and finds nobody
  ASSERT_TRUE(last_.must_save);
  EXPECT_FALSE(may_go_on(job_->save(), 1, 1));
  const Time saved = now_ += seconds(40);  // on a slow disk
  say(2, WorkerPhase::ready);
  while (now_ < saved + options_.lease) {
    repeat(2);
    ASSERT_EQ(job_->generation().number, 1u) << "after " << (now_ - saved).count() / 1000 << " ms";
    now_ += milliseconds(500);
  }
  for (int i = 0; i < 3; ++i, now_ += milliseconds(500)) repeat(2);
  EXPECT_EQ(job_->generation().number, 2u);
}

TEST_F(FaultsTest, WhatIsSavedLetsMembersOfTheNewestGenerationAloneGoOn) {
  EXPECT_FALSE(may_go_on(job_->save(), 1, 0));
  run_with(3);
  const nlohmann::json saved = job_->save();
  for (const WorkerId id : {1, 2, 3}) EXPECT_TRUE(may_go_on(saved, id, 1));
  EXPECT_FALSE(may_go_on(saved, 4, 1));
  EXPECT_FALSE(may_go_on(saved, 1, 0));
  EXPECT_FALSE(may_go_on(saved, 1, 2));
  EXPECT_FALSE(may_go_on(nlohmann::json::array(), 1, 1));
  EXPECT_FALSE(may_go_on({{"phase", 3}}, 1, 1));
  happen(ResizeJob{2});
  EXPECT_FALSE(may_go_on(job_->save(), 1, 1));  // 2 is granted
  happen(StopJob{});
  EXPECT_FALSE(may_go_on(job_->save(), 1, 1));
}

// Sets every number in it, one after the other, to `value`.
void alter_each(nlohmann::json& node, nlohmann::json& whole, const nlohmann::json& value,
                const std::function<void()>& look) {
  if (node.is_structured()) {
    for (nlohmann::json& part : node) alter_each(part, whole, value, look);
  } else if (node.is_number()) {
    const nlohmann::json before = std::exchange(node, value);
    look();
    node = before;
  }
}

// A disk may alter anything: the state is refused, or is one with which a controller lives.
TEST_F(FaultsTest, ASavedStateWithAnyNumberAlteredIsRefusedOrHarmless) {
  run_with(3);
  happen(SaveJob{});
  reports_[1].save = {1, SaveStatus::State::written, 5, ""};
  repeat(1);
  happen(WorkerExited{2, 0, 9});
  nlohmann::json saved = job_->save();
  ASSERT_TRUE(saved.contains("change") && saved.contains("publishing"));
  int refused = 0, taken = 0;
  for (const nlohmann::json& value :
       std::vector<nlohmann::json>{-1, 0, 1, 4, 1'000'000, INT64_MAX, UINT64_MAX}) {
    alter_each(saved, saved, value, [&] {
      Outcome first;
      try {
        Membership job = Membership::restore(options_, saved, now_, first);
        ++taken;
        size_t launches = 0;
        const auto count = [&](const Outcome& outcome) {
          for (const Command& command : outcome.commands)
            launches += std::holds_alternative<LaunchWorker>(command);
        };
        count(first);
        for (int i = 1; i < 10; ++i) count(job.apply(Tick{}, now_ + seconds(i)));
        EXPECT_LE(launches, 8u) << saved;
      } catch (const Error& e) {
        ++refused;
        EXPECT_TRUE(e.code() == ErrorCode::data_loss || e.code() == ErrorCode::invalid_argument)
            << e.what() << saved;
      }
    });
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(taken, 50);
}

// Whoever starts the job again gives it all its tries.
TEST_F(FaultsTest, FailuresCountAnewAfterARestartOfTheController) {
  options_.max_failures = 2;
  options_.num_hosts = 2;  // so that an error of the host is not the job's at once
  job_.emplace(options_);
  happen(StartJob{1});
  WorkerId gone = 0;
  const auto crash = [&] {
    if (launched_ == gone) next_launch();
    gone = launched_;
    happen(WorkerExited{gone, 0, 11});
  };
  crash();
  crash();
  ASSERT_EQ(job_->phase(), Phase::starting) << job_->reason();
  Outcome first;
  job_.emplace(Membership::restore(options_, job_->save(), now_, first));
  look_at(std::move(first));
  crash();
  crash();
  EXPECT_EQ(job_->phase(), Phase::starting) << job_->reason();
  crash();
  EXPECT_EQ(job_->phase(), Phase::failed);
  EXPECT_TRUE(job_->crashed());
}

TEST_F(FaultsTest, ASavedNumberOfWorkersThatCannotBeIsNamed) {
  run_with(2);
  for (const int64_t wanted : {int64_t{-1}, int64_t{0}, int64_t{9}, int64_t{1'000'000}}) {
    nlohmann::json saved = job_->save();
    saved["wanted"] = wanted;
    Outcome first;
    try {
      Membership::restore(options_, saved, now_, first);
      ADD_FAILURE() << wanted;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::data_loss);
      EXPECT_NE(std::string(e.what()).find(fmt::format("'wanted' is {}", wanted)),
                std::string::npos);
    }
  }
}

}  // namespace
}  // namespace ductile::control
