// Images of other sizes than those that a model was trained on.
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/data/testing/images.h"
#include "ductile/run/diary.h"
#include "ductile/run/lock.h"
#include "ductile/serving/model.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/questions.h"
#include "ductile/train/served_model.h"
#include "ductile/train/workers.h"

namespace ductile::train {
namespace {

using Json = nlohmann::json;

std::string image(int width, int height, int seed) {
  return data::encode_png(data::test_pixels(width, height, 3, seed), width, height);
}

void put(const fs::path& file, int width, int height, int seed) {
  fs::create_directories(file.parent_path());
  write_file_atomic(file, image(width, height, seed));
}

spec::JobOptions job_on(const fs::path& folder, int width, int height) {
  for (int i = 0; i < 60; ++i) {
    const fs::path at = folder / (i < 40 ? "train" : "val") / (i % 2 == 0 ? "ant" : "bee");
    put(at / (std::to_string(i) + ".png"), width, height, i);
  }
  spec::JobOptions job;
  job.model.name = "mlp";  // reads one size alone
  job.model.hidden = {16};
  job.optimizer.lr = 0.05;
  job.data.format = "folder";
  job.data.path = folder.string();
  job.train.batch_size = 8;
  job.train.epochs = 1;
  job.checkpoint.every_seconds = 0;
  return job;
}

// A run that is done.
struct DoneRun {
  explicit DoneRun(const spec::JobOptions& options) : job(options) {
    const run::RunLock lock(folder.path(), run::RunLock::kLocal);
    const link::JobEnd end = train_here(lock, {.folder = folder, .job = job});
    EXPECT_EQ(end.phase, control::Phase::finished) << end.reason;
  }
  Json eval(const fs::path& path = {}) const {
    return answer({.what = "eval", .data = path.string()}, folder, job, [](const Json&) {}, {});
  }
  // By the image's name.
  std::map<std::string, Json> predictions(const fs::path& path = {}) const {
    std::map<std::string, Json> out;
    answer({.what = "predict", .data = path.string(), .top = 2}, folder, job,
           [&](const Json& row) {
             const fs::path file = row.at("sample").get<std::string>();
             out[file.filename().string()] = row.at("top");
           },
           {});
    return out;
  }
  // What the run measured at its end.
  Json measured() const {
    Json last;
    run::for_each_diary_line(folder.events_file(), [&](const Json& line) {
      if (line.at("kind") == "end") last = line.at("final");
    });
    return last;
  }

  TempFolder place;
  spec::JobOptions job;
  run::RunFolder folder = run::RunFolder::create(place.path(), "trainee", OptionSet(job).to_toml());
};

TEST(ImageSizes, AModelOfImagesThatAreNotSquareTakesThoseOfAnySize) {
  const TempFolder data, others;
  const DoneRun run(job_on(data.path(), 30, 20));
  put(others.path() / "40.png", 30, 20, 40);  // as in the held-out set
  put(others.path() / "large.png", 60, 40, 1);
  put(others.path() / "small.png", 9, 7, 2);
  put(others.path() / "tall.png", 20, 30, 3);
  const auto together = run.predictions(others.path());
  ASSERT_EQ(together.size(), 4u);
  for (const auto& [name, top] : together)
    EXPECT_EQ(run.predictions(others.path() / name).at(name), top) << name;
  EXPECT_EQ(run.predictions().at("40.png"), together.at("40.png"));
}

// As a file and as pixels, with the probabilities that `ductile predict` gives.
TEST(ImageSizes, AModelOfImagesThatAreNotSquareIsServed) {
  const TempFolder data, others;
  const DoneRun run(job_on(data.path(), 30, 20));
  const auto model = serve_run(run.folder, run.job, "trainee")->load({});
  ASSERT_EQ(model->card().input, (Shape{3, 20, 30}));
  for (const auto& [width, height] :
       std::vector<std::pair<int, int>>{{30, 20}, {60, 40}, {20, 30}, {5, 50}}) {
    const std::string file = image(width, height, 7);
    const auto pixels = data::test_pixels(width, height, 3, 7);
    std::vector<std::byte> row(model->card().row_bytes), again(row.size());
    model->prepare({serving::Sample::Kind::file, {}, std::as_bytes(std::span(file))}, row.data());
    model->prepare(
        {serving::Sample::Kind::pixels, {height, width, 3}, std::as_bytes(std::span(pixels))},
        again.data());
    EXPECT_EQ(row, again);
    float out[2];
    model->run(row.data(), 1, out);
    write_file_atomic(others.path() / "one.png", file);
    const Json top = run.predictions(others.path() / "one.png").at("one.png");
    EXPECT_EQ(top[0]["class"], out[1] > out[0] ? 1 : 0);
    const double share = 1 / (1 + std::exp(-std::abs(double{out[1]} - double{out[0]})));
    EXPECT_NEAR(top[0]["probability"].get<double>(), share, 1e-5);
  }
}

// One image of another size changes nothing for the others, and the run, `eval` without and with
// --data and `predict` see each image in the same way.
TEST(ImageSizes, HeldOutImagesOfOtherSizesAreResizedOneByOne) {
  for (const int width : {12, 15}) {
    const TempFolder data;
    const spec::JobOptions job = job_on(data.path(), width, 12);
    const auto before = DoneRun(job).predictions();
    put(data.path() / "val" / "ant" / "larger.png", 13, 13, 1);
    put(data.path() / "val" / "bee" / "smaller.png", 8, 9, 2);
    const DoneRun run(job);
    const auto after = run.predictions();
    EXPECT_EQ(after.size(), before.size() + 2);
    for (const auto& [name, top] : before) EXPECT_EQ(after.at(name), top) << name;
    const Json own = run.eval(), given = run.eval(data.path() / "val"), end = run.measured();
    for (const char* figure : {"loss", "accuracy", "brier"}) {
      EXPECT_EQ(own.at(figure), end.at(figure)) << figure;
      EXPECT_EQ(given.at(figure), own.at(figure)) << figure;
    }
  }
}

TEST(ImageSizes, AHeldOutSetOfAnotherSizeIsResized) {
  const TempFolder data;
  const spec::JobOptions job = job_on(data.path(), 16, 16);
  for (int i = 40; i < 60; ++i)
    put(data.path() / "val" / (i % 2 == 0 ? "ant" : "bee") / (std::to_string(i) + ".png"), 12, 12,
        i);
  const DoneRun run(job);
  EXPECT_EQ(run.eval().at("loss"), run.measured().at("loss"));
  EXPECT_EQ(run.predictions().size(), 20u);
}

// Training pads the images, and evaluations do not.
TEST(ImageSizes, ACropLargerThanTheImagesIsRefusedBeforeTraining) {
  const TempFolder data;
  spec::JobOptions job = job_on(data.path(), 16, 16);
  job.augment.pad = 4;
  job.augment.crop = 20;
  try {
    complete({}, job);
    ADD_FAILURE() << "nothing thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(e.message().find("augment.crop = 20 is larger than the training images, 16 x 16"),
              std::string::npos)
        << e.message();
  }
  job.augment.crop = 16;
  EXPECT_NO_THROW(complete({}, job));
}

}  // namespace
}  // namespace ductile::train
