#include "ductile/cluster/records.h"

#include "ductile/base/table.h"

namespace ductile::cluster {
namespace {

struct PhaseEntry {
  std::string_view name;
  Phase phase;
};
constexpr PhaseEntry kPhases[] = {
    {"queued", Phase::queued},     {"running", Phase::running}, {"paused", Phase::paused},
    {"finished", Phase::finished}, {"failed", Phase::failed},   {"cancelled", Phase::cancelled},
};
constexpr Table<PhaseEntry> kPhaseTable("phase:", kPhases);

struct WishEntry {
  std::string_view name;
  Wish wish;
};
constexpr WishEntry kWishes[] = {
    {"run", Wish::run}, {"pause", Wish::pause}, {"cancel", Wish::cancel}};
constexpr Table<WishEntry> kWishTable("wish:", kWishes);

struct NodeStateEntry {
  std::string_view name;
  NodeState state;
};
constexpr NodeStateEntry kNodeStates[] = {
    {"up", NodeState::up}, {"away", NodeState::away}, {"lost", NodeState::lost}};
constexpr Table<NodeStateEntry> kNodeStateTable("state:", kNodeStates);

}  // namespace

std::string_view to_string(Phase phase) { return kPhases[static_cast<size_t>(phase)].name; }
std::string_view to_string(Wish wish) { return kWishes[static_cast<size_t>(wish)].name; }
std::string_view to_string(NodeState state) { return kNodeStates[static_cast<size_t>(state)].name; }
NodeState node_state_from(std::string_view text) { return kNodeStateTable.at(text).state; }
Phase phase_from(std::string_view text) { return kPhaseTable.at(text).phase; }
Wish wish_from(std::string_view text) { return kWishTable.at(text).wish; }

bool may_follow(Phase from, Phase to) {
  if (has_ended(from) || from == to) return false;
  switch (to) {
    case Phase::queued:
      return true;  // preempted, or taken up again
    case Phase::running:
      return from == Phase::queued;
    case Phase::paused:
      return true;
    case Phase::finished:
      return from == Phase::running;
    case Phase::failed:
      return true;
    case Phase::cancelled:
      return true;
  }
  return false;
}

}  // namespace ductile::cluster
