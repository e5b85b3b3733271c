#include <fstream>
#include <optional>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/testing.h"
#include "ductile/run/runs_mark.h"
#include "ductile/server/agent_protocol_impl.h"
#include "ductile/server/hosts.h"

namespace ductile::server {
namespace {

void empty_secret(const fs::path& run) {
  std::ofstream(run / "secret").flush();
  ::chmod((run / "secret").c_str(), 0600);
}

std::string refusal(const fs::path& run) {
  try {
    secret_of(run);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(RunSecret, IsMadeOnceAndKept) {
  const TempFolder run;
  const net::Mac first = secret_of(run.path()).mac({});
  EXPECT_EQ(secret_of(run.path()).mac({}), first);
}

TEST(RunSecret, AnEmptyOneIsReplacedWhereNobodyCanKnowWhatItWas) {
  const TempFolder run;
  empty_secret(run.path());
  EXPECT_EQ(refusal(run.path()), "");
  EXPECT_GT(fs::file_size(run.path() / "secret"), 0u);
}

TEST(RunSecret, AnEmptyOneStaysWhileAWorkerLives) {
  const TempFolder run;
  empty_secret(run.path());
  int started[2];
  ASSERT_EQ(::pipe2(started, O_CLOEXEC), 0);
  const pid_t worker = ::fork();
  if (worker == 0) {
    // It makes no process of its own, which would look like it until it is another program.
    ::execl("/bin/sh", "sh", "-c", "kill -STOP $$", "x", "--run", run.path().c_str(), "--worker",
            "7", nullptr);
    ::_exit(1);
  }
  ::close(started[1]);
  char ignored;
  [[maybe_unused]] const ssize_t n = ::read(started[0], &ignored, 1);
  ::close(started[0]);
  const std::string text = refusal(run.path());
  EXPECT_NE(text.find(fmt::format("kill {}", worker)), std::string::npos) << text;
  ::kill(worker, SIGKILL);
  ::waitpid(worker, nullptr, 0);
  EXPECT_EQ(refusal(run.path()), "");
}

TEST(RunSecret, AnEmptyOneStaysWhereWorkersMayLiveOnOtherHosts) {
  const TempFolder run;
  empty_secret(run.path());
  save_host_setup(run.path(), {{{"node1", "", 1}}, "ssh {host}", ""});
  write_file_atomic(run.path() / "membership.json", "{}");
  EXPECT_NE(refusal(run.path()).find("remove the file"), std::string::npos);
  fs::remove(run.path() / "membership.json");
  EXPECT_EQ(refusal(run.path()), "");
}

// Also where its folder was copied, as a file system that is mounted again has other numbers.
TEST(RunSecret, ARunIsKnownByItAndMissedWhereItIsGone) {
  const TempFolder folder;
  const fs::path run = folder.path() / "run", moved = folder.path() / "moved";
  const auto make = [](const fs::path& at) {
    fs::create_directory(at);
    write_file_atomic(at / "job.toml", "");
    secret_of(at);
  };
  const auto is_there = [&](const RunMark& mark) {
    try {
      require_run(run, mark);
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data_loss);
      EXPECT_NE(std::string(error.what()).find(run.string()), std::string::npos) << error.what();
      return false;
    }
  };
  make(run);
  const RunMark mark = mark_of(run);
  EXPECT_FALSE(mark.secret.empty());
  EXPECT_TRUE(is_there(mark));
  fs::rename(run, moved);
  EXPECT_FALSE(is_there(mark));
  fs::copy(moved, run);
  EXPECT_TRUE(is_there(mark));
  fs::remove(run / "secret");
  EXPECT_TRUE(is_there(mark)) << "nobody says that it is another one";
  fs::remove(run / "job.toml");
  EXPECT_FALSE(is_there(mark));
  fs::remove_all(run);
  make(run);
  EXPECT_FALSE(is_there(mark)) << "another run has its place";
}

// Nothing was deleted where a whole disk is not mounted.
TEST(RunSecret, ARunWhoseFolderOfRunsIsMissingIsNotDeleted) {
  const TempFolder folder;
  const fs::path runs = folder.path() / "runs", run = runs / "run";
  fs::create_directories(run);
  write_file_atomic(run / "job.toml", "");
  secret_of(run);
  const RunMark mark = mark_of(run);
  const auto code = [&]() -> std::optional<ErrorCode> {
    try {
      require_run(run, mark);
      return std::nullopt;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(runs.string()), std::string::npos) << error.what();
      return error.code();
    }
  };
  EXPECT_EQ(code(), std::nullopt);
  fs::rename(runs, folder.path() / "away");
  EXPECT_EQ(code(), ErrorCode::unavailable);
  fs::create_directory(runs);
  EXPECT_EQ(code(), ErrorCode::data_loss) << "its disk is there, and the run is not";
  fs::remove(runs);
  fs::rename(folder.path() / "away", runs);
  EXPECT_EQ(code(), std::nullopt);
}

// An empty disk, or another one, in the place of the right one; also where the mark is damaged.
TEST(RunSecret, ARunWhoseFolderOfRunsIsAnotherOneIsNotDeleted) {
  const TempFolder folder;
  const fs::path runs = folder.path() / "runs", run = runs / "run";
  fs::create_directories(run);
  write_file_atomic(run / "job.toml", "");
  write_file_atomic(run::runs_mark_file(runs), "0123456789abcdef\n");
  secret_of(run);
  const RunMark mark = mark_of(run);
  const auto code = [&] { return ductile::testing::code_of([&] { require_run(run, mark); }); };
  EXPECT_NO_THROW(require_run(run, mark));
  fs::rename(runs, folder.path() / "away");
  EXPECT_EQ(code(), ErrorCode::unavailable);
  fs::create_directory(runs);
  EXPECT_EQ(code(), ErrorCode::unavailable) << "an empty disk";
  for (const char* other : {"fedcba9876543210\n", "0123"}) {
    write_file_atomic(run::runs_mark_file(runs), other);
    EXPECT_EQ(code(), ErrorCode::unavailable) << other;
  }
  write_file_atomic(run::runs_mark_file(runs), "0123456789abcdef\n");
  EXPECT_EQ(code(), ErrorCode::data_loss) << "its disk is there, and the run is not";
}

}  // namespace
}  // namespace ductile::server
