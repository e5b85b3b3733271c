// Jobs that begin after others, and those that are held, with real services and processes.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/cluster/store.h"
#include "ductile/cluster/testing/commands.h"
#include "ductile/cluster/testing/live_service.h"

namespace ductile::cluster {
namespace {

using namespace testing;

// A command that begins after these, or once it is resumed.
JobId submit_later(LiveService& service, const std::string& name, const std::string& script,
                   const Json& more) {
  Json body = {
      {"name", name},
      {"kind", "command"},
      {"spec", {{"command", {"/bin/sh", "-c", script}}, {"directory", service.folder().string()}}}};
  body.update(more);
  const Json answer = service.send("POST", "/v1/jobs", dump_json(body));
  EXPECT_EQ(answer.value("status", 0), 201) << answer;
  return answer.is_null() ? 0 : answer.at("body").value("id", JobId{0});
}

constexpr const char* kUntilGo = "; while [ ! -e go ]; do sleep 0.02; done";

TEST(JobOrder, AJobBeginsAfterThoseBeforeItHaveFinished) {
  LiveService service(3);
  const JobId first =
      service.submit_command("first", std::string("echo first >> order") + kUntilGo);
  const JobId second = service.submit_command("second", "echo second >> order");
  const JobId last =
      submit_later(service, "last", "echo last >> order", {{"after", {first, second}}});
  service.wait_for(second, "finished");
  const Json waits = service.wait(last, [](const Json& job) {
    return job.value("reason", "") == "It begins after job 1 has finished.";
  });
  EXPECT_EQ(waits.at("phase"), "queued");
  EXPECT_EQ(
      waits.value("why", ""),
      "It begins in its turn after job 1 (first), which is running, has finished; if that one "
      "fails or is cancelled, so is this one.");
  EXPECT_EQ(waits.at("after"), Json::array({first}));
  EXPECT_EQ(text_of(service.folder() / "order").find("last"), std::string::npos);
  write_file_atomic(service.folder() / "go", "");
  const Json job = service.wait_for(last, "finished");
  EXPECT_EQ(job.at("exit_code"), 0);
  EXPECT_EQ(text_of(service.folder() / "order").find("last"),
            text_of(service.folder() / "order").size() - 5);
}

// Also those that were to begin after the one that never will, and also one that is held.
TEST(JobOrder, WhatIsToBeginAfterAFailureIsCancelledWithThatReason) {
  LiveService service(2);
  const JobId first = service.submit_command("first", std::string("true") + kUntilGo + "; exit 3");
  const JobId second = submit_later(service, "second", "echo >> ran", {{"after", {first}}});
  const JobId held =
      submit_later(service, "held", "echo >> ran", {{"after", {first}}, {"held", true}});
  const JobId third = submit_later(service, "third", "echo >> ran", {{"after", {second}}});
  service.wait_for(first, "running");
  write_file_atomic(service.folder() / "go", "");
  EXPECT_EQ(service.wait_for(first, "failed").at("exit_code"), 3);
  for (const JobId id : {second, held}) {
    EXPECT_EQ(
        service.wait_for(id, "cancelled").value("why", ""),
        "It was to begin after job 1 (first) had finished, which failed, so it was cancelled.");
  }
  EXPECT_EQ(service.wait_for(third, "cancelled").value("reason", ""),
            "It was to begin after job 2 (second) had finished, which was cancelled, so it was "
            "cancelled.");
  EXPECT_EQ(text_of(service.folder() / "ran"), "");
  EXPECT_TRUE(Reader(service.folder() / "store.db").check().empty());
}

TEST(JobOrder, OneThatWaitsIsCancelledPausedAndResumedAsAnyOther) {
  LiveService service(1);
  const JobId first = service.submit_command("first", std::string("true") + kUntilGo);
  const JobId paused = submit_later(service, "paused", "true", {{"after", {first}}});
  const JobId cancelled = submit_later(service, "cancelled", "echo >> ran", {{"after", {first}}});
  service.act(cancelled, "cancel");
  EXPECT_EQ(service.wait_for(cancelled, "cancelled").at("reason"), "It was cancelled.");
  service.act(paused, "pause");
  service.wait_for(paused, "paused");
  service.act(paused, "resume");
  service.wait(paused, [](const Json& job) {
    return job.at("phase") == "queued" &&
           job.value("why", "").find("It begins in its turn after job 1") == 0;
  });
  service.act(paused, "pause");
  service.wait_for(paused, "paused");
  write_file_atomic(service.folder() / "go", "");
  service.wait_for(first, "finished");
  EXPECT_EQ(service.wait_for(paused, "paused").at("after"), Json::array());
  service.act(paused, "resume");
  service.wait_for(paused, "finished");
  EXPECT_EQ(text_of(service.folder() / "ran"), "");
}

TEST(JobOrder, AHeldJobBeginsOnceItIsResumed) {
  LiveService service(2);
  const JobId id = submit_later(service, "held", "echo >> ran", {{"held", true}});
  const JobId other = service.submit_command("other", "true");
  service.wait_for(other, "finished");
  service.kill_service();
  service.start();
  const Json job = service.wait_for(id, "paused");
  EXPECT_NE(job.value("why", "").find("It is held by "), std::string::npos) << job;
  EXPECT_EQ(job.at("held_by"), job.at("owner"));
  EXPECT_EQ(text_of(service.folder() / "ran"), "");
  service.act(id, "resume");
  service.wait_for(id, "finished");
}

// A chain whose service is killed again and again: each link runs once, after the one before it.
TEST(JobOrder, AKilledServiceKeepsTheOrder) {
  LiveService service(3);
  constexpr int kLinks = 8;
  std::vector<JobId> jobs;
  for (int i = 0; i < kLinks; ++i) {
    const std::string script = "echo " + std::to_string(i) + " >> order";
    jobs.push_back(i == 0 ? service.submit_command("link0", script)
                          : submit_later(service, "link" + std::to_string(i), script,
                                         {{"after", {jobs.back()}}}));
    std::this_thread::sleep_for(std::chrono::milliseconds(7 * i));
    service.kill_service();
    service.start();
  }
  std::string expected;
  for (int i = 0; i < kLinks; ++i) {
    service.wait_for(jobs[static_cast<size_t>(i)], "finished");
    expected += std::to_string(i) + "\n";
  }
  EXPECT_EQ(text_of(service.folder() / "order"), expected);
  EXPECT_TRUE(Reader(service.folder() / "store.db").check().empty());
}

// The store says that the first one failed, and the service was killed before it heard that.
TEST(JobOrder, TheNextServiceCancelsWhatIsNeverToBegin) {
  LiveService service(2);
  const JobId first = service.submit_command("first", std::string("true") + kUntilGo + "; exit 3");
  const JobId later = submit_later(service, "later", "echo >> ran", {{"after", {first}}});
  service.wait_for(first, "running");
  service.kill_service();
  write_file_atomic(service.folder() / "go", "");
  service.wait_for_no_workers();
  {
    Store store(service.folder() / "store.db");
    Change(store.database()).set_phase(first, Phase::failed, "It ended with exit code 3.", 1e9, 3);
  }
  service.start();
  EXPECT_EQ(service.wait_for(later, "cancelled").value("reason", ""),
            "It was to begin after job 1 (first) had finished, which failed, so it was cancelled.");
  EXPECT_EQ(text_of(service.folder() / "ran"), "");
}

// Of a signal as a shell counts it; a job that was cancelled has none.
TEST(JobOrder, ACommandsExitCodeIsKnown) {
  LiveService service(2);
  const JobId killed = service.submit_command("killed", "kill -TERM $$");
  EXPECT_EQ(service.wait_for(killed, "failed").at("exit_code"), 143);
  const JobId cancelled = service.submit_command("cancelled", "exec sleep 1000", {{"grace", 0.1}});
  service.wait_for(cancelled, "running");
  service.act(cancelled, "cancel");
  EXPECT_FALSE(service.wait_for(cancelled, "cancelled").contains("exit_code"));
}

// It would look for weights at once, and fail for good.
TEST(JobOrder, AServiceOfAJobThatHasSavedNothingIsToBeginAfterIt) {
  LiveService service(2);
  const std::string toml =
      "[train]\nmax_steps = 100000000\nvirtual_ranks = 4\nbatch_size = 64\n"
      "[checkpoint]\nevery_seconds = 0\n";
  const Json train = {{"name", "young"}, {"spec", {{"job", toml}}}};
  const JobId young =
      service.send("POST", "/v1/jobs", dump_json(train)).at("body").value("id", JobId{0});
  const Json job = service.wait(young, [](const Json& now) {
    return now.at("phase") == "running" && fs::exists(fs::path(now.value("run", "")) / "job.toml");
  });
  Json serve = {
      {"name", "api"}, {"kind", "serve"}, {"spec", {{"run", job.at("run")}, {"model", "m"}}}};
  const Json refused = service.send("POST", "/v1/jobs", dump_json(serve));
  EXPECT_EQ(refused.value("status", 0), 409) << refused;
  EXPECT_NE(refused.dump().find("with --after 1 the service begins"), std::string::npos) << refused;
  // Formerly it was enough that it began after any job.
  const JobId other = service.submit_command("other", "while [ ! -e go ]; do sleep 0.02; done");
  serve["after"] = Json::array({other});
  const Json after_other = service.send("POST", "/v1/jobs", dump_json(serve));
  EXPECT_EQ(after_other.value("status", 0), 409) << after_other;
  EXPECT_NE(after_other.dump().find("with --after 1 the service begins"), std::string::npos)
      << after_other;
  // After a job that begins after it is late enough.
  Json between = {{"name", "between"},
                  {"kind", "command"},
                  {"after", Json::array({young})},
                  {"spec", {{"command", {"true"}}, {"directory", service.folder().string()}}}};
  const Json waits = service.send("POST", "/v1/jobs", dump_json(between));
  ASSERT_EQ(waits.value("status", 0), 201) << waits;
  serve["after"] = Json::array({waits.at("body").value("id", JobId{0})});
  const Json indirectly = service.send("POST", "/v1/jobs", dump_json(serve));
  EXPECT_EQ(indirectly.value("status", 0), 201) << indirectly;
  serve["after"] = Json::array({other, young});
  const Json taken = service.send("POST", "/v1/jobs", dump_json(serve));
  ASSERT_EQ(taken.value("status", 0), 201) << taken;
  service.act(young, "cancel");
  service.wait_for(taken.at("body").value("id", JobId{0}), "cancelled");
}

// Formerly it was taken, and failed with the advice to wait for a job that was over.
TEST(JobOrder, AServiceOfAJobThatEndedWithoutWeightsIsRefusedWithWhatHelps) {
  LiveService service(1);
  const JobId young = service.submit("young", 100'000'000);
  const Json job = service.wait(young, [](const Json& now) {
    return now.at("phase") == "running" && fs::exists(fs::path(now.value("run", "")) / "job.toml");
  });
  service.act(young, "cancel");
  service.wait_for(young, "cancelled");
  service.wait_for_no_workers();
  const fs::path run = job.value("run", "");
  fs::remove_all(run / "checkpoints");  // as if it had not come that far
  const Json serve = {
      {"name", "api"}, {"kind", "serve"}, {"spec", {{"run", run.string()}, {"model", "m"}}}};
  const Json refused = service.send("POST", "/v1/jobs", dump_json(serve));
  EXPECT_EQ(refused.value("status", 0), 409) << refused;
  const std::string text = refused.dump();
  EXPECT_NE(text.find("job 1 is cancelled"), std::string::npos) << text;
  EXPECT_NE(text.find("`ductile train --resume " + run.string() + "`"), std::string::npos) << text;
  EXPECT_EQ(text.find("--after"), std::string::npos) << text;
}

// Whoever submits them: the command, a program, or another verb.
TEST(JobOrder, DataThatAreNotThereAreRefusedUnlessAnEarlierJobMayMakeThem) {
  LiveService service(1);
  const fs::path file = service.folder() / "tokens.bin";
  const std::string toml =
      "[data]\nformat = \"tokens\"\npath = \"" + file.string() + "\"\n[model]\nname = \"gpt\"\n";
  Json body = {{"name", "reads"}, {"held", true}, {"spec", {{"job", toml}}}};
  const auto status = [&] {
    const Json answer = service.send("POST", "/v1/jobs", dump_json(body));
    const bool taken = answer.value("status", 0) == 201;
    EXPECT_EQ(answer.dump().find("there is no such file or folder") == std::string::npos, taken)
        << answer;
    return answer.value("status", 0);
  };
  EXPECT_EQ(status(), 404);
  Json array = body;
  array.erase("spec");
  array["array"] = Json::array({{{"index", 0}, {"spec", {{"job", toml}}}}});
  std::swap(body, array);
  EXPECT_EQ(status(), 404);
  std::swap(body, array);
  body["after"] = Json::array({service.submit_command("makes", "sleep 1000")});
  EXPECT_EQ(status(), 201);
  body.erase("after");
  write_file_atomic(file, "tokens");
  EXPECT_EQ(status(), 201);
  // One that was taken is asked for other devices wherever its data are now.
  fs::remove(file);
  const Json resized =
      service.send("POST", "/v1/jobs/3/resize", dump_json(Json{{"min_devices", 1}}));
  EXPECT_EQ(resized.value("status", 0), 200) << resized;
}

}  // namespace
}  // namespace ductile::cluster
