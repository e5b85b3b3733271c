// all_reduce_gloo RANKS SIZES SECONDS ALGORITHM: Gloo over its TCP transport on the loopback
// interface (it has no shared memory). Algorithms: ring, bcube (its present function),
// ring_chunked, halving_doubling (its classes).
#include <filesystem>
#include <memory>

#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include "measure.h"

namespace {

int run(int rank, int size, const bench::Sweep& sweep, const std::string& folder,
        const std::string& algorithm) {
  gloo::rendezvous::FileStore store(folder);
  gloo::transport::tcp::attr attributes;
  attributes.iface = "lo";
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  context->connectFullMesh(store, device);
  uint32_t tag = 0;
  const auto largest = [&](double mine) {
    gloo::AllreduceOptions options(context);
    options.setOutput(&mine, 1);
    options.setTag(++tag);
    options.setReduceFunction([](void* out, const void* a, const void* b, size_t n) {
      for (size_t i = 0; i < n; ++i) {
        static_cast<double*>(out)[i] =
            std::max(static_cast<const double*>(a)[i], static_cast<const double*>(b)[i]);
      }
    });
    gloo::allreduce(options);
    return mine;
  };
  for (const size_t bytes : sweep.bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 2 << 20, bytes) != 0) return 1;
    float* const data = static_cast<float*>(memory);
    const size_t n = bytes / 4;
    std::unique_ptr<gloo::Algorithm> prepared;
    if (algorithm == "halving_doubling") {
      prepared = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(
          context, std::vector<float*>{data}, static_cast<int>(n));
    } else if (algorithm == "ring_chunked") {
      prepared = std::make_unique<gloo::AllreduceRingChunked<float>>(
          context, std::vector<float*>{data}, static_cast<int>(n));
    }
    bench::measure(
        sweep.seconds, rank, size, data, n,
        [&] {
          if (prepared) return prepared->run();
          gloo::AllreduceOptions options(context);
          options.setOutput(data, n);
          options.setTag(++tag);
          options.setReduceFunction(
              static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
          options.setAlgorithm(algorithm == "bcube" ? gloo::AllreduceOptions::Algorithm::BCUBE
                                                    : gloo::AllreduceOptions::Algorithm::RING);
          gloo::allreduce(options);
        },
        largest);
    prepared.reset();
    std::free(memory);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const int size = std::atoi(argv[1]);
  const bench::Sweep sweep = bench::read_sweep(argv[2], argv[3]);
  char folder[] = "/tmp/all_reduce_gloo_XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  for (int r = 1; r < size; ++r) {
    if (fork() == 0) _exit(run(r, size, sweep, folder, argv[4]));
  }
  int code = run(0, size, sweep, folder, argv[4]);
  for (int r = 1; r < size; ++r) {
    int status = 0;
    wait(&status);
    code |= status;
  }
  std::filesystem::remove_all(folder);
  return code != 0;
}
