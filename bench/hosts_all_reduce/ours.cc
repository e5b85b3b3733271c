// hosts_all_reduce_ours SIZES REPETITIONS ALGORITHM...: Ductile's all-reduce over its own TCP
// transport. Run by bench/hosts, which sets HOSTS and ADDRESSES. An algorithm may have ":N" behind
// it, its pipeline.
#include <exception>
#include <optional>

#include "ductile/comm/bench_ranks.h"
#include "measure.h"

namespace {

using namespace ductile;
using namespace ductile::comm;

std::vector<std::string> split(std::string text) {
  std::replace(text.begin(), text.end(), ',', ' ');
  return bench::words(text.c_str());
}

int run(int rank, const std::vector<std::vector<std::string>>& links, char** argv, int argc) {
  const int size = static_cast<int>(links.size());
  const net::Secret secret(std::string_view("a secret for a benchmark"));
  BenchPlace place;
  place.job = "bench";
  place.rank = rank;
  place.size = size;
  place.store = {links[0][0], 7700};
  place.tcp.links = links[static_cast<size_t>(rank)];
  if (const char* congestion = std::getenv("CONGESTION")) place.tcp.socket.congestion = congestion;
  if (const char* buffer = std::getenv("BUFFER")) place.tcp.socket.send_buffer = std::atoi(buffer);
  if (const char* spin = std::getenv("SPIN")) {
    place.tcp.spin = std::chrono::microseconds(std::atoi(spin));
  }
  std::optional<net::StoreServer> server;
  if (rank == 0) server.emplace(place.store, secret, place.job);
  BenchRank bench_rank(place, secret);
  Communicator& communicator = bench_rank.communicator();
  const auto largest = [&](double mine) {
    std::vector<double> all(static_cast<size_t>(size));
    communicator.all_gather(&mine, all.data(), 1, DType::f64);
    return *std::max_element(all.begin(), all.end());
  };
  for (const size_t bytes : bench::sizes(argv[1])) {
    std::vector<float> data(bytes / sizeof(float));
    for (int a = 3; a < argc; ++a) {
      const std::string word = argv[a];
      const size_t colon = word.find(':');
      CallOptions call;
      call.algorithm = algorithm_from_string(word.substr(0, colon));
      if (colon != std::string::npos) call.pipeline = std::stoi(word.substr(colon + 1));
      bench::measure(
          "ours_" + word, rank, size, bytes, std::atoi(argv[2]), data.data(),
          [&] {
            communicator.all_reduce(data.data(), data.data(), static_cast<int64_t>(data.size()),
                                    DType::f32, call);
          },
          largest);
    }
  }
  communicator.barrier();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: hosts_all_reduce_ours SIZES REPETITIONS ALGORITHM...\n");
    return 2;
  }
  std::vector<std::vector<std::string>> links;
  for (const std::string& host : bench::words(std::getenv("ADDRESSES")))
    links.push_back(split(host));
  return bench::on_hosts(bench::words(std::getenv("HOSTS")), [&](int rank) {
    try {
      return run(rank, links, argv, argc);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      return 1;
    }
  });
}
