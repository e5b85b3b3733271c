#include "ductile/train/stage_trace.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"

namespace ductile::train {
namespace {

constexpr int64_t kFirstTraced = 3;
constexpr std::array<const char*, 5> kKindNames = {"forward", "backward", "weights", "transfer",
                                                   "wait"};

// As members of one generation send it to each other: intervals are [kind, stage, micro-batch,
// begin, end], and memory is [stage, bytes].
nlohmann::json trace_json(const parallel::Trace& trace) {
  nlohmann::json intervals = nlohmann::json::array(), memory = nlohmann::json::array();
  for (const parallel::TraceInterval& i : trace.intervals)
    intervals.push_back({static_cast<int>(i.kind), i.stage, i.micro_batch, i.begin, i.end});
  for (const auto& [stage, bytes] : trace.memory) memory.push_back({stage, bytes});
  return {{"intervals", std::move(intervals)}, {"memory", std::move(memory)}};
}

parallel::Trace trace_from(const nlohmann::json& value) {
  parallel::Trace out;
  for (const nlohmann::json& i : value.at("intervals")) {
    const int kind = i.at(0);
    DUCTILE_CHECK(kind >= 0 && kind < static_cast<int>(kKindNames.size()), "kind {}", kind);
    out.intervals.push_back(
        {static_cast<parallel::TraceInterval::Kind>(kind), i.at(1), i.at(2), i.at(3), i.at(4)});
  }
  for (const nlohmann::json& m : value.at("memory")) {
    out.memory[m.at(0).get<int>()] = m.at(1).get<int64_t>();
  }
  return out;
}

}  // namespace

bool is_traced(const spec::JobOptions& job, int64_t step) {
  return spec::is_pipelined(job) && step >= kFirstTraced &&
         step < kFirstTraced + job.train.pipelined.trace_steps;
}

std::optional<run::StageTimeline> gather_trace(parallel::Exchange& exchange,
                                               const parallel::Trace& own, int64_t step) {
  if (exchange.rank() != 0) {
    parallel::send_text(exchange, 0, dump_json(trace_json(own)));
    return std::nullopt;
  }
  std::vector<parallel::Trace> all = {own};
  for (int r = 1; r < exchange.layout().num_workers(); ++r) {
    all.push_back(trace_from(parse_json(parallel::receive_text(exchange, r),
                                        "a worker's recorded step", ErrorCode::data_loss)));
  }
  int64_t first = INT64_MAX;
  for (const parallel::Trace& trace : all) {
    for (const parallel::TraceInterval& i : trace.intervals) first = std::min(first, i.begin);
  }
  constexpr double kNano = 1e-9;
  run::StageTimeline out;
  out.step = step;
  if (first != INT64_MAX) out.time = static_cast<double>(first) * kNano;
  for (size_t worker = 0; worker < all.size(); ++worker) {
    for (const auto& [stage, bytes] : all[worker].memory) {
      out.memory[stage] = static_cast<double>(bytes);
    }
    for (const parallel::TraceInterval& i : all[worker].intervals) {
      out.intervals.push_back({kKindNames[static_cast<size_t>(i.kind)], i.stage,
                               static_cast<int>(worker), i.micro_batch,
                               static_cast<double>(i.begin - first) * kNano,
                               static_cast<double>(i.end - first) * kNano});
    }
  }
  std::ranges::stable_sort(out.intervals, {}, &run::StageInterval::begin);
  return out;
}

}  // namespace ductile::train
