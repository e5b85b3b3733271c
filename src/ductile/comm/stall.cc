#include "ductile/comm/stall.h"

#include <fmt/format.h>

namespace ductile::comm {

std::string to_string(const Stall& stall) {
  std::string who;
  for (size_t i = 0; i < stall.ranks.size(); ++i) {
    const bool last = i + 1 == stall.ranks.size();
    who += fmt::format("{}{}", i == 0 ? "" : last ? " and " : ", ", stall.ranks[i]);
  }
  std::string text =
      fmt::format("{}, #{}, has waited {:.1f} s", stall.operation, stall.sequence, stall.seconds);
  if (who.empty()) return text + "; all ranks have come to it";
  return text + (stall.ranks.size() > 1 ? " for ranks " : " for rank ") + who;
}

}  // namespace ductile::comm
