// all_reduce_ours RANKS SIZES SECONDS: Ductile's all-reduce between processes of one host.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/comm/arena.h"
#include "ductile/comm/shm_collectives.h"
#include "measure.h"

namespace {

using ductile::DType;
using namespace ductile::comm;

int run(int rank, int size, const bench::Sweep& sweep, const std::string& name) {
  const size_t largest_bytes = *std::max_element(sweep.bytes.begin(), sweep.bytes.end());
  const auto arena = Arena::meet(name, rank, size, {.region_bytes = largest_bytes + (4 << 20)},
                                 std::chrono::seconds(20));
  std::byte* const word = arena->allocate(sizeof(double));
  std::byte* const data = arena->allocate(largest_bytes);
  const auto largest = [&](double mine) {
    *reinterpret_cast<double*>(word) = mine;
    barrier(*arena);
    double most = mine;
    for (int r = 0; r < size; ++r) {
      most = std::max(most, *reinterpret_cast<const double*>(arena->peer(r, word)));
    }
    barrier(*arena);
    return most;
  };
  for (const size_t bytes : sweep.bytes) {
    bench::measure(
        sweep.seconds, rank, size, reinterpret_cast<float*>(data), bytes / 4,
        [&] { all_reduce(*arena, DType::f32, data, bytes / 4); }, largest);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: all_reduce_ours RANKS SIZES SECONDS\n");
    return 2;
  }
  const int size = std::atoi(argv[1]);
  const bench::Sweep sweep = bench::read_sweep(argv[2], argv[3]);
  const std::string name = fmt::format("bench-{}", getpid());
  for (int r = 1; r < size; ++r) {
    if (fork() == 0) {
      const int code = run(r, size, sweep, name);
      _exit(code);
    }
  }
  int code = run(0, size, sweep, name);
  for (int r = 1; r < size; ++r) {
    int status = 0;
    wait(&status);
    code |= status;
  }
  return code != 0;
}
