// A service whose disk is full: it says so, keeps what it acknowledged, can be stopped, and no job
// fails for it.
//
//   DUCTILE_LONG_FULL_DISK=1  also what takes more than a minute
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/cluster/commit_queue.h"
#include "ductile/cluster/store.h"
#include "ductile/cluster/testing/commands.h"
#include "ductile/cluster/testing/live_service.h"
#include "ductile/server/testing/small_disk.h"

namespace ductile::cluster {
namespace {

using namespace testing;
using server::testing::SmallDisk;

class FullDisk : public ::testing::Test {
 protected:
  // The store and the runs have a disk each, of which one is small.
  void start(bool small_store) {
    service_.emplace([&](ServiceOptions& options) {
      options.devices = 2;
      options.shared = shared_.path();
      options.stop_patience = stop_patience_;
      disk_ = SmallDisk(small_store ? options.folder : shared_.path(), "16m");
    });
  }
  void TearDown() override {
    if (!service_) return;
    service_->kill_service();
    std::error_code none;
    for (const auto& run : fs::directory_iterator(shared_.path() / "runs", none))
      for (const pid_t pid : link::workers_of(run.path())) ::kill(pid, SIGKILL);
    disk_.give_back();
  }

  // Large submissions until one finds no room: the store's log has some of its own.
  void exhaust() {
    ASSERT_TRUE(disk_.fill());
    const std::string long_job =
        "[train]\nmax_steps = 1000000\nvirtual_ranks = 4\n# " + std::string(100'000, 'x') + "\n";
    for (int i = 0; i < 1000; ++i) {
      refusal_ =
          service_->offer("filling" + std::to_string(i), 1, 1, 1, {{"spec", {{"job", long_job}}}});
      ASSERT_FALSE(refusal_.is_null());
      if (refusal_.at("status") != 201) return;
      filling_.push_back(refusal_.at("body").at("id"));
    }
    ADD_FAILURE() << "the disk is not full";
  }
  void expect_acknowledged() {
    for (const JobId id : filling_) {
      service_->act(id, "cancel");
      service_->wait_for(id, "cancelled");
    }
  }

  double stop_patience_ = 600;
  TempFolder shared_;
  SmallDisk disk_;
  std::optional<LiveService> service_;
  std::vector<JobId> filling_;
  Json refusal_;
};

TEST_F(FullDisk, ASubmissionThatFindsNoRoomIsRefusedAndTheOthersAreKept) {
  start(true);
  if (!disk_.made()) GTEST_SKIP() << "a file system of its own cannot be made here";
  const JobId first = service_->submit("first", 400);
  service_->wait(first, [](const Json& job) { return job.at("phase") == "running"; });
  exhaust();
  EXPECT_EQ(refusal_.at("status"), 503) << refusal_;
  EXPECT_NE(refusal_.dump().find("free space on its disk"), std::string::npos) << refusal_;
  // Readers are answered all the same.
  EXPECT_EQ(service_->get("/v1/jobs/" + std::to_string(first)).value("name", ""), "first");
  EXPECT_NE(service_->text("/metrics").find("ductile_changes_waiting"), std::string::npos);
  EXPECT_TRUE(service_->lives());
  disk_.empty();
  expect_acknowledged();
  service_->expect_result(first);
  service_->expect_result(service_->submit("last", 50));
  EXPECT_EQ(service_->get("/v1/jobs?limit=1000").at("jobs").size(), filling_.size() + 2);
  EXPECT_EQ(service_->stop(), 0);
}

// Room that anybody gave back the job would take at once. What was acknowledged outlives the
// service.
TEST_F(FullDisk, TheJobThatFillsTheDiskIsCancelled) {
  start(true);
  if (!disk_.made()) GTEST_SKIP() << "a file system of its own cannot be made here";
  const JobId id = service_->submit_command(
      "fills", "echo $$ > pid; while :; do cat /dev/zero >> big; sleep 0.01; done 2> /dev/null",
      {{"grace", 0.1}});
  wait_for_lines(service_->folder() / "pid", 1);
  const pid_t pid = std::stoi(read_file(service_->folder() / "pid"));
  exhaust();
  const Json answer = service_->send("POST", "/v1/jobs/" + std::to_string(id) + "/cancel");
  EXPECT_EQ(answer.value("status", 0), 200) << answer;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (::kill(pid, 0) == 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(5ms);
  EXPECT_NE(::kill(pid, 0), 0);
  service_->wait(id, [](const Json& job) {
    return job.value("why", "").find("none of its processes is left") != std::string::npos;
  });
  service_->kill_service();
  fs::remove(service_->folder() / "big");
  disk_.empty();
  service_->start();
  ASSERT_TRUE(service_->lives());
  service_->wait_for(id, "cancelled");
  expect_acknowledged();
}

// As a program does that sends its request again and again, with another key each time.
TEST_F(FullDisk, ManyCancellationsOfOneJobLeaveRoomForThatOfAnother) {
  start(true);
  if (!disk_.made()) GTEST_SKIP() << "a file system of its own cannot be made here";
  const JobId first = service_->submit_command("first", "sleep 1000", {{"grace", 0.1}});
  const JobId second = service_->submit_command("second", "sleep 1000", {{"grace", 0.1}});
  for (const JobId id : {first, second}) service_->wait_for(id, "running");
  exhaust();
  const auto cancel = [&](JobId id, const std::string& key) {
    return service_->send("POST", "/v1/jobs/" + std::to_string(id) + "/cancel", "", key);
  };
  for (int i = 0; i < 300; ++i) {
    const Json answer = cancel(first, "key" + std::to_string(i));
    ASSERT_EQ(answer.value("status", 0), 200) << i << ": " << answer;
  }
  const Json answer = cancel(second, "last");
  EXPECT_EQ(answer.value("status", 0), 200) << answer;
  disk_.empty();
  for (const JobId id : {first, second}) service_->wait_for(id, "cancelled");
  expect_acknowledged();
}

// It has its devices, and waits for the store alone.
TEST_F(FullDisk, AJobThatIsCancelledBeforeTheStoreSaysThatItRunsDoesNotBegin) {
  start(true);
  if (!disk_.made()) GTEST_SKIP() << "a file system of its own cannot be made here";
  // Before those that fill the disk.
  const auto submit = [&](const std::string& name, const std::string& script) {
    const Json spec = {{"command", {"/bin/sh", "-c", script}},
                       {"directory", shared_.path().string()},
                       {"grace", 0.1}};
    const Json body = {{"name", name},     {"kind", "command"}, {"tier", "premium"},
                       {"min_devices", 2}, {"max_devices", 2},  {"spec", spec}};
    const Json answer = service_->send("POST", "/v1/jobs", dump_json(body));
    EXPECT_EQ(answer.value("status", 0), 201) << answer;
    return answer.at("body").value("id", JobId{0});
  };
  const JobId first = submit("first", "exec sleep 1000");
  service_->wait_for(first, "running");
  const JobId second = submit("second", "echo >> begun; exec sleep 1000");
  exhaust();
  service_->act(first, "cancel");
  service_->wait(second, [](const Json& job) {
    return job.value("why", "").find("begins once the store can be written") != std::string::npos;
  });
  const Json answer = service_->send("POST", "/v1/jobs/" + std::to_string(second) + "/cancel");
  EXPECT_EQ(answer.value("status", 0), 200) << answer;
  disk_.empty();
  const Json ended = service_->wait_for(second, "cancelled");
  EXPECT_EQ(ended.value("reason", ""), "It was cancelled.");
  EXPECT_FALSE(fs::exists(ended.value("run", ""))) << "its keeper was started";
  EXPECT_FALSE(fs::exists(shared_.path() / "begun"));
  service_->wait_for(first, "cancelled");
  expect_acknowledged();
}

// Whichever of them fills it. Each commits alone, as one request after the other does.
TEST(FullStore, EachJobThatRunsCanBeCancelled) {
  constexpr int kJobs = 280;
  const TempFolder folder;
  const SmallDisk disk(folder.path(), "32m");
  if (!disk.made()) GTEST_SKIP() << "a file system of its own cannot be made here";
  Store store(folder.path() / "store.db");
  CommitQueue queue(store);
  std::vector<JobId> jobs;
  queue.commit([&](Change& change) {
    jobs.clear();
    for (int i = 0; i < kJobs; ++i) {
      jobs.push_back(change.submit({.name = "job", .owner = "ada"}, "{}", 1));
      change.set_phase(jobs.back(), Phase::running, "", 2);
    }
  });
  queue.commit([&](Change& change) { change.record(0, "later", "{}", 3); });  // knows of them
  ASSERT_TRUE(disk.fill());
  for (const JobId id : jobs)
    for (const Wish wish : {Wish::pause, Wish::cancel})  // more than is kept for a few jobs
      queue.commit([&](Change& change) { change.set_wish(id, wish, "ada", 4); },
                   CommitQueue::Room::kept);
  Reader reader(folder.path() / "store.db");
  for (const JobId id : jobs) EXPECT_EQ(reader.job(id).wish, Wish::cancel) << id;
}

// Its keeper has kept room to say how it ended.
TEST_F(FullDisk, AJobThatFillsTheDiskOfItsRunIsCancelled) {
  start(false);
  if (!disk_.made()) GTEST_SKIP() << "a file system of its own cannot be made here";
  const JobId id = service_->submit_command(
      "fills", "while :; do cat /dev/zero >> $DUCTILE_RUN_DIR/big; sleep 0.01; done 2> /dev/null",
      {{"grace", 0.1}});
  const fs::path run = service_->wait_for(id, "running").value("run", "");
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!(fs::exists(run / "big") && fs::space(run).available == 0) &&
         std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(5ms);
  ASSERT_EQ(fs::space(run).available, 0u);
  service_->act(id, "cancel");
  service_->wait_for(id, "cancelled");
  EXPECT_EQ(fs::space(run).available / 65536, 0u);
}

// A keeper that finds no room to say how its command ended is left to the next service.
TEST_F(FullDisk, AStopHasAnEndThoughAJobHasNone) {
  stop_patience_ = 1;
  start(false);
  if (!disk_.made()) GTEST_SKIP() << "a file system of its own cannot be made here";
  const JobId id = service_->submit_command("job", "echo begun; sleep 1000", {{"grace", 0.1}});
  const fs::path run = service_->wait_for(id, "running").value("run", "");
  wait_for_lines(run / "worker.log", 1);
  fs::remove(run / "attempt.room");
  ASSERT_TRUE(disk_.fill());
  EXPECT_EQ(service_->stop(), 0);
  disk_.empty();
  service_->start();
  ASSERT_TRUE(service_->lives());
  service_->act(id, "cancel");
  service_->wait_for(id, "cancelled");
}

// What the store does not say the next service finds in the run directories.
TEST_F(FullDisk, AServiceWhoseStoreFindsNoRoomCanBeStopped) {
  start(true);
  if (!disk_.made()) GTEST_SKIP() << "a file system of its own cannot be made here";
  service_->slow_steps(true);
  const JobId first = service_->submit("first", 300);
  service_->wait(first, [](const Json& job) { return job.at("phase") == "running"; });
  exhaust();
  EXPECT_EQ(service_->stop(), 0);
  disk_.empty();
  service_->slow_steps(false);
  service_->start();
  ASSERT_TRUE(service_->lives());
  expect_acknowledged();
  service_->expect_result(first);
}

// What is written at the end finds room in time, however long there was none.
TEST_F(FullDisk, AStopWaitsForRoomThoughThereWasNoneForLong) {
  start(true);
  if (!disk_.made()) GTEST_SKIP() << "a file system of its own cannot be made here";
  const JobId first = service_->submit("first", 1'000'000);
  service_->wait_for_workers(first);
  exhaust();
  Json overview;
  const auto refuses = [&] {
    overview = service_->get("/v1/overview");
    return overview.contains("store");
  };
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!refuses() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(10ms);
  ASSERT_TRUE(overview.contains("store")) << overview;
  EXPECT_EQ(overview.at("store").value("fault", ""), "full");
  std::this_thread::sleep_for(11s);  // longer than a stop waits
  std::thread maker_of_room([this] {
    std::this_thread::sleep_for(3s);
    disk_.empty();
  });
  EXPECT_EQ(service_->stop(), 0);
  maker_of_room.join();
  EXPECT_EQ(Reader(service_->folder() / "store.db").job(first).phase, Phase::queued);
}

// The state of the job's own could not be saved before, since a worker was lost. The next service
// goes on.
TEST_F(FullDisk, AServiceWhoseJobFindsNoRoomForItsStateCanBeStopped) {
  if (std::getenv("DUCTILE_LONG_FULL_DISK") == nullptr)
    GTEST_SKIP() << "it takes more than a minute";
  start(false);
  if (!disk_.made()) GTEST_SKIP() << "a file system of its own cannot be made here";
  const JobId id = service_->submit("job", 1500);
  service_->wait_for_workers(id);
  std::this_thread::sleep_for(1s);
  ASSERT_TRUE(disk_.fill());
  const fs::path run = service_->get("/v1/jobs/" + std::to_string(id)).value("run", "");
  const auto workers = link::workers_of(run);
  ASSERT_FALSE(workers.empty());
  ::kill(*workers.begin(), SIGKILL);
  std::this_thread::sleep_for(1s);  // its loss has to be saved
  EXPECT_EQ(service_->stop(), 0);
  EXPECT_TRUE(link::workers_of(run).empty());
  disk_.empty();
  service_->start();
  ASSERT_TRUE(service_->lives());
  service_->expect_result(id);
}

// A result that cannot be saved for as long as it is waited for (here since its folder is none):
// the job is not lost.
TEST_F(FullDisk, AJobWhoseResultCannotBeSavedIsDoneAgainOnceItCan) {
  if (std::getenv("DUCTILE_LONG_FULL_DISK") == nullptr)
    GTEST_SKIP() << "it takes more than a minute";
  start(true);
  const JobId id = service_->submit("job", 400);
  service_->wait_for_workers(id);
  const fs::path run = service_->get("/v1/jobs/" + std::to_string(id)).value("run", "");
  fs::rename(run / "checkpoints", run / "kept");
  write_file_atomic(run / "checkpoints", "no folder");
  const Json waits = service_->wait_for(id, "queued");
  EXPECT_NE(waits.value("reason", "").find("could not be saved within"), std::string::npos)
      << waits;
  fs::remove(run / "checkpoints");
  fs::rename(run / "kept", run / "checkpoints");
  service_->expect_result(id);
}

// As long as the disk is full the job waits with its result; nothing of it ends.
TEST_F(FullDisk, AJobThatIsDoneWaitsForRoom) {
  start(false);
  if (!disk_.made()) GTEST_SKIP() << "a file system of its own cannot be made here";
  const JobId id = service_->submit("job", 200);
  service_->wait_for_workers(id);
  ASSERT_TRUE(disk_.fill());
  std::this_thread::sleep_for(3s);  // it could be done
  EXPECT_EQ(service_->get("/v1/jobs/" + std::to_string(id)).value("phase", ""), "running");
  disk_.empty();
  service_->expect_result(id);
}

}  // namespace
}  // namespace ductile::cluster
