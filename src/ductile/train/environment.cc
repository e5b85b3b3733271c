#include "ductile/train/environment.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <nlohmann/json.hpp>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include "ductile/base/machine.h"

namespace ductile::train {
namespace {

// The instruction set libtorch's kernels chose; it tells only in the text of its configuration.
std::string used_capability() {
  const std::string text = at::show_config(), key = "CPU capability usage: ";
  const size_t begin = text.find(key);
  if (begin == std::string::npos) return "unknown";
  return text.substr(begin + key.size(), text.find_first_of("\n,", begin) - begin - key.size());
}

}  // namespace

void prepare_torch(const spec::TrainOptions& options) {
  // OMP_NUM_THREADS is the launcher's word on how many cores are ours (cgroup quotas and all).
  const char* told = std::getenv("OMP_NUM_THREADS");
  int threads = static_cast<int>(options.threads);
  if (threads == 0 && told != nullptr) threads = std::atoi(told);
  if (threads <= 0) threads = cpu_share().usable();
  at::set_num_threads(threads);
  // OpenBLAS cuts a product by the number of its threads, and rounds accordingly; alone it rounds
  // one way, and a job's bits do not depend on how many cores a worker has. (What is parallel in
  // our own kernels is so over fixed pieces.)
  if (void* symbol = dlsym(RTLD_DEFAULT, "openblas_set_num_threads")) {
    reinterpret_cast<void (*)(int)>(symbol)(1);
  }
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  at::globalContext().setFlushDenormal(true);
}

void share_cores(const spec::TrainOptions& options, int64_t place, int64_t workers) {
  const char* text = std::getenv("DUCTILE_CORES");
  if (text == nullptr) return;
  std::vector<int> cores;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) cores.push_back(std::atoi(word.c_str()));
  if (cores.empty()) return;
  const std::vector<int> own = core_share(place, workers, cores);
  run_on(own.empty() ? cores : own);
  if (options.threads > 0) return;
  const int64_t threads =
      own.empty() ? std::max<int64_t>(1, cpu_share().usable() / workers) : cpu_share().usable();
  if (threads != at::get_num_threads()) at::set_num_threads(static_cast<int>(threads));
}

nlohmann::json describe_environment() {
  __builtin_cpu_init();
  const bool bf16 = __builtin_cpu_supports("avx512bf16");
  return {{"cpu", cpu_model().name},
          {"memory_bytes", memory_share().total},
          {"torch", TORCH_VERSION},
          {"blas", at::hasMKL()      ? "MKL"
                   : at::hasLAPACK() ? "OpenBLAS (system BLAS)"
                                     : "none"},
          {"onednn", at::hasMKLDNN()},
          {"cuda", at::hasCUDA()},
          {"compute_threads", at::get_num_threads()},
          {"cores", cpu_share().usable()},
          {"cpu_capability", used_capability()},
          {"bf16_native", bf16}};
}

}  // namespace ductile::train
