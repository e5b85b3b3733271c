#include "ductile/nn/flops.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include "ductile/nn/generator.h"
#include "ductile/nn/generator_impl.h"
#include "ductile/nn/model.h"
#include "ductile/nn/operators.h"

namespace ductile::nn {
namespace {

constexpr const char* kKnown = "ductile::known_flops";

// The count under way in this thread.
struct Count {
  double flops = 0;
  bool inside = false;  // an operator that counts: those it is made of do not count again
};
thread_local Count* counting = nullptr;

// An operator that has begun. The result is known at its end, its operands only at its beginning.
struct Begun : at::ObserverContext {
  Begun(double known, double per_output) : known(known), per_output(per_output) {}
  double known, per_output;
};

using Values = c10::ArrayRef<const c10::IValue>;

bool are_tensors(Values values, size_t count) {
  if (values.size() < count) return false;
  for (size_t i = 0; i < count; ++i) {
    if (!values[i].isTensor() || !values[i].toTensor().defined()) return false;
  }
  return true;
}

double numel(const c10::IValue& tensor) { return static_cast<double>(tensor.toTensor().numel()); }

// Multiply-adds for each element of a convolution's output, or of a transposed one's input.
double filter_size(const at::Tensor& w) {
  return static_cast<double>(w.numel()) / static_cast<double>(std::max<int64_t>(w.size(0), 1));
}

// Operand `at` holds the sum's length as its last axis.
std::unique_ptr<Begun> product(Values in, size_t at) {
  if (!are_tensors(in, at + 1) || in[at].toTensor().dim() < 1) return nullptr;
  return std::make_unique<Begun>(0, 2.0 * static_cast<double>(in[at].toTensor().size(-1)));
}

// All of operand `at` is multiplied `times` times.
std::unique_ptr<Begun> whole(Values in, size_t at, double times) {
  return std::make_unique<Begun>(2 * times * numel(in[at]), 0);
}

std::unique_ptr<Begun> convolution(Values in) {
  constexpr size_t kTransposed = 6;
  if (!are_tensors(in, 2) || in.size() <= kTransposed || !in[kTransposed].isBool()) return nullptr;
  const double filter = filter_size(in[1].toTensor());
  if (in[kTransposed].toBool()) return whole(in, 0, filter);
  return std::make_unique<Begun>(0, 2 * filter);
}

// Scores q k' and their product with v. q [..., T, D], k [..., S, D], v [..., S, E].
std::unique_ptr<Begun> attention(Values in) {
  if (!are_tensors(in, 3)) return nullptr;
  const at::Tensor &q = in[0].toTensor(), &k = in[1].toTensor(), &v = in[2].toTensor();
  if (q.dim() < 2 || k.dim() < 2 || v.dim() < 2 || q.size(-1) == 0) return nullptr;
  const auto rows = static_cast<double>(q.numel() / q.size(-1));
  return std::make_unique<Begun>(
      2 * rows * static_cast<double>(k.size(-2)) * static_cast<double>(q.size(-1) + v.size(-1)), 0);
}

// Null where the operator does not count.
std::unique_ptr<Begun> begun(std::string_view name, Values in) {
  if (name == kKnown) return std::make_unique<Begun>(in[0].toDouble(), 0);
  if (!name.starts_with("aten::")) return nullptr;
  name.remove_prefix(std::string_view("aten::").size());
  if (name.ends_with('_')) name.remove_suffix(1);  // in place
  if (name == "convolution" || name == "_convolution") return convolution(in);
  if (name == "mm" || name == "bmm") return product(in, 0);
  if (name == "addmm" || name == "baddbmm" || name == "_addmm_activation") return product(in, 1);
  if (name == "mkldnn_linear") return product(in, 0);
  if (name == "mv" || name == "dot" || name == "vdot") {
    return are_tensors(in, 1) ? whole(in, 0, 1) : nullptr;
  }
  if (name == "addmv") return are_tensors(in, 2) ? whole(in, 1, 1) : nullptr;
  if (name == "addbmm") {
    if (!are_tensors(in, 3)) return nullptr;
    return whole(in, 1, static_cast<double>(in[2].toTensor().size(-1)));
  }
  if (name.starts_with("scaled_dot_product_") || name.starts_with("_scaled_dot_product_")) {
    return attention(in);
  }
  return nullptr;
}

// Nothing may be thrown here: libtorch would print a warning and go on.
std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& f) {
  if (counting == nullptr || counting->inside) return nullptr;
  std::unique_ptr<Begun> op = begun(f.name(), f.inputs());
  if (op != nullptr) counting->inside = true;
  return op;
}

void on_end(const at::RecordFunction& f, at::ObserverContext* context) {
  if (counting == nullptr || context == nullptr) return;
  const Begun& op = static_cast<const Begun&>(*context);
  counting->inside = false;
  counting->flops += op.known;
  const std::vector<c10::IValue>& outputs = f.outputs();
  if (op.per_output != 0 && !outputs.empty() && outputs[0].isTensor()) {
    counting->flops += op.per_output * numel(outputs[0]);
  }
}

// While this lives, the calling thread's operators are counted.
class Counting {
 public:
  explicit Counting(Count& count)
      : before_(std::exchange(counting, &count)),
        handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(on_begin, on_end)
                                               .needsInputs(true)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION}))) {}
  ~Counting() {
    at::removeCallback(handle_);
    counting = before_;
  }
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;

 private:
  Count* before_;
  const at::RecordFunctionGuard enabled_{true};
  at::CallbackHandle handle_;
};

// The model's tensors are afterwards as they were. Some layers write them even in evaluation mode
// (embeddings with max_norm, a user's own). Blank ones have no memory that could be written, and a
// copy of them would need that of the whole model.
class KeepTensors {
 public:
  explicit KeepTensors(Model& model) {
    for (const NamedTensor& t : model.parameters()) {
      if (!t.blank) keep(t.tensor);
    }
    for (const NamedTensor& t : model.buffers()) keep(t.tensor);
  }
  ~KeepTensors() {
    for (auto& [tensor, values] : kept_) {
      if (tensor.sizes() == values.sizes()) {
        tensor.copy_(values);
      } else {
        tensor.set_data(values);
      }
    }
  }
  KeepTensors(const KeepTensors&) = delete;
  KeepTensors& operator=(const KeepTensors&) = delete;

 private:
  void keep(const at::Tensor& tensor) { kept_.emplace_back(tensor, tensor.detach().clone()); }

  const at::NoGradGuard no_grad_;
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
};

}  // namespace

std::optional<double> forward_flops(Model& model, const at::Tensor& sample) {
  return forward_flops(model, std::span(&sample, 1));
}

std::optional<double> forward_flops(Model& model, std::span<const at::Tensor> inputs) {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(generator_mutex());
  const KeepGenerators generators;
  const KeepTensors tensors(model);
  Count count;
  bool ran = false;
  model.train(false);
  try {
    const Counting counting(count);
    forward(model, inputs);
    ran = true;
  } catch (...) {  // whatever a model of the user's own throws: training may well go without it
  }
  model.train(true);
  return ran ? std::optional(count.flops) : std::nullopt;
}

KnownFlops::KnownFlops(double flops) {
  auto listeners = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  if (!listeners) return;
  record_ = std::make_unique<at::RecordFunction>(std::move(*listeners));
  const c10::IValue value(flops);
  record_->before(kKnown, Values(&value, 1));
}

KnownFlops::~KnownFlops() = default;

double convolution_flops(const at::Tensor& y, const at::Tensor& w) {
  return 2 * filter_size(w) * static_cast<double>(y.numel());
}

}  // namespace ductile::nn
