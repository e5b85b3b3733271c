// Run directories that somebody removes, or that an earlier store has left.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/testing.h"
#include "ductile/cluster/commit_queue.h"
#include "ductile/cluster/runs_folder_impl.h"
#include "ductile/cluster/store.h"
#include "ductile/cluster/store_check.h"
#include "ductile/cluster/testing/live_service.h"
#include "ductile/run/runs_mark.h"

namespace ductile::cluster {
namespace {

using namespace testing;
using ::ductile::testing::code_of;

// A store that was lost: its jobs' numbers and runs stay theirs, and that is said once.
TEST(Service, AJobNeverGoesOnWithAnotherOnesRun) {
  LiveService cluster;
  cluster.expect_result(cluster.submit("job", 200));
  cluster.expect_result(cluster.submit("job", 200));
  EXPECT_EQ(cluster.stop(), 0);
  for (const char* name : {"store.db", "store.db-wal", "store.db-shm"})
    fs::remove(cluster.folder() / name);
  fs::create_directory(cluster.folder() / "runs" / "9000000000000000000-absurd");
  cluster.start();
  EXPECT_EQ(cluster.stop(), 0);
  cluster.start();
  const JobId id = cluster.submit("job", 40);
  EXPECT_EQ(id, 3);
  cluster.expect_result(id);
  for (const char* run : {"1-job", "2-job", "3-job"})
    EXPECT_TRUE(fs::exists(cluster.folder() / "runs" / run / "job.toml")) << run;
  const std::string events = cluster.get("/v1/events?limit=1000").dump();
  const size_t said = events.find("up to job 2: those jobs are not known here");
  EXPECT_NE(said, std::string::npos) << events;
  EXPECT_EQ(events.find("those jobs are not known here", said + 30), std::string::npos) << events;
}

// store.db was copied alone while the service ran, and put back: jobs that were submitted since are
// not known, and of one that is done it believes that it waits.
TEST(Service, AnOlderCopyOfAStoreUsesNoNumberTwiceAndRunsNothingTwice) {
  LiveService cluster;
  cluster.expect_result(cluster.submit("first", 40));
  const JobId held = cluster.submit("held", 40, 1, 1, {{"held", true}});
  const fs::path copy = cluster.folder() / "copy.db", store = cluster.folder() / "store.db";
  back_up_store(cluster.folder(), copy);
  cluster.act(held, "resume");
  cluster.expect_result(held);
  cluster.expect_result(cluster.submit("third", 40));
  EXPECT_EQ(cluster.stop(), 0);
  const fs::path runs = cluster.folder() / "runs", diary = runs / "2-held" / "events.jsonl";
  const std::string before = read_file(diary);
  for (const char* name : {"store.db", "store.db-wal", "store.db-shm"})
    fs::remove(cluster.folder() / name);
  fs::rename(copy, store);
  EXPECT_TRUE(check_store(cluster.folder()).is_behind);
  cluster.start();
  const std::string events = cluster.get("/v1/events?limit=1000").dump();
  EXPECT_NE(events.find("the store knows jobs up to 2, and"), std::string::npos) << events;
  const JobId fresh = cluster.submit("fresh", 40);
  EXPECT_EQ(fresh, 4);
  cluster.expect_result(fresh);
  cluster.act(held, "resume");
  cluster.expect_result(held);
  EXPECT_EQ(read_file(diary), before) << "it was run again";
  EXPECT_FALSE(fs::exists(runs / "2-held-2"));
  EXPECT_FALSE(check_store(cluster.folder()).is_behind);
}

// A port of the loopback interface at which nobody else can listen.
uint16_t port_taken_by(const Descriptor& socket) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(socket.get(), where, size), 0);
  EXPECT_EQ(::listen(socket.get(), 1), 0);
  EXPECT_EQ(::getsockname(socket.get(), where, &size), 0);
  return ntohs(address.sin_port);
}

// Formerly nothing told of them where no later job had begun, and a start that failed took away the
// mark which tells it.
TEST(Service, ABackupThatWasPutBackNamesTheTokensAndJobsThatItBringsBack) {
  const auto revoked_and_cancelled = [](const std::string& text) {
    return text.find("tokens that were revoked since are valid again") != text.npos &&
           text.find("cancelled since, commands too, may run again") != text.npos;
  };
  const auto check_says = [&](const LiveService& cluster) {
    return std::ranges::any_of(check_store(cluster.folder()).notes, revoked_and_cancelled);
  };
  LiveService cluster;
  const JobId held = cluster.submit("held", 40, 1, 1, {{"held", true}});
  const fs::path copy = cluster.folder() / "copy.db";
  back_up_store(cluster.folder(), copy);
  EXPECT_FALSE(check_says(cluster)) << "the store itself is no backup";
  cluster.act(held, "cancel");
  EXPECT_EQ(cluster.stop(), 0);
  for (const char* name : {"store.db", "store.db-wal", "store.db-shm"})
    fs::remove(cluster.folder() / name);
  fs::rename(copy, cluster.folder() / "store.db");
  EXPECT_TRUE(check_says(cluster));
  EXPECT_TRUE(check_store(cluster.folder()).losses.empty());
  {
    const Descriptor taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    cluster.choose([port = port_taken_by(taken)](ServiceOptions& o) { o.port = port; });
    cluster.start();
    EXPECT_FALSE(cluster.lives());
    EXPECT_TRUE(check_says(cluster)) << "no service has begun on it";
    cluster.choose([](ServiceOptions& o) { o.port.reset(); });
  }
  for (int starts = 0; starts < 2; ++starts) {  // of which the first alone says it
    cluster.start();
    std::string events;
    cluster.wait(held, [&](const Json&) {  // it answers a moment before it says so
      events = cluster.get("/v1/events?limit=1000").dump();
      return revoked_and_cancelled(events);
    });
    EXPECT_EQ(events.find("is a backup of"), events.rfind("is a backup of"));
    EXPECT_FALSE(check_says(cluster));
    EXPECT_EQ(cluster.stop(), 0);
  }
}

// Since the copy was made it began, or began anew, and it runs on while the service is away. It is
// nobody's to find by the store, and whoever cancelled it would leave it running.
TEST(Service, ACommandThatRunsThoughItWaitsByAnOlderStoreIsFollowed) {
  for (const auto& [paused, devices] : {std::pair{false, 1}, {false, 2}, {true, 1}}) {
    LiveService cluster(1);
    const fs::path begun = cluster.folder() / "begun";
    const auto has_begun = [&](int64_t times) {
      return [&begun, times](const Json&) {
        return fs::exists(begun) && fs::file_size(begun) >= static_cast<size_t>(times);
      };
    };
    const JobId first = cluster.submit_command("first", "sleep 1000");
    cluster.wait_for(first, "running");
    const JobId second = cluster.submit_command("second", "echo >> begun; sleep 1000");
    int64_t times = 0;
    if (paused) {
      cluster.act(first, "cancel");
      cluster.wait(second, has_begun(++times));
      cluster.act(second, "pause");
      cluster.wait_for(second, "paused");
    }
    const fs::path copy = cluster.folder() / "copy.db";
    back_up_store(cluster.folder(), copy);
    cluster.act(paused ? second : first, paused ? "resume" : "cancel");
    cluster.wait(second, has_begun(++times));
    cluster.kill_service();
    for (const char* name : {"store.db", "store.db-wal", "store.db-shm"})
      fs::remove(cluster.folder() / name);
    fs::rename(copy, cluster.folder() / "store.db");
    cluster.start(devices);
    if (paused) cluster.wait_for(second, "paused");
    if (devices == 2) cluster.wait_for(first, "running");
    cluster.act(second, "cancel");
    cluster.wait_for(second, "cancelled");
    EXPECT_EQ(fs::file_size(begun), static_cast<size_t>(times)) << "it went on, or did not begin";
    if (!paused) {
      cluster.act(first, "cancel");
      cluster.wait_for(first, "cancelled");
    }
    cluster.wait_for_no_workers();
  }
}

// A process may make something in a folder that is just being removed.
void remove_for_good(const fs::path& folder) {
  std::error_code error;
  do fs::remove_all(folder, error);
  while (fs::exists(folder));
}

// It neither goes on for nothing, nor is it done without a result, nor begun again for ever.
TEST(Service, AJobWhoseRunDirectoryIsDeletedFailsAndSaysWhy) {
  LiveService cluster;
  for (const int64_t steps : {2000, 1'000'000}) {  // it would be done, and it would not
    const JobId id = cluster.submit("job", steps);
    cluster.wait_for_workers(id);
    const fs::path run = cluster.get("/v1/jobs/" + std::to_string(id)).value("run", "");
    remove_for_good(run);
    const Json job = cluster.wait(id, [](const Json& j) { return !j.at("ended").is_null(); });
    EXPECT_EQ(job.at("phase"), "failed") << job;
    const std::string reason = job.value("reason", "");
    EXPECT_NE(reason.find(run.string() + ": the run's folder was deleted"), std::string::npos)
        << reason;
    EXPECT_NE(reason.find("start the job again"), std::string::npos) << reason;
    cluster.wait_for_no_workers();
    EXPECT_FALSE(fs::exists(run / "job.toml"));
  }
  cluster.expect_result(cluster.submit("other", 40));
}

// A disk that is not mounted, as a folder of runs that is not there is seen: nothing was deleted.
class Runs {
 public:
  explicit Runs(const LiveService& cluster)
      : here_(cluster.folder() / "runs"), away_(cluster.folder() / "away") {}
  void unmount() const { fs::rename(here_, away_); }
  void mount() const { fs::rename(away_, here_); }
  // An empty disk in its place.
  void mount_other() const {
    unmount();
    fs::create_directory(here_);
  }
  // Nobody has begun a run on the other one.
  void mount_again() const {
    for (const auto& entry : fs::directory_iterator(here_))
      EXPECT_FALSE(fs::exists(entry.path() / "job.toml")) << entry.path();
    remove_for_good(here_);
    mount();
  }
  const fs::path& path() const { return here_; }

 private:
  const fs::path here_, away_;
};

TEST(Service, DoesNotBeginWithoutTheDiskOfItsRuns) {
  LiveService cluster;
  cluster.slow_steps(true);
  const JobId id = cluster.submit("job", 400);
  const JobId command = cluster.submit_command("command", "echo once >> count; sleep 1000");
  cluster.wait_for_workers(id);
  cluster.wait(command, [&](const Json&) { return fs::exists(cluster.folder() / "count"); });
  for (const JobId job : {id, command}) cluster.act(job, "pause");
  for (const JobId job : {id, command}) cluster.wait_for(job, "paused");
  cluster.slow_steps(false);
  const fs::path run = cluster.get("/v1/jobs/" + std::to_string(id)).value("run", "");
  const std::string secret = read_file(run / "secret");
  EXPECT_EQ(cluster.stop(), 0);
  const Runs runs(cluster);
  runs.unmount();
  cluster.start();
  EXPECT_FALSE(cluster.lives()) << "it began on another disk";
  EXPECT_FALSE(fs::exists(runs.path()));
  runs.mount();
  cluster.start();
  cluster.act(id, "resume");
  cluster.expect_result(id);
  EXPECT_EQ(read_file(run / "secret"), secret) << "the job has begun anew";
  EXPECT_EQ(cluster.get("/v1/events?limit=1000").dump().find("It begins anew"), std::string::npos);
}

// The folder of the runs is where it was, and the service looks for it elsewhere.
TEST(Service, SaysThatItMayHaveBeenStartedWithoutItsSharedFolder) {
  const TempFolder folder, shared;
  ServiceOptions options;
  options.folder = folder.path();
  options.shared = shared.path();
  const fs::path runs = shared.path() / "runs", file = folder.path() / "store.db";
  fs::create_directories(runs / "1-job");
  Store store(file);
  CommitQueue queue(store);
  queue.commit([&](Change& change) {
    const JobId id = change.submit({.name = "job", .owner = "ada"}, "{}", 1);
    change.set_run(id, (runs / "1-job").string(), 2);
  });
  Reader reader(file);
  const RunsFolder right = runs_of(options, reader);
  EXPECT_EQ(right.path, runs);
  EXPECT_TRUE(right.before.empty());
  queue.commit([&](Change& change) { change.set_memory(kRunsMark, right.mark); });
  options.shared.clear();
  for (const char* said : {"is not there", "has no mark"}) {
    std::string text;
    EXPECT_EQ(code_of([&] { runs_of(options, reader); }, &text), ErrorCode::unavailable);
    EXPECT_NE(text.find(said), std::string::npos) << text;
    EXPECT_NE(text.find("the newest run of this store was in " + runs.string() +
                        ", so the service may have been started without --shared"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("start it with --shared " + shared.path().string() + ";"),
              std::string::npos)
        << text;
    fs::create_directory(folder.path() / "runs");  // an empty one, for the second time
  }
}

// Who has really lost the runs says so by making their folder, with its mark.
TEST(Service, BeginsAnewWhereSomebodyMadeAndMarkedTheFolderOfTheRuns) {
  LiveService cluster;
  cluster.slow_steps(true);
  const JobId id = cluster.submit("job", 400);
  cluster.wait_for_workers(id);
  cluster.act(id, "pause");
  cluster.wait_for(id, "paused");
  cluster.slow_steps(false);
  EXPECT_EQ(cluster.stop(), 0);
  const Runs runs(cluster);
  const std::string mark = run::runs_mark(runs.path());
  EXPECT_EQ(mark.size(), 16u);
  remove_for_good(runs.path());
  fs::create_directory(runs.path());
  cluster.start();
  EXPECT_FALSE(cluster.lives()) << "it began on an empty disk";
  const StoreReport report = check_store(cluster.folder());
  ASSERT_EQ(report.losses.size(), 1u);
  EXPECT_NE(report.losses[0].find("mount the right disk"), std::string::npos) << report.losses[0];
  write_file_atomic(run::runs_mark_file(runs.path()), mark + "\n");
  cluster.start();
  cluster.act(id, "resume");
  cluster.expect_result(id);
  EXPECT_NE(cluster.get("/v1/events?limit=1000").dump().find("It begins anew"), std::string::npos);
}

TEST(Service, WaitsForTheDiskOfItsRunsWhichWasTakenAwayMeanwhile) {
  LiveService cluster;
  cluster.slow_steps(true);
  const JobId running = cluster.submit("running", 400), paused = cluster.submit("paused", 400);
  for (const JobId id : {running, paused}) cluster.wait_for_workers(id);
  cluster.act(paused, "pause");
  const fs::path run = cluster.wait_for(paused, "paused").value("run", "");
  const std::string secret = read_file(run / "secret");
  const Runs runs(cluster);
  runs.unmount();
  const JobId fresh = cluster.submit("fresh", 40);
  cluster.act(paused, "resume");
  const auto says = [&](const Json& job) {
    return job.at("phase") == "queued" &&
           job.value("reason", "").find(runs.path().string()) != std::string::npos &&
           job.value("reason", "").find("mount the disk") != std::string::npos;
  };
  for (const JobId id : {running, paused, fresh}) cluster.wait(id, says);
  cluster.wait_for_no_workers();
  EXPECT_FALSE(fs::exists(runs.path())) << "a job has begun on another disk";
  runs.mount();
  cluster.slow_steps(false);
  for (const JobId id : {running, paused, fresh}) cluster.expect_result(id);
  EXPECT_EQ(read_file(run / "secret"), secret) << "the job has begun anew";
  EXPECT_EQ(cluster.get("/v1/events?limit=1000").dump().find("It begins anew"), std::string::npos);
}

// An empty disk in the place of the right one, another one, or a damaged mark: each has its name.
TEST(Service, WaitsWhereAnotherDiskIsInThePlaceOfThatOfItsRuns) {
  LiveService cluster;
  cluster.slow_steps(true);
  const JobId running = cluster.submit("running", 300), paused = cluster.submit("paused", 100);
  for (const JobId id : {running, paused}) cluster.wait_for_workers(id);
  cluster.act(paused, "pause");
  const fs::path run = cluster.wait_for(paused, "paused").value("run", "");
  const std::string secret = read_file(run / "secret");
  const Runs runs(cluster);
  runs.mount_other();
  const JobId fresh = cluster.submit("fresh", 40);
  cluster.act(paused, "resume");
  for (const auto& [mark, said] :
       {std::pair("", "has no mark"), std::pair("0123456789abcdef\n", "its mark"),
        std::pair("0123", "is damaged")}) {
    SCOPED_TRACE(said);
    if (*mark != '\0') write_file_atomic(run::runs_mark_file(runs.path()), mark);
    for (const JobId id : {running, paused, fresh})
      cluster.wait(id, [&, text = std::string(said)](const Json& job) {
        const std::string why = job.value("why", "");
        return job.at("phase") == "queued" && why.find(text) != std::string::npos &&
               why.find("mount the right disk") != std::string::npos;
      });
  }
  cluster.wait_for_no_workers();
  runs.mount_again();
  cluster.slow_steps(false);
  for (const JobId id : {running, paused, fresh}) cluster.expect_result(id);
  EXPECT_EQ(read_file(run / "secret"), secret) << "the job has begun anew";
  EXPECT_EQ(cluster.get("/v1/events?limit=1000").dump().find("It begins anew"), std::string::npos);
}

// A mark alone that somebody removed does not stand in the way of runs that are all there.
TEST(Service, WritesAMarkAgainThatIsMissingBesideItsRuns) {
  LiveService cluster;
  const JobId command = cluster.submit_command("command", "while [ ! -e go ]; do sleep 0.02; done");
  cluster.expect_result(cluster.submit("first", 40));
  cluster.wait_for(command, "running");
  const fs::path file = run::runs_mark_file(cluster.folder() / "runs");
  const std::string mark = read_file(file);
  fs::remove(file);
  write_file_atomic(cluster.folder() / "go", "");
  cluster.wait_for(command, "finished");
  cluster.expect_result(cluster.submit("second", 40));
  EXPECT_EQ(read_file(file), mark);
  EXPECT_EQ(cluster.stop(), 0);
  fs::remove(file);
  cluster.start();
  cluster.expect_result(cluster.submit("third", 40));
  EXPECT_EQ(read_file(file), mark);
}

// A store of an earlier Ductile has no mark, nor has its folder.
TEST(Service, MarksTheFolderOfTheRunsOfAnEarlierStore) {
  LiveService cluster;
  cluster.expect_result(cluster.submit("first", 40));
  EXPECT_EQ(cluster.stop(), 0);
  const fs::path file = run::runs_mark_file(cluster.folder() / "runs");
  fs::remove(file);
  {
    Store store(cluster.folder() / "store.db");
    CommitQueue(store).commit([](Change& change) { change.forget_memory(kRunsMark); });
  }
  cluster.start();
  cluster.expect_result(cluster.submit("second", 40));
  EXPECT_EQ(run::runs_mark(cluster.folder() / "runs"),
            Reader(cluster.folder() / "store.db").memory(kRunsMark));
}

// Its keeper says how it ended once there is a place to say it.
TEST(Service, ACommandThatEndsWhileTheDiskOfItsRunsIsAwayHasEndedOnce) {
  LiveService cluster;
  const JobId id = cluster.submit_command("command",
                                          "echo once >> count; while [ ! -e go ]; do sleep 0.02; "
                                          "done; echo >> gone; exit 0");
  cluster.wait(id, [&](const Json& job) {
    return fs::exists(cluster.folder() / "count") && job.at("phase") == "running";
  });
  const Runs runs(cluster);
  runs.unmount();
  write_file_atomic(cluster.folder() / "go", "");
  cluster.wait(id, [&](const Json&) { return fs::exists(cluster.folder() / "gone"); });
  std::this_thread::sleep_for(1s);
  EXPECT_EQ(cluster.get("/v1/jobs/" + std::to_string(id)).at("ended"), Json());
  EXPECT_FALSE(fs::exists(runs.path()));
  runs.mount();
  EXPECT_EQ(cluster.wait_for(id, "finished").at("reason"), "It ended with exit code 0.");
  EXPECT_EQ(read_file(cluster.folder() / "count"), "once\n");
}

// Without its keeper it begins again, but not before the disk is there.
TEST(Service, ACommandWhoseKeeperIsLostWithTheDiskOfItsRunsWaitsForThat) {
  LiveService cluster;
  const JobId id = cluster.submit_command(
      "command", "echo once >> count; while [ ! -e go ]; do sleep 0.02; done; exit 0");
  cluster.wait(id, [&](const Json& job) {
    return fs::exists(cluster.folder() / "count") && job.at("phase") == "running";
  });
  const Runs runs(cluster);
  runs.unmount();
  for (const pid_t pid : cluster.workers()) ::kill(pid, SIGKILL);
  cluster.wait(id, [&](const Json& job) {
    return job.at("phase") == "queued" &&
           job.value("reason", "").find(runs.path().string()) != std::string::npos;
  });
  EXPECT_FALSE(fs::exists(runs.path()));
  write_file_atomic(cluster.folder() / "go", "");
  runs.mount();
  EXPECT_EQ(cluster.wait_for(id, "finished").at("reason"), "It ended with exit code 0.");
  EXPECT_EQ(read_file(cluster.folder() / "count"), "once\nonce\n");
}

// Also one that has ended meanwhile, whose keeper waits for the disk.
TEST(Service, ACommandIsCancelledWhileTheDiskOfItsRunsIsAway) {
  for (const bool ended : {false, true}) {
    SCOPED_TRACE(ended);
    LiveService cluster;
    const JobId id = cluster.submit_command("command",
                                            "echo >> begun; while [ ! -e go ]; do sleep 0.02; "
                                            "done; echo >> gone",
                                            {{"grace", 0.1}});
    cluster.wait(id, [&](const Json& job) {
      return fs::exists(cluster.folder() / "begun") && job.at("phase") == "running";
    });
    const Runs runs(cluster);
    runs.unmount();
    if (ended) {
      write_file_atomic(cluster.folder() / "go", "");
      cluster.wait(id, [&](const Json&) { return fs::exists(cluster.folder() / "gone"); });
    }
    cluster.act(id, "cancel");
    cluster.wait_for(id, "cancelled");
    cluster.wait_for_no_workers();
    EXPECT_FALSE(fs::exists(runs.path()));
  }
}

TEST(Service, AWaitingJobWhoseRunDirectoryIsDeletedBeginsAnewAndSaysSo) {
  LiveService cluster;
  cluster.slow_steps(true);
  const JobId id = cluster.submit("job", 400);
  cluster.wait_for_workers(id);
  cluster.act(id, "pause");
  const fs::path run = cluster.wait_for(id, "paused").value("run", "");
  cluster.slow_steps(false);
  remove_for_good(run);
  cluster.act(id, "resume");
  cluster.expect_result(id);
  EXPECT_NE(cluster.get("/v1/events?limit=1000")
                .dump()
                .find("It begins anew, since its run directory " + run.string() + " is not there"),
            std::string::npos);
}

}  // namespace
}  // namespace ductile::cluster
