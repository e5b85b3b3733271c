#pragma once

#include <string_view>

#include "ductile/base/table.h"

// The update rules: name, maker, help. A row here registers a rule. Job files, `ductile config`,
// the schema and the reference page take the name and the help from it; optim/optimizer.cc takes
// the maker, which no module below the torch line can link.
#define DUCTILE_OPTIMIZERS(ROW)                                                             \
  ROW("sgd", make_sgd, "SGD with momentum or Nesterov momentum; L2 weight decay")           \
  ROW("adam", make_adam, "Adam; L2 weight decay")                                           \
  ROW("adamw", make_adamw, "Adam with decoupled weight decay")                              \
  ROW("nadamw", make_nadamw, "AdamW with Nesterov momentum")                                \
  ROW("ademamix", make_ademamix, "AdamW with a second, slow mean of gradients")             \
  ROW("schedule_free", make_schedule_free,                                                  \
      "AdamW that trains between an iterate and its average, and evaluates the average")    \
  ROW("lars", make_lars, "SGD with momentum and a layer-wise rate, for large batches")      \
  ROW("lamb", make_lamb,                                                                    \
      "Adam with a layer-wise rate and decoupled weight decay, for large batches")          \
  ROW("muon", make_muon, "orthogonalised momentum for matrices, AdamW or SGD for the rest") \
  ROW("neumann", make_neumann, "SGD along a Neumann series for the inverse Hessian")        \
  ROW("nlcg", make_nlcg, "nonlinear conjugate gradients, for large batches")

namespace ductile::spec {

struct OptimizerOptions;

Table<Named> optimizers();

// What is known of a rule where it cannot be linked; a row of rule_traits.cc for each of the rules
// above.
struct RuleTraits {
  std::string_view name;
  double start_lr;          // a rate to begin with, as in docs/guides/optimizers.md
  bool adam = false;        // divides by the root of the mean of squared gradients: optimizer.adam
  bool lr_factors = false;  // reads optimizer.lr_factors
  bool freezes = true;      // bears optimizer.freeze
  bool warm_up = false;     // trains badly without a warm-up
};

// Null for a name that is not of this table: "python".
const RuleTraits* rule_traits(std::string_view rule);

// Whether the rule reads optimizer.adam, also for a part of the parameters.
bool reads_adam(const OptimizerOptions& options);

}  // namespace ductile::spec
