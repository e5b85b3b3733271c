#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "ductile/control/worker_protocol.h"

namespace ductile::link {

// The queue of commands for the step loop. When a generation is abandoned, those of a step that the
// loop has not taken yet are withdrawn; WriteCheckpoint stays in its place.
class CommandQueue {
 public:
  void add(control::WorkerCommand command) {
    if (const auto* abandon = std::get_if<control::Abandon>(&command)) {
      std::erase_if(commands_, is_of_a_step);
      abandoned_ = std::max(abandoned_, abandon->generation);
    }
    exited_ = exited_ || std::holds_alternative<control::Exit>(command);
    commands_.push_back(std::move(command));
  }

  std::optional<control::WorkerCommand> take() {
    if (commands_.empty()) return std::nullopt;
    control::WorkerCommand command = std::move(commands_.front());
    commands_.pop_front();
    return command;
  }

  bool empty() const { return commands_.empty(); }
  control::Generation abandoned() const { return abandoned_; }  // the newest one; 0: none
  bool exited() const { return exited_; }                       // Exit was decided

 private:
  static bool is_of_a_step(const control::WorkerCommand& command) {
    return std::holds_alternative<control::Restore>(command) ||
           std::holds_alternative<control::RunStep>(command) ||
           std::holds_alternative<control::CastVote>(command);
  }

  std::deque<control::WorkerCommand> commands_;
  control::Generation abandoned_ = 0;
  bool exited_ = false;
};

}  // namespace ductile::link
