#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/testing.h"
#include "ductile/cli/console.h"
#include "ductile/cli/exit_code.h"
#include "ductile/cluster/client.h"
#include "ductile/fleet/job_reference.h"
#include "ductile/fleet/service_request_impl.h"
#include "ductile/run/folder.h"

namespace ductile::cli {
namespace {

using ::ductile::testing::code_of;

TEST(ArrayIndices, AreThoseThatAreNamed) {
  using Indices = std::vector<int64_t>;
  EXPECT_EQ(indices_of("0-3"), (Indices{0, 1, 2, 3}));
  EXPECT_EQ(indices_of("7"), Indices{7});
  EXPECT_EQ(indices_of("20,1,3,5-9:2"), (Indices{1, 3, 5, 7, 9, 20}));
  EXPECT_EQ(indices_of("5-6:9007199254740992"), Indices{5});
  EXPECT_EQ(indices_of("0-999").size(), 1000u);
}

TEST(ArrayIndices, WhatIsNoListOfNumbersIsRefused) {
  for (const char* text :
       {"", "a", "-1", "1-", "3-1", "1,", ",1", "1,,2", "1-5:0", "1-5:-1", "1-5%2", " 1", "1 ",
        "1,1", "0-5,3", "0-1000", "0-9007199254740992", "99999999999999999999"})
    EXPECT_EQ(code_of([&] { indices_of(text); }), ErrorCode::invalid_argument) << text;
}

// As a service lists them, the newest first.
nlohmann::ordered_json listed(const std::vector<std::tuple<int64_t, std::string, double>>& jobs) {
  auto out = nlohmann::ordered_json::array();
  for (const auto& [id, name, submitted] : jobs)
    out.push_back({{"id", id}, {"name", name}, {"submitted", submitted}});
  return out;
}

TEST(MembersOfAnArray, AreThoseOfItsOneRequest) {
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(members_of_array("sweep", listed({})), Ids{});
  EXPECT_EQ(members_of_array("sweep", listed({{7, "sweep", 1}, {6, "sweep-a", 1}})), Ids{});
  const auto jobs = listed({{31, "sweep-x", 90},
                            {30, "sweep-9", 80},
                            {29, "sweep-3", 80},
                            {28, "sweep-0", 80},
                            {27, "sweep-9", 50},
                            {26, "sweep-0", 50}});
  EXPECT_EQ(members_of_array("sweep", jobs), (Ids{28, 29, 30})) << "the newest of two";
  EXPECT_EQ(members_of_array("swee", jobs), Ids{});
  EXPECT_EQ(members_of_array("sweep", listed({{5, "sweep-7", 80}, {4, "sweep-3", 20}})), Ids{5})
      << "a minute apart they are not of one request";
  EXPECT_EQ(members_of_array("sweep", listed({{5, "sweep-7", 80}, {3, "sweep-3", 80}})), Ids{5});
  EXPECT_EQ(members_of_array("a-1", listed({{9, "a-1-1", 3}, {8, "a-1-0", 3}, {7, "a-1", 3}})),
            (Ids{8, 9}));
}

TEST(FieldFlags, StandInPlaceOfTheFieldThatAServiceRefuses) {
  const auto said = [](const std::string& text) { return with_flags(text); };
  EXPECT_EQ(said("min_devices = 9: this service has 2"), "--min 9: this service has 2");
  EXPECT_EQ(said("body: max_devices is 2, it must be from 4 to 9"),
            "--max is 2, it must be from 4 to 9");
  EXPECT_EQ(said("region = \"x\" is not known"), "--region \"x\" is not known");
  EXPECT_EQ(said("movable = false: policy fifo knows nothing of regions"),
            "--stay: policy fifo knows nothing of regions");
  EXPECT_EQ(said("spec: gpus = 3: no node has so many"), "--gpus 3: no node has so many");
  EXPECT_EQ(said("body: after names 1001 jobs"), "--after names 1001 jobs");
  for (const char* text : {"name", "region x is away", "body: nothing is wanted", "minima = 3", "",
                           "job 3 is cancelled already", "body: in_all is 3"})
    EXPECT_EQ(said(text), text);
  constexpr FieldFlag kOwn[] = {{"min_devices", "--devices"}};
  EXPECT_EQ(with_flags("min_devices = 9: too many", kOwn), "--devices 9: too many");
  EXPECT_EQ(with_flags("body: team must be text, it is 3", kOwn), "--team must be text, it is 3");
}

// What each of several jobs was asked, by a service that answers for some of them.
struct Asking {
  std::vector<std::string> asked;
  std::string error;
  nlohmann::ordered_json answers;
  std::string said;

  ExitCode run(const std::vector<std::string>& jobs,
               const std::function<nlohmann::ordered_json(const std::string&)>& act) {
    std::ostringstream out, err;
    Console console(out, err);
    ExitCode code = kDone;
    try {
      code = for_each_job(jobs, true, console, [&](const std::string& job) {
        asked.push_back(job);
        return act(job);
      });
    } catch (const cluster::Unreachable& nobody) {
      error = nobody.what();
      code = kServerUnreachable;
    }
    if (!out.str().empty()) answers = parse_json<nlohmann::ordered_json>(out.str());
    said = err.str();
    return code;
  }
};

TEST(SeveralJobs, TheTroubleOfOneIsNotThatOfTheNext) {
  Asking all;
  const auto act = [](const std::string& job) -> nlohmann::ordered_json {
    if (job == "b") fail(ErrorCode::not_found, "there is no job \"b\"");
    if (job == "c") fail(ErrorCode::deadline, "it still saves");
    return {{"id", job}};
  };
  EXPECT_EQ(all.run({"a", "b", "c", "d"}, act), exit_code(ErrorCode::not_found));
  EXPECT_EQ(all.asked, (std::vector<std::string>{"a", "b", "c", "d"}));
  ASSERT_EQ(all.answers.size(), 4u);
  EXPECT_EQ(all.answers[0].at("id"), "a");
  EXPECT_EQ(all.answers[2].at("error"), "it still saves");
  EXPECT_NE(all.said.find("b: there is no job"), std::string::npos) << all.said;
}

// The others are asked nevertheless: each run has a controller of its own.
TEST(SeveralJobs, OneThatDoesNotAnswerInTimeHasTheExitCodeOfThat) {
  Asking all;
  const auto act = [](const std::string& job) -> nlohmann::ordered_json {
    if (job == "a") fail(ErrorCode::deadline, "its controller gave no answer");
    return {{"id", job}};
  };
  EXPECT_EQ(all.run({"a", "b"}, act), kServerUnreachable);
  EXPECT_EQ(all.asked, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(all.error, "");
}

TEST(SeveralJobs, APatternThatFitsNoneIsSaidToBeOne) {
  const auto said = [](const std::string& text, ErrorCode code) -> std::string {
    try {
      return find_or_none_fits(text, [&]() -> std::string { fail(code, "there is no such job"); });
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      return error.what();
    }
  };
  EXPECT_EQ(said("part-*", ErrorCode::not_found),
            "part-*: none of your jobs that have not ended has a name like that; `ductile jobs "
            "--all --name 'part-*'` lists those that have");
  EXPECT_EQ(said("part-1", ErrorCode::not_found), "there is no such job");
  EXPECT_EQ(said("runs/part-*", ErrorCode::not_found), "there is no such job");
  EXPECT_EQ(said("part-*", ErrorCode::conflict), "there is no such job");
  EXPECT_EQ(find_or_none_fits("part-*", [] { return 7; }), 7);
}

// Each of the others would wait as long in vain.
TEST(SeveralJobs, AfterAServiceThatGivesNoAnswerNobodyIsAsked) {
  for (const ErrorCode code : {ErrorCode::deadline, ErrorCode::unavailable}) {
    Asking all;
    const auto act = [&](const std::string& job) -> nlohmann::ordered_json {
      if (job == "b") throw cluster::Unreachable(code, "no answer in time");
      return {{"id", job}};
    };
    EXPECT_EQ(all.run({"a", "b", "c", "d"}, act), kServerUnreachable);
    EXPECT_EQ(all.asked, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(all.error, "no answer in time; stopped at b, not asked: c, d");
    ASSERT_EQ(all.answers.size(), 4u);
    EXPECT_EQ(all.answers[0].at("id"), "a");
    EXPECT_EQ(all.answers[1].at("job"), "b");
    EXPECT_EQ(all.answers[3].at("error"), all.error);
  }
}

TEST(SeveralJobs, OfThoseThatWereNotAskedTheFirstAreNamed) {
  Asking all;
  std::vector<std::string> jobs;
  for (int i = 1; i <= 30; ++i) jobs.push_back(std::to_string(i));
  all.run(jobs, [](const std::string&) -> nlohmann::ordered_json {
    throw cluster::Unreachable(ErrorCode::unavailable, "nobody");
  });
  EXPECT_TRUE(all.error.starts_with("nobody; stopped at 1, not asked: 2, 3, ")) << all.error;
  EXPECT_TRUE(all.error.ends_with(", 20, 21 and 9 more")) << all.error;
}

// A service that takes connections and never answers, as one that is stopped.
Descriptor silent_service(const fs::path& folder) {
  fs::create_directories(folder);
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  (folder / "api.sock").string().copy(at.sun_path, sizeof at.sun_path - 1);
  Descriptor out(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(out.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  EXPECT_EQ(::listen(out.get(), 8), 0);
  return out;
}

// A service that gives these answers, one after the other.
class ScriptedService {
 public:
  ScriptedService(const fs::path& folder, std::vector<std::string> answers)
      : socket_(silent_service(folder)),
        thread_([this, answers = std::move(answers)] { serve(answers); }) {}
  ScriptedService(const ScriptedService&) = delete;
  ScriptedService& operator=(const ScriptedService&) = delete;
  ~ScriptedService() { (void)answered(); }

  // How many it has given; it gives no more.
  size_t answered() {
    ::shutdown(socket_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    return answered_;
  }
  // What it was asked last.
  std::string last_request() {
    (void)answered();
    return last_request_;
  }

 private:
  void serve(const std::vector<std::string>& answers) {
    for (const std::string& answer : answers) {
      const Descriptor one(::accept(socket_.get(), nullptr, nullptr));
      if (!one) return;
      last_request_ = read_request(one.get());
      const std::string text = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: " +
                               std::to_string(answer.size()) + "\r\n\r\n" + answer;
      EXPECT_EQ(::send(one.get(), text.data(), text.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(text.size()));
      ++answered_;
    }
  }
  // All of it, since the rest would end the connection with an error.
  static std::string read_request(int fd) {
    const std::string kLength = "Content-Length: ";
    std::string text;
    char block[4096];
    for (ssize_t n; (n = ::recv(fd, block, sizeof block, 0)) > 0;) {
      text.append(block, static_cast<size_t>(n));
      const size_t head = text.find("\r\n\r\n"), length = text.find(kLength);
      if (head == std::string::npos) continue;
      const size_t body =
          length < head ? std::stoul(text.substr(length + kLength.size())) : size_t{0};
      if (text.size() >= head + 4 + body) break;
    }
    return text;
  }

  const Descriptor socket_;
  size_t answered_ = 0;
  std::string last_request_;
  std::thread thread_;
};

// What `ductile preempt` says of job 7, of which the service says this, once it was asked.
std::string said_of(const std::vector<std::string>& phases_and_wishes, bool ended = false) {
  const TempFolder folder;
  const auto record = [&](const std::string& phase, const std::string& wish, bool over) {
    nlohmann::ordered_json out = {{"id", 7},   {"phase", phase},   {"wish", wish},
                                  {"run", ""}, {"ended", nullptr}, {"reason", "It is done."}};
    if (over) out["ended"] = 1.5;
    return dump_json(out);
  };
  std::vector<std::string> answers = {"{}", record("queued", "run", false),
                                      R"({"id": 7, "wish": "pause"})"};
  for (size_t i = 0; i + 1 < phases_and_wishes.size(); i += 2)
    answers.push_back(record(phases_and_wishes[i], phases_and_wishes[i + 1], ended));
  const size_t wanted = answers.size();
  ScriptedService service(folder.path(), std::move(answers));
  std::ostringstream out, err;
  Console console(out, err);
  const std::vector<const char*> environment = {nullptr};
  Context context{console, environment.data()};
  LiveCommand command;
  command.jobs = {"mine"};
  command.at.folder = folder.path();
  EXPECT_EQ(preempt(command, context), kDone);
  EXPECT_EQ(service.answered(), wanted) << "it was not waited for";
  std::string said = err.str();
  if (const size_t at = said.find(folder.path().string()); at != std::string::npos)
    said.replace(at, folder.path().string().size(), "HERE");
  return said;
}

TEST(Preempt, CallsAJobPausedWhenItIs) {
  EXPECT_EQ(said_of({"queued", "pause", "running", "pause", "paused", "pause"}),
            "paused; to go on: ductile resume 7 --folder HERE\n");
}

TEST(Preempt, SaysThatAJobHasEndedOrGoesOn) {
  EXPECT_EQ(said_of({"finished", "pause"}, true), "job 7 is finished: It is done.\n");
  EXPECT_EQ(said_of({"running", "pause", "running", "run"}),
            "job 7 is not paused, since somebody has resumed it meanwhile\n");
  EXPECT_EQ(said_of({"queued", "cancel"}),
            "job 7 is not paused, since somebody has cancelled it meanwhile\n");
}

// What `ductile submit --service trial` asks of a service that says this of trial.
nlohmann::json asked_for_service_of(const nlohmann::ordered_json& trial) {
  const TempFolder folder;
  ScriptedService service(folder.path(), {"{}", dump_json(trial), "{}", R"({"id": 2})"});
  std::ostringstream out, err;
  Console console(out, err);
  const std::vector<const char*> environment = {nullptr};
  Context context{console, environment.data()};
  ServiceCommand command;
  command.served = "trial";
  command.at.folder = folder.path();
  EXPECT_EQ(submit(command, context), kDone) << err.str();
  const std::string request = service.last_request();
  return parse_json(request.substr(request.find("\r\n\r\n") + 4));
}

// The options of the job may have the usual name, which says nothing.
TEST(Submit, TheServiceOfAJobIsCalledAfterIt) {
  const TempFolder folder;
  const fs::path run = folder.path() / "1-trial";
  run::RunFolder::create_at(run, "name = \"job\"\n");
  nlohmann::ordered_json trial = {{"id", 1}, {"name", "trial"}, {"kind", "train"}};
  trial["run"] = run.string();
  const auto asked = asked_for_service_of(trial);
  EXPECT_EQ(asked.at("name"), "trial-service");
  EXPECT_EQ(asked.at("spec").at("model"), "trial");
}

TEST(JobReference, ARunOfItsOwnNeedsNoServiceWhateverItIsCalled) {
  const TempFolder folder;
  const Descriptor service = silent_service(folder.path() / "state" / "ductile");
  const fs::path run = folder.path() / "7-mine";
  run::RunFolder::create_at(run, "name = \"mine\"\n");
  std::ostringstream out, err;
  Console console(out, err);
  const std::string state = "XDG_STATE_HOME=" + (folder.path() / "state").string();
  const std::vector<const char*> environment = {state.c_str(), nullptr};
  const JobReference found = find_job(run.string(), {}, {console, environment.data()});
  EXPECT_FALSE(found.service.has_value());
  EXPECT_EQ(found.run, fs::canonical(run));
}

}  // namespace
}  // namespace ductile::cli
