// What uses the trained model of a run; the worker, which links torch, computes.
#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/trained_impl.h"
#include "ductile/cli/trust.h"
#include "ductile/cli/worker_process.h"
#include "ductile/page/numbers.h"
#include "ductile/page/terminal.h"
#include "ductile/run/folder.h"

namespace ductile::cli {
namespace {

using nlohmann::json;

constexpr size_t kClassRows = 20;  // the worst ones; --json has all of them

std::string class_of(const json& one) {
  return one.contains("name") ? one.at("name").get<std::string>() : dump_json(one.at("class"));
}

// By class: the other one that its samples are most often taken for, and how often.
std::map<int64_t, std::pair<int64_t, int64_t>> taken_for(const json& confusion) {
  std::map<int64_t, std::pair<int64_t, int64_t>> out;
  for (const json& cell : confusion) {
    const auto from = cell.at("class").get<int64_t>(), to = cell.at("predicted").get<int64_t>();
    const auto count = cell.at("count").get<int64_t>();
    if (from != to && count > out[from].second) out[from] = {to, count};
  }
  return out;
}

void print_classes(Console& console, const json& figures) {
  const auto found = figures.find("classes");
  if (found == figures.end()) return;
  const auto others = taken_for(figures.at("confusion"));
  std::vector<json> classes;
  for (const json& c : *found) {
    if (c.at("samples") > 0) classes.push_back(c);
  }
  std::ranges::stable_sort(classes, {},
                           [](const json& c) { return c.at("accuracy").get<double>(); });
  std::vector<std::vector<std::string>> rows = {
      {"CLASS", "NAME", "SAMPLES", "RIGHT", "ACCURACY", "MOST OFTEN TAKEN FOR"}};
  for (size_t i = 0; i < std::min(classes.size(), kClassRows); ++i) {
    const json& c = classes[i];
    const auto other = others.find(c.at("class").get<int64_t>());
    std::string taken;
    if (other != others.end() && other->second.second > 0) {
      const auto& [label, count] = other->second;
      const json& of = found->at(static_cast<size_t>(label));
      taken = fmt::format("{} ({})", class_of(of), count);
    }
    rows.push_back({dump_json(c.at("class")), c.contains("name") ? class_of(c) : "",
                    page::with_thousands(c.at("samples").get<double>()),
                    page::with_thousands(c.at("correct").get<double>()),
                    page::as_percent(c.at("accuracy").get<double>()), taken});
  }
  console.print("\n{}", page::table(rows));
  if (classes.size() > kClassRows)
    console.print("These are the worst {} of {} classes; --json has all of them.\n", kClassRows,
                  classes.size());
}

std::string csv_text(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

std::string csv_number(const json& value) {
  return value.is_number() ? dump_json(value) : value.get<std::string>();
}

// A row, and before the first one the heads: a row says itself whether it has classes.
std::string csv_of(const json& row, bool first) {
  std::string heads = "index,sample",
              text = dump_json(row.at("index")) + "," + csv_text(row.at("sample"));
  if (const auto top = row.find("top"); top != row.end()) {
    for (size_t k = 0; k < top->size(); ++k) {
      const json& one = (*top)[k];
      const std::string number = k == 0 ? "" : fmt::format("_{}", k + 1);
      heads += fmt::format(",class{0},name{0},probability{0}", number);
      text += fmt::format(",{},{},{}", dump_json(one.at("class")),
                          one.contains("name") ? csv_text(one.at("name")) : "",
                          csv_number(one.at("probability")));
    }
  } else {
    heads += ",loss,perplexity";
    text += "," + csv_number(row.at("loss")) + "," + csv_number(row.at("perplexity"));
  }
  return (first ? heads + "\n" : "") + text + "\n";
}

}  // namespace

TrainedAnswer ask_trained(const TrainedCommand& command, const char* what, const json& more,
                          std::function<void(const json&)> on_row) {
  const run::RunFolder folder = run::RunFolder::open(command.run);
  if (!command.trust) require_trusted(folder.path());
  JobConfig config;
  config.read_saved(folder.job_file());
  json question = {{"what", what}, {"data", ""}, {"top", command.top}};
  if (command.data) question["data"] = fs::absolute(*command.data).string();
  if (command.checkpoint) question["checkpoint"] = *command.checkpoint;
  question.update(more);
  return {folder, ask_worker({.arguments = {"--run", folder.path().string(), "--ask",
                                            dump_json_exactly(question, "--data")},
                              .threads = config.job.train.threads,
                              .on_row = std::move(on_row)})};
}

void tell_bad_samples(Console& console, const json& figures) {
  const auto bad = figures.find("bad_samples");
  if (bad == figures.end()) return;
  console.say("left out what could not be read: {}",
              page::plural(bad->at("count").get<double>(), "sample"));
  for (const json& item : bad->at("items"))
    console.say("  {}: {}", item.at("where").get<std::string>(),
                item.at("what").get<std::string>());
}

std::string number_text(const json& value, std::string (*text)(double)) {
  return value.is_number() ? text(value.get<double>()) : value.get<std::string>();
}

ExitCode eval(const TrainedCommand& command, Context& context) {
  Console& console = context.console;
  const TrainedAnswer answer = ask_trained(command, "eval", json::object());
  if (!answer.figures) return kInterrupted;
  json figures = *answer.figures;
  if (command.json) {
    figures["run"] = answer.folder.path().string();
    console.print("{}\n", dump_json(figures, 2));
    return kDone;
  }
  std::vector<std::vector<std::string>> rows = {
      {"samples", page::with_thousands(figures.at("samples").get<double>())}};
  const auto add = [&](const char* name, const char* key, std::string (*text)(double)) {
    if (figures.contains(key)) rows.push_back({name, number_text(figures.at(key), text)});
  };
  add("accuracy", "accuracy", page::as_percent);  // a model of the user's may predict no class
  add("loss", "loss", page::as_number);
  add("perplexity", "perplexity", page::as_number);
  if (const auto worst = figures.find("worst_class"); worst != figures.end())
    rows.push_back(
        {"worst class", fmt::format("{} with {}", class_of(*worst),
                                    page::as_percent(worst->at("accuracy").get<double>()))});
  add("calibration error", "calibration_error", page::as_percent);
  add("Brier score", "brier", page::as_number);
  rows.push_back({"step", dump_json(figures.at("step"))});
  rows.push_back({"weights", figures.at("weights_digest").get<std::string>()});
  console.print("{}", page::table(rows));
  print_classes(console, figures);
  tell_bad_samples(console, figures);
  return kDone;
}

ExitCode predict(const TrainedCommand& command, Context& context) {
  Console& console = context.console;
  bool first = true;
  const json more = {{"skip_bad", command.skip_bad}};
  const TrainedAnswer answer = ask_trained(command, "predict", more, [&](const json& row) {
    if (command.csv) {
      console.print("{}", csv_of(row, std::exchange(first, false)));
    } else {
      console.print("{}\n", dump_json(row));
    }
  });
  if (!answer.figures) return kInterrupted;
  tell_bad_samples(console, *answer.figures);
  return kDone;
}

}  // namespace ductile::cli
