// Jobs that answer requests, with real services, replicas, connections and clients.
#include <atomic>
#include <csignal>
#include <cstddef>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/paths.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/tensor.h"
#include "ductile/ckpt/writer.h"
#include "ductile/cluster/front_impl.h"
#include "ductile/cluster/testing/live_service.h"
#include "ductile/cluster/testing/served.h"
#include "ductile/net/socket.h"
#include "ductile/sched/policy.h"
#include "ductile/serving/testing/client.h"
#include "ductile/spec/cluster.h"

namespace ductile::cluster {
namespace {

using namespace testing;
using serving::testing::Client;
using serving::testing::json_of;

auto with_replicas(int64_t devices) {
  return [devices](ServiceOptions& options) {
    options.devices = devices;
    options.worker = DUCTILE_SERVING_WORKER;
  };
}

auto on_nodes(std::vector<std::string> names, int64_t devices) {
  return [names = std::move(names), devices](ServiceOptions& options) {
    spec::NodeGroup group;
    group.type = "cpu";
    group.devices = devices;
    group.hosts = names;
    group.count = static_cast<int64_t>(names.size());
    options.cluster = spec::Cluster{{group}, {}};
    options.launcher = "env NODE={host}";
    options.listen = "127.0.0.1";
    options.program = DUCTILE_SERVING_WORKER;
    options.worker = DUCTILE_SERVING_WORKER;
  };
}

TEST(ServingJob, AnswersAtItsAddressUntilItIsCancelled) {
  LiveService service(with_replicas(2));
  const ServedRun run;
  const JobId id = submit_service(service, run, 1, 1);
  const Json job = wait_for_replicas(service, id, 1);
  EXPECT_EQ(job.at("kind"), "serve");
  const std::string url = job.at("serving").at("address");
  // A replica is counted as soon as it runs, and answers a little later.
  service.wait(id, [&](const Json& now) {
    return now.value("why", "").find("it answers at " + url) != std::string::npos;
  });
  Clients clients(address_of(job), 2);
  clients.wait_for_more(50);
  clients.stop();
  EXPECT_EQ(clients.first_wrong(), "");
  EXPECT_EQ(clients.versions(), (std::set<int64_t>{7}));
  service.wait(id, [](const Json& now) { return now.at("serving").at("answered") >= 50; });
  const std::string metrics = service.text("/metrics");
  EXPECT_NE(metrics.find("\nductile_service_replicas{job=\"" + std::to_string(id) +
                         "\",name=\"api\"} 1\n"),
            std::string::npos)
      << metrics;
  service.act(id, "cancel");
  const Json ended = service.wait_for(id, "cancelled");
  EXPECT_FALSE(ended.contains("serving"));
  EXPECT_EQ(service.text("/metrics").find("ductile_service_replicas"), std::string::npos);
  service.wait_for_no_workers();
  EXPECT_THROW(Client(address_of(job)), Error);
  EXPECT_EQ(service.stop(), 0);
}

TEST(ServingJob, SaysWhatIsWrongWithItsRun) {
  LiveService service(with_replicas(1));
  ServedRun run;
  write_file_atomic(run.folder.path() / "fails", "the weights are damaged");
  const JobId id = submit_service(service, run, 1, 1);
  const Json job = service.wait_for(id, "failed");
  EXPECT_NE(job.value("reason", "").find("the weights are damaged"), std::string::npos) << job;
  service.wait_for_no_workers();
  const auto refused = [&](const Json& spec) {
    const Json body = {{"name", "api"}, {"kind", "serve"}, {"spec", spec}};
    return service.send("POST", "/v1/jobs", dump_json(body)).at("status").get<int>();
  };
  EXPECT_EQ(refused({{"run", "/nowhere"}, {"model", "small"}}), 404);
  EXPECT_EQ(refused({{"run", "here"}, {"model", "small"}}), 400);
  Json spec = run.spec();
  spec["model"] = "../x";
  EXPECT_EQ(refused(spec), 400);
  spec = run.spec();
  spec["target"] = 0;
  EXPECT_EQ(refused(spec), 400);
}

TEST(ServingJob, OthersServeRunsOfTheirOwnJobsAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  LiveService service(with_replicas(1));
  const JobId mine = service.submit("mine", 20);
  service.wait_for(mine, "finished");
  const Json train = {
      {"name", "theirs"},
      {"spec", {{"job", "[train]\nmax_steps = 20\nvirtual_ranks = 4\nbatch_size = 64\n"}}}};
  ASSERT_EQ(service.submit_as_stranger(train), 201);
  const Json theirs = service.wait_for(mine + 1, "finished");
  const auto serve = [&](const fs::path& run) {
    return service.submit_as_stranger(Json{
        {"name", "api"}, {"kind", "serve"}, {"spec", {{"run", run.string()}, {"model", "m"}}}});
  };
  const fs::path run = theirs.value("run", "");
  EXPECT_EQ(serve(service.get("/v1/jobs/" + std::to_string(mine)).value("run", "")), 403);
  EXPECT_EQ(serve(run), 201);
  EXPECT_EQ(serve(run.parent_path() / ".." / "runs" / run.filename()), 201);
  // What a link leads to can change later: the job keeps what was looked at.
  const TempFolder elsewhere;
  fs::create_directory_symlink(run, elsewhere.path() / "link");
  EXPECT_EQ(serve(elsewhere.path() / "link"), 201);
  EXPECT_EQ(service.get("/v1/jobs/api").at("spec").at("run"), fs::canonical(run).string());
  // It waits for the one device, and listens nowhere yet.
  const auto at_port = [&](int port) {
    return Json{{"name", "at-port"},
                {"kind", "serve"},
                {"spec", {{"run", run.string()}, {"model", "m"}, {"port", port}}}};
  };
  EXPECT_EQ(service.submit_as_stranger(at_port(80)), 403);
  EXPECT_EQ(service.submit_as_stranger(at_port(1023)), 403);
  EXPECT_EQ(service.submit_as_stranger(at_port(1024)), 201);
  EXPECT_EQ(service.send("POST", "/v1/jobs", dump_json(at_port(80))).value("status", 0), 201)
      << "an admin may";
  EXPECT_EQ(serve(run.parent_path()), 403);
  EXPECT_EQ(serve("/etc"), 403);
  fs::create_directory(run.parent_path() / "2-other");
  EXPECT_EQ(serve(run.parent_path() / "2-other"), 403) << "not the folder of that job";
  const fs::path runs = run.parent_path(), away = service.folder() / "away";
  fs::rename(runs, away);
  EXPECT_NE(serve(run), 403) << "their disk is not mounted";
  fs::rename(away, runs);
  EXPECT_EQ(serve(run), 201);
}

TEST(ServingJob, GrowsWithItsLoadAndShrinksWithoutIt) {
  LiveService service(with_replicas(3));
  const ServedRun run(10'000);
  const JobId id = submit_service(service, run, 1, 3, {{"max_batch", 1}, {"target", 0.05}});
  const Json job = wait_for_replicas(service, id, 1);
  {
    Clients clients(address_of(job), 6);
    wait_for_replicas(service, id, 3);
    clients.stop();
    EXPECT_EQ(clients.first_wrong(), "");
  }
  wait_for_replicas(service, id, 1);
  const Json events = service.get("/v1/events?limit=1000&job=" + std::to_string(id));
  EXPECT_TRUE(std::ranges::any_of(events.at("events"),
                                  [](const Json& event) { return event.at("kind") == "load"; }));
}

// A service of two nodes is resized, gets other weights, loses replicas and nodes, and every
// request is answered with the bits of its version.
TEST(ServingJob, LosesNoRequest) {
  LiveService service(on_nodes({"one", "two"}, 2));
  const ServedRun run(1000);
  const JobId id = submit_service(service, run, 2, 2);
  const Json job = wait_for_replicas(service, id, 2);
  const net::Address at = address_of(job);
  Clients clients(at, 4);
  const auto go_on = [&] { clients.wait_for_more(60); };
  go_on();
  Rng rng(3);
  const auto resize = [&](int64_t devices) {
    const Json body = {{"min_devices", devices}, {"max_devices", devices}};
    service.send("POST", "/v1/jobs/" + std::to_string(id) + "/resize", dump_json(body));
    wait_for_replicas(service, id, devices);
    go_on();
  };
  for (const int64_t devices : {4, 1, 3, 2}) resize(devices);
  for (int turn = 0; turn < 3; ++turn) {
    const std::set<pid_t> pids = replicas_of(service);
    ASSERT_FALSE(pids.empty());
    ::kill(*std::next(pids.begin(), rng.below(static_cast<uint32_t>(pids.size()))), SIGKILL);
    go_on();
    service.wait(id, [&](const Json& now) {
      return ready_of(now) == 2 && replicas_of(service).size() == 2 && replicas_of(service) != pids;
    });
  }
  Client loader(at);
  const auto loaded =
      loader.post("/v2/repository/models/small/load", R"({"parameters": {"version": "3"}})");
  ASSERT_TRUE(loaded && loaded->status == 200);
  go_on();
  resize(3);  // the new one has the weights of the others
  for (const std::string node : {"one", "two"}) {
    service.send("POST", "/v1/nodes/" + node + "/drain", "{}");
    service.wait(id, [&](const Json& now) {
      return !now.at("holdings").contains(node) && ready_of(now) > 0 &&
             service.get("/v1/nodes").dump().find("\"draining\"") == std::string::npos;
    });
    go_on();
    service.send("POST", "/v1/nodes/" + node + "/undrain", "{}");
    wait_for_replicas(service, id, 3);
    go_on();
  }
  clients.stop();
  EXPECT_EQ(clients.wrong(), 0) << clients.first_wrong();
  EXPECT_EQ(clients.versions(), (std::set<int64_t>{3, 7}));
  Client last(at);
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(json_of(*last.post("/v2/models/small/infer", body_of(std::vector<float>(16))))
                  .at("model_version"),
              "3");
  EXPECT_EQ(service.stop(), 0);
  service.wait_for_no_workers();
}

TEST(ServingJob, LoadsTheWeightsThatItsUserWantsAlsoWherePausedMeanwhile) {
  LiveService service(with_replicas(3));
  const ServedRun run;
  const auto reload = [&](JobId job, const Json& body) {
    return service.send("POST", "/v1/jobs/" + std::to_string(job) + "/reload", dump_json(body))
        .value("status", 0);
  };
  const JobId id = submit_service(service, run, 2, 2);
  const net::Address at = address_of(wait_for_replicas(service, id, 2));
  const auto says = [&](const std::string& text) {
    return service.get("/v1/events?limit=1000").dump().find(text) != std::string::npos;
  };
  const auto expect = [&](const std::string& text, const std::string& version) {
    service.wait(id, [&](const Json&) { return says(text); });
    Client client(at);
    for (int i = 0; i < 10; ++i)
      EXPECT_EQ(json_of(*client.post("/v2/models/small/infer", body_of(std::vector<float>(16))))
                    .at("model_version"),
                version);
  };
  EXPECT_EQ(reload(id, {{"version", 3}}), 200);
  expect("all replicas have the weights of step 3", "3");
  EXPECT_EQ(reload(id, {{"version", 8}}), 200);
  expect("there is no checkpoint of step 8", "3");
  service.act(id, "pause");
  service.wait_for(id, "paused");
  for (const int version : {2, 4}) EXPECT_EQ(reload(id, {{"version", version}}), 200);
  service.kill_service();
  service.start();
  service.act(id, "resume");
  wait_for_replicas(service, id, 2);
  expect("all replicas have the weights of step 4", "4");
  EXPECT_FALSE(says("all replicas have the weights of step 2"));
  EXPECT_EQ(reload(id, Json::object()), 200);
  expect("all replicas have the weights of step 7", "7");
  EXPECT_EQ(reload(service.submit("training", 40), Json::object()), 409);
  service.act(id, "cancel");
  service.wait_for(id, "cancelled");
  EXPECT_EQ(reload(id, {{"version", 3}}), 409);
  EXPECT_EQ(reload(submit_service(service, run, 1, 1, {{"follow", true}}), Json::object()), 409);
}

TEST(ServingJob, BeginsAfterAnotherJobHasFinished) {
  LiveService service(with_replicas(2));
  const ServedRun run;
  const JobId first = service.submit_command("first", "while [ ! -e go ]; do sleep 0.02; done");
  const Json body = {
      {"name", "api"}, {"kind", "serve"}, {"after", Json::array({first})}, {"spec", run.spec()}};
  const Json answer = service.send("POST", "/v1/jobs", dump_json(body));
  ASSERT_EQ(answer.value("status", 0), 201) << answer;
  const JobId id = answer.at("body").at("id");
  service.wait_for(first, "running");
  const Json waits = service.wait(id, [](const Json& job) {
    return job.value("why", "").find("It begins in its turn after job 1") == 0;
  });
  EXPECT_EQ(waits.at("phase"), "queued");
  EXPECT_EQ(ready_of(waits), 0);
  write_file_atomic(service.folder() / "go", "");
  wait_for_replicas(service, id, 1);
  EXPECT_EQ(service.get("/v1/jobs/" + std::to_string(first)).at("phase"), "finished");
}

TEST(ServingJob, WeightsThatItsRunDoesNotHaveAreRefusedByName) {
  LiveService service(with_replicas(1));
  const ServedRun run;
  const JobId id = submit_service(service, run, 1, 1);
  const auto reload = [&](int64_t step) {
    const std::string path = "/v1/jobs/" + std::to_string(id) + "/reload";
    return service.send("POST", path, dump_json(Json{{"version", step}})).dump();
  };
  const auto refuses = [&](int64_t step, const std::string& why) {
    const std::string answer = reload(step);
    EXPECT_NE(answer.find("404"), std::string::npos) << answer;
    EXPECT_NE(answer.find(why), std::string::npos) << answer;
  };
  fs::create_directory(run.folder.path() / "checkpoints");
  refuses(3, "has no weights of step 3; there are none yet");
  for (const int64_t step : {3, 4}) {
    const std::vector<std::byte> bytes(4);
    const std::vector<ckpt::TensorView> tensors = {{"x", DType::f32, {1}, bytes, false}};
    ckpt::CheckpointWriter(run.folder.path() / "checkpoints").save(step, nullptr, tensors);
  }
  refuses(999, "of step 999; there are those of the steps 4, 3");
  EXPECT_NE(reload(3).find("200"), std::string::npos);
  EXPECT_EQ(service.get("/v1/events?limit=1000").dump().find("\"version\":999"), std::string::npos)
      << "it was asked for all the same";
}

// The run goes on and has newer weights each time that a replica starts; then those that all have
// are there no more.
TEST(ServingJob, AllReplicasHaveTheSameWeightsWhileItsRunGoesOn) {
  LiveService service(with_replicas(3));
  const ServedRun run;
  const auto newest = [&](const char* version) {
    write_file_atomic(run.folder.path() / "newest", version);
  };
  const JobId id = submit_service(service, run, 1, 1);
  const Json job = wait_for_replicas(service, id, 1);
  newest("9");
  const Json body = {{"min_devices", 3}, {"max_devices", 3}};
  service.send("POST", "/v1/jobs/" + std::to_string(id) + "/resize", dump_json(body));
  wait_for_replicas(service, id, 3);
  const auto versions = [&](int64_t answers) {
    Clients clients(address_of(job), 6);
    clients.wait_for_more(answers);
    clients.stop();
    EXPECT_EQ(clients.first_wrong(), "");
    return clients.versions();
  };
  EXPECT_EQ(versions(300), (std::set<int64_t>{7}));
  service.kill_service();
  service.start();
  wait_for_replicas(service, id, 3);
  const auto lose_one = [&] {
    const std::set<pid_t> pids = replicas_of(service);
    ::kill(*pids.begin(), SIGKILL);
    service.wait(id, [&](const Json& now) {
      const std::set<pid_t> there = replicas_of(service);
      return ready_of(now) == 3 && there.size() == 3 && !there.contains(*pids.begin());
    });
  };
  lose_one();
  EXPECT_EQ(versions(300), (std::set<int64_t>{7}));
  newest("5");  // whoever starts finds no 7
  lose_one();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (versions(60) != std::set<int64_t>{5})
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
  EXPECT_EQ(versions(300), (std::set<int64_t>{5}));
}

TEST(ServingJob, ItsReplicasOutliveAServiceThatIsKilled) {
  LiveService service(with_replicas(2));
  const ServedRun run;
  const JobId id = submit_service(service, run, 2, 2);
  const Json job = wait_for_replicas(service, id, 2);
  const std::set<pid_t> before = replicas_of(service);
  service.kill_service();
  EXPECT_EQ(replicas_of(service), before);
  service.start();
  const Json after = wait_for_replicas(service, id, 2);
  EXPECT_EQ(after.at("serving").at("address"), job.at("serving").at("address"));
  EXPECT_EQ(replicas_of(service), before);
  Clients clients(address_of(after), 2);
  clients.wait_for_more(50);
  clients.stop();
  EXPECT_EQ(clients.first_wrong(), "");
  service.kill_service();
  for (const pid_t pid : before) ::kill(pid, SIGKILL);  // nobody sees it
  service.start();
  service.wait(id, [&](const Json& now) {
    const std::set<pid_t> pids = replicas_of(service);
    return ready_of(now) == 2 && pids.size() == 2 && !pids.contains(*before.begin());
  });
  EXPECT_EQ(service.stop(), 0);
}

TEST(ServingJob, ItsReplicasAreTakenOverThoughTheirRunIsGone) {
  LiveService service(with_replicas(2));
  const ServedRun run;
  const JobId id = submit_service(service, run, 2, 2);
  wait_for_replicas(service, id, 2);
  const std::set<pid_t> before = replicas_of(service);
  service.kill_service();
  fs::remove(run.folder.path() / "job.toml");
  service.start();
  const Json after = wait_for_replicas(service, id, 2);
  EXPECT_EQ(replicas_of(service), before);
  Clients clients(address_of(after), 2);
  clients.wait_for_more(50);
  clients.stop();
  EXPECT_EQ(clients.first_wrong(), "");
  service.act(id, "cancel");
  service.wait_for(id, "cancelled");
  service.wait_for_no_workers();
}

// A disk that is not mounted is no run, and no checkpoint, that was deleted.
TEST(ServingJob, WaitsForTheDiskOfTheRunThatItServes) {
  LiveService service(with_replicas(2));
  const ServedRun files;
  const TempFolder place;
  const fs::path mounted = place.path() / "disk", away = place.path() / "away";
  fs::create_directory(mounted);
  fs::copy(files.folder.path(), mounted / "run");
  const Json at = {{"run", (mounted / "run").string()}};
  const JobId id = submit_service(service, files, 1, 1, at);
  wait_for_replicas(service, id, 1);
  service.send("POST", "/v1/jobs/" + std::to_string(id) + "/reload", R"({"version": 3})");
  service.wait(id, [&](const Json&) {
    return service.get("/v1/events?limit=1000").dump().find("all replicas have the weights of") !=
           std::string::npos;
  });
  service.act(id, "pause");
  service.wait_for(id, "paused");
  service.send("POST", "/v1/nodes/here/drain", "{}");
  const JobId fresh = submit_service(service, files, 1, 1, at);
  fs::rename(mounted, away);
  service.act(id, "resume");
  service.send("POST", "/v1/nodes/here/undrain", "{}");
  for (const JobId job : {id, fresh})
    service.wait(job, [](const Json& now) {
      return now.at("phase") == "queued" &&
             now.value("reason", "").find("mount the disk") != std::string::npos;
    });
  fs::rename(away, mounted);
  wait_for_replicas(service, fresh, 1);
  Clients clients(address_of(wait_for_replicas(service, id, 1)), 1);
  clients.wait_for_more(20);
  clients.stop();
  EXPECT_EQ(clients.first_wrong(), "");
  EXPECT_EQ(clients.versions(), (std::set<int64_t>{3})) << "it has forgotten what it was to load";
}

// They could not be asked, and hold devices that others get.
TEST(ServingJob, ItsReplicasEndWhereItsAddressIsTaken) {
  LiveService service(with_replicas(1));
  const ServedRun run;
  const JobId id = submit_service(service, run, 1, 1);
  const Json job = wait_for_replicas(service, id, 1);
  service.kill_service();
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t holder = ::fork();  // a listener of this process would be the service's, too
  if (holder == 0) {
    const net::Listener taken(address_of(job));
    if (::write(ready[1], "!", 1) == 1) ::pause();
    ::_exit(0);
  }
  char block = 0;
  ASSERT_EQ(::read(ready[0], &block, 1), 1);
  service.start();
  service.wait(id, [](const Json& now) {
    return now.at("phase") == "queued" &&
           now.value("reason", "").find("in use") != std::string::npos;
  });
  service.wait_for_no_workers();
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  const Json after = wait_for_replicas(service, id, 1);
  EXPECT_EQ(after.at("serving").at("address"), job.at("serving").at("address"));
}

TEST(ServingJob, KeepsItsAddressWhileItIsPaused) {
  LiveService service(with_replicas(1));
  const ServedRun run;
  const JobId id = submit_service(service, run, 1, 1);
  const Json job = wait_for_replicas(service, id, 1);
  service.act(id, "pause");
  service.wait_for(id, "paused");
  service.wait_for_no_workers();
  EXPECT_THROW(Client(address_of(job)), Error);
  service.act(id, "resume");
  const Json after = wait_for_replicas(service, id, 1);
  EXPECT_EQ(after.at("serving").at("address"), job.at("serving").at("address"));
}

TEST(ServingJob, GivesItsAddressUpWhenItIsPausedOrCancelledWithoutADevice) {
  LiveService service(with_replicas(1));
  const ServedRun run;
  const JobId id = submit_service(service, run, 1, 1);
  const net::Address at = address_of(wait_for_replicas(service, id, 1));
  for (const char* what : {"pause", "cancel"}) {
    service.send("POST", "/v1/nodes/here/drain", "{}");
    service.wait_for(id, "queued");
    Client(at).get("/healthz");  // it waits for a device, and its clients do
    std::atomic<int> status = 0;
    std::thread waiting([&] {
      const auto answer = Client(at).post("/v2/models/small/infer", body_of({}));
      status = answer ? answer->status : -1;
    });
    service.wait(id, [](const Json& now) { return now.at("serving").at("waiting") == 1; });
    service.act(id, what);
    waiting.join();
    EXPECT_EQ(status, 503) << what;
    service.wait(id, [](const Json& now) { return !now.contains("serving"); });
    EXPECT_THROW(Client{at}, Error) << what;
    service.send("POST", "/v1/nodes/here/undrain", "{}");
    if (what == std::string("cancel")) continue;
    service.act(id, "resume");
    EXPECT_EQ(address_of(wait_for_replicas(service, id, 1)).port, at.port);
  }
  EXPECT_EQ(service.wait_for(id, "cancelled").at("phase"), "cancelled");
}

// Of a process that may open few files: each client takes one, and each request that is on its way
// one more.
TEST(ServingJob, ManyClientsTakeNoDescriptorsFromOtherJobs) {
  constexpr int kFiles = 1000, kClients = 900;
  LiveService service(with_replicas(2), [] {
    const rlimit few{kFiles, kFiles};
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0) ::_exit(9);
  });
  const ServedRun run(5'000);
  const JobId id = submit_service(service, run, 1, 1);
  const net::Address at = address_of(wait_for_replicas(service, id, 1));
  const std::string body = body_of(std::vector<float>(16));
  std::vector<net::Socket> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(net::connect(at, {}, net::Clock::now() + kPatience));
    const std::string text =
        fmt::format("POST /v2/models/small/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
                    body.size()) +
        body;
    try {
      clients.back().write_all(std::as_bytes(std::span(text)), net::Clock::now() + kPatience);
    } catch (const Error&) {  // told to come again
    }
  }
  const fs::path files = fs::path("/proc") / std::to_string(service.process()) / "fd";
  ASSERT_LT(std::distance(fs::directory_iterator(files), fs::directory_iterator()), kFiles - 200);
  service.expect_result(service.submit("other", 40));
  clients.clear();
  service.act(id, "cancel");
  service.wait_for(id, "cancelled");
}

// Under a policy that knows no services it holds its least number of devices.
TEST(ServingJob, RunsUnderEveryPolicy) {
  for (const std::string& policy : sched::policy_names()) {
    if (policy == "regional") continue;
    LiveService service([&](ServiceOptions& options) {
      with_replicas(3)(options);
      options.policy = policy;
    });
    const ServedRun run;
    const JobId id = submit_service(service, run, 2, 3);
    const Json job = wait_for_replicas(service, id, 2);
    Clients clients(address_of(job), 2);
    clients.wait_for_more(20);
    clients.stop();
    EXPECT_EQ(clients.first_wrong(), "") << policy;
  }
}

// One with two devices at 10 ms a request, which is asked more and more.
TEST(LoadMeter, CountsWhatComesAndWhatAReplicaCanDo) {
  LoadMeter meter(10);
  serving::Router::Load total;
  double now = 0;
  meter.add(now, total, 1);
  EXPECT_EQ(meter.load().load, 0);
  const auto pass = [&](double seconds, int64_t each_second, double busy, int64_t replicas) {
    for (double until = now + seconds; now < until;) {
      now += 1;
      total.arrived += each_second;
      total.answered += each_second;
      total.replica_seconds += busy;
      meter.add(now, total, replicas);
    }
  };
  pass(20, 40, 0.4, 1);
  EXPECT_NEAR(meter.load().load, 40, 1e-9);
  EXPECT_NEAR(meter.load().rate, 100, 1e-6);
  pass(20, 300, 1, 1);  // in batches it can do more
  EXPECT_NEAR(meter.load().rate, 300, 1);
  EXPECT_NEAR(meter.load().peak, 300, 1e-9);
  pass(20, 20, 0.4, 1);  // few requests say little of what it could do
  EXPECT_NEAR(meter.load().rate, 300, 1);
  EXPECT_NEAR(meter.load().load, 20, 1e-9);
  EXPECT_NEAR(meter.load().peak, 300, 1e-9) << "it was lately";
  pass(80, 20, 0.4, 1);
  EXPECT_NEAR(meter.load().peak, 20, 1e-9);
  pass(30, 100, 1, 1);  // it is busy all the time: this is what it can do
  EXPECT_NEAR(meter.load().rate, 100, 1);
}

}  // namespace
}  // namespace ductile::cluster
