// Checkpoints and files of weights, for ductile.ckpt.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/digest.h"
#include "ductile/ckpt/inspect.h"
#include "ductile/ckpt/safetensors.h"
#include "ductile/python/base_functions_impl.h"
#include "ductile/run/checkpoints.h"

namespace ductile::python {
namespace {

namespace py = pybind11;

// One checkpoint of a run, and which newer ones were refused.
class OpenCheckpoint {
 public:
  OpenCheckpoint(const std::string& run, std::optional<int64_t> step)
      : checkpoint_(ckpt::open_checkpoint(run::checkpoints_of(run), step, refused_)) {}

  int64_t step() const { return checkpoint_.step(); }
  const std::vector<std::string>& refused() const { return refused_; }
  std::string state() const { return dump_json(checkpoint_.state()); }
  std::string tensors() const { return dump_json(ckpt::to_json(checkpoint_.tensors())); }
  std::string digest() const { return ckpt::state_digest(checkpoint_); }
  void read(const std::string& name, std::span<std::byte> into) const {
    checkpoint_.read(name, into);
  }

 private:
  std::vector<std::string> refused_;
  ckpt::Checkpoint checkpoint_;
};

// A file of weights.
class Weights {
 public:
  explicit Weights(const std::string& path) : file_(path) {}

  std::string tensors() const { return dump_json(ckpt::to_json(file_.tensors())); }
  const ckpt::Metadata& metadata() const { return file_.metadata(); }
  void read(const std::string& name, std::span<std::byte> into) const {
    const ckpt::TensorInfo* info = file_.find(name);
    if (info == nullptr) fail(ErrorCode::not_found, "the file has no tensor '{}'", name);
    const std::span<const std::byte> bytes = file_.bytes(*info);
    if (bytes.size() != into.size())
      fail(ErrorCode::invalid_argument, "tensor '{}' has {} bytes; the room for it {}", name,
           bytes.size(), into.size());
    std::ranges::copy(bytes, into.begin());
  }
  std::string digest() const {
    std::vector<ckpt::TensorView> views;
    for (const ckpt::TensorInfo& info : file_.tensors())
      views.push_back({info.name, info.dtype, info.shape, file_.bytes(info)});
    return ckpt::tensors_digest(views);
  }

 private:
  ckpt::SafetensorsFile file_;
};

std::string list(const std::string& run) {
  return unlocked([&] { return dump_json(ckpt::to_json(ckpt::list(run::checkpoints_of(run)))); });
}

std::string verify(const std::string& run) {
  return unlocked([&] { return dump_json(ckpt::to_json(ckpt::verify(run::checkpoints_of(run)))); });
}

// Tensors are (name, dtype, shape, buffer).
void write_weights(const std::string& path,
                   const std::vector<std::tuple<std::string, std::string, Shape, py::object>>& from,
                   const ckpt::Metadata& metadata) {
  std::vector<std::unique_ptr<Bytes>> held;
  std::vector<ckpt::TensorView> views;
  for (const auto& [name, dtype, shape, buffer] : from) {
    held.push_back(std::make_unique<Bytes>(buffer, false));
    views.push_back({name, dtype_from_string(dtype), shape, held.back()->span()});
  }
  unlocked([&] { ckpt::write_safetensors(path, views, metadata); });
}

template <class Source>
void read_into(const Source& source, const std::string& name, const py::object& buffer) {
  const Bytes bytes(buffer, true);
  unlocked([&] { source.read(name, bytes.span()); });
}

}  // namespace

void bind_ckpt(py::module_& m) {
  py::class_<OpenCheckpoint>(m, "Checkpoint")
      .def(py::init([](const std::string& run, std::optional<int64_t> step) {
             return unlocked([&] { return std::make_unique<OpenCheckpoint>(run, step); });
           }),
           py::arg("run"), py::arg("step"))
      .def_property_readonly("step", &OpenCheckpoint::step)
      .def_property_readonly("refused", &OpenCheckpoint::refused)
      .def("state", &OpenCheckpoint::state)
      .def("tensors", &OpenCheckpoint::tensors)
      .def("digest", [](const OpenCheckpoint& c) { return unlocked([&] { return c.digest(); }); })
      .def("read", read_into<OpenCheckpoint>, py::arg("name"), py::arg("into"));
  py::class_<Weights>(m, "Weights")
      .def(py::init<const std::string&>(), py::arg("path"))
      .def("tensors", &Weights::tensors)
      .def_property_readonly("metadata", &Weights::metadata)
      .def("digest", [](const Weights& w) { return unlocked([&] { return w.digest(); }); })
      .def("read", read_into<Weights>, py::arg("name"), py::arg("into"));
  m.def("list_checkpoints", list, py::arg("run"));
  m.def("verify_checkpoints", verify, py::arg("run"));
  m.def("write_weights", write_weights, py::arg("path"), py::arg("tensors"), py::arg("metadata"));
}

}  // namespace ductile::python
