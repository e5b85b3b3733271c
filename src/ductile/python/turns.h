#pragma once

#include <pybind11/pybind11.h>

namespace ductile::python {

// Adds the class Turns to a module: how two threads of Python take turns. A thread that gives its
// turn away lets go of the interpreter's lock first, so the other one wakes once and finds it free;
// with locks of Python's own it wakes for the lock, and then once more for the interpreter.
void bind_turns(pybind11::module_& m);

}  // namespace ductile::python
