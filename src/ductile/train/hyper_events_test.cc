// The diary's events of hyperparameters.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/run/diary.h"
#include "ductile/run/json_lines.h"
#include "ductile/train/testing/local_cluster.h"
#include "ductile/train/testing/sample_methods.h"

namespace ductile::train {
namespace {

// Every change of a hyperparameter other than the learning rate is one event: probes between two
// updates repeat none, and what a killed leader did not note is noted by whoever follows it.
TEST(HyperEvents, HaveEachChangeOnce) {
  using Json = nlohmann::json;
  using testing::LocalCluster;
  spec::JobOptions job;  // 12 updates
  job.data.train_limit = 100;
  job.data.test_limit = 16;
  job.model.name = "mlp";
  job.model.hidden = {12};
  job.loader.threads = 1;
  job.optimizer.lr = 0.02;
  job.train.epochs = 3;
  job.train.batch_size = 24;
  job.train.virtual_ranks = 8;
  job.train.threads = 1;
  job.checkpoint.every_seconds = 0;
  job.checkpoint.every_steps = 3;
  const Recipe recipe = [&job] {
    Ingredients given;
    given.method = testing::make_probing_method();
    given.rate_control = testing::make_restless_control(job);
    return complete(std::move(given), job);
  };
  const auto hyper_events = [](const run::RunFolder& folder) {
    std::vector<Json> out;
    run::for_each_diary_line(folder.events_file(), [&](const Json& line) {
      if (line.at("kind") != "hyper") return;
      out.push_back({{"step", line.at("step")}, {"hyper", line.at("hyper")}});
      out.back()["hyper"].erase("lr");
    });
    return out;
  };
  const TempFolder place;
  const auto folder = run::RunFolder::create(place.path(), "conformance", OptionSet(job).to_toml());
  const auto parts = run::RunFolder::create(place.path(), "in parts", OptionSet(job).to_toml());
  {
    LocalCluster cluster(folder, job, recipe);
    cluster.start(1);
    EXPECT_EQ(cluster.finish().phase, control::Phase::finished);
  }
  const std::vector<Json> alone = hyper_events(folder);
  ASSERT_GT(alone.size(), 10U);
  EXPECT_EQ(alone.front().at("step"), 0) << "its first batch is not that of the job file";
  for (size_t i = 1; i < alone.size(); ++i) {
    EXPECT_NE(alone[i].at("hyper"), alone[i - 1].at("hyper")) << alone[i];
  }
  {
    LocalCluster cluster(parts, job, recipe);
    cluster.start(2);
    cluster.run_to(9);
    cluster.preempt();
  }
  const std::vector<Json> first = hyper_events(parts);
  // The diary without its last change, and as a version wrote it that knew of no staleness.
  std::string kept;
  size_t seen = 0;
  for (Json line : run::read_json_lines(parts.events_file())) {
    if (line.at("kind") == "hyper") {
      if (++seen == first.size()) continue;
      EXPECT_EQ(line["hyper"].erase("staleness"), 1U);
    }
    kept += line.dump() + "\n";
  }
  write_file_atomic(parts.events_file(), kept);
  {
    LocalCluster cluster(parts, job, recipe);
    cluster.start(3);
    EXPECT_EQ(cluster.finish().phase, control::Phase::finished);
  }
  const auto without_steps = [](std::vector<Json> events) {
    for (Json& event : events) {
      event.erase("step");
      event["hyper"].erase("staleness");
    }
    return events;
  };
  EXPECT_EQ(without_steps(hyper_events(parts)), without_steps(alone));
}

}  // namespace
}  // namespace ductile::train
