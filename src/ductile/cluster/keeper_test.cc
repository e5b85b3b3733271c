// Keepers without a service: what they take the end of a command for, and their orders.
#include <csignal>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
extern "C" {  // glibc 2.36 forgot to say so
#include <sys/pidfd.h>
}

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/cluster/command_impl.h"
#include "ductile/cluster/testing/commands.h"
#include "ductile/link/worker_processes.h"

namespace ductile::cluster {
namespace {

using namespace testing;
using namespace std::chrono_literals;

// A keeper, without a service.
class LoneKeeper {
 public:
  LoneKeeper(const fs::path& run, double lease, bool begins = true,
             const std::string& script = "setsid sleep 1000 & sleep 1000") {
    KeeperOrders orders;
    orders.command = {{"/bin/sh", "-c", "echo $$ >> begun; " + script}, run};
    orders.command.environment = {{"DUCTILE_RUN_DIR", run.string()}};
    orders.attempt = orders.keeper = 1;
    orders.lease = lease;
    write_orders(run, orders);
    process_ = ::fork();
    if (process_ == 0) {
      sigset_t signals;
      sigemptyset(&signals);
      for (const int signal : link::kKeeperSignals) sigaddset(&signals, signal);
      sigprocmask(SIG_BLOCK, &signals, nullptr);
      try {
        keep(run, 1);
      } catch (const std::exception&) {
      }
      ::_exit(0);
    }
    if (begins) wait_for_lines(run / "begun", 1);
  }
  ~LoneKeeper() {
    ::kill(process_, SIGQUIT);
    ::waitpid(process_, nullptr, 0);
  }
  void signal(int number) const { ::kill(process_, number); }
  // As its service does.
  void ask_to_end() const {
    const Descriptor process(::pidfd_open(process_, 0));
    link::ask_keeper_to_end(process.get());
  }
  void wait_for_end() {
    ::waitpid(process_, nullptr, 0);
    process_ = ::fork();
    if (process_ == 0) ::_exit(0);
  }

 private:
  pid_t process_ = -1;
};

// A shell starts what it does not wait for with SIGINT and SIGQUIT ignored, and others ignore more.
TEST(LoneKeeper, NoSignalIsIgnoredInACommandThatWasIgnoredWhereTheServiceBegan) {
  const TempFolder run;
  const pid_t service = ::fork();
  if (service == 0) {
    for (int signal = 1; signal <= SIGRTMAX; ++signal)
      if (signal != SIGCHLD)
        ::signal(signal, SIG_IGN);  // the keeper's own program sees to that one
    {
      LoneKeeper keeper(run.path(), 0, /*begins=*/true,
                        "grep ^SigIgn: /proc/self/status > ignored");
      keeper.wait_for_end();
    }
    ::_exit(0);
  }
  ::waitpid(service, nullptr, 0);
  std::string ignored = read_file(run.path() / "ignored");
  std::erase_if(ignored, [](char c) { return c == '0' || c == ' ' || c == '\t' || c == '\n'; });
  EXPECT_EQ(ignored, "SigIgn:");
}

// It comes late to the end of its command, and hears at the same time that it is to end it.
// Formerly the command counted as stopped, and was run again.
TEST(LoneKeeper, WhatHasEndedBeforeItWasAskedKeepsItsEnd) {
  for (int round = 0; round < 20; ++round) {
    const TempFolder run;
    const int code = round % 2 * 3;
    LoneKeeper keeper(run.path(), 0, true,
                      "while [ ! -e go ]; do sleep 0.005; done; exit " + std::to_string(code));
    const int command = std::stoi(read_file(run.path() / "begun"));
    keeper.signal(SIGSTOP);
    write_file_atomic(run.path() / "go", "");
    ASSERT_TRUE(ends_unreaped(command));
    if (round % 3 == 0)
      keeper.signal(SIGQUIT);
    else
      keeper.ask_to_end();
    keeper.signal(SIGCONT);
    keeper.wait_for_end();
    const Attempt attempt = read_attempt(run.path());
    ASSERT_TRUE(attempt.end);
    EXPECT_EQ(attempt.end->kind, AttemptEnd::Kind::exited) << round;
    EXPECT_EQ(attempt.end->code, code) << round;
    EXPECT_EQ(attempt.failures, code == 0 ? 0 : 1) << round;
  }
}

// Whatever it answers to that: it may have saved, and goes on with it.
TEST(LoneKeeper, WhatEndsBecauseItIsAskedCountsAsStopped) {
  for (const char* answer : {"exit 0", "exit 3", "kill -SEGV $$"}) {
    const TempFolder run;
    LoneKeeper keeper(
        run.path(), 0, true,
        std::string("trap '") + answer + "' TERM; echo >> begun; while :; do sleep 0.005; done");
    wait_for_lines(run.path() / "begun", 2);
    keeper.ask_to_end();
    keeper.wait_for_end();
    const Attempt attempt = read_attempt(run.path());
    ASSERT_TRUE(attempt.end) << answer;
    EXPECT_EQ(attempt.end->kind, AttemptEnd::Kind::stopped) << answer;
  }
}

// Whoever shuts down a machine or a unit signals all its processes, in any order. Formerly a
// command that ended of that before its keeper had looked had failed, or was done.
TEST(LoneKeeper, WhatEndsAsAllProcessesAreToldToCountsAsStopped) {
  for (const char* answer : {"", "trap 'exit 0' TERM; ", "trap 'exit 3' TERM; "})
    for (const bool keeper_first : {true, false}) {
      const TempFolder run;
      LoneKeeper keeper(run.path(), 0, true,
                        answer + std::string("echo >> begun; while :; do sleep 0.005; done"));
      wait_for_lines(run.path() / "begun", 2);
      const int command = std::stoi(read_file(run.path() / "begun"));
      keeper.signal(SIGSTOP);
      if (keeper_first) keeper.signal(SIGTERM);
      ::kill(command, SIGTERM);
      ASSERT_TRUE(ends_unreaped(command));
      if (!keeper_first) keeper.signal(SIGTERM);
      keeper.signal(SIGCONT);
      keeper.wait_for_end();
      const Attempt attempt = read_attempt(run.path());
      ASSERT_TRUE(attempt.end) << answer;
      EXPECT_EQ(attempt.end->kind, AttemptEnd::Kind::stopped) << answer << keeper_first;
      EXPECT_EQ(attempt.failures, 0) << answer;
    }
}

// Its service hears it as well, and asks at once; or the keeper has seen the end before it was
// told to end.
TEST(LoneKeeper, WhatIsKilledWithItsServiceCountsAsStopped) {
  for (const bool by_service : {true, false}) {
    const TempFolder run;
    LoneKeeper keeper(run.path(), 0, true, "exec sleep 1000");
    const int command = std::stoi(read_file(run.path() / "begun"));
    if (by_service) keeper.signal(SIGSTOP);
    ::kill(command, SIGTERM);
    if (by_service) {
      ASSERT_TRUE(ends_unreaped(command));
      keeper.ask_to_end();
    } else {
      keeper.signal(SIGTERM);
    }
    keeper.wait_for_end();
    const Attempt attempt = read_attempt(run.path());
    ASSERT_TRUE(attempt.end);
    EXPECT_EQ(attempt.end->kind, AttemptEnd::Kind::stopped) << by_service;
  }
}

TEST(LoneKeeper, WhatSomebodyKillsAloneIsKilled) {
  const TempFolder run;
  LoneKeeper keeper(run.path(), 0, true, "exec sleep 1000");
  ::kill(std::stoi(read_file(run.path() / "begun")), SIGTERM);
  keeper.wait_for_end();
  const Attempt attempt = read_attempt(run.path());
  ASSERT_TRUE(attempt.end);
  EXPECT_EQ(attempt.end->kind, AttemptEnd::Kind::killed);
  EXPECT_EQ(attempt.end->signal, SIGTERM);
}

// How many of a process's unread signals are its service's, and how many SIGTERM of others.
struct Heard {
  int asked = 0, told = 0;
};

// What a process that blocks `blocked` hears after send(descriptor of itself).
Heard heard_after(std::span<const int> blocked, const std::function<void(int)>& send) {
  const pid_t process = ::fork();
  if (process == 0) {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : blocked) sigaddset(&signals, signal);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    const Descriptor unread(::signalfd(-1, &signals, SFD_NONBLOCK)),
        self(::pidfd_open(::getpid(), 0));
    send(self.get());
    Heard heard;
    signalfd_siginfo info;
    while (::read(unread.get(), &info, sizeof info) == sizeof info) {
      const bool asked = link::is_asked_of_keeper(info);
      heard.asked += asked ? 1 : 0;
      heard.told += !asked && info.ssi_signo == SIGTERM ? 1 : 0;
    }
    ::_exit(heard.asked * 10 + heard.told);
  }
  int status = 0;
  ::waitpid(process, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  return {WEXITSTATUS(status) / 10, WEXITSTATUS(status) % 10};
}

// A signal of a number that waits already is dropped. Formerly a command that a shutdown had ended
// while its keeper was busy was finished: its service's word hid that all were told to end.
TEST(WordToAKeeper, NeitherHidesWhatAllAreToldNorIsHiddenByIt) {
  for (const bool word_first : {true, false}) {
    const Heard heard = heard_after(link::kKeeperSignals, [&](int self) {
      if (word_first) link::ask_keeper_to_end(self);
      ::kill(::getpid(), SIGTERM);
      for (int again = 0; again < 2; ++again) link::ask_keeper_to_end(self);
    });
    EXPECT_EQ(heard.asked, 1) << word_first;
    EXPECT_EQ(heard.told, 1) << word_first;
  }
}

TEST(WordToAKeeper, IsHeardByOneOfAnEarlierVersion) {
  constexpr int kOfEarlierVersion[] = {SIGTERM, SIGQUIT, SIGCHLD};
  const Heard heard = heard_after(kOfEarlierVersion, link::ask_keeper_to_end);
  EXPECT_EQ(heard.asked, 1);
  EXPECT_EQ(heard.told, 0);
}

// The kernel then leaves out what is sent with a signal.
TEST(WordToAKeeper, IsHeardWhereTooManySignalsWait) {
  const Heard heard = heard_after(link::kKeeperSignals, [](int self) {
    const rlimit none{};
    ::setrlimit(RLIMIT_SIGPENDING, &none);
    link::ask_keeper_to_end(self);
  });
  EXPECT_EQ(heard.asked, 1);
}

TEST(WordToAKeeper, IsNoSignalThatSomebodySendsByHand) {
  const Heard heard =
      heard_after(link::kKeeperSignals, [](int) { ::kill(::getpid(), link::kAskKeeper); });
  EXPECT_EQ(heard.asked, 0);
}

TEST(KeeperLease, WhoseOrdersAreAnothersKillsAll) {
  const TempFolder run;
  LoneKeeper keeper(run.path(), 1000);
  KeeperOrders orders = *read_orders(run.path());
  orders.keeper = 2;
  orders.withdrawn = true;
  write_orders(run.path(), orders);
  keeper.wait_for_end();
  const Attempt attempt = read_attempt(run.path());
  ASSERT_TRUE(attempt.end);
  EXPECT_EQ(attempt.end->kind, AttemptEnd::Kind::lost);
  EXPECT_NE(attempt.end->text.find("another keeper"), std::string::npos);
}

// The shared folder is there no more, as for a node that is cut off from everything.
TEST(KeeperLease, WhoDoesNotSeeItsOrdersKillsAllInTime) {
  const TempFolder folder;
  const fs::path run = folder.path() / "run", hidden = folder.path() / "hidden";
  fs::create_directory(run);
  LoneKeeper keeper(run, 1);
  const auto alive = [&] {  // what came of the command has the folder's old name
    for (const pid_t pid : link::all_processes()) {
      try {
        const fs::path process = fs::path("/proc") / std::to_string(pid);
        if (read_file(process / "environ").find("DUCTILE_RUN_DIR=" + run.string()) !=
                std::string::npos &&
            read_file(process / "comm") == "sleep\n")
          return true;
      } catch (const Error&) {
      }
    }
    return false;
  };
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!alive() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(5ms);
  fs::rename(run, hidden);
  while (alive() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(5ms);
  EXPECT_FALSE(alive());
  keeper.wait_for_end();
}

// A file system that does not answer, here a pipe, holds it up until another one has its place.
TEST(KeeperLease, WhoIsHeldUpUntilAnotherHasBegunTouchesNothing) {
  const TempFolder folder;
  const fs::path run = folder.path(), pipe = run / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_hard_link(pipe, run / "attempt.json");
  LoneKeeper keeper(run, 1000, /*begins=*/false);
  Descriptor answer;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!answer && std::chrono::steady_clock::now() < deadline) {  // until it reads there
    std::this_thread::sleep_for(5ms);
    answer = Descriptor(::open(pipe.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  }
  ASSERT_TRUE(answer);
  KeeperOrders orders = *read_orders(run);
  orders.keeper = 2;
  write_orders(run, orders);
  write_attempt(run, {1, "abcd", 0, {}});
  const std::string text = R"({"number": 0, "fence": "", "failures": 0})";
  ASSERT_EQ(::write(answer.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  answer.close();
  keeper.wait_for_end();
  const Attempt attempt = read_attempt(run);
  EXPECT_EQ(attempt.fence, "abcd");
  EXPECT_FALSE(attempt.end);
  EXPECT_FALSE(fs::exists(run / "begun"));
}

TEST(KeeperLease, OrdersThatAreDamagedSaySo) {
  const TempFolder run;
  EXPECT_FALSE(read_orders(run.path()));
  for (const char* text : {"", "{", "{\"keeper\": 0}", "{\"keeper\": 1, \"attempt\": \"x\"}"}) {
    write_file_atomic(run.path() / "orders.json", text);
    try {
      read_orders(run.path());
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data_loss) << text;
    }
  }
}
}  // namespace
}  // namespace ductile::cluster
