#include "ductile/nn/generator.h"

#include <thread>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "ductile/nn/attention_impl.h"
#include "ductile/nn/model.h"

namespace ductile::nn {
namespace {

at::Tensor ones_dropped() { return dropped(at::ones({50}), 0.3); }

TEST(OwnGenerator, DropsWhatLibtorchsOwnDropoutDrops) {
  for (const double share : {0.1, 0.5, 0.99}) {
    const at::Tensor x = at::linspace(-1, 1, 333).view({3, 111}).requires_grad_();
    const at::Tensor twin = x.detach().clone().requires_grad_();
    seed_step(7);
    const at::Tensor y = dropped(x, share);
    seed_step(7);
    const at::Tensor of_libtorch = at::dropout(twin, share, true);
    EXPECT_TRUE(y.equal(of_libtorch)) << share;
    y.pow(2).sum().backward();
    of_libtorch.pow(2).sum().backward();
    EXPECT_TRUE(x.grad().equal(twin.grad())) << share;
  }
}

// Workers may be threads of one process.
TEST(OwnGenerator, WhatAnotherThreadDrawsDoesNotShow) {
  seed_step(1);
  const at::Tensor first = ones_dropped(), second = ones_dropped();
  EXPECT_FALSE(first.equal(second)) << "a place in the generator matters";
  seed_step(1);
  EXPECT_TRUE(ones_dropped().equal(first));
  at::Tensor other;
  std::thread([&] {
    seed_step(1);
    other = ones_dropped();
    seed_step(99);
    ones_dropped();
  }).join();
  EXPECT_TRUE(other.equal(first)) << "the numbers depend on the seed, not on the thread";
  EXPECT_TRUE(ones_dropped().equal(second));
}

}  // namespace
}  // namespace ductile::nn
