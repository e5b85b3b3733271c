// An agent whose machine is about to be taken back, with real agents and a controller that may say
// that it is on another machine.
#include <chrono>
#include <csignal>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/link/addresses.h"
#include "ductile/net/secret.h"
#include "ductile/process/spawn.h"
#include "ductile/server/agent_protocol_impl.h"
#include "ductile/server/agent_wire_impl.h"
#include "ductile/server/agents.h"
#include "ductile/server/host_agent.h"
#include "ductile/server/notice_impl.h"
#include "ductile/server/run_secret.h"

namespace ductile::server {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr auto kLongest = 60s;
constexpr double kNotice = 1000;
constexpr const char* kElsewhere = "another machine";

std::string this_machine() { return link::PeerAddress::here("one").place; }

template <class Holds>
bool comes(const Holds& holds) {
  const auto deadline = std::chrono::steady_clock::now() + kLongest;
  while (!holds() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(2ms);
  return holds();
}

// The controller's end of the agent of host "one", which has been greeted.
class Controller {
 public:
  explicit Controller(const fs::path& folder)
      : folder_(folder), secret_(secret_of(folder)), nonce_(net::to_hex(net::random_nonce())) {
    int to[2], from[2];
    if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) fail_errno("pipe", errno);
    const Descriptor agent_in(to[0]), agent_out(from[1]), null(::open("/dev/null", O_WRONLY));
    to_ = Descriptor(to[1]);
    from_ = Descriptor(from[0]);
    process::SpawnOptions launch;
    launch.program = DUCTILE_TEST_WORKER;
    launch.arguments = {kHostAgent};
    launch.input_fd = agent_in.get();
    launch.output_fd = agent_out.get();
    launch.error_fd = null.get();
    process_ = process::spawn(launch);
    for (const Descriptor* fd : {&to_, &from_}) ::fcntl(fd->get(), F_SETFL, O_NONBLOCK);
    say({{"hello",
          {{"protocol", kAgentProtocol},
           {"folder", folder.string()},
           {"host", "one"},
           {"nonce", nonce_}}}});
    EXPECT_TRUE(until([&] { return wire_.ready(); }));
  }
  ~Controller() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }

  void begin(const std::string& machine, double notice = kNotice) {
    say({{"begin",
          {{"worker", DUCTILE_TEST_WORKER},
           {"keeper", DUCTILE_TEST_WORKER},
           {"devices", 0},
           {"notice", notice},
           {"machine", machine}}}});
  }
  void say(const json& value) {
    wire_.say(dump_json(value));
    wire_.flush(to_.get());
  }
  // The value of the next message of that kind.
  json next(const std::string& what) {
    json out;
    EXPECT_TRUE(until([&] {
      for (auto one = said_.begin(); one != said_.end(); ++one)
        if (one->contains(what)) {
          out = one->at(what);
          said_.erase(one);
          return true;
        }
      return false;
    })) << what;
    return out;
  }
  void signal(int number) const { ::kill(process_, number); }
  void hang_up() { to_.close(); }
  // How it ended, as waitpid() has it.
  int end() {
    int status = 0;
    ::waitpid(std::exchange(process_, -1), &status, 0);
    return status;
  }
  fs::path notice() const { return notice_file(folder_, "one"); }
  const Descriptor& answers() const { return from_; }

 private:
  template <class Holds>
  bool until(const Holds& holds) {
    const auto deadline = std::chrono::steady_clock::now() + kLongest;
    while (!holds()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      const bool open = wire_.read(from_.get(), [&](std::string_view text) { hear(text); });
      wire_.flush(to_.get());
      if (!open) return holds();
      pollfd words{from_.get(), POLLIN, 0};
      ::poll(&words, 1, 20);
    }
    return true;
  }
  void hear(std::string_view text) {
    const json value = parse_json(text);
    if (!wire_.sealed() && value.contains("greet"))
      return wire_.seal(net::Seal::Side::client,
                        agent_key(secret_, nonce_, value.at("greet").at("nonce"), "one"));
    if (!value.contains("beat")) said_.push_back(value);
  }

  const fs::path folder_;
  const net::Secret secret_;
  const std::string nonce_;
  pid_t process_ = -1;
  Descriptor to_, from_;
  AgentWire wire_;
  std::list<json> said_;
};

// As where a machine's end takes its connections along: formerly a notice counted only if the
// connection was there for another 200 ms.
TEST(AgentNotice, CountsThoughTheConnectionEndsWithIt) {
  const TempFolder folder;
  Controller controller(folder.path());
  controller.begin(kElsewhere);
  EXPECT_FALSE(controller.next("ready").value("beside", true));
  controller.signal(SIGSTOP);
  controller.signal(SIGTERM);
  controller.hang_up();
  controller.signal(SIGCONT);
  controller.end();
  const auto kept = read_notice(controller.notice());
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->seconds, kNotice);
  EXPECT_GT(kept->left(), kNotice);
  Controller next(folder.path());
  next.begin(kElsewhere);
  EXPECT_EQ(next.next("ready").value("leaving", 0.0), kNotice);
}

TEST(AgentNotice, OfWhoeverEndsTheControllerOnItsMachineIsNone) {
  const TempFolder folder;
  Controller controller(folder.path());
  controller.begin(this_machine());
  EXPECT_TRUE(controller.next("ready").value("beside", false));
  controller.signal(SIGSTOP);
  controller.signal(SIGTERM);
  controller.hang_up();
  controller.signal(SIGCONT);
  controller.end();
  EXPECT_FALSE(fs::exists(controller.notice()));
}

TEST(AgentNotice, IsForgottenWhenTheControllerOnItsMachineStops) {
  for (const bool beside : {true, false}) {
    const TempFolder folder;
    Controller controller(folder.path());
    controller.begin(beside ? this_machine() : kElsewhere);
    controller.next("ready");
    // Whichever it comes to first, at the same time.
    controller.signal(SIGSTOP);
    controller.signal(SIGTERM);
    controller.say({{"stop", json::object()}});
    controller.say({{"census", json::object()}});
    controller.signal(SIGCONT);
    controller.next("census");
    controller.hang_up();
    controller.end();
    EXPECT_EQ(fs::exists(controller.notice()), !beside);
  }
}

// A controller that is held up hears only later that it is to stop, and says so.
TEST(AgentNotice, IsForgottenWhenTheControllerHeardLateThatItIsToStop) {
  for (const double late : {0.0, 60.0}) {
    const TempFolder folder;
    Notice earlier = notice_now("one", kNotice);
    earlier.came -= 30;
    write_notice(folder.path(), earlier);
    Controller controller(folder.path());
    controller.begin(this_machine());
    EXPECT_EQ(controller.next("ready").value("leaving", 0.0), kNotice);
    controller.say({{"stop", {{"late", late}}}});
    controller.say({{"census", json::object()}});
    controller.next("census");
    EXPECT_EQ(fs::exists(controller.notice()), late == 0);
  }
}

TEST(AgentNotice, OfAnAgentThatNobodyHasCalledEndsIt) {
  int in[2], out[2];
  ASSERT_EQ(::pipe2(in, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(out, O_CLOEXEC), 0);
  const Descriptor ends[] = {Descriptor(in[0]), Descriptor(in[1]), Descriptor(out[0]),
                             Descriptor(out[1])};
  process::SpawnOptions launch;
  launch.program = DUCTILE_TEST_WORKER;
  launch.arguments = {kHostAgent};
  launch.input_fd = ends[0].get();
  launch.output_fd = ends[3].get();
  const pid_t agent = process::spawn(launch);
  char first = 0;
  EXPECT_EQ(::read(ends[2].get(), &first, 1), 1);  // it beats, so it has begun
  ::kill(agent, SIGTERM);
  int status = 0;
  EXPECT_EQ(::waitpid(agent, &status, 0), agent);  // it may wait for its hello for two seconds
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

TEST(AgentNotice, CountsThoughTheAgentHasNotBegun) {
  const TempFolder folder;
  {
    Controller controller(folder.path());
    controller.signal(SIGTERM);
    controller.begin(kElsewhere);
    controller.next("ready");
    EXPECT_EQ(controller.next("leaving"), kNotice);
    EXPECT_TRUE(comes([&] { return fs::exists(controller.notice()); }));
  }
  // Where there are no notices it ends an agent, as ever.
  Controller controller(folder.path());
  controller.signal(SIGTERM);
  controller.begin(kElsewhere, 0);
  const int status = controller.end();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

// Formerly an agent waited for a controller that reads nothing, as one that was stopped.
TEST(AgentNotice, IsHeededThoughNobodyReadsWhatTheAgentSays) {
  const TempFolder folder;
  Controller controller(folder.path());
  controller.begin(kElsewhere);
  controller.next("ready");
  ::fcntl(controller.answers().get(), F_SETPIPE_SZ, 4096);
  for (int i = 0; i < 500; ++i) controller.say({{"census", json::object()}});
  EXPECT_TRUE(comes([&] {  // it waits for room
    pollfd room{controller.answers().get(), POLLIN, 0};
    return ::poll(&room, 1, 0) > 0;
  }));
  controller.signal(SIGTERM);
  EXPECT_TRUE(comes([&] { return fs::exists(controller.notice()); }));
  for (int i = 0; i < 500; ++i) controller.next("census");  // nothing is lost
  EXPECT_EQ(controller.next("leaving"), kNotice);
}

// As on a full disk.
TEST(AgentNotice, IsWrittenOnceThatIsPossible) {
  const TempFolder folder;
  fs::create_directory(folder.path() / "server");
  const fs::path in_its_place = folder.path() / "server" / "leaving";
  write_file_atomic(in_its_place, "no folder");
  Controller controller(folder.path());
  controller.begin(kElsewhere);
  controller.next("ready");
  controller.signal(SIGTERM);
  EXPECT_EQ(controller.next("leaving"), kNotice);
  const std::string said = controller.next("complaint");
  EXPECT_NE(said.find("known to its present agent alone"), std::string::npos) << said;
  fs::remove(in_its_place);
  EXPECT_TRUE(comes([&] { return fs::exists(controller.notice()); }));
  EXPECT_TRUE(read_notice(controller.notice()));
}

TEST(AgentNotice, WhatCannotBeReadIsSaidOnceAndCountsAsNone) {
  const TempFolder folder;
  const fs::path file = notice_file(folder.path(), "one");
  fs::create_directories(file.parent_path());
  write_file_atomic(file,
                    R"({"machine": ")" + this_machine() + R"(", "until": 1e11, "notice": 1e300})");
  for (const bool first : {true, false}) {
    Controller controller(folder.path());
    controller.begin(kElsewhere);
    EXPECT_FALSE(controller.next("ready").contains("leaving"));
    if (first) {
      const std::string said = controller.next("complaint");
      EXPECT_NE(said.find("counts as none"), std::string::npos) << said;
      EXPECT_NE(said.find("notice is 1e+300"), std::string::npos) << said;
    }
    EXPECT_FALSE(fs::exists(file));
    controller.say({{"census", json::object()}});
    controller.next("census");
  }
}

// The stop of a service in good order, whose agents were told with it, as by systemd.
TEST(AgentNotice, DoesNotOutliveTheStopThatItCameWith) {
  const TempFolder folder;
  AgentsOptions options;
  options.setup = {{{"one", "", 2, kNotice}}, "env", "127.0.0.1"};
  options.folder = folder.path();
  options.program = options.worker = DUCTILE_TEST_WORKER;
  for (const bool heard : {true, false}) {
    net::Loop loop;
    auto agents = std::make_unique<Agents>(loop, options);
    const auto turn_until = [&](const auto& holds) {
      const auto deadline = loop.now() + kLongest;
      while (!holds() && loop.now() < deadline) loop.turn(loop.now() + 20ms);
      return holds();
    };
    ASSERT_TRUE(turn_until([&] { return agents->clean(0); })) << agents->error(0);
    const pid_t agent = std::stoi(
        read_file(fmt::format("/proc/self/task/{}/children", static_cast<int64_t>(::gettid()))));
    ::kill(agent, SIGTERM);
    ASSERT_TRUE(comes([&] { return fs::exists(notice_file(folder.path(), "one")); }));
    if (heard) {
      ASSERT_TRUE(turn_until([&] { return agents->leaving(0) == kNotice; }));
      agents->stop();
      EXPECT_TRUE(turn_until([&] { return agents->leaving(0) == 0; }));
    }
    agents.reset();
    EXPECT_FALSE(fs::exists(notice_file(folder.path(), "one")));
  }
}

// Formerly it was waited as long for one that had answered as for one that has not yet.
TEST(AgentSilence, OfOneThatHasAnsweredIsSoonNoticed) {
  const TempFolder folder;
  AgentsOptions options;
  options.setup = {{{"one", "", 2}}, "env", "127.0.0.1"};
  options.folder = folder.path();
  options.program = options.worker = DUCTILE_TEST_WORKER;
  options.patience = std::chrono::hours(1);
  options.silence = 3s;
  net::Loop loop;
  Agents agents(loop, options);
  agents.meet(true);
  const pid_t agent = std::stoi(
      read_file(fmt::format("/proc/self/task/{}/children", static_cast<int64_t>(::gettid()))));
  ::kill(agent, SIGSTOP);
  const auto deadline = loop.now() + kLongest;
  while (agents.error(0).find("silent for") == std::string::npos && loop.now() < deadline)
    loop.turn(loop.now() + 20ms);
  EXPECT_NE(agents.error(0).find("silent for"), std::string::npos) << agents.error(0);
}

}  // namespace
}  // namespace ductile::server
