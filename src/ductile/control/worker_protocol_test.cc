// One file because all of it drives one machine by hand, through one fixture.
#include "ductile/control/worker_protocol.h"

#include <cerrno>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"

namespace ductile::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Worker 1 of a job with two members, driven by hand.
class WorkerProtocolTest : public ::testing::Test {
 protected:
  WorkerProtocolTest() : machine_(WorkerOptions{1, "here", milliseconds(200), seconds(10)}) {
    tell(Beat{});
    tell(Loaded{});
  }

  void tell(const WorkerEvent& event) { last_ = machine_.apply(event, now_); }
  void hear(std::variant<Ack, Halt, Enter, Save, Stop> what) {
    tell(InstructionReceived{{1, 1, std::move(what)}});
  }
  void renew_lease() {
    now_ += milliseconds(200);
    tell(Beat{});
    hear(Ack{report().sequence});
  }
  void enter(Generation generation, int64_t start, StateSource source) {
    auto plan = std::make_shared<GenerationPlan>();
    plan->number = generation;
    plan->start = start;
    plan->members = {{1, "here", {0, 1}, source, source == StateSource::peer ? WorkerId{2} : 0},
                     {2, "there", {1, 2}, StateSource::keep, 0}};
    hear(Enter{plan, ""});
  }
  // Into generation 1, before step 0, with a lease.
  void begin() {
    renew_lease();
    enter(1, 0, StateSource::initial);
    tell(Restored{1, 0, false});
  }

  template <class C>
  const C* said() const {
    for (const WorkerCommand& command : last_)
      if (const C* found = std::get_if<C>(&command)) return found;
    return nullptr;
  }
  const WorkerStatus& report() {
    for (const WorkerCommand& command : last_)
      if (const auto* send = std::get_if<SendStatus>(&command)) reported_ = send->report;
    return reported_;
  }

  Time now_{1'000'000};
  WorkerProtocol machine_;
  std::vector<WorkerCommand> last_;
  WorkerStatus reported_;
};

TEST_F(WorkerProtocolTest, RunsAStepThroughReductionVoteAndCommit) {
  begin();
  ASSERT_NE(said<RunStep>(), nullptr);
  EXPECT_EQ(said<RunStep>()->step, 0);
  tell(Reduced{1, 0});
  ASSERT_NE(said<CastVote>(), nullptr);
  EXPECT_TRUE(machine_.voted());
  tell(AllVoted{1, 0, 0});
  ASSERT_NE(said<Apply>(), nullptr);
  EXPECT_EQ(machine_.step(), 0);  // until it is applied
  tell(Restored{1, 1, false});
  EXPECT_EQ(machine_.step(), 1);
  EXPECT_FALSE(machine_.voted());
  ASSERT_NE(said<RunStep>(), nullptr);
  EXPECT_EQ(said<RunStep>()->step, 1);
}

TEST_F(WorkerProtocolTest, NeitherVotesNorCommitsOnceItPromised) {
  begin();
  tell(Reduced{1, 0});
  hear(Halt{2, false, "worker 2 is gone"});
  EXPECT_NE(said<Abandon>(), nullptr);
  EXPECT_EQ(report().promised, 2u);
  EXPECT_TRUE(report().voted);  // it holds the reduction, and says so
  tell(AllVoted{1, 0, 0});
  EXPECT_EQ(said<Apply>(), nullptr);
  EXPECT_EQ(machine_.step(), 0);
}

TEST_F(WorkerProtocolTest, AppliesTheReductionItVotedForInsteadOfDoingTheStepAgain) {
  begin();
  tell(Reduced{1, 0});
  tell(PeerLost{1, {2}, "connection closed"});
  EXPECT_EQ(report().suspects, std::vector<WorkerId>{2});
  hear(Halt{2, false, ""});
  enter(2, 1, StateSource::apply_voted);
  ASSERT_NE(said<Apply>(), nullptr);
  EXPECT_EQ(said<Apply>()->step, 0);
  tell(Restored{2, 1, false});
  ASSERT_NE(said<Restore>(), nullptr);
  tell(Restored{2, 1, false});
  ASSERT_NE(said<RunStep>(), nullptr);
  EXPECT_EQ(said<RunStep>()->step, 1);
}

TEST_F(WorkerProtocolTest, HasNotVotedForAStepThatIsDoneAgain) {
  begin();
  tell(Reduced{1, 0});
  tell(PeerLost{1, {2}, "connection closed"});
  EXPECT_TRUE(report().voted);
  hear(Halt{2, false, ""});
  enter(2, 0, StateSource::keep);
  ASSERT_NE(said<Restore>(), nullptr);
  EXPECT_FALSE(report().voted);
  EXPECT_EQ(report().step, 0);
}

TEST_F(WorkerProtocolTest, AnApplyUnderWayEndsBeforeTheNextGenerationIsEntered) {
  begin();
  tell(Reduced{1, 0});
  tell(AllVoted{1, 0, 0});
  hear(Halt{2, false, ""});
  EXPECT_EQ(said<Abandon>(), nullptr);
  enter(2, 1, StateSource::apply_voted);
  EXPECT_EQ(machine_.generation(), 1u);
  tell(Restored{1, 1, false});
  EXPECT_EQ(machine_.generation(), 2u);
  EXPECT_EQ(said<Apply>(), nullptr);  // not a second time
  EXPECT_NE(said<Restore>(), nullptr);
  tell(Restored{2, 1, false});
  ASSERT_NE(said<RunStep>(), nullptr);
  EXPECT_EQ(said<RunStep>()->step, 1);
}

TEST_F(WorkerProtocolTest, EntersOnlyWhenTheStepLoopHasLetGo) {
  begin();
  hear(Halt{2, false, ""});
  enter(2, 0, StateSource::keep);
  EXPECT_EQ(machine_.generation(), 1u);
  EXPECT_EQ(said<RunStep>(), nullptr);
  tell(Abandoned{1});
  EXPECT_EQ(machine_.generation(), 2u);
  ASSERT_NE(said<Restore>(), nullptr);
}

TEST_F(WorkerProtocolTest, AtABoundaryItFinishesTheStepWithItsPeers) {
  begin();
  hear(Halt{2, true, "from 2 to 3 workers"});
  EXPECT_EQ(machine_.promised(), 1u);
  tell(Reduced{1, 0});
  ASSERT_NE(said<CastVote>(), nullptr);
  EXPECT_EQ(said<CastVote>()->stop, 2u);
  tell(AllVoted{1, 0, 2});
  tell(Restored{1, 1, false});
  EXPECT_EQ(said<RunStep>(), nullptr);
  EXPECT_EQ(machine_.phase(), WorkerPhase::halted);
  EXPECT_EQ(report().promised, 2u);
  EXPECT_EQ(report().step, 1);
}

TEST_F(WorkerProtocolTest, StopsAfterTheStepAsAPeerWasTold) {
  begin();
  tell(Reduced{1, 0});
  EXPECT_EQ(said<CastVote>()->stop, 0u);
  tell(AllVoted{1, 0, 2});
  tell(Restored{1, 1, false});
  EXPECT_EQ(machine_.phase(), WorkerPhase::halted);
  EXPECT_EQ(machine_.promised(), 2u);
}

TEST_F(WorkerProtocolTest, AWishThatComesAfterTheVoteWaitsForTheNextOne) {
  begin();
  tell(Reduced{1, 0});
  EXPECT_EQ(said<CastVote>()->stop, 0u);
  hear(Halt{2, true, "resize"});  // the others have this worker's vote already, without the wish
  tell(AllVoted{1, 0, 0});
  tell(Restored{1, 1, false});
  ASSERT_NE(said<RunStep>(), nullptr);  // they run this step, and need this worker in it
  tell(Reduced{1, 1});
  EXPECT_EQ(said<CastVote>()->stop, 2u);
  tell(AllVoted{1, 1, 2});
  tell(Restored{1, 2, false});
  EXPECT_EQ(machine_.phase(), WorkerPhase::halted);
  EXPECT_EQ(machine_.promised(), 2u);
}

TEST_F(WorkerProtocolTest, WithoutALeaseNothingIsDecided) {
  begin();
  now_ += seconds(11);
  tell(Reduced{1, 0});
  EXPECT_EQ(said<CastVote>(), nullptr);
  EXPECT_NE(said<Abandon>(), nullptr);
  EXPECT_EQ(machine_.phase(), WorkerPhase::halted);
}

TEST_F(WorkerProtocolTest, TheLeaseCountsFromWhenTheReportWasSent) {
  const Time sent = now_ + milliseconds(200);
  now_ = sent;
  tell(Beat{});
  const uint64_t sequence = report().sequence;
  now_ += seconds(4);
  hear(Ack{sequence});
  EXPECT_EQ(machine_.lease_until(), sent + seconds(10));
  hear(Ack{sequence});
  hear(Ack{99});
  EXPECT_EQ(machine_.lease_until(), sent + seconds(10));
}

TEST_F(WorkerProtocolTest, IgnoresWhatIsStaleOrNotForIt) {
  begin();
  hear(Halt{1, false, "late"});
  enter(1, 0, StateSource::initial);
  tell(InstructionReceived{{1, 2, Stop{"another worker"}}});
  EXPECT_EQ(machine_.phase(), WorkerPhase::running);
  tell(InstructionReceived{{3, 1, Ack{1}}});  // a newer controller has spoken
  hear(Halt{5, false, "an older controller"});
  EXPECT_EQ(machine_.phase(), WorkerPhase::running);
  tell(PeerLost{7, {2}, "another generation"});
  tell(Reduced{1, 3});
  tell(AllVoted{1, 0, 0});  // it has not voted
  EXPECT_EQ(said<Apply>(), nullptr);
  EXPECT_EQ(machine_.phase(), WorkerPhase::running);
}

TEST_F(WorkerProtocolTest, SavesAtTheStepAskedForAndOnlyUnderItsGeneration) {
  begin();
  hear(Save{2, 1, -1, "another generation"});
  hear(Save{1, 2, 1, ""});
  EXPECT_EQ(said<WriteCheckpoint>(), nullptr);
  tell(Reduced{1, 0});
  tell(AllVoted{1, 0, 0});
  tell(Restored{1, 1, false});
  ASSERT_NE(said<WriteCheckpoint>(), nullptr);
  EXPECT_EQ(said<WriteCheckpoint>()->attempt, 2u);
  EXPECT_EQ(said<WriteCheckpoint>()->step, 1);
  EXPECT_EQ(report().save.state, SaveStatus::State::saving);
  tell(Saved{1, 1});
  EXPECT_EQ(report().save.state, SaveStatus::State::saving);
  tell(Saved{2, 1});
  EXPECT_EQ(report().save.state, SaveStatus::State::written);
  hear(Save{1, 2, 1, "said twice"});
  tell(Reduced{1, 1});
  tell(AllVoted{1, 1, 0});
  tell(Restored{1, 2, false});
  EXPECT_EQ(said<WriteCheckpoint>(), nullptr);
  EXPECT_EQ(report().save.state, SaveStatus::State::written);
}

// Where it stands still before that step, or at the last one, another save says what is wanted.
TEST_F(WorkerProtocolTest, SavesNoOtherStepThanWasAskedForWhereItStandsStill) {
  begin();
  hear(Save{1, 1, 6, ""});
  hear(Halt{2, false, "two more workers"});
  EXPECT_EQ(said<WriteCheckpoint>(), nullptr);
  tell(Abandoned{1});
  EXPECT_EQ(said<WriteCheckpoint>(), nullptr);
  hear(Save{2, 2, 6, "repeated"});
  EXPECT_EQ(said<WriteCheckpoint>(), nullptr);
  hear(Save{2, 3, -1, "preemption"});
  ASSERT_NE(said<WriteCheckpoint>(), nullptr);
  EXPECT_EQ(said<WriteCheckpoint>()->step, 0);
}

TEST_F(WorkerProtocolTest, SavesTheLastStepOnlyWhereItIsTheResultThatIsWanted) {
  for (const int64_t at_step : {-1, 1, 6}) {
    SCOPED_TRACE(at_step);
    machine_ = WorkerProtocol(WorkerOptions{1, "here", milliseconds(200), seconds(10)});
    tell(Loaded{});
    renew_lease();
    enter(1, 0, StateSource::initial);
    tell(Restored{1, 0, false});
    hear(Save{1, 1, at_step, "while it runs"});
    tell(Reduced{1, 0});
    tell(AllVoted{1, 0, 0});
    tell(Restored{1, 1, true});
    EXPECT_EQ(report().phase, WorkerPhase::done);
    EXPECT_EQ(said<WriteCheckpoint>(), nullptr);
    hear(Save{1, 2, 1, "it was on its way"});
    EXPECT_EQ(said<WriteCheckpoint>(), nullptr);
    hear(Save{1, 3, -1, "the result"});
    ASSERT_NE(said<WriteCheckpoint>(), nullptr);
    EXPECT_EQ(said<WriteCheckpoint>()->step, 1);
  }
}

// An apply that was disturbed may have left the state without its evaluation.
TEST_F(WorkerProtocolTest, ASaveForTheNextGenerationWaitsUntilThatHasTheState) {
  begin();
  tell(Reduced{1, 0});
  tell(AllVoted{1, 0, 0});
  hear(Halt{2, false, "a worker is gone"});
  enter(2, 1, StateSource::apply_voted);
  hear(Save{2, 1, 1, "of that generation"});
  EXPECT_EQ(said<WriteCheckpoint>(), nullptr);
  tell(Restored{1, 1, false});
  EXPECT_EQ(said<WriteCheckpoint>(), nullptr);
  ASSERT_NE(said<Restore>(), nullptr);
  EXPECT_EQ(said<Restore>()->plan->number, 2u);
  tell(Restored{2, 1, false});
  ASSERT_NE(said<WriteCheckpoint>(), nullptr);
  EXPECT_EQ(said<WriteCheckpoint>()->step, 1);
}

// Not here, where another one is to save: each would save its own, and nobody have all at the end.
TEST_F(WorkerProtocolTest, APreemptionGathersAtTheLeaderThoughASaveIsDueHere) {
  renew_lease();
  enter(1, 0, StateSource::initial);
  const Parts some{{0, 1}};
  tell(Restored{1, 0, false, 2, some});
  hear(Save{1, 2, 1, ""});
  hear(Halt{2, true, "a preemption", /*gather=*/true});
  tell(Reduced{1, 0, some});
  ASSERT_NE(said<CastVote>(), nullptr);
  EXPECT_EQ(said<CastVote>()->gather, CastVote::Gather::at_leader);
}

// Once, and at the step alone at which the others save what it has not.
TEST_F(WorkerProtocolTest, SavesWithoutAllPartsWhereTheOthersSaveTheirs) {
  renew_lease();
  enter(1, 0, StateSource::initial);
  const Parts some{{0, 1}};
  tell(Restored{1, 0, false, 2, some});
  hear(Save{1, 2, 1, ""});
  tell(Reduced{1, 0, some});
  ASSERT_NE(said<CastVote>(), nullptr);
  EXPECT_EQ(said<CastVote>()->gather, CastVote::Gather::here);
  tell(AllVoted{1, 0, 0});
  tell(Restored{1, 1, false, 2, some, /*can_save=*/false});
  EXPECT_EQ(said<WriteCheckpoint>(), nullptr);
  tell(Reduced{1, 1, some});
  EXPECT_EQ(said<CastVote>()->gather, CastVote::Gather::here);
  tell(AllVoted{1, 1, 0});
  tell(Restored{1, 2, false, 2, some, /*can_save=*/true});
  ASSERT_NE(said<WriteCheckpoint>(), nullptr);
  EXPECT_EQ(said<WriteCheckpoint>()->step, 2);
  tell(Saved{2, 2});
  EXPECT_EQ(report().save.state, SaveStatus::State::written);
  hear(Save{1, 3, 2, ""});
  EXPECT_EQ(said<WriteCheckpoint>(), nullptr);  // the others do so once
}

// The others' parts of the last state stay on disk: they are joined again until that is published,
// or until they turn out not to be there.
TEST_F(WorkerProtocolTest, SavesTheLastStateOfWhichEachHasWrittenItsPartsAsOftenAsAsked) {
  renew_lease();
  enter(1, 0, StateSource::initial);
  const Parts some{{0, 1}};
  tell(Restored{1, 0, false, 2, some});
  tell(Reduced{1, 0, some});
  tell(AllVoted{1, 0, 0});
  tell(Restored{1, 1, true, 2, some, /*can_save=*/true, /*on_disk=*/true});
  EXPECT_EQ(report().phase, WorkerPhase::done);
  EXPECT_TRUE(report().can_save);
  hear(Save{1, 1, -1, ""});
  ASSERT_NE(said<WriteCheckpoint>(), nullptr);
  tell(SaveFailed{1, "disk full"});
  EXPECT_TRUE(report().can_save);
  hear(Save{1, 2, -1, ""});
  ASSERT_NE(said<WriteCheckpoint>(), nullptr);
  tell(Saved{2, 1});
  EXPECT_TRUE(report().can_save);
  hear(Save{1, 3, -1, ""});
  ASSERT_NE(said<WriteCheckpoint>(), nullptr);
  tell(SaveFailed{3, "a chunk is missing", /*parts_lost=*/true});
  EXPECT_FALSE(report().can_save);
  hear(Save{1, 4, -1, ""});
  EXPECT_EQ(said<WriteCheckpoint>(), nullptr);
}

TEST_F(WorkerProtocolTest, SavesBeforeAPreemptionWhatTheOthersHaveWritten) {
  renew_lease();
  enter(1, 0, StateSource::initial);
  const Parts some{{0, 1}};
  tell(Restored{1, 0, false, 2, some});
  hear(Halt{2, true, "a preemption", /*gather=*/true});
  tell(Reduced{1, 0, some});
  EXPECT_EQ(said<CastVote>()->gather, CastVote::Gather::at_leader);
  tell(AllVoted{1, 0, 2});
  tell(Restored{1, 1, false, 2, some, /*can_save=*/true, /*on_disk=*/true});
  EXPECT_EQ(report().phase, WorkerPhase::halted);
  EXPECT_TRUE(report().can_save);
  hear(Save{2, 1, -1, ""});
  ASSERT_NE(said<WriteCheckpoint>(), nullptr);
  tell(SaveFailed{1, "disk full"});
  hear(Save{2, 2, -1, ""});
  ASSERT_NE(said<WriteCheckpoint>(), nullptr);
}

// Whoever needs something from it would wait for ever, were it not to come: also where it has all
// that it needs, and where no step is left to run.
TEST_F(WorkerProtocolTest, ComesToTheMeetingOfEachGenerationWithWhatItHas) {
  begin();
  tell(Reduced{1, 0});
  tell(AllVoted{1, 0, 0});
  tell(Restored{1, 1, true});
  EXPECT_EQ(machine_.phase(), WorkerPhase::done);
  hear(Halt{2, false, "worker 2 is gone"});
  enter(2, 1, StateSource::keep);
  ASSERT_NE(said<Restore>(), nullptr);
  EXPECT_EQ(report().phase, WorkerPhase::restoring);
  EXPECT_EQ(report().step, 1);
  EXPECT_EQ(report().held, (Parts{{0, 1}}));
  tell(Restored{2, 1, true});
  EXPECT_EQ(report().phase, WorkerPhase::done);
}

TEST_F(WorkerProtocolTest, AHalfRestoredStateIsNone) {
  begin();
  hear(Halt{2, false, ""});
  tell(Abandoned{1});
  enter(2, 5, StateSource::peer);
  ASSERT_NE(said<Restore>(), nullptr);
  EXPECT_EQ(report().step, -1);
  tell(PeerLost{2, {2}, "feeder gone"});
  EXPECT_EQ(report().phase, WorkerPhase::halted);
  EXPECT_EQ(report().step, -1);
}

TEST_F(WorkerProtocolTest, RepeatsAJobErrorUntilItIsTold) {
  begin();
  tell(JobError{"bad label"});
  EXPECT_EQ(report().error, "bad label");
  enter(2, 0, StateSource::keep);
  EXPECT_EQ(machine_.generation(), 1u);
  now_ += milliseconds(200);
  tell(Beat{});
  EXPECT_NE(said<SendStatus>(), nullptr);
  EXPECT_EQ(report().error, "bad label");
  hear(Stop{"the job failed"});
  EXPECT_NE(said<Exit>(), nullptr);
  now_ += milliseconds(200);
  tell(Beat{});
  EXPECT_TRUE(last_.empty());
}

TEST_F(WorkerProtocolTest, AFaultOfItsHostGivesTheStepUpAndKeepsTheState) {
  begin();
  tell(Faulted{1, "no descriptor is free"});
  EXPECT_NE(said<Abandon>(), nullptr);
  EXPECT_TRUE(report().faulted);
  EXPECT_EQ(report().step, 0);
  EXPECT_EQ(report().note, "no descriptor is free");
  EXPECT_EQ(report().error, "");
  EXPECT_EQ(report().unreadable, -1);
  tell(Abandoned{1});
  enter(2, 0, StateSource::keep);
  EXPECT_FALSE(report().faulted);
  EXPECT_NE(said<Restore>(), nullptr);
}

TEST_F(WorkerProtocolTest, WhoCannotEndAnApplyExitsAndWhoCanTellsItFirst) {
  begin();
  tell(Reduced{1, 0});
  tell(AllVoted{1, 0, 0});
  const WorkerProtocol applying = machine_;
  tell(Restored{1, 1, false});
  tell(Faulted{1, "the model's disk is full"});
  EXPECT_TRUE(report().faulted);
  EXPECT_EQ(report().step, 1);
  machine_ = applying;
  tell(Faulted{1, "no memory"});
  ASSERT_NE(said<Exit>(), nullptr);
  EXPECT_NE(said<Exit>()->reason.find("no memory"), std::string::npos);
}

// Damage, absence, refusal and a fault of the job are four things.
TEST(EventOf, TakesNoKindOfErrorForAnother) {
  const auto index = [](const WorkerEvent& event) { return event.index(); };
  const auto code = [](ErrorCode c) { return Error(c, "why"); };
  const size_t failed = WorkerEvent(RestoreFailed{}).index();
  const size_t faulted = WorkerEvent(Faulted{}).index();
  const size_t lost = WorkerEvent(PeerLost{}).index();
  const size_t job = WorkerEvent(JobError{}).index();
  for (const ErrorCode c : {ErrorCode::data_loss, ErrorCode::not_found}) {
    EXPECT_EQ(index(restore_event_of(code(c), 3)), failed);
    EXPECT_EQ(index(event_of(code(c), 3)), job);
  }
  for (const ErrorCode c : {ErrorCode::peer_lost, ErrorCode::deadline}) {
    EXPECT_EQ(index(restore_event_of(code(c), 3)), lost);
    EXPECT_EQ(index(event_of(code(c), 3)), lost);
  }
  for (const ErrorCode c :
       {ErrorCode::invalid_argument, ErrorCode::conflict, ErrorCode::internal}) {
    EXPECT_EQ(index(restore_event_of(code(c), 3)), job);
    EXPECT_EQ(index(event_of(code(c), 3)), job);
  }
  EXPECT_EQ(index(restore_event_of(code(ErrorCode::unavailable), 3)), faulted);
  EXPECT_EQ(index(event_of(std::bad_alloc(), 3)), faulted);
  EXPECT_EQ(index(event_of(std::system_error(EMFILE, std::generic_category()), 3)), faulted);
  EXPECT_EQ(index(event_of(std::logic_error("?"), 3)), job);
}

class ShardedProtocolTest : public WorkerProtocolTest {
 protected:
  ShardedProtocolTest() {
    renew_lease();
    enter(1, 0, StateSource::initial);
    tell(Restored{1, 0, false, 4, {{0, 2}}});
  }
};

TEST_F(ShardedProtocolTest, ReportsWhatItHasAndWhatItWillHave) {
  EXPECT_EQ(report().num_parts, 4);
  EXPECT_EQ(report().held, (Parts{{0, 2}}));
  tell(Reduced{1, 0, {{0, 1}}});
  now_ += milliseconds(300);
  tell(Beat{});
  EXPECT_EQ(report().held, (Parts{{0, 2}}));
  EXPECT_EQ(report().next, (Parts{{0, 1}}));
  tell(AllVoted{1, 0, 0});
  tell(Restored{1, 1, false, 4, {{0, 1}}});
  EXPECT_EQ(report().held, (Parts{{0, 1}}));
  EXPECT_TRUE(report().next.empty());
}

TEST_F(ShardedProtocolTest, BringsItsPartsIntoEachGenerationEvenIfItHasTheState) {
  tell(Reduced{1, 0, {{0, 2}}});
  hear(Halt{2, false, ""});
  tell(Abandoned{1});
  enter(2, 1, StateSource::apply_voted);
  ASSERT_NE(said<Apply>(), nullptr);
  EXPECT_EQ(said<Restore>(), nullptr);
  tell(Restored{2, 1, false, 4, {{0, 2}}});
  ASSERT_NE(said<Restore>(), nullptr);
  EXPECT_EQ(said<RunStep>(), nullptr);
  EXPECT_EQ(machine_.step(), 1);  // it keeps what it has meanwhile
  tell(Restored{2, 1, false, 4, {{0, 3}}});
  EXPECT_NE(said<RunStep>(), nullptr);
  EXPECT_EQ(report().held, (Parts{{0, 3}}));
}

TEST_F(ShardedProtocolTest, GoesBackToTheCheckpointWhateverItHas) {
  tell(Reduced{1, 0, {{0, 2}}});
  hear(Halt{2, false, ""});
  tell(Abandoned{1});
  enter(2, 0, StateSource::initial);
  ASSERT_NE(said<Restore>(), nullptr);
  EXPECT_EQ(machine_.step(), -1);
  EXPECT_FALSE(machine_.voted());
  EXPECT_TRUE(report().held.empty());
}

TEST_F(ShardedProtocolTest, AsksForAllPartsBeforeItSaves) {
  hear(Save{1, 1, -1, ""});
  tell(Reduced{1, 0, {{0, 2}}});
  ASSERT_NE(said<CastVote>(), nullptr);
  EXPECT_EQ(said<CastVote>()->gather, CastVote::Gather::here);
  tell(AllVoted{1, 0, 0});
  tell(Restored{1, 1, false, 4, {{0, 2}}});  // another wish came first
  EXPECT_EQ(said<WriteCheckpoint>(), nullptr);
  tell(Reduced{1, 1, {{0, 2}}});
  tell(AllVoted{1, 1, 0});
  tell(Restored{1, 2, false, 4, {{0, 4}}});
  ASSERT_NE(said<WriteCheckpoint>(), nullptr);
  EXPECT_EQ(said<WriteCheckpoint>()->step, 2);
}

TEST_F(ShardedProtocolTest, AHaltForACheckpointBringsThePartsToTheLeader) {
  hear(Halt{2, true, "preemption", true});
  tell(Reduced{1, 0, {{0, 2}}});
  ASSERT_NE(said<CastVote>(), nullptr);
  EXPECT_EQ(said<CastVote>()->gather, CastVote::Gather::at_leader);
}

TEST_F(ShardedProtocolTest, WhoWillHaveAllPartsAsksForNone) {
  hear(Save{1, 1, -1, ""});
  tell(Reduced{1, 0, {{0, 4}}});
  ASSERT_NE(said<CastVote>(), nullptr);
  EXPECT_EQ(said<CastVote>()->gather, CastVote::Gather::no);
  tell(AllVoted{1, 0, 0});
  tell(Restored{1, 1, false, 4, {{0, 4}}});
  EXPECT_NE(said<WriteCheckpoint>(), nullptr);
}

// A controller that is away for long grants nothing, which its saved state shows.
TEST_F(WorkerProtocolTest, ASavedStateThatLetsItGoOnRenewsTheLeaseFromWhenItWasLookedAt) {
  begin();
  EXPECT_FALSE(machine_.misses_controller(now_));
  now_ += seconds(3);
  EXPECT_TRUE(machine_.misses_controller(now_));
  const Time asked = now_;
  now_ += seconds(2);  // a slow disk
  tell(RecordRead{asked, 1});
  EXPECT_EQ(machine_.lease_until(), asked + seconds(10));
  tell(RecordRead{asked - seconds(1), 1});
  EXPECT_EQ(machine_.lease_until(), asked + seconds(10));
  now_ = asked + seconds(9);
  tell(Reduced{1, 0});
  EXPECT_NE(said<CastVote>(), nullptr);
  now_ = asked + seconds(11);
  tell(AllVoted{1, 0, 0});
  EXPECT_EQ(said<Apply>(), nullptr);
  EXPECT_EQ(machine_.phase(), WorkerPhase::halted);
}

TEST_F(WorkerProtocolTest, ASavedStateOfAnotherGenerationRenewsNothing) {
  begin();
  const Time until = machine_.lease_until();
  now_ += seconds(3);
  tell(RecordRead{now_, 0});
  tell(RecordRead{now_, 2});
  EXPECT_EQ(machine_.lease_until(), until);
  hear(Halt{2, false, ""});
  tell(RecordRead{now_, 1});  // was read before the promise
  EXPECT_EQ(machine_.lease_until(), until);
  EXPECT_FALSE(machine_.misses_controller(now_ + seconds(20)));
}

}  // namespace
}  // namespace ductile::control
