// What the workers of a job by stages had in memory, beside what its plan counted.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/page/numbers.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/report_impl.h"
#include "ductile/run/trace.h"

namespace ductile::run::report {
namespace {

// Of one worker, in bytes. The file may be anybody's: what it does not say is not a number.
struct Told {
  int64_t first_rank = 0,
          last_rank = 0;  // of its virtual ranks; the second is below where it has none
  double weights = 0, optimizer = 0, gradients = 0;
  double parts = 0;  // all that it holds by sizes
  double resident = 0, before = 0, shared = 0;
};

Told told_by(const nlohmann::json& member) {
  Told out;
  if (const auto ranks = member.find("ranks");
      ranks != member.end() && ranks->is_array() && ranks->size() == 2 &&
      (*ranks)[0].is_number_integer() && (*ranks)[1].is_number_integer()) {
    constexpr int64_t kMost = 65'536;
    out.first_rank = std::clamp<int64_t>((*ranks)[0].get<int64_t>(), 0, kMost);
    out.last_rank = std::clamp<int64_t>((*ranks)[1].get<int64_t>(), 0, kMost) - 1;
  }
  out.weights = number_at(member, "weights", 0) + number_at(member, "averages", 0);
  out.optimizer = number_at(member, "optimizer", 0);
  out.gradients = number_at(member, "gradients", 0) + number_at(member, "sum", 0);
  out.parts = out.weights + out.optimizer + out.gradients;
  out.resident = number_at(member, "resident");
  out.before = number_at(member, "resident_before");
  out.shared = number_at(member, "resident_shared");
  return out;
}

std::vector<Told> told_in(const nlohmann::json& event) {
  std::vector<Told> out;
  const auto members = event.find("members");
  if (members == event.end() || !members->is_array()) return out;
  for (const nlohmann::json& member : *members) out.push_back(told_by(member));
  return out;
}

// How many virtual ranks of a pipeline each stage of the plan is: its parts, and where numbers of
// replicas differ its replicas.
std::vector<size_t> ranks_by_stage(const nlohmann::json& report, size_t stages) {
  constexpr int64_t kMost = 65'536;
  std::vector<size_t> out(stages, 1);
  try {
    std::vector<int64_t> tensor, replicas;
    for (const nlohmann::json& stage : report.at("plan").at("stages")) {
      tensor.push_back(std::clamp<int64_t>(stage.value("tensor", int64_t{1}), 1, kMost));
      replicas.push_back(std::clamp<int64_t>(stage.value("replicas", int64_t{1}), 1, kMost));
    }
    const bool differ =
        std::ranges::adjacent_find(replicas, std::ranges::not_equal_to()) != replicas.end();
    for (size_t s = 0; s < std::min(stages, tensor.size()); ++s)
      out[s] = static_cast<size_t>(differ ? replicas[s] : tensor[s]);
  } catch (const std::exception&) {  // it does not say so
    out.assign(stages, 1);
  }
  return out;
}

// Bytes of one replica, by virtual rank: of each part of each stage. Nothing where the run has no
// plan that says it.
std::vector<double> planned_by_rank(const RunFolder& folder) {
  std::vector<double> out;
  try {
    const nlohmann::json plan =
        parse_json(read_text(plan_file(folder)), plan_file(folder).string(), ErrorCode::data_loss);
    const nlohmann::json& stages = plan.at("evaluation").at("stages");
    const std::vector<size_t> ranks = ranks_by_stage(plan, stages.size());
    size_t number = 0;
    for (const nlohmann::json& stage : stages)
      out.insert(out.end(), ranks.at(number++), number_at(stage, "peak_memory"));
  } catch (const std::exception&) {  // there is none
    out.clear();
  }
  return out;
}

std::string span_text(const std::vector<Told>& all, double Told::*field) {
  const auto [least, most] = std::ranges::minmax(all, {}, field);
  const std::string low = page::as_bytes(least.*field), high = page::as_bytes(most.*field);
  return low == high ? low : low + " to " + high;
}

}  // namespace

std::string memory_text(const nlohmann::json& event) {
  const std::vector<Told> all = told_in(event);
  if (all.empty()) return "Memory of no worker";
  return fmt::format("Memory of {} worker{}: by their parts of the state {} each, resident {}",
                     all.size(), all.size() == 1 ? "" : "s", span_text(all, &Told::parts),
                     span_text(all, &Told::resident));
}

std::string memory_html(const History& history, const RunFolder& folder) {
  std::vector<Told> all;
  for (const nlohmann::json& event : history.events) {
    if (text_at(event, "kind") == "memory") all = told_in(event);
  }
  if (all.empty()) return {};
  const std::vector<double> planned = planned_by_rank(folder);
  std::vector<page::HtmlTable::Column> columns = {
      {"Worker", true},    {"Virtual ranks", true}, {"Weights", true}, {"Optimiser", true},
      {"Gradients", true}, {"Resident", true},      {"before", true},  {"shared", true}};
  if (!planned.empty()) columns.push_back({"Plan, at most", true});
  page::HtmlTable table(columns);
  for (size_t w = 0; w < all.size(); ++w) {
    const Told& told = all[w];
    std::vector<page::Cell> cells = {std::to_string(w),
                                     told.last_rank < told.first_rank
                                         ? "none"
                                         : fmt::format("{} to {}", told.first_rank, told.last_rank),
                                     page::as_bytes(told.weights),
                                     page::as_bytes(told.optimizer),
                                     page::as_bytes(told.gradients),
                                     page::as_bytes(told.resident),
                                     page::as_bytes(told.before),
                                     page::as_bytes(told.shared)};
    if (!planned.empty()) {
      double sum = 0;
      for (int64_t v = told.first_rank; v <= told.last_rank; ++v)
        sum += planned[static_cast<size_t>(v) % planned.size()];
      cells.emplace_back(page::as_bytes(sum));
    }
    table.row(cells);
  }
  return "<p>After the first step of the last set of workers: the parts of the state that each "
         "holds "
         "(weights with averages, gradients with their sums), and what the system counts as its "
         "own "
         "memory, of which some was there before the job was made; the arenas that workers share "
         "come on top. The plan counts weights, the optimiser's state and what micro-batches save, "
         "at the worst moment of a step, and not the program.</p>\n" +
         table.html();
}

}  // namespace ductile::run::report
