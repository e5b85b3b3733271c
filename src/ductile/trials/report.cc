#include "ductile/trials/report.h"

#include <algorithm>
#include <cmath>
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

constexpr size_t kCurves = 8;  // of the best trials; more cannot be told apart

std::string metric_text(const Session& session, double value) {
  return page::as_metric(session.tuning().setup.metric, value);
}

// Trials with a value, the best first, then the others, and last those that diverged.
std::vector<int64_t> ranked(const Session& session) {
  std::vector<int64_t> out;
  for (size_t i = 0; i < session.trials().size(); ++i) out.push_back(static_cast<int64_t>(i));
  const auto key = [&](int64_t trial) {
    const auto value = session.best_value(trial);
    return std::pair(session.trials()[static_cast<size_t>(trial)].status == "diverged",
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
        {"Best " + session.tuning().setup.metric, metric_text(session, *session.best_value(best)),
         fmt::format("trial {}: {}", best,
                     fmt::join(assignments(session.tuning().space,
                                           session.trials()[static_cast<size_t>(best)].setting),
                               ", ")),
         true});
  }
  tiles.push_back(
      {"Trials", page::with_thousands(static_cast<double>(session.trials().size())),
       session.state_of_search().empty() ? "the search goes on" : session.state_of_search()});
  tiles.push_back({"Epochs", as_number(session.epochs_spent()),
                   fmt::format("of a budget of {:g}; a full run has {}", session.budget(),
                               session.job().train.epochs)});
  tiles.push_back({"Time", as_duration(session.wall_seconds()), "of tuning"});
  tiles.push_back({"Core time", as_duration(session.core_seconds()), "of all trials"});
  return page::tiles(tiles);
}

std::string table(const Session& session, const std::vector<int64_t>& order) {
  std::vector<page::HtmlTable::Column> columns = {{"Trial", true}};
  for (const tune::Dimension& d : session.tuning().space.dimensions())
    columns.push_back({d.name, true});
  columns.insert(
      columns.end(),
      {{"Epochs", true}, {"Best", true}, {"Last", true}, {"State"}, {"Why"}, {"Core time", true}});
  page::HtmlTable out(columns, "trials");
  for (const int64_t trial : order) {
    const TrialRecord& t = session.trials()[static_cast<size_t>(trial)];
    std::vector<Cell> row = {std::to_string(trial)};
    const Json values = session.tuning().space.values(t.setting);
    for (const tune::Dimension& d : session.tuning().space.dimensions()) {
      const Json& v = values.at(d.name);
      row.emplace_back(v.is_number_float() ? as_number(v.get<double>())
                       : v.is_string()     ? v.get<std::string>()
                                           : dump_json(v));
    }
    const auto best = session.best_value(trial);
    row.insert(row.end(), {as_number(t.seen.empty() ? 0 : t.seen.back().budget),
                           best ? metric_text(session, *best) : "",
                           t.seen.empty() || !std::isfinite(t.seen.back().value)
                               ? ""
                               : metric_text(session, t.seen.back().value),
                           t.status, t.reason, as_duration(t.core_seconds)});
    out.row(row, trial == session.best() ? "best" : t.status == "diverged" ? "bad" : "");
  }
  return out.html();
}

Json data(const Session& session, const std::vector<int64_t>& order) {
  Json curves = Json::array();
  for (const int64_t trial : order) {
    if (curves.size() == kCurves) break;
    Json x = Json::array(), y = Json::array();
    for (const tune::Observation& o : session.trials()[static_cast<size_t>(trial)].seen) {
      if (!std::isfinite(o.value)) continue;
      x.push_back(o.budget);
      y.push_back(o.value);
    }
    if (!x.empty())
      curves.push_back({{"name", fmt::format("trial {}", trial)}, {"x", x}, {"y", y}});
  }
  return {{"curves", curves},
          {"metric", session.tuning().setup.metric},
          {"epochs", session.job().train.epochs}};
}

}  // namespace

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
  page.body +=
      "<section><div class=\"bar\"><h2>Curves of the best trials</h2></div>\n"
      "<div id=\"panels\" class=\"panels\"></div></section>\n";
  page.body += page::section("Trials", table(session, order));
  page.footer = "Each trial is a run in the folder trials, with a report of its own.";
  page.data = dump_json(data(session, order));
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
