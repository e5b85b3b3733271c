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
#include "ductile/optim/param_layout.h"
#include "ductile/run/checkpoints.h"
#include "ductile/train/data_form.h"
#include "ductile/train/require_trained.h"
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

  // Writes the elements of `flat` that lie in these ranges. Nothing is changed by a tensor that
  // does not fit.
  void read(const FlatModel::Entry& entry, std::span<const parallel::FloatRange> ranges,
            std::span<float> flat) {
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
           "{}: tensor {} is {} [{}], and in the model it is f32 [{}]; {}", path_.string(),
           entry.name, to_string(found->dtype), fmt::join(found->shape, ", "),
           fmt::join(entry.shape, ", "),
           found->shape != entry.shape ? "they are weights of another model"
                                       : "`ductile ckpt import` makes other types f32");
    const std::span<const std::byte> bytes = file_.bytes(*found);
    for (const parallel::FloatRange& r : ranges) {
      const int64_t begin = std::max(r.begin, entry.offset);
      const int64_t end = std::min(r.end, entry.offset + entry.size);
      if (begin >= end) continue;
      const auto part = std::as_writable_bytes(
          flat.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
      const size_t first = static_cast<size_t>(begin - entry.offset) * sizeof(float);
      std::ranges::copy(bytes.subspan(first, part.size()), part.begin());
    }
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

void read_weights(Replica& replica, const fs::path& path) {
  if (replica.job().tune.online)
    fail(ErrorCode::invalid_argument,
         "{}: a run that begins with given weights cannot have tune.online = true", path.string());
  const ckpt::SafetensorsFile file(path);
  const std::vector<ckpt::TensorView> views = views_of(file);
  check_digest(file, views, path);
  JobState& state = replica.state();
  FlatModel& flat = state.flat;
  std::vector<parallel::FloatRange> held;
  for (const parallel::BlockRange& b : replica.shards().held())
    held.push_back(replica.shards().floats(b));
  if (Task* const task = replica.task()) {
    carry_in(*task, state);  // a step that was given up may have left it otherwise
    task->take_weights(views, path.string());
    carry_out(*task, state);
  } else {
    Reader reader(file, path);
    const std::span<float> buffers = flat.buffer_values();
    const std::vector<parallel::FloatRange> all = {{0, std::ssize(buffers)}};
    for (const FlatModel::Entry& p : flat.parameters()) reader.read(p, held, flat.weights());
    for (const FlatModel::Entry& b : flat.buffers()) reader.read(b, all, buffers);
    reader.check_rest();
    flat.none_is_blank();
  }
  if (!state.average.span().empty()) {
    for (const parallel::FloatRange& r : held)
      std::copy(flat.weights().begin() + r.begin, flat.weights().begin() + r.end,
                state.average.span().begin() + r.begin);
    std::ranges::copy(flat.buffer_values(), state.buffer_average.span().begin());
  }
  for (const parallel::FloatRange& r : held) flat.refresh_half_weights(r);
}

// A task has no data of ours to compute them from.
void require_own_statistics(Replica& replica, const spec::JobOptions& job) {
  const JobState& state = replica.state();
  if (replica.task() == nullptr || job.train.statistics_batches == 0 ||
      state.flat.buffers().empty() || !state.optimizer->means_others())
    return;
  fail(ErrorCode::invalid_argument,
       "optimizer.name = \"{}\" evaluates weights that were never trained, and the running "
       "statistics that belong to them are not computed for a model of your own; choose another "
       "optimiser, or set train.statistics_batches = 0 to evaluate with those of training",
       job.optimizer.name);
}

}  // namespace

void begin_with_initial_weights(Replica& replica, const spec::JobOptions& job,
                                const run::RunFolder& folder) {
  std::vector<std::string> names;
  for (const FlatModel::Entry& p : replica.state().flat.parameters()) names.push_back(p.name);
  optim::require_named(job.optimizer, names);
  require_own_statistics(replica, job);
  require_trained(job, replica.layout(), replica.train_info().size);
  const fs::path path = run::initial_weights_of(folder);
  if (kind_of(path) != FileKind::none) read_weights(replica, path);
  replica.make_blanks();
}

}  // namespace ductile::train
