#include "ductile/python/python_update.h"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/utils/pybind.h>

#include "ductile/base/aligned_array.h"
#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/python/guarded_impl.h"

namespace ductile::python {
namespace {

namespace py = pybind11;
using train::ExtraPart;

constexpr const char* kText = "state";  // of the part's values

class PythonUpdate final : public train::OwnUpdate {
 public:
  explicit PythonUpdate(py::object rule) : rule_(std::move(rule)) {}
  ~PythonUpdate() override {
    const py::gil_scoped_acquire lock;
    rule_ = {};
  }

  void step(std::span<const at::Tensor> gradients, int64_t updates) override {
    guarded([&] {
      rule_.attr("step")(std::vector<at::Tensor>(gradients.begin(), gradients.end()), updates);
    });
  }

  double lr() const override {
    return guarded([&] { return rule_.attr("lr")().cast<double>(); });
  }

  void keep(ExtraPart& part) override {
    guarded([&] {
      using Sizes = std::map<std::string, int64_t>;  // bytes of each tensor
      const auto [text, moved] =
          rule_.attr("kept")().cast<std::pair<std::string, std::optional<Sizes>>>();
      if (moved) {
        std::map<std::string, AlignedArray<float>> arrays;
        for (const auto& [name, bytes] : *moved) {
          arrays[name] = AlignedArray<float>((bytes + 3) / 4);
        }
        rule_.attr("move")(views(arrays));
        part.arrays = std::move(arrays);  // what the rule's tensors have left goes after that
      }
      part.values[kText] = text_ = text;
      note(part);
    });
  }

  void take(const ExtraPart* part) override {
    if (part == nullptr) {
      if (memory_.empty() && text_.empty()) return;
      guarded([&] { rule_.attr("begin")(); });
      text_.clear();
      memory_.clear();
      return;
    }
    const std::string text = part->values.at(kText).get<std::string>();
    if (text == text_ && is_noted(*part)) return;
    guarded([&] { rule_.attr("take")(text, views(part->arrays)); });
    text_ = text;
    note(*part);
  }

 private:
  using Arrays = std::map<std::string, AlignedArray<float>>;

  static std::map<std::string, at::Tensor> views(const Arrays& arrays) {
    std::map<std::string, at::Tensor> out;
    for (const auto& [name, array] : arrays) {
      out[name] = at::from_blob(const_cast<float*>(array.data()), {array.size()});
    }
    return out;
  }
  void note(const ExtraPart& part) {
    memory_.clear();
    for (const auto& [name, array] : part.arrays) memory_.emplace_back(array.data(), array.size());
  }
  bool is_noted(const ExtraPart& part) const {
    size_t i = 0;
    for (const auto& [name, array] : part.arrays) {
      if (i == memory_.size() || memory_[i].first != array.data() ||
          memory_[i].second != array.size())
        return false;
      ++i;
    }
    return i == memory_.size();
  }

  py::object rule_;
  // Of the state that the rule has: its numbers, and where its tensors lie, whose contents are
  // therefore always those of the job's state. Empty: it has its first one.
  std::string text_;
  std::vector<std::pair<const float*, int64_t>> memory_;
};

}  // namespace

std::unique_ptr<train::OwnUpdate> make_python_update(py::object rule) {
  return std::make_unique<PythonUpdate>(std::move(rule));
}

}  // namespace ductile::python
