#include "ductile/train/initial_weights.h"

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "ductile/base/error.h"
#include "ductile/base/paths.h"
#include "ductile/base/table.h"
#include "ductile/ckpt/digest.h"
#include "ductile/ckpt/safetensors.h"
#include "ductile/run/checkpoints.h"
#include "ductile/train/data_form.h"
#include "ductile/train/task_method.h"

namespace ductile::train {
namespace {

bool is_floating(DType type) {
  return type == DType::f16 || type == DType::bf16 || type == DType::f32 || type == DType::f64;
}

std::vector<ckpt::TensorView> views_of(const ckpt::SafetensorsFile& file) {
  std::vector<ckpt::TensorView> views;
  for (const ckpt::TensorInfo& info : file.tensors())
    views.push_back({info.name, info.dtype, info.shape, file.bytes(info)});
  return views;
}

void check_digest(const ckpt::SafetensorsFile& file, std::span<const ckpt::TensorView> views,
                  const fs::path& path) {
  const auto written = file.metadata().find(kWeightsDigestKey);
  if (written == file.metadata().end()) return;
  if (const std::string digest = ckpt::tensors_digest(views); digest != written->second)
    fail(ErrorCode::data_loss,
         "{}: the weights are not those that were written (their digest is {}, and it was {})",
         path.string(), digest, written->second);
}

class Reader {
 public:
  Reader(const ckpt::SafetensorsFile& file, const fs::path& path) : file_(file), path_(path) {}

  // Nothing is changed by a tensor that does not fit.
  void read(const FlatModel::Entry& entry, std::span<float> flat) {
    const ckpt::TensorInfo* found = file_.find(entry.name);
    if (found == nullptr) {
      std::vector<std::string> names;
      for (const ckpt::TensorInfo& info : file_.tensors()) names.push_back(info.name);
      const auto nearest = nearest_name(entry.name, names);
      fail(ErrorCode::invalid_argument, "{}: holds no tensor {}, which the model has{}",
           path_.string(), entry.name,
           nearest ? fmt::format("; it holds {}", *nearest) : std::string());
    }
    if (found->dtype != DType::f32 || found->shape != entry.shape)
      fail(ErrorCode::invalid_argument,
           "{}: tensor {} is {} [{}], and in the model it is f32 [{}]; `ductile ckpt import` makes "
           "other types f32",
           path_.string(), entry.name, to_string(found->dtype), fmt::join(found->shape, ", "),
           fmt::join(entry.shape, ", "));
    const auto bytes = std::as_writable_bytes(
        flat.subspan(static_cast<size_t>(entry.offset), static_cast<size_t>(entry.size)));
    std::ranges::copy(file_.bytes(*found), bytes.begin());
    used_.insert(entry.name);
  }

  void check_rest() const {
    for (const ckpt::TensorInfo& info : file_.tensors()) {
      if (used_.contains(info.name) || !is_floating(info.dtype)) continue;
      fail(ErrorCode::invalid_argument,
           "{}: holds tensor {}, which the model does not have; they are weights of another model",
           path_.string(), info.name);
    }
  }

 private:
  const ckpt::SafetensorsFile& file_;
  const fs::path& path_;
  std::set<std::string> used_;
};

}  // namespace

void begin_with_initial_weights(Replica& replica, const run::RunFolder& folder) {
  const fs::path path = run::initial_weights_of(folder);
  if (kind_of(path) == FileKind::none) return;
  if (replica.job().tune.online)
    fail(ErrorCode::invalid_argument,
         "{}: a run that begins with given weights cannot have tune.online = true", path.string());
  const ckpt::SafetensorsFile file(path);
  const std::vector<ckpt::TensorView> views = views_of(file);
  check_digest(file, views, path);
  JobState& state = replica.state();
  FlatModel& flat = state.flat;
  if (Task* const task = replica.task()) {
    carry_in(*task, state);  // a step that was given up may have left it otherwise
    task->take_weights(views, path.string());
    carry_out(*task, state);
  } else {
    Reader reader(file, path);
    for (const FlatModel::Entry& p : flat.parameters()) reader.read(p, flat.weights());
    for (const FlatModel::Entry& b : flat.buffers()) reader.read(b, flat.buffer_values());
    reader.check_rest();
    flat.none_is_blank();
  }
  if (!state.average.span().empty()) {
    std::ranges::copy(flat.weights(), state.average.span().begin());
    std::ranges::copy(flat.buffer_values(), state.buffer_average.span().begin());
  }
  flat.refresh_half_weights();
}

}  // namespace ductile::train
