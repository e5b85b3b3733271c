#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ductile/nn/compat.h"
#include "ductile/nn/flops.h"
#include "ductile/nn/kernels/product.h"
#include "ductile/nn/matrix_impl.h"
#include "ductile/nn/ops.h"
#include "ductile/nn/precision.h"
#include "ductile/nn/threads.h"

namespace ductile::nn::ops {
namespace {

using kernels::Matrix;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// libtorch leaves products of bf16 to oneDNN, which on AMX tiles cuts a long sum into as many parts
// as there are threads: the bits would depend on their number. (Without tiles it cuts rows alone.)
bool cut_by_threads(const at::Tensor& x) {
#if defined(__x86_64__)
  static const bool tiles = __builtin_cpu_supports("amx-bf16");
#else
  constexpr bool tiles = false;
#endif
  return tiles && x.scalar_type() == at::kBFloat16 && x.device().is_cpu() &&
         x.layout() == at::kStrided && !widen(x);
}

// a b (+ row), as a new tensor [rows of a, columns of b].
at::Tensor multiplied(const at::Tensor& a, const at::Tensor& b, const at::Tensor& row = {}) {
  if (a.scalar_type() != at::kFloat) {
    const OneThread alone;
    return row.defined() ? at::addmm(row, a, b) : at::mm(a, b);
  }
  at::Tensor c = at::empty({a.size(0), b.size(1)}, a.options());
  if (row.defined()) c.copy_(row.expand_as(c));
  kernels::product({matrix_of(a), matrix_of(b), c.data_ptr<float>(), c.size(1), 1, a.size(0),
                    b.size(1), a.size(1), row.defined()});
  return c;
}

// y [N, O] = x [N, I] w [I, O] + b. The weight may be stored either way round.
struct Affine : Function<Affine> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            const Maybe<at::Tensor>& b) {
    ctx->save_for_backward({x, w});
    ctx->saved_data["bias"] = b.has_value();
    const KnownFlops known(2 * static_cast<double>(x.numel()) * static_cast<double>(w.size(1)));
    return multiplied(x, w, b.value_or(at::Tensor()));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], &dy = grads[0];
    at::Tensor dx, dw, db;
    if (ctx->needs_input_grad(0)) dx = multiplied(dy, w.t());
    // As the weight is stored, so that its gradient needs no copy.
    if (ctx->needs_input_grad(1))
      dw = w.stride(0) == 1 ? multiplied(dy.t(), x).t() : multiplied(x.t(), dy);
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) {
      if (dy.scalar_type() != at::kFloat) return {dx, dw, dy.sum(0)};
      db = at::empty({dy.size(1)}, dy.options());
      kernels::column_sums(matrix_of(dy), dy.size(0), dy.size(1), db.data_ptr<float>());
    }
    return {dx, dw, db};
  }
};

// The products of all pairs of matrices of a [N, R, K] and b [N, K, C], each by one thread.
at::Tensor each_multiplied(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != at::kFloat) {
    const OneThread alone;
    return at::bmm(a, b);
  }
  const int64_t rows = a.size(1), depth = a.size(2), cols = b.size(2);
  at::Tensor c = at::empty({a.size(0), rows, cols}, a.options());
  const auto *const a_data = a.data_ptr<float>(), *const b_data = b.data_ptr<float>();
  auto* const c_data = c.data_ptr<float>();
  const int64_t a_next = a.stride(0), b_next = b.stride(0);
  const Matrix a0{nullptr, a.stride(1), a.stride(2)}, b0{nullptr, b.stride(1), b.stride(2)};
#pragma omp parallel for schedule(static)
  for (int64_t n = 0; n < a.size(0); ++n)
    kernels::product({{a_data + n * a_next, a0.row, a0.column},
                      {b_data + n * b_next, b0.row, b0.column},
                      c_data + n * rows * cols,
                      cols,
                      1,
                      rows,
                      cols,
                      depth,
                      false});
  return c;
}

struct Matmul : Function<Matmul> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b) {
    ctx->save_for_backward({a, b});
    const KnownFlops known(2 * static_cast<double>(a.numel()) * static_cast<double>(b.size(2)));
    return each_multiplied(a, b);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    at::Tensor da, db;
    if (ctx->needs_input_grad(0)) da = each_multiplied(grads[0], saved[1].transpose(1, 2));
    if (ctx->needs_input_grad(1)) db = each_multiplied(saved[0].transpose(1, 2), grads[0]);
    return {da, db};
  }
};

// Whether each matrix of a has one of b to be multiplied by.
bool fit(const at::Tensor& a, const at::Tensor& b) {
  const auto leading = [](const at::Tensor& t) {
    return t.sizes().slice(0, static_cast<size_t>(t.dim()) - 2);
  };
  return b.dim() == a.dim() && leading(b) == leading(a) && b.size(-2) == a.size(-1);
}

bool covered(const at::Tensor& x) {
  return x.device().is_cpu() && x.layout() == at::kStrided && kernels::product_supported() &&
         (x.scalar_type() == at::kFloat || widen(x));
}

// Computed in `type`. w is [I, O] by its shape, whichever way it is stored.
at::Tensor affine_in(at::ScalarType type, const at::Tensor& x, const at::Tensor& w,
                     const at::Tensor& b) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = w.size(1);
  Maybe<at::Tensor> bias;
  if (b.defined()) bias = b.to(type);
  const at::Tensor y = Affine::apply(x.to(type).reshape({-1, w.size(0)}), w.to(type), bias);
  return y.view(shape).to(x.scalar_type());
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  if (covered(x)) return affine_in(at::kFloat, x, w.t(), b);
  if (cut_by_threads(x)) return affine_in(at::kBFloat16, x, w.t(), b);
  if (widen(x)) return linear(x.to(at::kFloat), w, b).to(x.scalar_type());
  return b.defined() ? at::linear(x, w.to(x.scalar_type()), b.to(x.scalar_type()))
                     : at::linear(x, w.to(x.scalar_type()));
}

at::Tensor affine(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  if (covered(x)) return affine_in(at::kFloat, x, w, b);
  if (cut_by_threads(x)) return affine_in(at::kBFloat16, x, w, b);
  if (widen(x)) return affine(x.to(at::kFloat), w, b).to(x.scalar_type());
  return at::matmul(x, w.to(x.scalar_type())).add(b.to(x.scalar_type()));
}

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) {
  const bool ours = cut_by_threads(a) || (covered(a) && !widen(a));
  if (!ours || a.dim() < 3 || !fit(a, b)) return at::matmul(a, b);
  std::vector<int64_t> shape = a.sizes().vec();
  shape.back() = b.size(-1);
  const auto flat = [](const at::Tensor& t) { return t.reshape({-1, t.size(-2), t.size(-1)}); };
  return Matmul::apply(flat(a), flat(b)).view(shape);
}

}  // namespace ductile::nn::ops
