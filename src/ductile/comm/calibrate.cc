#include "ductile/comm/calibrate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/options.h"

namespace ductile::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kTag = (1u << 24) - 1;  // of calibration messages

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Measured {
  double latency = 0;
  double seconds_a_byte = 0;
  double overhead = 0;
};

// Half the time of a message of `bytes` forth and back; the fastest of `repeats`.
double half_round(Communicator& comm, int peer, bool leads, size_t bytes, int repeats, int rail) {
  std::vector<std::byte> buffer(bytes);
  double best = 1e9;
  for (int i = 0; i <= repeats; ++i) {  // the first warms up
    const auto start = Clock::now();
    if (leads) {
      comm.send(peer, kTag, buffer, rail);
      comm.receive(peer, kTag, buffer, rail);
    } else {
      comm.receive(peer, kTag, buffer, rail);
      comm.send(peer, kTag, buffer, rail);
    }
    if (i > 0) best = std::min(best, since(start) / 2);
  }
  return best;
}

// What each message of a row of small ones costs beyond the first.
double cost_of_one_more(Communicator& comm, int peer, bool leads, double latency, int rail) {
  constexpr int kRow = 16;
  std::array<std::byte, kRow> row{};
  std::byte answer{};
  const auto start = Clock::now();
  std::vector<Work> work;
  for (std::byte& b : row) {
    work.push_back(leads ? comm.start_send(peer, kTag, {&b, 1}, rail)
                         : comm.start_receive(peer, kTag, {&b, 1}, rail));
  }
  for (const Work& w : work) w.wait();
  if (leads) {
    comm.receive(peer, kTag, {&answer, 1}, rail);
  } else {
    comm.send(peer, kTag, {&answer, 1}, rail);
  }
  return std::max(0.0, since(start) - 2 * latency) / kRow / 2;
}

Measured measure_pair(Communicator& comm, int peer, const CalibrationOptions& options, int rail) {
  const bool leads = comm.rank() < peer;
  Measured m;
  m.latency = half_round(comm, peer, leads, 1, 2 * options.repeats, rail);
  m.overhead = std::min(cost_of_one_more(comm, peer, leads, m.latency, rail), m.latency / 2);
  const double large = half_round(comm, peer, leads, options.large_bytes, options.repeats, rail);
  m.seconds_a_byte =
      std::max(1e-13, (large - m.latency) / static_cast<double>(options.large_bytes));
  return m;
}

double seconds_a_reduced_byte() {
  std::vector<float> a(64 << 10, 1.0f);
  std::vector<float> b(a);
  auto* x = reinterpret_cast<std::byte*>(a.data());
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    combine(Reduction::sum, DType::f32, x, x, reinterpret_cast<std::byte*>(b.data()), a.size());
    best = std::min(best, since(start));
  }
  return best / static_cast<double>(a.size() * sizeof(float));
}

// The partner of element i of a row of n, pairing 0-1, 2-3 ...; -1: none.
int partner(int i, int n) {
  const int p = i ^ 1;
  return p < n ? p : -1;
}

std::optional<Fabric> cached(const Fabric& shape, const std::filesystem::path& file) {
  if (file.empty() || !std::filesystem::exists(file)) return std::nullopt;
  try {
    Fabric fabric;
    OptionSet options(fabric);
    options.read_toml(file);
    if (same_shape(fabric, shape)) return fabric;
  } catch (const Error&) {  // as good as none: it is measured and written anew
  }
  return std::nullopt;
}

// The measured values of a fabric as one row, and back; what is 0 keeps its place.
std::array<double, 7> row_of(const Fabric& f) {
  return {f.inside.latency,        1 / f.inside.bandwidth, f.inside.overhead,     f.between.latency,
          1 / f.between.bandwidth, f.between.overhead,     1 / f.reduce_bandwidth};
}

void take_row(Fabric& f, const std::array<double, 7>& row) {
  const auto set = [](double& to, double value) {
    if (value > 0) to = value;
  };
  const auto set_rate = [](double& to, double value) {
    if (value > 0) to = 1 / value;
  };
  set(f.inside.latency, row[0]);
  set_rate(f.inside.bandwidth, row[1]);
  set(f.inside.overhead, row[2]);
  set(f.between.latency, row[3]);
  set_rate(f.between.bandwidth, row[4]);
  set(f.between.overhead, row[5]);
  set_rate(f.reduce_bandwidth, row[6]);
}

}  // namespace

Fabric calibrate(Communicator& comm, const CalibrationOptions& options) {
  const Topology& topology = comm.topology();
  Fabric fabric = comm.fabric();
  const auto kept = comm.rank() == 0 ? cached(fabric, options.cache) : std::nullopt;

  // Rank 0 says whether it knows the links already, and which values they have.
  std::array<double, 8> known{};
  if (kept) {
    known[0] = 1;
    const auto row = row_of(*kept);
    std::copy(row.begin(), row.end(), known.begin() + 1);
  }
  CallOptions plain;
  plain.algorithm = Algorithm::recursive_doubling;
  plain.pipeline = 1;
  comm.broadcast(known.data(), known.size(), DType::f64, 0, plain);
  std::array<double, 7> row{};
  if (known[0] == 1) {
    std::copy(known.begin() + 1, known.end(), row.begin());
  } else {
    std::map<int, std::vector<int>> hosts;
    for (int r = 0; r < comm.size(); ++r) hosts[topology.host_of(r)].push_back(r);
    const auto& own = hosts[topology.host_of(comm.rank())];
    std::vector<int> leaders;
    for (const auto& [host, ranks] : hosts) leaders.push_back(ranks.front());

    const auto index = [&](const std::vector<int>& ranks) {
      const auto it = std::find(ranks.begin(), ranks.end(), comm.rank());
      return it == ranks.end() ? -1 : static_cast<int>(it - ranks.begin());
    };
    const auto measure = [&](const std::vector<int>& ranks, size_t at, int rail) {
      const int i = index(ranks);
      const int p = i < 0 ? -1 : partner(i, static_cast<int>(ranks.size()));
      if (p < 0) return;
      const Measured m = measure_pair(comm, ranks[p], options, rail);
      row[at] = std::max(row[at], m.latency - 2 * m.overhead);
      row[at + 1] = std::max(row[at + 1], m.seconds_a_byte);
      row[at + 2] = std::max(row[at + 2], m.overhead);
    };
    measure(own, 0, 0);
    comm.barrier();
    for (int rail = 0; rail < topology.num_rails; ++rail) measure(leaders, 3, rail);
    row[6] = seconds_a_reduced_byte();
    plain.reduction = Reduction::max;
    comm.all_reduce(row.data(), row.data(), row.size(), DType::f64, plain);
  }
  take_row(fabric, row);
  comm.set_fabric(fabric);
  if (comm.rank() == 0 && !kept && !options.cache.empty()) {
    Fabric copy = fabric;
    write_file_atomic(options.cache, OptionSet(copy).to_toml(false, true));
  }
  return fabric;
}

}  // namespace ductile::comm
