// mpirun ... hosts_all_reduce_open_mpi SIZES REPETITIONS NAME: MPI_Allreduce; the caller chooses
// the algorithm by Open MPI's parameters and names it.
#include <mpi.h>

#include "measure.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc != 4) MPI_Abort(MPI_COMM_WORLD, 2);
  const auto largest = [&](double mine) {
    double most = 0;
    MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
  };
  for (const size_t bytes : bench::sizes(argv[1])) {
    std::vector<float> data(bytes / sizeof(float));
    bench::measure(
        std::string("openmpi_") + argv[3], rank, size, bytes, std::atoi(argv[2]), data.data(),
        [&] {
          MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT,
                        MPI_SUM, MPI_COMM_WORLD);
        },
        largest);
  }
  MPI_Finalize();
}
