#pragma once

#include <memory>

#include "ductile/data/dataset.h"
#include "ductile/spec/datasets.h"

// One opener for each format of spec/datasets.h.
namespace ductile::data {

using DatasetMaker = std::shared_ptr<const Dataset> (*)(const spec::DataOptions&, Split);

#define DUCTILE_DECLARE(name, open, ...) \
  std::shared_ptr<const Dataset> open(const spec::DataOptions&, Split);
DUCTILE_DATASETS(DUCTILE_DECLARE)
#undef DUCTILE_DECLARE

}  // namespace ductile::data
