#pragma once

#include <exception>
#include <string>

#include <pybind11/pybind11.h>

#include "ductile/base/error.h"

namespace ductile::python {

// Errors of Ductile are ductile.Error in Python, of the class that their kind has there
// (ductile/_errors.py). For pybind11's register_exception_translator().
inline void translate(std::exception_ptr error) {
  namespace py = pybind11;
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    const py::object made = py::module_::import("ductile._errors")
                                .attr("Error")(std::string(to_string(e.code())), e.what());
    PyErr_SetObject(py::type::of(made).ptr(), made.ptr());
  }
}

}  // namespace ductile::python
