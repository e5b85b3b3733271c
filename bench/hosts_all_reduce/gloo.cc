// hosts_all_reduce_gloo SIZES REPETITIONS ALGORITHM...: Gloo over TCP. Run by bench/hosts.
// Algorithms: ring, bcube (its present function), ring_chunked, halving_doubling (its classes).
#include <filesystem>
#include <memory>

#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "measure.h"

namespace {

int run(int rank, int size, const std::string& address, const std::string& folder, char** argv,
        int argc) {
  gloo::rendezvous::FileStore store(folder);
  gloo::transport::tcp::attr attributes;
  attributes.hostname = address;
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
  for (const size_t bytes : bench::sizes(argv[1])) {
    std::vector<float> data(bytes / sizeof(float));
    for (int a = 3; a < argc; ++a) {
      const std::string algorithm = argv[a];
      std::unique_ptr<gloo::Algorithm> prepared;
      const std::vector<float*> pointers{data.data()};
      const int count = static_cast<int>(data.size());
      if (algorithm == "halving_doubling") {
        prepared =
            std::make_unique<gloo::AllreduceHalvingDoubling<float>>(context, pointers, count);
      } else if (algorithm == "ring_chunked") {
        prepared = std::make_unique<gloo::AllreduceRingChunked<float>>(context, pointers, count);
      }
      const auto all_reduce = [&] {
        if (prepared) return prepared->run();
        gloo::AllreduceOptions options(context);
        options.setOutput(data.data(), data.size());
        options.setTag(++tag);
        options.setReduceFunction(
            static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
        options.setAlgorithm(algorithm == "bcube" ? gloo::AllreduceOptions::Algorithm::BCUBE
                                                  : gloo::AllreduceOptions::Algorithm::RING);
        gloo::allreduce(options);
      };
      bench::measure("gloo_" + algorithm, rank, size, bytes, std::atoi(argv[2]), data.data(),
                     all_reduce, largest);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: hosts_all_reduce_gloo SIZES REPETITIONS ALGORITHM...\n");
    return 2;
  }
  char folder[] = "/tmp/hosts_all_reduce_gloo_XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  const std::vector<std::string> hosts = bench::words(std::getenv("HOSTS"));
  const std::vector<std::string> addresses = bench::words(std::getenv("ADDRESSES"));
  const int code = bench::on_hosts(hosts, [&](int rank) {
    const std::string& own = addresses[static_cast<size_t>(rank)];
    return run(rank, static_cast<int>(hosts.size()), own.substr(0, own.find(',')), folder, argv,
               argc);
  });
  std::filesystem::remove_all(folder);
  return code;
}
