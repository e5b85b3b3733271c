#include <algorithm>

#include "ductile/spec/job.h"
#include "ductile/spec/optimizers.h"

namespace ductile::spec {
namespace {

constexpr RuleTraits kTraits[] = {
    {.name = "sgd", .start_lr = 0.1, .lr_factors = true},
    {.name = "adam", .start_lr = 0.001, .adam = true, .lr_factors = true},
    {.name = "adamw", .start_lr = 0.001, .adam = true, .lr_factors = true},
    {.name = "nadamw", .start_lr = 0.00175, .adam = true, .lr_factors = true},
    {.name = "ademamix", .start_lr = 0.002, .adam = true, .lr_factors = true},
    {.name = "schedule_free", .start_lr = 0.0025, .adam = true, .freezes = false, .warm_up = true},
    {.name = "lars", .start_lr = 10},
    {.name = "lamb", .start_lr = 0.005, .adam = true},
    {.name = "muon", .start_lr = 0.01, .lr_factors = true},
    {.name = "neumann", .start_lr = 0.5, .freezes = false},
    {.name = "nlcg", .start_lr = 0.8},
};

}  // namespace

const RuleTraits* rule_traits(std::string_view rule) {
  const auto* row = std::ranges::find(kTraits, rule, &RuleTraits::name);
  return row == std::end(kTraits) ? nullptr : row;
}

bool reads_adam(const OptimizerOptions& options) {
  if (options.name == "muon") return options.muon.rest == "adamw";
  const RuleTraits* rule = rule_traits(options.name);
  return rule != nullptr && rule->adam;
}

}  // namespace ductile::spec
