#pragma once

#include "ductile/base/table.h"

namespace ductile::spec {

// The shapes of the learning rate; optim/schedule.h has their formulas.
Table<Named> schedules();

}  // namespace ductile::spec
