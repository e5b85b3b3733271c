#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <pybind11/pybind11.h>

#include "ductile/base/error.h"
#include "ductile/base/interruption.h"

// What the parts of the extension ductile._base share. Its Python half (ductile/sim.py and so on)
// has the public functions; values cross as JSON, arrays as buffers that Python has made.
namespace ductile::python {

void bind_ckpt(pybind11::module_& m);
void bind_data(pybind11::module_& m);
void bind_plan(pybind11::module_& m);
void bind_sim(pybind11::module_& m);

// Calls `f` without the interpreter's lock, so that other threads of Python run meanwhile. Signals
// are looked at while it computes: what a handler raises, such as KeyboardInterrupt, ends it.
template <class F>
auto unlocked(const F& f) {
  const pybind11::gil_scoped_release release;
  const Interruption signals([] {
    const pybind11::gil_scoped_acquire lock;
    if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
  });
  return f();
}

// The bytes of an object with a contiguous buffer, such as an array of numpy, which stay where they
// are while this lives.
class Bytes {
 public:
  Bytes(const pybind11::handle& object, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0)
      throw pybind11::error_already_set();
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() { PyBuffer_Release(&view_); }

  std::span<std::byte> span() const {
    return {static_cast<std::byte*>(view_.buf), static_cast<size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

}  // namespace ductile::python
