#include "ductile/train/questions.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "ductile/base/error.h"
#include "ductile/base/paths.h"
#include "ductile/base/text.h"
#include "ductile/data/images.h"
#include "ductile/data/loader.h"
#include "ductile/run/json_lines.h"
#include "ductile/serving/inference.h"
#include "ductile/train/class_scores.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/minimum.h"
#include "ductile/train/trained.h"

namespace ductile::train {
namespace {

using Json = nlohmann::json;
using DataSet = std::shared_ptr<const data::Dataset>;

// A set of the job's format at another path. The training data may be elsewhere or gone; formats
// that read them for the classes get them where they are.
DataSet open_at(const spec::DataOptions& trained, const std::string& path) {
  if (kind_of(path) == FileKind::none)
    fail(ErrorCode::not_found, "--data {}: no such file or folder", path);
  if (kind_of(path) == FileKind::other)  // a FIFO would be waited for
    fail(ErrorCode::invalid_argument,
         "--data {}: it is {}; samples are read from a file or a folder", path, kind_text(path));
  spec::DataOptions options = trained;
  options.test_limit = 0;
  options.test_path = path;
  if (options.format == "digits")
    fail(ErrorCode::invalid_argument,
         "--data {}: the job's data are drawn in memory (data.format = \"digits\"), so there is no "
         "other set of their format",
         path);
  const bool own_classes = options.format == "folder" || options.format == "tar";
  if (own_classes || kind_of(options.path) == FileKind::none) options.path = path;
  if (options.format == "folder") {
    for (const char* split : {"val", "test"}) {
      if (!is_folder(fs::path(path) / split)) continue;
      options.path = options.test_path = (fs::path(path) / split).string();
      break;
    }
  }
  try {
    return data::open_dataset(options, data::Split::test);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found && e.code() != ErrorCode::invalid_argument) throw;
    fail(e.code(), "--data {}: no data of the run's format (data.format = \"{}\"): {}", path,
         options.format, e.what());
  }
}

DataSet open_own(const spec::DataOptions& options) try {
  return data::open_dataset(options, data::Split::test);
} catch (const Error& e) {
  if (e.code() != ErrorCode::not_found) throw;
  fail(e.code(), "{}; name data that are here with --data", e.what());
}

// The data of the question, with the classes of the model.
DataSet open_data(const Question& question, const Trained& trained) {
  const DataForm& form = trained.form();
  spec::DataOptions options = trained.job().data;
  if (question.skip_bad) options.on_bad_sample = "skip";
  if (!form.model.inputs.empty() && !question.data.empty())
    fail(
        ErrorCode::invalid_argument,
        "--data {}: the model reads several inputs, which no file holds; leave --data out, and the "
        "held-out samples of the job are drawn again",
        question.data);
  if (question.what == "predict" && !form.tokens && !question.data.empty() &&
      data::holds_images(question.data))
    return data::open_images(question.data, options.on_bad_sample == "skip", form.model.channels);
  DataSet samples = question.data.empty() ? open_own(options) : open_at(options, question.data);
  if (question.what == "predict" && !form.tokens) return samples;  // whatever their classes
  const std::vector<std::string>& names = samples->info().class_names;
  const auto known = [&](const std::string& name) {
    return std::ranges::find(form.class_names, to_utf8(name)) != form.class_names.end();
  };
  // Numbers in place of names mean the same classes; names that are not the model's do not.
  const bool named = options.format == "folder" || options.format == "tar";
  if (!form.class_names.empty() && !form.tokens && (named || std::ranges::all_of(names, known)))
    samples = data::with_classes(std::move(samples), form.class_names);
  if (form.tokens && samples->info().num_classes > form.model.num_classes)
    fail(
        ErrorCode::invalid_argument,
        "{}: the largest token is {}, and the model was trained on tokens below {}; are these data "
        "of its vocabulary, and of data.tokens.type = \"{}\"?",
        question.data.empty() ? options.path : "--data " + question.data,
        samples->info().num_classes - 1, form.model.num_classes, options.tokens.type);
  if (samples->info().num_classes > form.model.num_classes)
    fail(ErrorCode::invalid_argument, "the data has {} classes and the model {} outputs",
         samples->info().num_classes, form.model.num_classes);
  return samples;
}

Origin origin_of(const Question& question) {
  return question.data.empty() ? Origin::own : Origin::others;
}

using Interrupted = std::function<bool()>;

void check(const Interrupted& interrupted) {
  if (interrupted && interrupted()) fail(ErrorCode::unavailable, "interrupted");
}

Json evaluate_run(Trained& trained, const DataSet& samples, Origin origin,
                  const Interrupted& interrupted) {
  const auto loader = load_samples(samples, origin, trained);
  ClassScores scores;
  const Evaluation result = evaluate(trained.model(), *loader, trained.job().eval, scores,
                                     [&](int64_t) { check(interrupted); });
  const std::vector<std::string>& names = trained.form().class_names;
  Json out = result.describe(names);
  if (trained.form().tokens) out["perplexity"] = run::json_number(result.perplexity());
  if (result.classes) {
    Json& classes = out["classes"] = Json::array();
    for (size_t c = 0; c < result.classes->samples.size(); ++c)
      classes.push_back(describe_class(*result.classes, static_cast<int64_t>(c), names));
    Json& confusion = out["confusion"] = Json::array();
    for (const auto& [pair, count] : scores.confusion())
      confusion.push_back({{"class", pair.first}, {"predicted", pair.second}, {"count", count}});
  }
  if (const data::LoaderStats stats = loader->stats(); stats.bad_samples > 0)
    out["bad_samples"] = describe_bad(stats);
  return out;
}

Json predicted(std::span<const float> logits, int64_t top, const std::vector<std::string>& names) {
  const std::vector<double> probabilities = probabilities_of(logits);
  Json out = Json::array();
  for (const int64_t label : serving::largest(logits, top)) {
    const auto i = static_cast<size_t>(label);
    Json one = {{"class", label}, {"probability", run::json_number(probabilities[i])}};
    if (i < names.size()) one["name"] = names[i];
    out.push_back(std::move(one));
  }
  return out;
}

void predict_batch(const data::Batch& batch, const data::Dataset& samples, Trained& trained,
                   int64_t top, const std::function<void(const Json&)>& row) {
  const at::Tensor logits = forward(trained.model(), batch);
  const at::Tensor rows = class_logits(logits, batch.num_samples);
  at::Tensor losses;
  if (trained.form().tokens) {
    losses = trained.model().loss(logits, labels_of(batch), 0).losses;
  } else if (!rows.defined()) {
    fail(ErrorCode::invalid_argument,
         "the model is no classifier: its output is of shape [{}], and `predict` needs a row of "
         "logits for each sample",
         fmt::join(logits.sizes().vec(), ", "));
  }
  for (int64_t i = 0; i < batch.num_samples; ++i) {
    const auto index = static_cast<int64_t>(batch.samples[static_cast<size_t>(i)]);
    Json out = {{"index", index}, {"sample", samples.where(index)}};
    if (losses.defined()) {
      const double loss = losses[i].item<double>();
      out["loss"] = run::json_number(loss);
      out["perplexity"] = run::json_number(std::exp(loss));
    } else {
      const auto k = static_cast<size_t>(rows.size(1));
      const float* const logits_of = rows.data_ptr<float>() + static_cast<size_t>(i) * k;
      out["top"] = predicted({logits_of, k}, top, trained.form().class_names);
    }
    row(out);
  }
}

std::shared_ptr<const data::Batch> next_batch(data::Loader& loader, bool skips_bad) try {
  return loader.next();
} catch (const Error& e) {
  if (skips_bad || e.code() != ErrorCode::data_loss) throw;
  fail(e.code(), "{}; remove it, or leave out what cannot be read with --skip-bad", e.what());
}

Json predict_run(Trained& trained, const DataSet& samples, const Question& question,
                 const std::function<void(const Json&)>& row, const Interrupted& interrupted) {
  if (trained.form().tokens && question.top > 1)
    fail(ErrorCode::invalid_argument,
         "--top {}: of a language model each line holds the loss of a sequence, and no classes; "
         "leave --top out",
         question.top);
  const at::NoGradGuard no_grad;
  const auto loader = load_samples(samples, origin_of(question), trained);
  trained.model().train(false);
  int64_t done = 0;
  while (const auto batch = next_batch(*loader, samples->skip_bad())) {
    predict_batch(*batch, *samples, trained, question.top, row);
    done += batch->num_samples;
    check(interrupted);
  }
  Json out = {{"samples", done}};
  if (const data::LoaderStats stats = loader->stats(); stats.bad_samples > 0)
    out["bad_samples"] = describe_bad(stats);
  return out;
}

// Weights move by less than a half-precision number can show.
spec::JobOptions in_fp32(spec::JobOptions job) {
  job.train.precision = "fp32";
  return job;
}

// Rows say how much is done, a hundred in all.
Json minimum_of(Trained& trained, const minima::Options& options,
                const std::function<void(const Json&)>& row, const Interrupted& interrupted) {
  double told = 0;
  return measure_minimum(trained, options, [&](double share) {
    check(interrupted);
    if (share < told + 0.01) return;
    told = share;
    row({{"share", share}});
  });
}

}  // namespace

Question Question::from_json(const Json& value) try {
  Question out{value.at("what"), value.at("data"), std::nullopt, value.at("top"), {}, false};
  if (value.contains("checkpoint")) out.checkpoint = value.at("checkpoint").get<int64_t>();
  if (value.contains("minima"))
    OptionSet(out.measure).read_json(value.at("minima"), "the question's minima");
  out.skip_bad = value.value("skip_bad", false);
  if (out.what != "eval" && out.what != "predict" && out.what != "minima")
    fail(ErrorCode::invalid_argument, "the question is eval, predict or minima, not {}", out.what);
  if (out.top < 1) fail(ErrorCode::invalid_argument, "--top {}: at least 1", out.top);
  return out;
} catch (const Json::exception& e) {
  fail(ErrorCode::invalid_argument, "the question is not understood: {}", e.what());
}

Json answer(const Question& question, const run::RunFolder& folder, const spec::JobOptions& job,
            const std::function<void(const Json&)>& row, const std::function<bool()>& interrupted) {
  const bool minimum = question.what == "minima";
  Trained trained(folder, minimum ? in_fp32(job) : job, question.checkpoint);
  const std::string digest = trained.weights_digest();
  Json out;
  if (minimum) {
    out = minimum_of(trained, question.measure, row, interrupted);
  } else {
    const DataSet samples = open_data(question, trained);
    out = question.what == "predict"
              ? predict_run(trained, samples, question, row, interrupted)
              : evaluate_run(trained, samples, origin_of(question), interrupted);
  }
  out["step"] = trained.step();
  out["weights_digest"] = digest;
  return out;
}

}  // namespace ductile::train
