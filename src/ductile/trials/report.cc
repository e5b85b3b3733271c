#include "ductile/trials/report.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/page/html.h"
#include "ductile/page/numbers.h"
#include "ductile/trials/session.h"

namespace ductile::trials {
namespace {

using Json = nlohmann::json;
using page::as_duration;
using page::as_number;
using page::Cell;

constexpr size_t kNamedCurves = 8;  // of the best trials; more colours cannot be told apart
constexpr size_t kFaintCurves = 300;
constexpr size_t kNamedPoints = 400, kFaintPoints = 40;

std::string metric_text(const Session& session, double value) {
  return page::as_metric(session.tuning().setup.metric, value);
}

// The best one first, then the others with a value by what they are worth, then those without, and
// last those that diverged.
std::vector<int64_t> ranked(const Session& session) {
  std::vector<int64_t> out;
  for (size_t i = 0; i < session.trials().size(); ++i) out.push_back(static_cast<int64_t>(i));
  const int64_t best = session.best();
  const auto key = [&](int64_t trial) {
    const auto value = session.value_of(trial);
    return std::tuple(trial != best,
                      session.trials()[static_cast<size_t>(trial)].status == "diverged",
                      value ? session.badness(*value) : INFINITY);
  };
  std::ranges::stable_sort(out, {}, key);
  return out;
}

std::string tiles(const Session& session) {
  std::vector<page::Tile> tiles;
  const int64_t best = session.best();
  if (best >= 0) {
    tiles.push_back(
        {"Best " + session.tuning().setup.metric, metric_text(session, *session.value_of(best)),
         fmt::format("trial {}: {}", best,
                     fmt::join(shown(session.tuning().space,
                                     session.trials()[static_cast<size_t>(best)].setting),
                               ", ")),
         true});
  }
  tiles.push_back(
      {"Trials", page::with_thousands(static_cast<double>(session.trials().size())),
       session.state_of_search().empty() ? "the search goes on" : session.state_of_search()});
  const std::string budget =
      session.tuning().setup.finish
          ? fmt::format("a budget of {:g} for the search, and the rest of the best trial's run",
                        session.budget())
          : fmt::format("of a budget of {:g}", session.budget());
  tiles.push_back({"Epochs", as_number(session.epochs_spent()),
                   fmt::format("{}; a full run has {}", budget, session.job().train.epochs)});
  tiles.push_back({"Time", as_duration(session.wall_seconds()), "of tuning"});
  tiles.push_back({"Core time", as_duration(session.core_seconds()), "of all trials"});
  return page::tiles(tiles);
}

std::string table(const Session& session, const std::vector<int64_t>& order) {
  std::vector<page::HtmlTable::Column> columns = {{"Trial", true}};
  for (const tune::Dimension& d : session.tuning().space.dimensions())
    columns.push_back({d.name, true});
  columns.insert(columns.end(), {{"Epochs", true},
                                 {session.tuning().setup.metric, true},
                                 {"State"},
                                 {"Why"},
                                 {"Core time", true}});
  page::HtmlTable out(columns, "trials");
  for (const int64_t trial : order) {
    const TrialRecord& t = session.trials()[static_cast<size_t>(trial)];
    std::vector<Cell> row = {std::to_string(trial)};
    const Json values = session.tuning().space.values(t.setting);
    for (const tune::Dimension& d : session.tuning().space.dimensions()) {
      const Json& v = values.at(d.name);
      row.emplace_back(v.is_number_float() ? page::as_setting(v.get<double>())
                       : v.is_string()     ? v.get<std::string>()
                                           : dump_json(v));
    }
    const auto value = session.value_of(trial);
    const bool is_best = trial == session.best();
    row.insert(row.end(), {as_number(t.seen.empty() ? 0 : t.seen.back().budget),
                           value ? metric_text(session, *value) : "",
                           Cell(is_best ? t.status + ", best" : t.status).with_tone("state"),
                           t.reason, as_duration(t.core_seconds)});
    const bool is_bad = t.status == "diverged" || t.status == "refused";
    out.row(row, is_best ? "best" : is_bad ? "bad" : "");
  }
  return out.html();
}

// What is finite of a trial's values, evenly thinned; the last one stays.
std::vector<tune::Observation> points_of(const TrialRecord& trial, size_t most) {
  std::vector<tune::Observation> finite;
  for (const tune::Observation& o : trial.seen)
    if (std::isfinite(o.value)) finite.push_back(o);
  const size_t each = (finite.size() + most - 1) / most;
  std::vector<tune::Observation> out;
  for (size_t i = 0; i < finite.size(); ++i)
    if ((finite.size() - 1 - i) % each == 0) out.push_back(finite[i]);
  return out;
}

// What a faint curve of a loss is drawn at, at most: one that all but diverged would flatten the
// others.
double ceiling_of(const std::vector<double>& named) {
  if (named.empty()) return INFINITY;
  const auto [least, most] = std::ranges::minmax(named);
  return most + std::max(most - least, 0.1 * std::abs(most));
}

Json curve_json(int64_t trial, const std::vector<tune::Observation>& points, double ceiling) {
  Json x = Json::array(), y = Json::array();
  for (const tune::Observation& o : points) {
    x.push_back(o.budget);
    y.push_back(std::min(o.value, ceiling));
  }
  return {{"name", fmt::format("trial {}", trial)}, {"x", x}, {"y", y}};
}

std::string curves_section(const Json& curves) {
  size_t named = 0;
  for (const Json& curve : curves) named += curve.contains("faint") ? 0U : 1U;
  std::string note;
  if (const size_t faint = curves.size() - named; faint > 0) {
    const std::string best =
        named == 0   ? "No trial that did not diverge has values yet; those that did are"
        : named == 1 ? "The best trial is in colour, the others are"
                     : fmt::format("The {} best trials are in colour, the others are", named);
    note =
        fmt::format("<p class=\"muted\">{} faint ({}); pointing at a curve names it.{}</p>\n", best,
                    faint, faint == kFaintCurves ? " What is not drawn is in the table." : "");
  }
  return "<section><div class=\"bar\"><h2>Curves of the trials</h2></div>\n"
         "<div id=\"panels\" class=\"panels\"></div>\n" +
         note + "</section>\n";
}

}  // namespace

Json curves_of(const std::vector<TrialRecord>& trials, const std::vector<int64_t>& order,
               std::string_view metric) {
  Json named = Json::array(), faint = Json::array();
  std::vector<double> values;  // of the named ones
  double ceiling = INFINITY;
  for (const int64_t number : order) {
    const TrialRecord& trial = trials[static_cast<size_t>(number)];
    const bool has_name = named.size() < kNamedCurves && trial.status != "diverged";
    const auto points = points_of(trial, has_name ? kNamedPoints : kFaintPoints);
    if (points.empty()) continue;
    if (has_name) {
      for (const tune::Observation& o : points) values.push_back(o.value);
      named.push_back(curve_json(number, points, INFINITY));
    } else if (faint.size() < kFaintCurves) {
      // The best come first, so that all that have a name are known by now.
      if (faint.empty() && metric != "accuracy") ceiling = ceiling_of(values);
      faint.push_back(curve_json(number, points, ceiling));
      faint.back()["faint"] = true;
    }
  }
  for (Json& curve : faint) named.push_back(std::move(curve));
  return named;
}

std::string report_html(const Session& session) {
  const std::vector<int64_t> order = ranked(session);
  page::Page page;
  page.kind = "Ductile tuning";
  page.title = session.job().name;
  page.status = session.state_of_search().empty() ? "Not finished" : "Done";
  page.tone = session.state_of_search().empty() ? "notice" : "good";
  const Setup& setup = session.tuning().setup;
  page.about = {fmt::format("policy {} with searcher {}, seed {}", page::escape_html(setup.policy),
                            page::escape_html(setup.searcher), setup.seed)};
  page.body = tiles(session);
  const Json curves = curves_of(session.trials(), order, setup.metric);
  page.body += curves_section(curves);
  page.body += page::section("Trials", table(session, order));
  page.footer = "Each trial is a run in the folder trials, with a report of its own.";
  page.data = dump_json(
      Json{{"curves", curves}, {"metric", setup.metric}, {"epochs", session.job().train.epochs}});
  page.scripts = {kTuneReportJs};
  return page::to_html(page);
}

void leave_report(const Session& session) {
  try {
    write_file_atomic(session.folder() / "report.html", report_html(session));
  } catch (const Error&) {
  }
}

}  // namespace ductile::trials
