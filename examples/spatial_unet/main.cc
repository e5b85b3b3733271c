// Trains a U-Net on images that no worker holds as a whole: rows x cols processes of this machine,
// each with its part of every image and activation.
//
//   spatial_unet [ROWS] [COLS] [SIDE] [WIDTH] [BATCH] [STEPS]      (2 1 512 16 1 10)
//
// The images are made as they are needed: grey noise with bright and dark discs, whose kind is to
// be found for each pixel. Each worker makes its own part only.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include "ductile/comm/arena.h"
#include "ductile/comm/communicator.h"
#include "ductile/comm/shm_transport.h"
#include "ductile/nn/memory.h"
#include "ductile/nn/model.h"
#include "ductile/nn/spatial.h"
#include "ductile/parallel/spatial_split.h"

namespace {

struct Settings {
  int rows = 2, cols = 1;
  int64_t side = 512, width = 16, batch = 1, steps = 10;
};

struct Batch {
  at::Tensor x, labels;
};

// A number in [0, 1) that depends on its arguments alone.
double hashed(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t h = a * 0x9E3779B97F4A7C15u + b * 0xC2B2AE3D27D4EB4Fu + c * 0x165667B19E3779F9u + 1;
  for (int round = 0; round < 2; ++round) h = (h ^ (h >> 31)) * 0xBF58476D1CE4E5B9u;
  return static_cast<double>(h >> 40) / (1 << 24);
}

// Rows and columns of `batch` images, from image `first` on.
Batch make_batch(const Settings& s, int64_t first, ductile::nn::Range rows,
                 ductile::nn::Range cols) {
  constexpr uint64_t kDiscs = 8;
  Batch b;
  b.x = at::empty({s.batch, 1, rows.size(), cols.size()},
                  at::TensorOptions(at::kFloat).memory_format(at::MemoryFormat::ChannelsLast));
  b.labels = at::empty({s.batch, rows.size(), cols.size()}, at::kLong);
  float* pixel = b.x.data_ptr<float>();
  int64_t* label = b.labels.data_ptr<int64_t>();
  for (int64_t image = first; image < first + s.batch; ++image) {
    struct Disc {
      double y, x, radius;
      int64_t kind;
    };
    std::array<Disc, kDiscs> discs;
    for (uint64_t d = 0; d < kDiscs; ++d) {
      discs[d] = {hashed(image, d, 1), hashed(image, d, 2), 0.05 + 0.1 * hashed(image, d, 3),
                  1 + static_cast<int64_t>(d % 3)};
    }
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      for (int64_t j = cols.begin; j < cols.end; ++j) {
        const double y = (i + 0.5) / s.side, x = (j + 0.5) / s.side;
        int64_t kind = 0;
        for (const Disc& d : discs)
          if (std::hypot(y - d.y, x - d.x) < d.radius) kind = d.kind;
        *pixel++ = static_cast<float>(0.8 * kind - 1 + hashed(image, i, 1000 + j));
        *label++ = kind;
      }
    }
  }
  return b;
}

// Of /proc/self/status, in MB.
double memory(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field + ":")) return std::atof(line.c_str() + field.size() + 1) / 1024;
  return 0;
}

int train(const Settings& s, int cell, const std::string& meeting) {
  using Clock = std::chrono::steady_clock;
  const int num_cells = s.rows * s.cols;
  at::set_num_threads(1);
  if (void* symbol = dlsym(RTLD_DEFAULT, "openblas_set_num_threads")) {
    reinterpret_cast<void (*)(int)>(symbol)(1);
  }
  ductile::nn::keep_freed_memory();

  // The workers of one host meet by name and share memory; between hosts, a Communicator over
  // another transport does the same.
  ductile::comm::ArenaOptions arena_options;
  arena_options.region_bytes = size_t{8} << 20;
  std::shared_ptr<ductile::comm::Arena> arena =
      ductile::comm::Arena::meet(meeting, cell, num_cells, arena_options, std::chrono::seconds(60));
  ductile::comm::CommunicatorOptions options;
  options.arena = arena;
  ductile::comm::Communicator communicator(ductile::comm::make_shm_transport(arena), options);
  ductile::parallel::CommunicatorSplit split(communicator, s.rows, s.cols);

  ductile::nn::ModelArgs args;
  args.options.name = "unet";
  args.options.width = s.width;
  args.info = {1, s.side, s.side, 4, 0};
  const auto model = ductile::nn::make_model(args);
  std::vector<at::Tensor> momentum;
  for (const auto& p : model->parameters()) momentum.push_back(at::zeros_like(p.tensor));

  const ductile::nn::SpatialScope scope(&split);  // from here on, images are parts of images
  const double before = memory("VmRSS");
  std::vector<double> seconds;
  for (int64_t step = 0; step < s.steps; ++step) {
    const Batch b = make_batch(s, step * s.batch, split.own_rows(s.side), split.own_cols(s.side));
    communicator.barrier();
    const auto start = Clock::now();
    const auto out = model->loss(model->forward(b.x), b.labels, 0);
    const at::Tensor loss = out.losses.mean();
    loss.backward();
    std::vector<at::Tensor> gradients;
    for (const auto& p : model->parameters()) gradients.push_back(p.tensor.grad());
    ductile::parallel::sum_gradients(communicator, gradients);
    {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < gradients.size(); ++i) {
        momentum[i].mul_(0.9).add_(gradients[i]);
        model->parameters()[i].tensor.sub_(momentum[i], 0.02);
        gradients[i].zero_();
      }
    }
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    if (cell == 0 && (step % 5 == 0 || step + 1 == s.steps)) {
      std::printf("step %ld: loss %.4f, %.2f %% of the pixels right, %.3f s\n",
                  static_cast<long>(step), loss.item<double>(),
                  100.0 * static_cast<double>(out.correct) / static_cast<double>(out.predictions),
                  seconds.back());
    }
  }
  std::sort(seconds.begin(), seconds.end());
  const std::array<double, 2> own = {
      memory("VmHWM") - before,
      static_cast<double>(split.bytes_sent()) / (1 << 20) / static_cast<double>(s.steps)};
  std::vector<double> all(2 * num_cells);
  communicator.all_gather(own.data(), all.data(), 2, ductile::DType::f64);
  if (cell == 0) {
    std::printf("median step %.3f s\n", seconds[seconds.size() / 2]);
    for (int c = 0; c < num_cells; ++c) {
      std::printf("worker %d: %.1f MB for the steps, %.2f MB of edges sent a step\n", c, all[2 * c],
                  all[2 * c + 1]);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  const auto given = [&](int i, auto& value) {
    if (i < argc) value = std::atoi(argv[i]);
  };
  given(1, s.rows);
  given(2, s.cols);
  given(3, s.side);
  given(4, s.width);
  given(5, s.batch);
  given(6, s.steps);
  if (s.rows < 1 || s.cols < 1 || s.side < 8 || s.width < 1 || s.batch < 1 || s.steps < 1) {
    std::fprintf(stderr, "usage: %s [ROWS] [COLS] [SIDE] [WIDTH] [BATCH] [STEPS]\n", argv[0]);
    return 2;
  }
  const std::string meeting = "spatial-unet-" + std::to_string(getpid());
  std::vector<pid_t> workers;
  for (int cell = 0; cell < s.rows * s.cols; ++cell) {
    const pid_t pid = fork();
    if (pid == 0) {
      int code = 1;
      try {
        code = train(s, cell, meeting);
      } catch (const std::exception& e) {
        std::fprintf(stderr, "worker %d: %s\n", cell, e.what());
      }
      std::fflush(nullptr);
      _exit(code);
    }
    workers.push_back(pid);
  }
  int result = 0;
  for (const pid_t pid : workers) {
    int status = 0;
    waitpid(pid, &status, 0);
    if (status != 0) result = 1;
  }
  return result;
}
