#include "ductile/nn/layer_norm.h"

#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

namespace ductile::nn {
namespace {

// y, dx, dw, db for rows of `dim`.
template <class Norm>
std::vector<at::Tensor> run(int64_t rows, int64_t dim, const Norm& norm) {
  at::manual_seed(7);
  const at::Tensor x = at::randn({2, rows, dim}).requires_grad_(true);
  const at::Tensor w = at::randn({dim}).requires_grad_(true);
  const at::Tensor b = at::randn({dim}).requires_grad_(true);
  const at::Tensor y = norm(x, w, b);
  y.backward(at::randn_like(y));
  return {y.detach(), x.grad(), w.grad(), b.grad()};
}

std::vector<at::Tensor> ours(int64_t rows, int64_t dim) {
  return run(rows, dim, [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
    return ops::layer_norm(x, w, b, 1e-5);
  });
}

TEST(LayerNorm, EqualsAten) {
  for (const int64_t dim : {3, 32, 100}) {
    const auto expected =
        run(9, dim, [&](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
          return at::layer_norm(x, {dim}, w, b, 1e-5);
        });
    const auto found = ours(9, dim);
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-4, 1e-4)) << dim << ", " << i;
  }
}

TEST(LayerNorm, GivesTheSameBitsForEveryNumberOfThreads) {
  const int before = at::get_num_threads();
  for (const int64_t dim : {7, 32, 65, 256}) {
    at::set_num_threads(1);
    const auto expected = ours(300, dim);
    for (const int threads : {2, 3, 8}) {
      at::set_num_threads(threads);
      const auto found = ours(300, dim);
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(at::equal(found[i], expected[i])) << dim << ", " << threads << ", " << i;
    }
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace ductile::nn
