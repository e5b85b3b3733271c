#include "ductile/base/table.h"

#include <utility>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/text.h"

namespace ductile {
namespace {

constexpr size_t kLongestName = 80;  // of a wrong name that is shown and compared

char folded(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Of case nothing is known here: another case is no difference.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (folded(a[i - 1]) != folded(b[j - 1]));
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, change}));
    }
  }
  return row[b.size()];
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view name,
                                        std::span<const std::string> candidates) {
  name = name.substr(0, kLongestName);
  std::optional<std::string> best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string unknown_name(std::string_view what, std::string_view name,
                         std::span<const std::string> known) {
  const std::string shown =
      to_utf8(name.substr(0, kLongestName)) + (name.size() > kLongestName ? "..." : "");
  const auto near = nearest_name(name, known);
  return fmt::format("{} \"{}\" is not known; {}llowed: \"{}\"", what, shown,
                     near ? fmt::format("did you mean \"{}\"? A", *near) : "a",
                     fmt::join(known, "\", \""));
}

void fail_unknown_name(std::string_view what, std::string_view name,
                       std::span<const std::string> known) {
  throw Error(ErrorCode::invalid_argument, unknown_name(what, name, known));
}

}  // namespace ductile
