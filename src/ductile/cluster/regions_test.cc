// Jobs of a service whose nodes are in several regions: where they run, and what `why` says of it.
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/testing/live_nodes.h"
#include "ductile/spec/cluster.h"

namespace ductile::cluster {
namespace {

using namespace testing;

// Each node is a region of its own, which is called as the node with "r-" before it.
spec::Cluster regions_of(const std::vector<std::string>& names, int64_t devices) {
  spec::Cluster out;
  for (const std::string& name : names) {
    out.groups.push_back(nodes_named({name}, devices).groups.front());
    out.groups.back().region = "r-" + name;
  }
  return out;
}

auto in_regions(const std::vector<std::string>& names, int64_t devices,
                const std::string& policy = "regional") {
  return [=](ServiceOptions& options) {
    on_nodes(names, devices)(options);
    options.cluster = regions_of(names, devices);
    options.policy = policy;
  };
}

TEST(LiveRegions, AJobBeginsWhereItsDataAreAndGoesElsewhereWhenItMust) {
  LiveService service(in_regions({"one", "two", "three"}, 1));
  const JobId id = service.submit("job", 1000, 1, 1, {{"region", "r-two"}, {"transfer", 5}});
  Json job = service.wait(id, [](const Json& now) {
    return now.value("why", "").starts_with("It runs on 1 device in region r-two");
  });
  EXPECT_EQ(nodes_of(job), std::set<std::string>{"two"});
  EXPECT_EQ(node_of(service, "two").at("region"), "r-two");
  service.send("POST", "/v1/nodes/two/drain", "{}");
  job = service.wait(id, [&](const Json& now) {
    return now.at("phase") != "running" ||
           (!nodes_of(now).empty() && !nodes_of(now).contains("two"));
  });
  service.expect_result(id);
}

TEST(LiveRegions, AJobThatStaysWaitsForItsRegion) {
  LiveService service(in_regions({"one", "two"}, 1));
  service.slow_steps(true);
  const JobId id = service.submit("job", 600, 1, 1, {{"region", "r-two"}, {"movable", false}});
  service.wait_for_workers(id);
  service.send("POST", "/v1/nodes/two/drain", R"({"reason": "a new disk"})");
  const Json job = service.wait_for(id, "queued");
  service.slow_steps(false);
  EXPECT_NE(job.value("why", "").find("It may run in region r-two alone. It asks for 1 device, and "
                                      "none can be used, since nothing starts on two"),
            std::string::npos)
      << job;
  // What the service knew of the region, the next one knows, too.
  service.kill_service();
  service.start();
  const JobId other = service.submit("other", 100);
  service.expect_result(other);
  EXPECT_EQ(service.get("/v1/jobs/" + std::to_string(id)).at("phase"), "queued");
  service.send("POST", "/v1/nodes/two/undrain");
  service.expect_result(id);
}

TEST(LiveRegions, WhatCannotBeIsRefusedWhenItIsSubmitted) {
  const auto refusal = [](LiveService& service, const Json& more, int64_t least = 1) {
    Json body = {{"name", "job"},
                 {"min_devices", least},
                 {"max_devices", least},
                 {"spec", {{"job", "[train]\nvirtual_ranks = 4\n"}}}};
    body.update(more);
    const Json answer = service.send("POST", "/v1/jobs", dump_json(body));
    EXPECT_EQ(answer.value("status", 0), 400) << answer;
    return answer.at("body").value("error", "");
  };
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  LiveService service(in_regions({"one", "two"}, 2));
  expect(refusal(service, {{"region", "r-too"}}), "r-two");
  expect(refusal(service, {{"movable", false}}), "name it");
  expect(refusal(service, {{"transfer", 3}}), "name it");
  expect(refusal(service, {{"region", "r-two"}, {"transfer", -1}}), "transfer");
  expect(refusal(service, Json::object(), 3),
         "a job runs in one region, and the largest one has 2");
  LiveService plain(in_regions({"one", "two"}, 2, "fifo"));
  expect(refusal(plain, {{"region", "r-two"}, {"movable", false}}), "--policy regional");
}

// Where a job has run, its data are; so much survives the service, as the policy's memory does.
TEST(LiveRegions, TheDataGoWithTheJob) {
  const spec::Cluster cluster = regions_of({"one", "two"}, 1);
  JobDemand demand;
  demand.id = 1;
  demand.name = "job";
  demand.region = "r-two";
  demand.transfer = 1e6;  // nobody would move
  demand.batch = 64;
  const auto place = [](const spec::Allocation& allocation) { return allocation.front().node; };
  const auto started = [&](Scheduler& scheduler, double now) {
    for (const Allotment& allotment : scheduler.decide(now))
      if (!allotment.allocation.empty()) return place(allotment.allocation);
    return -1;
  };
  Scheduler first(cluster, "regional", 10);
  first.add(demand);
  EXPECT_EQ(started(first, 10), 1);
  first.holds(1, {{1, 1}}, 10);
  first.drain(1, true);
  EXPECT_EQ(started(first, 20), 0);
  first.holds(1, {{0, 1}}, 20);
  first.drain(1, false);
  first.holds(1, {}, 30);
  Scheduler next(cluster, "regional", 10);
  next.add(demand);
  next.restore(first.state(), 30);
  EXPECT_EQ(started(next, 40), 0) << "where it is now";
}

}  // namespace
}  // namespace ductile::cluster
