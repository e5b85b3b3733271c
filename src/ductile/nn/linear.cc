#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ductile/nn/flops.h"
#include "ductile/nn/kernels/product.h"
#include "ductile/nn/ops.h"
#include "ductile/nn/precision.h"

namespace ductile::nn::ops {
namespace {

using kernels::Matrix;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

Matrix matrix_of(const at::Tensor& t) { return {t.data_ptr<float>(), t.stride(0), t.stride(1)}; }

// a b (+ row), as a new tensor [rows of a, columns of b].
at::Tensor multiplied(const at::Tensor& a, const at::Tensor& b, const at::Tensor& row = {}) {
  at::Tensor c = at::empty({a.size(0), b.size(1)}, a.options());
  if (row.defined()) c.copy_(row.expand_as(c));
  kernels::product({matrix_of(a), matrix_of(b), c.data_ptr<float>(), c.size(1), 1, a.size(0),
                    b.size(1), a.size(1), row.defined()});
  return c;
}

// y [N, O] = x [N, I] w [I, O] + b. The weight may be stored either way round.
struct Affine : Function<Affine> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            const at::Tensor& b) {
    ctx->save_for_backward({x, w});
    const KnownFlops known(2 * static_cast<double>(x.numel()) * static_cast<double>(w.size(1)));
    return multiplied(x, w, b);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], &dy = grads[0];
    at::Tensor dx, dw, db;
    if (ctx->needs_input_grad(0)) dx = multiplied(dy, w.t());
    // As the weight is stored, so that its gradient needs no copy.
    if (ctx->needs_input_grad(1))
      dw = w.stride(0) == 1 ? multiplied(dy.t(), x).t() : multiplied(x.t(), dy);
    if (ctx->needs_input_grad(2)) {
      db = at::empty({dy.size(1)}, dy.options());
      kernels::column_sums(matrix_of(dy), dy.size(0), dy.size(1), db.data_ptr<float>());
    }
    return {dx, dw, db};
  }
};

bool covered(const at::Tensor& x) {
  return x.device().is_cpu() && x.layout() == at::kStrided && kernels::product_supported() &&
         (x.scalar_type() == at::kFloat || widen(x));
}

// w is [I, O] by its shape, whichever way it is stored.
at::Tensor covered_affine(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = w.size(1);
  const at::Tensor y = Affine::apply(x.to(at::kFloat).reshape({-1, w.size(0)}), w.to(at::kFloat),
                                     b.defined() ? b.to(at::kFloat) : b);
  return y.view(shape).to(x.scalar_type());
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  if (covered(x)) return covered_affine(x, w.t(), b);
  if (widen(x)) return linear(x.to(at::kFloat), w, b).to(x.scalar_type());
  return b.defined() ? at::linear(x, w.to(x.scalar_type()), b.to(x.scalar_type()))
                     : at::linear(x, w.to(x.scalar_type()));
}

at::Tensor affine(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  if (covered(x)) return covered_affine(x, w, b);
  if (widen(x)) return affine(x.to(at::kFloat), w, b).to(x.scalar_type());
  return at::matmul(x, w.to(x.scalar_type())).add(b.to(x.scalar_type()));
}

}  // namespace ductile::nn::ops
