// Jobs that are any program, with real services, keepers and processes.
#include <algorithm>
#include <sstream>

#include <fcntl.h>
#include <sys/stat.h>

#include "ductile/cluster/command_impl.h"
#include "ductile/cluster/store.h"
#include "ductile/cluster/testing/commands.h"
#include "ductile/cluster/testing/live_service.h"
#include "ductile/link/worker_processes.h"
#include "ductile/process/spawn.h"
#include "ductile/sched/policy.h"

namespace ductile::cluster {
namespace {

using namespace testing;

TEST(CommandJob, RunsWithWhatItWasPromised) {
  LiveService cluster;
  fs::create_directory(cluster.folder() / "work");
  const JobId id = cluster.submit_command("tool", "echo said; echo complained >&2; pwd; env",
                                          {{"directory", (cluster.folder() / "work").string()},
                                           {"environment", {{"COLOUR", "red = 1"}}}},
                                          2);
  const Json job = cluster.wait_for(id, "finished");
  EXPECT_EQ(job.at("reason"), "It ended with exit code 0.");
  const fs::path run = job.value("run", "");
  const std::string log = "\n" + read_file(run / "worker.log");
  for (const std::string& line :
       {std::string("said"), std::string("complained"), (cluster.folder() / "work").string(),
        std::string("COLOUR=red = 1"), std::string("DUCTILE_DEVICES=2"),
        std::string("OMP_NUM_THREADS=2"), std::string("DUCTILE_RESTART=0"),
        "DUCTILE_JOB=" + std::to_string(id), std::string("DUCTILE_JOB_NAME=tool"),
        "DUCTILE_RUN_DIR=" + run.string(),
        "DUCTILE_CHECKPOINT_DIR=" + (run / "checkpoints").string()})
    EXPECT_NE(log.find("\n" + line + "\n"), std::string::npos) << line << " in" << log;
  EXPECT_TRUE(fs::is_directory(run / "checkpoints"));
  cluster.wait_for_no_workers();
}

TEST(CommandJob, ItsReasonSaysHowItEnded) {
  LiveService cluster;
  const auto reason = [&](const std::string& script, const Json& more = {}) {
    const JobId id = cluster.submit_command("job", script, more);
    const Json job = cluster.wait(id, [](const Json& j) { return !j.at("ended").is_null(); });
    EXPECT_EQ(job.at("phase"), "failed") << job;
    return job.value("reason", "");
  };
  EXPECT_NE(reason("exit 3").find("exit code 3"), std::string::npos);
  EXPECT_NE(reason("kill -SEGV $$").find("signal 11 (Segmentation fault)"), std::string::npos);
  EXPECT_NE(reason("kill -KILL $$").find("memory is short"), std::string::npos);
  EXPECT_NE(reason("true", {{"command", {"no-such-program"}}}).find("no-such-program"),
            std::string::npos);
  EXPECT_NE(reason("true", {{"directory", "/no/such/folder"}}).find("/no/such/folder"),
            std::string::npos);
  EXPECT_NE(reason("sleep 1000", {{"time_limit", 0.2}, {"retries", 3}}).find("time limit"),
            std::string::npos);
  EXPECT_EQ(cluster.stop(), 0);
}

TEST(CommandJob, IsTriedAgainAsOftenAsItsUserSaid) {
  LiveService cluster;
  const JobId id = cluster.submit_command("job", alone("exit 7"), {{"retries", 1}});
  const Json job = cluster.wait_for(id, "failed");
  EXPECT_NE(job.value("reason", "").find("exit code 7, after a retry"), std::string::npos) << job;
  EXPECT_EQ(text_of(cluster.folder() / "starts"), "0\n1\n");
  const JobId second =
      cluster.submit_command("second", "[ $DUCTILE_RESTART = 1 ]", {{"retries", 5}});
  cluster.wait_for(second, "finished");
}

// SIGTERM, time to save, and a start anew; what is deaf is killed, and all that it has started.
TEST(CommandJob, IsPausedAndResumed) {
  LiveService cluster;
  const JobId saves =
      cluster.submit_command("saves",
                             "trap 'echo saved >> $DUCTILE_CHECKPOINT_DIR/state; exit 0' TERM\n"
                             "[ -e $DUCTILE_CHECKPOINT_DIR/state ] && exit 0\n"
                             "echo started; while :; do sleep 0.05; done");
  const JobId deaf = cluster.submit_command(
      "deaf", alone("setsid sh -c 'echo >> detached; sleep 1000' & trap '' TERM; sleep 1000"),
      {{"grace", 0.1}});
  const Json job = cluster.wait_for(saves, "running");
  wait_for_lines(fs::path(job.value("run", "")) / "worker.log", 1);
  wait_for_lines(cluster.folder() / "detached", 1);
  for (const JobId id : {saves, deaf}) cluster.act(id, "pause");
  for (const JobId id : {saves, deaf}) cluster.wait_for(id, "paused");
  EXPECT_TRUE(cluster.workers().empty());
  EXPECT_EQ(text_of(fs::path(job.value("run", "")) / "checkpoints" / "state"), "saved\n");
  for (const JobId id : {saves, deaf}) cluster.act(id, "resume");
  cluster.wait_for(saves, "finished");
  wait_for_lines(cluster.folder() / "starts", 2);
  cluster.act(deaf, "cancel");
  cluster.wait_for(deaf, "cancelled");
  EXPECT_TRUE(cluster.workers().empty());
  EXPECT_EQ(text_of(cluster.folder() / "twice"), "");
}

// Of the default policy. Nobody knows how long they take, and what stops begins anew.
TEST(CommandJob, EqualOnesStartInTheirOrderAndStopNoneThatRuns) {
  LiveService cluster(1);
  std::vector<JobId> jobs;
  jobs.push_back(cluster.submit_command(
      "first", "echo first >> order; while [ ! -e go ]; do sleep 0.05; done"));
  cluster.wait_for(jobs.front(), "running");
  std::string expected = "first\n";
  for (int i = 0; i < 6; ++i) {
    const std::string name = "next" + std::to_string(i);
    jobs.push_back(cluster.submit_command(name, "echo " + name + " >> order"));
    expected += name + "\n";
  }
  cluster.wait(jobs.back(), [](const Json& job) {  // a round has seen all of them
    return job.at("why").get<std::string>().find("5 other waiting jobs come before it") !=
           std::string::npos;
  });
  write_file_atomic(cluster.folder() / "go", "");
  for (const JobId id : jobs) cluster.wait_for(id, "finished");
  EXPECT_EQ(read_file(cluster.folder() / "order"), expected);
}

TEST(CommandJob, WhatItLeavesBehindEndsWithIt) {
  LiveService cluster;
  const JobId id = cluster.submit_command(
      "job", "(setsid sh -c 'sleep 1000 & setsid sleep 1000 & sleep 1000' &) ; sleep 0.2; exit 0");
  cluster.wait_for(id, "finished");
  EXPECT_TRUE(cluster.workers().empty());
}

// A chain of processes, each of which begets the next one and ends, faster than all can be looked
// at. It ends by itself at last, so that one that gets away does not take all process numbers.
TEST(CommandJob, WhatRunsAwayIsCaught) {
  LiveService cluster;
  const JobId id = cluster.submit_command(
      "job", "perl -e 'for (1 .. 20000) { exit if fork }' & sleep 0.3; exit 0");
  cluster.wait_for(id, "finished");
  EXPECT_TRUE(cluster.workers().empty());
}

TEST(CommandJob, GoesOnWithoutAServiceAndIsFoundAgain) {
  LiveService cluster;
  const fs::path go = cluster.folder() / "go";
  const JobId id =
      cluster.submit_command("job", alone("while [ ! -e go ]; do sleep 0.02; done; exit 0"));
  const JobId other = cluster.submit_command("other", "exec sleep 1000", {{"grace", 0.1}});
  wait_for_lines(cluster.folder() / "starts", 1);
  cluster.wait_for(other, "running");
  for (int i = 0; i < 5; ++i) {
    cluster.kill_service();
    cluster.start();
    std::this_thread::sleep_for(std::chrono::milliseconds(40 * i));
  }
  EXPECT_EQ(cluster.get("/v1/jobs/" + std::to_string(id)).at("phase"), "running");
  cluster.act(other, "cancel");  // of a keeper that is not this service's child
  cluster.wait_for(other, "cancelled");
  cluster.kill_service();
  write_file_atomic(go, "");
  cluster.wait_for_no_workers();  // it ends while no service is there
  cluster.start();
  EXPECT_EQ(cluster.wait_for(id, "finished").at("reason"), "It ended with exit code 0.");
  EXPECT_EQ(text_of(cluster.folder() / "starts"), "0\n");
  EXPECT_EQ(text_of(cluster.folder() / "twice"), "");
}

// At any instant of a start, again and again.
TEST(CommandJob, AKilledServiceNeverRunsItTwice) {
  LiveService cluster(2);
  run_once_though_the_service_is_killed(cluster, 12, 3ms);
}

// Nothing of the first attempt is left when the next one begins.
TEST(CommandJob, AKilledKeeperIsFollowedByAnotherAttempt) {
  LiveService cluster;
  const JobId id = cluster.submit_command(
      "job", alone("[ $DUCTILE_RESTART = 2 ] && exit 0\n"
                   "setsid sh -c 'echo >> detached; sleep 1000' & sleep 1000"));
  for (int i = 1; i <= 2; ++i) {
    wait_for_lines(cluster.folder() / "detached", i);
    const pid_t keeper = keeper_of(cluster);
    ASSERT_GT(keeper, 0);
    if (i == 2) cluster.kill_service();  // both at once
    ::kill(keeper, SIGKILL);
    if (i == 2) cluster.start();
  }
  cluster.wait_for(id, "finished");
  EXPECT_EQ(text_of(cluster.folder() / "starts"), "0\n1\n2\n");
  EXPECT_EQ(text_of(cluster.folder() / "twice"), "");
  cluster.wait_for_no_workers();
}

// The one that was to clear away ended before it did, or was never started.
TEST(CommandJob, AKeeperThatDidNotClearAwayIsFollowedByOneThatDoes) {
  LiveService cluster;
  const JobId id = cluster.submit_command(
      "job", alone("[ $DUCTILE_RESTART = 1 ] && exit 0\n"
                   "setsid sh -c 'echo >> detached; sleep 1000' & sleep 1000"));
  wait_for_lines(cluster.folder() / "detached", 1);
  const fs::path run = cluster.wait_for(id, "running").value("run", "");
  const pid_t keeper = keeper_of(cluster);
  ASSERT_GT(keeper, 0);
  cluster.kill_service();
  ::kill(keeper, SIGKILL);
  KeeperOrders orders = *read_orders(run);
  orders.attempt = 0;
  ++orders.keeper;
  write_orders(run, orders);
  cluster.start();
  cluster.wait_for(id, "finished");
  EXPECT_EQ(text_of(cluster.folder() / "starts"), "0\n1\n");
  EXPECT_EQ(text_of(cluster.folder() / "twice"), "");
  cluster.wait_for_no_workers();
}

TEST(CommandJob, AStoppedKeeperIsWokenUpToEndIt) {
  LiveService cluster;
  const JobId id = cluster.submit_command("job", "echo >> begun; sleep 1000");
  wait_for_lines(cluster.folder() / "begun", 1);
  const pid_t keeper = keeper_of(cluster);
  ASSERT_GT(keeper, 0);
  ::kill(keeper, SIGSTOP);
  cluster.act(id, "cancel");
  cluster.wait_for(id, "cancelled");
  cluster.wait_for_no_workers();
}

// By itself, before its keeper has heard that it is to end it: it is not run a second time.
TEST(CommandJob, OneThatHasEndedIsDoneWhateverWasAskedMeanwhile) {
  LiveService cluster;
  const JobId id = cluster.submit_command(
      "job", alone("echo $$ >> begun; while [ ! -e go ]; do sleep 0.01; done"));
  wait_for_lines(cluster.folder() / "begun", 1);
  const int command = std::stoi(text_of(cluster.folder() / "begun"));
  const pid_t keeper = keeper_of(cluster);
  ASSERT_GT(keeper, 0);
  ::kill(keeper, SIGSTOP);
  write_file_atomic(cluster.folder() / "go", "");
  EXPECT_TRUE(ends_unreaped(command));
  cluster.act(id, "pause");
  cluster.wait_for(id, "finished");
  EXPECT_EQ(text_of(cluster.folder() / "starts"), "0\n");
}

// As when the machine shuts down: nobody has asked the service for it, and the work is not done.
TEST(CommandJob, OneThatIsToldToEndWithItsKeeperStartsAgain) {
  LiveService cluster;
  const JobId id = cluster.submit_command("job", alone("[ $DUCTILE_RESTART = 1 ] && exit 0\n"
                                                       "trap 'exit 0' TERM; echo $$ >> begun\n"
                                                       "while :; do sleep 0.01; done"));
  wait_for_lines(cluster.folder() / "begun", 1);
  const int command = std::stoi(text_of(cluster.folder() / "begun"));
  const pid_t keeper = keeper_of(cluster);
  ASSERT_GT(keeper, 0);
  ::kill(keeper, SIGSTOP);
  ::kill(command, SIGTERM);
  EXPECT_TRUE(ends_unreaped(command));
  for (const int signal : {SIGTERM, SIGCONT}) ::kill(keeper, signal);
  cluster.wait_for(id, "finished");
  EXPECT_EQ(text_of(cluster.folder() / "starts"), "0\n1\n");
}

TEST(CommandJob, AStopOfTheServiceSavesItAndTheNextOneGoesOn) {
  LiveService cluster;
  const JobId id =
      cluster.submit_command("job", alone("trap 'exit 1' TERM; [ $DUCTILE_RESTART = 1 ] && exit 0\n"
                                          "while :; do sleep 0.05; done"));
  wait_for_lines(cluster.folder() / "starts", 1);
  EXPECT_EQ(cluster.stop(), 0);
  EXPECT_TRUE(cluster.workers().empty());
  cluster.start();
  cluster.wait_for(id, "finished");
}

TEST(CommandJob, RunsUnderEachPolicyBesideOtherJobs) {
  for (const std::string& policy : sched::policy_names()) {
    LiveService cluster(3, policy);
    const JobId training = cluster.submit("training", 300, 3);
    const JobId tool = cluster.submit_command("tool", "sleep 0.5", {}, 2);
    cluster.wait_for(tool, "finished");
    cluster.expect_result(training);
  }
}

TEST(CommandJob, WhatCannotRunIsRefused) {
  LiveService cluster;
  const auto error = [&](const Json& spec, int64_t most = 1) {
    const Json answer =
        cluster.send("POST", "/v1/jobs",
                     dump_json(Json{{"kind", "command"}, {"max_devices", most}, {"spec", spec}}));
    EXPECT_EQ(answer.value("status", 0), 400) << answer;
    return answer.at("body").value("error", "");
  };
  const Json good = {{"command", {"true"}}, {"directory", "/"}};
  const auto with = [&](const char* key, const Json& value) {
    Json out = good;
    out[key] = value;
    return out;
  };
  EXPECT_NE(error(with("command", Json::array())).find("no program"), std::string::npos);
  EXPECT_NE(error(with("command", "true")).find("list"), std::string::npos);
  EXPECT_NE(error(with("command", {std::string("a\0b", 3)})).find("zero byte"), std::string::npos);
  EXPECT_NE(error(with("directory", "here")).find("absolute"), std::string::npos);
  EXPECT_NE(error(with("environment", {{"A=B", "c"}})).find("variable"), std::string::npos);
  EXPECT_NE(error(with("retry", 3)).find("retries"), std::string::npos);
  EXPECT_NE(error(with("time_limit", -1)).find("time_limit"), std::string::npos);
  EXPECT_NE(error(good, 2).find("fixed number"), std::string::npos);
}

pid_t sleeper(const std::string& fence) {
  process::SpawnOptions launch;
  launch.program = "/bin/sleep";
  launch.arguments = {"1000"};
  launch.environment = {{"DUCTILE_FENCE", fence}};
  return process::spawn(launch);
}

// Also not what looks much like it.
TEST(Keeper, AFenceReachesItsOwnProcessesAlone) {
  const pid_t own = sleeper("abcd"), longer = sleeper("abcde"), other = sleeper("bcd");
  end_fenced("abcd");
  int status = 0;
  EXPECT_EQ(::waitpid(own, &status, 0), own);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  for (const pid_t pid : {longer, other}) {
    EXPECT_EQ(::waitpid(pid, &status, WNOHANG), 0);
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
}

// The lock's file names a process that has nothing to do with it: the keeper's number was reused.
TEST(CommandJob, ANumberThatWasReusedIsNotSignalled) {
  LiveService cluster;
  const JobId id = cluster.submit_command("job", alone("sleep 1000"), {{"grace", 0.1}});
  wait_for_lines(cluster.folder() / "starts", 1);
  const fs::path run = cluster.wait_for(id, "running").value("run", "");
  const pid_t keeper = keeper_of(cluster);
  cluster.kill_service();
  ::kill(keeper, SIGKILL);
  const pid_t stranger = sleeper("none");
  std::string lock = read_file(run / "run.lock");
  lock.replace(0, lock.find(' '), std::to_string(stranger));
  write_file_atomic(run / "run.lock", lock);
  cluster.start();
  wait_for_lines(cluster.folder() / "starts", 2);
  cluster.act(id, "cancel");
  cluster.wait_for(id, "cancelled");
  EXPECT_EQ(::waitpid(stranger, nullptr, WNOHANG), 0);
  ::kill(stranger, SIGKILL);
  ::waitpid(stranger, nullptr, 0);
  EXPECT_EQ(text_of(cluster.folder() / "twice"), "");
}

TEST(Attempt, ADamagedFileIsSaidToBeSo) {
  const TempFolder folder;
  EXPECT_EQ(read_attempt(folder.path()).number, 0);
  Attempt attempt{3, "abcd", 1, AttemptEnd{AttemptEnd::Kind::killed, 0, 11, "text"}};
  write_attempt(folder.path(), attempt);
  const Attempt again = read_attempt(folder.path());
  EXPECT_EQ(again.number, 3);
  EXPECT_EQ(again.fence, "abcd");
  EXPECT_EQ(again.failures, 1);
  EXPECT_EQ(again.end->kind, AttemptEnd::Kind::killed);
  EXPECT_EQ(again.end->signal, 11);
  for (const char* text : {"", "{", "[]", "{\"number\": \"x\"}", "{\"number\": 1}"}) {
    write_file_atomic(folder.path() / "attempt.json", text);
    try {
      read_attempt(folder.path());
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data_loss) << text;
    }
  }
}

// A command may put anything into its folder, and the service has other jobs.
TEST(Attempt, ServicesWaitForNoFifo) {
  const TempFolder folder;
  for (const char* name : {"attempt.json", "orders.json"}) {
    const fs::path file = folder.path() / name;
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    try {
      if (name == std::string_view("attempt.json"))
        look_at_attempt(folder.path());
      else
        read_orders(folder.path());
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data_loss);
      EXPECT_NE(std::string(error.what()).find("it is a FIFO"), std::string::npos) << error.what();
    }
    fs::remove(file);
  }
}

// Who has a file open that is nowhere any more.
std::string holders_of_deleted(const fs::path& file) {
  std::string out;
  for (const pid_t pid : link::all_processes()) {
    std::error_code gone;
    const fs::path folder = fs::path("/proc") / std::to_string(pid) / "fd";
    for (fs::directory_iterator it(folder, gone), end; !gone && it != end; it.increment(gone)) {
      std::error_code closed;
      if (fs::read_symlink(it->path(), closed).string() == file.string() + " (deleted)")
        out += it->path().string() + "\n";
    }
  }
  return out;
}

// Its room is free again, and what is said from then on can be read.
TEST(CommandJob, ALogThatIsRemovedIsBegunAnew) {
  LiveService cluster;
  const JobId id = cluster.submit_command(
      "job", "echo first; while [ ! -e go ]; do echo more; sleep 0.02; done; echo last");
  const fs::path log = cluster.wait_for(id, "running").at("run").get<std::string>() + "/worker.log";
  wait_for_lines(log, 2);
  fs::remove(log);
  wait_for_lines(log, 2);
  EXPECT_EQ(holders_of_deleted(log), "");
  write_file_atomic(cluster.folder() / "go", "");
  cluster.wait_for(id, "finished");
  const std::string text = read_file(log);
  EXPECT_TRUE(text.starts_with("more\n")) << text;
  EXPECT_TRUE(text.ends_with("more\nlast\n")) << text;
}

TEST(CommandJob, OneWhoseRunDirectoryIsDeletedEndsWithThatReason) {
  LiveService service(1);
  const JobId id = service.submit_command("job", "sleep 1000", {{"grace", 1}});
  const fs::path run = service.wait_for(id, "running").value("run", "");
  service.wait(id, [](const Json& job) {
    return job.value("why", "").find("It runs on 1 device") != std::string::npos;
  });
  fs::remove_all(run);
  service.act(id, "pause");
  const Json job = service.wait_for(id, "failed");
  EXPECT_EQ(job.value("reason", ""),
            "Its run directory " + run.string() + " was deleted while it ran; submit it again.");
}

// Nobody knows its keeper any more, which is ended before another one begins.
TEST(CommandJob, OneWhoseRunDirectoryIsDeletedWhileTheServiceIsAwayBeginsAnewAlone) {
  LiveService service(1);
  const JobId id =
      service.submit_command("job", alone("[ $(wc -l < starts) = 2 ] && exit 0\nsleep 1000"));
  wait_for_lines(service.folder() / "starts", 1);
  const fs::path run = service.wait_for(id, "running").value("run", "");
  service.kill_service();
  fs::remove_all(run);
  service.start();
  service.wait_for(id, "finished");
  EXPECT_EQ(text_of(service.folder() / "twice"), "");
  EXPECT_NE(service.get("/v1/events?limit=1000").dump().find("It begins anew, since its run"),
            std::string::npos);
  service.wait_for_no_workers();
}

}  // namespace
}  // namespace ductile::cluster
