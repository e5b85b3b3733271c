// The module ductile._base: what of Ductile needs no torch, for ductile.ckpt, .data, .plan, .sched
// and .sim.
#include <pybind11/pybind11.h>

#include "ductile/python/base_functions_impl.h"
#include "ductile/python/errors_impl.h"

PYBIND11_MODULE(_base, m) {
  m.doc() = "What of Ductile needs no torch; ductile.ckpt, .data, .plan, .sched and .sim call it.";
  pybind11::register_local_exception_translator(ductile::python::translate);
  ductile::python::bind_ckpt(m);
  ductile::python::bind_data(m);
  ductile::python::bind_plan(m);
  ductile::python::bind_sim(m);
}
