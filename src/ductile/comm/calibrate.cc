#include "ductile/comm/calibrate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/options.h"
#include "ductile/base/paths.h"

namespace ductile::comm {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr size_t kSmall = 8;          // bytes of a message that measures latency
constexpr int kRested = 2;            // messages in a row on a link that has rested
constexpr size_t kMiddle = 32 << 10;  // and of one that buffers and caches hold with ease

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Lists by which the ranks of a kind of link measure it together. `ranks` stand in a ring; a rank
// that is not in it, or alone in it, has an empty list.
class Probe {
 public:
  Probe(const Communicator& comm, const std::vector<int>& ranks, int rail)
      : ranks_(ranks), rail_(static_cast<uint8_t>(rail)) {
    const auto it = std::find(ranks.begin(), ranks.end(), comm.rank());
    if (it != ranks.end() && ranks.size() > 1) place_ = static_cast<int>(it - ranks.begin());
    list_.rank = comm.rank();
    list_.num_ranks = comm.size();
  }

  bool takes_part() const { return place_ >= 0; }

  // Messages to the next rank, each once the one from the previous rank is there.
  Schedule row(int messages) const {
    Schedule list = list_;
    list.chunks_per_block = 4;
    for (int i = 0; takes_part() && i < messages; ++i) add(list, 1, i % 4, (i + 1) % 4);
    return list;
  }
  // A message to every other rank, and one of each.
  Schedule fan() const {
    Schedule list = list_;
    const int n = static_cast<int>(ranks_.size());
    list.chunks_per_block = 2 * n;
    for (int d = 1; takes_part() && d < n; ++d) add(list, d, d, n + d);
    return list;
  }

 private:
  int other(int distance) const {
    const int n = static_cast<int>(ranks_.size());
    return ranks_[static_cast<size_t>((place_ + distance + n) % n)];
  }
  void add(Schedule& list, int distance, int from, int to) const {
    Step send{.op = Op::send, .rail = rail_, .peer = other(distance)};
    send.a = {BufferName::out, from, 1};
    Step receive{.op = Op::receive, .rail = rail_, .peer = other(-distance)};
    receive.dst = {BufferName::out, to, 1};
    list.steps.push_back(send);
    list.steps.push_back(receive);
  }

  const std::vector<int>& ranks_;
  uint8_t rail_;
  int place_ = -1;
  Schedule list_;
};

double median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

class Prober {
 public:
  Prober(Communicator& comm, const CalibrationOptions& options) : comm_(comm), options_(options) {}

  // All ranks of the communicator call it.
  Link measure(const Probe& probe, size_t num_ranks, bool within_host) {
    agree_on_repeats(probe);
    const double small = message_seconds(probe, kSmall, 16);
    const double large = message_seconds(probe, options_.large_bytes, 4);
    const double fan = seconds(probe.fan(), kSmall, 4) / 4;
    Link link;
    // A rank works for each message that it sends and for each that it gets. Messages to one peer
    // share system calls and wake-ups, hence one to each.
    if (num_ranks > 2) {
      const auto more = 2 * static_cast<double>(num_ranks - 2);
      link.overhead = std::clamp((fan - small) / more, 0.0, 0.45 * small);
    } else {
      link.overhead = 0.1 * small;
    }
    link.latency = small - 2 * link.overhead;
    // A disturbance of one measurement must not make bytes look free.
    const auto rate = [](double bytes, double shorter, double longer) {
      return bytes / std::max({longer - shorter, longer / 8, 1e-9});
    };
    const auto bytes = static_cast<double>(options_.large_bytes);
    link.bandwidth = rate(bytes, small, large);
    if (options_.large_bytes <= kMiddle) return link;
    constexpr auto kBurst = static_cast<double>(kMiddle);
    const double middle =
        within_host ? message_seconds(probe, kMiddle, 16) : rested_message_seconds(probe, kMiddle);
    const double fast = rate(kBurst, small, middle);
    // Buffers and caches hold one message; a shaper of traffic lets so many bytes of an operation
    // pass and then keeps to its rate.
    const double slow = within_host ? rate(bytes - kBurst, middle, large) : link.bandwidth;
    if (fast > (within_host ? 1 : 1.5) * slow) {
      link.burst = within_host ? kBurst : kRested * kBurst;
      link.bandwidth = fast;
      link.sustained = slow;
    }
    return link;
  }

 private:
  double message_seconds(const Probe& probe, size_t bytes, int messages) {
    return seconds(probe.row(messages), bytes, 1) / messages;
  }

  // Of a few messages after a time in which a shaper has gathered what it lets pass at once.
  double rested_message_seconds(const Probe& probe, size_t bytes) {
    constexpr std::chrono::milliseconds kRest{5};
    return seconds(probe.row(kRested), bytes, 1, kRest) / kRested;
  }

  // More on links where it costs little.
  void agree_on_repeats(const Probe& probe) {
    repeats_ = 1;
    constexpr double kWorthIt = 10e-3;
    double took = seconds(probe.row(16), kSmall, 1);
    CallOptions plain;
    plain.algorithm = Algorithm::recursive_doubling;
    plain.pipeline = 1;
    plain.reduction = Reduction::max;
    comm_.all_reduce(&took, &took, 1, DType::f64, plain);
    repeats_ = std::clamp(static_cast<int>(kWorthIt / took), 1, 4) * options_.repeats;
  }

  // Seconds of `runs` of a list whose chunks have `bytes`: the median of several times. One run of
  // messages that do not wait for each other tells nothing, since a rank may be ahead of its
  // neighbours by all that fits into buffers.
  double seconds(const Schedule& list, size_t bytes, int runs,
                 std::chrono::milliseconds rest = std::chrono::milliseconds(0)) {
    const auto size = static_cast<int64_t>(bytes) * list.chunks_per_block;
    if (memory_.size() < static_cast<size_t>(size)) memory_.resize(static_cast<size_t>(size));
    std::vector<double> times;
    for (int i = 0; i <= repeats_; ++i) {
      std::this_thread::sleep_for(rest);
      comm_.barrier();
      const auto start = Clock::now();
      for (int k = 0; k < runs; ++k) {
        comm_.run_list(list, memory_.data(), memory_.data(), size, DType::u8);
      }
      if (i > 0) times.push_back(since(start));  // the first warms up
    }
    return median(times);
  }

  Communicator& comm_;
  const CalibrationOptions& options_;
  int repeats_ = 1;
  std::vector<std::byte> memory_;
};

// Long enough that ranks which share a core get in each other's way, as they do in a collective.
double seconds_a_reduced_byte() {
  std::vector<float> a(64 << 10, 1.0f);
  std::vector<float> b(a);
  auto* x = reinterpret_cast<std::byte*>(a.data());
  constexpr int kCalls = 64;
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const auto start = Clock::now();
    for (int k = 0; k < kCalls; ++k) {
      combine(Reduction::sum, DType::f32, x, x, reinterpret_cast<std::byte*>(b.data()), a.size());
    }
    best = std::min(best, since(start));
  }
  return best / kCalls / static_cast<double>(a.size() * sizeof(float));
}

// The measured values of a fabric as one row, and back; what is 0 keeps its place.
using Row = std::array<double, 13>;

double inverse(double x) { return x > 0 ? 1 / x : 0; }

Row row_of(const Fabric& f) {
  return {f.inside.latency,
          inverse(f.inside.bandwidth),
          f.inside.overhead,
          f.inside.burst,
          inverse(f.inside.sustained),
          f.between.latency,
          inverse(f.between.bandwidth),
          f.between.overhead,
          f.between.burst,
          inverse(f.between.sustained),
          inverse(f.reduce_bandwidth),
          f.shared_latency,
          inverse(f.shared_bandwidth)};
}

void take_row(Fabric& f, const Row& row) {
  const auto set = [](double& to, double value) {
    if (value > 0) to = value;
  };
  if (row[0] > 0) {
    f.inside.latency = row[0];
    f.inside.bandwidth = 1 / row[1];
    f.inside.overhead = row[2];
    f.inside.burst = row[3];
    f.inside.sustained = inverse(row[4]);
  }
  if (row[5] > 0) {
    f.between.latency = row[5];
    f.between.bandwidth = 1 / row[6];
    f.between.overhead = row[7];
    f.between.burst = row[8];
    f.between.sustained = inverse(row[9]);
  }
  set(f.reduce_bandwidth, inverse(row[10]));
  set(f.shared_latency, row[11]);
  set(f.shared_bandwidth, inverse(row[12]));
}

// Sums in shared memory, small and large; of data outside of it where it is full.
void measure_shared(Communicator& comm, int repeats, Row& row) {
  if (!comm.uses_arena(Collective::all_reduce, DType::f32)) return;
  constexpr int64_t kCount = 1 << 20;
  float small[2] = {};
  std::vector<float> own;
  float* data = nullptr;
  Arena* const arena = comm.arena();
  const size_t mark = arena != nullptr ? arena->mark() : 0;
  if (arena != nullptr && arena->room() >= kCount * sizeof(float)) {
    data = reinterpret_cast<float*>(arena->allocate(kCount * sizeof(float)));
  } else {
    own.resize(kCount);
    data = own.data();
  }
  std::vector<double> smalls, larges;
  for (int i = 0; i <= repeats; ++i) {
    auto start = Clock::now();
    for (int k = 0; k < 16; ++k) comm.all_reduce(small, small, 2, DType::f32);
    const double small_seconds = since(start) / 16;
    start = Clock::now();
    comm.all_reduce(data, data, kCount, DType::f32);
    if (i == 0) continue;
    smalls.push_back(small_seconds);
    larges.push_back(since(start));
  }
  if (arena != nullptr) arena->release(mark);
  row[11] = median(smalls);
  row[12] = std::max(median(larges) - row[11], 1e-9) / (kCount * sizeof(float));
}

Row measure_all(Communicator& comm, const CalibrationOptions& options) {
  const Topology& topology = comm.topology();
  std::map<int, std::vector<int>> hosts;
  for (int r = 0; r < comm.size(); ++r) hosts[topology.host_of(r)].push_back(r);
  std::vector<int> leaders;
  for (const auto& [host, ranks] : hosts) leaders.push_back(ranks.front());
  Row row{};
  Prober prober(comm, options);
  const auto measure = [&](const std::vector<int>& ranks, int rail, bool within_host) {
    const Probe probe(comm, ranks, rail);
    const Link link = prober.measure(probe, ranks.size(), within_host);
    if (!probe.takes_part()) return;
    const auto most = [&](size_t at, double value) { row[at] = std::max(row[at], value); };
    const size_t at = within_host ? 0 : 5;
    most(at, link.latency);
    most(at + 1, inverse(link.bandwidth));
    most(at + 2, link.overhead);
    most(at + 3, link.burst);
    most(at + 4, inverse(link.sustained));
  };
  const auto several = [](const auto& list) { return list.second.size() > 1; };
  if (std::any_of(hosts.begin(), hosts.end(), several)) {
    measure(hosts[topology.host_of(comm.rank())], 0, true);
  }
  for (int rail = 0; rail < topology.num_rails && leaders.size() > 1; ++rail) {
    measure(leaders, rail, false);
  }
  comm.barrier();
  row[10] = seconds_a_reduced_byte();
  measure_shared(comm, options.repeats, row);
  return row;
}

// What a result belongs to, as the comment that its file begins with.
std::string key_text(Communicator& comm, const CalibrationOptions& options) {
  std::array<char, 64> name{};
  gethostname(name.data(), name.size() - 1);
  std::vector<std::array<char, 64>> names(static_cast<size_t>(comm.size()));
  comm.all_gather(name.data(), names.data(), static_cast<int64_t>(name.size()), DType::u8);
  const Topology& t = comm.topology();
  std::string text = fmt::format(
      "# ductile {}, {}{}, {} ranks, grid {} x {}, {} links{}\n", DUCTILE_VERSION,
      options.transport,
      comm.uses_arena(Collective::barrier, DType::u8) ? " and shared memory" : "", comm.size(),
      t.grid.num_rows, t.grid.num_columns, t.num_rails, t.both_directions ? " both ways" : "");
  for (int r = 0; r < comm.size(); ++r) {
    const auto& host = names[static_cast<size_t>(r)];
    const bool same =
        r > 0 && t.host_of(r) == t.host_of(r - 1) && host == names[static_cast<size_t>(r) - 1];
    if (!same) text += fmt::format("# from rank {}: host {}, {}\n", r, t.host_of(r), host.data());
  }
  return text;
}

fs::path file_of(const fs::path& folder, const std::string& key) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : key) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return folder / fmt::format("links-{:016x}.toml", hash);
}

std::optional<Fabric> cached(const Fabric& shape, const fs::path& file, const std::string& key) {
  try {
    if (kind_of(file) == FileKind::none) return std::nullopt;
    if (!read_file(file).starts_with(key)) return std::nullopt;
    Fabric fabric;
    OptionSet options(fabric);
    options.read_toml(file);
    if (same_shape(fabric, shape)) return fabric;
  } catch (const Error&) {  // as good as none: it is measured and written anew
  }
  return std::nullopt;
}

// A cache that cannot be written is no reason to fail.
bool keep(const Fabric& fabric, const fs::path& file, const std::string& key) {
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  try {
    Fabric copy = fabric;
    write_file_atomic(file, key + OptionSet(copy).to_toml(false, true));
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

fs::path calibration_cache() {
  const auto value = [](const char* name) {
    const char* text = std::getenv(name);
    return fs::path(text == nullptr ? "" : text);
  };
  if (const fs::path cache = value("XDG_CACHE_HOME"); cache.is_absolute()) return cache / "ductile";
  if (const fs::path home = value("HOME"); home.is_absolute()) return home / ".cache" / "ductile";
  return {};
}

Calibration calibrate(Communicator& comm, const CalibrationOptions& options) {
  Calibration result;
  result.fabric = comm.fabric();
  const std::string key = key_text(comm, options);
  std::optional<Fabric> kept;
  if (comm.rank() == 0 && !options.cache.empty()) {
    result.file = file_of(options.cache, key);
    if (!options.anew) kept = cached(result.fabric, result.file, key);
  }

  // Rank 0 says whether it knows the links already, and which values they have.
  std::array<double, 1 + Row{}.size()> known{};
  if (kept) {
    known[0] = 1;
    const Row row = row_of(*kept);
    std::copy(row.begin(), row.end(), known.begin() + 1);
  }
  CallOptions plain;
  plain.algorithm = Algorithm::recursive_doubling;
  plain.pipeline = 1;
  comm.broadcast(known.data(), known.size(), DType::f64, 0, plain);
  Row row{};
  if (known[0] == 1) {
    std::copy(known.begin() + 1, known.end(), row.begin());
  } else {
    const auto start = Clock::now();
    row = measure_all(comm, options);
    plain.reduction = Reduction::max;
    comm.all_reduce(row.data(), row.data(), row.size(), DType::f64, plain);
    result.seconds = since(start);
  }
  take_row(result.fabric, row);
  comm.set_fabric(result.fabric);
  if (!result.file.empty() && !kept && !keep(result.fabric, result.file, key)) result.file.clear();
  return result;
}

}  // namespace ductile::comm
