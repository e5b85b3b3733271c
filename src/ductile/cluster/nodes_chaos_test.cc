// A service of several nodes with several jobs, to which everything happens that may: at random, by
// a seed. All jobs end with the results of undisturbed runs, of a command there are never two at a
// time, and nothing is left. The nodes have networks of their own where this machine allows it, so
// that replicas of a job that answers requests are behind doors; else they are this machine under
// other names. The store and the folder that the nodes share have small disks of their own, which
// become full, and the shared one is not there at times.
//
//   DUCTILE_CHAOS_SEED=n    another course of events (1)
//   DUCTILE_CHAOS_FAULTS=n  so many of them (25; half of them where requests are answered)
//   DUCTILE_CHAOS_JOBS=n    for so many jobs, and more where these end before (6; half of them)
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/cluster/store.h"
#include "ductile/cluster/testing/commands.h"
#include "ductile/cluster/testing/live_service.h"
#include "ductile/net/socket.h"
#include "ductile/server/testing/emulated_hosts.h"
#include "ductile/server/testing/shared_files.h"
#include "ductile/server/testing/small_disk.h"
#include "ductile/serving/testing/client.h"
#include "ductile/serving/testing/small_model.h"
#include "ductile/spec/cluster.h"

namespace ductile::cluster {
namespace {

using namespace testing;
using server::testing::EmulatedHosts;
using server::testing::SmallDisk;
using std::chrono::milliseconds;

constexpr int kNodes = 4;
constexpr int64_t kCounts = 20;
constexpr int64_t kWeights = 7;  // the newest version, which is served first
constexpr int64_t kReplicas = 2;
constexpr double kNotice = 2, kLeave = 1;  // seconds, of a machine that is taken back

// A command that goes on from where it was saved, whatever of it is killed.
std::string counting() {
  return fmt::format(
      "exec 9>only$DUCTILE_JOB; flock -n 9; got=$?\n"
      "[ $got = 1 ] && echo $DUCTILE_JOB >> twice\n"
      "[ $got = 0 ] || exit 1\n"
      "n=0; [ -e at$DUCTILE_JOB ] && read n < at$DUCTILE_JOB\n"
      "while [ $n -lt {} ]; do\n"
      "  sleep 0.1; n=$((n + 1))\n"
      "  echo $n > new$DUCTILE_JOB && mv new$DUCTILE_JOB at$DUCTILE_JOB || exit 1\n"
      "done",
      kCounts);
}

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

// Who asks one question after the other, whatever becomes of the service: what is not answered is
// asked again. Each answer has the bits of the weights that it names.
class Asker {
 public:
  // `enter` is called in the thread that asks.
  Asker(const net::Address& at, std::function<void()> enter)
      : at_(at), enter_(std::move(enter)), thread_([this] { ask(); }) {}
  Asker(const Asker&) = delete;
  Asker& operator=(const Asker&) = delete;
  ~Asker() { stop(); }

  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int64_t answers() const { return answers_; }
  int64_t repeated() const { return repeated_; }
  int64_t in_a_row() const { return in_a_row_; }  // answers of one version, the last ones
  int64_t version() const { return version_; }    // of the last one
  std::string wrong() {
    const std::lock_guard lock(mutex_);
    return wrong_;
  }

 private:
  void ask() {
    Rng rng(3, 5);
    enter_();
    std::optional<serving::testing::Client> client;
    while (!stop_) {
      std::vector<float> values(16);
      for (float& v : values) v = rng.normal();
      if (!answered(client, values)) {
        client.reset();
        ++repeated_;
        in_a_row_ = 0;
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
  }

  // Nobody may listen just now, and a replica may be missing.
  bool answered(std::optional<serving::testing::Client>& client, const std::vector<float>& values) {
    const Json input = {
        {"name", "images"}, {"datatype", "FP32"}, {"shape", {1, 1, 4, 4}}, {"data", values}};
    const Json question = {{"inputs", {input}}, {"outputs", {{{"name", "logits"}}}}};
    try {
      if (!client) client.emplace(at_);
      const auto answer = client->post("/v2/models/small/infer", dump_json(question));
      if (!answer || answer->status >= 500) return false;
      const Json json = answer->status == 200 ? serving::testing::json_of(*answer) : Json();
      const int64_t version =
          json.is_object() ? std::stoll(json.at("model_version").get<std::string>()) : 0;
      if (version < 1 || version > kWeights ||
          json.at("outputs").at(0).at("data").get<std::vector<float>>() !=
              right_answer(values, version))
        fail(ErrorCode::data_loss, "{}: {}", answer->status, answer->body);
      ++answers_;
      in_a_row_ = version_.exchange(version) == version ? in_a_row_ + 1 : 1;
      return true;
    } catch (const std::exception& error) {
      const auto* known = dynamic_cast<const Error*>(&error);
      const bool nobody = known != nullptr && known->code() != ErrorCode::data_loss;
      const std::lock_guard lock(mutex_);
      if (!nobody && wrong_.empty()) wrong_ = error.what();
      return false;
    }
  }

  std::vector<float> right_answer(const std::vector<float>& values, int64_t version) {
    auto& model = models_[version];
    if (!model) model = serving::testing::make_small_model({}, version);
    std::vector<float> out(3);
    model->run(reinterpret_cast<const std::byte*>(values.data()), 1, out.data());
    return out;
  }

  const net::Address at_;
  const std::function<void()> enter_;
  std::map<int64_t, std::unique_ptr<serving::Model>> models_;  // of the thread
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> answers_ = 0, repeated_ = 0, in_a_row_ = 0, version_ = 0;
  std::mutex mutex_;
  std::string wrong_;
  std::thread thread_;  // begins last
};

// Where somebody listens on TCP, in the network that this process is in: addresses and ports in
// hexadecimal digits.
std::set<std::string> listeners(const std::string& process) {
  constexpr std::string_view kListens = "0A";
  std::set<std::string> out;
  for (const char* protocol : {"tcp", "tcp6"}) {
    std::istringstream lines(read_file(fs::path("/proc") / process / "net" / protocol));
    std::string line, number, local, remote, state;
    std::getline(lines, line);  // the names of the columns
    while (std::getline(lines, line)) {
      std::istringstream columns(line);
      columns >> number >> local >> remote >> state;
      if (state == kListens) out.insert(local);
    }
  }
  return out;
}

class Chaos {
 public:
  Chaos(uint64_t seed, std::shared_ptr<EmulatedHosts> hosts, bool serves = false)
      : rng_(seed), hosts_(std::move(hosts)), serves_(serves) {
    spec::NodeGroup group;
    group.type = "cpu";
    group.devices = 2;
    group.count = kNodes;
    group.notice = kNotice;
    group.leave = kLeave;
    for (int n = 1; n <= kNodes; ++n) {
      group.hosts.push_back(hosts_ ? hosts_->name(n) : "node" + std::to_string(n));
      if (hosts_) group.addresses.push_back(EmulatedHosts::address(n));
    }
    nodes_ = group.hosts;
    service_.emplace(
        [&](ServiceOptions& options) {
          options.cluster = spec::Cluster{{group}, {}};
          options.launcher =
              "env NODE={host}" + (hosts_ ? " " + EmulatedHosts::launcher() : std::string());
          options.listen = hosts_ ? EmulatedHosts::address(0) : "127.0.0.1";
          options.program = DUCTILE_TEST_WORKER;
          if (serves_) options.worker = options.program = DUCTILE_SERVING_WORKER;
          options.grace = 2;
          options.command_lease = 5;  // longer than anything is stopped
          options.shared = options.folder / "shared";
          store_disk_ = SmallDisk(options.folder, "24m");
          fs::create_directories(options.shared);
          shared_disk_ = SmallDisk(options.shared, "48m");
          if (!shared_disk_.made()) std::printf("no full disks: no file system can be made here\n");
        },
        enter());
  }

  ~Chaos() {  // nothing writes any more when the disks go
    asker_.reset();
    service_->kill_service();
    for (const pid_t pid : service_->workers()) ::kill(pid, SIGKILL);
    shared_disk_.give_back();
    store_disk_.give_back();
  }

  void run(int64_t faults, int64_t jobs) {
    if (serves_) serve();
    for (int64_t j = 0; j < jobs; ++j) submit();
    while (faults_ < faults && !::testing::Test::HasFailure()) {
      disturb();
      std::this_thread::sleep_for(milliseconds(rng_.below(400)));
      const Json live = service_->get("/v1/jobs?live=1");
      if (live.is_null() || live.at("jobs").size() >= (serves_ ? size_t{3} : size_t{2})) continue;
      submit();  // there is always something to disturb
    }
    done_["jobs"] = static_cast<int>(ids_.size());
    for (const std::string& node : nodes_) service_->send("POST", "/v1/nodes/" + node + "/undrain");
    for (const JobId id : ids_) {
      service_->act(id, "resume");
      if (!commands_.contains(id)) {
        service_->expect_result(id);
        continue;
      }
      service_->wait_for(id, "finished");
      EXPECT_EQ(text_of(counts_.path() / ("at" + std::to_string(id))),
                std::to_string(kCounts) + "\n");
    }
    EXPECT_EQ(text_of(counts_.path() / "twice"), "");
    if (asker_) end_serving();
    EXPECT_EQ(service_->stop(), 0);
    EXPECT_TRUE(service_->workers().empty());
    // An agent whose service was killed ends by itself once it sees that the connection is gone.
    for (const std::string& node : nodes_) {
      for (int look = 0; look < 200 && !agents_anywhere(node).empty(); ++look)
        std::this_thread::sleep_for(milliseconds(100));
      EXPECT_TRUE(agents_anywhere(node).empty()) << node;
    }
    expect_no_listeners();
    Reader reader(service_->folder() / "store.db");
    EXPECT_TRUE(reader.check().empty()) << ::testing::PrintToString(reader.check());
    // Those that were acknowledged and no others, each to its end once.
    std::map<JobId, int> ends;
    for (const Event& event : reader.events(0, 1'000'000)) {
      if (event.kind == "finished") ++ends[event.job];
      if (event.kind == "allocation" && staged_.contains(event.job)) expect_whole(event);
    }
    EXPECT_EQ(reader.jobs({}, 0, 1'000'000).size(), ids_.size() + static_cast<size_t>(serves_));
    EXPECT_EQ(ends.size(), ids_.size());
    for (const auto& [id, times] : ends) EXPECT_EQ(times, 1) << "job " << id;
    EXPECT_FALSE(fs::exists(service_->folder() / "api.sock"));
    for (const auto& [what, count] : done_) std::printf("%s: %d\n", what.c_str(), count);
  }

 private:
  // To the service's machine.
  std::function<void()> enter() const {
    return [hosts = hosts_] {
      if (hosts) hosts->enter(0);
    };
  }

  void serve() {
    write_file_atomic(served_.path() / "job.toml", "name = \"small\"\n");
    write_file_atomic(served_.path() / "newest", std::to_string(kWeights));
    const Json spec = {{"run", served_.path().string()}, {"model", "small"}};
    const Json body = {{"name", "api"},
                       {"kind", "serve"},
                       {"min_devices", kReplicas},
                       {"max_devices", kReplicas},
                       {"spec", spec}};
    const Json answer = service_->send("POST", "/v1/jobs", dump_json(body));
    ASSERT_EQ(answer.value("status", 0), 201) << answer;
    serving_ = answer.at("body").at("id");
    const Json job = service_->wait(serving_, [](const Json& j) {
      return j.contains("serving") && j["serving"].value("replicas", int64_t{0}) > 0;
    });
    ASSERT_TRUE(job.contains("serving")) << job;
    const auto url = job["serving"].at("address").get<std::string>();
    constexpr std::string_view kScheme = "http://";
    address_ = net::Address::parse(url.substr(kScheme.size(), url.find("/v2") - kScheme.size()));
    asker_.emplace(address_, enter());
  }

  // It answers again, each time, with the weights that were asked for last, until it is cancelled.
  void end_serving() {
    constexpr int64_t kInARow = 100;
    const auto answers = [&] {
      return asker_->version() == weights_ && asker_->in_a_row() >= kInARow;
    };
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!answers() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(milliseconds(5));
    EXPECT_TRUE(answers()) << asker_->in_a_row() << " with " << asker_->version() << ", wanted was "
                           << weights_ << "\n"
                           << service_->get("/v1/jobs/" + std::to_string(serving_)).dump(1);
    asker_->stop();
    EXPECT_EQ(asker_->wrong(), "");
    done_["requests answered"] = static_cast<int>(asker_->answers());
    done_["requests sent again"] = static_cast<int>(asker_->repeated());
    service_->act(serving_, "cancel");
    service_->wait_for(serving_, "cancelled");
  }

  // Jobs by stages hold whole pipelines.
  static void expect_whole(const Event& event) {
    int64_t devices = 0;
    const Json body = parse_json(event.body);
    for (const auto& [node, held] : body.at("nodes").items()) devices += held.get<int64_t>();
    EXPECT_TRUE(devices % 2 == 0 && devices <= 4) << "job " << event.job << ": " << event.body;
  }

  // Of networks of their own nobody else is part; of this machine's it is known where requests were
  // answered.
  void expect_no_listeners() {
    const auto left = [this] {
      std::set<std::string> out;
      for (int n = 0; hosts_ && n <= kNodes; ++n)
        for (const std::string& at : listeners(hosts_->name(n)))
          out.insert(std::to_string(n) + " " + at);
      for (const std::string& at : listeners("self"))
        if (serves_ && at.ends_with(fmt::format(":{:04X}", address_.port))) out.insert(at);
      return out;
    };
    for (int look = 0; look < 100 && !left().empty(); ++look)
      std::this_thread::sleep_for(milliseconds(100));
    EXPECT_EQ(left(), std::set<std::string>());
  }

  // False: there was no room for it, so it does not count.
  bool submit() {
    const auto n = static_cast<int64_t>(++offered_);
    const std::string name = "job" + std::to_string(n);
    const bool command = n % 3 == 0, staged = n % 3 == 1 && n % 2 == 0;
    const Json answer = command  ? offer_commands(name, n % 2 == 0)
                        : staged ? offer_stages(name, 400 + 80 * (n % 5))
                                 : service_->offer(name, 400 + 80 * (n % 5), 1 + n % 4);
    const int status = answer.is_null() ? 0 : answer.at("status").get<int>();
    EXPECT_TRUE(status == 201 || status == 503) << answer;
    if (status != 201) return false;
    const Json& body = answer.at("body");
    const Json made = body.contains("ids") ? body.at("ids") : Json::array({body.at("id")});
    for (const JobId id : made.get<std::vector<JobId>>()) {
      ids_.push_back(id);
      if (command) commands_.insert(id);
      if (staged) staged_.insert(id);
    }
    return true;
  }

  // One, or an array of two.
  Json offer_commands(const std::string& name, bool array) {
    const Json spec = {{"command", {"/bin/sh", "-c", counting()}},
                       {"directory", counts_.path().string()},
                       {"retries", 1000},
                       {"grace", 1}};
    Json body = {{"name", name}, {"kind", "command"}};
    if (array)
      body["array"] = {{{"index", 0}, {"spec", spec}}, {{"index", 1}, {"spec", spec}}};
    else
      body["spec"] = spec;
    return service_->send("POST", "/v1/jobs", dump_json(body));
  }

  // By two pipelines of two stages.
  Json offer_stages(const std::string& name, int64_t steps) {
    const Json plan = {{"virtual_ranks", 4},
                       {"pipelined", "replicas = 2\nmicro_batches = 4\n"},
                       {"seconds", 0.02},
                       {"plan", "{}"}};
    const std::string job = fmt::format(
        "[train]\nmax_steps = {}\nvirtual_ranks = 4\nbatch_size = 64\n[checkpoint]\n"
        "every_steps = 20\n",
        steps);
    return service_->offer(name, steps, 4, 1,
                           {{"spec", {{"job", job}, {"plans", Json::array({plan})}}}});
  }

  void disturb() {
    const uint32_t dice = rng_.below(serves_ ? 136 : 128);
    if (dice >= 128) return reload();
    if (dice >= 124) return notify();
    if (dice >= 116) return pause_job();
    if (dice >= 100) return trouble_a_disk();
    if (dice < 40) return hit("worker killed", service_->workers(), SIGKILL);
    if (dice < 52) return pause("worker stopped", service_->workers());
    if (dice < 64) return hit("agent killed", service_->agents(some_node()), SIGKILL);
    if (dice < 72) return pause("agent stopped", service_->agents(some_node()));
    if (dice < 82) {
      ++done_["service killed"];
      ++faults_;
      service_->kill_service();
      std::this_thread::sleep_for(milliseconds(rng_.below(500)));
      return service_->start();
    }
    if (dice < 87) return pause("service stopped", {service_->process()});
    if (dice < 94) return cut();
    const std::string node = some_node();
    const bool drains = rng_.below(2) == 0;
    ++done_[drains ? "drain" : "undrain"];
    ++faults_;
    service_->send("POST", "/v1/nodes/" + node + (drains ? "/drain" : "/undrain"), "{}");
  }

  std::string some_node() { return nodes_[rng_.below(kNodes)]; }

  pid_t one_of(const std::set<pid_t>& pids) {
    if (pids.empty()) return 0;
    return *std::next(pids.begin(), rng_.below(static_cast<uint32_t>(pids.size())));
  }
  void hit(const char* what, const std::set<pid_t>& pids, int signal) {
    const pid_t pid = one_of(pids);
    if (pid <= 0 || ::kill(pid, signal) != 0) return;
    ++done_[what];
    ++faults_;
  }
  void pause(const char* what, const std::set<pid_t>& pids) {
    const pid_t pid = one_of(pids);
    if (pid <= 0 || ::kill(pid, SIGSTOP) != 0) return;
    ++done_[what];
    ++faults_;
    std::this_thread::sleep_for(milliseconds(100 + rng_.below(2500)));
    ::kill(pid, SIGCONT);
  }
  void pause_job() {
    const JobId id = ids_[rng_.below(static_cast<uint32_t>(ids_.size()))];
    ++done_["job paused"];
    ++faults_;
    service_->act(id, "pause");  // refused where it has ended
    std::this_thread::sleep_for(milliseconds(rng_.below(1500)));
    service_->act(id, "resume");
  }
  void reload() {
    const int64_t wanted = 1 + rng_.below(static_cast<uint32_t>(kWeights));
    const Json answer = service_->send("POST", "/v1/jobs/" + std::to_string(serving_) + "/reload",
                                       dump_json(Json{{"version", wanted}}));
    const int status = answer.is_null() ? 0 : answer.at("status").get<int>();
    EXPECT_TRUE(status == 200 || status == 503) << answer;
    if (status != 200) return;
    weights_ = wanted;
    ++done_["other weights"];
    ++faults_;
  }
  // Its machine is taken back, and comes again.
  void notify() {
    const std::string node = some_node();
    const pid_t agent = one_of(service_->agents(node));
    if (agent <= 0 || ::kill(agent, SIGTERM) != 0) return;
    ++done_["notice"];
    ++faults_;
    std::this_thread::sleep_for(milliseconds(100 + rng_.below(2500)));
    service_->change_machine(node);
    ::kill(agent, SIGKILL);
  }

  // Sometimes with something else meanwhile. A service that was killed may not be able to begin
  // before there is room again, or the disk is there.
  void trouble_a_disk() {
    const uint32_t which = rng_.below(3);
    const SmallDisk& disk = which == 0 ? store_disk_ : shared_disk_;
    const bool away = which == 2 && !service_->workers().empty();  // so a job has begun
    if (!(away ? disk.hide() : disk.fill()))
      return hit("worker killed", service_->workers(), SIGKILL);
    ++done_[away         ? "shared disk away"
            : which == 0 ? "disk of the store filled"
                         : "shared disk filled"];
    ++faults_;
    const uint32_t dice = rng_.below(8);
    if (dice < 2) hit("worker killed", service_->workers(), SIGKILL);
    if (dice == 2) hit("agent killed", service_->agents(some_node()), SIGKILL);
    if (dice == 3) {
      service_->kill_service();
      ++done_["service killed"];
      ++faults_;
      service_->start();
      if (!service_->lives()) ++done_["a disk kept the service from beginning"];
    }
    if (dice >= 4 && service_->lives() && !submit()) ++done_["submission refused"];
    // A run that is not to be seen is missed after two looks, some seconds apart.
    const uint32_t longer = away && rng_.below(4) == 0 ? 10'000 : 0;
    std::this_thread::sleep_for(milliseconds(100 + rng_.below(3000) + longer));
    const bool lived = service_->lives();
    EXPECT_TRUE(lived || dice == 3) << "a disk ended the service";
    if (away) {
      EXPECT_TRUE(disk.show()) << "something was made in the place of the disk";
    } else {
      disk.empty();
    }
    if (!lived) service_->start();
    EXPECT_TRUE(service_->lives());
  }

  // Sometimes for longer than the grace.
  void cut() {
    if (!hosts_) return hit("agent killed", service_->agents(some_node()), SIGKILL);
    const int host = 1 + static_cast<int>(rng_.below(kNodes));
    hosts_->cut(host);
    ++done_["cut"];
    ++faults_;
    std::this_thread::sleep_for(milliseconds(100 + rng_.below(5000)));
    hosts_->restore(host);
  }

  // Also those whose service is gone.
  static std::set<pid_t> agents_anywhere(const std::string& node) {
    std::set<pid_t> out;
    for (const pid_t pid : link::all_processes()) {
      try {
        const fs::path process = fs::path("/proc") / std::to_string(pid);
        if (read_file(process / "cmdline").find("host-agent") != std::string::npos &&
            read_file(process / "environ").find("NODE=" + node + '\0') != std::string::npos)
          out.insert(pid);
      } catch (const Error&) {  // gone
      }
    }
    return out;
  }

  Rng rng_;
  const std::shared_ptr<EmulatedHosts> hosts_;
  const bool serves_;  // also a job that answers requests
  std::vector<std::string> nodes_;
  std::optional<LiveService> service_;
  SmallDisk store_disk_, shared_disk_;  // over the service's folder, and within it
  const TempFolder counts_;             // of the commands; it never becomes full
  std::vector<JobId> ids_;              // acknowledged
  std::set<JobId> commands_, staged_;   // of these
  int64_t offered_ = 0;
  int64_t faults_ = 0;
  std::map<std::string, int> done_;
  const TempFolder served_;  // what answers requests
  JobId serving_ = 0;
  int64_t weights_ = kWeights;  // that it is to answer with
  net::Address address_;        // where it answers
  std::optional<Asker> asker_;
};

TEST(Nodes, NothingThatHappensToThemChangesAnyResult) {
  const std::set<std::string> before = server::testing::shared_files();
  auto hosts = std::make_shared<EmulatedHosts>(kNodes + 1);
  if (!hosts->why().empty()) {
    std::printf("one network, and no cut links: %s\n", hosts->why().c_str());
    hosts = nullptr;
  }
  const int64_t seed = from_environment("DUCTILE_CHAOS_SEED", 1);
  std::printf("DUCTILE_CHAOS_SEED=%lld\n", static_cast<long long>(seed));
  Chaos(static_cast<uint64_t>(seed), hosts)
      .run(from_environment("DUCTILE_CHAOS_FAULTS", 25), from_environment("DUCTILE_CHAOS_JOBS", 6));
  EXPECT_EQ(server::testing::shared_files(), before);
}

// Beside others.
TEST(Nodes, WhatAnswersRequestsDoesSoAgainWhateverHappens) {
  const std::set<std::string> before = server::testing::shared_files();
  auto hosts = std::make_shared<EmulatedHosts>(kNodes + 1);
  if (!hosts->why().empty()) hosts = nullptr;
  const auto seed = static_cast<uint64_t>(from_environment("DUCTILE_CHAOS_SEED", 1));
  Chaos(seed, hosts, /*serves=*/true)
      .run(from_environment("DUCTILE_CHAOS_FAULTS", 25) / 2,
           from_environment("DUCTILE_CHAOS_JOBS", 6) / 2);
  EXPECT_EQ(server::testing::shared_files(), before);
}

}  // namespace
}  // namespace ductile::cluster
