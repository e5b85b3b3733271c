// Jobs of several workers, started as a user does: whatever their number, and whoever is killed on
// the way, the final weights are those of one undisturbed process, bit for bit.
#include <chrono>
#include <csignal>
#include <fstream>
#include <regex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ductile/base/rng.h"
#include "ductile/run/diary.h"
#include "ductile/run/json_lines.h"
#include "elastic_programs.h"

namespace ductile::testing {
namespace {

using std::chrono::milliseconds;

// By model.
class Elastic : public SmallJob, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "gpt") {
      use_gpt();
      sets_.insert(sets_.end(), {"model.dim=32", "optimizer.name=adamw"});
    } else {
      sets_ = {"augment.pad=2"};
      // Groups of four virtual ranks, which three workers cut: they meet in every batch norm.
      if (std::string(GetParam()) == "batch_norm_groups") {
        sets_.insert(sets_.end(), {"train.bn_group=4", "train.max_steps=60", "train.log_every=2"});
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(, Elastic, ::testing::Values("resnet8", "batch_norm_groups", "gpt"),
                         [](const auto& info) { return std::string(info.param); });

class ElasticOnce : public Elastic {};  // for what does not depend on the model
INSTANTIATE_TEST_SUITE_P(, ElasticOnce, ::testing::Values("gpt"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Elastic, AnyNumberOfWorkersGivesTheBitsOfOneProcess) {
  const std::string weights = expected();
  // A worker takes a second or two of a core to start.
  std::vector<const char*> numbers = {"3"};
  if (all_sizes())
    numbers = std::string(GetParam()) == "batch_norm_groups" ? std::vector{"3", "8"}
                                                             : std::vector{"1", "2", "3", "4", "8"};
  for (const char* n : numbers) {
    const fs::path run = root_.path() / n;
    ASSERT_EQ(start(run, {"--workers", n}).wait(), 0) << read_file(log_);
    EXPECT_EQ(model_of(run), weights) << n << " workers";
  }
}

// Faster sums depend on the number of workers, but on nothing else.
TEST_P(ElasticOnce, FastReductionRepeatsItselfForTheSameNumberOfWorkers) {
  for (const char* name : {"a", "b"}) {
    Program job = start(root_.path() / name, {"--workers", "3", "--set", "train.reduction=fast"});
    ASSERT_EQ(job.wait(), 0) << read_file(log_);
  }
  EXPECT_EQ(model_of(root_.path() / "a"), model_of(root_.path() / "b"));
}

TEST_P(Elastic, KilledWorkersChangeNothing) {
  if (!all_sizes() && std::string(GetParam()) == "resnet8")
    GTEST_SKIP() << "in the long form only: the model of batch_norm_groups is the same";
  const std::string weights = expected();
  const fs::path run = root_.path() / "killed";
  Program job = start(run, {"--workers", "3"});
  const int kills = kill_workers(job, run, all_sizes() ? 10 : 2, 3, milliseconds(200));
  EXPECT_EQ(job.wait(), 0) << read_file(log_);
  EXPECT_GT(kills, 0) << read_file(log_);
  RecordProperty("kills", kills);
  EXPECT_EQ(model_of(run), weights);
  EXPECT_TRUE(workers_of(run).empty());
}

struct FormedGeneration {
  double time;
  int64_t start;
  int workers;
};

std::vector<FormedGeneration> generations_of(const fs::path& run) {
  static const std::regex kText(R"(generation \d+ from step (\d+) with (\d+) of .*)");
  std::vector<FormedGeneration> all;
  for (const nlohmann::json& line : run::read_json_lines(run / "events.jsonl")) {
    std::smatch match;
    const std::string text = line.value("text", "");
    if (line.value("event", "") == "generation" && std::regex_match(text, match, kText))
      all.push_back({line["time"], std::stoll(match[1]), std::stoi(match[2])});
  }
  return all;
}

// Whatever was committed before a kill is what the survivors go on from.
TEST_P(ElasticOnce, AKillCostsTheStepUnderWayAtMost) {
  const fs::path run = root_.path() / "killed";
  Program job = start(run, {"--workers", "3", "--set", "train.log_every=1"});
  Rng rng(4);
  size_t seen = 0, kills = 0;
  while (job.running() && kills < 5) {
    std::this_thread::sleep_for(milliseconds(20 + rng.below(100)));
    if (!fs::exists(run / "metrics.jsonl")) continue;
    const std::vector<FormedGeneration> generations = generations_of(run);
    if (generations.size() == seen || generations.back().workers < 3) continue;
    seen = generations.size();
    const std::vector<pid_t> workers = workers_of(run);
    if (workers.size() != 3) continue;
    ::kill(workers[rng.below(3)], SIGKILL);
    ++kills;
  }
  ASSERT_EQ(job.wait(), 0) << read_file(log_);
  EXPECT_GT(kills, 0u);
  std::vector<std::pair<double, int64_t>> steps;  // when logged
  run::for_each_diary_line(run / "metrics.jsonl", [&](const nlohmann::json& line) {
    if (line.contains("train/loss")) steps.emplace_back(line["time"], line["step"]);
  });
  for (size_t i = 0; i < steps.size(); ++i)
    ASSERT_EQ(steps[i].second, static_cast<int64_t>(i + 1)) << "once each, in order";
  for (const FormedGeneration& g : generations_of(run)) {
    for (const auto& [time, step] : steps) {
      EXPECT_TRUE(time >= g.time || step <= g.start) << "step " << step << " was taken back";
    }
  }
}

TEST_P(ElasticOnce, ResizedPreemptedMovedAndResumedItIsTheSameJob) {
  const std::string weights = expected();
  const fs::path run = root_.path() / "run", moved = root_.path() / "elsewhere" / "renamed";
  Program job = start(run, {"--workers", "2"});
  ASSERT_TRUE(wait_until_it_steps(job, run)) << read_file(log_);
  EXPECT_EQ(command({"resize", run.string(), "3"}), 0) << read_file(log_);
  EXPECT_EQ(command({"preempt", run.string()}), 0) << read_file(log_);
  EXPECT_EQ(job.wait(), 130) << read_file(log_);
  EXPECT_TRUE(workers_of(run).empty());
  fs::create_directory(moved.parent_path());
  fs::rename(run, moved);
  // A job that was edited since is another one, and says so; its checkpoints stay.
  const std::string toml = read_file(moved / "job.toml");
  const std::string edited =
      std::regex_replace(toml, std::regex(R"((^|\n)lr = (?=\d))"), "$1lr = 1");
  ASSERT_NE(edited, toml);
  write_file_atomic(moved / "job.toml", edited);
  EXPECT_EQ(command({"-q", "train", "--resume", moved.string()}), 4) << read_file(log_);
  EXPECT_NE(read_file(log_).find("optimizer.lr"), std::string::npos) << read_file(log_);
  write_file_atomic(moved / "job.toml", toml);
  ASSERT_EQ(command({"-q", "train", "--resume", moved.string(), "--workers", "1"}), 0)
      << read_file(log_);
  EXPECT_EQ(model_of(moved), weights);
}

// As `timeout` of coreutils sends them: to the program and, at once, to its group.
TEST_P(ElasticOnce, TwoSignalsAtOnceAreOneRequestAndALaterOneSaysWhatIsLost) {
  const fs::path run = root_.path() / "run";
  sets_.insert(sets_.end(), {"checkpoint.every_steps=1000000", "train.eval_every_epochs=0",
                             "train.log_every=1", "train.epochs=10000"});
  Program job = start(run, {"--workers", "2"});
  ASSERT_TRUE(wait_until_it_steps(job, run)) << read_file(log_);
  ::kill(job.pid(), SIGTERM);
  std::this_thread::sleep_for(milliseconds(1));
  ::kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.wait(), 130) << read_file(log_);
  EXPECT_FALSE(fs::is_empty(run / "checkpoints")) << read_file(log_);
  EXPECT_EQ(read_file(run / "events.jsonl").find("killed on request"), std::string::npos);

  // Workers that are stopped save nothing.
  const auto before = fs::file_size(run / "metrics.jsonl");
  job = Program(ductile({"-q", "train", "--resume", run.string()}), log_);
  while (job.running() && fs::file_size(run / "metrics.jsonl") == before)
    std::this_thread::sleep_for(milliseconds(20));
  std::this_thread::sleep_for(milliseconds(500));
  ASSERT_TRUE(job.running()) << read_file(log_);
  for (const pid_t worker : workers_of(run)) ::kill(worker, SIGSTOP);
  ::kill(job.pid(), SIGTERM);
  std::this_thread::sleep_for(milliseconds(1100));
  ::kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.wait(), 130) << read_file(log_);
  EXPECT_NE(read_file(run / "events.jsonl").find("killed on request"), std::string::npos);
  EXPECT_NE(read_file(log_).find("will be done again"), std::string::npos) << read_file(log_);
}

// A host that asks its worker to go, and a damaged line: neither says anything about the run.
TEST_P(ElasticOnce, OnlyTheControllerSaysHowARunEndedAndADiaryEndsNone) {
  const std::string weights = expected();
  const fs::path run = root_.path() / "run";
  Program job = start(run, {"--workers", "2"});
  ASSERT_TRUE(wait_until_it_steps(job, run)) << read_file(log_);
  const auto ends = [&] {
    std::vector<std::string> statuses;
    run::for_each_diary_line(run / "events.jsonl", [&](const nlohmann::json& line) {
      if (line.at("kind") == "end") statuses.push_back(line.at("status"));
    });
    return statuses;
  };
  for (const pid_t worker : workers_of(run)) {  // the leader among them
    ::kill(worker, SIGTERM);
    while (job.running() && ::kill(worker, 0) == 0) std::this_thread::sleep_for(milliseconds(20));
    if (job.running()) {
      EXPECT_TRUE(ends().empty());
    }
    std::ofstream(run / "metrics.jsonl", std::ios::app) << "{\"step\":!!\n\xff\xfe\n";
  }
  EXPECT_EQ(job.wait(), 0) << read_file(log_);
  EXPECT_EQ(model_of(run), weights);
  EXPECT_EQ(ends(), (std::vector<std::string>{"done"}));
  EXPECT_NE(read_file(run / "report.html").find("Finished"), std::string::npos);
}

TEST_P(ElasticOnce, AKilledControllerIsReplacedWhileTheWorkersGoOn) {
  // While it is away nothing of theirs comes into events.jsonl, and the clock goes on all the same.
  sets_.insert(sets_.end(), {"train.eval_every_epochs=0", "checkpoint.every_steps=100000"});
  const std::string weights = expected();
  const fs::path run = root_.path() / "run";
  Program job = start(run, {"--workers", "2"});
  ASSERT_TRUE(wait_until_it_steps(job, run)) << read_file(log_);
  job.kill();
  const std::vector<pid_t> before = workers_of(run);
  EXPECT_EQ(before.size(), 2u);
  std::this_thread::sleep_for(milliseconds(1500));  // they go on, and so does the run's clock
  job = Program(ductile({"-q", "train", "--resume", run.string()}), log_);
  std::this_thread::sleep_for(milliseconds(500));
  if (job.running()) {
    EXPECT_EQ(workers_of(run), before) << "workers were replaced for nothing";
  }
  EXPECT_EQ(job.wait(), 0) << read_file(log_);
  EXPECT_EQ(model_of(run), weights);
  EXPECT_TRUE(workers_of(run).empty());
  double seconds = 0;  // as the controllers and the leader wrote them, in turn
  run::for_each_json_line(run / "events.jsonl", [&](const nlohmann::json& line) {
    EXPECT_GE(line.at("seconds").get<double>(), seconds - 0.5) << line;
    seconds = std::max(seconds, line.at("seconds").get<double>());
  });
  run::for_each_json_line(run / "metrics.jsonl", [&](const nlohmann::json& line) {
    EXPECT_LE(line.at("seconds").get<double>(), seconds + 0.5) << line;
  });
}

}  // namespace
}  // namespace ductile::testing
