#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ductile/base/files.h"

// What every process that starts `ductile-worker`, the program that links torch, needs to know.
namespace ductile::process {

inline constexpr const char* kWorker = "ductile-worker";
// The ductile-worker to use: $DUCTILE_WORKER, else the one beside this program, else the one on
// PATH. Throws not_found, with what to build or set.
fs::path find_worker();

inline constexpr const char* kPythonWorker = "ductile-python-worker";
// The program that runs workers of Python jobs, a script beside `worker`, the ductile-worker.
// Throws not_found, with what to build.
fs::path python_worker(const fs::path& worker);

// The environment that libtorch must find at its start, for a worker of `threads` (0: the cores
// this process may use, or the user's own OMP_NUM_THREADS). OpenMP threads that spin while they
// wait make a step ten times slower beside any other busy process, hence OMP_WAIT_POLICY=PASSIVE.
// GOMP_SPINCOUNT then lets them look for work some tens of microseconds before they sleep: to be
// woken takes as long, for each of a step's hundred parallel loops. GLIBC_TUNABLES has malloc ask
// for huge pages: a step goes through tens of megabytes of activations, and in a virtual machine it
// is dear to look up where a small page lies. A user's own setting stays. What would choose the
// number of threads by the machine's load or by the product's size, and so change bits, is switched
// off.
std::vector<std::pair<std::string, std::string>> worker_environment(int64_t threads);

// The last lines of a log behind its first `from` bytes, at most `lines` of them and 8 KiB. Empty
// where there are none.
std::string log_tail(const fs::path& log, int lines, uintmax_t from = 0);

}  // namespace ductile::process
