#pragma once

#include "ductile/base/table.h"

// The update rules: name, maker, help. A row here registers a rule. Job files, `ductile config`,
// the schema and the reference page take the name and the help from it; optim/optimizer.cc takes
// the maker, which no module below the torch line can link.
#define DUCTILE_OPTIMIZERS(ROW)                                                        \
  ROW("sgd", make_sgd, "SGD with momentum or Nesterov momentum; L2 weight decay")      \
  ROW("adam", make_adam, "Adam; L2 weight decay")                                      \
  ROW("adamw", make_adamw, "Adam with decoupled weight decay")                         \
  ROW("lars", make_lars, "SGD with momentum and a layer-wise rate, for large batches") \
  ROW("lamb", make_lamb,                                                               \
      "Adam with a layer-wise rate and decoupled weight decay, for large batches")

namespace ductile::spec {

Table<Named> optimizers();

}  // namespace ductile::spec
