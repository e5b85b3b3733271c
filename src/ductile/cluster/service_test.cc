// The service with real processes: torch-free workers that speak the real protocol.
#include "ductile/cluster/service.h"

#include <csignal>
#include <cstring>
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

#include "ductile/base/descriptor.h"
#include "ductile/base/json.h"
#include "ductile/cluster/commit_queue.h"
#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/store.h"
#include "ductile/link/testing/test_model.h"
#include "ductile/run/lock.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::json;
using namespace std::chrono_literals;

constexpr int64_t kRanks = 4;
constexpr auto kPatience = 120s;

// A service in a process of its own, as `ductile up` is.
class Cluster {
 public:
  explicit Cluster(int64_t devices = 3, std::string policy = "ductile",
                   fs::path worker = DUCTILE_TEST_WORKER)
      : devices_(devices), policy_(std::move(policy)), worker_(std::move(worker)) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);  // workers of a killed service come here
    start();
  }
  ~Cluster() {
    kill_service();
    for (const pid_t pid : workers()) ::kill(pid, SIGKILL);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) continue;
  }

  void start() {
    pid_ = ::fork();
    if (pid_ == 0) {
      sigset_t set;
      sigemptyset(&set);
      sigaddset(&set, SIGTERM);
      pthread_sigmask(SIG_BLOCK, &set, nullptr);
      try {
        net::Loop loop;
        ServiceOptions options;
        options.folder = folder();
        options.worker = worker_;
        options.policy = policy_;
        options.devices = devices_;
        options.node = "here";
        options.interval = 0.2;
        Service service(loop, options);
        std::thread([&] {
          int signal = 0;
          sigwait(&set, &signal);
          loop.post([&] { service.stop([&] { loop.stop(); }); });
        }).detach();
        loop.run();
        ::_exit(0);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "service: %s\n", error.what());
        ::_exit(1);
      }
    }
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (get("/v1/jobs").is_null() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(5ms);
  }
  void start(int64_t devices) {
    devices_ = devices;
    start();
  }
  bool lives() const { return pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) == 0; }
  void kill_service() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  int stop() {
    ::kill(pid_, SIGTERM);
    int status = -1;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

  // {"status", "body"}, or null where nobody answers.
  Json send(const std::string& method, const std::string& path, const std::string& body = "") {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string socket = (folder() / "api.sock").string();
    std::memcpy(address.sun_path, socket.c_str(), socket.size());
    const Descriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      return {};
    const std::string text =
        method + " " + path +
        " HTTP/1.1\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) +
        "\r\n\r\n" + body;
    if (::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return {};
    std::string answer;
    char block[4096];
    for (ssize_t n; (n = ::recv(fd.get(), block, sizeof block, 0)) > 0;)
      answer.append(block, static_cast<size_t>(n));
    const size_t head = answer.find("\r\n\r\n");
    if (head == std::string::npos) return {};
    return {{"status", std::stoi(answer.substr(9, 3))},
            {"body", parse_json(answer.substr(head + 4))}};
  }
  Json get(const std::string& path) {
    const Json answer = send("GET", path);
    return answer.is_null() ? answer : answer.at("body");
  }

  JobId submit(const std::string& name, int64_t steps, int64_t most = 1, int64_t least = 1) {
    const std::string toml =
        "[train]\nmax_steps = " + std::to_string(steps) +
        "\nvirtual_ranks = 4\nbatch_size = 64\n[checkpoint]\nevery_steps = 20\n";
    steps_of_[name] = steps;
    const Json body = {
        {"name", name}, {"min_devices", least}, {"max_devices", most}, {"spec", {{"job", toml}}}};
    const Json answer = send("POST", "/v1/jobs", dump_json(body));
    EXPECT_EQ(answer.value("status", 0), 201) << answer;
    return answer.at("body").value("id", JobId{0});
  }
  Json wait(JobId id, const std::function<bool(const Json&)>& holds) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    Json job;
    while (std::chrono::steady_clock::now() < deadline) {
      job = get("/v1/jobs/" + std::to_string(id));
      if (!job.is_null() && holds(job)) return job;
      std::this_thread::sleep_for(5ms);
    }
    ADD_FAILURE() << "waited in vain: " << job << "\n" << get("/v1/events?limit=1000").dump(1);
    return job;
  }
  Json wait_for(JobId id, const std::string& phase) {
    return wait(id, [&](const Json& job) { return job.at("phase") == phase; });
  }
  void act(JobId id, const std::string& what) {
    send("POST", "/v1/jobs/" + std::to_string(id) + "/" + what);
  }
  void wait_for_no_workers() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!workers().empty() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(5ms);
    EXPECT_TRUE(workers().empty());
  }
  // It is finished, and its result is that of the undisturbed job.
  void expect_result(JobId id) {
    const Json job = wait_for(id, "finished");
    const int64_t steps = steps_of_.at(job.at("name"));
    const fs::path run = job.value("run", "");
    EXPECT_EQ(link::testing::read_checkpoint(run / "checkpoints", steps),
              link::testing::run_undisturbed(steps, kRanks));
  }

  std::set<pid_t> workers() const {
    std::set<pid_t> out;
    std::error_code error;
    for (auto it = fs::directory_iterator("/proc", error); !error && it != fs::directory_iterator();
         it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      try {
        const std::string line = read_file(it->path() / "cmdline");
        if (line.find(folder().string()) != std::string::npos) out.insert(std::stoi(name));
      } catch (const Error&) {  // gone
      }
    }
    return out;
  }
  const fs::path& folder() const { return folder_.path(); }

 private:
  TempFolder folder_;
  int64_t devices_;
  const std::string policy_;
  const fs::path worker_;
  pid_t pid_ = -1;
  std::map<std::string, int64_t> steps_of_;
};

TEST(Service, JobsRunToTheirEndsWithTheRightResults) {
  Cluster cluster;
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
  Cluster cluster(2);
  const JobId first = cluster.submit("first", 4000, 2);
  cluster.wait(first, [](const Json& job) { return job.at("holdings").value("here", 0) == 2; });
  const JobId second = cluster.submit("second", 4000, 2);
  cluster.wait_for(second, "running");
  cluster.wait(first, [](const Json& job) {
    return job.at("holdings").value("here", 0) == 1 || job.at("phase") != "running";
  });
  cluster.expect_result(first);
  cluster.expect_result(second);
}

TEST(Service, AJobIsPausedResumedAndCancelled) {
  Cluster cluster;
  const JobId id = cluster.submit("job", 3000);
  const JobId other = cluster.submit("other", 100000);
  const std::string path = "/v1/jobs/" + std::to_string(id);
  cluster.wait_for(id, "running");
  cluster.send("POST", path + "/pause");
  cluster.wait_for(id, "paused");
  EXPECT_EQ(cluster.get(path).at("reason"), "Its user paused it.");
  cluster.send("POST", path + "/resume");
  cluster.expect_result(id);
  cluster.wait_for(other, "running");
  cluster.send("POST", "/v1/jobs/" + std::to_string(other) + "/cancel");
  cluster.wait_for(other, "cancelled");
  cluster.wait_for_no_workers();
}

TEST(Service, WhatCannotRunIsRefusedWhenItIsSubmitted) {
  Cluster cluster;
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

TEST(Service, AStopSavesAndTheNextServiceGoesOn) {
  Cluster cluster;
  const JobId running = cluster.submit("running", 3000, 2);
  cluster.wait_for(running, "running");
  EXPECT_EQ(cluster.stop(), 0);
  EXPECT_TRUE(cluster.workers().empty());
  EXPECT_EQ(Reader(cluster.folder() / "store.db").job(running).phase, Phase::queued);
  cluster.start();
  cluster.expect_result(running);
}

// Killed again and again, at any instant: no job is lost or run twice, and all bits are right.
TEST(Service, AKilledServiceIsFollowedByOneThatGoesOn) {
  Cluster cluster;
  std::vector<JobId> jobs;
  for (int i = 0; i < 6; ++i) {
    jobs.push_back(cluster.submit("job" + std::to_string(i), 1000 + 100 * i, 1 + i % 3));
    std::this_thread::sleep_for(std::chrono::milliseconds(50 * i));
    cluster.kill_service();
    cluster.start();
  }
  EXPECT_EQ(std::set<JobId>(jobs.begin(), jobs.end()).size(), jobs.size());
  for (const JobId id : jobs) cluster.expect_result(id);
  EXPECT_EQ(cluster.stop(), 0);
  EXPECT_TRUE(cluster.workers().empty());
  Reader reader(cluster.folder() / "store.db");
  EXPECT_TRUE(reader.check().empty()) << ::testing::PrintToString(reader.check());
  int64_t folders = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(cluster.folder() / "runs"))
    ++folders;
  EXPECT_EQ(folders, static_cast<int64_t>(jobs.size())) << "one run directory for each job";
}

// What was asked for, and not yet done, when the service was killed.
TEST(Service, AWishIsFollowedByTheNextService) {
  Cluster cluster;
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
  Cluster cluster(4);
  const JobId pair = cluster.submit("pair", 400, 2, 2);
  const JobId other = cluster.submit("other", 400, 2, 1);
  cluster.wait_for(pair, "running");
  cluster.wait_for(other, "running");
  cluster.kill_service();
  cluster.start(1);
  cluster.expect_result(other);
  const Json job = cluster.wait_for(pair, "queued");
  cluster.wait(pair, [](const Json& job) {
    return job.value("reason", "").find("needs 2 devices") != std::string::npos;
  });
  EXPECT_TRUE(cluster.lives());
  EXPECT_EQ(cluster.stop(), 0);
  cluster.start(2);
  cluster.expect_result(pair);
}

TEST(Service, ADrainCountsForItsNodeAndOutlivesTheService) {
  Cluster cluster(1);
  cluster.send("POST", "/v1/nodes/elsewhere/drain", "{}");
  cluster.expect_result(cluster.submit("elsewhere", 20));
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
  Cluster cluster(1, "fifo");
  const JobId locked = cluster.submit("locked", 200);
  cluster.wait_for(locked, "running");
  cluster.act(locked, "pause");
  const std::string run = cluster.wait_for(locked, "paused").at("run");
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

// A run directory that cannot be made, and a cancel that comes while it is tried.
TEST(Service, AJobIsCancelledWhileItsStartFails) {
  Cluster cluster;
  fs::remove(cluster.folder() / "runs");
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

// A store that was lost begins with job 1 again; what the job 1 of the earlier one left stays its.
TEST(Service, AJobNeverGoesOnWithAnotherOnesRun) {
  Cluster cluster;
  cluster.expect_result(cluster.submit("job", 200));
  EXPECT_EQ(cluster.stop(), 0);
  for (const char* name : {"store.db", "store.db-wal", "store.db-shm"})
    fs::remove(cluster.folder() / name);
  cluster.start();
  cluster.expect_result(cluster.submit("job", 40));
  EXPECT_TRUE(fs::exists(cluster.folder() / "runs" / "1-job" / "job.toml"));
}

// The service was killed after it made the folder, before it wrote the job into it.
TEST(Service, ARunDirectoryThatIsHalfMadeIsMadeAnew) {
  Cluster cluster(1);
  const JobId first = cluster.submit("first", 100000);
  const JobId second = cluster.submit("second", 40);
  cluster.wait_for(first, "running");
  cluster.kill_service();
  const fs::path run = cluster.folder() / "runs" / "2-second";
  fs::create_directories(run / "checkpoints");
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
  Cluster cluster(3, "ductile", script);
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

}  // namespace
}  // namespace ductile::cluster
