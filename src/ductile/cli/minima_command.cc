// The sharpness of the minimum that a run found; the worker, which links torch, computes.
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/trained_impl.h"
#include "ductile/page/numbers.h"
#include "ductile/page/progress_bar.h"
#include "ductile/page/terminal.h"
#include "ductile/run/minima.h"
#include "ductile/run/report.h"

namespace ductile::cli {
namespace {

using nlohmann::json;
using page::as_number;
using page::with_thousands;

using Rows = std::vector<std::vector<std::string>>;

void add_hessian(Rows& rows, const json& figures) {
  const auto found = figures.find("hessian");
  if (found == figures.end()) return;
  const auto text = [&](const char* key) { return number_text(found->at(key), as_number); };
  rows.push_back({"largest eigenvalue",
                  fmt::format("{}, residual {} after {}{}", text("largest"), text("residual"),
                              page::plural(found->at("products").get<double>(), "product"),
                              found->at("converged") == true ? "" : "; not converged")});
  rows.push_back({"  check", fmt::format("{}, residual {}, with half the step", text("check"),
                                         text("check_residual"))});
  rows.push_back({"smallest found",
                  fmt::format("{}, residual {}", text("smallest"), text("smallest_residual"))});
}

void add_cost(Rows& rows, const json& cost) {
  rows.push_back({"cost", fmt::format("{} losses, {} gradients, {} ({} of core time)",
                                      with_thousands(cost.at("losses").get<double>()),
                                      with_thousands(cost.at("gradients").get<double>()),
                                      page::as_duration(cost.at("wall_seconds").get<double>()),
                                      page::as_duration(cost.at("core_seconds").get<double>()))});
}

void print_figures(Console& console, const json& figures, const run::RunFolder& folder) {
  Rows rows = {{"step", dump_json(figures.at("step"))},
               {"samples", fmt::format("{} of {} of the training set",
                                       with_thousands(figures.at("samples").get<double>()),
                                       with_thousands(figures.at("train_size").get<double>()))},
               {"training loss", number_text(figures.at("loss"), as_number)},
               {"gradient's norm", number_text(figures.at("gradient_norm"), as_number)}};
  for (const json& one : figures.at("sharpness")) {
    rows.push_back({"sharpness " + dump_json(one.at("epsilon")),
                    fmt::format("{} %: the loss rises to {} (half of the steps: {} %)",
                                number_text(one.at("value"), as_number),
                                number_text(one.at("loss"), as_number),
                                number_text(one.at("halfway"), as_number))});
  }
  add_hessian(rows, figures);
  add_cost(rows, figures.at("cost"));
  rows.push_back({"report", folder.report_file().string()});
  console.print("{}", page::table(rows));
}

// The run keeps the figures for its report. What cannot be written is a warning: they are printed.
void keep(Console& console, const run::RunFolder& folder, const json& figures) {
  try {
    run::append_minimum(folder, figures);
  } catch (const Error& e) {
    console.say("the run does not keep these figures: {}", e.what());
    return;
  }
  if (const std::string trouble = run::leave_report(folder); !trouble.empty())
    console.say("{}", trouble);
}

}  // namespace

ExitCode minima(const TrainedCommand& command, Context& context) {
  Console& console = context.console;
  page::ProgressBar bar(STDERR_FILENO);
  minima::Options measure = command.measure;
  const json more = {{"minima", OptionSet(measure).to_json()}};
  const TrainedAnswer answer = ask_trained(command, "minima", more, [&](const json& row) {
    if (!console.err_terminal || console.verbosity < 0) return;
    const double share = row.at("share");
    bar.show({.parts = {{"minima"}, {page::as_percent(share)}}, .share = share});
  });
  bar.clear();
  if (!answer.figures) return kInterrupted;
  if (command.json) {
    json figures = *answer.figures;
    figures["run"] = answer.folder.path().string();
    console.print("{}\n", dump_json(figures, 2));
  } else {
    print_figures(console, *answer.figures, answer.folder);
  }
  tell_bad_samples(console, *answer.figures);
  keep(console, answer.folder, *answer.figures);
  return kDone;
}

}  // namespace ductile::cli
