// The service with real processes: torch-free workers that speak the real protocol.
#include "ductile/cluster/service.h"

#include <csignal>
#include <cstring>
#include <map>
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
#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/store.h"
#include "ductile/link/testing/test_model.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::json;
using namespace std::chrono_literals;

constexpr int64_t kRanks = 4;
constexpr auto kPatience = 120s;

// A service in a process of its own, as `ductile up` is.
class Cluster {
 public:
  explicit Cluster(int64_t devices = 3) : devices_(devices) {
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
        options.worker = DUCTILE_TEST_WORKER;
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

  JobId submit(const std::string& name, int64_t steps, int64_t most = 1, int64_t step_ms = 0) {
    const std::string toml =
        "[train]\nmax_steps = " + std::to_string(steps) +
        "\nvirtual_ranks = 4\nbatch_size = 64\n[checkpoint]\nevery_steps = 20\n";
    steps_of_[name] = steps;
    const Json body = {{"name", name}, {"max_devices", most}, {"spec", {{"job", toml}}}};
    (void)step_ms;
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
  const int64_t devices_;
  pid_t pid_ = -1;
  std::map<std::string, int64_t> steps_of_;
};

TEST(Service, JobsRunToTheirEndsWithTheRightResults) {
  Cluster cluster;
  std::vector<JobId> jobs;
  for (int i = 0; i < 5; ++i) jobs.push_back(cluster.submit("job" + std::to_string(i), 100 + i, 3));
  for (const JobId id : jobs) cluster.expect_result(id);
  for (const Json& job : cluster.get("/v1/jobs").at("jobs")) {
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
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (cluster.workers().size() > 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(cluster.workers().empty());
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

}  // namespace
}  // namespace ductile::cluster
