#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "comparison.h"
#include "ductile/base/json.h"
#include "ductile/page/html.h"
#include "ductile/page/numbers.h"

namespace ductile::replay {

extern const std::string_view kReplayJs;  // replay.js

namespace {

using Json = nlohmann::ordered_json;

double quantile(Regrets values, double q) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(q * static_cast<double>(values.size())))];
}

struct Half {
  std::string name;
  std::vector<size_t> tasks;
};
std::vector<Half> halves(const Comparison& c) {
  std::vector<size_t> all(c.tasks.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const size_t n = std::min(c.request.tuned, all.size());
  if (n == 0 || n == all.size()) return {{"all tasks", all}};
  const auto middle = all.begin() + static_cast<ptrdiff_t>(n);
  return {{"tasks that chose the settings", {all.begin(), middle}},
          {"tasks kept apart", {middle, all.end()}}};
}

// Every seed of these tasks together.
Regrets pooled(const MethodResult& r, size_t share, const std::vector<size_t>& tasks) {
  Regrets out;
  for (const size_t t : tasks)
    out.insert(out.end(), r.regrets[t][share].begin(), r.regrets[t][share].end());
  return out;
}

double mean_of(const Regrets& values) {
  double sum = 0;
  for (const double v : values) sum += std::min(v, 10.0);
  return sum / static_cast<double>(values.size());
}

// What is not among the tasks; begins with a space, or is empty.
std::string told_of_left_out(const Comparison& c) {
  if (c.left_out == 0) return "";
  return fmt::format(" {} task{} with fewer than {} runs {} left out.", c.left_out,
                     c.left_out == 1 ? "" : "s", c.request.least_runs,
                     c.left_out == 1 ? "is" : "are");
}

std::string percent(double share) { return fmt::format("{:g} %", 100 * share); }

Json number(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

}  // namespace

std::string to_json(const Comparison& c) {
  Json tasks = Json::array(), methods = Json::array(), summary = Json::array();
  for (size_t t = 0; t < c.tasks.size(); ++t) {
    const Task& task = c.tasks[t];
    tasks.push_back({{"task", task.name},
                     {"metric", task.metric},
                     {"higher_is_better", task.higher_is_better},
                     {"runs", task.curves.size()},
                     {"length", task.length()},
                     {"best", task.higher_is_better ? -task.best() : task.best()},
                     {"spread", task.spread()},
                     {"random_needs", c.needs[t]},
                     {"tuned_on", t < c.request.tuned}});
  }
  for (const MethodResult& r : c.results) {
    Json by_task = Json::array();
    for (size_t t = 0; t < c.tasks.size(); ++t) {
      Json at = Json::array();
      for (size_t s = 0; s < c.shares.size(); ++s) {
        Json seeds = Json::array();
        for (const double x : r.regrets[t][s]) seeds.push_back(number(x));
        at.push_back({{"share", c.shares[s]},
                      {"median", number(quantile(r.regrets[t][s], 0.5))},
                      {"lower_quartile", number(quantile(r.regrets[t][s], 0.25))},
                      {"upper_quartile", number(quantile(r.regrets[t][s], 0.75))},
                      {"regrets", std::move(seeds)}});
      }
      by_task.push_back({{"task", c.tasks[t].name}, {"at", std::move(at)}});
    }
    methods.push_back({{"method", r.method.name}, {"group", r.method.group}, {"tasks", by_task}});
  }
  for (const Half& half : halves(c)) {
    for (const std::string& group : c.groups()) {
      for (size_t s = 0; s < c.shares.size(); ++s) {
        const MethodResult& r = c.chosen(group, s);
        const Regrets all = pooled(r, s, half.tasks);
        Json row = {{"tasks", half.name},
                    {"group", group},
                    {"share", c.shares[s]},
                    {"method", r.method.name},
                    {"mean", mean_of(all)},
                    {"median", number(quantile(all, 0.5))},
                    {"lower_quartile", number(quantile(all, 0.25))},
                    {"upper_quartile", number(quantile(all, 0.75))}};
        if (c.has(c.request.ours) && group != c.request.ours)
          row["ours_wins"] = win_rate(c.chosen(c.request.ours, s), r, s, half.tasks);
        summary.push_back(std::move(row));
      }
    }
  }
  return dump_json(Json{{"file", fs::path(c.request.file).filename().string()},
                        {"seeds", c.request.seeds},
                        {"share_of_best", c.request.share},
                        {"least_runs", c.request.least_runs},
                        {"tasks", std::move(tasks)},
                        {"summary", std::move(summary)},
                        {"methods", std::move(methods)}},
                   1) +
         "\n";
}

std::string to_markdown(const Comparison& c) {
  std::string out = fmt::format(
      "{}, {} seeds a method and task. Regret: best value so far - best of all runs, in units of "
      "the "
      "median run's regret.\nRandom full runs need, to reach the best {} of the runs (units of "
      "budget):",
      fs::path(c.request.file).filename().string(), c.request.seeds, percent(c.request.share));
  for (size_t t = 0; t < c.tasks.size(); ++t)
    out += fmt::format("{} {} {}", t == 0 ? "" : ",", c.tasks[t].name, c.needs[t]);
  out += "." + told_of_left_out(c) + "\n";
  const bool has_ours = c.has(c.request.ours);
  for (const Half& half : halves(c)) {
    out +=
        fmt::format("\n## {}{} ({})\n\n| method |", static_cast<char>(std::toupper(half.name[0])),
                    half.name.substr(1), half.tasks.size());
    for (const double s : c.shares)
      out += fmt::format(" {}: median (quartiles), mean | {} wins | setting |", percent(s),
                         c.request.ours);
    out += "\n|---|";
    for (size_t s = 0; s < c.shares.size(); ++s) out += "---|---|---|";
    out += "\n";
    for (const std::string& group : c.groups()) {
      out += fmt::format("| {} |", group);
      for (size_t s = 0; s < c.shares.size(); ++s) {
        const MethodResult& r = c.chosen(group, s);
        const Regrets all = pooled(r, s, half.tasks);
        const std::string wins =
            has_ours && group != c.request.ours
                ? fmt::format("{:.0f} %",
                              100 * win_rate(c.chosen(c.request.ours, s), r, s, half.tasks))
                : "";
        std::string setting;
        for (const std::string& o : r.method.options)
          setting += (setting.empty() ? "" : " ") + o.substr(o.find('.') + 1);
        out += fmt::format(" {:.3f} ({:.3f} to {:.3f}), {:.3f} | {} | {} |", quantile(all, 0.5),
                           quantile(all, 0.25), quantile(all, 0.75), mean_of(all), wins, setting);
      }
      out += "\n";
    }
  }
  out += "\n## Median regret, each task\n\n| task |";
  for (const std::string& group : c.groups())
    for (const double s : c.shares) out += fmt::format(" {} {} |", group, percent(s));
  out += "\n|---|";
  for (size_t i = 0; i < c.groups().size() * c.shares.size(); ++i) out += "---|";
  out += "\n";
  for (size_t t = 0; t < c.tasks.size(); ++t) {
    out += fmt::format("| {} |", c.tasks[t].name);
    for (const std::string& group : c.groups())
      for (size_t s = 0; s < c.shares.size(); ++s)
        out += fmt::format(" {:.3f} |", quantile(c.chosen(group, s).regrets[t][s], 0.5));
    out += "\n";
  }
  return out;
}

std::string to_page(const Comparison& c) {
  Json tasks = Json::array();
  const size_t last = c.shares.size() - 1;
  for (size_t t = 0; t < c.tasks.size(); ++t) {
    Json series = Json::array();
    for (const std::string& group : c.groups()) {
      Json y = Json::array();
      for (const double v : c.chosen(group, last).curves[t]) y.push_back(number(v));
      series.push_back({{"name", group}, {"y", std::move(y)}});
    }
    tasks.push_back({{"name", c.tasks[t].name},
                     {"end", c.request.until * static_cast<double>(c.needs[t])},
                     {"series", std::move(series)}});
  }
  page::HtmlTable table([&] {
    std::vector<page::HtmlTable::Column> columns = {{"tasks"}, {"method"}};
    for (const double s : c.shares) {
      columns.push_back({percent(s) + ": median regret", true});
      columns.push_back({"quartiles", true});
      columns.push_back({c.request.ours + " wins", true});
    }
    return columns;
  }());
  for (const Half& half : halves(c)) {
    for (const std::string& group : c.groups()) {
      std::vector<page::Cell> cells = {half.name, group};
      for (size_t s = 0; s < c.shares.size(); ++s) {
        const MethodResult& r = c.chosen(group, s);
        const Regrets all = pooled(r, s, half.tasks);
        cells.push_back(fmt::format("{:.3f}", quantile(all, 0.5)));
        cells.push_back(fmt::format("{:.3f} to {:.3f}", quantile(all, 0.25), quantile(all, 0.75)));
        cells.push_back(
            c.has(c.request.ours) && group != c.request.ours
                ? page::as_percent(win_rate(c.chosen(c.request.ours, s), r, s, half.tasks))
                : std::string());
      }
      table.row(cells);
    }
  }
  page::Page out;
  out.title = "Tuning methods on recorded curves";
  out.kind = "Ductile replay";
  out.about = {page::escape_html(
      fmt::format("{}, {} seeds. Regret is how far the best value so far is from the best of all "
                  "runs, in units of the median run's. Budgets are shares of what random full runs "
                  "need to reach the best {} of the runs.{}",
                  fs::path(c.request.file).filename().string(), c.request.seeds,
                  percent(c.request.share), told_of_left_out(c)))};
  out.body = page::section("Regret against spent budget, median of the seeds",
                           "<div id=\"curves\"></div>", false) +
             page::section("At shares of the budget", table.html());
  out.data = dump_json(Json{{"tasks", std::move(tasks)}});
  out.scripts = {kReplayJs};
  return page::to_html(out);
}

}  // namespace ductile::replay
