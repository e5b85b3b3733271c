#include "ductile/train/snapshot.h"

#include <algorithm>
#include <array>
#include <map>

#include <nlohmann/json.hpp>

#include "ductile/base/error.h"

namespace ductile::train {
namespace {

// Keys (or sections) that may differ between a run and its continuation.
constexpr std::array kFree = std::to_array<std::string_view>(
    {"/name", "/runs", "/loader/threads", "/loader/prefetch", "/loader/cache_mb", "/checkpoint",
     "/target", "/train/log_every", "/train/shard_optimizer", "/train/shard_copies"});

bool is_free(std::string_view path) {
  return std::any_of(kFree.begin(), kFree.end(), [&](std::string_view free) {
    return path == free || (path.starts_with(free) && path[free.size()] == '/');
  });
}

std::string describe_shape(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace

Snapshot::Snapshot(FlatModel& model, optim::Optimizer& optimizer, std::span<float> average,
                   std::span<float> buffer_average) {
  const bool averaged = !average.empty();
  if (averaged) deployed_ = "average/";
  std::vector<optim::Optimizer::StateBuffer> states;
  if (optimizer.holds_all()) states = optimizer.state();
  for (const FlatModel::Entry& p : model.parameters()) {
    add("model/" + p.name, p.shape, model.weights().subspan(p.offset, p.size));
    for (const optim::Optimizer::StateBuffer& s : states) {
      add(fmt::format("optimizer/{}/{}", s.name, p.name), p.shape,
          s.values.subspan(p.offset, p.size));
    }
    if (averaged) {
      add("average/" + p.name, p.shape, average.subspan(p.offset, p.size));
    }
  }
  for (const FlatModel::Entry& b : model.buffers()) {
    add("model/" + b.name, b.shape, model.buffer_values().subspan(b.offset, b.size));
    if (averaged) {
      add("average/" + b.name, b.shape, buffer_average.subspan(b.offset, b.size));
    }
  }
}

void Snapshot::add(std::string name, const Shape& shape, std::span<float> values) {
  parts_.push_back({std::move(name), shape, std::as_writable_bytes(values)});
}

std::vector<ckpt::TensorView> Snapshot::views() const {
  std::vector<ckpt::TensorView> out;
  for (const Part& p : parts_) out.push_back({p.name, DType::f32, p.shape, p.bytes});
  return out;
}

std::vector<std::span<std::byte>> Snapshot::writable() {
  std::vector<std::span<std::byte>> out;
  for (const Part& p : parts_) out.push_back(p.bytes);
  return out;
}

std::vector<ckpt::TensorView> Snapshot::model_views() const {
  std::vector<ckpt::TensorView> out;
  for (const Part& p : parts_) {
    if (!p.name.starts_with(deployed_)) continue;
    out.push_back({p.name.substr(p.name.find('/') + 1), DType::f32, p.shape, p.bytes});
  }
  return out;
}

void Snapshot::restore(const ckpt::Checkpoint& checkpoint) {
  std::map<std::string_view, const ckpt::TensorInfo*> known;
  for (const ckpt::TensorInfo& info : checkpoint.tensors()) known[info.name] = &info;
  for (const Part& p : parts_) {
    const auto found = known.extract(p.name);
    if (found.empty()) {
      fail(ErrorCode::invalid_argument,
           "the checkpoint holds no tensor {}; it is of another model or optimiser", p.name);
    }
    const ckpt::TensorInfo& info = *found.mapped();
    if (info.shape != p.shape || info.dtype != DType::f32) {
      fail(ErrorCode::invalid_argument, "tensor {} is {} {} in the checkpoint and {} {} here",
           p.name, to_string(info.dtype), describe_shape(info.shape), to_string(DType::f32),
           describe_shape(p.shape));
    }
  }
  if (!known.empty()) {
    fail(ErrorCode::invalid_argument,
         "the checkpoint holds tensor {}, which this model and optimiser do not have",
         known.begin()->first);
  }
  for (const Part& p : parts_) checkpoint.read(p.name, p.bytes);
}

void check_same_job(const nlohmann::json& saved, const nlohmann::json& now, bool thread_invariant) {
  std::string differences;
  // Runs of versions that left the number open hold 0: any number goes on with them.
  const bool free_threads = thread_invariant || saved.at("train").at("threads") == 0;
  for (const nlohmann::json& change : nlohmann::json::diff(saved, now)) {
    const std::string path = change.at("path");
    if (is_free(path) || (path == "/train/threads" && free_threads)) continue;
    std::string key = path.substr(1);
    std::replace(key.begin(), key.end(), '/', '.');
    differences += (differences.empty() ? "" : ", ") + key;
  }
  if (!differences.empty()) {
    fail(ErrorCode::conflict,
         "job.toml was changed since the run began in what shapes the result: {}; put the old "
         "values back, or start a new run",
         differences);
  }
}

}  // namespace ductile::train
