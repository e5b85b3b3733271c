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

}  // namespace

PartSaver::PartSaver(fs::path folder, control::WorkerId self)
    : folder_(std::move(folder)),
      self_(self),
      writer_(folder_, {.pending_tag = part_tag(self), .keep_memory = false}) {}

std::optional<std::vector<int>> PartSaver::writers(Replica& replica) {
  const auto& held = replica.shards().layout().held;
  std::vector<int> out;
  for (const FlatModel::Entry& parameter : replica.state().flat.parameters()) {
    const auto first = std::ranges::find_if(
        held, [&](const Replica::Blocks& blocks) { return holds(blocks, parameter); });
    if (first == held.end()) return std::nullopt;
    out.push_back(static_cast<int>(first - held.begin()));
  }
  return out;
}

void PartSaver::write(Replica& replica, const std::vector<int>& writers,
                      const control::GenerationPlan& plan) {
  const auto rank = plan.find(self_) - plan.members.data();
  std::vector<bool> own;
  for (const int writer : writers) own.push_back(writer == rank);
  if (values_) {
    overtaken_.emplace();
    overtaken_->step = step_;
    overtaken_->error = "another save began before all parts of it were there";
  }
  step_ = replica.step();
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
    writer_.save(step_, nlohmann::json::object(), state.tensors_of(own, rank == 0));
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
  try {
    result.total_bytes =
        ckpt::join_parts(folder_, step_, tags_, num_tensors_, link::checkpoint_tag(self_),
                         *std::exchange(values_, std::nullopt));
    result.parts = static_cast<int64_t>(tags_.size());
  } catch (const std::exception& e) {
    result.error = e.what();
  }
  return result;
}

std::optional<ckpt::SaveResult> PartSaver::take_result(control::Generation generation) {
  if (overtaken_) return std::exchange(overtaken_, std::nullopt);
  while (auto result = writer_.take_result()) {
    if (result->step != step_) continue;
    if (!result->error.empty())
      log_line(fmt::format("the part of the checkpoint of step {} was not written: {}", step_,
                           result->error));
    part_ = std::move(*result);
    since_ = Clock::now();
  }
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
