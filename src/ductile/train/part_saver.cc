#include "ductile/train/part_saver.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/log.h"
#include "ductile/ckpt/join.h"
#include "ductile/link/addresses.h"

namespace ductile::train {
namespace {

using namespace std::chrono_literals;

// Of a step that is done again in another generation a part may lie there already. Its tensors have
// the same bits, if they are the same ones; where others are, the parts make no whole (join_parts).
std::string part_tag(control::WorkerId worker) { return link::checkpoint_tag(worker) + "-part"; }

bool holds(const Replica::Blocks& held, const FlatModel::Entry& parameter) {
  constexpr int64_t kBlock = optim::kBlockFloats;
  const int64_t begin = parameter.offset, end = parameter.offset + parameter.size;
  return std::ranges::any_of(held, [&](const parallel::BlockRange& r) {
    return r.begin * kBlock <= begin && end <= r.end * kBlock;
  });
}

// The first worker that holds all of it; -1: none.
int first_with(const std::vector<Replica::Blocks>& held, const FlatModel::Entry& parameter) {
  const auto first = std::ranges::find_if(
      held, [&](const Replica::Blocks& blocks) { return holds(blocks, parameter); });
  return first == held.end() ? -1 : static_cast<int>(first - held.begin());
}

}  // namespace

control::SaveFigures save_figures(const ckpt::SaveResult& result) {
  control::SaveFigures out;
  out.bytes = result.total_bytes;
  out.bytes_written = result.new_bytes;
  out.blocking_seconds = result.wait_seconds + result.copy_seconds;
  out.write_seconds = result.write_seconds;
  out.write_core_seconds = result.write_cpu_seconds;
  out.parts = result.parts;
  return out;
}

PartSaver::PartSaver(fs::path folder, control::WorkerId self)
    : folder_(std::move(folder)),
      self_(self),
      // As quick as the trainer: at the end and before a preemption all workers wait for it, and
      // between two steps who writes the next part does.
      writer_(folder_, {.nice = 0, .pending_tag = part_tag(self), .keep_memory = false}) {}

std::optional<PartSaver::Shares> PartSaver::writers(Replica& replica) {
  const auto& held = replica.shards().layout().held;
  Shares out;
  for (const FlatModel::Entry& parameter : replica.state().flat.parameters()) {
    std::vector<Share>& shares = out.emplace_back();
    if (const int rank = first_with(held, parameter); rank >= 0) {
      shares.push_back({rank, 0, parameter.size});
      continue;
    }
    for (int64_t begin = 0, end = 0; begin < parameter.size; begin = end) {
      // Up to the end of the block.
      end = std::min(parameter.size, optim::kBlockFloats -
                                         (parameter.offset + begin) % optim::kBlockFloats + begin);
      FlatModel::Entry block = parameter;
      block.offset += begin;
      block.size = end - begin;
      const int rank = first_with(held, block);
      if (rank < 0) return std::nullopt;
      if (shares.empty() || shares.back().rank != rank) shares.push_back({rank, begin, 0});
      shares.back().size += block.size;
    }
    if (shares.empty()) return std::nullopt;
  }
  return out;
}

void PartSaver::write(Replica& replica, const Shares& writers,
                      const control::GenerationPlan& plan) {
  const auto rank = plan.find(self_) - plan.members.data();
  std::vector<bool> own;
  std::vector<JobState::Piece> pieces;
  for (const std::vector<Share>& shares : writers) {
    const bool whole = shares.size() == 1;
    own.push_back(whole && shares.front().rank == rank);
    for (const Share& share : shares) {
      if (!whole && share.rank == rank) pieces.push_back({own.size() - 1, share.begin, share.size});
    }
  }
  if (values_) {
    overtaken_.emplace();
    overtaken_->step = step_;
    overtaken_->error = "another save began before all parts of it were there";
  }
  step_ = replica.step();
  parts_lost_ = false;
  generation_ = plan.number;
  tags_.clear();
  for (const control::Member& m : plan.members) tags_.push_back(part_tag(m.worker));
  part_.reset();
  values_.reset();
  since_.reset();
  JobState& state = replica.state();
  const auto each = static_cast<int64_t>(1 + state.optimizer->state_names().size() +
                                         (state.average.span().empty() ? 0 : 1));
  const std::vector<bool> none(own.size(), false);
  num_tensors_ = each * std::ssize(own) + std::ssize(state.tensors_of(none, /*others=*/true));
  try {  // what one member cannot write costs the save and not the step
    std::vector<ckpt::TensorView> tensors = state.tensors_of(own, rank == 0);
    std::vector<ckpt::TensorPiece> of;
    state.add_pieces(pieces, tensors, of);
    writer_.save(step_, ckpt::state_of_part(of), tensors);
  } catch (const std::exception& e) {
    part_.emplace();
    part_->step = step_;
    part_->error = e.what();
    log_line(
        fmt::format("the part of the checkpoint of step {} is not written: {}", step_, e.what()));
  }
}

void PartSaver::join(nlohmann::json values) { values_ = std::move(values); }

ckpt::SaveResult PartSaver::joined() {
  ckpt::SaveResult result = *part_;
  parts_lost_ = false;
  try {
    result.total_bytes =
        ckpt::join_parts(folder_, step_, tags_, num_tensors_, link::checkpoint_tag(self_),
                         *std::exchange(values_, std::nullopt));
    result.parts = static_cast<int64_t>(tags_.size());
  } catch (const Error& e) {
    result.error = e.what();
    parts_lost_ = e.code() != ErrorCode::unavailable;
  } catch (const std::exception& e) {
    result.error = e.what();
  }
  return result;
}

// What became of the part under way, once that is known.
void PartSaver::note_part() {
  while (auto result = writer_.take_result()) {
    if (result->step != step_) continue;
    if (!result->error.empty())
      log_line(fmt::format("the part of the checkpoint of step {} was not written: {}", step_,
                           result->error));
    part_ = std::move(*result);
    since_ = Clock::now();
  }
}

bool PartSaver::finish() {
  wait();
  note_part();
  return part_ && part_->error.empty();
}

std::optional<ckpt::SaveResult> PartSaver::take_result(control::Generation generation) {
  if (overtaken_) return std::exchange(overtaken_, std::nullopt);
  note_part();
  if (!values_ || !part_) return std::nullopt;
  const Clock::time_point now = Clock::now();
  if (part_->error.empty()) {
    if (now < next_look_) return std::nullopt;
    next_look_ = now + 50ms;
    if (ckpt::parts_are_there(folder_, step_, tags_)) return joined();
    // A worker that is gone, or whose disk is full, never has its part there.
    const auto patience = generation == generation_
                              ? 300s + std::chrono::duration<double>(3 * part_->write_seconds)
                              : std::chrono::duration<double>(3s);
    if (now - *since_ < patience) return std::nullopt;
  }
  values_.reset();
  parts_lost_ = true;
  if (part_->error.empty()) part_->error = "another worker's part of it is missing";
  return part_;
}

void PartSaver::wait() {
  try {
    writer_.wait();
  } catch (const Error&) {  // take_result() has it
  }
}

}  // namespace ductile::train
