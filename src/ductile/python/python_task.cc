#include "ductile/python/python_task.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <ATen/ops/from_blob.h>
#include <torch/csrc/utils/pybind.h>

#include "ductile/base/dtype.h"
#include "ductile/base/error.h"
#include "ductile/python/dtypes_impl.h"
#include "ductile/python/guarded_impl.h"
#include "ductile/python/python_update.h"

namespace ductile::python {
namespace {

namespace py = pybind11;
using train::Ratio;

// A tensor of the user's, and what it was when its bytes were counted. Python code may resize it,
// or give it other data: whoever reads or writes its memory asks bytes_of().
struct NamedBuffer {
  std::string name;
  at::Tensor tensor;
  std::vector<int64_t> shape;
  at::ScalarType type;
  size_t nbytes;
};

DType dtype_of(const NamedBuffer& buffer) {
  if (const auto type = python::dtype_of(buffer.tensor.scalar_type())) return *type;
  fail(ErrorCode::invalid_argument, "buffer {} is {}, which a file of weights cannot hold",
       buffer.name, c10::toString(buffer.tensor.scalar_type()));
}

std::span<std::byte> bytes_of(const NamedBuffer& buffer) {
  const at::Tensor& now = buffer.tensor;
  const auto end = static_cast<size_t>(now.storage_offset()) * now.itemsize() + buffer.nbytes;
  if (now.scalar_type() != buffer.type || now.sizes() != at::IntArrayRef(buffer.shape) ||
      !now.is_contiguous() || now.storage().nbytes() < end)
    fail(ErrorCode::conflict,
         "{} was {} [{}] when the model was made, and is {} [{}] now in {} bytes of memory; a "
         "tensor "
         "that is carried from step to step keeps its shape, type and memory, so make it as large "
         "as "
         "it will be",
         buffer.name, c10::toString(buffer.type), fmt::join(buffer.shape, ", "),
         c10::toString(now.scalar_type()), fmt::join(now.sizes(), ", "), now.storage().nbytes());
  return {static_cast<std::byte*>(now.data_ptr()), buffer.nbytes};
}

// Names and tensors of a torch.nn.Module; the loss is the task's.
class Module final : public nn::Model {
 public:
  Module(py::object task, std::vector<nn::NamedTensor> parameters,
         std::vector<nn::NamedTensor> buffers)
      : task_(std::move(task)), parameters_(std::move(parameters)), buffers_(std::move(buffers)) {}
  ~Module() override {
    const py::gil_scoped_acquire lock;
    task_ = {};
    parameters_.clear();
    buffers_.clear();
  }

  at::Tensor forward(const at::Tensor&) override {
    fail(ErrorCode::internal, "the forward pass of a Python model belongs to its loss");
  }
  std::vector<nn::NamedTensor> parameters() override { return parameters_; }
  std::vector<nn::NamedTensor> buffers() override { return buffers_; }
  void train(bool on) override {
    Model::train(on);
    guarded([&] { task_.attr("set_training")(on); });
  }
  bool prefers_channels_last() override { return false; }

 private:
  py::object task_;
  std::vector<nn::NamedTensor> parameters_, buffers_;
};

class PythonTask final : public train::Task {
 public:
  explicit PythonTask(py::object task) : task_(std::move(task)) {
    metrics_ = task_.attr("metrics").cast<std::vector<std::string>>();
    for (auto [info, name] : {std::pair{&train_, "train_size"}, {&test_, "test_size"}}) {
      info->format = "python";
      info->size = task_.attr(name).cast<int64_t>();
    }
    if (const py::object shuffled = task_.attr("shuffled"); !shuffled.is_none()) {
      order_ =
          shuffled.cast<bool>() ? train::SampleOrder::shuffled : train::SampleOrder::sequential;
    }
  }
  ~PythonTask() override {
    const py::gil_scoped_acquire lock;
    task_ = {};
    own_update_.reset();
    carried_.clear();
  }

  const data::DatasetInfo& train_info() const override { return train_; }
  const data::DatasetInfo& test_info() const override { return test_; }
  train::SampleOrder order() const override { return order_; }
  const std::vector<std::string>& metrics() const override { return metrics_; }

  std::unique_ptr<nn::Model> make_model(uint64_t seed) override {
    return guarded([&]() -> std::unique_ptr<nn::Model> {
      using Named = std::tuple<std::string, at::Tensor, bool>;
      auto [parameters, averaged, carried] =
          task_.attr("make_model")(seed)
              .cast<std::tuple<std::vector<Named>, std::vector<Named>, std::vector<Named>>>();
      const auto listed = [](std::vector<Named>& from) {
        std::vector<nn::NamedTensor> out;
        for (auto& [name, tensor, is_norm] : from) out.push_back({name, tensor, is_norm});
        return out;
      };
      carried_.clear();
      for (auto& [name, tensor, is_norm] : carried) {
        carried_.push_back(
            {name, tensor, tensor.sizes().vec(), tensor.scalar_type(), tensor.nbytes()});
      }
      first_.resize(static_cast<size_t>(num_carried()));
      carry_out(first_);
      const py::object rule = task_.attr("rule");
      own_update_ = rule.is_none() ? nullptr : make_python_update(rule);
      return std::make_unique<Module>(task_, listed(parameters), listed(averaged));
    });
  }

  train::OwnUpdate* own_update() override { return own_update_.get(); }

  void host(const comm::LeafRange& ranks) override {
    guarded([&] { task_.attr("host")(ranks.begin, ranks.end); });
  }

  train::TaskLoss loss(const train::RankSamples& s) override {
    return guarded([&] {
      py::object chosen = py::none();
      if (!s.chosen.empty()) chosen = py::cast(std::vector(s.chosen.begin(), s.chosen.end()));
      auto [loss, ratios] =
          task_
              .attr("loss")(s.epoch, s.first, s.count, chosen, s.rank, s.step, s.epoch_done, s.seed,
                            s.look, s.each)
              .cast<std::tuple<at::Tensor, std::vector<std::pair<double, double>>>>();
      train::TaskLoss out{std::move(loss), {}};
      for (const auto& [sum, of] : ratios) out.metrics.push_back({sum, of});
      return out;
    });
  }

  train::Evaluation evaluate(const std::function<void(int64_t)>& each) override {
    return guarded([&] {
      auto [loss, samples, ratios] =
          task_.attr("evaluate")(each)
              .cast<std::tuple<double, int64_t, std::vector<std::pair<double, double>>>>();
      train::Evaluation out;
      out.loss = loss;
      out.num_samples = samples;
      out.accuracy = std::numeric_limits<double>::quiet_NaN();
      for (size_t i = 0; i < ratios.size(); ++i) {
        const double value = ratios[i].first / ratios[i].second;
        (metrics_[i] == "accuracy" ? out.accuracy : out.metrics[metrics_[i]]) = value;
      }
      return out;
    });
  }

  // Two bytes are a piece; the last byte of a buffer of an odd number is one, too.
  int64_t num_carried() const override {
    int64_t pieces = 0;
    for (const NamedBuffer& b : carried_) pieces += (static_cast<int64_t>(b.nbytes) + 1) / 2;
    return pieces;
  }

  void carry_out(std::span<float> pieces) override {
    DUCTILE_CHECK(std::ssize(pieces) == num_carried());
    for (const NamedBuffer& b : carried_) {
      std::span<const std::byte> from = bytes_of(b);
      while (!from.empty()) {
        const size_t size = std::min<size_t>(2, from.size());
        uint16_t piece = 0;
        std::memcpy(&piece, from.data(), size);
        pieces.front() = piece;
        pieces = pieces.subspan(1);
        from = from.subspan(size);
      }
    }
  }

  void carry_in(std::span<const float> pieces) override {
    if (pieces.empty()) pieces = first_;
    DUCTILE_CHECK(std::ssize(pieces) == num_carried());
    for (const NamedBuffer& b : carried_) {
      std::span<std::byte> to = bytes_of(b);
      while (!to.empty()) {
        const size_t size = std::min<size_t>(2, to.size());
        const auto piece = static_cast<uint16_t>(pieces.front());
        std::memcpy(to.data(), &piece, size);
        pieces = pieces.subspan(1);
        to = to.subspan(size);
      }
    }
  }

  std::vector<ckpt::TensorView> carried() override {
    std::vector<ckpt::TensorView> out;
    for (const NamedBuffer& b : carried_)
      out.push_back({b.name, dtype_of(b), b.shape, bytes_of(b)});
    return out;
  }

  void take_weights(std::span<const ckpt::TensorView> tensors, const std::string& file) override {
    guarded([&] {
      py::dict given;
      for (const ckpt::TensorView& t : tensors) {
        const auto type = scalar_type(t.dtype);
        if (!type) continue;  // whole numbers that torch does not have, so no model has them
        void* const bytes = const_cast<std::byte*>(t.bytes.data());  // nobody writes there
        given[py::str(t.name)] = at::from_blob(bytes, t.shape, *type);
      }
      task_.attr("take_weights")(given, file);
    });
  }

 private:
  py::object task_;
  data::DatasetInfo train_, test_;
  train::SampleOrder order_ = train::SampleOrder::own;
  std::vector<std::string> metrics_;
  std::vector<NamedBuffer> carried_;
  std::unique_ptr<train::OwnUpdate> own_update_;
  std::vector<float> first_;  // what is carried when the model is new
};

}  // namespace

std::unique_ptr<train::Task> make_python_task(py::object task) {
  return std::make_unique<PythonTask>(std::move(task));
}

}  // namespace ductile::python
