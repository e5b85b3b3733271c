#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "ductile/base/error.h"
#include "ductile/comm/arena.h"
#include "ductile/comm/shm_transport.h"
#include "ductile/comm/testing/local_processes.h"
#include "ductile/comm/testing/rank_threads.h"
#include "ductile/nn/compat.h"
#include "ductile/nn/halo.h"
#include "ductile/nn/model.h"
#include "ductile/nn/ops.h"
#include "ductile/parallel/spatial_split.h"

// Whole models under a spatial split against themselves on whole images.
namespace ductile::parallel {
namespace {

using at::Tensor;

// See spatial_split_test.cc: oneDNN does not bear ranks that are threads.
class SpatialModels : public ::testing::Test {
 protected:
  void SetUp() override {
    at::globalContext().setUserEnabledMkldnn(false);
    // OpenBLAS's own threads, which ATen's convolutions in double call, wait by yielding.
    if (void* symbol = dlsym(RTLD_DEFAULT, "openblas_set_num_threads")) {
      reinterpret_cast<void (*)(int)>(symbol)(1);
    }
  }
  void TearDown() override { at::globalContext().setUserEnabledMkldnn(true); }
};

struct Setting {
  const char* model;
  int64_t width, batch, side;
  int rows, cols;
  const char* precision;
};

std::unique_ptr<nn::Model> make(const Setting& s) {
  nn::ModelArgs args;
  args.options.name = s.model;
  args.options.width = s.width;
  args.info = {3, s.side, s.side, 5, 0};
  args.precision = s.precision;
  args.seed = 11;
  return nn::make_model(args);
}

struct Batch {
  Tensor x, labels;
};

// Noise, and for the segmentation model discs on it whose class is to be found: labels at random
// would leave gradients that are all but cancelled, in which a single rounded ReLU shows.
Batch make_batch(const Setting& s) {
  // A generator of its own: ranks that are threads share libtorch's.
  const at::Generator generator = at::detail::createCPUGenerator(5);
  Batch b;
  b.x = at::rand({s.batch, 3, s.side, s.side}, generator, at::kDouble) - 0.5;
  if (std::string(s.model) != "unet") {
    b.labels = at::randint(5, {s.batch}, generator, at::kLong);
  } else {
    const Tensor at = at::arange(s.side, at::kDouble) / s.side;
    b.labels = at::zeros({s.batch, s.side, s.side}, at::kLong);
    for (int64_t i = 0; i < s.batch; ++i) {
      for (int64_t disc = 1; disc < 5; ++disc) {
        const double y = 0.15 + 0.2 * disc - 0.05 * i, x = 0.8 - 0.15 * disc + 0.1 * i;
        const Tensor inside =
            ((at - y).square().view({-1, 1}) + (at - x).square()).lt(0.01 * (5 - disc));
        b.labels[i].masked_fill_(inside, disc);
        b.x[i][disc % 3].masked_fill_(inside, 0.5 * disc);
      }
    }
  }
  b.x = b.x.contiguous(at::MemoryFormat::ChannelsLast);
  return b;
}

// What one step leaves: loss, gradients, running statistics.
struct Result {
  double loss = 0;
  int64_t correct = 0, predictions = 0;
  std::vector<std::string> names;
  std::vector<Tensor> gradients, buffers;
  Tensor evaluation;
};

Result step(nn::Model& model, const Tensor& x, const Tensor& labels, const char* precision) {
  const auto type = std::string(precision) == "fp64" ? at::kDouble : at::kFloat;
  const nn::LossOutput out = model.loss(model.forward(x.to(type)), labels, 0.1);
  const Tensor mean = out.losses.mean();
  mean.backward();
  Result r;
  r.loss = mean.item<double>();
  r.correct = out.correct;
  r.predictions = out.predictions;
  for (const nn::NamedTensor& p : model.parameters()) {
    r.names.push_back(p.name);
    r.gradients.push_back(p.tensor.grad());
  }
  for (const nn::NamedTensor& b : model.buffers()) r.buffers.push_back(b.tensor.clone());
  model.train(false);
  const at::NoGradGuard no_grad;
  r.evaluation = model.loss(model.forward(x.to(type)), labels, 0.1).losses;
  return r;
}

Result whole_step(const Setting& s) {
  const Batch b = make_batch(s);
  return step(*make(s), b.x, b.labels, s.precision);
}

Result split_step(const Setting& s, comm::Communicator& communicator) {
  CommunicatorSplit split(communicator, s.rows, s.cols);
  const nn::SpatialScope scope(&split);
  const Batch b = make_batch(s);
  const Tensor labels = b.labels.dim() == 3 ? nn::own_part(split, b.labels) : b.labels;
  Result r = step(*make(s), nn::own_part(split, b.x), labels, s.precision);
  sum_gradients(communicator, r.gradients);
  return r;
}

double distance(const Tensor& got, const Tensor& want) {
  const Tensor w = want.to(at::kDouble);
  const double scale = w.norm().item<double>();
  return (got.to(at::kDouble) - w).norm().item<double>() / (scale > 0 ? scale : 1);
}

// The largest relative distance of any tensor, and its name.
struct Difference {
  double largest = 0;
  std::string where;

  void take(double d, const std::string& name) {
    if (d > largest || std::isnan(d)) {
      largest = std::isnan(d) ? HUGE_VAL : d;
      where = name;
    }
  }
};

Difference value_difference(const Result& got, const Result& want) {
  Difference d;
  d.take(std::abs(got.loss - want.loss) / std::abs(want.loss), "loss");
  d.take(distance(got.evaluation, want.evaluation), "evaluation");
  for (size_t i = 0; i < want.buffers.size(); ++i)
    d.take(distance(got.buffers[i], want.buffers[i]), "statistic " + std::to_string(i));
  return d;
}

Difference gradient_difference(const Result& got, const Result& want) {
  Difference d;
  for (size_t i = 0; i < want.gradients.size(); ++i)
    d.take(distance(got.gradients[i], want.gradients[i]), want.names[i]);
  return d;
}

struct Tolerance {
  double values, gradients;
};
constexpr Tolerance kDouble = {1e-10, 1e-9};
// A ReLU or a maximum whose inputs are almost equal may open on another side, in any two runs that
// round differently: whole images in float are as far from whole images in double. The operators by
// themselves are held to 1e-5 in spatial_split_test.cc.
constexpr Tolerance kFloat = {1e-5, 5e-2};

void expect_near(const Result& got, const Result& want, const Tolerance& tolerance) {
  const Difference values = value_difference(got, want);
  EXPECT_LT(values.largest, tolerance.values) << values.where;
  const Difference gradients = gradient_difference(got, want);
  EXPECT_LT(gradients.largest, tolerance.gradients) << gradients.where;
  EXPECT_LE(std::abs(got.correct - want.correct), want.predictions / 10000);
  EXPECT_EQ(got.predictions, want.predictions);
}

void expect_equal_to_whole(const Setting& s, const Tolerance& tolerance) {
  SCOPED_TRACE(std::string(s.model) + " " + s.precision + " on " + std::to_string(s.rows) + "x" +
               std::to_string(s.cols));
  at::set_num_threads(1);
  const Result want = whole_step(s);
  comm::run_ranks(s.rows * s.cols, [&](comm::Communicator& communicator) {
    at::set_num_threads(1);
    expect_near(split_step(s, communicator), want, tolerance);
  });
}

TEST_F(SpatialModels, EqualThemselvesOnWholeImagesInDouble) {
  for (const Setting& s : {Setting{"resnet20", 8, 2, 32, 2, 1, "fp64"},
                           {"resnet20", 8, 2, 35, 3, 2, "fp64"},
                           {"resnet20", 8, 2, 32, 4, 1, "fp64"},
                           {"resnet18", 8, 2, 96, 2, 2, "fp64"},
                           {"resnet18", 8, 2, 100, 3, 1, "fp64"},
                           {"resnet50", 8, 1, 64, 2, 1, "fp64"},
                           {"unet", 8, 2, 40, 2, 1, "fp64"},
                           {"unet", 8, 2, 32, 2, 2, "fp64"},
                           {"unet", 4, 1, 56, 3, 2, "fp64"},
                           {"cnn", 8, 2, 29, 3, 2, "fp64"}})
    expect_equal_to_whole(s, kDouble);
}

TEST_F(SpatialModels, EqualThemselvesOnWholeImagesInFloat) {
  for (const Setting& s : {Setting{"resnet20", 16, 2, 32, 2, 1, "fp32"},
                           {"resnet20", 16, 2, 32, 2, 2, "fp32"},
                           {"resnet18", 16, 2, 96, 2, 1, "fp32"},
                           {"unet", 8, 2, 64, 2, 1, "fp32"},
                           {"unet", 8, 2, 64, 2, 2, "fp32"},
                           {"cnn", 16, 4, 28, 2, 1, "fp32"}})
    expect_equal_to_whole(s, kFloat);
}

TEST_F(SpatialModels, EqualThemselvesAt512x512) {
  expect_equal_to_whole({"unet", 2, 1, 512, 2, 1, "fp64"}, kDouble);
  expect_equal_to_whole({"resnet18", 2, 1, 512, 2, 1, "fp64"}, kDouble);
  expect_equal_to_whole({"unet", 8, 1, 512, 2, 1, "fp32"}, kFloat);
}

// A communicator over shared memory for a process of this host.
comm::Communicator meet(const std::string& name, int rank, int size) {
  std::shared_ptr<comm::Arena> arena = comm::Arena::meet(
      name, rank, size, {.region_bytes = size_t{4} << 20}, std::chrono::seconds(60));
  comm::CommunicatorOptions options;
  options.arena = arena;
  return comm::Communicator(comm::make_shm_transport(arena), options);
}

// Processes of one host over shared memory, as in real jobs.
TEST_F(SpatialModels, EqualThemselvesInProcesses) {
  const std::string name = comm::fresh_arena_name();
  const Setting s = {"unet", 8, 2, 64, 2, 1, "fp32"};
  comm::LocalProcesses processes(2, [&](int rank) {
    at::set_num_threads(1);
    comm::Communicator communicator = meet(name, rank, 2);
    const Result got = split_step(s, communicator);
    const Result want = whole_step(s);
    expect_near(got, want, kFloat);
    communicator.barrier();
    return HasFailure() ? 1 : 0;
  });
  for (int r = 0; r < 2; ++r) EXPECT_EQ(processes.wait(r), 0);
}

// Counts the bytes of tensors.
class CountingAllocator : public nn::HostAllocator {
 public:
  c10::DataPtr give(size_t bytes) const override {
    void* block = std::aligned_alloc(kHeader, kHeader + (bytes + kHeader - 1) / kHeader * kHeader);
    *static_cast<size_t*>(block) = bytes;
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    return {static_cast<char*>(block) + kHeader, block, &release, c10::Device(c10::kCPU)};
  }
  static size_t peak() { return peak_; }

 private:
  static void release(void* block) {
    live_ -= *static_cast<size_t*>(block);
    std::free(block);
  }

  static constexpr size_t kHeader = 64;
  static inline size_t live_ = 0, peak_ = 0;
};

// The peak over a step of each worker's tensors, in bytes.
std::vector<double> peaks(Setting s, int rows, int cols) {
  s.rows = rows;
  s.cols = cols;
  const int size = rows * cols;
  const std::string name = comm::fresh_arena_name();
  int results[2];
  EXPECT_EQ(pipe(results), 0);
  comm::LocalProcesses processes(size, [&](int rank) {
    static CountingAllocator allocator;
    c10::SetAllocator(c10::kCPU, &allocator, /*priority=*/1);
    at::set_num_threads(1);
    comm::Communicator communicator = meet(name, rank, size);
    CommunicatorSplit split(communicator, rows, cols);
    const nn::SpatialScope scope(&split);
    const auto model = make(s);
    const nn::Range own_rows = split.own_rows(s.side), own_cols = split.own_cols(s.side);
    const Tensor x = at::rand({s.batch, 3, own_rows.size(), own_cols.size()})
                         .contiguous(at::MemoryFormat::ChannelsLast);
    const Tensor labels = at::randint(5, {s.batch, own_rows.size(), own_cols.size()}, at::kLong);
    model->loss(model->forward(x), labels, 0).losses.mean().backward();
    const double peak = static_cast<double>(CountingAllocator::peak());
    const bool written = write(results[1], &peak, sizeof peak) == sizeof peak;
    communicator.barrier();
    return written ? 0 : 1;
  });
  for (int r = 0; r < size; ++r) EXPECT_EQ(processes.wait(r), 0);
  std::vector<double> all(static_cast<size_t>(size));
  const auto bytes = static_cast<ssize_t>(all.size() * sizeof(double));
  EXPECT_EQ(read(results[0], all.data(), static_cast<size_t>(bytes)), bytes);
  close(results[0]);
  close(results[1]);
  return all;
}

TEST_F(SpatialModels, TakeTheirShareOfTheMemory) {
  const Setting s = {"unet", 4, 1, 256, 1, 1, "fp32"};
  const double whole = peaks(s, 1, 1)[0];
  for (const auto& [rows, cols] : {std::pair{2, 1}, {2, 2}}) {
    for (const double peak : peaks(s, rows, cols))
      EXPECT_LT(peak, 1.12 * whole / (rows * cols)) << rows << "x" << cols;
  }
}

TEST_F(SpatialModels, RememberSizesInsteadOfAskingForThem) {
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    at::set_num_threads(1);
    CommunicatorSplit split(communicator, 2, 1);
    const nn::SpatialScope scope(&split);
    const Setting s = {"resnet20", 8, 2, 32, 2, 1, "fp32"};
    const auto model = make(s);
    const Tensor x = nn::own_part(split, make_batch(s).x).to(at::kFloat);
    model->forward(x);
    EXPECT_EQ(split.num_sums(), 19 + 1 + 1) << "normalisations, the mean, the input's size";
    EXPECT_LT(split.sizes().known.size(), 6) << "what is no longer in use is forgotten";
  });
}

TEST_F(SpatialModels, RefusePartsThatAreNot) {
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    CommunicatorSplit split(communicator, 2, 1);
    const nn::SpatialScope scope(&split);
    const Tensor x = at::zeros({1, 8, split.cell() == 0 ? 7 : 3, 8});
    try {
      nn::ops::max_pool2d(x, 3, 1, 1);
      ADD_FAILURE() << "not refused";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::conflict) << e.what();
      EXPECT_NE(e.message().find("own_part()"), std::string::npos) << e.what();
    }
  });
}

TEST_F(SpatialModels, EndTheStepWhereAWorkerIsLost) {
  comm::run_ranks(3, [&](comm::Communicator& communicator) {
    at::set_num_threads(1);
    CommunicatorSplit split(communicator, 3, 1);
    const nn::SpatialScope scope(&split);
    const Setting s = {"unet", 8, 1, 48, 3, 1, "fp32"};
    const auto model = make(s);
    const Batch b = make_batch(s);
    const Tensor x = nn::own_part(split, b.x).to(at::kFloat);
    const nn::LossOutput out = model->loss(model->forward(x), nn::own_part(split, b.labels), 0);
    if (split.cell() == 1) return;  // leaves with its communicator
    try {
      out.losses.mean().backward();
      ADD_FAILURE() << "not noticed";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::peer_lost) << e.what();
    }
  });
}

}  // namespace
}  // namespace ductile::parallel
