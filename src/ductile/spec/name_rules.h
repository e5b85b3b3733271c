#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ductile::spec {

// What an option says about the parameters that match `name`.
struct NameRule {
  std::string name;  // as in optimizer.no_decay: bias, norm, or a part of the name
  double value = 0;
};

// Options such as optimizer.lr_factors and optimizer.freeze: texts "NAME:NUMBER", or "NAME" alone
// where `without` gives the number. Throws invalid_argument that names the option `key` for any
// other text, and for a number that is not finite or is below 0.
std::vector<NameRule> name_rules(std::span<const std::string> texts, std::string_view key,
                                 std::optional<double> without = {});

// Whether a rule of this name means the parameter: "bias" matches a name that ends in "bias",
// "norm" a parameter of a normalisation layer, anything else a part of the name.
bool matches(std::string_view rule, std::string_view parameter, bool is_norm);

}  // namespace ductile::spec
