// mpirun -np RANKS all_reduce_open_mpi SIZES SECONDS: MPI_Allreduce; the script sets algorithms.
#include <mpi.h>

#include "measure.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const bench::Sweep sweep = bench::read_sweep(argv[1], argv[2]);
  for (const size_t bytes : sweep.bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 2 << 20, bytes) != 0) MPI_Abort(MPI_COMM_WORLD, 1);
    float* const data = static_cast<float*>(memory);
    const int n = static_cast<int>(bytes / 4);
    const auto largest = [&](double mine) {
      double most = 0;
      MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
      MPI_Barrier(MPI_COMM_WORLD);
      return most;
    };
    bench::measure(
        sweep.seconds, rank, size, data, static_cast<size_t>(n),
        [&] { MPI_Allreduce(MPI_IN_PLACE, data, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }, largest);
    std::free(memory);
  }
  MPI_Finalize();
}
