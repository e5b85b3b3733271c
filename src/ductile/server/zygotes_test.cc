// Workers that are forked: what they have, what becomes of them, and of what forks them. With a
// real program, without torch (testing/zygote_worker.cc).
#include "ductile/server/zygotes.h"

#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/link/worker_processes.h"
#include "ductile/process/worker.h"
#include "ductile/server/launcher.h"

namespace ductile::server {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr auto kPatience = 60s;

class ZygotesTest : public ::testing::Test {
 protected:
  ZygotesTest() { fs::copy_file(DUCTILE_ZYGOTE_WORKER, program()); }

  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the sanitizer has a thread of its own, so nothing is forked";
#endif
  }

  fs::path program() const { return folder_.path() / "ductile-worker"; }
  fs::path run() const { return folder_.path() / "run"; }
  fs::path told(control::WorkerId worker) const {
    return folder_.path() / ("worker-" + std::to_string(worker));
  }

  std::unique_ptr<Launcher> launcher(std::shared_ptr<Zygotes> zygotes, int64_t threads = 1) {
    LocalLauncherOptions options;
    options.program = program();
    options.log = folder_.path() / "log";
    options.threads = threads;
    options.zygotes = std::move(zygotes);
    return make_local_launcher(loop_, options, run());
  }
  std::shared_ptr<Zygotes> zygotes(Zygotes::Patience patience = {.for_load = true}) {
    return std::make_shared<Zygotes>(loop_, patience);
  }
  void start(Launcher& launcher, control::WorkerId worker, const std::string& exit) const {
    launcher.start({worker,
                    {"--run", run().string(), "--worker", std::to_string(worker), "--tell",
                     told(worker).string(), "--exit", exit},
                    {{"DUCTILE_SECRET_FILE", "secret-of-" + std::to_string(worker)}}});
  }

  void turn_until(const std::function<bool()>& holds, const char* what,
                  Launcher* launcher = nullptr) {
    const auto deadline = loop_.now() + kPatience;
    while (!holds() && loop_.now() < deadline) {
      loop_.turn(loop_.now() + 10ms);
      if (launcher == nullptr) continue;
      for (LauncherEvent& event : launcher->take()) events_.push_back(std::move(event));
    }
    EXPECT_TRUE(holds()) << "waited in vain for " << what;
  }
  // What a worker says that it is, once it is there.
  json here(Launcher& launcher, control::WorkerId worker) {
    turn_until([&] { return fs::exists(told(worker)); }, "a worker", &launcher);
    return fs::exists(told(worker)) ? json::parse(read_file(told(worker))) : json();
  }
  control::WorkerExited end_of(Launcher& launcher, control::WorkerId worker) {
    const auto found = [&]() -> const control::WorkerExited* {
      for (const LauncherEvent& event : events_)
        if (const auto* exited = std::get_if<control::WorkerExited>(&event);
            exited != nullptr && exited->worker == worker)
          return exited;
      return nullptr;
    };
    turn_until([&] { return found() != nullptr; }, "an end", &launcher);
    return found() != nullptr ? *found() : control::WorkerExited{};
  }

  // Processes that were started with the program of this test, by what `ps` shows.
  std::vector<pid_t> processes(std::string_view of) const {
    std::vector<pid_t> out;
    for (const pid_t pid : link::all_processes()) {
      std::error_code error;
      const fs::path at = fs::path("/proc") / std::to_string(pid);
      const fs::path exe = fs::read_symlink(at / "exe", error);
      if (error || !exe.string().starts_with(folder_.path().string())) continue;
      try {
        if (read_file(at / "cmdline").find(of) != std::string::npos) out.push_back(pid);
      } catch (const Error&) {  // gone
      }
    }
    return out;
  }
  std::vector<pid_t> zygotes_alive() const { return processes("ductile zygote"); }
  std::vector<pid_t> workers_alive() const { return processes("--worker"); }
  // Once it has loaded all: before, it has another title.
  pid_t zygote() {
    turn_until([&] { return zygotes_alive().size() == 1; }, "a zygote");
    const std::vector<pid_t> found = zygotes_alive();
    return found.empty() ? -1 : found.front();
  }

  const TempFolder folder_;
  net::Loop loop_;
  std::vector<LauncherEvent> events_;
};

TEST_F(ZygotesTest, AForkedWorkerHasAllThatOneWhichIsStartedHas) {
  const auto forking = launcher(zygotes()), starting = launcher(nullptr);
  json forked, started;
  start(*forking, 1, "0");
  forked = here(*forking, 1);
  EXPECT_EQ(end_of(*forking, 1).code, 0);
  fs::remove(told(1));
  start(*starting, 1, "0");
  events_.clear();
  started = here(*starting, 1);
  EXPECT_EQ(end_of(*starting, 1).code, 0);
  EXPECT_EQ(forked.at("forked"), true);
  EXPECT_EQ(started.at("forked"), false);
  EXPECT_EQ(forked.at("parent"), ::getpid());
  for (const char* own : {"forked", "process"}) {
    forked.erase(own);
    started.erase(own);
  }
  EXPECT_EQ(forked, started);
  EXPECT_NE(forked.dump().find("DUCTILE_SECRET_FILE=secret-of-1"), std::string::npos);
  EXPECT_EQ(read_file(folder_.path() / "log"), "out\nerr\nout\nerr\n");
}

TEST_F(ZygotesTest, LinesExitCodesAndSignalsAreThoseOfTheWorkers) {
  const auto one = launcher(zygotes());
  start(*one, 1, "7");
  EXPECT_EQ(end_of(*one, 1).code, 7);
  const auto* line = std::get_if<WorkerLine>(&events_.front());
  ASSERT_NE(line, nullptr);
  EXPECT_EQ(line->text, "here");
  start(*one, 2, "wait");
  const json second = here(*one, 2);
  EXPECT_EQ(one->place_of(2).process, second.at("process"));
  ::kill(second.at("process"), SIGKILL);
  EXPECT_EQ(end_of(*one, 2).signal, SIGKILL);
  start(*one, 3, "wait");
  here(*one, 3);
  one->kill(3);
  EXPECT_EQ(end_of(*one, 3).signal, SIGKILL);
}

TEST_F(ZygotesTest, AWorkerThatCrashedIsReplacedByOneThatIsStarted) {
  const auto one = launcher(zygotes());
  start(*one, 1, "wait");
  const json first = here(*one, 1);
  EXPECT_EQ(first.at("forked"), true);
  ::kill(first.at("process"), SIGSEGV);
  EXPECT_EQ(end_of(*one, 1).signal, SIGSEGV);
  start(*one, 2, "wait");
  EXPECT_EQ(here(*one, 2).at("forked"), false);
}

TEST_F(ZygotesTest, OneForksTheWorkersOfAllLaunchers) {
  const auto shared = zygotes();
  const auto one = launcher(shared), other = launcher(shared);
  start(*one, 1, "wait");
  start(*other, 2, "wait");
  EXPECT_EQ(here(*one, 1).at("forked"), true);
  const json second = here(*other, 2);
  EXPECT_EQ(second.at("forked"), true);
  EXPECT_NE(second.dump().find("DUCTILE_SECRET_FILE=secret-of-2"), std::string::npos);
  EXPECT_EQ(zygotes_alive().size(), 1u);
}

// One that was loaded before there was a launcher, for workers of one thread.
TEST_F(ZygotesTest, OneThatThereIsAlreadyForksTheWorkersThatItSuits) {
  for (const int64_t threads : {1, 2}) {
    process::SpawnOptions worker;
    worker.program = program();
    worker.environment = process::worker_environment(1);
    auto loaded = std::make_shared<process::Zygote>(worker);
    const pid_t there = loaded->pid();
    const auto shared = zygotes();
    shared->take_over(std::move(loaded));
    const auto one = launcher(shared, threads);
    start(*one, 1, "wait");
    EXPECT_EQ(here(*one, 1).at("forked"), true);
    EXPECT_EQ(zygote() == there, threads == 1);
    fs::remove(told(1));
  }
}

TEST_F(ZygotesTest, OneThatIsKilledIsReplaced) {
  const auto one = launcher(zygotes());
  start(*one, 1, "wait");
  EXPECT_EQ(here(*one, 1).at("forked"), true);
  const pid_t first = zygote();
  ::kill(first, SIGKILL);
  turn_until([&] { return link::state_of(first)->letter == 'Z'; }, "its end");
  start(*one, 2, "wait");
  EXPECT_EQ(here(*one, 2).at("forked"), true);
  EXPECT_NE(zygote(), first);
  EXPECT_EQ(workers_alive().size(), 2u);
}

TEST_F(ZygotesTest, OneThatIsStoppedIsPassedByAndKilled) {
  const auto one = launcher(zygotes());
  start(*one, 1, "0");
  end_of(*one, 1);
  ::kill(zygote(), SIGSTOP);
  start(*one, 2, "wait");
  EXPECT_EQ(here(*one, 2).at("forked"), false);
  EXPECT_TRUE(zygotes_alive().empty());
  EXPECT_EQ(workers_alive().size(), 1u);
}

TEST_F(ZygotesTest, OneThatAnswersNobodyIsPassedByAndKilled) {
  ::setenv("DUCTILE_TEST_ZYGOTE", "silent", 1);
  const auto one = launcher(zygotes({.for_load = true, .load = 50ms}));
  start(*one, 1, "wait");
  ::unsetenv("DUCTILE_TEST_ZYGOTE");
  EXPECT_EQ(here(*one, 1).at("forked"), false);
  EXPECT_EQ(processes("").size(), 1u);
}

TEST_F(ZygotesTest, OneThatIsStillLoadingIsNotWaitedFor) {
  ::setenv("DUCTILE_TEST_ZYGOTE", "silent", 1);
  const auto one = launcher(zygotes({}));
  start(*one, 1, "wait");
  EXPECT_EQ(here(*one, 1).at("forked"), false);
  ::unsetenv("DUCTILE_TEST_ZYGOTE");
  EXPECT_EQ(processes("").size(), 2u);
}

TEST_F(ZygotesTest, OneThatIsLoadedForks) {
  const auto one = launcher(zygotes({}));
  start(*one, 1, "wait");
  EXPECT_EQ(here(*one, 1).at("forked"), false);
  zygote();
  start(*one, 2, "wait");
  EXPECT_EQ(here(*one, 2).at("forked"), true);
}

TEST_F(ZygotesTest, OneThatHasThreadsForksNobody) {
  ::setenv("DUCTILE_TEST_ZYGOTE", "threads", 1);
  const auto one = launcher(zygotes());
  start(*one, 1, "wait");
  ::unsetenv("DUCTILE_TEST_ZYGOTE");
  EXPECT_EQ(here(*one, 1).at("forked"), false);
  EXPECT_EQ(processes("").size(), 1u);
}

TEST_F(ZygotesTest, OneOfAProgramThatWasReplacedForksNobodyAnyMore) {
  const auto one = launcher(zygotes());
  start(*one, 1, "0");
  end_of(*one, 1);
  const pid_t first = zygote();
  fs::copy_file(DUCTILE_ZYGOTE_WORKER, folder_.path() / "newer");
  fs::rename(folder_.path() / "newer", program());
  start(*one, 2, "wait");
  const json second = here(*one, 2);
  EXPECT_EQ(second.at("forked"), true);
  EXPECT_EQ(second.at("program"), program().string());  // else it would be a deleted one
  EXPECT_NE(zygote(), first);
}

TEST_F(ZygotesTest, AWorkerWithAnotherEnvironmentIsStarted) {
  const auto shared = zygotes();
  const auto one = launcher(shared, 1), other = launcher(shared, 3);
  start(*one, 1, "wait");
  EXPECT_EQ(here(*one, 1).at("forked"), true);
  start(*other, 2, "wait");
  const json second = here(*other, 2);
  EXPECT_EQ(second.at("forked"), false);
  EXPECT_NE(second.dump().find("OMP_NUM_THREADS=3"), std::string::npos);
  ::setenv("DUCTILE_TEST_ANOTHER", "1", 1);
  start(*one, 3, "wait");
  const json third = here(*one, 3);
  ::unsetenv("DUCTILE_TEST_ANOTHER");
  EXPECT_EQ(third.at("forked"), false);
  start(*one, 4, "wait");
  EXPECT_EQ(here(*one, 4).at("forked"), true);
}

TEST_F(ZygotesTest, WhatALauncherTakesOverLaterItsWorkersHave) {
  const auto one = launcher(zygotes());
  start(*one, 1, "0");
  end_of(*one, 1);
  const fs::path before = fs::current_path();
  fs::current_path(folder_.path());
  start(*one, 2, "0");
  const json second = here(*one, 2);
  fs::current_path(before);
  EXPECT_EQ(second.at("forked"), true);
  EXPECT_NE(second.dump().find("cwd " + folder_.path().string()), std::string::npos);
}

TEST_F(ZygotesTest, AWorkerThatIsKilledBeforeItIsThereNeverBegins) {
  const auto one = launcher(zygotes());
  for (control::WorkerId id = 1; id <= 20; ++id) {
    start(*one, id, "wait");
    one->kill(id);
    end_of(*one, id);
  }
  start(*one, 21, "0");
  EXPECT_EQ(here(*one, 21).at("forked"), true);
  end_of(*one, 21);
  turn_until([&] { return workers_alive().empty(); }, "nobody", one.get());
  for (control::WorkerId id = 1; id <= 20; ++id) EXPECT_FALSE(fs::exists(told(id)));
}

// As the machine's or the agent's end would: a stopped one ends with its launcher, too.
TEST_F(ZygotesTest, NoneIsLeftBehindByALauncherThatIsKilled) {
  const pid_t launching = ::fork();
  if (launching == 0) {
    net::Loop loop;
    LocalLauncherOptions options;
    options.program = program();
    options.log = folder_.path() / "log";
    options.threads = 1;
    options.zygotes = std::make_shared<Zygotes>(loop);
    warm_up(options);
    for (;;) ::pause();
  }
  const pid_t left = zygote();
  ::kill(left, SIGSTOP);
  ::kill(launching, SIGKILL);
  ::waitpid(launching, nullptr, 0);
  turn_until([&] { return zygotes_alive().empty(); }, "its end");
}

TEST_F(ZygotesTest, NoneIsLeftAtTheEnd) {
  {
    const auto shared = zygotes();
    const auto one = launcher(shared);
    start(*one, 1, "wait");
    here(*one, 1);
    start(*one, 2, "wait");  // is perhaps not there yet
  }
  EXPECT_TRUE(processes("").empty());
}

}  // namespace
}  // namespace ductile::server
