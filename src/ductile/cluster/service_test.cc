// The service with real processes: torch-free workers that speak the real protocol.
#include "ductile/cluster/service.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/clock.h"
#include "ductile/base/descriptor.h"
#include "ductile/base/json.h"
#include "ductile/cluster/commit_queue.h"
#include "ductile/cluster/database.h"
#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/store.h"
#include "ductile/cluster/testing/live_service.h"
#include "ductile/link/testing/test_model.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/lock.h"
#include "ductile/sched/policy.h"

namespace ductile::cluster {
namespace {

using namespace testing;

TEST(Service, JobsRunToTheirEndsWithTheRightResults) {
  LiveService cluster;
  std::vector<JobId> jobs;
  for (int i = 0; i < 5; ++i) jobs.push_back(cluster.submit("job" + std::to_string(i), 100 + i, 3));
  for (const JobId id : jobs) cluster.expect_result(id);
  const Json list = cluster.get("/v1/jobs");
  for (const Json& job : list.at("jobs")) {
    EXPECT_FALSE(job.at("started").is_null());
    EXPECT_FALSE(job.at("ended").is_null());
  }
  EXPECT_EQ(cluster.stop(), 0);
  EXPECT_TRUE(cluster.workers().empty());
  EXPECT_TRUE(Reader(cluster.folder() / "store.db").check().empty());
}

TEST(Service, AJobGrowsIntoWhatIsFreeAndMakesRoomForOthers) {
  LiveService cluster(2);
  cluster.slow_steps(true);  // a short one would not be worth a change
  const JobId first = cluster.submit("first", 1000000, 2);
  cluster.wait(first, [](const Json& job) { return job.at("holdings").value("here", 0) == 2; });
  const JobId second = cluster.submit("second", 400, 2);
  cluster.wait_for(second, "running");
  cluster.wait(first, [](const Json& job) {
    return job.at("holdings").value("here", 0) == 1 || job.at("phase") != "running";
  });
  cluster.slow_steps(false);
  cluster.act(first, "cancel");
  cluster.expect_result(second);
}

TEST(Service, WhatAStartCostIsLearnt) {
  LiveService cluster;
  cluster.expect_result(cluster.submit("one", 1000, 1));
  EXPECT_EQ(cluster.stop(), 0);
  const std::string learnt = Reader(cluster.folder() / "store.db").memory("scheduler");
  const double pause = parse_json(learnt, "learnt", ErrorCode::data_loss).at("pause").get<double>();
  EXPECT_NE(pause, Scheduler::kFirstPause);
}

TEST(Service, AJobIsPausedResumedAndCancelled) {
  LiveService cluster;
  cluster.slow_steps(true);
  const JobId id = cluster.submit("job", 300);
  const JobId other = cluster.submit("other", 100000);
  const std::string path = "/v1/jobs/" + std::to_string(id);
  cluster.wait_for(id, "running");
  cluster.send("POST", path + "/pause");
  cluster.wait_for(id, "paused");
  EXPECT_EQ(cluster.get(path).at("reason"), "Its user paused it.");
  cluster.slow_steps(false);
  cluster.send("POST", path + "/resume");
  cluster.expect_result(id);
  cluster.wait_for(other, "running");
  cluster.send("POST", "/v1/jobs/" + std::to_string(other) + "/cancel");
  cluster.wait_for(other, "cancelled");
  cluster.wait_for_no_workers();
}

TEST(Service, WhatCannotRunIsRefusedWhenItIsSubmitted) {
  LiveService cluster;
  const auto refused = [&](const Json& body) {
    const Json answer = cluster.send("POST", "/v1/jobs", dump_json(body));
    EXPECT_EQ(answer.value("status", 0), 400) << answer;
    return answer.at("body").value("error", "");
  };
  const std::string job = "[train]\nvirtual_ranks = 2\n";
  EXPECT_NE(refused({{"spec", {{"job", "[train]\nepoch = 3\n"}}}}).find("epochs"),
            std::string::npos);
  EXPECT_NE(refused({{"spec", {{"job", job}}}, {"max_devices", 3}}).find("virtual_ranks"),
            std::string::npos);
  EXPECT_NE(
      refused({{"spec", {{"job", job}}}, {"min_devices", 4}, {"max_devices", 4}}).find("has 3"),
      std::string::npos);
  EXPECT_NE(refused({{"spec", {{"job", job}}}, {"tier", "premum"}}).find("premium"),
            std::string::npos);
  refused({{"spec", {{"jbo", job}}}});
  // Names by which nobody could ask for the job.
  for (const char* name : {"12", "", "a/b"})
    EXPECT_NE(refused({{"spec", {{"job", job}}}, {"name", name}}).find("name"), std::string::npos);
  EXPECT_TRUE(cluster.get("/v1/jobs").at("jobs").empty());
}

// A library and a Python program are loaded by the workers, which run as the user of the service.
TEST(Service, OthersMaySubmitJobsButBringNoCode) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  LiveService cluster;
  const auto status_for_stranger = [&](const std::string& job) {
    return cluster.submit_as_stranger(Json{{"spec", {{"job", job}}}});
  };
  EXPECT_EQ(status_for_stranger("[train]\nmax_steps = 10\nbatch_size = 64\n"), 201);
  EXPECT_EQ(status_for_stranger("[model]\nname = \"custom\"\nlibrary = \"/tmp/mine.so\"\n"), 403);
  EXPECT_EQ(
      status_for_stranger("[model]\nname = \"python\"\n[data]\nformat = \"python\"\n[python]\n"
                          "object = \"/tmp/mine.py:Job\"\n"),
      403);
}

TEST(Service, AStopSavesAndTheNextServiceGoesOn) {
  LiveService cluster;
  cluster.slow_steps(true);
  const JobId running = cluster.submit("running", 300, 2);
  cluster.wait_for(running, "running");
  EXPECT_EQ(cluster.stop(), 0);
  EXPECT_TRUE(cluster.workers().empty());
  cluster.slow_steps(false);
  EXPECT_EQ(Reader(cluster.folder() / "store.db").job(running).phase, Phase::queued);
  cluster.start();
  cluster.expect_result(running);
}

// Killed again and again, at any instant: no job is lost or run twice, and all bits are right.
TEST(Service, AKilledServiceIsFollowedByOneThatGoesOn) {
  LiveService cluster;
  cluster.slow_steps(true);
  std::vector<JobId> jobs;
  for (int i = 0; i < 6; ++i) {
    jobs.push_back(cluster.submit("job" + std::to_string(i), 300 + 30 * i, 1 + i % 3));
    std::this_thread::sleep_for(std::chrono::milliseconds(50 * i));
    cluster.kill_service();
    cluster.start();
  }
  cluster.slow_steps(false);
  EXPECT_EQ(std::set<JobId>(jobs.begin(), jobs.end()).size(), jobs.size());
  for (const JobId id : jobs) cluster.expect_result(id);
  EXPECT_EQ(cluster.stop(), 0);
  EXPECT_TRUE(cluster.workers().empty());
  Reader reader(cluster.folder() / "store.db");
  EXPECT_TRUE(reader.check().empty()) << ::testing::PrintToString(reader.check());
  int64_t folders = 0;
  for (const auto& entry : fs::directory_iterator(cluster.folder() / "runs"))
    if (entry.is_directory()) ++folders;
  EXPECT_EQ(folders, static_cast<int64_t>(jobs.size())) << "one run directory for each job";
}

// Its jobs go on for many leases, here scaled down. Who takes over finds them at work.
TEST(Service, JobsGoOnWhileTheServiceIsAwayForLong) {
  ::setenv("DUCTILE_TEST_LEASE_MS", "2000", 1);
  LiveService cluster;
  cluster.slow_steps(true);
  const JobId pair = cluster.submit("pair", 400, 2, 2), one = cluster.submit("one", 400);
  for (const JobId id : {pair, one}) {
    cluster.wait_for_workers(id);
    // A checkpoint says that all of its workers have found their meeting place, and compute.
    cluster.wait(id, [](const Json& job) {
      std::error_code error;
      for (const auto& file : fs::directory_iterator(
               fs::path(job.value("run", "")) / "checkpoints" / "manifests", error)) {
        if (file.path().extension() == ".json") return true;
      }
      return false;
    });
  }
  const std::set<pid_t> workers = cluster.workers();
  cluster.kill_service();
  std::this_thread::sleep_for(6s);
  EXPECT_EQ(cluster.workers(), workers);
  cluster.start();
  cluster.slow_steps(false);
  for (const JobId id : {pair, one}) {
    cluster.expect_result(id);
    // Nobody stopped, nor did any step anew.
    const fs::path run = cluster.get("/v1/jobs/" + std::to_string(id)).value("run", "");
    const std::string events = read_file(run / "events.jsonl");
    EXPECT_EQ(events.find("\"generation\":2"), std::string::npos) << events;
  }
  ::unsetenv("DUCTILE_TEST_LEASE_MS");
}

// One that is stopped answers nobody, and may go on at any time.
TEST(Service, JobsGoOnWhileTheServiceIsStopped) {
  ::setenv("DUCTILE_TEST_LEASE_MS", "2000", 1);
  LiveService cluster;
  cluster.slow_steps(true);
  const JobId id = cluster.submit("one", 400);
  cluster.wait_for_workers(id);
  const fs::path run = cluster.get("/v1/jobs/" + std::to_string(id)).value("run", "");
  cluster.wait(id, [&](const Json&) {
    return read_file(run / "events.jsonl").find("\"generation\"") != std::string::npos;
  });
  ::kill(cluster.process(), SIGSTOP);
  std::this_thread::sleep_for(6s);
  ::kill(cluster.process(), SIGCONT);
  cluster.slow_steps(false);
  cluster.expect_result(id);
  const std::string events = read_file(run / "events.jsonl");
  EXPECT_EQ(events.find("lost touch"), std::string::npos) << events;
  EXPECT_EQ(events.find("\"lost\""), std::string::npos) << events;
  ::unsetenv("DUCTILE_TEST_LEASE_MS");
}

// The test's workers tell nothing of their gradients, so the test does it for them.
TEST(Service, BatchesAreOrderedAlsoByTheNextService) {
  LiveService cluster(1);
  const auto submit = [&](const std::string& name, const std::string& control) {
    const Json answer = cluster.send(
        "POST", "/v1/jobs",
        dump_json(Json{{"name", name},
                       {"spec",
                        {{"job",
                          "[train]\nmax_steps = 1000000\nvirtual_ranks = 4\nbatch_size = 64\n"
                          "rate_control = \"" +
                              control + "\"\n"}}}}));
    EXPECT_EQ(answer.value("status", 0), 201) << answer;
    return answer.at("body").value("id", JobId{0});
  };
  const JobId id = submit("free", "goodput");
  cluster.wait_for_workers(id);
  const fs::path run = cluster.get("/v1/jobs/" + std::to_string(id)).value("run", "");
  int64_t step = 0;
  const auto say = [&](int64_t batch, double noise_scale) {
    run::JsonLines(run / "metrics.jsonl")
        .append({{"step", ++step}, {"batch_size", batch}, {"noise_scale", noise_scale}});
  };
  const auto ordered = [&] {
    const Json order = parse_json(fs::exists(run / "batch.json") ? read_file(run / "batch.json")
                                                                 : std::string("{}"));
    return order.value("batch", int64_t{0});
  };
  say(64, 1e6);
  cluster.wait(id, [&](const Json&) { return ordered() > 64; });
  const int64_t large = ordered();
  EXPECT_LE(large, 512) << "eight times the job's own";
  EXPECT_EQ(large % 4, 0);
  // The order reaches the job before its event reaches the store.
  cluster.wait(id, [&](const Json&) {
    return dump_json(cluster.get("/v1/events?limit=1000")).find("\"batch\"") != std::string::npos;
  });
  cluster.kill_service();
  say(large, 1e-3);
  cluster.start();
  // Readings that contradict each other are averaged.
  cluster.wait(id, [&](const Json&) {
    say(large, 1e-3);
    return ordered() < large;
  });
  cluster.act(id, "cancel");
  cluster.wait_for(id, "cancelled");
  const JobId own = submit("own", "schedule");
  cluster.wait_for_workers(own);
  const fs::path other = cluster.get("/v1/jobs/" + std::to_string(own)).value("run", "");
  run::JsonLines(other / "metrics.jsonl").append({{"batch_size", 64}, {"noise_scale", 1e6}});
  std::this_thread::sleep_for(2s);
  EXPECT_FALSE(fs::exists(other / "batch.json"));
  cluster.act(own, "cancel");
  cluster.wait_for(own, "cancelled");
}

// What was asked for, and not yet done, when the service was killed.
TEST(Service, AWishIsFollowedByTheNextService) {
  LiveService cluster;
  const JobId paused = cluster.submit("paused", 100000);
  const JobId cancelled = cluster.submit("cancelled", 100000);
  for (const JobId id : {paused, cancelled}) cluster.wait_for(id, "running");
  cluster.kill_service();
  {
    Store store(cluster.folder() / "store.db");
    CommitQueue(store).commit([&](Change& change) {
      change.set_wish(paused, Wish::pause, "user", 1);
      change.set_wish(cancelled, Wish::cancel, "user", 1);
    });
  }
  cluster.start();
  cluster.wait_for(paused, "paused");
  cluster.wait_for(cancelled, "cancelled");
  cluster.wait_for_no_workers();
}

// It is started again with fewer devices than the jobs held, or than one of them needs.
TEST(Service, FewerDevicesThanBefore) {
  LiveService cluster(4);
  cluster.slow_steps(true);
  const JobId pair = cluster.submit("pair", 400, 2, 2);
  const JobId other = cluster.submit("other", 400, 2, 1);
  cluster.wait_for(pair, "running");
  cluster.wait_for(other, "running");
  cluster.kill_service();
  cluster.start(1);
  cluster.wait_for(pair, "queued");
  cluster.slow_steps(false);
  cluster.expect_result(other);
  cluster.wait(pair, [](const Json& job) {
    return job.value("reason", "").find("needs 2 devices") != std::string::npos;
  });
  EXPECT_TRUE(cluster.lives());
  EXPECT_EQ(cluster.stop(), 0);
  cluster.start(2);
  cluster.expect_result(pair);
}

TEST(Service, ADrainCountsForItsNodeAndOutlivesTheService) {
  LiveService cluster(1);
  EXPECT_EQ(cluster.send("POST", "/v1/nodes/elsewhere/drain", "{}").value("status", 0), 404);
  cluster.send("POST", "/v1/nodes/here/drain", "{}");
  cluster.kill_service();
  cluster.start();
  const JobId waits = cluster.submit("waits", 20);
  const Json job = cluster.wait(
      waits, [](const Json& job) { return job.at("reason") != "It was just submitted."; });
  EXPECT_EQ(job.at("phase"), "queued") << job;
  cluster.send("POST", "/v1/nodes/here/undrain");
  cluster.expect_result(waits);
}

// Somebody else trains in its run directory: it waits for them, and nobody waits for it.
TEST(Service, AJobThatCannotStartIsInNobodysWay) {
  LiveService cluster(1, "fifo");
  cluster.slow_steps(true);
  const JobId locked = cluster.submit("locked", 200);
  cluster.wait_for(locked, "running");
  cluster.act(locked, "pause");
  const std::string run = cluster.wait_for(locked, "paused").at("run");
  cluster.slow_steps(false);
  std::optional<run::RunLock> lock(std::in_place, run, run::RunLock::kLocal);
  cluster.act(locked, "resume");
  cluster.wait(locked, [](const Json& job) {
    return job.value("reason", "").find("trains in this run") != std::string::npos;
  });
  for (int i = 0; i < 3; ++i) cluster.expect_result(cluster.submit("next" + std::to_string(i), 20));
  EXPECT_EQ(cluster.get("/v1/jobs/" + std::to_string(locked)).at("phase"), "queued");
  lock.reset();
  cluster.expect_result(locked);
}

// A folder of runs that is none, and a cancel that comes while it is tried.
TEST(Service, AJobIsCancelledWhileItsStartFails) {
  LiveService cluster;
  fs::remove_all(cluster.folder() / "runs");
  write_file_atomic(cluster.folder() / "runs", "a file");
  std::vector<JobId> jobs;
  for (int i = 0; i < 40; ++i) {
    jobs.push_back(cluster.submit("job" + std::to_string(i), 20));
    cluster.act(jobs.back(), "cancel");
    ASSERT_TRUE(cluster.lives());
  }
  for (const JobId id : jobs)
    cluster.wait(id, [](const Json& job) { return !job.at("ended").is_null(); });
  EXPECT_TRUE(cluster.lives());
}

// The service was killed after it made the folder, before it wrote the job into it.
TEST(Service, ARunDirectoryThatIsHalfMadeIsMadeAnew) {
  LiveService cluster(1);
  const JobId first = cluster.submit("first", 100000);
  const JobId second = cluster.submit("second", 40);
  cluster.wait_for(first, "running");
  cluster.kill_service();
  const fs::path run = cluster.folder() / "runs" / "2-second";
  fs::create_directories(run / "checkpoints");
  write_file_atomic(run / "job.toml.tmp4711", "[train]");  // before it got its name
  {
    Store store(cluster.folder() / "store.db");
    CommitQueue(store).commit([&](Change& change) {
      change.set_run(second, run.string(), 1);
      change.set_phase(second, Phase::running, "begin", 1);
      change.set_holdings(second, {{"here", 1}}, "begin", 1);
    });
  }
  cluster.start(2);
  cluster.act(first, "cancel");
  cluster.expect_result(second);
}

// A policy that decides once an hour: on an idle machine that is no reason to wait.
TEST(Service, AnIdleMachineStartsAJobAtOnceUnderEachPolicy) {
  for (const std::string& policy : sched::policy_names()) {
    LiveService cluster([&](ServiceOptions& options) {
      options.devices = 2;
      options.policy = policy;
      options.interval = 3600;
    });
    cluster.expect_result(cluster.submit("first", 20));
    cluster.expect_result(cluster.submit("second", 20));
  }
}

// Somebody else wrote into its store: it does not act upon what it could not write.
TEST(Service, AStoreThatContradictsItIsTheEndOfTheServiceAndOfNoJob) {
  LiveService cluster(2);
  const JobId runs = cluster.submit("runs", 100000);
  const JobId ends = cluster.submit("ends", 100000);
  for (const JobId id : {runs, ends}) cluster.wait_for(id, "running");
  {
    Database database(cluster.folder() / "store.db", Database::Access::write);
    Transaction transaction(database);
    Change(database).set_phase(ends, Phase::failed, "somebody else says so", 1);
    transaction.commit();
  }
  EXPECT_EQ(WEXITSTATUS(cluster.stop()), 7);
  EXPECT_TRUE(cluster.workers().empty());
  cluster.start();
  cluster.wait_for(runs, "running");
  cluster.act(runs, "cancel");
  cluster.wait_for(runs, "cancelled");
}

// One that ends changes what all others wait for.
TEST(Service, ThousandWaitingJobsKeepNobodyFromTheDisk) {
  constexpr JobId kJobs = 1000, kEnded = 5;
  LiveService cluster([](ServiceOptions& options) { options.interval = 2; });
  EXPECT_EQ(cluster.stop(), 0);
  {
    Database database(cluster.folder() / "store.db", Database::Access::write);
    Transaction transaction(database);
    Change change(database);
    Submission job;
    job.team = "all";
    const std::string spec =
        dump_json(Json{{"job", "[train]\nmax_steps = 20\nvirtual_ranks = 4\nbatch_size = 64\n"}});
    for (JobId id = 1; id <= kJobs; ++id) {
      job.name = "job" + std::to_string(id);
      change.submit(job, spec, wall_seconds());
    }
    transaction.commit();
  }
  cluster.start();
  Reader reader(cluster.folder() / "store.db");
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const auto wait_until = [&](const std::function<bool()>& holds) {
    while (!holds() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(5ms);
    EXPECT_TRUE(holds());
  };
  const auto ended = [&] { return reader.count_by_phase()[Phase::finished]; };
  const auto commits = [&] {
    const std::string figures = cluster.text("/metrics"), name = "\nductile_commits_total ";
    return std::stod(figures.substr(figures.find(name) + name.size()));
  };
  wait_until([&] {
    return ended() > 0 && std::ranges::none_of(reader.live_jobs(), [](const JobRecord& job) {
             return job.reason == "It was just submitted.";
           });
  });
  const double before = commits();
  const int64_t first = ended();
  wait_until([&] { return ended() >= first + kEnded; });
  EXPECT_LT(commits() - before, 200);
  // Whoever looks is told what holds now, which the store does not say yet.
  const Json last = cluster.get("/v1/jobs?phase=queued&limit=1").at("jobs").at(0);
  EXPECT_NE(last.value("reason", ""), reader.job(last.value("id", JobId{0})).reason) << last;
}

TEST(Service, AClockThatIsSetForwardRemovesNoHistory) {
  LiveService cluster(1);
  const JobId old = cluster.submit("old", 20);
  cluster.expect_result(old);
  EXPECT_EQ(cluster.stop(), 0);
  // As if all of this had been a hundred days ago.
  Database(cluster.folder() / "store.db", Database::Access::write)
      .execute(
          "UPDATE jobs SET submitted = submitted - 8640000, started = started - 8640000, ended = "
          "ended - 8640000; UPDATE events SET time = time - 8640000; DELETE FROM memory WHERE name "
          "= 'clock'");
  for (const char* name : {"one", "two"}) {  // the second service finds events of the first one
    cluster.start();
    cluster.expect_result(cluster.submit(name, 20));  // what was to be removed at the start is now
    EXPECT_EQ(cluster.get("/v1/jobs/" + std::to_string(old)).value("phase", ""), "finished");
    EXPECT_EQ(cluster.stop(), 0);
  }
}

TEST(Service, SaysWhenWhatIsTooOldCannotBeRemoved) {
  const TempFolder folder;
  const fs::path log = folder.path() / "log";
  LiveService cluster(
      [](ServiceOptions& options) {
        options.retention = {1e-3, 0};
      },
      [&] { ASSERT_NE(std::freopen(log.c_str(), "a", stderr), nullptr); });
  EXPECT_EQ(cluster.stop(), 0);
  Database(cluster.folder() / "store.db", Database::Access::write)
      .execute(
          "CREATE TRIGGER keep BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'it is held'); "
          "END");
  cluster.start();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (read_file(log).find("it is held") == std::string::npos)
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
  EXPECT_NE(read_file(log).find("what is too old could not be removed"), std::string::npos);
  cluster.expect_result(cluster.submit("job", 100));
}

// It was to grow, and is to shrink before those that were to join it have begun.
TEST(Service, DevicesThatWereNeverTakenUpAreFree) {
  TempFolder folder;
  const fs::path hold = folder.path() / "hold", script = folder.path() / "worker";
  write_file_atomic(hold, "");
  write_file_atomic(script,
                    "#!/bin/sh\ncase \"$*\" in *1-grows*--worker\\ 1\\ *) ;; *1-grows*)\n"
                    "while [ -e " +
                        hold.string() +
                        " ]; do sleep 0.05; done;; esac\n"
                        "exec " DUCTILE_TEST_WORKER " \"$@\"\n");
  fs::permissions(script, fs::perms::owner_all);
  LiveService cluster(3, "ductile", script);
  const JobId grows = cluster.submit("grows", 100000, 3);
  cluster.wait(grows, [](const Json& job) { return job.at("holdings").value("here", 0) == 3; });
  const JobId other = cluster.submit("other", 100000, 1);
  cluster.wait_for(other, "running");
  const JobId third = cluster.submit("third", 40, 1);
  cluster.expect_result(third);
  EXPECT_EQ(cluster.get("/v1/jobs/" + std::to_string(grows)).at("phase"), "running");
  for (const JobId id : {grows, other}) cluster.act(id, "cancel");
  for (const JobId id : {grows, other}) cluster.wait_for(id, "cancelled");
}

// The service's user would read them for somebody else, whose results say what was there.
TEST(Service, JobsOfOthersNameDataInFoldersThatAreOpenedAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  const TempFolder data, secrets;
  write_file_atomic(secrets.path() / "secret", "secret");
  write_file_atomic(data.path() / "file", "open");
  fs::create_symlink(secrets.path() / "secret", data.path() / "link");
  LiveService service([&](ServiceOptions& options) { options.data = {data.path()}; });
  const auto status = [&](const char* option, const fs::path& path) {
    const std::string toml =
        std::string("[data]\nformat = \"tokens\"\n") +
        (std::string(option) == "path" ? ""
                                       : "path = \"" + (data.path() / "file").string() + "\"\n") +
        option + " = \"" + path.string() + "\"\n[model]\nname = \"gpt\"\n";
    return service.submit_as_stranger(
        {{"name", "reads"}, {"kind", "train"}, {"spec", {{"job", toml}}}});
  };
  for (const char* option : {"path", "test_path"}) {
    EXPECT_EQ(status(option, data.path() / "file"), 201) << option;
    for (const fs::path& path : {secrets.path() / "secret", data.path() / "link",
                                 data.path() / ".." / secrets.path().filename() / "secret",
                                 secrets.path() / "none", fs::path("/")})
      EXPECT_EQ(status(option, path), 403) << option << " = " << path;
  }
}

}  // namespace
}  // namespace ductile::cluster
