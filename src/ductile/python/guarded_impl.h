#pragma once

#include <string>
#include <utility>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "ductile/base/error.h"

namespace ductile::python {

// Calls `f` with the interpreter's lock. Python's exceptions become Ductile's errors: the texts
// that ductile/_errors.py gives them.
template <class F>
auto guarded(const F& f) {
  namespace py = pybind11;
  const py::gil_scoped_acquire lock;
  try {
    return f();
  } catch (py::error_already_set& error) {
    const auto [code, text] = py::module_::import("ductile._errors")
                                  .attr("told")(error.value())
                                  .cast<std::pair<std::string, std::string>>();
    throw Error(error_code_from(code), text);
  }
}

}  // namespace ductile::python
