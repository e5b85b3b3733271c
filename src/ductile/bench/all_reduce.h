#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace ductile::bench {

// All-reduces timed between processes, on one host or several: the experiment behind
// `ductile bench all-reduce`. Each rank is a `ductile-bench-rank` beside this program.

struct AllReduceOptions {
  struct Variant {
    std::string algorithm;  // as comm names it
    int pieces = 0;         // 0: the number that the cost model chooses
  };

  std::optional<int64_t> workers;  // default: as many as the hosts say; else one per host, here two
  std::string hosts;  // a list, or a file of them (server/hosts.h); empty: this machine
  std::string launcher = "ssh {host}";
  std::string transport;          // shm, tcp, ucx; empty: shm on one machine, otherwise tcp
  std::vector<int64_t> sizes;     // bytes
  std::vector<Variant> variants;  // empty: all algorithms
  double seconds = 0.15;          // for each algorithm and size, about
  bool recalibrate = false;       // measures the links anew in place of reading the kept figures
};

// What is called while the experiment runs. Both get JSON as `ductile bench all-reduce --json`
// prints it.
struct AllReduceListener {
  // The ranks are connected and the links are measured: the result as far as it is known.
  std::function<void(const nlohmann::ordered_json& result)> ready;
  // One size is done: its entry in `sizes`.
  std::function<void(const nlohmann::ordered_json& size)> timed;
};

// Runs the experiment and returns {ranks, hosts, transport, sizes, cores, calibration}; an entry of
// `sizes` whose sums came out wrong says "correct": false. Throws invalid_argument for options that
// do not fit together, not_found without the rank's program, and what a rank reports.
nlohmann::ordered_json time_all_reduces(const AllReduceOptions& options,
                                        const AllReduceListener& listener);

}  // namespace ductile::bench
