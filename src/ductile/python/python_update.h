#pragma once

#include <memory>

#include <pybind11/pybind11.h>

#include "ductile/train/own_update.h"

namespace ductile::python {

// The rule of a job's optimizer(); `rule` is ductile._optimizer.Rule.
std::unique_ptr<train::OwnUpdate> make_python_update(pybind11::object rule);

}  // namespace ductile::python
