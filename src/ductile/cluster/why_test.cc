// What the service says of a job, in each situation that a job can be in.
#include <gtest/gtest.h>

#include "ductile/cluster/database.h"
#include "ductile/cluster/testing/live_service.h"
#include "ductile/cluster/why_impl.h"

namespace ductile::cluster {
namespace {

using namespace testing;

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" in: " << text;
}

// Waits until the sentence has the first part, then checks the others.
void expect_why(LiveService& cluster, JobId id, const std::vector<std::string>& parts) {
  const Json job = cluster.wait(id, [&](const Json& j) {
    return j.value("why", "").find(parts.front()) != std::string::npos;
  });
  expect_parts(job.value("why", ""), parts);
}

TEST(Why, SaysWhoHoldsTheClusterAndWhatWouldHaveToHappen) {
  LiveService cluster(3, "fifo");
  const JobId first = cluster.submit_command("first", "sleep 1000", {}, 2);
  cluster.wait_for(first, "running");
  const JobId second = cluster.submit_command("second", "sleep 1000", {}, 2);
  expect_why(cluster, second,
             {"It asks for 2 devices, and 1 of 3 are free: job 1 (first) holds 2;",
              "it starts when 1 more is free", "ends, is paused or shrinks"});
  expect_why(cluster, first, {"It runs on 2 devices:"});
  cluster.act(second, "pause");
  cluster.wait_for(second, "paused");
  expect_why(cluster, second, {"Its user paused it; `ductile resume 2` lets it begin."});
}

TEST(Why, SaysThatAHigherTierComesFirst) {
  LiveService cluster(1);
  const JobId high = cluster.submit_command("high", "sleep 1000");
  cluster.wait_for(high, "running");
  const Json body = {{"name", "low"}, {"tier", "basic"}, {"spec", {{"job", ""}}}};
  const Json answer = cluster.send("POST", "/v1/jobs", dump_json(body));
  const JobId low = answer.at("body").at("id");
  expect_why(
      cluster, low,
      {"none of 1 are free: job 1 (high) holds 1 and comes first, since its "
       "tier is standard",
       "Jobs of higher tiers come first: 1 of these runs or waits for devices, none submitted "
       "after it"});
  cluster.submit_command("later", "sleep 1000");
  expect_why(cluster, low,
             {"2 of these run or wait for devices, 1 submitted after it", "`--quota`"});
}

// Neither what begins after others nor what its user holds is before anybody.
TEST(Why, CountsOnlyWhatRunsOrWaitsForDevicesAsBeforeAJob) {
  LiveService cluster(1);
  const auto submit = [&](const char* name, const char* tier, Json more) {
    Json body = {{"name", name},
                 {"tier", tier},
                 {"kind", "command"},
                 {"spec", {{"command", {"sleep", "1000"}}, {"directory", "/"}, {"grace", 0.1}}}};
    body.update(more);
    return cluster.send("POST", "/v1/jobs", dump_json(body)).at("body").value("id", JobId{0});
  };
  const JobId high = submit("high", "standard", Json::object());
  cluster.wait_for(high, "running");
  const JobId low = submit("low", "basic", Json::object());
  expect_why(cluster, low, {"1 of these runs or waits for devices, none submitted after it"});
  const JobId second = submit("second", "standard", {{"after", {high}}});
  const JobId held = submit("held", "premium", {{"held", true}});
  for (const JobId id : {second, held})
    cluster.wait(id, [](const Json& job) { return !job.value("why", "").empty(); });
  const JobId waits = submit("waits", "standard", Json::object());
  expect_why(cluster, low, {"2 of these run or wait for devices, 1 submitted after it"});
  cluster.act(waits, "pause");
  expect_why(cluster, low, {"1 of these runs or waits for devices, none submitted after it"});
  cluster.act(held, "resume");
  expect_why(cluster, low, {"2 of these run or wait for devices, 1 submitted after it"});
  cluster.act(held, "cancel");
  expect_why(cluster, low, {"1 of these runs or waits for devices, none submitted after it"});
}

// Under each policy: it is saved for one of a higher tier, and goes on when that has ended.
TEST(Why, SaysForWhomAJobOfALowerTierMadeRoom) {
  for (const char* policy : {"ductile", "fifo", "tiresias"}) {
    LiveService cluster(1, policy);
    const auto submit = [&](const char* name, const char* tier, const char* script) {
      const Json body = {
          {"name", name},
          {"tier", tier},
          {"kind", "command"},
          {"spec", {{"command", {"/bin/sh", "-c", script}}, {"directory", "/"}, {"grace", 5}}}};
      return cluster.send("POST", "/v1/jobs", dump_json(body)).at("body").value("id", JobId{0});
    };
    const JobId low = submit("low", "basic", "exec sleep 1000");
    cluster.wait_for(low, "running");
    const JobId high = submit("high", "premium", "exec sleep 1000");
    cluster.wait_for(high, "running");
    cluster.wait_for(low, "queued");
    expect_why(cluster, low, {"job 2 (high) holds 1 and comes first, since its tier is premium"});
    cluster.act(high, "cancel");
    cluster.wait_for(low, "running");
  }
}

TEST(Why, SaysThatANodeIsDrained) {
  LiveService cluster(2);
  cluster.send("POST", "/v1/nodes/here/drain", "{\"reason\": \"new disk\"}");
  const JobId id = cluster.submit("waits", 20);
  expect_why(cluster, id,
             {"It asks for 1 device, and none can be used",
              "here (2 devices, drained: \"new disk\")", "`ductile undrain here` takes it back"});
  const Json nodes = cluster.get("/v1/nodes").at("nodes");
  EXPECT_EQ(nodes.at(0).at("state"), "drained");
  EXPECT_EQ(nodes.at(0).at("free"), 0);
  cluster.send("POST", "/v1/nodes/here/undrain");
  cluster.expect_result(id);
  EXPECT_EQ(cluster.get("/v1/jobs/" + std::to_string(id)).at("why"), "It is done after 20 steps.");
}

TEST(Why, NamesTheNodesOfAJobThatRunsAndWhatIsTheMatterWithThem) {
  WhyFacts facts;
  facts.job.id = 7;
  facts.job.phase = Phase::running;
  facts.job.reason = "It was alone.";
  facts.job.submission.min_devices = facts.job.submission.max_devices = 3;
  for (const char* name : {"one", "two", "three"}) {
    NodeRecord& node = facts.nodes.emplace_back();
    node.node = name;
    node.devices = 2;
    node.state = NodeState::up;
  }
  const auto hold = [&](JobId job, const char* node, int64_t devices) {
    Holder& holder = facts.holders.emplace_back();
    holder.job = job;
    holder.node = node;
    holder.devices = devices;
  };
  hold(7, "one", 2);
  hold(7, "two", 1);
  hold(8, "three", 1);
  EXPECT_EQ(why(facts),
            "It runs on 3 devices: It was alone. It is on node one (2 devices) and node two (1 "
            "device).");
  facts.nodes[1].state = NodeState::away;
  facts.nodes[1].why = "it does not answer.";
  EXPECT_EQ(why(facts),
            "It runs on 3 devices: It was alone. It is on node two (1 device, away: it does not "
            "answer) and node one (2 devices).");
  facts.drains.push_back({"one", 0, "a fan"});
  expect_parts(why(facts),
               {"node one (2 devices, drained: \"a fan\") and node two (1 device, away: it"});
  facts.live = LiveState{LiveState::Moment::starting, ""};
  expect_parts(why(facts), {"It is just starting on 3 devices", "It is on node one (2 devices, "});
  facts.live.reset();
  facts.drains.clear();
  facts.nodes.resize(1);
  facts.holders.resize(1);
  EXPECT_EQ(why(facts), "It runs on 2 devices: It was alone.") << "there is no other node";
}

// What helps is named: a service never ends, and a drained node has room.
TEST(Why, NamesServicesAndDrainedNodesInWhatWouldHaveToHappen) {
  WhyFacts facts;
  facts.job.id = 7;
  facts.job.submission.kind = "command";
  facts.job.submission.min_devices = facts.job.submission.max_devices = 2;
  for (const char* name : {"one", "two"}) {
    NodeRecord& node = facts.nodes.emplace_back();
    node.node = name;
    node.devices = 2;
    node.state = NodeState::up;
  }
  Holder& holder = facts.holders.emplace_back();
  holder.job = 3;
  holder.name = "api";
  holder.node = "one";
  facts.drains.push_back({"two", 0, "a fan"});
  const std::vector<std::string> drained = {
      "Nothing starts on two (2 devices, drained: \"a fan\"): `ductile undrain two` takes it "
      "back."};
  expect_parts(why(facts), drained);
  EXPECT_EQ(why(facts).find("service"), std::string::npos) << why(facts);
  facts.services = {3};
  expect_parts(why(facts),
               {"Job 3 (api) is a service, which does not end by itself: `ductile cancel "
                "3` ends it."});
  facts.nodes.push_back(facts.nodes.front());  // enough are free, and not on one node
  facts.nodes.back().node = "four";
  facts.holders.push_back(facts.holders.front());
  facts.holders.back().node = "four";
  expect_parts(why(facts), {"no node has more than 1"});
  expect_parts(why(facts), drained);
  facts.drains.push_back({"three", 0, ""});
  expect_parts(why(facts), {"`ductile undrain NODE` takes a drained node back"});
  facts.drains.clear();
  EXPECT_EQ(why(facts).find("undrain"), std::string::npos) << why(facts);
}

// Nobody needs what it gives up.
TEST(Why, SaysWhichNodeAJobHadToLeave) {
  LiveService cluster(1);
  const JobId id = cluster.submit_command("leaves", ": > began; exec sleep 1000");
  cluster.wait(id, [&](const Json&) { return fs::exists(cluster.folder() / "began"); });
  cluster.send("POST", "/v1/nodes/here/drain", "{\"reason\": \"a fan\"}");
  cluster.wait_for(id, "queued");
  const std::string events = cluster.get("/v1/events?limit=1000").dump();
  EXPECT_NE(events.find(R"(It had to leave: node here is drained, \"a fan\".)"), std::string::npos)
      << events;
  EXPECT_EQ(events.find("made room"), std::string::npos) << events;
}

// It was submitted to a larger service.
TEST(Why, SaysThatAJobIsTooLarge) {
  LiveService cluster(4);
  const JobId id = cluster.submit_command("large", "sleep 1000", {}, 4);
  cluster.wait_for(id, "running");
  EXPECT_EQ(cluster.stop(), 0);
  cluster.start(2);
  expect_why(cluster, id,
             {"It asks for 4 devices, and this service has 2 in all", "started again with more",
              "`ductile resize 1 N`"});
  // Which is then done.
  cluster.send("POST", "/v1/jobs/1/resize", "{\"min_devices\": 1, \"max_devices\": 1}");
  cluster.wait_for(id, "running");
}

TEST(Why, SaysThatAJobIsTriedAgainAndWhatWentWrong) {
  LiveService cluster;
  const JobId id = cluster.submit_command("fails", "exit 3", {{"retries", 5}});
  expect_why(cluster, id, {"tried again within a few seconds", "exit code 3; retry 1 of 5"});
}

TEST(Why, SaysThatAJobIsJustStartingOrBeingSaved) {
  TempFolder folder;
  const fs::path hold = folder.path() / "hold", script = folder.path() / "worker";
  write_file_atomic(hold, "");
  write_file_atomic(script, "#!/bin/sh\nwhile [ -e " + hold.string() +
                                " ]; do sleep 0.05; done\nexec " DUCTILE_TEST_WORKER " \"$@\"\n");
  fs::permissions(script, fs::perms::owner_all);
  LiveService cluster(2, "ductile", script);
  const JobId slow = cluster.submit("slow", 20);
  expect_why(cluster, slow, {"It is just starting on 1 device"});
  const JobId saves =
      cluster.submit_command("saves", "trap '' TERM; : > trapped; while [ -e " + hold.string() +
                                          " ]; do sleep 0.05; done");
  expect_why(cluster, saves, {"It runs on 1 device"});
  // One that ends before it is told to stop has finished.
  cluster.wait(saves, [&](const Json&) { return fs::exists(cluster.folder() / "trapped"); });
  cluster.act(saves, "pause");
  expect_why(cluster, saves, {"It is being saved, and gives up 1 device: its user paused it."});
  fs::remove(hold);
  cluster.wait_for(saves, "paused");
  cluster.expect_result(slow);
}

TEST(Why, NamesTheQuota) {
  LiveService cluster([](ServiceOptions& options) {
    options.devices = 3;
    options.policy = "fifo";
    options.quotas = {{"vision", 2}};
  });
  const auto submit = [&](const char* name, const char* team, int64_t devices) {
    const Json body = {{"name", name},
                       {"team", team},
                       {"kind", "command"},
                       {"min_devices", devices},
                       {"max_devices", devices},
                       {"spec", {{"command", {"/bin/sleep", "1000"}}, {"directory", "/"}}}};
    return cluster.send("POST", "/v1/jobs", dump_json(body)).at("body").value("id", JobId{0});
  };
  const JobId first = submit("first", "vision", 1), second = submit("second", "vision", 2);
  const JobId other = submit("other", "speech", 2);
  cluster.wait_for(first, "running");
  cluster.wait_for(other, "running");  // nobody waits for those that wait for their quota
  expect_why(
      cluster, second,
      {"It asks for 2 devices, and team vision holds 1 of its quota of 2: job 1 (first) holds "
       "1; it starts when the team gives up 1 device."});
  cluster.act(other, "cancel");
  cluster.wait_for(other, "cancelled");
  expect_why(cluster, second, {"its quota of 2"});
  cluster.act(first, "cancel");
  cluster.wait_for(second, "running");
  const JobId large = submit("large", "vision", 3);
  expect_why(cluster, large, {"It asks for 3 devices, and the quota of team vision is 2"});
}

// Whoever came later does not come first, though the clock was set back in between.
TEST(Turn, IsThatOfTheSubmissionsWhateverTheClockSaid) {
  LiveService cluster([](ServiceOptions& options) {
    options.devices = 2;
    options.policy = "fifo";
    options.quotas = {{"vision", 1}};
  });
  const auto submit = [&](const char* name) {
    const Json body = {{"name", name},
                       {"team", "vision"},
                       {"kind", "command"},
                       {"spec", {{"command", {"/bin/sleep", "1000"}}, {"directory", "/"}}}};
    return cluster.send("POST", "/v1/jobs", dump_json(body)).at("body").value("id", JobId{0});
  };
  const JobId holds = submit("holds"), first = submit("first"), second = submit("second");
  cluster.wait_for(holds, "running");
  EXPECT_EQ(cluster.stop(), 0);
  Database(cluster.folder() / "store.db", Database::Access::write)
      .execute("UPDATE jobs SET submitted = submitted - 3600 WHERE name = 'second'");
  cluster.start();
  cluster.wait_for(holds, "running");
  cluster.act(holds, "cancel");
  cluster.wait_for(first, "running");
  EXPECT_EQ(cluster.get("/v1/jobs/" + std::to_string(second)).value("phase", ""), "queued");
}

// The user's wish for more or fewer devices: recorded, obeyed, and no fight with the policy.
TEST(Resize, AJobGetsWhatItsUserWants) {
  for (const char* policy : {"ductile", "fifo", "sia"}) {
    LiveService cluster(4, policy);
    const JobId id = cluster.submit("job", 100000, 1);
    const auto held = [&](int64_t devices) {
      cluster.wait(id,
                   [&](const Json& job) { return job.at("holdings").value("here", 0) == devices; });
    };
    held(1);
    const std::string path = "/v1/jobs/" + std::to_string(id) + "/resize";
    for (const int64_t devices : {3, 4, 2}) {
      const Json body = {{"min_devices", devices}, {"max_devices", devices}};
      EXPECT_EQ(cluster.send("POST", path, dump_json(body)).at("status"), 200);
      held(devices);
    }
    EXPECT_EQ(cluster.send("POST", path, "{\"min_devices\": 9}").at("status"), 400);
    EXPECT_EQ(cluster.send("POST", path, "{\"max_devices\": 5}").at("status"), 400);  // ranks
    EXPECT_EQ(cluster.send("POST", path, "{\"min_devices\": 3, \"max_devices\": 2}").at("status"),
              400);
    int64_t recorded = 0;
    const Json events = cluster.get("/v1/events?limit=1000").at("events");
    for (const Json& event : events) recorded += event.at("kind") == "devices";
    EXPECT_EQ(recorded, 3);
    cluster.act(id, "cancel");
    cluster.wait_for(id, "cancelled");
  }
}

TEST(Resize, ACommandKeepsItsDevicesWhileItRuns) {
  LiveService cluster(3);
  const JobId id =
      cluster.submit_command("job", "echo $DUCTILE_DEVICES; sleep 1000", {{"grace", 1}});
  const fs::path run = cluster.wait_for(id, "running").value("run", "");
  const std::string body = "{\"min_devices\": 2, \"max_devices\": 2}";
  EXPECT_EQ(cluster.send("POST", "/v1/jobs/1/resize", body).at("status"), 409);
  cluster.act(id, "pause");
  cluster.wait_for(id, "paused");
  EXPECT_EQ(cluster.send("POST", "/v1/jobs/1/resize", body).at("status"), 200);
  cluster.act(id, "resume");
  cluster.wait(id, [&](const Json&) {
    return read_file(run / "worker.log").find("2\n") != std::string::npos;
  });
}

}  // namespace
}  // namespace ductile::cluster
