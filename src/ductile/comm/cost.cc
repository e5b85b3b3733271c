#include "ductile/comm/cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "ductile/base/error.h"

namespace ductile::comm {
namespace {

// The fabric in the letters of the cost formulas.
struct Model {
  double P, G, H;  // ranks, ranks a host, hosts
  double X, Y;     // columns and rows of the grid
  double S;        // bytes of a vector as they travel
  double g;        // seconds to reduce one byte that travelled
  Fabric fabric;
  Grid grid;

  Model(const Fabric& f, const Load& load) : fabric(f) {
    P = static_cast<double>(f.ranks);
    G = std::min(P, static_cast<double>(f.ranks_per_host));
    H = std::ceil(P / G);
    const bool filled = f.rows * f.columns == f.ranks && f.rows > 0;
    grid = filled ? Grid{static_cast<int>(f.rows), static_cast<int>(f.columns)}
                  : choose_grid(static_cast<int>(f.ranks));
    X = grid.num_columns;
    Y = grid.num_rows;
    const double wire =
        static_cast<double>(load.wire_size > 0 ? load.wire_size : load.element_size);
    S = static_cast<double>(load.elements) * wire;
    g = static_cast<double>(load.element_size) / wire / f.reduce_bandwidth;
  }

  bool flat() const { return G <= 1; }
  bool one_host() const { return H <= 1; }
  const Link& far() const { return one_host() ? fabric.inside : fabric.between; }

  // Seconds a byte on `link` when an operation sends `total` bytes over it.
  static double beta(const Link& link, double total) {
    return total > 0 ? bytes_seconds(link, total) / total : 1 / link.bandwidth;
  }
  static double alpha(const Link& link) { return link.latency + 2 * link.overhead; }
};

// n dependent steps of s bytes, each in k pieces that overlap with those of the next step.
double chain(double n, double s, int k, const Link& link, double beta, double g) {
  if (n <= 0) return 0;
  const double piece = std::max(s / k * beta, link.overhead);
  const double delay = Model::alpha(link) + s / k * g;
  if (k * piece >= piece + delay) return n * k * piece + delay;
  return n * (piece + delay) + (k - 1) * piece;
}

// As chain, between ranks of one host: whatever a piece costs, the processor spends.
double near_chain(double n, double s, int k, const Link& link, double g) {
  if (n <= 0) return 0;
  const double piece = bytes_seconds(link, s / k) + s / k * g + 2 * link.overhead;
  if ((k - 1) * piece >= link.latency) return n * k * piece + link.latency;
  return n * (piece + link.latency) + (k - 1) * piece;
}

// Only every G-th step of a ring leaves the host; its link carries one of the G shares at a time.
double ring_price(const Model& m, double steps, double share, double total, int k, double g) {
  const double near = near_chain(steps, share, k, m.fabric.inside, g);
  if (m.one_host()) return near;
  const double b = Model::beta(m.far(), total);
  const double far = chain(steps, share, k, m.far(), b, g);
  if (m.flat()) return far;
  const double alone = far / m.G + near * (1 - 1 / m.G);
  return std::max(alone, steps * share * b);
}

double ring_all_reduce_price(const Model& m, int k) {
  return ring_price(m, 2 * (m.P - 1), m.S / m.P, 2 * (m.P - 1) / m.P * m.S, k, m.g / 2);
}

// Whole vectors with partners 1, 2, 4 ... away; the ranks of a host share its link.
double recursive_doubling_price(const Model& m, int k) {
  const double rounds = std::floor(std::log2(m.P));
  const bool folds = std::exp2(rounds) < m.P;
  double seconds = 0;
  const auto add = [&](bool near, bool reduces) {
    const Link& link = near ? m.fabric.inside : m.far();
    const double load = near ? m.S : m.G * m.S;
    seconds += Model::alpha(link) + load * Model::beta(link, m.G * m.S * rounds) +
               (reduces ? m.S / k * m.g : 0);
  };
  for (double mask = 1; mask < std::exp2(rounds); mask *= 2) add(mask < m.G, true);
  if (folds) {
    add(m.G > 1, true);
    add(m.G > 1, false);
  }
  return seconds;
}

std::vector<int> factors_of(int64_t n) {
  std::vector<int> out;
  for (int64_t p = 2; n > 1; ++p) {
    for (; n % p == 0; n /= p) out.push_back(static_cast<int>(p));
  }
  return out;
}

// One way of halving-doubling.
double halving_price(const Model& m, int k, bool reduces) {
  double seconds = 0;
  double part = m.S;
  double distance = m.P;
  const double total = 2 * m.S;
  for (const int p : factors_of(m.fabric.ranks)) {
    part /= p;
    distance /= p;
    const bool near = distance < m.G;
    const Link& link = near ? m.fabric.inside : m.far();
    const double load = (p - 1) * part * (near ? 1 : m.G);
    seconds += Model::alpha(link) + (p - 2) * link.overhead + load * Model::beta(link, total) +
               (reduces ? part / k * m.g : 0);
  }
  return seconds;
}

// One way of direct exchange: P - 1 messages, those that leave the host over a shared link.
double direct_price(const Model& m, int k, bool reduces, double part) {
  if (m.one_host()) {
    const Link& link = m.fabric.inside;
    return link.latency +
           (m.P - 1) * (2 * k * link.overhead + part / link.bandwidth + (reduces ? part * m.g : 0));
  }
  const double remote = m.P - m.G;
  const double near = (m.G - 1) * part * Model::beta(m.fabric.inside, m.S);
  const double far = m.G * remote * part * Model::beta(m.far(), 2 * m.S);
  const double messages = (m.P - 1) * k * m.far().overhead;
  return m.far().latency + std::max({near + far, messages, 2 * m.far().overhead}) +
         (reduces ? part / k * m.g : 0);
}

// The longest way of one flow, and the rest of the flows behind it on the busier of the links.
double torus_price(const Model& m, int k) {
  if (m.X < 2 || m.Y < 2) return ring_all_reduce_price(m, k);
  const double flows = 2.0 * k;
  const double rows_first =
      std::clamp(std::round(balanced_row_share(m.grid) * flows), 1.0, flows - 1);
  const double f = rows_first / flows;
  const double row = 2 * (m.X - 1) / m.X * (f + (1 - f) / m.Y) * m.S;
  const double column = 2 * (m.Y - 1) / m.Y * ((1 - f) + f / m.X) * m.S;
  const Link& link = m.far();
  const double shared = m.fabric.rails > 1 ? std::max(row, column) : row + column;
  const double b = Model::beta(link, shared);
  const double flow = m.S / flows;
  const double steps = 2 * (m.X - 1) + 2 * (m.Y - 1);
  if (m.one_host()) {  // the processor moves all flows
    const double work = 2 * (m.P - 1) / m.P * m.S * Model::beta(link, flow / m.X) +
                        (m.P - 1) / m.P * m.S * m.g + steps * flows * 2 * link.overhead;
    return work + steps * link.latency / flows;
  }
  const double one = 2 * (m.P - 1) / m.P * flow * b;  // a flow's own bytes, both dimensions
  const double delay = steps * (Model::alpha(link) + flow / m.P * m.g);
  if (shared * b + delay / flows > one + delay) return shared * b + delay / flows;
  return std::max(one, shared * b) + delay;
}

double hierarchical_price(const Model& m, int k) {
  if (m.one_host() || m.flat()) return ring_all_reduce_price(m, k);
  const double flow = m.S / k;
  const double b = Model::beta(m.far(), 2 * m.S);
  const double inside = 2 * (m.G - 1) / m.G * flow / m.fabric.inside.bandwidth +
                        2 * Model::alpha(m.fabric.inside) +
                        2 * (m.G - 1) * m.fabric.inside.overhead + flow / m.G * (m.G - 1) * m.g;
  // The G rings between hosts share each host's link.
  const double step = Model::alpha(m.far()) + flow / m.H / m.G * m.g;
  const double between = 2 * (m.H - 1) * std::max(flow / m.H * b, m.far().overhead);
  const double latency = 2 * (m.H - 1) * step;
  return inside + std::max(between * k + latency / k, between + latency);
}

bool knows(Collective collective, Algorithm algorithm) {
  const auto all = algorithms_of(collective);
  return std::find(all.begin(), all.end(), algorithm) != all.end();
}

std::string size_text(double bytes) {
  if (bytes >= 1 << 20) return fmt::format("{:.4g} MiB", bytes / (1 << 20));
  if (bytes >= 1 << 10) return fmt::format("{:.4g} KiB", bytes / (1 << 10));
  return fmt::format("{:.0f} B", bytes);
}

std::string time_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3f} ms", seconds * 1e3);
  return fmt::format("{:.1f} us", seconds * 1e6);
}

std::string reason_of(Collective collective, const Fabric& fabric, const Load& load,
                      const Choice& choice) {
  const Price& best = choice.best;
  const double bytes = static_cast<double>(load.elements) * static_cast<double>(load.element_size);
  std::string text = fmt::format("{} of {} over {} ranks: {} in {} rounds", to_string(collective),
                                 size_text(bytes), fabric.ranks, to_string(best.algorithm),
                                 num_rounds(collective, best.algorithm, fabric));
  if (best.pipeline > 1) text += fmt::format(", shares in {} pieces", best.pipeline);
  for (const Price& p : choice.prices) {
    if (p.algorithm == best.algorithm || !p.note.empty()) continue;
    text += fmt::format("; {} would take {:.2f} times as long", to_string(p.algorithm),
                        p.seconds / std::max(best.seconds, 1e-12));
    break;
  }
  return text;
}

}  // namespace

int64_t num_rounds(Collective collective, Algorithm algorithm, const Fabric& fabric) {
  const Model m(fabric, {});
  const int64_t n = fabric.ranks;
  const int64_t doubling = static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(n - 1)));
  const int64_t ways = collective == Collective::all_reduce ? 2 : 1;
  switch (algorithm) {
    case Algorithm::recursive_doubling:
      if (collective != Collective::all_reduce) return doubling;
      return std::has_single_bit(static_cast<uint64_t>(n)) ? doubling : doubling + 1;
    case Algorithm::halving_doubling:
      return ways * static_cast<int64_t>(factors_of(n).size());
    case Algorithm::torus:
      if (m.X < 2 || m.Y < 2) return 2 * (n - 1);
      return 2 * static_cast<int64_t>(m.X - 1) + 2 * static_cast<int64_t>(m.Y - 1);
    case Algorithm::hierarchical:
      if (m.one_host() || m.flat()) return 2 * (n - 1);
      return 2 + 2 * static_cast<int64_t>(m.H - 1);
    case Algorithm::direct:
    case Algorithm::canonical:
      return n > 1 ? ways : 0;
    default:
      return ways * (n - 1);
  }
}

double closed_price(Collective collective, Algorithm algorithm, const Fabric& fabric,
                    const Load& load, int k) {
  const Model m(fabric, load);
  if (m.P <= 1 || (load.elements == 0 && collective != Collective::barrier)) return 0;
  switch (collective) {
    case Collective::all_reduce:
      switch (algorithm) {
        case Algorithm::recursive_doubling:
          return recursive_doubling_price(m, k);
        case Algorithm::halving_doubling:
          return halving_price(m, k, true) + halving_price(m, k, false);
        case Algorithm::torus:
          return torus_price(m, k);
        case Algorithm::hierarchical:
          return hierarchical_price(m, k);
        case Algorithm::direct:
        case Algorithm::canonical:
          return direct_price(m, k, true, m.S / m.P) + direct_price(m, k, false, m.S / m.P);
        default:
          return ring_all_reduce_price(m, k);
      }
    case Collective::reduce_scatter:
    case Collective::all_gather: {
      const bool reduces = collective == Collective::reduce_scatter;
      Model whole = m;
      whole.S = m.S * m.P;
      if (algorithm == Algorithm::halving_doubling) return halving_price(whole, k, reduces);
      if (algorithm == Algorithm::direct) return direct_price(whole, k, reduces, m.S);
      return ring_price(m, m.P - 1, m.S, m.P * m.S, k, reduces ? m.g : 0);
    }
    case Collective::broadcast: {
      if (algorithm == Algorithm::ring && m.one_host()) {
        // Each rank takes a piece in and passes it on.
        const Link& link = m.fabric.inside;
        const double piece = bytes_seconds(link, m.S / k) + 2 * link.overhead;
        return (m.P - 1) * (piece + link.latency) + (k - 1) * piece;
      }
      const double b = Model::beta(m.far(), m.S);
      const double piece = std::max(m.S / k * b, m.far().overhead);
      if (algorithm == Algorithm::ring) {
        return (m.P - 1) * (piece + Model::alpha(m.far())) + (k - 1) * piece;
      }
      return std::ceil(std::log2(m.P)) * (Model::alpha(m.far()) + m.S * b);
    }
    case Collective::all_to_all:
      return direct_price(m, k, false, m.S);
    case Collective::barrier:
      return std::ceil(std::log2(m.P)) * Model::alpha(m.far());
  }
  return 0;
}

double price_of(Collective collective, Algorithm algorithm, const Fabric& fabric, const Load& load,
                int pipeline) {
  const auto once = [&](const Fabric& f) {
    if (f.ranks > kExactRanks) return closed_price(collective, algorithm, f, load, pipeline);
    return run_in_virtual_time(collective, algorithm, f, load, {.pipeline = pipeline}).seconds;
  };
  const double seconds = once(fabric);
  if (fabric.between.sustained <= 0) return seconds;
  // A burst is there again only after a rest: calls that follow each other get the lasting rate.
  Fabric bytes_alone = fabric;
  constexpr double kEndless = 1e18;
  bytes_alone.inside = {.latency = 0, .bandwidth = kEndless, .overhead = 0};
  bytes_alone.between = {.latency = 0, .bandwidth = fabric.between.sustained, .overhead = 0};
  bytes_alone.reduce_bandwidth = kEndless;
  return std::max(seconds, once(bytes_alone));
}

double shared_memory_price(const Fabric& fabric, const Load& load) {
  if (fabric.shared_bandwidth <= 0) return 0;
  const auto bytes = static_cast<double>(load.elements) * static_cast<double>(load.element_size);
  return fabric.shared_latency + bytes / fabric.shared_bandwidth;
}

Price price(Collective collective, Algorithm algorithm, const Fabric& fabric, const Load& load) {
  if (!knows(collective, algorithm)) {
    fail(ErrorCode::invalid_argument, "{} has no algorithm \"{}\"", to_string(collective),
         to_string(algorithm));
  }
  Price best{algorithm, 1, -1, {}};
  if (fabric.ranks <= 4096) {
    const auto list = make_schedule(collective, algorithm, fabric.topology(), 0);
    best.note = list.note;
    best.algorithm = algorithm;
  }
  const double share = static_cast<double>(load.elements * load.element_size) /
                       static_cast<double>(collective == Collective::all_reduce ? fabric.ranks : 1);
  // More pieces must be worth it: within a host they only cost more messages.
  const double worth = Model(fabric, load).one_host() ? 0.95 : 0.99;
  for (const int k : {1, 2, 4, 8, 16, 32}) {
    constexpr double kSmallestPiece = 8 << 10;
    constexpr double kLargestPiece = 4 << 20;
    if (k > 1 && share / k < kSmallestPiece) break;
    if (k < 32 && share / k > kLargestPiece) continue;
    const double seconds = price_of(collective, algorithm, fabric, load, k);
    if (best.seconds < 0 || seconds < worth * best.seconds) {
      best.seconds = seconds;
      best.pipeline = k;
    }
  }
  return best;
}

Choice choose(Collective collective, const Fabric& fabric, const Load& load) {
  Choice choice;
  bool first = true;
  for (const Algorithm algorithm : algorithms_of(collective)) {
    // Where there is another way, nobody is asked to keep connections to so many.
    constexpr int64_t kMaxPeers = 64;
    const bool dense = algorithm == Algorithm::direct && collective != Collective::all_to_all;
    if (dense && fabric.ranks > kMaxPeers) continue;
    choice.prices.push_back(price(collective, algorithm, fabric, load));
    const Price& p = choice.prices.back();
    // Where many send to one at a time, switches and buffers cost what no model here knows: the
    // algorithms that come first in the list do so least.
    constexpr double kBetter = 0.97;
    if (first || p.seconds < kBetter * choice.best.seconds) choice.best = p;
    first = false;
  }
  std::stable_sort(choice.prices.begin(), choice.prices.end(),
                   [](const Price& a, const Price& b) { return a.seconds < b.seconds; });
  choice.reason = reason_of(collective, fabric, load, choice);
  return choice;
}

std::string explain(const Choice& choice, std::span<const double> measured) {
  std::string text = fmt::format("{:<20} {:>8} {:>12}{}\n", "algorithm", "pieces", "predicted",
                                 measured.empty() ? "" : fmt::format(" {:>12}", "measured"));
  for (size_t i = 0; i < choice.prices.size(); ++i) {
    const Price& p = choice.prices[i];
    text += fmt::format("{:<20} {:>8} {:>12}", to_string(p.algorithm), p.pipeline,
                        time_text(p.seconds));
    if (i < measured.size()) text += fmt::format(" {:>12}", time_text(measured[i]));
    if (p.algorithm == choice.best.algorithm) text += "  <- chosen";
    if (!p.note.empty()) text += "  (" + p.note + ")";
    text += "\n";
  }
  return text + choice.reason + "\n";
}

std::string scale_table(const Fabric& fabric, std::span<const int64_t> ranks,
                        std::span<const int64_t> bytes) {
  std::string text =
      "| ranks | grid | bytes | ring | halving-doubling | torus | hierarchical | chosen | rounds: "
      "ring / torus |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const int64_t n : ranks) {
    for (const int64_t size : bytes) {
      Fabric f = fabric;
      f.ranks = n;
      f.host.clear();
      if (f.rows * f.columns != n) f.rows = f.columns = 0;
      const Load load{size / 4, 4, 0};
      const Choice choice = choose(Collective::all_reduce, f, load);
      const auto time = [&](Algorithm a) {
        for (const Price& p : choice.prices) {
          if (p.algorithm == a) return time_text(p.seconds);
        }
        return std::string("-");
      };
      const Grid grid = f.rows > 0 ? Grid{static_cast<int>(f.rows), static_cast<int>(f.columns)}
                                   : choose_grid(static_cast<int>(n));
      text += fmt::format(
          "| {} | {}x{} | {} | {} | {} | {} | {} | {} | {} / {} |\n", n, grid.num_rows,
          grid.num_columns, size_text(static_cast<double>(size)), time(Algorithm::ring),
          time(Algorithm::halving_doubling), time(Algorithm::torus), time(Algorithm::hierarchical),
          to_string(choice.best.algorithm), num_rounds(Collective::all_reduce, Algorithm::ring, f),
          num_rounds(Collective::all_reduce, Algorithm::torus, f));
    }
  }
  return text;
}

int64_t fusion_bytes(const Fabric& fabric, double efficiency) {
  const auto rate = [&](int64_t bytes) {
    const double seconds = choose(Collective::all_reduce, fabric, {bytes / 4, 4, 0}).best.seconds;
    return static_cast<double>(bytes) / std::max(seconds, 1e-12);
  };
  constexpr int64_t kLargest = int64_t{64} << 20;
  if (fabric.ranks <= 1) return kLargest;
  const double best = rate(kLargest);
  int64_t bytes = 64 << 10;
  while (bytes < kLargest && rate(bytes) < efficiency * best) bytes *= 2;
  return bytes;
}

}  // namespace ductile::comm
