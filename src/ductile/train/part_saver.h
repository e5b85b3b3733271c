#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/writer.h"
#include "ductile/control/protocol.h"
#include "ductile/train/replica.h"

namespace ductile::train {

// What a save took, as the worker reports it.
control::SaveFigures save_figures(const ckpt::SaveResult& result);

// Saves a state of which no worker has all: each member of a generation writes the tensors that are
// its to write, and one of them makes a checkpoint of what all have written (ckpt/join.h). So no
// worker needs memory for more than its own part, twice.
//
// One thread, which goes on training while files are written.
class PartSaver {
 public:
  // `folder`: of the checkpoints. `self`: the worker. Throws as CheckpointWriter does. It waits for
  // the disk, as nothing later does that is called between two steps.
  PartSaver(fs::path folder, control::WorkerId self);

  // Elements of a parameter, and the rank that writes them.
  struct Share {
    int rank = 0;
    int64_t begin = 0, size = 0;
  };
  using Shares = std::vector<std::vector<Share>>;
  // Who writes the tensors of each parameter: the first worker of the replica's layout that holds
  // all of it, or, where none does, of each block the first that holds it. Nothing where nobody
  // holds a block.
  static std::optional<Shares> writers(Replica& replica);

  // All members of the generation together, between two steps: copies what this worker is to write,
  // and goes on in the background. `writers` as above. What is in its way makes the save fail, and
  // is logged.
  void write(Replica& replica, const Shares& writers, const control::GenerationPlan& plan);
  // Waits until this worker's part is durable; false if it could not be written.
  bool finish();
  // The state that was written last; -1: none.
  int64_t step() const { return step_; }
  // At one of them, before the next step: makes the checkpoint, with these values, as soon as all
  // parts are there.
  void join(nlohmann::json values);
  // It is not to be made any more, if it is not there yet.
  void give_up() { values_.reset(); }
  // All parts that will come are there: the next take_result() looks at once.
  void look_now() { next_look_ = {}; }

  // What became of it, once that is known; `generation` is the present one. To be called now and
  // then by every member.
  std::optional<ckpt::SaveResult> take_result(control::Generation generation);
  void wait();  // for the part under way
  // Whether the parts of the save that was last taken make no whole, so that to join them again
  // would fail again. A disk that refuses something does not mean that.
  bool parts_lost() const { return parts_lost_; }

 private:
  using Clock = std::chrono::steady_clock;
  void note_part();
  ckpt::SaveResult joined();

  const fs::path folder_;
  const control::WorkerId self_;
  int64_t step_ = -1;
  int64_t num_tensors_ = 0;  // of the whole state
  Clock::time_point next_look_;
  control::Generation generation_ = 0;    // whose members write
  std::vector<std::string> tags_;         // of all members' parts
  ckpt::CheckpointWriter writer_;         // of this worker's
  std::optional<ckpt::SaveResult> part_;  // the last one, once it is durable
  std::optional<nlohmann::json> values_;  // of the checkpoint that is to be made
  bool parts_lost_ = false;
  std::optional<ckpt::SaveResult> overtaken_;  // a checkpoint that will not be made any more
  std::optional<Clock::time_point> since_;     // the own part is durable, others are awaited
};

}  // namespace ductile::train
