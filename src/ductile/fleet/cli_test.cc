#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/isa.h"
#include "ductile/base/json_value.h"
#include "ductile/base/machine.h"
#include "ductile/cli/command_line.h"
#include "ductile/cli/other_commands.h"
#include "ductile/cli/worker_process.h"
#include "ductile/fleet/fleet_commands.h"
#include "ductile/run/blas_kernels.h"
#include "ductile/run/lock.h"

namespace ductile::cli {
namespace {

struct Said {
  ExitCode code;
  std::string out, err;
};

// One command line, in this process.
Said say(std::vector<const char*> words, std::vector<const char*> environment = {}) {
  words.insert(words.begin(), "ductile");
  environment.push_back(nullptr);
  std::ostringstream out, err;
  Console console(out, err);
  Context context{console, environment.data()};
  const int count = static_cast<int>(words.size());
  const bool other = is_other_command(count, words.data());
  const ExitCode code =
      run_command_line(count, words.data(), context, other ? fleet_commands() : own_commands());
  return {code, out.str(), err.str()};
}

// A folder with programs that stand in for workers that misbehave.
class Worker : public ::testing::Test {
 protected:
  fs::path program(const std::string& name, const std::string& body) {
    const fs::path file = folder_.path() / name;
    std::ofstream(file) << "#!/bin/bash\n" << body << "\n";
    fs::permissions(file, fs::perms::owner_all);
    return file;
  }
  WorkerLaunch launch(const std::string& body, std::vector<std::string> arguments = {}) {
    return {program("worker", body), std::move(arguments), {}, log()};
  }
  fs::path log() const { return folder_.path() / "worker.log"; }
  const fs::path& folder() const { return folder_.path(); }

  // Until `text` stands in the file.
  static void await(const fs::path& file, const std::string& text) {
    for (int i = 0; i < 3000; ++i) {
      if (fs::exists(file) && read_file(file).find(text) != std::string::npos) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    FAIL() << file << " never held " << text;
  }

 private:
  TempFolder folder_;
};

// The descriptor given as --progress-fd, for a shell: FD holds it.
const std::string kFd = "while [[ $1 != --progress-fd ]]; do shift; done; FD=$2\n";

TEST(ExitCodes, FollowTheKindOfError) {
  EXPECT_EQ(exit_code(ErrorCode::invalid_argument), 2);
  EXPECT_EQ(exit_code(ErrorCode::not_found), 4);
  EXPECT_EQ(exit_code(ErrorCode::conflict), 4);
  EXPECT_EQ(exit_code(ErrorCode::data_loss), 1);
  EXPECT_EQ(exit_code(ErrorCode::peer_lost), 3);
  EXPECT_EQ(exit_code(ErrorCode::internal), 1);
}

TEST(CommandLine, HelpGoesToStdoutAndErrorsToStderr) {
  const Said help = say({"--help"});
  EXPECT_EQ(help.code, kDone);
  EXPECT_EQ(help.out.rfind("Example:\n", 0), 0u);
  EXPECT_EQ(help.err, "");
  const Said wrong = say({"--helq"});
  EXPECT_EQ(wrong.code, kUsage);
  EXPECT_EQ(wrong.out, "");
  EXPECT_NE(wrong.err.find("did you mean --help?"), std::string::npos);
}

TEST(CommandLine, EveryCommandHasHelpThatBeginsWithAnExample) {
  for (const std::vector<const char*>& words :
       std::vector<std::vector<const char*>>{{"train"},
                                             {"status"},
                                             {"resize"},
                                             {"preempt"},
                                             {"resume"},
                                             {"logs"},
                                             {"config"},
                                             {"doctor"},
                                             {"data"},
                                             {"data", "inspect"},
                                             {"data", "convert"},
                                             {"ckpt"},
                                             {"ckpt", "list"},
                                             {"ckpt", "show"},
                                             {"ckpt", "verify"},
                                             {"ckpt", "export"},
                                             {"models"},
                                             {"report"},
                                             {"bench"}}) {
    auto with_help = words;
    with_help.push_back("--help");
    const Said said = say(with_help);
    std::string name = "ductile";
    for (const char* word : words) name += std::string(" ") + word;
    EXPECT_NE(said.out.find("Usage: " + name + " "), std::string::npos) << said.out;
    EXPECT_EQ(said.code, kDone) << words.back();
    EXPECT_EQ(said.out.rfind("Example:\n  ductile ", 0), 0u) << words.back();
  }
}

// The lists of both programs say the same of each command, and together have every command once.
TEST(CommandLine, EachCommandOfTheOtherProgramIsThere) {
  for (const auto rows : {live_commands(), service_commands(), lab_commands()}) {
    for (const OtherCommand& row : rows) {
      const Said said = say({row.name, "--help"});
      EXPECT_EQ(said.code, kDone) << row.name << said.err;
      EXPECT_NE(said.out.find(std::string("Usage: ductile ") + row.name + " "), std::string::npos)
          << said.out;
      const std::string list = say({"--help"}).out;
      const auto first = list.find(std::string("\n  ") + row.name + " ");
      EXPECT_NE(first, std::string::npos) << row.name << list;
    }
  }
  EXPECT_NE(say({"pln"}).err.find("did you mean plan?"), std::string::npos);
}

TEST(CommandLine, TheFirstWordSaysWhichProgramHasTheCommand) {
  const auto other = [](std::vector<const char*> words) {
    words.insert(words.begin(), "ductile");
    return is_other_command(static_cast<int>(words.size()), words.data());
  };
  EXPECT_TRUE(other({"plan"}));
  EXPECT_TRUE(other({"-q", "--verbose", "submit", "train"}));
  EXPECT_FALSE(other({"train", "plan"}));
  EXPECT_FALSE(other({"--help", "plan"}));
  EXPECT_FALSE(other({"-q"}));
  EXPECT_FALSE(other({}));
}

// As every user of sbatch writes it.
TEST(CommandLine, AProgramThatIsSubmittedAsItIsCalledIsToldWhatItFollows) {
  const auto told = [](std::vector<const char*> words) {
    words.insert(words.begin(), "submit");
    const Said said = say(words);
    EXPECT_NE(said.code, kDone);
    return said.err;
  };
  EXPECT_NE(told({"python", "train.py"}).find("--: ductile submit -- python train.py\n"),
            std::string::npos)
      << told({"python", "train.py"});
  const std::string more = told({"--name", "x", "python", "train.py", "--lr", "0.1", "a b"});
  EXPECT_NE(more.find("--: ductile submit -- python train.py --lr 0.1 'a b'\n"), std::string::npos)
      << more;
  const std::string of_job = told({"train.py:Job", "--lr", "3"});
  EXPECT_NE(of_job.find("--: ductile submit train.py:Job -- --lr 3\n"), std::string::npos)
      << of_job;
  EXPECT_EQ(told({"job.toml", "other.toml"}).find("ductile submit -- "), std::string::npos);
  EXPECT_EQ(told({"job.toml", "--nmae", "x"}).find("another program"), std::string::npos);
  const std::string script = told({"/nowhere/run.sh"});
  EXPECT_NE(script.find("--: ductile submit -- /nowhere/run.sh\n"), std::string::npos) << script;
}

TEST(CommandLine, ABackupInAFolderThatIsNotThereNamesWhatWasWritten) {
  const TempFolder folder;
  const Said said = say({"server", "--backup", "/nowhere/x.db", "--folder", folder.path().c_str()});
  EXPECT_EQ(said.code, kNotFound);
  EXPECT_NE(said.err.find("--backup /nowhere/x.db: there is no folder /nowhere\n"),
            std::string::npos)
      << said.err;
}

TEST(CommandLine, TheStrongestOriginOfAValueWins) {
  const auto epochs = [](std::vector<const char*> words, std::vector<const char*> environment) {
    words.insert(words.begin(), {"config", "--json"});
    return nlohmann::json::parse(say(words, environment).out).at("train.epochs");
  };
  EXPECT_EQ(epochs({}, {}).at("origin"), "default");
  EXPECT_EQ(epochs({}, {"DUCTILE_TRAIN__EPOCHS=3"}).at("value"), 3);
  const auto both = epochs({"--set", "train.epochs=4"}, {"DUCTILE_TRAIN__EPOCHS=3"});
  EXPECT_EQ(both.at("value"), 4);
  EXPECT_EQ(both.at("origin"), "--set");
}

TEST(CommandLine, ADryRunMakesNothing) {
  const TempFolder folder;
  const std::string runs = (folder.path() / "runs").string();
  EXPECT_EQ(say({"train", "--dry-run", "--runs", runs.c_str()}).code, kDone);
  EXPECT_FALSE(fs::exists(runs));
}

TEST(Doctor, TellsWhatItFoundAsJson) {
  const Said said = say({"doctor", "--json"});
  ASSERT_EQ(said.code, kDone);
  const auto facts = nlohmann::json::parse(said.out);
  EXPECT_EQ(facts.at("cpu").at("usable"), cpu_share().usable());
  EXPECT_EQ(facts.at("cpu").at("kernels").at("bf16_products"), bf16_products());
  EXPECT_GT(facts.at("memory").at("total"), 0);
  // Beside this test lies nothing of an installation.
  for (const auto& missing : facts.at("missing"))
    if (const std::string what = missing.at("what");
        what.find("ductile-") == std::string::npos && what != "the package ductile for Python") {
      EXPECT_EQ(missing.at("command").get<std::string>().rfind("sudo apt-get install ", 0), 0u);
    }
}

TEST(Doctor, SaysWhichGpusJobsMayHave) {
  ::setenv("DUCTILE_HARDWARE_ROOT", DUCTILE_SOURCE_DIR "/src/ductile/server/testdata/machines/odd",
           1);
  const Said said = say({"doctor"});
  ::unsetenv("DUCTILE_HARDWARE_ROOT");
  ASSERT_EQ(said.code, kDone);
  EXPECT_NE(said.out.find("NVIDIA H100 80GB HBM3 (MIG), NUMA node 1;"), std::string::npos)
      << said.out;
  EXPECT_NE(said.out.find("(not for jobs: it is excluded from NVIDIA's driver)"),
            std::string::npos);
}

TEST(Doctor, SaysWhereHwlocIsNoHelp) {
  if (usable_cores().size() < 2) GTEST_SKIP() << "there is one core";
  EXPECT_EQ(say({"doctor"}).out.find("hwloc"), std::string::npos);
  ::setenv("HWLOC_SYNTHETIC", "core:1 pu:1", 1);
  const Said said = say({"doctor"});
  ::unsetenv("HWLOC_SYNTHETIC");
  ASSERT_EQ(said.code, kDone);
  EXPECT_NE(said.out.find("since hwloc is no help: hwloc does not know the processors"),
            std::string::npos)
      << said.out;
}

TEST(Doctor, NamesABlasThatDoesNotKnowTheProcessor) {
  EXPECT_FALSE(run::blas_advice("Haswell", IsaLevel::avx2));
  EXPECT_FALSE(run::blas_advice("Zen", IsaLevel::avx2));
  EXPECT_FALSE(run::blas_advice("SkylakeX", IsaLevel::bf16));
  EXPECT_FALSE(run::blas_advice("SapphireRapids", IsaLevel::avx512));
  EXPECT_FALSE(run::blas_advice("Prescott", IsaLevel::baseline));
  const auto half = run::blas_advice("Haswell", IsaLevel::bf16);
  ASSERT_TRUE(half);
  EXPECT_NE(half->find("kernels for Haswell, which are up to half as fast"), std::string::npos);
  EXPECT_NE(half->find("OPENBLAS_CORETYPE=SkylakeX"), std::string::npos);
  const auto slow = run::blas_advice("Prescott", IsaLevel::avx2);
  ASSERT_TRUE(slow);
  EXPECT_NE(slow->find("several times slower"), std::string::npos);
  EXPECT_NE(slow->find("OPENBLAS_CORETYPE=Haswell"), std::string::npos);
}

TEST(Doctor, NamesOnlyPackagesThatTheSetupScriptKnows) {
  const std::string setup = read_file(DUCTILE_SOURCE_DIR "/scripts/setup");
  const std::string source = read_file(DUCTILE_SOURCE_DIR "/src/ductile/cli/doctor_command.cc");
  for (const char* package :
       {"libtorch-dev", "libopenblas0-pthread", "libucx-dev", "g++", "cmake", "ninja-build"}) {
    EXPECT_NE(setup.find(package), std::string::npos) << package;
    EXPECT_NE(source.find("\"" + std::string(package) + "\""), std::string::npos) << package;
  }
}

TEST_F(Worker, LinesArriveWholeAndInOrderUpToItsEnd) {
  std::vector<std::string> lines;
  const WorkerEnd end =
      run_worker(launch(kFd + "printf 'half' >&$FD; sleep 0.05; printf ' line\\n' >&$FD\n"
                              "for i in $(seq 1000); do echo line $i; done >&$FD; exit 7"),
                 [&](std::string_view line) { lines.emplace_back(line); });
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_EQ(end.signal, 0);
  EXPECT_FALSE(end.interrupted);
  ASSERT_EQ(lines.size(), 1001u);
  EXPECT_EQ(lines.front(), "half line");
  EXPECT_EQ(lines.back(), "line 1000");
}

TEST_F(Worker, SeesItsArgumentsAndEnvironmentAndWritesToTheLog) {
  WorkerLaunch l = launch("echo \"args $1 $2 env $DUCTILE_PROBE\"; echo err >&2", {"--run", "R"});
  l.environment = {{"DUCTILE_PROBE", "new"}};
  setenv("DUCTILE_PROBE", "old", 1);
  run_worker(l, [](std::string_view) {});
  unsetenv("DUCTILE_PROBE");
  EXPECT_EQ(read_file(log()), "args --run R env new\nerr\n");
}

TEST_F(Worker, ThatClosesItsPipeEarlyIsStillWaitedFor) {
  const WorkerEnd end =
      run_worker(launch(kFd + "eval \"exec $FD>&-\"; sleep 0.1; exit 3"), [](std::string_view) {});
  EXPECT_EQ(end.exit_code, 3);
}

TEST_F(Worker, KilledByASignalIsToldApartFromAnExit) {
  const WorkerEnd end = run_worker(launch("kill -SEGV $$"), [](std::string_view) {});
  EXPECT_EQ(end.signal, SIGSEGV);
  EXPECT_FALSE(end.interrupted);
}

TEST_F(Worker, ThatCannotBeStartedIsAnErrorNamingIt) {
  WorkerLaunch l = launch("exit 0");
  l.program = folder() / "absent";
  try {
    run_worker(l, [](std::string_view) {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("absent"), std::string::npos);
  }
}

// In a child process: runs a worker and exits with 10 * interrupted + the worker's exit code.
pid_t supervise(const WorkerLaunch& launch) {
  const pid_t child = fork();
  if (child != 0) return child;
  const WorkerEnd end = run_worker(launch, [](std::string_view) {});
  _exit(10 * (end.interrupted ? 1 : 0) + (end.signal != 0 ? 5 : end.exit_code));
}

int exit_status(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

const std::string kCatches =
    "trap 'echo got INT; exit 4' INT; trap 'echo got TERM; exit 4' TERM\n"
    "echo ready; while :; do sleep 0.02; done";

TEST_F(Worker, GetsTheSignalsThatReachUsOnce) {
  for (const auto& [signal, name] :
       {std::pair(SIGINT, "INT"), {SIGTERM, "TERM"}, {SIGHUP, "TERM"}}) {
    fs::remove(log());
    const pid_t child = supervise(launch(kCatches));
    await(log(), "ready");
    kill(child, signal);
    EXPECT_EQ(exit_status(child), 14) << name;
    EXPECT_EQ(read_file(log()), std::string("ready\ngot ") + name + "\n");
  }
}

// One that comes with the first is the same request (`timeout` sends two).
TEST_F(Worker, ThatDoesNotHeedASignalIsKilledByALaterOne) {
  const pid_t child =
      supervise(launch("trap 'echo no' TERM; echo ready; while :; do sleep 0.02; done"));
  await(log(), "ready");
  kill(child, SIGTERM);
  await(log(), "no");
  kill(child, SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0);
  kill(child, SIGTERM);
  EXPECT_EQ(exit_status(child), 15);
}

TEST_F(Worker, LearnsOfOurDeath) {
  const pid_t child = supervise(launch(kCatches));
  await(log(), "ready");
  kill(child, SIGKILL);
  EXPECT_EQ(exit_status(child), -SIGKILL);
  await(log(), "got TERM");
}

TEST_F(Worker, StopsAndGoesOnWithUs) {
  const pid_t child = supervise(
      launch("echo ready; trap 'exit 4' TERM; while :; do echo tick >> ticks; sleep 0.01; done"));
  await(log(), "ready");
  kill(child, SIGTSTP);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  kill(child, SIGCONT);
  kill(child, SIGTERM);
  EXPECT_EQ(exit_status(child), 14);
  fs::remove("ticks");
}

class Train : public Worker {
 protected:
  // `ductile train` on a stand-in worker.
  Said train(const std::string& body, std::vector<const char*> more = {}) {
    setenv("DUCTILE_WORKER", program("worker", kFd + body).c_str(), 1);
    out_ = (folder() / "run").string();
    std::vector<const char*> words = {"train", "--out", out_.c_str()};
    words.insert(words.end(), more.begin(), more.end());
    const Said said = say(words);
    unsetenv("DUCTILE_WORKER");
    return said;
  }
  const std::string& out() const { return out_; }

 private:
  std::string out_;
};

TEST_F(Train, AWorkerThatDiesIsAFailedJobWithItsLastWordsAndTheWayOn) {
  const Said said = train("echo first; echo 'out of luck' >&2; exit 3");
  EXPECT_EQ(said.code, kJobFailed);
  EXPECT_NE(said.err.find("out of luck"), std::string::npos);
  EXPECT_EQ(said.err.find("--resume"), std::string::npos) << "there is no checkpoint to go on from";
  EXPECT_TRUE(fs::exists(fs::path(out()) / "report.html"));
}

TEST_F(Train, AWorkerThatIsKilledSaysSo) {
  const Said said = train("kill -KILL $$");
  EXPECT_EQ(said.code, kJobFailed);
  EXPECT_NE(said.err.find("KILL"), std::string::npos);
}

TEST_F(Train, AnErrorTheWorkerNamesOutranksItsLog) {
  const Said said = train(
      "echo noise >&2; echo '{\"error\":\"no such layer\",\"code\":\"invalid_argument\"}' >&$FD; "
      "exit 2");
  EXPECT_EQ(said.code, kUsage);
  EXPECT_NE(said.err.find("no such layer"), std::string::npos);
  EXPECT_EQ(said.err.find("noise"), std::string::npos);
  EXPECT_EQ(said.err.find("worker 2"), std::string::npos) << "it was tried again: " << said.err;
  EXPECT_EQ(said.err.find("--resume"), std::string::npos) << "it would fail again";
}

TEST_F(Train, AWorkerThatEndedWithAReasonDidNotDie) {
  const Said said = train("echo '{\"error\":\"the disk is full\"}' >&$FD; exit 3");
  EXPECT_EQ(said.code, kJobFailed);
  EXPECT_NE(said.err.find("the disk is full"), std::string::npos);
  EXPECT_EQ(said.err.find("died"), std::string::npos) << said.err;
}

TEST_F(Train, ACrashThatComesBackEndsTheJobSoon) {
  const Said said = train("echo began >> \"$0.began\"; kill -SEGV $$");
  EXPECT_EQ(said.code, kJobFailed);
  EXPECT_NE(said.err.find("SIGSEGV"), std::string::npos) << said.err;
  EXPECT_EQ(read_file(folder() / "worker.began"), "began\nbegan\nbegan\n");
}

TEST_F(Train, JsonHasStatusRunAndError) {
  const Said said = train("echo 'out of luck' >&2; exit 3", {"--json"});
  const auto value = nlohmann::json::parse(said.out);
  EXPECT_EQ(value.at("status"), "failed");
  EXPECT_NE(value.at("error").get<std::string>().find("out of luck"), std::string::npos);
  EXPECT_EQ(value.at("result").at("status"), "failed");
  EXPECT_EQ(value.at("run"), fs::canonical(out()).string());
}

TEST_F(Train, AnExistingRunIsNotOverwritten) {
  fs::create_directories(folder() / "run");
  EXPECT_EQ(train("exit 0").code, kNotFound);
}

// A `ductile train` in a process of its own, whose worker never says a word, until the test ends
// it.
class Driven : public Train {
 protected:
  void start() {
    driver_ = fork();
    if (driver_ == 0) {
      const std::string body = "echo ready; trap 'exit 130' INT TERM; while :; do sleep 0.02; done";
      _exit(train(body, {"--set", "train.virtual_ranks=2"}).code);
    }
    run_ = (folder() / "run").string();
    await(folder() / "run" / "worker.log", "ready");
    std::ofstream(folder() / "run" / "metrics.jsonl") << "{\"step\":1}\n";
    state_ = read_file(folder() / "run" / "membership.json");
  }
  void TearDown() override {
    if (driver_ <= 0) return;
    kill(driver_, SIGTERM);
    waitpid(driver_, nullptr, 0);
  }
  // What is said to another one, which must change nothing.
  std::string refusal(std::vector<const char*> words) {
    setenv("DUCTILE_WORKER", program("other", "exit 3").c_str(), 1);
    const Said said = say(std::move(words));
    unsetenv("DUCTILE_WORKER");
    EXPECT_EQ(said.code, kNotFound) << said.err;
    EXPECT_EQ(read_file(fs::path(run_) / "metrics.jsonl"), "{\"step\":1}\n");
    EXPECT_EQ(read_file(fs::path(run_) / "membership.json"), state_);
    EXPECT_FALSE(fs::exists(fs::path(run_) / "hosts.json"));
    return said.err;
  }

  pid_t driver_ = -1;
  std::string run_, state_;
};

TEST_F(Driven, ARunTakesNoSecondDriver) {
  start();
  const std::string holder = fmt::format("process {}", driver_);
  for (const char* workers : {"1", "2"}) {
    const std::string text = refusal({"train", "--resume", run_.c_str(), "--workers", workers});
    EXPECT_NE(text.find(holder), std::string::npos) << text;
  }
  const std::string hosts = refusal({"train", "--resume", run_.c_str(), "--hosts", "localhost:2"});
  EXPECT_NE(hosts.find(holder), std::string::npos) << hosts;
  EXPECT_EQ(say({"status", run_.c_str()}).code, kDone) << "every run can be asked";
}

TEST_F(Train, OfSomebodyElsesTuningSessionNeedsTrust) {
  if (geteuid() != 0) GTEST_SKIP() << "takes root, to give files away";
  setenv("DUCTILE_WORKER", program("worker", "exit 3").c_str(), 1);
  const fs::path session = folder() / "session";
  fs::create_directories(session);
  for (const char* file : {"job.toml", "tune.json"}) std::ofstream(session / file) << "{}";
  const std::vector<const char*> words = {"tune", "--resume", session.c_str()};
  EXPECT_EQ(say(words).code, kFailed);  // the file is damaged
  for (const char* file : {"", "job.toml", "tune.json"}) {
    const fs::path path = *file == '\0' ? session : session / file;
    ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
    const Said refused = say(words);
    EXPECT_EQ(refused.code, kUsage) << file;
    EXPECT_NE(refused.err.find(path.string() + ": belongs to"), std::string::npos) << refused.err;
    EXPECT_NE(refused.err.find("--trust"), std::string::npos) << refused.err;
    EXPECT_EQ(say({"tune", "--resume", session.c_str(), "--trust"}).code, kFailed);
    ASSERT_EQ(chown(path.c_str(), 0, 0), 0);
  }
  unsetenv("DUCTILE_WORKER");
}

TEST_F(Train, OfSomebodyElsesRunNeedsTrust) {
  if (geteuid() != 0) GTEST_SKIP() << "takes root, to give files away";
  EXPECT_EQ(train("exit 3").code, kJobFailed);
  setenv("DUCTILE_WORKER", program("worker", "exit 3").c_str(), 1);
  const std::vector<const char*> words = {"train", "--resume", out().c_str()};
  EXPECT_EQ(say(words).code, kJobFailed);
  std::ofstream(fs::path(out()) / "hosts.json")
      << "{\"hosts\":[],\"launcher\":\"\",\"listen\":\"\"}";
  for (const char* file : {"", "job.toml", "hosts.json"}) {
    const fs::path path = *file == '\0' ? fs::path(out()) : fs::path(out()) / file;
    ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
    const Said refused = say(words);
    EXPECT_EQ(refused.code, kUsage) << file;
    EXPECT_NE(refused.err.find("--trust"), std::string::npos) << refused.err;
    EXPECT_NE(refused.err.find(path.string() + ": belongs to"), std::string::npos) << refused.err;
    EXPECT_EQ(say({"train", "--resume", out().c_str(), "--trust"}).code, kJobFailed);
    EXPECT_EQ(say({"train", "--resume", out().c_str(), "--dry-run"}).code, kDone);
    ASSERT_EQ(chown(path.c_str(), 0, 0), 0);
  }
  unsetenv("DUCTILE_WORKER");
}

TEST(Workers, BeyondWhatAHostHasRoomForAreRefusedBeforeAnythingIsMade) {
  const TempFolder folder;
  const std::string out = (folder.path() / "run").string();
  const auto refusal = [&](std::vector<const char*> more) {
    std::vector<const char*> words = {"train",
                                      "--out",
                                      out.c_str(),
                                      "--set",
                                      "train.virtual_ranks=1000",
                                      "--set",
                                      "train.batch_size=1000"};
    words.insert(words.end(), more.begin(), more.end());
    const Said said = say(words);
    EXPECT_EQ(said.code, kUsage);
    EXPECT_FALSE(fs::exists(out));
    return said.err;
  };
  EXPECT_NE(refusal({"--workers", "129"}).find("--workers 129: 128 at most"), std::string::npos);
  EXPECT_NE(refusal({"--workers", "257", "--hosts", "a,b"}).find("256 at most"), std::string::npos);
  EXPECT_NE(refusal({"--hosts", "a:129"}).find("(1 to 128)"), std::string::npos);
}

}  // namespace
}  // namespace ductile::cli
