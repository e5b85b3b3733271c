#include "ductile/train/stage_memory.h"

#include <cstdlib>
#include <fstream>
#include <span>
#include <string>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"

namespace ductile::train {
namespace {

int64_t floats_in(std::span<const parallel::FloatRange> ranges) {
  int64_t sum = 0;
  for (const parallel::FloatRange& r : ranges) sum += r.end - r.begin;
  return sum;
}

}  // namespace

Resident resident_now() {
  Resident out;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    const auto read = [&](const std::string& name, int64_t& bytes) {
      if (line.starts_with(name)) bytes = 1024 * std::atoll(line.c_str() + name.size());
    };
    read("RssAnon:", out.anonymous);
    read("RssShmem:", out.shared);
    read("VmHWM:", out.peak);
  }
  return out;
}

nlohmann::json memory_here(Replica& replica, const parallel::Exchange& exchange,
                           const Resident& before) {
  constexpr int64_t kFloat = sizeof(float);
  const auto own = static_cast<size_t>(exchange.rank());
  const parallel::ExchangeLayout& layout = exchange.layout();
  const parallel::ShardedUpdate& shards = replica.shards();
  JobState& state = replica.state();
  int64_t held = 0, gradients = 0;
  for (const parallel::BlockRange& blocks : shards.held()) {
    const parallel::FloatRange range = shards.floats(blocks);
    held += range.end - range.begin;
  }
  for (const comm::LeafRange& node : exchange.nodes()) gradients += floats_in(layout.filled(node));
  const int64_t halves = state.flat.half_weights().empty() ? 0 : held * 2;
  const Resident now = resident_now();
  return {{"ranks", {layout.cut[own], layout.cut[own + 1]}},
          {"weights", held * kFloat + halves},
          {"averages", state.average.span().empty() ? 0 : held * kFloat},
          {"optimizer", static_cast<int64_t>(state.optimizer->state_bytes())},
          {"gradients", gradients * kFloat},
          {"sum", floats_in(shards.needed_of(layout)) * kFloat},
          {"resident", now.anonymous},
          {"resident_before", before.anonymous},
          {"resident_shared", now.shared},
          {"resident_peak", now.peak}};
}

std::optional<nlohmann::json> gather_memory(parallel::Exchange& exchange,
                                            const nlohmann::json& own) {
  if (exchange.rank() != 0) {
    parallel::send_text(exchange, 0, dump_json(own));
    return std::nullopt;
  }
  nlohmann::json all = nlohmann::json::array({own});
  for (int r = 1; r < exchange.layout().num_workers(); ++r) {
    all.push_back(
        parse_json(parallel::receive_text(exchange, r), "a worker's memory", ErrorCode::data_loss));
  }
  return all;
}

}  // namespace ductile::train
