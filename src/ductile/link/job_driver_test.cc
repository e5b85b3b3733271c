// What the control of a job saves when it begins.
#include "ductile/link/job_driver.h"

#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/control/membership.h"
#include "ductile/link/saved_state.h"
#include "ductile/run/folder.h"

namespace ductile::link {
namespace {

using namespace control;
using nlohmann::json;

// Nobody is there, and whoever is started says nothing.
class Nowhere final : public JobWorld {
 public:
  void launch(const LaunchWorker& command) override { launched.push_back(command.worker); }
  void kill(const KillWorker&) override {}
  void send(const Instruction&) override {}
  void adopt(const std::vector<WorkerStatus>&) override {}

  std::vector<WorkerId> launched;
};

struct Place {
  TempFolder place;
  const run::RunFolder folder = run::RunFolder::create_at(place.path() / "run", "");
  Nowhere world;
  JobDriverOptions options;

  Place() {
    options.run = folder.path();
    options.membership.virtual_ranks = 4;
  }
  fs::path file() const { return state_file(folder.path()); }
  json state() const { return *read_state(file()); }
  void save(const char* phase, int64_t wanted) const {
    json state = Membership(options.membership).save();
    state["phase"] = phase;
    state["wanted"] = wanted;
    write_file_atomic(file(), sealed(state));
  }
  // The answer to the start; nothing: it was told of no refusal.
  std::string start(int64_t workers) {
    world.launched.clear();
    JobDriver driver(options, world);
    driver.restore();
    std::optional<RequestAnswer> answer;
    driver.start(workers, [&](const RequestAnswer& a) { answer = a; });
    EXPECT_TRUE(answer.has_value());
    return answer ? answer->refused : "no answer";
  }
};

TEST(JobDriver, GoesOnWithAsManyWorkersAsOneThatHadFinished) {
  Place run;
  run.save("finished", 3);
  EXPECT_EQ(run.start(0), "");
  EXPECT_EQ(run.state().at("phase"), "starting");
  EXPECT_EQ(run.state().at("wanted"), 3);
  EXPECT_EQ(run.world.launched.size(), 3U);
  run.save("finished", 3);
  EXPECT_EQ(run.start(2), "");
  EXPECT_EQ(run.state().at("wanted"), 2) << "where it is told so";
}

TEST(JobDriver, BeginsWithOneWorkerWhereNobodySaysHowMany) {
  Place run;
  EXPECT_EQ(run.start(0), "");
  EXPECT_EQ(run.state().at("wanted"), 1);
  EXPECT_EQ(run.world.launched.size(), 1U);
}

// Nobody asked for one worker, which a state without the number would say.
TEST(JobDriver, SavesNothingOfAStartThatIsRefused) {
  Place run;
  run.options.membership.min_workers = 2;
  EXPECT_EQ(run.start(1), "1 workers: this job runs with 2 to 4");
  EXPECT_FALSE(fs::exists(run.file()));
  EXPECT_TRUE(run.world.launched.empty());
  run.save("finished", 3);
  const std::string before = read_file(run.file());
  EXPECT_EQ(run.start(1), "1 workers: this job runs with 2 to 4");
  EXPECT_EQ(read_file(run.file()), before);
}

// A disk that is stuck behind each write, so that a process could be killed there.
class OneWrite final : public Disk {
 public:
  explicit OneWrite(const fs::path& file) : file_(file) {}
  void run(Work work, Done done) override {
    work();
    if (!fs::exists(file_) && done) done(nullptr);
  }

 private:
  const fs::path file_;
};

TEST(JobDriver, TheFirstStateThatIsSavedSaysHowManyWorkersAreWanted) {
  Place run;
  OneWrite disk(run.file());
  JobDriver driver(run.options, run.world, &disk);
  driver.restore();
  driver.start(2, [](const RequestAnswer&) {});
  EXPECT_EQ(run.state().at("wanted"), 2);
  EXPECT_TRUE(run.world.launched.empty()) << "the state counts once it is known to be saved";
}

// Formerly its end was as of the first save that was refused.
TEST(JobDriver, WhatItHeardWhileItsStateCouldNotBeSavedCountsAtItsEnd) {
  Place run;
  run.options.membership.preempt_deadline = Time{0};
  JobDriver driver(run.options, run.world);
  driver.restore();
  driver.start(1);
  ASSERT_EQ(run.world.launched.size(), 1U);
  fs::remove(run.file());
  fs::create_directory(run.file());  // nothing can be renamed over it
  EXPECT_NE(driver.request(PreemptJob{}), "");
  WorkerStatus status;
  status.worker = run.world.launched.front();
  status.sequence = 1;
  status.step = 12;
  driver.add(WorkerReported{status});
  driver.add(CheckpointPublished{10});
  ASSERT_TRUE(driver.gives_up());
  const JobEnd end = driver.end_unsaved();
  EXPECT_EQ(end.phase, Phase::preempted);
  EXPECT_EQ(end.step, 12);
  EXPECT_EQ(end.checkpoint, 10);
  EXPECT_EQ(end.unsaved_steps, 2);
  driver.write_end(end);
  const std::string events = read_file(run.folder.events_file());
  EXPECT_NE(events.find("; 2 steps will be done again"), std::string::npos) << events;
  EXPECT_NE(events.find("\"unsaved_steps\":2"), std::string::npos) << events;
}

}  // namespace
}  // namespace ductile::link
