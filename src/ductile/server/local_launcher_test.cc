// Which processes a launcher takes for workers that an earlier one started.
#include <chrono>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/link/addresses.h"
#include "ductile/link/worker_processes.h"
#include "ductile/server/launcher.h"

namespace ductile::server {
namespace {

// A process with the command line of a worker, of a program and a user of the test's choice. It
// stands still by itself: a child that it made would have the same command line until its exec.
class Pretender {
 public:
  Pretender(const fs::path& program, const fs::path& run, uid_t user = ::geteuid()) {
    const std::string path = program.string(), folder = run.string();
    pid_ = ::fork();
    if (pid_ == 0) {
      if (user != ::geteuid() && ::setresuid(user, user, user) != 0) ::_exit(1);
      ::execl(path.c_str(), "ductile-worker", "-c", "kill -STOP $$", "x", "--run", folder.c_str(),
              "--worker", "1", "--last", nullptr);
      ::_exit(1);
    }
    // Until exec is over and its words are those of the new program.
    const fs::path words = fs::path("/proc") / std::to_string(pid_) / "cmdline";
    while (alive() && read_file(words).find("--last") == std::string::npos) ::usleep(1000);
  }
  Pretender(const Pretender&) = delete;
  ~Pretender() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  void wait_for_end() {
    for (int i = 0; i < 2000 && alive(); ++i) ::usleep(5000);
    EXPECT_EQ(pid_, -1) << "it still runs";
  }
  bool alive() {
    if (pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) != 0) pid_ = -1;
    return pid_ > 0;
  }

 private:
  pid_t pid_ = -1;
};

class Adoption : public ::testing::Test {
 protected:
  // A copy of the shell under a name of its own: the program of this job.
  fs::path shell(const char* name) const {
    const fs::path copy = folder_.path() / name;
    fs::copy_file("/bin/sh", copy, fs::copy_options::skip_existing);
    fs::permissions(folder_.path(), fs::perms(0755));
    return copy;
  }
  std::unique_ptr<Launcher> launcher() {
    LocalLauncherOptions options;
    options.program = shell("the-worker");
    options.log = folder_.path() / "log";
    return make_local_launcher(loop_, options, run());
  }
  fs::path run() const { return folder_.path() / "run"; }
  // Whether a new launcher takes a process for worker 1.
  static bool adopts(Launcher& launcher, const std::string& place = "") {
    const EarlierWorker worker{1, place};
    launcher.adopt({&worker, 1});
    return launcher.running() == 1;
  }

  const TempFolder folder_;
  net::Loop loop_;
};

TEST_F(Adoption, FindsAWorkerAndKillsItAtTheEnd) {
  Pretender worker(shell("the-worker"), run());
  {
    const auto one = launcher();
    EXPECT_TRUE(adopts(*one));
    EXPECT_TRUE(worker.alive());
  }
  worker.wait_for_end();
}

// No free descriptor is no sign that a worker is gone: nobody may conclude that it ended.
TEST_F(Adoption, WhoCannotLookSaysSoAndConcludesNothing) {
  Pretender worker(shell("the-worker"), run());
  const auto launcher = this->launcher();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  ErrorCode code = ErrorCode::internal;
  try {
    adopts(*launcher);
  } catch (const Error& e) {
    code = e.code();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(code, ErrorCode::unavailable);
  EXPECT_TRUE(launcher->take().empty());
  EXPECT_TRUE(worker.alive());
  EXPECT_TRUE(adopts(*launcher));
}

TEST_F(Adoption, AProcessOfAnotherProgramIsNeitherAwaitedNorKilled) {
  Pretender other(shell("another-program"), run());
  {
    const auto one = launcher();
    EXPECT_FALSE(adopts(*one));
    const std::vector<LauncherEvent> events = one->take();
    ASSERT_EQ(events.size(), 1u);  // the worker is gone
    EXPECT_EQ(std::get<control::WorkerExited>(events.front()).worker, 1u);
    one->kill(1);
  }
  EXPECT_TRUE(other.alive());
}

// Nobody may conclude from the processes of this machine what became of another one's.
TEST_F(Adoption, AWorkerOfAnotherPlaceIsNotTakenForGone) {
  const auto one = launcher();
  EXPECT_FALSE(adopts(*one, "another-boot/0/net:[1]/pid:[1]"));
  EXPECT_TRUE(one->take().empty());
  one->kill(1);
  EXPECT_TRUE(one->take().empty());
  const auto two = launcher();
  EXPECT_FALSE(adopts(*two, link::PeerAddress::here("").place));
  EXPECT_EQ(two->take().size(), 1u);
}

TEST_F(Adoption, AWorkerThatIsHereIsFoundWhateverItSaidOfItsPlace) {
  Pretender worker(shell("the-worker"), run());
  const auto one = launcher();
  EXPECT_TRUE(adopts(*one, "another-boot/0/net:[1]/pid:[1]"));
}

TEST_F(Adoption, AnotherUsersProcessNeitherHidesTheWorkerNorIsKilled) {
  if (::geteuid() != 0) GTEST_SKIP() << "takes root, to be another user";
  const fs::path program = shell("the-worker");
  Pretender before(program, run(), 65534);
  Pretender worker(program, run());
  Pretender after(program, run(), 65534);
  EXPECT_EQ(link::workers_of(run()), std::vector<pid_t>{worker.pid()});
  {
    const auto one = launcher();
    EXPECT_TRUE(adopts(*one));
  }
  EXPECT_TRUE(before.alive());
  EXPECT_TRUE(after.alive());
  worker.wait_for_end();
  const auto second = launcher();
  EXPECT_FALSE(adopts(*second));
}

TEST_F(Adoption, AReplacedProgramsWorkerIsStillFound) {
  Pretender worker(shell("the-worker"), run());
  fs::remove(folder_.path() / "the-worker");  // an upgrade puts another file in its place
  const auto one = launcher();
  EXPECT_TRUE(adopts(*one));
}

// As a keeper that waits for room on a full disk, which blocks what is to end it: whoever holds the
// launcher must be able to end.
TEST(LocalLauncher, WhatDoesNotEndIsLeftToWhoeverComesNext) {
  const TempFolder run;
  net::Loop loop;
  LocalLauncherOptions options{"/bin/sleep", run.path() / "log"};
  options.keepers = true;
  pid_t pid = 0;
  {
    const auto launcher = make_local_launcher(loop, options, run.path());
    WorkerStart start;
    start.worker = 1;
    start.arguments = {"1000"};
    launcher->start(start);
    pid = launcher->place_of(1).process;
    ASSERT_GT(pid, 0);
  }
  EXPECT_EQ(::kill(pid, 0), 0);
  ::kill(pid, SIGKILL);
  EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
}

}  // namespace
}  // namespace ductile::server
