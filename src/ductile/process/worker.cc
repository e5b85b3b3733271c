#include "ductile/process/worker.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include <sched.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/machine.h"
#include "ductile/process/find_program.h"

namespace ductile::process {

fs::path find_worker() {
  const char* named = std::getenv("DUCTILE_WORKER");
  if (named != nullptr && *named != '\0') {
    if (access(named, X_OK) == 0) return fs::absolute(named);
    fail(ErrorCode::not_found, "DUCTILE_WORKER = {} is not a program that can be run", named);
  }
  std::error_code ignored;
  const fs::path self = fs::read_symlink("/proc/self/exe", ignored);
  if (const fs::path own = self.parent_path() / kWorker;
      !self.empty() && access(own.c_str(), X_OK) == 0)
    return own;
  if (const auto found = find_program(kWorker)) return *found;
  fail(ErrorCode::not_found,
       "ductile-worker is neither beside {} nor on PATH; build it (scripts/demo does) or set "
       "DUCTILE_WORKER",
       self.empty() ? "this program" : self.string());
}

fs::path python_worker(const fs::path& worker) {
  const fs::path script = worker.parent_path() / kPythonWorker;
  if (access(script.c_str(), X_OK) == 0) return script;
  fail(ErrorCode::not_found,
       "{}: not there, so this Ductile runs no Python jobs; build it where pybind11-dev and "
       "python3-torch are installed (scripts/setup --tests, scripts/build release _core)",
       script.string());
}

std::vector<std::pair<std::string, std::string>> worker_environment(int64_t threads) {
  std::vector<std::pair<std::string, std::string>> environment = {{"OMP_DYNAMIC", "FALSE"},
                                                                  {"OPENBLAS_NUM_THREADS", "1"}};
  if (std::getenv("GLIBC_TUNABLES") == nullptr)
    environment.emplace_back("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) {
    environment.emplace_back("OMP_WAIT_POLICY", "PASSIVE");
    if (std::getenv("GOMP_SPINCOUNT") == nullptr)
      environment.emplace_back("GOMP_SPINCOUNT", "1000");
  }
  if (threads > 0) {
    environment.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
  } else if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    environment.emplace_back("OMP_NUM_THREADS", std::to_string(cpu_share().usable()));
  }
  return environment;
}

std::string log_tail(const fs::path& log, int lines, uintmax_t from) {
  std::ifstream in(log, std::ios::binary);
  if (!in) return "";
  in.seekg(0, std::ios::end);
  const std::streamoff size = in.tellg();
  in.seekg(std::min(size, std::max(static_cast<std::streamoff>(from), size - 8192)));
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t begin = text.size();
  for (int i = 0; i < lines && begin != std::string::npos && begin > 0; ++i) {
    begin = text.rfind('\n', begin - 1);
  }
  return begin == std::string::npos || begin == 0 ? text : text.substr(begin + 1);
}

}  // namespace ductile::process
