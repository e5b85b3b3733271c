#include "ductile/train/questions.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/safetensors.h"
#include "ductile/ckpt/writer.h"
#include "ductile/data/dataset.h"
#include "ductile/data/testing/images.h"
#include "ductile/run/diary.h"
#include "ductile/run/lock.h"
#include "ductile/train/replica.h"
#include "ductile/train/workers.h"

namespace ductile::train {
namespace {

using Json = nlohmann::json;

spec::JobOptions asked_job() {
  spec::JobOptions job;
  job.data.train_limit = 640;
  job.data.test_limit = 150;
  job.model.name = "mlp";
  job.model.hidden = {32};
  job.optimizer.lr = 0.05;
  job.train.epochs = 3;
  job.train.batch_size = 64;
  job.train.virtual_ranks = 2;
  job.checkpoint.every_seconds = 0;
  return job;
}

// A language model's job on a file of numbers in this folder.
spec::JobOptions token_job(const fs::path& folder) {
  std::vector<uint16_t> tokens(5'000);
  Rng rng(1, 2);
  for (uint16_t& t : tokens) t = static_cast<uint16_t>(rng.below(20));
  for (const char* name : {"train.bin", "test.bin"}) {
    write_file_atomic(folder / name, std::string_view(reinterpret_cast<const char*>(tokens.data()),
                                                      2 * tokens.size()));
  }
  spec::JobOptions job = asked_job();
  job.data = {};
  job.data.format = "tokens";
  job.data.path = (folder / "train.bin").string();
  job.data.test_path = (folder / "test.bin").string();
  job.data.tokens.sequence_length = 16;
  job.model.name = "gpt";
  job.model.layers = 1;
  job.model.heads = 2;
  job.model.dim = 16;
  job.train.batch_size = 32;
  job.train.epochs = 1;
  return job;
}

// A job on images of 12 x 12 pixels, of two classes, in this folder.
spec::JobOptions image_job(const fs::path& folder) {
  for (int i = 0; i < 60; ++i) {
    const fs::path at = folder / (i < 40 ? "train" : "val") / (i % 2 == 0 ? "ant" : "bee");
    fs::create_directories(at);
    write_file_atomic(at / (std::to_string(i) + ".png"),
                      data::encode_png(data::test_pixels(12, 12, 3, i), 12, 12));
  }
  spec::JobOptions job = asked_job();
  job.data = {};
  job.data.format = "folder";
  job.data.path = folder.string();
  job.train.batch_size = 8;
  job.train.epochs = 1;
  return job;
}

// A run that is done.
struct Trainee {
  explicit Trainee(const spec::JobOptions& options) : job(options) {
    const run::RunLock lock(folder.path(), run::RunLock::kLocal);
    const link::JobEnd end = train_here(lock, {.folder = folder, .job = job});
    EXPECT_EQ(end.phase, control::Phase::finished) << end.reason;
  }

  std::vector<Json> events(std::string_view kind) const {
    std::vector<Json> out;
    run::for_each_diary_line(folder.events_file(), [&](const Json& line) {
      if (line.at("kind") == kind) out.push_back(line);
    });
    return out;
  }
  Json ask(const Question& question, std::vector<Json>* rows = nullptr) const {
    return answer(question, folder, job,
                  [&](const Json& row) {
                    if (rows != nullptr) rows->push_back(row);
                  },
                  {});
  }
  std::string refusal(const Question& question, ErrorCode code) const {
    try {
      ask(question);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      return e.what();
    }
    return "nothing thrown";
  }

  TempFolder place;
  spec::JobOptions job;
  run::RunFolder folder = run::RunFolder::create(place.path(), "trainee", OptionSet(job).to_toml());
};

void expect_parts_of(const Json& whole, const Json& parts) {
  for (const auto& [key, value] : parts.items()) EXPECT_EQ(whole.at(key), value) << key;
}

// With moving averages, running statistics and half precision: the weights to be used are not the
// trained ones.
TEST(Eval, GivesTheFiguresThatTheRunEndedWith) {
  for (const char* precision : {"fp32", "bf16"}) {
    spec::JobOptions job = asked_job();
    job.model.name = "cnn";
    job.model.width = 4;
    job.train.epochs = 1;
    job.train.ema_decay = 0.7;
    job.train.precision = precision;
    const Trainee run(job);
    const Json end = run.events("end").back();
    const Json got = run.ask({.what = "eval"});
    Json final_figures = end.at("final");
    final_figures.erase("classes");  // those without samples are left out there
    expect_parts_of(got, final_figures);
    EXPECT_EQ(got.at("step"), end.at("step"));
    EXPECT_EQ(got.at("weights_digest"), end.at("weights_digest"));
  }
}

TEST(Eval, OfAModelOfOnesOwn) {
  spec::JobOptions job = asked_job();
  job.model.name = "custom";
  job.model.library = TORCH_MODEL;
  job.train.threads = 1;
  job.train.epochs = 1;
  const Trainee run(job);
  const Json end = run.events("end").back(), got = run.ask({.what = "eval"});
  for (const char* key : {"loss", "accuracy", "brier", "calibration_error"})
    EXPECT_EQ(got.at(key), end.at("final").at(key)) << key;
  EXPECT_EQ(got.at("weights_digest"), end.at("weights_digest"));
}

// Of weights that are averages, and of weights that the rule computes, whose running statistics are
// in no checkpoint.
TEST(Eval, OfACheckpointGivesWhatTheRunMeasuredThen) {
  for (const char* rule : {"sgd", "schedule_free"}) {
    spec::JobOptions job = asked_job();
    job.model.name = "cnn";
    job.model.width = 4;
    job.optimizer.name = rule;
    if (job.optimizer.name == "sgd") job.train.ema_decay = 0.7;
    job.checkpoint.every_steps = 10;  // an epoch
    job.checkpoint.keep = 5;
    const Trainee run(job);
    ASSERT_EQ(run.events("evaluation").size(), 3u);
    // On a slow disk there may be none of a step that came while the one before was being written.
    std::set<int64_t> kept;
    for (const auto& c : ckpt::list(run.folder.checkpoints())) kept.insert(c.step);
    ASSERT_TRUE(kept.contains(30)) << rule;
    const Json final_digest = run.ask({.what = "eval"}).at("weights_digest");
    for (const Json& then : run.events("evaluation")) {
      const auto step = then.at("step").get<int64_t>();
      if (!kept.contains(step)) continue;
      const Json got = run.ask({.what = "eval", .checkpoint = step});
      for (const char* key : {"loss", "accuracy", "calibration_error", "brier", "worst_class"})
        EXPECT_EQ(got.at(key), then.at(key)) << rule << key << step;
      EXPECT_EQ(got.at("weights_digest") == final_digest, step == 30) << rule << step;
    }
    run.refusal({.what = "eval", .checkpoint = 7}, ErrorCode::not_found);
  }
}

// Before a tuner could choose the staleness, no state held it; before that, evaluations were
// counted in updates alone.
TEST(Eval, OfACheckpointOfAnOlderVersion) {
  const Trainee run(asked_job());
  Replica again(run.job);
  again.restore(ckpt::Checkpoint::open(run.folder.checkpoints(), 30));
  Json values = again.values();
  for (const char* name : {"hyper", "last_hyper"}) EXPECT_EQ(values[name].erase("staleness"), 1U);
  {
    ckpt::CheckpointWriter writer(run.folder.checkpoints(), {.keep = 5});
    writer.save(31, values, again.state().tensors());
    EXPECT_EQ(values.erase("evaluation"), 1U);
    writer.save(32, values, again.state().tensors());
    writer.wait();
  }
  for (const int64_t older : {31, 32}) {
    EXPECT_EQ(run.ask({.what = "eval", .checkpoint = older}).at("weights_digest"),
              run.ask({.what = "eval", .checkpoint = 30}).at("weights_digest"));
  }
}

TEST(Eval, CountsAddUp) {
  const Trainee run(asked_job());
  const Json got = run.ask({.what = "eval"});
  int64_t samples = 0, correct = 0, diagonal = 0, all = 0;
  for (const Json& c : got.at("classes")) {
    samples += c.at("samples").get<int64_t>();
    correct += c.at("correct").get<int64_t>();
    EXPECT_EQ(c.at("name"), std::to_string(c.at("class").get<int64_t>()));
  }
  for (const Json& cell : got.at("confusion")) {
    all += cell.at("count").get<int64_t>();
    if (cell.at("class") == cell.at("predicted")) diagonal += cell.at("count").get<int64_t>();
  }
  EXPECT_EQ(samples, 150);
  EXPECT_EQ(all, 150);
  EXPECT_EQ(correct, diagonal);
  EXPECT_EQ(got.at("accuracy"), static_cast<double>(correct) / 150);
}

TEST(Predict, NamesTheLikeliestClassesOfEachSample) {
  const Trainee run(asked_job());
  std::vector<Json> rows;
  const Json got = run.ask({.what = "predict", .top = 3}, &rows);
  EXPECT_EQ(got.at("samples"), 150);
  ASSERT_EQ(rows.size(), 150u);
  const auto samples = data::open_dataset(run.job.data, data::Split::test);
  int64_t right = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    EXPECT_EQ(rows[i].at("index"), index);
    EXPECT_EQ(rows[i].at("sample"), samples->where(index));
    const Json& top = rows[i].at("top");
    ASSERT_EQ(top.size(), 3u);
    for (size_t k = 0; k < 3; ++k) {
      EXPECT_EQ(top[k].at("name"), std::to_string(top[k].at("class").get<int64_t>()));
      if (k > 0) {
        EXPECT_GE(top[k - 1].at("probability"), top[k].at("probability"));
      }
    }
    right += top[0].at("class") == samples->label(index);
  }
  EXPECT_EQ(static_cast<double>(right) / 150, run.ask({.what = "eval"}).at("accuracy"));

  rows.clear();
  run.ask({.what = "predict", .top = 1000}, &rows);
  double sum = 0;
  for (const Json& one : rows[0].at("top")) sum += one.at("probability").get<double>();
  EXPECT_EQ(rows[0].at("top").size(), 10u);
  EXPECT_NEAR(sum, 1, 1e-12);
}

void put_image(const fs::path& file, int side, int seed) {
  fs::create_directories(file.parent_path());
  write_file_atomic(file, data::encode_png(data::test_pixels(side, side, 3, seed), side, side));
}

// By the image's name.
std::map<std::string, Json> predictions(const Trainee& run, const fs::path& path) {
  std::vector<Json> rows;
  run.ask({.what = "predict", .data = path.string(), .top = 2}, &rows);
  std::map<std::string, Json> out;
  for (const Json& row : rows)
    out[fs::path(row.at("sample").get<std::string>()).filename().string()] = row.at("top");
  return out;
}

// Whether it is asked about alone, or among images of other sizes; and of the size of the training
// images it is what the run itself makes of it.
TEST(Predict, WhatIsSaidOfAnImageDependsOnThatImageAlone) {
  for (const bool pads : {false, true}) {
    const TempFolder data, others;
    spec::JobOptions job = image_job(data.path());
    if (pads) job.augment.pad = 2;
    const Trainee run(job);
    for (const int side : {5, 12, 13, 48})
      put_image(others.path() / (std::to_string(side) + ".png"), side, side);
    const auto together = predictions(run, others.path());
    ASSERT_EQ(together.size(), 4u);
    for (const auto& [name, top] : together)
      EXPECT_EQ(predictions(run, others.path() / name).at(name), top) << name;
    const auto own = predictions(run, fs::path());
    put_image(data.path() / "val" / "bee" / "wide.png", 40, 1);
    const auto also = predictions(run, data.path() / "val");
    for (const auto& [name, top] : own) EXPECT_EQ(also.at(name), top) << name;
  }
}

// An image of four times the size shows the same.
TEST(Predict, LargeImagesAreMadeAsLargeAsThoseOfTheTraining) {
  const TempFolder data, others;
  spec::JobOptions job = image_job(data.path());
  job.augment.crop = 8;  // of 12
  const Trainee run(job);
  std::vector<uint8_t> small(12 * 12 * 3, 255);  // white, with a black spot in its centre
  for (const size_t y : {5, 6}) std::fill_n(small.begin() + (y * 12 + 5) * 3, 6, uint8_t{0});
  std::vector<uint8_t> large(48 * 48 * 3);
  for (size_t y = 0; y < 48; ++y) {
    for (size_t x = 0; x < 48; ++x) {
      for (size_t c = 0; c < 3; ++c)
        large[(y * 48 + x) * 3 + c] = small[(y / 4 * 12 + x / 4) * 3 + c];
    }
  }
  write_file_atomic(others.path() / "large.png", data::encode_png(large, 48, 48));
  write_file_atomic(others.path() / "small.png", data::encode_png(small, 12, 12));
  const auto probability = [&](const std::string& name) {
    const Json top = predictions(run, others.path() / name).at(name);
    return top[top[0].at("class") == 0 ? 0 : 1].at("probability").get<double>();
  };
  EXPECT_NEAR(probability("large.png"), probability("small.png"), 0.1);
}

// Its classes are what is asked for.
TEST(Predict, TakesFoldersOfOtherClasses) {
  const TempFolder data, others;
  const Trainee run(image_job(data.path()));
  put_image(others.path() / "bears" / "1.png", 12, 1);
  EXPECT_EQ(predictions(run, others.path()).size(), 1u);
  EXPECT_NE(
      run.refusal({.what = "eval", .data = others.path().string()}, ErrorCode::invalid_argument)
          .find("no class bears"),
      std::string::npos);
}

TEST(Predict, LeavesOutWhatCannotBeReadWhereItIsAskedTo) {
  const TempFolder data, others;
  Trainee run(image_job(data.path()));
  for (const char* name : {"a.png", "c.png"}) put_image(others.path() / name, 12, 1);
  write_file_atomic(others.path() / "b.png", "xx");
  const Question question{.what = "predict", .data = others.path().string()};
  const std::string text = run.refusal(question, ErrorCode::data_loss);
  EXPECT_NE(text.find("b.png: offset 0: neither a JPEG"), std::string::npos) << text;
  EXPECT_NE(text.find("remove it, or leave out what cannot be read with --skip-bad"),
            std::string::npos)
      << text;
  Question lenient = question;
  lenient.skip_bad = true;
  std::vector<Json> rows;
  const Json got = run.ask(lenient, &rows);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].at("index"), 2);
  EXPECT_EQ(got.at("samples"), 2);
  EXPECT_EQ(got.at("bad_samples").at("count"), 1);
  run.job.data.on_bad_sample = "skip";
  EXPECT_EQ(run.ask(question), got) << "the run leaves them out by itself";
  fs::remove(others.path() / "a.png");
  fs::remove(others.path() / "c.png");
  EXPECT_EQ(run.ask(lenient).at("samples"), 0);
}

TEST(Predict, ReadsImagesInGreyForAModelOfGreyImages) {
  const TempFolder others;
  const Trainee run(asked_job());
  put_image(others.path() / "a.png", 28, 1);
  EXPECT_EQ(predictions(run, others.path() / "a.png").size(), 1u);
}

TEST(Eval, NamesTheOptionAndTheFormatWhereDataAreOfAnother) {
  const TempFolder data;
  const Trainee run(image_job(data.path()));
  const std::string file = (data.path() / "x.tar").string();
  write_file_atomic(file, "no images");
  const std::string text = run.refusal({.what = "eval", .data = file}, ErrorCode::not_found);
  EXPECT_NE(text.find("--data " + file), std::string::npos) << text;
  EXPECT_NE(text.find("data.format = \"folder\""), std::string::npos) << text;
}

TEST(Predict, OfALanguageModelGivesTheLossOfEachSequence) {
  const TempFolder data;
  const Trainee run(token_job(data.path()));
  std::vector<Json> rows;
  run.ask({.what = "predict"}, &rows);
  double sum = 0;
  for (const Json& row : rows) {
    sum += row.at("loss").get<double>();
    EXPECT_DOUBLE_EQ(row.at("perplexity").get<double>(), std::exp(row.at("loss").get<double>()));
  }
  const Json got = run.ask({.what = "eval"});
  EXPECT_EQ(got.at("samples"), rows.size());
  EXPECT_NEAR(sum / static_cast<double>(rows.size()), got.at("loss").get<double>(), 1e-6);
  EXPECT_TRUE(got.contains("perplexity"));
  EXPECT_FALSE(got.contains("classes")) << "a vocabulary is no set of classes";
  const Question top{.what = "predict", .top = 3};
  EXPECT_NE(run.refusal(top, ErrorCode::invalid_argument).find("leave --top out"),
            std::string::npos);
}

TEST(Eval, NamesTheTokenThatTheModelDoesNotKnow) {
  const TempFolder data;
  const Trainee run(token_job(data.path()));
  const std::string file = (data.path() / "other.bin").string();
  const std::vector<uint16_t> tokens(100, 500);
  write_file_atomic(
      file, std::string_view(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()));
  for (const char* what : {"eval", "predict"}) {
    const std::string text = run.refusal({.what = what, .data = file}, ErrorCode::invalid_argument);
    for (const std::string& part :
         {"--data " + file, std::string("token is 500"), std::string("tokens below 20"),
          std::string("data.tokens.type = \"u16\"")})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  spec::JobOptions narrow = run.job;
  narrow.model.vocab_size = 19;
  try {
    const Replica replica(narrow);
    ADD_FAILURE() << "it has no output for token 19";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("train.bin\" and of the held-out ones is 19"),
              std::string::npos)
        << e.what();
  }
}

// Deployed on a machine that has neither training data nor checkpoints.
TEST(Eval, NeedsNoTrainingData) {
  const TempFolder data;
  const Trainee run(token_job(data.path()));
  const Json before = run.ask({.what = "eval"});
  fs::remove(data.path() / "train.bin");
  fs::rename(data.path() / "test.bin", data.path() / "elsewhere.bin");
  fs::remove_all(run.folder.checkpoints());
  EXPECT_NE(run.refusal({.what = "eval"}, ErrorCode::not_found).find("--data"), std::string::npos);
  EXPECT_EQ(run.ask({.what = "eval", .data = (data.path() / "elsewhere.bin").string()}), before);
}

// Though the question brings data: the running statistics of these weights are in no checkpoint.
TEST(Eval, SaysWhatNeedsTheTrainingDataWhereTheyAreGone) {
  const TempFolder data, others;
  spec::JobOptions job = image_job(data.path());
  job.model.name = "cnn";
  job.model.width = 4;
  job.optimizer.name = "schedule_free";
  const Trainee run(job);
  const std::string other = (others.path() / "a.png").string();
  put_image(other, 12, 1);
  fs::remove_all(data.path());
  EXPECT_EQ(run.ask({.what = "predict", .data = other}).at("samples"), 1);
  const Question question{.what = "predict", .data = other, .checkpoint = 5};
  const std::string text = run.refusal(question, ErrorCode::not_found);
  for (const char* part : {"no such folder", "optimizer.name = \"schedule_free\"", "data.path",
                           "leave --checkpoint out"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  const std::string minimum = run.refusal({.what = "minima"}, ErrorCode::not_found);
  EXPECT_NE(minimum.find("the sharpness of a minimum needs the training data"), std::string::npos)
      << minimum;
  fs::remove(run.folder.model_file());
  const std::string no_form = run.refusal(question, ErrorCode::not_found);
  EXPECT_NE(no_form.find("without sound final weights"), std::string::npos) << no_form;
}

TEST(Eval, OfARunThatDivergedAsksForANewOne) {
  const Trainee run(asked_job());
  fs::remove(run.folder.model_file());
  std::ofstream(run.folder.events_file(), std::ios::app)
      << R"({"kind":"end","status":"failed","message":"the loss is not finite at step 31: )"
      << R"(the run diverged; try a smaller optimizer.lr"})" << std::endl;
  const auto expect = [&](const std::string& part) {
    const std::string text = run.refusal({.what = "eval"}, ErrorCode::not_found);
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_NE(text.find("begin a new one (the loss is not finite at step 31"), std::string::npos)
        << text;
    EXPECT_EQ(text.find("--resume"), std::string::npos) << text;
  };
  expect("no final weights; it diverged");
  expect("--checkpoint 30");
  fs::remove_all(run.folder.checkpoints());
  expect("neither final weights nor a checkpoint");
}

TEST(Eval, RefusesWhatIsNoTrainedModelByName) {
  const Trainee run(asked_job());
  EXPECT_NE(
      run.refusal({.what = "eval", .data = "absent"}, ErrorCode::not_found).find("--data absent"),
      std::string::npos);
  EXPECT_NE(run.refusal({.what = "eval", .data = "."}, ErrorCode::invalid_argument).find("digits"),
            std::string::npos);
  const std::string fifo = (run.place.path() / "fifo").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_NE(run.refusal({.what = "eval", .data = fifo}, ErrorCode::invalid_argument)
                .find("from a file or a folder"),
            std::string::npos);
  Trainee other(asked_job());
  other.job.model.hidden = {33};
  EXPECT_NE(other.refusal({.what = "eval"}, ErrorCode::invalid_argument).find("job.toml"),
            std::string::npos);
  const std::string weights = read_file(run.folder.model_file());
  write_file_atomic(run.folder.model_file(), weights.substr(0, weights.size() / 2));
  EXPECT_NE(run.refusal({.what = "eval"}, ErrorCode::data_loss).find("model.safetensors"),
            std::string::npos);
  fs::remove(run.folder.model_file());
  EXPECT_NE(run.refusal({.what = "eval"}, ErrorCode::not_found).find("--checkpoint 30"),
            std::string::npos);
  fs::remove_all(run.folder.checkpoints());
  EXPECT_NE(run.refusal({.what = "eval"}, ErrorCode::not_found).find("train --resume"),
            std::string::npos);
}

TEST(Eval, OfARunThatStillTrainsNamesWhoTrainsIt) {
  const Trainee run(asked_job());
  fs::remove(run.folder.model_file());
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const run::RunLock lock(run.folder.path(), run::RunLock::kLocal);
    ::close(ready[1]);
    ::pause();
    ::_exit(0);
  }
  ::close(ready[1]);
  char none;
  EXPECT_EQ(::read(ready[0], &none, 1), 0) << "the child has the lock";
  ::close(ready[0]);
  EXPECT_NE(run.refusal({.what = "eval"}, ErrorCode::not_found)
                .find(fmt::format("process {} trains it", child)),
            std::string::npos);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

// A bit of the weights is another one than the run wrote.
TEST(Eval, TellsDamagedWeightsFromSoundOnes) {
  const Trainee run(asked_job());
  const Json before = run.ask({.what = "eval"});
  std::string weights = read_file(run.folder.model_file());
  weights[weights.size() - 100] ^= 1;
  write_file_atomic(run.folder.model_file(), weights);
  const std::string text = run.refusal({.what = "eval"}, ErrorCode::data_loss);
  EXPECT_NE(text.find("model.safetensors"), std::string::npos) << text;
  EXPECT_NE(text.find("--checkpoint 30"), std::string::npos) << text;
  // The checkpoint needs nothing of that file.
  for (const size_t left : {weights.size(), weights.size() / 2, size_t{100}, size_t{0}}) {
    write_file_atomic(run.folder.model_file(), weights.substr(0, left));
    const Json after = run.ask({.what = "eval", .checkpoint = 30});
    EXPECT_EQ(after.at("loss"), before.at("loss")) << left;
    EXPECT_EQ(after.at("weights_digest"), before.at("weights_digest")) << left;
  }
}

// Of a version that did not write down what its data are like.
TEST(Eval, AsksTheTrainingDataWhereTheWeightsSayNothingOfThem) {
  const Trainee run(asked_job());
  const Json before = run.ask({.what = "eval"});
  {
    const ckpt::SafetensorsFile file(run.folder.model_file());
    std::vector<ckpt::TensorView> views;
    for (const ckpt::TensorInfo& t : file.tensors())
      views.push_back({t.name, t.dtype, t.shape, file.bytes(t)});
    ckpt::write_safetensors(run.folder.path() / "other", views, {{"format", "pt"}});
  }
  fs::rename(run.folder.path() / "other", run.folder.model_file());
  Json after = run.ask({.what = "eval"});
  after["step"] = before.at("step");  // it was in the same place
  EXPECT_EQ(after, before);
}

TEST(Question, ThatIsNoneIsRefused) {
  for (const Json& bad :
       {Json("x"), Json{{"what", "eval"}}, Json{{"what", "guess"}, {"data", ""}, {"top", 1}},
        Json{{"what", "predict"}, {"data", ""}, {"top", 0}}}) {
    try {
      Question::from_json(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    }
  }
}

}  // namespace
}  // namespace ductile::train
