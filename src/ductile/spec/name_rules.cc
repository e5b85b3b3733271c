#include "ductile/spec/name_rules.h"

#include <charconv>
#include <cmath>

#include "ductile/base/error.h"

namespace ductile::spec {

std::vector<NameRule> name_rules(std::span<const std::string> texts, std::string_view key,
                                 std::optional<double> without) {
  std::vector<NameRule> rules;
  for (const std::string& text : texts) {
    const size_t colon = text.rfind(':');
    NameRule rule{text.substr(0, colon), without.value_or(0)};
    bool good = !rule.name.empty() && (colon != std::string::npos || without);
    if (good && colon != std::string::npos) {
      const char* const end = text.data() + text.size();
      const auto read = std::from_chars(text.data() + colon + 1, end, rule.value);
      good =
          read.ec == std::errc() && read.ptr == end && std::isfinite(rule.value) && rule.value >= 0;
    }
    if (!good) {
      fail(ErrorCode::invalid_argument,
           "{} has \"{}\"; write the name or a part of it, a colon and a number of at least 0, for "
           "example \"head:2\"",
           key, text);
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

bool matches(std::string_view rule, std::string_view parameter, bool is_norm) {
  if (rule == "bias") return parameter.ends_with("bias");
  if (rule == "norm") return is_norm;
  return parameter.find(rule) != std::string_view::npos;
}

}  // namespace ductile::spec
