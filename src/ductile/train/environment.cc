#include "ductile/train/environment.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <omp.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include "ductile/base/error.h"
#include "ductile/base/isa.h"
#include "ductile/base/json_value.h"
#include "ductile/base/machine.h"
#include "ductile/nn/compat.h"
#include "ductile/nn/threads.h"
#include "ductile/run/meters.h"

namespace ductile::train {
namespace {

// The instruction set libtorch's kernels chose; it tells only in the text of its configuration.
std::string used_capability() {
  const std::string text = at::show_config(), key = "CPU capability usage: ";
  const size_t begin = text.find(key);
  if (begin == std::string::npos) return "unknown";
  return text.substr(begin + key.size(), text.find_first_of("\n,", begin) - begin - key.size());
}

// That a parallel region gets the threads it asks for: a smaller team computes other bits, where
// they depend on the number.
void check_team(int threads) {
  int team = 0;
#pragma omp parallel
#pragma omp single
  team = omp_get_num_threads();
  if (team == threads) return;
  fail(ErrorCode::invalid_argument,
       "train.threads = {}, but OpenMP starts {} here; unset OMP_THREAD_LIMIT", threads, team);
}

// The processor that OpenBLAS has chosen its kernels for; null for another BLAS.
nlohmann::json blas_kernels() {
  void* const symbol = dlsym(RTLD_DEFAULT, "openblas_get_corename");
  if (symbol == nullptr) return nullptr;
  const char* const name = reinterpret_cast<const char* (*)()>(symbol)();
  return name == nullptr ? nlohmann::json() : nlohmann::json(name);
}

}  // namespace

void resolve_threads(spec::JobOptions& job) {
  if (job.train.threads == 0 && !nn::thread_invariant(job.model)) job.train.threads = 1;
}

void prepare_torch(const spec::JobOptions& job) {
  // Before libtorch makes threads: a new thread takes this over from the one that makes it.
  at::globalContext().setFlushDenormal(true);
  int threads = static_cast<int>(job.train.threads);
  if (threads == 0) threads = threads_on(cpu_share().usable(), std::getenv("OMP_NUM_THREADS"));
  at::set_num_threads(threads);
  prepare_thread();
  // OpenBLAS cuts a product by the number of its threads, and rounds accordingly; alone it rounds
  // one way, and a job's bits do not depend on how many cores a worker has. (What is parallel in
  // our own kernels is so over fixed pieces.)
  if (void* symbol = dlsym(RTLD_DEFAULT, "openblas_set_num_threads")) {
    reinterpret_cast<void (*)(int)>(symbol)(1);
  }
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  nn::leave_memory_unfilled(at::globalContext());
  if (!nn::thread_invariant(job.model)) check_team(threads);
}

void prepare_thread() {
  thread_local bool ready = false;
  if (ready) return;
  at::get_num_threads();  // makes libtorch set the number for this thread, once
  omp_set_dynamic(0);     // OpenMP shall not choose another number by the machine's load
  ready = true;
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
  const int64_t share = own.empty() ? cpu_share().usable() / workers : cpu_share().usable();
  const int threads = threads_on(share, std::getenv("DUCTILE_THREADS"));
  if (threads != at::get_num_threads()) at::set_num_threads(threads);
}

nlohmann::json describe_environment() {
  return {{"cpu", cpu_model().name},
          {"memory_bytes", memory_share().total},
          {"torch", TORCH_VERSION},
          {"blas", at::hasMKL()      ? "MKL"
                   : at::hasLAPACK() ? "OpenBLAS (system BLAS)"
                                     : "none"},
          {"blas_kernels", blas_kernels()},
          {"kernels", nn::kernels_in_use()},
          {"onednn", at::hasMKLDNN()},
          {"cuda", at::hasCUDA()},
          {"compute_threads", at::get_num_threads()},
          {"cores", cpu_share().usable()},
          {"cpu_capability", used_capability()},
          {"bf16_native", may_use(IsaLevel::bf16)},
          {"bf16_products", bf16_products()},
          {"energy", run::EnergyMeter().state()}};
}

}  // namespace ductile::train
