#include "ductile/comm/schedule.h"

#include <array>
#include <cmath>

#include "ductile/base/error.h"
#include "ductile/comm/schedule_impl.h"

namespace ductile::comm {
namespace {

constexpr std::array<std::string_view, 6> kCollectives = {
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier"};

constexpr std::array<std::string_view, 8> kAlgorithms = {
    "auto",         "ring",   "recursive_doubling", "halving_doubling", "torus",
    "hierarchical", "direct", "canonical"};

void check(const Topology& topology, int rank, const ScheduleOptions& options) {
  const int n = topology.num_ranks;
  if (n < 1) fail(ErrorCode::invalid_argument, "{} ranks: at least 1 is needed", n);
  if (rank < 0 || rank >= n) {
    fail(ErrorCode::invalid_argument, "rank {} of {}: ranks are 0 to {}", rank, n, n - 1);
  }
  if (options.root < 0 || options.root >= n) {
    fail(ErrorCode::invalid_argument, "root {} of {} ranks", options.root, n);
  }
  if (options.pipeline < 1) {
    fail(ErrorCode::invalid_argument, "pipeline = {}: at least 1", options.pipeline);
  }
  if (topology.ranks_per_host < 1) {
    fail(ErrorCode::invalid_argument, "{} ranks a host: at least 1", topology.ranks_per_host);
  }
  if (!topology.host.empty() && static_cast<int>(topology.host.size()) != n) {
    fail(ErrorCode::invalid_argument, "hosts of {} ranks given, there are {} ranks",
         topology.host.size(), n);
  }
  if (topology.grid.num_rows < 0 || topology.grid.num_columns < 0) {
    fail(ErrorCode::invalid_argument, "a grid of {} x {}", topology.grid.num_rows,
         topology.grid.num_columns);
  }
}

}  // namespace

std::string_view to_string(Collective c) { return kCollectives[static_cast<size_t>(c)]; }
std::string_view to_string(Algorithm a) { return kAlgorithms[static_cast<size_t>(a)]; }

Algorithm algorithm_from_string(std::string_view name) {
  std::string known;
  for (size_t i = 0; i < kAlgorithms.size(); ++i) {
    if (kAlgorithms[i] == name) return static_cast<Algorithm>(i);
    known += (i == 0 ? "" : ", ") + std::string(kAlgorithms[i]);
  }
  fail(ErrorCode::invalid_argument, "algorithm \"{}\": one of {}", name, known);
}

std::vector<Algorithm> algorithms_of(Collective c) {
  using enum Algorithm;
  switch (c) {
    case Collective::all_reduce:
      return {ring, recursive_doubling, halving_doubling, torus, hierarchical, direct};
    case Collective::reduce_scatter:
    case Collective::all_gather:
      return {ring, halving_doubling, direct};
    case Collective::broadcast:
      return {ring, recursive_doubling};
    case Collective::all_to_all:
      return {direct};
    case Collective::barrier:
      return {recursive_doubling};
  }
  return {};
}

Schedule make_schedule(Collective collective, Algorithm algorithm, const Topology& topology,
                       int rank, const ScheduleOptions& options) {
  check(topology, rank, options);
  Schedule list;
  list.rank = rank;
  list.num_ranks = topology.num_ranks;
  list.algorithm = algorithm;
  const auto known = algorithms_of(collective);
  const bool canonical = algorithm == Algorithm::canonical && collective == Collective::all_reduce;
  if (!canonical && std::find(known.begin(), known.end(), algorithm) == known.end()) {
    fail(ErrorCode::invalid_argument, "{} has no algorithm \"{}\"", to_string(collective),
         to_string(algorithm));
  }
  switch (collective) {
    case Collective::all_reduce:
      switch (algorithm) {
        case Algorithm::recursive_doubling:
          recursive_doubling_all_reduce(list, options);
          break;
        case Algorithm::halving_doubling:
          halving_doubling_all_reduce(list, options);
          break;
        case Algorithm::torus:
          torus_all_reduce(list, topology, options);
          break;
        case Algorithm::hierarchical:
          hierarchical_all_reduce(list, topology, options);
          break;
        case Algorithm::direct:
          direct_all_reduce(list, options);
          break;
        case Algorithm::canonical:
          canonical_all_reduce(list, options);
          break;
        default:
          ring_all_reduce(list, options);
      }
      break;
    case Collective::reduce_scatter:
      make_reduce_scatter(list, options);
      break;
    case Collective::all_gather:
      make_all_gather(list, options);
      break;
    case Collective::broadcast:
      make_broadcast(list, options);
      break;
    case Collective::all_to_all:
      make_all_to_all(list, options);
      break;
    case Collective::barrier:
      make_barrier(list);
      break;
  }
  return list;
}

std::pair<int64_t, int64_t> chunk_bounds(int64_t num_elements, size_t element_size, int num_chunks,
                                         int i) {
  const int64_t line = element_size < 64 ? static_cast<int64_t>(64 / element_size) : 1;
  const auto cut = [&](int64_t k) {
    if (k == num_chunks) return num_elements;
    const int64_t whole = num_elements / num_chunks;
    const int64_t at = whole * k + (num_elements % num_chunks) * k / num_chunks;
    return whole >= line ? at / line * line : at;
  };
  return {cut(i), cut(i + 1)};
}

Grid choose_grid(int num_ranks) {
  for (int rows = static_cast<int>(std::sqrt(static_cast<double>(num_ranks))); rows >= 2; --rows) {
    if (num_ranks % rows == 0) return {rows, num_ranks / rows};
  }
  return {1, num_ranks};
}

double balanced_row_share(const Grid& grid) {
  const double x = grid.num_columns;
  const double y = grid.num_rows;
  const double row = 2 * (x - 1) / x;
  const double column = 2 * (y - 1) / y;
  // row (f + (1 - f) / y) = column ((1 - f) + f / x), solved for f.
  const double slope = row * (1 - 1 / y) + column * (1 - 1 / x);
  if (slope <= 0) return 0.5;
  return std::min(1.0, std::max(0.0, (column - row / y) / slope));
}

}  // namespace ductile::comm
