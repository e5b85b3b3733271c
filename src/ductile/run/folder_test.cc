#include "ductile/run/folder.h"

#include <csignal>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/run/new_folder.h"

namespace ductile::run {
namespace {

std::string failure(const std::function<void()>& f, ErrorCode code) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(RunFolder, NamesItselfAfterTheJobAndTheTime) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path() / "deep" / "runs", "cifar");
  EXPECT_TRUE(fs::is_directory(run.checkpoints()));
  EXPECT_TRUE(fs::is_directory(run.tensorboard()));
  ASSERT_EQ(run.name().size(), std::string("cifar-20260101-000000").size());
  EXPECT_TRUE(run.name().starts_with("cifar-20"));
}

TEST(RunFolder, IsUniqueWhenManyAreMadeAtOnce) {
  const TempFolder temp;
  std::vector<std::string> names(16);
  {
    std::vector<std::jthread> threads;
    for (std::string& name : names) {
      threads.emplace_back([&] { name = RunFolder::create(temp.path(), "job").name(); });
    }
  }
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  EXPECT_TRUE(fs::is_symlink(temp.path() / "latest"));
  EXPECT_TRUE(fs::is_directory(temp.path() / "latest"));
}

TEST(RunFolder, LatestFollowsTheNewestButAnOpenHandleStays) {
  const TempFolder temp;
  const RunFolder first = RunFolder::create(temp.path(), "job");
  write_file_atomic(first.job_file(), "name = \"job\"\n");
  const RunFolder opened = RunFolder::open(temp.path() / "latest");
  const RunFolder second = RunFolder::create(temp.path(), "job");
  EXPECT_EQ(opened.path(), first.path());
  EXPECT_EQ(fs::canonical(temp.path() / "latest"), second.path());
}

TEST(RunFolder, LeavesAFolderNamedLatestAlone) {
  const TempFolder temp;
  fs::create_directory(temp.path() / "latest");
  RunFolder::create(temp.path(), "job");
  EXPECT_FALSE(fs::is_symlink(temp.path() / "latest"));
}

TEST(RunFolder, RefusesWhatIsNoRunAndSaysWhy) {
  const TempFolder temp;
  EXPECT_NE(failure([&] { RunFolder::open(temp.path() / "none"); }, ErrorCode::not_found)
                .find("no such run"),
            std::string::npos);
  EXPECT_NE(failure([&] { RunFolder::open("3"); }, ErrorCode::not_found)
                .find("`ductile why 3 --json` names it"),
            std::string::npos);
  EXPECT_NE(failure([&] { RunFolder::open(temp.path()); }, ErrorCode::not_found).find("job.toml"),
            std::string::npos);
  write_file_atomic(temp.path() / "file", "x");
  EXPECT_NE(failure([&] { RunFolder::open(temp.path() / "file"); }, ErrorCode::not_found)
                .find("not a run directory but a file"),
            std::string::npos);
  RunFolder::create(temp.path(), "job");
  EXPECT_NE(failure([&] { RunFolder::open(temp.path()); }, ErrorCode::not_found).find("/latest"),
            std::string::npos);
  failure([&] { RunFolder::create(temp.path() / "file", "job"); }, ErrorCode::not_found);
}

// It has a job.toml, too, and a run of that job beside its trials would be no part of it.
TEST(RunFolder, IsNoTuningSession) {
  const TempFolder temp;
  const fs::path folder = fs::canonical(temp.path()) / "session";
  fs::create_directories(folder / "trials");
  write_file_atomic(folder / "job.toml", "");
  const auto refusal = [&](const std::string& state) {
    write_file_atomic(folder / "tune.json", state);
    return failure([&] { RunFolder::open(folder); }, ErrorCode::not_found);
  };
  const std::string best = refusal("{\"best\": 7}");
  EXPECT_NE(best.find("`ductile tune --resume " + folder.string() + "`"), std::string::npos)
      << best;
  EXPECT_NE(best.find("its best run is " + (folder / "trials/0007").string()), std::string::npos)
      << best;
  for (const char* other : {"{}", "{\"best\": -1}", "[7]", "{", "{\"best\": \"7\"}"}) {
    const std::string text = refusal(other);
    EXPECT_NE(text.find("its runs are in " + (folder / "trials").string()), std::string::npos)
        << text;
  }
}

TEST(RunFolder, TakesAPathOfTheUsersChoiceOnce) {
  const TempFolder temp;
  const fs::path path = temp.path() / "deep" / "mine";
  failure([&] { RunFolder::create_at(path, ""); }, ErrorCode::not_found);
  EXPECT_FALSE(fs::exists(temp.path() / "deep"));
  const RunFolder run = create_folder_at(path, "name = \"job\"\n", {});
  EXPECT_EQ(read_file(RunFolder::open(path).job_file()), "name = \"job\"\n");
  failure([&] { RunFolder::create_at(path, ""); }, ErrorCode::conflict);
  EXPECT_EQ(read_file(run.job_file()), "name = \"job\"\n");
}

// A folder in which nothing can be made: what was begun of the run goes away again.
TEST(RunFolder, IsWholeOrNotThere) {
  const TempFolder temp;
  const rlimit none{0, RLIM_INFINITY};
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &none);  // job.toml cannot be written
  failure([&] { RunFolder::create_at(temp.path() / "run", "x"); }, ErrorCode::unavailable);
  failure([&] { RunFolder::create(temp.path() / "runs", "job", "x"); }, ErrorCode::unavailable);
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_FALSE(fs::exists(temp.path() / "run"));
  EXPECT_TRUE(fs::is_empty(temp.path() / "runs"));
}

TEST(RunFolder, HasItsFirstFilesFromTheBeginning) {
  const TempFolder temp;
  const std::string text = "{}";
  const FirstFile first[] = {{"a.json", std::as_bytes(std::span(text))}, {"empty", {}}};
  for (const RunFolder& run : {create_folder(temp.path() / "runs", "job", "x", first),
                               create_folder_at(temp.path() / "mine", "x", first)}) {
    EXPECT_EQ(read_file(run.path() / "a.json"), text);
    EXPECT_EQ(read_file(run.path() / "empty"), "");
    EXPECT_EQ(read_file(run.job_file()), "x");
  }
  const FirstFile bad[] = {first[0], {"no/folder", {}}};
  EXPECT_THROW(create_folder_at(temp.path() / "other", "x", bad), Error);
  EXPECT_FALSE(fs::exists(temp.path() / "other"));
}

// A process that may write no more than so many bytes is killed by the signal SIGXFSZ in the middle
// of a file: of the first one, and of the second one, which is larger.
TEST(RunFolder, IsNoRunWhereItsMakerWasKilledBeforeAllFilesWereThere) {
  const std::string text(1000, 'x'), more(2000, 'y');
  const FirstFile files[] = {{"a.json", std::as_bytes(std::span(text))},
                             {"b.json", std::as_bytes(std::span(more))}};
  for (const rlim_t bytes : {500, 1500}) {
    const TempFolder temp;
    const pid_t child = ::fork();
    if (child == 0) {
      const rlimit limit{bytes, bytes}, none{0, 0};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      ::setrlimit(RLIMIT_CORE, &none);
      std::signal(SIGXFSZ, SIG_DFL);
      create_folder(temp.path(), "job", "name = \"job\"\n", files);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ) << status;
    EXPECT_FALSE(fs::is_symlink(temp.path() / "latest"));
    for (const auto& entry : fs::directory_iterator(temp.path())) {
      EXPECT_NE(failure([&] { RunFolder::open(entry.path()); }, ErrorCode::not_found)
                    .find("it holds no job.toml"),
                std::string::npos);
      EXPECT_EQ(fs::exists(entry.path() / "a.json"), bytes > text.size());
      EXPECT_FALSE(fs::exists(entry.path() / "b.json"));
    }
  }
}

TEST(RunFolder, ThatCannotBeLookedAtIsNotAbsent) {
  const TempFolder temp;
  const fs::path loop = temp.path() / "run" / "job.toml";
  fs::create_directory(loop.parent_path());
  fs::create_symlink(loop, loop);
  try {
    RunFolder::open(loop.parent_path());
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(e.code(), ErrorCode::not_found);
    EXPECT_NE(std::string(e.what()).find("job.toml: Too many levels"), std::string::npos)
        << e.what();
  }
}

TEST(RunFolder, SweepsWhatAKilledDriverLeftAndNothingElse) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job", "x");
  const std::vector<std::string> left = {"membership.json.tmp123", "report.html.tmp7"};
  const std::vector<std::string> others = {"membership.json", "membership.json.tmp",
                                           "model.safetensors.tmp12", "notes.tmp12",
                                           "membership.json.tmp1x"};
  for (const auto& names : {left, others})
    for (const std::string& name : names) write_file_atomic(run.path() / name, "x");
  run.remove_leftovers();
  for (const std::string& name : left) EXPECT_FALSE(fs::exists(run.path() / name)) << name;
  for (const std::string& name : others) EXPECT_TRUE(fs::exists(run.path() / name)) << name;
}

TEST(NewFolder, WhatHasOnlyTheBeginningsOfARunMayBecomeOne) {
  const TempFolder temp;
  const fs::path path = temp.path() / "run";
  EXPECT_FALSE(may_become_run(path));
  fs::create_directories(path / "checkpoints");
  EXPECT_TRUE(may_become_run(path));
  for (const char* name : {"run.lock", "plan.json", "initial.safetensors.tmp12", "job.toml.tmp12"})
    write_file_atomic(path / name, "x");
  EXPECT_TRUE(may_become_run(path));
  write_file_atomic(path / "notes.txt", "x");
  EXPECT_FALSE(may_become_run(path));
  fs::remove(path / "notes.txt");
  write_file_atomic(path / "job.toml", "x");
  EXPECT_FALSE(may_become_run(path));
}

TEST(FileNameOf, KeepsPlainNamesAndTamesTheRest) {
  EXPECT_EQ(file_name_of("cifar10_resnet-20.v2"), "cifar10_resnet-20.v2");
  EXPECT_EQ(file_name_of("../../etc/passwd"), "etc-passwd");
  EXPECT_EQ(file_name_of("a b\n<c>"), "a-b-c");
  EXPECT_EQ(file_name_of(""), "job");
  EXPECT_EQ(file_name_of("..."), "job");
  EXPECT_EQ(file_name_of(std::string(500, 'x')).size(), 80u);
}

}  // namespace
}  // namespace ductile::run
