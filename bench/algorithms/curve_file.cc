#include "curve_file.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include <zstd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/text.h"

namespace ductile::replay {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostText = size_t{4} << 30;

struct Run {
  Json settings = Json::object();
  std::map<std::string, std::vector<double>> series;
};

std::string unpacked(const std::string& packed, const std::string& source) {
  std::string out;
  ZSTD_DStream* stream = ZSTD_createDStream();
  ZSTD_inBuffer in{packed.data(), packed.size(), 0};
  std::string piece(ZSTD_DStreamOutSize(), '\0');
  size_t left = 1;
  std::string wrong;
  while (in.pos < in.size && wrong.empty()) {
    ZSTD_outBuffer to{piece.data(), piece.size(), 0};
    left = ZSTD_decompressStream(stream, &to, &in);
    if (ZSTD_isError(left)) wrong = ZSTD_getErrorName(left);
    out.append(piece.data(), to.pos);
    if (out.size() > kMostText) wrong = "it unpacks to more than 4 GiB";
  }
  ZSTD_freeDStream(stream);
  if (wrong.empty() && left != 0) wrong = "it is truncated";
  if (!wrong.empty()) fail(ErrorCode::data_loss, "{}: {}", source, wrong);
  return out;
}

std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> out(1);
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      out.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else {
      out.emplace_back();
    }
  }
  return out;
}

bool has_word(const std::string& name, const std::set<std::string>& words) {
  for (const std::string& w : words_of(name))
    if (words.contains(w)) return true;
  return false;
}

// 1: up, -1: down, 0: the name does not say.
int direction_of(const std::string& name) {
  static const std::set<std::string> kDown = {
      "loss", "error", "err",  "wer", "cer", "perplexity", "ppl",     "nll",    "mse",
      "mae",  "rmse",  "cost", "fid", "bpb", "bpc",        "entropy", "logloss"};
  static const std::set<std::string> kUp = {"accuracy", "acc",    "ssim", "precision", "map",
                                            "bleu",     "f1",     "auc",  "recall",    "score",
                                            "psnr",     "reward", "iou",  "dice",      "r2"};
  if (has_word(name, kDown)) return -1;
  return has_word(name, kUp) ? 1 : 0;
}

// How good a measure is as what a search is judged by.
int rank_of(const std::string& name) {
  int rank = 0;
  if (has_word(name, {"valid", "validation", "val", "dev", "eval"})) rank += 10;
  if (has_word(name, {"train", "training"})) rank -= 10;
  if (direction_of(name) == 0) rank -= 100;
  if (!has_word(name, {"loss", "cost"})) rank += 3;
  if (has_word(name, {"accuracy", "acc"})) rank -= 1;  // where there is a measure of the task's own
  return rank;
}

bool is_curve(const Json& v) {
  if (!v.is_array() || v.empty()) return false;
  return std::all_of(v.begin(), v.end(),
                     [](const Json& x) { return x.is_number() || x.is_null(); });
}

std::vector<double> curve_of(const Json& list) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> out;
  for (const Json& v : list) out.push_back(v.is_number() ? v.get<double>() : kNone);
  return out;
}

// Gives the task's name.
std::string read_run(const Json& line, const std::string& where, Run& run) {
  const JsonFields fields(line, where);
  std::string task;
  for (const char* key : {"task", "workload", "dataset"})
    if (task.empty() && fields.has(key)) task = fields.text(key);
  if (task.empty())
    fail(ErrorCode::invalid_argument, "{}: it names no task (task, workload or dataset)", where);
  for (const char* key : {"hp", "hparams", "hyperparameters", "config", "setting"}) {
    if (!run.settings.empty() || !fields.has(key) || !fields.at(key).is_object()) continue;
    for (const auto& [name, value] : fields.at(key).items())
      if (value.is_primitive() && !value.is_null()) run.settings[name] = value;
  }
  if (fields.has("submission") && fields.at("submission").is_string())
    run.settings["submission"] = fields.at("submission");
  const auto take = [&](const Json& object) {
    for (const auto& [name, value] : object.items())
      if (is_curve(value)) run.series[name] = curve_of(value);
  };
  take(line);
  for (const char* key : {"curve", "curves", "metrics"})
    if (fields.has(key) && fields.at(key).is_object()) take(fields.at(key));
  return task;
}

// The scale on which the values (ascending) lie most evenly: where the largest distance of their
// distribution from a uniform one is least. Another one than linear must say much more.
tune::Scale scale_of(std::vector<double> values) {
  values.erase(std::unique(values.begin(), values.end()), values.end());
  const auto uneven = [&](auto scaled) {
    const double low = scaled(values.front()), high = scaled(values.back());
    const double n = static_cast<double>(values.size());
    double most = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double at = (scaled(values[i]) - low) / (high - low);
      most = std::max({most, std::abs(at - static_cast<double>(i) / n),
                       std::abs(at - static_cast<double>(i + 1) / n)});
    }
    return most;
  };
  double best = 0.7 * uneven([](double v) { return v; });
  tune::Scale out = tune::Scale::linear;
  const bool has_zero = values.front() == 0 && values.size() > 2;
  if (values.front() > 0 || has_zero) {
    const double step = has_zero ? values[1] / 10 : 0;
    const double here = uneven([&](double v) { return std::log(std::max(v, step)); });
    if (here < best) {
      out = tune::Scale::log;
      best = here;
    }
  }
  if (values.front() >= 0 && values.back() < 1 &&
      uneven([](double v) { return -std::log1p(-v); }) < best)
    out = tune::Scale::log_to_one;
  return out;
}

// A dimension for what a key holds in the runs, and the value of each run in it; nothing where all
// are alike or nearly all are different texts.
struct Column {
  tune::Dimension dimension;
  std::vector<double> values;
};
std::optional<Column> column_of(const std::string& name, const std::vector<const Run*>& runs) {
  std::vector<std::string> texts;
  std::vector<double> numbers;
  for (const Run* run : runs) {
    const auto found = run->settings.find(name);
    const bool is_there = found != run->settings.end();
    texts.push_back(is_there ? dump_json(*found) : "null");
    if (is_there && found->is_number()) numbers.push_back(found->get<double>());
  }
  const std::set<std::string> different(texts.begin(), texts.end());
  if (different.size() < 2) return std::nullopt;
  Column out;
  out.dimension.name = name;
  const size_t missing = static_cast<size_t>(std::count(texts.begin(), texts.end(), "null"));
  if (numbers.size() + missing < runs.size()) {
    if (different.size() > 64) return std::nullopt;
    out.dimension.kind = tune::Kind::choice;
    out.dimension.choices.assign(different.begin(), different.end());
    for (const std::string& t : texts)
      out.values.push_back(
          static_cast<double>(std::distance(different.begin(), different.find(t))));
    return out;
  }
  std::sort(numbers.begin(), numbers.end());
  double low = numbers.front(), high = numbers.back(), middle = numbers[numbers.size() / 2];
  if (!(high > low)) return std::nullopt;
  out.dimension.scale = scale_of(numbers);
  if (out.dimension.scale == tune::Scale::log && low == 0) {
    // Beside options that go over orders of magnitude, 0 is one step below the least.
    low = *std::upper_bound(numbers.begin(), numbers.end(), 0.0) / 10;
  }
  out.dimension.low = low;
  out.dimension.high = high;
  for (const Run* run : runs) {
    const auto found = run->settings.find(name);
    const double v = found == run->settings.end() ? middle : found->get<double>();
    out.values.push_back(std::clamp(v, low, high));
  }
  return out;
}

tune::Space space_of(const std::vector<const Run*>& runs) {
  std::set<std::string> names;
  for (const Run* run : runs)
    for (const auto& [name, value] : run->settings.items()) names.insert(name);
  std::vector<tune::Dimension> dimensions;
  std::vector<tune::Setting> settings(runs.size());
  for (const std::string& name : names) {
    std::optional<Column> column = column_of(name, runs);
    if (!column) continue;
    dimensions.push_back(std::move(column->dimension));
    for (size_t i = 0; i < runs.size(); ++i) settings[i].push_back(column->values[i]);
  }
  if (dimensions.empty()) {  // the runs are known by their numbers alone
    dimensions.push_back(
        {"run", tune::Kind::integer, tune::Scale::linear, 0, static_cast<double>(runs.size() - 1)});
    for (size_t i = 0; i < runs.size(); ++i) settings[i].push_back(static_cast<double>(i));
  }
  return tune::Space(std::move(dimensions)).only(std::move(settings));
}

// Values that are lower-is-better, without gaps; empty where nothing was measured.
std::vector<double> cleaned(std::vector<double> curve, bool negate) {
  size_t last = curve.size();
  while (last > 0 && !std::isfinite(curve[last - 1])) --last;
  const size_t measured = last;
  if (measured == 0) return {};
  size_t first = 0;
  while (!std::isfinite(curve[first])) ++first;
  double held = curve[first];
  for (size_t i = 0; i < measured; ++i) {
    if (std::isfinite(curve[i])) held = curve[i];
    curve[i] = negate ? -held : held;
  }
  curve.resize(std::min(curve.size(), measured + 1));  // one NaN says that it diverged
  return curve;
}

std::optional<Task> task_of(const std::string& name, const std::vector<Run>& all,
                            const Metric& metric, const std::string& source) {
  std::set<std::string> names;
  for (const Run& run : all)
    for (const auto& [key, curve] : run.series) names.insert(key);
  if (names.empty()) return std::nullopt;
  std::string chosen = metric.name;
  if (chosen.empty()) {
    for (const std::string& n : names)
      if (chosen.empty() || rank_of(n) > rank_of(chosen)) chosen = n;
  } else if (!names.contains(chosen)) {
    fail_unknown_name(fmt::format("{}: task \"{}\": metric", source, to_utf8(name)), chosen,
                      std::vector<std::string>(names.begin(), names.end()));
  }
  const int direction = metric.direction == "max"   ? 1
                        : metric.direction == "min" ? -1
                                                    : direction_of(chosen);
  if (chosen.empty() || direction == 0)
    fail(ErrorCode::invalid_argument,
         "{}: task \"{}\": the name of the metric \"{}\" does not say whether higher is better; "
         "give --metric {}:max or :min",
         source, to_utf8(name), to_utf8(chosen), to_utf8(chosen));
  std::vector<const Run*> runs;
  std::vector<std::vector<double>> curves;
  for (const Run& run : all) {
    const auto found = run.series.find(chosen);
    if (found == run.series.end()) continue;
    std::vector<double> curve = cleaned(found->second, direction > 0);
    // Nothing but null: it diverged at once, if the other measures say so, too.
    if (curve.empty()) {
      bool was_measured = false;
      for (const auto& [key, values] : run.series)
        was_measured |= direction_of(key) != 0 && !cleaned(values, false).empty();
      if (was_measured) continue;
      curve.assign(1, std::numeric_limits<double>::quiet_NaN());
    }
    runs.push_back(&run);
    curves.push_back(std::move(curve));
  }
  if (runs.size() < 2) return std::nullopt;
  Task task{name, chosen, direction > 0, space_of(runs), std::move(curves)};
  if (!std::isfinite(task.best())) return std::nullopt;
  return task;
}

}  // namespace

size_t Task::length() const {
  size_t most = 0;
  for (const auto& c : curves) most = std::max(most, c.size());
  return most;
}

double Task::best_of(size_t run) const {
  double best = std::numeric_limits<double>::infinity();
  for (const double v : curves[run])
    if (std::isfinite(v)) best = std::min(best, v);
  return best;
}

double Task::best() const {
  double best = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < curves.size(); ++i) best = std::min(best, best_of(i));
  return best;
}

double Task::spread() const {
  std::vector<double> all;
  for (size_t i = 0; i < curves.size(); ++i)
    if (std::isfinite(best_of(i))) all.push_back(best_of(i));
  std::sort(all.begin(), all.end());
  const double spread = all[all.size() / 2] - all.front();
  if (spread > 0) return spread;
  return all.back() > all.front() ? all.back() - all.front() : 1;
}

Metric parse_metric(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return {text, ""};
  Metric out{text.substr(0, colon), text.substr(colon + 1)};
  if (out.direction != "max" && out.direction != "min")
    fail_unknown_name("direction of the metric", out.direction,
                      std::vector<std::string>{"max", "min"});
  return out;
}

std::vector<Task> parse_tasks(std::string_view text, const std::string& source,
                              const Metric& metric, const std::string& only) {
  std::map<std::string, std::vector<Run>> by_task;
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", source, number);
    Run run;
    const std::string task =
        read_run(parse_json(line, where, ErrorCode::invalid_argument), where, run);
    if (task.find(only) != std::string::npos) by_task[task].push_back(std::move(run));
  }
  std::vector<Task> out;
  for (const auto& [name, runs] : by_task)
    if (auto task = task_of(name, runs, metric, source)) out.push_back(std::move(*task));
  if (out.empty())
    fail(ErrorCode::invalid_argument, "{}: it has no task{} with two runs that were measured",
         source, only.empty() ? "" : " named like \"" + only + "\"");
  return out;
}

std::vector<Task> read_tasks(const fs::path& file, const Metric& metric, const std::string& only) {
  std::string text = read_file(file);
  if (file.extension() == ".zst") text = unpacked(text, file.string());
  return parse_tasks(text, file.string(), metric, only);
}

}  // namespace ductile::replay
