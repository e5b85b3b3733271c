// Commands with GPUs of their own, on a machine whose GPUs are files of a test.
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/cluster/testing/commands.h"
#include "ductile/cluster/testing/live_nodes.h"
#include "ductile/cluster/why_impl.h"

namespace ductile::cluster {
namespace {

using namespace testing;

// Four GPUs, of server/testdata/machines.
class Gpus : public ::testing::Test {
 protected:
  Gpus() {
    fs::copy(DUCTILE_SOURCE_DIR "/src/ductile/server/testdata/machines/four_h100", root(),
             fs::copy_options::recursive);
  }
  fs::path root() const { return folder_.path() / "root"; }
  std::function<void()> enter() const {
    return [root = root()] {
      ::setenv("DUCTILE_HARDWARE_ROOT", root.c_str(), 1);
      ::unsetenv("CUDA_VISIBLE_DEVICES");
    };
  }

 private:
  TempFolder folder_;
};

auto on_this_machine(int64_t devices) {
  return [devices](ServiceOptions& options) {
    options.devices = devices;
    options.policy = "fifo";
  };
}

// Writes what it sees into a file of its name, and goes on until there is a file "go".
JobId submit(LiveService& service, const std::string& name, int64_t gpus,
             Json more = Json::object(), int64_t devices = 1) {
  if (gpus > 0) more["gpus"] = gpus;
  return service.submit_command(
      name,
      "echo \"$CUDA_VISIBLE_DEVICES|$ROCR_VISIBLE_DEVICES|$HIP_VISIBLE_DEVICES|$DUCTILE_GPUS|\" "
      "> " +
          name + "; while [ ! -e go ]; do sleep 0.02; done",
      more, devices);
}

// Of the lists that it saw: the one at `place`.
std::set<std::string> seen(LiveService& service, const std::string& name, int place) {
  wait_for_lines(service.folder() / name, 1);
  std::string text = text_of(service.folder() / name);
  for (int i = 0; i < place; ++i) text.erase(0, text.find('|') + 1);
  text.resize(text.find('|'));
  std::set<std::string> out;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) out.insert(word);
  return out;
}

void await_why(LiveService& service, JobId id, const std::string& part) {
  service.wait(
      id, [&](const Json& job) { return job.value("why", "").find(part) != std::string::npos; });
}

TEST_F(Gpus, AreOfOneCommandAtATime) {
  LiveService service(on_this_machine(8), enter());
  const JobId a = submit(service, "a", 3), none = submit(service, "none", 0);
  const JobId b = submit(service, "b", 1);
  const std::set<std::string> of_a = seen(service, "a", 0), of_b = seen(service, "b", 0);
  EXPECT_EQ(of_a.size(), 3u);
  EXPECT_EQ(of_b.size(), 1u);
  for (const std::string& gpu : of_b) EXPECT_FALSE(of_a.contains(gpu)) << gpu;
  EXPECT_TRUE(seen(service, "none", 0).empty()) << "it asked for none";
  EXPECT_EQ(seen(service, "none", 2), std::set<std::string>{"-1"});
  const JobId c = submit(service, "c", 2);
  await_why(service, c,
            "It asks for 2 GPUs on one node, and no node has any free: job 1 (a) holds 3, job 3 "
            "(b) holds 1; it starts when 2 more are free on one of the nodes.");
  await_why(service, a, "It runs on 1 device with 3 GPUs: ");
  const Json node = service.get("/v1/nodes").at("nodes").at(0);
  EXPECT_EQ(node.at("gpus"), 4);
  EXPECT_EQ(node.at("free_gpus"), 0);
  EXPECT_EQ(node.at("hardware").at("gpus").at(0).at("name"), "NVIDIA H100 80GB HBM3");
  service.act(a, "cancel");
  EXPECT_EQ(seen(service, "c", 0).size(), 2u);
  write_file_atomic(service.folder() / "go", "");
  for (const JobId id : {none, b, c}) service.wait_for(id, "finished");
}

// Its attempt is ended in good order, and the next one follows when there is room again.
TEST_F(Gpus, GoToAHigherTierAndTheOtherOneGoesOnAfterwards) {
  LiveService service(
      [](ServiceOptions& options) {
        options.devices = 8;
        options.policy = "fifo";
        options.interval = 1;
      },
      enter());
  const auto submit_tier = [&](const std::string& name, const char* tier, int64_t gpus,
                               const std::string& script) {
    const Json body = {{"name", name},
                       {"kind", "command"},
                       {"tier", tier},
                       {"spec",
                        {{"command", {"/bin/sh", "-c", script}},
                         {"directory", service.folder().string()},
                         {"gpus", gpus}}}};
    return service.send("POST", "/v1/jobs", dump_json(body)).at("body").value("id", JobId{0});
  };
  const std::string saves =
      "echo $DUCTILE_RESTART $DUCTILE_GPUS >> low; trap 'echo saved >> low; exit 0' TERM; "
      "while [ ! -e go ]; do sleep 0.02; done";
  const JobId low = submit_tier("low", "basic", 3, saves);
  service.wait_for(low, "running");
  wait_for_lines(service.folder() / "low", 1);
  const JobId high = submit_tier(
      "high", "standard", 2, "echo $DUCTILE_GPUS > high; while [ ! -e on ]; do sleep 0.02; done");
  wait_for_lines(service.folder() / "high", 1);
  EXPECT_EQ(lines_of(service.folder() / "low"), 2) << text_of(service.folder() / "low");
  service.wait_for(low, "queued");
  await_why(service, low, "job 2 (high) holds 2 and comes first, since its tier is standard");
  write_file_atomic(service.folder() / "on", "");
  service.wait_for(high, "finished");
  wait_for_lines(service.folder() / "low", 3);
  EXPECT_NE(text_of(service.folder() / "low").find("saved\n1 "), std::string::npos);
  write_file_atomic(service.folder() / "go", "");
  service.wait_for(low, "finished");
}

TEST_F(Gpus, AreWhatTheNodeSaysAndNotTheSubmitter) {
  LiveService service(on_this_machine(2), enter());
  const Json mine = {
      {"environment", {{"CUDA_VISIBLE_DEVICES", "0,1,2,3"}, {"DUCTILE_GPUS", "0000:19:00.0"}}}};
  submit(service, "none", 0, mine);
  submit(service, "one", 1, mine);
  EXPECT_TRUE(seen(service, "none", 0).empty());
  EXPECT_TRUE(seen(service, "none", 3).empty());
  EXPECT_EQ(seen(service, "one", 0).size(), 1u);
  EXPECT_EQ(seen(service, "one", 3).size(), 1u);
}

TEST_F(Gpus, OfABuiltInWorkerAreNone) {
  LiveService service(on_this_machine(1), enter());
  const JobId id = service.submit("trains", 100000);
  service.wait_for_workers(id);
  const std::string run = service.wait_for(id, "running").value("run", "");
  std::string environment;
  for (const pid_t pid : link::workers_of(run))
    environment += '\0' + text_of(fs::path("/proc") / std::to_string(pid) / "environ");
  EXPECT_NE(environment.find(std::string(1, '\0') + "CUDA_VISIBLE_DEVICES=" + '\0'),
            std::string::npos);
}

TEST_F(Gpus, ThatNobodyHasAreWaitedForWithTheReason) {
  LiveService service(on_this_machine(2), enter());
  const JobId many = submit(service, "many", 9);
  await_why(service, many, "no node of this service has more than 4");
  const JobId next = submit(service, "next", 1);
  service.wait_for(next, "running");
  const JobId away = submit(service, "away", 4);
  await_why(service, away, "no node has more than 3 free: job 2 (next) holds 1; it starts when 1");
  const Json bad = service.send(
      "POST", "/v1/jobs",
      R"({"kind": "command", "spec": {"command": ["true"], "directory": "/", "gpus": -1}})");
  EXPECT_EQ(bad.at("status"), 400) << bad;
}

TEST_F(Gpus, AreKnownAgainByTheNextServiceAndTheNextAgent) {
  LiveService service(on_nodes({"one"}, 4), enter());
  const JobId a = submit(service, "a", 3);
  const std::set<std::string> of_a = seen(service, "a", 3);
  service.kill_service();
  service.start();
  service.wait(a, [](const Json& job) { return job.at("phase") == "running"; });
  wait_for_node(service, "one", "up");
  service.kill_agent("one");
  wait_for_node(service, "one", "away");
  wait_for_node(service, "one", "up");
  const JobId b = submit(service, "b", 1);
  const std::set<std::string> of_b = seen(service, "b", 3);
  EXPECT_EQ(of_b.size(), 1u);
  for (const std::string& gpu : of_b) EXPECT_FALSE(of_a.contains(gpu)) << gpu;
  const JobId c = submit(service, "c", 1);
  await_why(service, c, "no node has any free");
  write_file_atomic(service.folder() / "go", "");
  for (const JobId id : {a, b, c}) service.wait_for(id, "finished");
}

TEST_F(Gpus, OneThatGoesIsToldAndGivenToNobody) {
  LiveService service(on_nodes({"one"}, 4), enter());
  const JobId a = submit(service, "a", 4);
  seen(service, "a", 0);
  fs::remove(root() / "dev/nvidia2");
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (node_of(service, "one").value("gpus", 0) != 3 &&
         std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(50ms);
  const Json node = node_of(service, "one");
  EXPECT_EQ(node.at("gpus"), 3);
  EXPECT_EQ(node.at("hardware").at("gpus").at(2).at("trouble"), "there is no /dev/nvidia2 here");
  std::vector<Json> told;
  while (told.empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(50ms);
    const Json answer = service.get("/v1/events?newest=1000");
    for (const Json& event : answer.at("events"))
      if (event.at("kind") == "gpu") told.push_back(event.at("body").at("gpu"));
  }
  EXPECT_EQ(told, std::vector<Json>{"0000:9b:00.0"});
  EXPECT_EQ(service.get("/v1/jobs/" + std::to_string(a)).at("phase"), "running")
      << "what becomes of it is its own affair";
  const JobId b = submit(service, "b", 4);
  await_why(service, b, "no node of this service has more than 3");
}

TEST_F(Gpus, OneThatFailsInAJobsHandsIsCountedOnce) {
  LiveService service(on_nodes({"one"}, 4), enter());
  submit(service, "a", 3);
  const std::set<std::string> of_a = seen(service, "a", 3);
  ASSERT_EQ(of_a.size(), 3u);
  const Json gpus = node_of(service, "one").at("hardware").at("gpus");
  for (size_t n = 0; n < gpus.size(); ++n) {
    if (gpus[n].at("id") != *of_a.begin()) continue;
    fs::remove(root() / "dev" / ("nvidia" + std::to_string(n)));
    break;
  }
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (node_of(service, "one").value("gpus", 0) != 3 &&
         std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(50ms);
  EXPECT_EQ(node_of(service, "one").at("free_gpus"), 1);
  const JobId b = submit(service, "b", 1);
  service.wait_for(b, "running");
  const std::set<std::string> of_b = seen(service, "b", 3);
  ASSERT_EQ(of_b.size(), 1u);
  EXPECT_FALSE(of_a.contains(*of_b.begin()));
}

TEST(Why, NamesTheQuotaOfGpus) {
  WhyFacts facts;
  facts.job.id = 7;
  facts.job.submission.kind = "command";
  facts.job.submission.team = "vision";
  NodeRecord& node = facts.nodes.emplace_back();
  node.node = "a";
  node.devices = 8;
  node.state = NodeState::up;
  facts.hardware = {{"a", {.usable_gpus = 8}}};
  facts.gpus = {{7, 2}, {8, 1}};
  facts.quota = 8;
  facts.gpu_quota = 2;
  Holder& holder = facts.holders.emplace_back();
  holder.job = 8;
  holder.name = "first";
  holder.team = "vision";
  holder.node = "a";
  holder.devices = 1;
  EXPECT_EQ(why(facts),
            "It asks for 2 GPUs, and team vision holds 1 of its quota of 2: job 8 (first) holds 1; "
            "it starts when the team gives up 1 GPU.");
  facts.gpu_quota = 1;
  EXPECT_NE(why(facts).find("the quota of team vision is 1 GPU"), std::string::npos);
}

TEST(Why, NamesTheJobThatANodeIsKeptForAndSinceWhen) {
  WhyFacts facts;
  facts.job.id = 7;
  facts.job.submission.kind = "command";
  facts.job.submitted = 10;
  NodeRecord& node = facts.nodes.emplace_back();
  node.node = "a";
  node.devices = 8;
  node.state = NodeState::up;
  facts.hardware = {{"a", {.usable_gpus = 4}}};
  facts.gpus = {{7, 4}, {8, 1}};
  facts.now = 1300;
  facts.claim = NodeClaim{8, "large", "standard", "a", 9, 1000};
  const auto says = [&](const std::string& part) {
    return why(facts).find(part) != std::string::npos;
  };
  EXPECT_TRUE(
      says("Node a is kept for job 8 (large), which comes first and has waited for long, "
           "for 5 min now"))
      << why(facts);
  facts.claim->submitted = 11;
  EXPECT_FALSE(says("kept")) << "it comes later: " << why(facts);
  facts.claim->tier = "premium";
  EXPECT_TRUE(says("Node a is kept for job 8")) << why(facts);
  facts.claim->job = 7;
  EXPECT_TRUE(says("node a is kept for it, for 5 min now")) << why(facts);
  facts.nodes[0].state = NodeState::lost;
  EXPECT_FALSE(says("kept")) << why(facts);
}

// Neither a drain nor a quota is the reason then, unless a node may still say that it has them.
TEST(Why, SaysThatNoNodeHasAGpu) {
  WhyFacts facts;
  facts.job.id = 7;
  facts.job.submission.kind = "command";
  facts.job.submission.team = "vision";
  for (const char* name : {"a", "b"}) {
    NodeRecord& node = facts.nodes.emplace_back();
    node.node = name;
    node.devices = 2;
    node.state = NodeState::up;
    facts.hardware[name] = {};
    facts.drains.push_back({name, 0, "a fan"});
  }
  facts.gpus[7] = 1;
  facts.gpu_quota = 0;
  EXPECT_EQ(why(facts),
            "It asks for 1 GPU on one node, and no node of this service has a GPU now: it runs "
            "when there is such a node, and never if none comes; `ductile nodes` shows what each "
            "has.");
  facts.hardware.erase("b");
  EXPECT_NE(why(facts).find("none can be used, since nothing starts on a"), std::string::npos)
      << why(facts);
  facts.drains.clear();
  facts.gpu_quota.reset();
  EXPECT_EQ(why(facts),
            "It asks for 1 GPU on one node, and no node of this service has a GPU now, and one has "
            "not said yet what it has: it runs when there is such a node; `ductile nodes` shows "
            "what each has.");
}

TEST(Why, NamesADrainedNodeThatAloneHasTheGpus) {
  WhyFacts facts;
  facts.job.id = 7;
  facts.job.submission.kind = "command";
  for (const char* name : {"a", "b"}) {
    NodeRecord& node = facts.nodes.emplace_back();
    node.node = name;
    node.devices = 2;
    node.state = NodeState::up;
  }
  facts.hardware = {{"a", {.usable_gpus = 1}}, {"b", {.usable_gpus = 4}}};
  facts.gpus[7] = 2;
  facts.drains.push_back({"b", 0, "a fan"});
  const std::string text = why(facts);
  EXPECT_NE(text.find("nothing starts where there are so many: b (2 devices, drained: \"a fan\")"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace ductile::cluster
