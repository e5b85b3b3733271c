#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/options.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/optim/optimizer.h"
#include "ductile/train/flat_model.h"

namespace ductile::train {

// The tensors of a run's state, all fp32, by name, as views into the live arrays:
//   model/<parameter>                  fp32 master weights, PyTorch's names
//   model/<buffer>                     running statistics
//   optimizer/<state>/<parameter>      e.g. optimizer/momentum_buffer/conv1.weight
//   average/<parameter or buffer>      their moving averages, where averaging is on
// Everything is stored a tensor at a time, never as flat arrays, so a checkpoint does not depend on
// how arrays are padded, sharded or spread over workers.
class Snapshot {
 public:
  // The averages are flat like the model's arrays, or empty. All must outlive the snapshot. Of an
  // optimiser that holds a part of its state only the snapshot has none.
  Snapshot(FlatModel& model, optim::Optimizer& optimizer, std::span<float> average,
           std::span<float> buffer_average);

  // Views of the present state; valid until the next step.
  std::vector<ckpt::TensorView> views() const;
  // The same memory, in the same order, to be written.
  std::vector<std::span<std::byte>> writable();
  // Weights and buffers under their plain names, averaged where averaging is on: what is
  // deployed.
  std::vector<ckpt::TensorView> model_views() const;
  // Restores every tensor. Throws invalid_argument, naming the tensor, where the checkpoint is of
  // another model (missing, surplus, other shape).
  void restore(const ckpt::Checkpoint& checkpoint);

 private:
  struct Part {
    std::string name;
    Shape shape;
    std::span<std::byte> bytes;
  };
  void add(std::string name, const Shape& shape, std::span<float> values);

  std::vector<Part> parts_;
  std::string deployed_ = "model/";  // section that model_views() shows
};

// Refuses to resume under options that change the result: those of `saved` and `now` (job.toml as
// JSON) that differ, but for the ones that only shape speed and output; the number of threads is
// one of these where the model is `thread_invariant` (nn/threads.h). Throws conflict.
void check_same_job(const nlohmann::json& saved, const nlohmann::json& now, bool thread_invariant);

}  // namespace ductile::train
