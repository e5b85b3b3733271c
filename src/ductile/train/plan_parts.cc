#include "ductile/train/plan_parts.h"

#include <algorithm>

namespace ductile::train {

control::Parts parts_of(const std::vector<parallel::BlockRange>& blocks) {
  control::Parts parts;
  for (const parallel::BlockRange& b : blocks) parts.push_back({b.begin, b.end});
  return parts;
}

std::vector<parallel::BlockRange> blocks_of(const control::Parts& parts) {
  std::vector<parallel::BlockRange> blocks;
  for (const control::PartRange& p : parts) blocks.push_back({p.begin, p.end});
  return blocks;
}

bool from_outside(const control::Member& member) {
  return member.source == control::StateSource::checkpoint ||
         member.source == control::StateSource::initial;
}

bool begins_from_checkpoint(const control::GenerationPlan& plan) {
  return std::ranges::any_of(plan.members, [](const control::Member& m) {
    return m.source == control::StateSource::checkpoint;
  });
}

bool all_read_checkpoint(const control::GenerationPlan& plan) {
  return std::ranges::all_of(plan.members, [](const control::Member& m) {
    return m.source == control::StateSource::checkpoint;
  });
}

}  // namespace ductile::train
