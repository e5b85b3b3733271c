#include "ductile/train/serve.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/data/testing/images.h"
#include "ductile/run/runs_mark.h"
#include "ductile/serving/model.h"
#include "ductile/train/environment.h"
#include "ductile/train/questions.h"
#include "ductile/train/served_model.h"
#include "ductile/train/workers.h"

namespace ductile::train {
namespace {

using Json = nlohmann::json;
using serving::Deployment;
using serving::Sample;

spec::JobOptions small_job(const char* model) {
  spec::JobOptions job;
  job.data.train_limit = 320;
  job.data.test_limit = 64;
  job.model.name = model;
  job.model.hidden = {32};
  job.model.width = 4;
  job.optimizer.lr = 0.05;
  job.train.epochs = 1;
  job.train.batch_size = 32;
  job.train.virtual_ranks = 2;
  job.checkpoint.every_seconds = 0;
  job.checkpoint.every_steps = 5;
  job.checkpoint.keep = 3;
  return job;
}

spec::JobOptions token_job(const fs::path& folder) {
  std::vector<uint16_t> tokens(5'000);
  Rng rng(1, 2);
  for (uint16_t& t : tokens) t = static_cast<uint16_t>(rng.below(20));
  const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size());
  for (const char* name : {"train.bin", "test.bin"}) write_file_atomic(folder / name, bytes);
  spec::JobOptions job = small_job("gpt");
  job.data = {};
  job.data.format = "tokens";
  job.data.path = (folder / "train.bin").string();
  job.data.test_path = (folder / "test.bin").string();
  job.data.tokens.sequence_length = 16;
  job.model.layers = 1;
  job.model.heads = 2;
  job.model.dim = 16;
  return job;
}

std::string image(int which, int side = 12) {
  return data::encode_png(data::test_pixels(side, side, 3, which), side, side);
}

spec::JobOptions image_job(const fs::path& folder) {
  for (int i = 0; i < 60; ++i) {
    const fs::path at = folder / (i < 40 ? "train" : "val") / (i % 2 == 0 ? "ant" : "bee");
    fs::create_directories(at);
    write_file_atomic(at / (std::to_string(i) + ".png"), image(i));
  }
  spec::JobOptions job = small_job("cnn");
  job.data = {};
  job.data.format = "folder";
  job.data.path = folder.string();
  job.train.batch_size = 8;
  return job;
}

// A run that is done, and its source of weights.
struct Trainee {
  explicit Trainee(const spec::JobOptions& options) : job(options) {
    const run::RunLock lock(folder.path(), run::RunLock::kLocal);
    const link::JobEnd end = train_here(lock, {.folder = folder, .job = job});
    EXPECT_EQ(end.phase, control::Phase::finished) << end.reason;
    source = serve_run(folder, job, "trainee");
  }

  TempFolder place;
  spec::JobOptions job;
  run::RunFolder folder = run::RunFolder::create(place.path(), "trainee", OptionSet(job).to_toml());
  std::unique_ptr<serving::ModelSource> source;
};

std::vector<std::byte> random_rows(serving::Model& model, int64_t count) {
  const serving::ModelCard& card = model.card();
  std::vector<std::byte> rows(static_cast<size_t>(count) * card.row_bytes);
  for (int64_t i = 0; i < count; ++i) {
    Rng rng(99, static_cast<uint64_t>(i));
    std::byte* const row = rows.data() + static_cast<size_t>(i) * card.row_bytes;
    const auto values = static_cast<size_t>(num_elements(card.input));
    if (card.tokens) {
      std::vector<int64_t> tokens(1 + rng.below(static_cast<uint32_t>(values)));
      for (int64_t& t : tokens) t = rng.below(static_cast<uint32_t>(card.output[0]));
      model.prepare({Sample::Kind::tokens, {}, std::as_bytes(std::span(tokens))}, row);
    } else {
      std::vector<float> floats(values);
      for (float& f : floats) f = rng.normal();
      model.prepare({Sample::Kind::values, card.input, std::as_bytes(std::span(floats))}, row);
    }
  }
  return rows;
}

// What a sample gives does not depend on how many lie beside it, on their values, and on its place.
void expect_exact_batches(Trainee& run) {
  Deployment deployment = serving::deploy(run.source->load({}), 16);
  serving::Model& model = *deployment.model;
  const auto values = static_cast<size_t>(num_elements(model.card().output));
  const size_t row = model.card().row_bytes;
  const int64_t count = 48;
  const std::vector<std::byte> rows = random_rows(model, count);
  std::vector<float> alone(static_cast<size_t>(count) * values);
  const auto most = static_cast<size_t>(deployment.sizes.back());
  std::vector<std::byte> held(most * row);
  std::vector<float> out(most * values);
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    held.assign(most * row, std::byte{0});
    std::memcpy(held.data(), rows.data() + i * row, row);
    model.run(held.data(), deployment.size_for(1), out.data());
    std::copy_n(out.data(), values, alone.data() + i * values);
  }
  Rng rng(4);
  for (int turn = 0; turn < 60; ++turn) {
    const auto n = static_cast<int64_t>(1 + rng.below(static_cast<uint32_t>(most)));
    held.assign(most * row, std::byte{0});
    std::vector<size_t> who;
    for (size_t k = 0; k < static_cast<size_t>(n); ++k) {
      who.push_back(rng.below(static_cast<uint32_t>(count)));
      std::memcpy(held.data() + k * row, rows.data() + who[k] * row, row);
    }
    model.run(held.data(), deployment.size_for(n), out.data());
    for (size_t k = 0; k < who.size(); ++k)
      ASSERT_EQ(std::memcmp(out.data() + k * values, alone.data() + who[k] * values, values * 4), 0)
          << "sample " << who[k] << " at " << k << " of " << n;
  }
}

TEST(ServedModel, OfEveryKindHasBitsThatDoNotDependOnTheBatch) {
  for (const char* name : {"mlp", "cnn", "resnet8"}) {
    Trainee run(small_job(name));
    expect_exact_batches(run);
  }
  spec::JobOptions half = small_job("cnn");
  half.train.precision = "bf16";
  Trainee in_half(half);
  expect_exact_batches(in_half);
}

TEST(ServedModel, APromptsBitsDoNotDependOnTheBatch) {
  TempFolder folder;
  Trainee run(token_job(folder.path()));
  expect_exact_batches(run);
}

// What is ahead of the prompt's end does not change what is said of it.
TEST(ServedModel, APromptIsReadUpToItsEnd) {
  TempFolder folder;
  Trainee run(token_job(folder.path()));
  const auto model = run.source->load({});
  const auto ask = [&](const std::vector<int64_t>& tokens) {
    std::vector<std::byte> row(model->card().row_bytes);
    model->prepare({Sample::Kind::tokens, {}, std::as_bytes(std::span(tokens))}, row.data());
    std::vector<float> out(20);
    model->run(row.data(), 1, out.data());
    return out;
  };
  EXPECT_EQ(ask({1, 2, 3}), ask({1, 2, 3}));
  EXPECT_NE(ask({1, 2, 3}), ask({1, 2, 3, 4}));
  EXPECT_THROW(ask({1, 20}), Error);
  EXPECT_THROW(ask({-1}), Error);
}

// The same class and, but for the last bits, the same probability as `ductile predict` gives:
// images of the size that the model was trained on, and of another one, as files and as pixels.
TEST(ServedModel, PreparesImagesAsPredictDoes) {
  TempFolder folder, others;
  Trainee run(image_job(folder.path()));
  for (int i = 0; i < 6; ++i)
    write_file_atomic(others.path() / (std::to_string(i) + ".png"),
                      image(100 + i, i < 3 ? 12 : 17));
  std::vector<Json> rows;
  answer({.what = "predict", .data = others.path().string()}, run.folder, run.job,
         [&](const Json& row) { rows.push_back(row); }, {});
  const auto model = run.source->load({});
  ASSERT_EQ(rows.size(), 6u);
  for (int i = 0; i < 6; ++i) {
    const int side = i < 3 ? 12 : 17;
    const std::string file = image(100 + i, side);
    const auto pixels = data::test_pixels(side, side, 3, 100 + i);
    const Sample as_file{Sample::Kind::file, {}, std::as_bytes(std::span(file))};
    const Sample as_pixels{Sample::Kind::pixels, {side, side, 3}, std::as_bytes(std::span(pixels))};
    std::vector<std::byte> row(model->card().row_bytes), again(row.size());
    model->prepare(as_file, row.data());
    model->prepare(as_pixels, again.data());
    EXPECT_EQ(row, again);
    float out[2];
    model->run(row.data(), 1, out);
    const int64_t label = out[1] > out[0] ? 1 : 0;
    const double share = 1 / (1 + std::exp(-std::abs(double{out[1]} - double{out[0]})));
    EXPECT_EQ(rows[static_cast<size_t>(i)]["top"][0]["class"], label);
    EXPECT_NEAR(rows[static_cast<size_t>(i)]["top"][0]["probability"].get<double>(), share, 1e-5);
  }
  std::vector<std::byte> row(model->card().row_bytes);
  const std::string broken = image(1).substr(0, 60), none = "no image";
  for (const std::string& file : {broken, none})
    EXPECT_THROW(
        model->prepare({Sample::Kind::file, {}, std::as_bytes(std::span(file))}, row.data()),
        Error);
}

TEST(ServedModel, TakesGreyImagesForColouredOnesAndTheOtherWayRound) {
  Trainee grey(small_job("mlp"));
  const auto model = grey.source->load({});
  ASSERT_EQ(model->card().input, (Shape{1, 28, 28}));
  std::vector<uint8_t> one(28 * 28), three;
  for (size_t i = 0; i < one.size(); ++i) {
    one[i] = static_cast<uint8_t>(i % 251);
    three.insert(three.end(), 3, one[i]);
  }
  std::vector<std::byte> a(model->card().row_bytes), b(a.size());
  model->prepare({Sample::Kind::pixels, {28, 28, 1}, std::as_bytes(std::span(one))}, a.data());
  model->prepare({Sample::Kind::pixels, {28, 28, 3}, std::as_bytes(std::span(three))}, b.data());
  EXPECT_EQ(a, b);
}

TEST(RunSource, KnowsCheckpointsAndFinalWeights) {
  Trainee run(small_job("mlp"));
  EXPECT_EQ(run.source->newest(), 10);
  EXPECT_EQ(run.source->load({})->card().version, 10);
  std::vector<int64_t> kept;
  for (const auto& one : ckpt::list(run.folder.checkpoints())) kept.push_back(one.step);
  for (const int64_t step : kept) EXPECT_EQ(run.source->load(step)->card().version, step);
  EXPECT_THROW(run.source->load(7), Error);
  const std::string digest = run.source->load(10)->card().digest;
  fs::remove(run.folder.model_file());
  EXPECT_EQ(run.source->newest(), kept.front());
  EXPECT_EQ(run.source->load({})->card().version, kept.front());
  EXPECT_EQ(kept.front() == 10, run.source->load({})->card().digest == digest);
}

// A run that goes on removes what was the newest before it is read.
TEST(RunSource, TakesTheNewestAgainWhereThatWasRemovedMeanwhile) {
  Trainee run(small_job("mlp"));
  int64_t now = 0, removed = 0;
  std::vector<int64_t> asked;
  const auto newest = [&] { return std::optional<int64_t>(now += 5); };
  const auto load = [&](std::optional<int64_t> step) {
    asked.push_back(step.value());
    if (*step <= removed) fail(ErrorCode::not_found, "there is no checkpoint of step {}", *step);
    return run.source->load({});
  };
  removed = 10;
  EXPECT_NE(load_newest(newest, load), nullptr);
  EXPECT_EQ(asked, (std::vector<int64_t>{5, 10, 15}));
  removed = 1 << 20;
  const auto code = [&](const std::function<std::optional<int64_t>()>& look) {
    try {
      load_newest(look, load);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code(newest), ErrorCode::unavailable);  // it ends
  EXPECT_EQ(code([] { return std::optional<int64_t>(7); }), ErrorCode::not_found);
}

// Who is told that they were deleted takes others instead.
TEST(RunSource, TakesARunThatIsNotThereNowForNoDeletedWeights) {
  Trainee run(small_job("mlp"));
  const auto code = [&](int64_t step) {
    try {
      run.source->load(step);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  };
  const fs::path here = run.folder.path(), away = here.string() + ".away";
  EXPECT_EQ(code(7), ErrorCode::not_found);
  fs::rename(here, away);
  for (const int64_t step : {7, 10}) EXPECT_EQ(code(step), ErrorCode::unavailable) << step;
  fs::rename(away, here);
  EXPECT_EQ(run.source->load(10)->card().version, 10);
}

TEST(RunSource, OfAnUnfinishedRunItSaysWhoGivesItWeights) {
  const TempFolder place;
  spec::JobOptions job = small_job("mlp");
  const auto said = [&] {
    const fs::path path = place.path() / "7-young";
    const run::RunFolder folder = fs::exists(path)
                                      ? run::RunFolder::open(path)
                                      : run::RunFolder::create_at(path, OptionSet(job).to_toml());
    try {
      serve_run(folder, job, "young")->load({});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::not_found);
      return error.message();
    }
    return std::string();
  };
  const std::string alone = said();
  EXPECT_NE(alone.find("finish it with `ductile train --resume"), std::string::npos) << alone;
  write_file_atomic(run::runs_mark_file(place.path()), "0123456789abcdef\n");
  const std::string in_service = said();
  EXPECT_NE(in_service.find("the run of job 7 of a service"), std::string::npos) << in_service;
  EXPECT_NE(in_service.find("--after 7"), std::string::npos) << in_service;
  EXPECT_EQ(in_service.find("process"), std::string::npos) << in_service;
  EXPECT_NE(in_service.find("if it has ended before that, `ductile train --resume"),
            std::string::npos)
      << in_service;
}

TEST(RunSource, SaysWhatIsDamaged) {
  Trainee run(small_job("mlp"));
  std::string bytes = read_file(run.folder.model_file());
  bytes[bytes.size() - 9] = static_cast<char>(bytes[bytes.size() - 9] ^ 1);
  write_file_atomic(run.folder.model_file(), bytes);
  try {
    run.source->load({});
    ADD_FAILURE() << "nothing thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::data_loss) << e.what();
  }
}

TEST(Serve, TellsWhereItListensAndEndsWhenItIsInterrupted) {
  Trainee run(small_job("mlp"));
  std::vector<Json> told;
  ServeRequest request = ServeRequest::from_json({{"name", "m"},
                                                  {"host", "127.0.0.1"},
                                                  {"port", 0},
                                                  {"threads", 0},
                                                  {"max_batch", 4},
                                                  {"max_delay_us", 0},
                                                  {"max_waiting", 16},
                                                  {"follow_ms", 0}});
  serve(
      std::move(request), run.folder, run.job, [&](const Json& row) { told.push_back(row); },
      [] { return true; });
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0]["version"], 10);
  EXPECT_EQ(told[0]["address"].get<std::string>().find("127.0.0.1:"), 0u);
}

}  // namespace
}  // namespace ductile::train
