// Images cut over workers against one worker with whole images: time, processor time and memory of
// a training step (forward, backward, sum of gradients). Whole and cut runs take turns, each in
// fresh processes with one thread a worker.
//
//   spatial_bench [ROUNDS] [STEPS] [SIDE] [ROWS] [COLS]      (5 4 512 2 1)
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include "ductile/comm/arena.h"
#include "ductile/comm/communicator.h"
#include "ductile/comm/shm_transport.h"
#include "ductile/nn/halo.h"
#include "ductile/nn/memory.h"
#include "ductile/nn/model.h"
#include "ductile/parallel/spatial_split.h"

namespace {

using namespace ductile;

struct Case {
  const char* model;
  int64_t width, batch;
};

struct Figures {
  double seconds = 0;  // of a step, median
  double cpu = 0;      // processor seconds of a step, of the busiest worker
  double memory = 0;   // MB that the steps took, of the largest worker
  double edges = 0;    // MB sent a step, of the busiest worker
};

double status(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(field + ":")) return std::atof(line.c_str() + field.size() + 1) / 1024;
  return 0;
}

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

Figures work(const Case& c, int64_t side, int rows, int cols, int cell, int steps,
             const std::string& meeting) {
  using Clock = std::chrono::steady_clock;
  at::set_num_threads(1);
  if (void* symbol = dlsym(RTLD_DEFAULT, "openblas_set_num_threads")) {
    reinterpret_cast<void (*)(int)>(symbol)(1);
  }
  nn::keep_freed_memory();
  comm::ArenaOptions arena_options;
  arena_options.region_bytes = size_t{64} << 20;
  std::shared_ptr<comm::Arena> arena =
      comm::Arena::meet(meeting, cell, rows * cols, arena_options, std::chrono::seconds(60));
  comm::CommunicatorOptions options;
  options.arena = arena;
  comm::Communicator communicator(comm::make_shm_transport(arena), options);
  parallel::CommunicatorSplit split(communicator, rows, cols);

  nn::ModelArgs args;
  args.options.name = c.model;
  args.options.width = c.width;
  args.info = {3, side, side, 8, 0};
  const auto model = nn::make_model(args);
  const bool pixels = std::string(c.model) == "unet";
  const int64_t height = split.own_rows(side).size(), width = split.own_cols(side).size();
  const at::Tensor x =
      at::rand({c.batch, 3, height, width}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor labels = pixels ? at::randint(8, {c.batch, height, width}, at::kLong)
                                   : at::randint(8, {c.batch}, at::kLong);

  // One worker with whole images is one without a split.
  const nn::SpatialScope scope(rows * cols > 1 ? &split : nullptr);
  const double before = status("VmRSS");
  std::vector<double> seconds;
  double cpu = 0;
  for (int step = -1; step < steps; ++step) {  // the first one warms up
    communicator.barrier();
    const auto start = Clock::now();
    const double cpu_start = cpu_seconds();
    model->loss(model->forward(x), labels, 0).losses.mean().backward();
    std::vector<at::Tensor> gradients;
    for (const auto& p : model->parameters()) gradients.push_back(p.tensor.grad());
    parallel::sum_gradients(communicator, gradients);
    for (const at::Tensor& g : gradients) g.zero_();
    if (step < 0) continue;
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    cpu += cpu_seconds() - cpu_start;
  }
  std::sort(seconds.begin(), seconds.end());
  const std::array<double, 4> own = {
      seconds[seconds.size() / 2], cpu / steps, status("VmHWM") - before,
      static_cast<double>(split.bytes_sent()) / (1 << 20) / (steps + 1)};
  std::vector<double> all(4 * rows * cols);
  communicator.all_gather(own.data(), all.data(), 4, DType::f64);
  Figures f;
  for (size_t i = 0; i < all.size(); i += 4) {
    f.seconds = std::max(f.seconds, all[i]);
    f.cpu = std::max(f.cpu, all[i + 1]);
    f.memory = std::max(f.memory, all[i + 2]);
    f.edges = std::max(f.edges, all[i + 3]);
  }
  return f;
}

// Runs the workers and returns what the first of them found.
Figures run(const Case& c, int64_t side, int rows, int cols, int steps) {
  static int count = 0;
  std::fflush(stdout);
  const std::string meeting = fmt::format("spatial-bench-{}-{}", getpid(), ++count);
  int result[2];
  if (pipe(result) != 0) std::exit(1);
  std::vector<pid_t> workers;
  for (int cell = 0; cell < rows * cols; ++cell) {
    const pid_t pid = fork();
    if (pid == 0) {
      int code = 1;
      try {
        const Figures f = work(c, side, rows, cols, cell, steps, meeting);
        code = cell != 0 || write(result[1], &f, sizeof f) == sizeof f ? 0 : 1;
      } catch (const std::exception& e) {
        fmt::print(stderr, "worker {}: {}\n", cell, e.what());
      }
      std::fflush(nullptr);
      _exit(code);
    }
    workers.push_back(pid);
  }
  bool well = true;
  for (const pid_t pid : workers) {
    int code = 0;
    waitpid(pid, &code, 0);
    well = well && code == 0;
  }
  Figures f;
  if (!well || read(result[0], &f, sizeof f) != sizeof f) std::exit(1);
  close(result[0]);
  close(result[1]);
  return f;
}

struct Spread {
  double median, low, high;
};

Spread spread(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return {v[v.size() / 2], v.front(), v.back()};
}

}  // namespace

int main(int argc, char** argv) {
  const auto given = [&](int i, int value) { return i < argc ? std::atoi(argv[i]) : value; };
  const int rounds = given(1, 5), steps = given(2, 4), side = given(3, 512);
  const int rows = given(4, 2), cols = given(5, 1);
  fmt::print("{}x{} images, {}x{} workers against one; {} rounds of {} steps\n", side, side, rows,
             cols, rounds, steps);
  fmt::print("{:<22} {:>19} {:>19} {:>6} {:>22} {:>22}\n", "model", "MB whole -> cut",
             "CPU s whole -> cut", "MB sent", "CPU ratio (range)", "speed-up (range)");
  for (const Case& c : {Case{"unet", 16, 1}, Case{"resnet20", 16, 1}, Case{"resnet18", 64, 4}}) {
    std::vector<double> cpu, speed, whole_memory, cut_memory, whole_cpu, cut_cpu;
    double edges = 0;
    for (int round = 0; round < rounds; ++round) {
      const Figures whole = run(c, side, 1, 1, steps), cut = run(c, side, rows, cols, steps);
      cpu.push_back(cut.cpu / whole.cpu);
      speed.push_back(whole.seconds / cut.seconds);
      whole_memory.push_back(whole.memory);
      cut_memory.push_back(cut.memory);
      whole_cpu.push_back(whole.cpu);
      cut_cpu.push_back(cut.cpu);
      edges = cut.edges;
    }
    const Spread r = spread(cpu), s = spread(speed);
    const double m = spread(cut_memory).median / spread(whole_memory).median;
    fmt::print(
        "{:<22} {:>6.0f} -> {:>4.0f} {:.3f} {:>8.3f} -> {:.3f} {:>9.2f} {:>8.3f} ({:.3f}-{:.3f}) "
        "{:>8.2f} ({:.2f}-{:.2f})\n",
        fmt::format("{} w{} b{}", c.model, c.width, c.batch), spread(whole_memory).median,
        spread(cut_memory).median, m, spread(whole_cpu).median, spread(cut_cpu).median, edges,
        r.median, r.low, r.high, s.median, s.low, s.high);
    std::fflush(stdout);
  }
}
