#include "ductile/nn/whitening.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "ductile/nn/model.h"

namespace ductile::nn {
namespace {

// Neighbouring pixels and channels that have much in common, as in photographs.
at::Tensor images_of(int64_t count) {
  at::manual_seed(3);
  const at::Tensor noise = at::randn({count, 3, 18, 17});
  const at::Tensor smooth = at::avg_pool2d(noise, {3, 3}, {1, 1});
  return smooth + smooth.mean({1}, /*keepdim=*/true) * 0.8 + 0.1;
}

at::Tensor patches_of(const at::Tensor& images, int64_t k) {  // [patches, C * k * k]
  return images.unfold(2, k, 1)
      .unfold(3, k, 1)
      .permute({0, 2, 3, 1, 4, 5})
      .reshape({-1, images.size(1) * k * k});
}

TEST(Whitening, PatchesBecomeWhiteAndFiltersComeWithTheirNegatives) {
  const at::Tensor images = images_of(200);
  const at::Tensor filters = whitening_filters(images, 2, 0);
  ASSERT_EQ(filters.sizes(), at::IntArrayRef({24, 3, 2, 2}));
  EXPECT_TRUE(filters.slice(0, 0, 12).equal(-filters.slice(0, 12, 24)));
  const at::Tensor x = patches_of(images, 2).to(at::kDouble);
  const at::Tensor y = x.mm(filters.slice(0, 0, 12).flatten(1).t().to(at::kDouble));
  const at::Tensor moments = y.t().mm(y) / y.size(0);
  EXPECT_LT((moments - at::eye(12, at::kDouble)).abs().max().item<double>(), 1e-4);
}

TEST(Whitening, FollowsLapackUpToSigns) {
  const at::Tensor images = images_of(130);
  const at::Tensor x = patches_of(images, 2).to(at::kDouble);
  const auto [values, vectors] = at::linalg_eigh(x.t().mm(x) / x.size(0));
  const at::Tensor want = (vectors / (values + 5e-4).sqrt()).t();
  const at::Tensor got = whitening_filters(images, 2, 5e-4).slice(0, 0, 12).flatten(1);
  EXPECT_LT((got.abs().to(at::kDouble) - want.abs()).abs().max().item<double>(),
            1e-5 * want.abs().max().item<double>());
}

TEST(Whitening, DependsOnTheImagesAlone) {
  const int before = at::get_num_threads();
  const at::Tensor images = images_of(200);
  at::set_num_threads(1);
  const at::Tensor one = whitening_filters(images, 2, 5e-4);
  at::set_num_threads(3);
  EXPECT_TRUE(one.equal(whitening_filters(images, 2, 5e-4)));
  EXPECT_TRUE(
      one.equal(whitening_filters(images.contiguous(at::MemoryFormat::ChannelsLast), 2, 5e-4)));
  EXPECT_FALSE(one.equal(whitening_filters(images.slice(0, 0, 199), 2, 5e-4)));
  at::set_num_threads(before);
}

TEST(Whitening, BlankImagesHaveFilters) {
  const at::Tensor filters = whitening_filters(at::zeros({3, 1, 4, 4}), 2, 1e-2);
  EXPECT_TRUE(filters.isfinite().all().item<bool>());
  EXPECT_EQ(filters.abs().max().item<float>(), 10);
}

TEST(Whitening, IsWhatTheModelBeginsWith) {
  ModelArgs args;
  args.options.name = "airbench";
  args.info = {3, 32, 32, 10, 0};
  const auto model = make_model(args);
  ASSERT_EQ(model->num_initial_samples(), 5000);
  const at::Tensor images = at::randn({20, 3, 32, 32});
  model->initialize(images);
  const NamedTensor whiten = model->parameters().at(0);
  EXPECT_EQ(whiten.name, "whiten.weight");
  EXPECT_TRUE(whiten.frozen);
  EXPECT_TRUE(whiten.tensor.equal(whitening_filters(images, 2, 5e-4)));
}

}  // namespace
}  // namespace ductile::nn
