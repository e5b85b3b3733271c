#pragma once

#include <memory>

#include <pybind11/pybind11.h>

#include "ductile/train/task.h"

namespace ductile::python {

// A task whose parts are a Python object's: ductile/_task.py. It may be used, and end, without the
// interpreter's lock, which it takes for each call.
std::unique_ptr<train::Task> make_python_task(pybind11::object task);

}  // namespace ductile::python
