#include "ductile/spec/stage_orders.h"

#include <charconv>
#include <system_error>

#include "ductile/base/error.h"

namespace ductile::spec {
namespace {

char letter(Task task) { return "FBW"[static_cast<int>(task)]; }

}  // namespace

std::string to_letters(std::span<const Task> order) {
  std::string out;
  for (size_t i = 0; i < order.size();) {
    size_t end = i;
    while (end < order.size() && order[end] == order[i]) ++end;
    out += letter(order[i]);
    if (end - i > 1) out += std::to_string(end - i);
    i = end;
  }
  return out;
}

std::vector<Task> order_from_letters(std::string_view letters, int stage, int64_t most) {
  std::vector<Task> out;
  const char* at = letters.data();
  const char* end = at + letters.size();
  while (at != end) {
    const size_t kind = std::string_view("FBW").find(*at);
    if (kind == std::string_view::npos) {
      fail(ErrorCode::invalid_argument, "stage {}: order: \"{}\" is not F, B or W", stage, *at);
    }
    int64_t count = 1;
    if (++at != end && *at >= '0' && *at <= '9') {
      const auto [rest, error] = std::from_chars(at, end, count);
      at = rest;
      if (error != std::errc() || count < 1) count = most + 1;
    }
    if (count > most - static_cast<int64_t>(out.size())) {
      fail(ErrorCode::invalid_argument, "stage {}: order: has more than {} tasks", stage, most);
    }
    out.insert(out.end(), static_cast<size_t>(count), static_cast<Task>(kind));
  }
  return out;
}

}  // namespace ductile::spec
