#include "ductile/ckpt/inspect.h"

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/digest.h"

namespace ductile::ckpt {

using Json = nlohmann::ordered_json;

Checkpoint open_checkpoint(const fs::path& folder, std::optional<int64_t> step,
                           std::vector<std::string>& refused) {
  if (step) return Checkpoint::open(folder, *step);
  LatestResult latest = open_latest(folder);
  refused = latest.refused;
  if (latest.checkpoint) return *latest.checkpoint;
  if (refused.empty())
    fail(ErrorCode::not_found, "{}: holds no usable checkpoint", folder.string());
  fail(ErrorCode::data_loss, "{}: holds no usable checkpoint; {}", folder.string(), refused[0]);
}

Json to_json(const std::vector<CheckpointSummary>& found) {
  Json rows = Json::array();
  for (const CheckpointSummary& c : found) {
    Json row = {{"step", c.step},
                {"bytes", c.total_bytes},
                {"tensors", c.num_tensors},
                {"chunks", c.num_chunks}};
    if (!c.error.empty()) row["error"] = c.error;
    rows.push_back(row);
  }
  return rows;
}

Json to_json(const std::vector<TensorInfo>& tensors) {
  Json rows = Json::array();
  for (const TensorInfo& t : tensors) {
    rows.push_back({{"name", t.name},
                    {"dtype", to_string(t.dtype)},
                    {"shape", t.shape},
                    {"bytes", t.num_bytes}});
  }
  return rows;
}

Json to_json(const Checkpoint& checkpoint) {
  return {{"step", checkpoint.step()},
          {"digest", state_digest(checkpoint)},
          {"bytes", checkpoint.total_bytes()},
          {"tensors", to_json(checkpoint.tensors())},
          {"state", checkpoint.state()}};
}

Json to_json(const VerifyResult& result) {
  return {{"ok", result.ok()},           {"good", result.good},
          {"refused", result.refused},   {"chunks", result.num_chunks},
          {"bytes", result.chunk_bytes}, {"unused_chunks", result.unused_chunks}};
}

}  // namespace ductile::ckpt
