#pragma once

#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/cluster/records.h"
#include "ductile/cluster/service.h"
#include "ductile/link/testing/test_model.h"
#include "ductile/link/worker_processes.h"
#include "ductile/server/testing/slow_steps.h"

// A service with real processes: torch-free workers that speak the real protocol.
namespace ductile::cluster::testing {

using Json = nlohmann::json;
using namespace std::chrono_literals;

inline constexpr int64_t kRanks = 4;
inline constexpr auto kPatience = 120s;

// A service in a process of its own, as `ductile up` is.
class LiveService {
 public:
  explicit LiveService(int64_t devices = 3, std::string policy = "ductile",
                       fs::path worker = DUCTILE_TEST_WORKER)
      : LiveService([&](ServiceOptions& options) {
          options.devices = devices;
          options.policy = policy;
          options.worker = worker;
        }) {}
  // `enter` is called in the service's process before it begins.
  explicit LiveService(const std::function<void(ServiceOptions&)>& choose,
                       std::function<void()> enter = {})
      : enter_(std::move(enter)) {
    options_.folder = folder();
    options_.worker = DUCTILE_TEST_WORKER;
    options_.keeper = DUCTILE_KEEPER;
    options_.on_failure = [](const Error&) { ::_exit(7); };
    options_.node = "here";
    options_.interval = 0.2;
    choose(options_);
    prctl(PR_SET_CHILD_SUBREAPER, 1);  // workers of a killed service come here
    start();
  }
  LiveService(const LiveService&) = delete;
  LiveService& operator=(const LiveService&) = delete;
  ~LiveService() {
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
        slow_steps_.announce();
        net::Loop loop;
        if (enter_) enter_();
        Service service(loop, options_);
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
    while (lives() && get("/v1/jobs").is_null() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(5ms);
  }
  void start(int64_t devices) {
    options_.devices = devices;
    start();
  }
  pid_t process() const { return pid_; }
  // For the next start.
  void choose(const std::function<void(ServiceOptions&)>& choose) { choose(options_); }
  // The agent of a node of this service, which is a child of the service.
  void kill_agent(const std::string& node, int signal = SIGKILL) const {
    for (const pid_t pid : agents(node)) ::kill(pid, signal);
  }
  // The machine of that name is another one from the next agent on: it has no notice.
  void change_machine(const std::string& node) const {
    const fs::path shared = options_.shared.empty() ? folder() : options_.shared;
    fs::remove(shared / "server" / "leaving" / node);
  }
  // The launcher command leaves the node's name in their environment, as NODE.
  std::set<pid_t> agents(const std::string& node) const {
    std::set<pid_t> out;
    for (const pid_t pid : link::all_processes()) {
      try {
        const fs::path process = fs::path("/proc") / std::to_string(pid);
        const std::string stat = read_file(process / "stat");
        const std::string parent = " " + std::to_string(pid_) + " ";
        if (stat.substr(stat.rfind(')')).find(parent) == 3 &&
            read_file(process / "cmdline").find("host-agent") != std::string::npos &&
            read_file(process / "environ").find("NODE=" + node + '\0') != std::string::npos)
          out.insert(pid);
      } catch (const Error&) {  // gone
      }
    }
    return out;
  }
  bool lives() {
    if (pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) != 0) pid_ = -1;
    return pid_ > 0;
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
  Json send(const std::string& method, const std::string& path, const std::string& body = "",
            const std::string& key = "") {
    const std::string answer = bytes(method, path, body, key);
    const size_t head = answer.find("\r\n\r\n");
    if (head == std::string::npos) return {};
    return {{"status", std::stoi(answer.substr(9, 3))},
            {"body", parse_json(answer.substr(head + 4))}};
  }
  std::string text(const std::string& path) { return bytes("GET", path, ""); }
  // The whole answer; empty where nobody answers.
  std::string bytes(const std::string& method, const std::string& path, const std::string& body,
                    const std::string& key = "") {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string socket = (folder() / "api.sock").string();
    std::memcpy(address.sun_path, socket.c_str(), socket.size());
    const Descriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      return {};
    const std::string text = method + " " + path + " HTTP/1.1\r\nConnection: close\r\n" +
                             (key.empty() ? "" : "Idempotency-Key: " + key + "\r\n") +
                             "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    if (::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return {};
    std::string answer;
    char block[4096];
    for (ssize_t n; (n = ::recv(fd.get(), block, sizeof block, 0)) > 0;)
      answer.append(block, static_cast<size_t>(n));
    return answer;
  }
  Json get(const std::string& path) {
    const Json answer = send("GET", path);
    return answer.is_null() ? answer : answer.at("body");
  }

  void slow_steps(bool slow) const { slow_steps_.set(slow); }
  JobId submit(const std::string& name, int64_t steps, int64_t most = 1, int64_t least = 1,
               const Json& more = {}) {
    const Json answer = offer(name, steps, most, least, more);
    EXPECT_EQ(answer.value("status", 0), 201) << answer;
    return answer.at("body").value("id", JobId{0});
  }
  // The answer to the same request, which may refuse it.
  Json offer(const std::string& name, int64_t steps, int64_t most = 1, int64_t least = 1,
             const Json& more = {}) {
    const std::string toml =
        "[train]\nmax_steps = " + std::to_string(steps) +
        "\nvirtual_ranks = 4\nbatch_size = 64\n[checkpoint]\nevery_steps = 20\n";
    steps_of_[name] = steps;
    Json body = {
        {"name", name}, {"min_devices", least}, {"max_devices", most}, {"spec", {{"job", toml}}}};
    if (more.is_object()) body.update(more);
    return send("POST", "/v1/jobs", dump_json(body));
  }
  // The status for another user of this machine. Only root can be one.
  int submit_as_stranger(const Json& body) {
    fs::permissions(folder(), fs::perms::others_read | fs::perms::others_exec,
                    fs::perm_options::add);
    const pid_t child = ::fork();
    if (child == 0) {
      if (::setresgid(65534, 65534, 65534) != 0 || ::setresuid(65534, 65534, 65534) != 0)
        ::_exit(1);
      ::_exit(send("POST", "/v1/jobs", dump_json(body)).value("status", 0) - 200);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return 200 + WEXITSTATUS(status);
  }
  // A job of kind "command", which a shell carries out in the service's folder.
  JobId submit_command(const std::string& name, const std::string& script, const Json& more = {},
                       int64_t devices = 1) {
    Json spec = {{"command", {"/bin/sh", "-c", script}}, {"directory", folder().string()}};
    if (more.is_object()) spec.update(more);
    const Json body = {{"name", name},
                       {"kind", "command"},
                       {"min_devices", devices},
                       {"max_devices", devices},
                       {"spec", spec}};
    const Json answer = send("POST", "/v1/jobs", dump_json(body));
    EXPECT_EQ(answer.value("status", 0), 201) << answer;
    return answer.is_null() ? 0 : answer.at("body").value("id", JobId{0});
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
  // Until one of the job's processes runs.
  void wait_for_workers(JobId id) {
    wait(id, [&](const Json& job) {
      return job.at("phase") == "running" && !link::workers_of(job.value("run", "")).empty();
    });
  }
  // Until this process of the service, which may be a child of nobody here, has ended.
  void wait_for_end(pid_t worker) const {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (workers().contains(worker) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(5ms);
    EXPECT_FALSE(workers().contains(worker));
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
        const auto has = [&](const char* file, const std::string& text) {
          return read_file(it->path() / file).find(text) != std::string::npos;
        };
        if (has("cmdline", folder().string()) ||
            has("environ", "DUCTILE_RUN_DIR=" + folder().string()))
          out.insert(std::stoi(name));
      } catch (const Error&) {  // gone
      }
    }
    return out;
  }
  const fs::path& folder() const { return folder_.path(); }

 private:
  TempFolder folder_;
  const server::testing::SlowSteps slow_steps_{folder_.path() / "slow"};
  ServiceOptions options_;
  std::function<void()> enter_;
  pid_t pid_ = -1;
  std::map<std::string, int64_t> steps_of_;
};

}  // namespace ductile::cluster::testing
