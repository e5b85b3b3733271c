#include <cerrno>
#include <cstdlib>

#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/worker_process.h"

namespace ductile::cli {
namespace {

struct Benchmark {
  std::string_view name, script, help;
};

constexpr Benchmark kBenchmarks[] = {
    {"train", "train_vs_torch.py", "samples/s of whole training runs, beside python3-torch"},
    {"input", "input.py", "the input pipeline, beside bare libjpeg-turbo and torchvision"},
    {"optimizer", "optimizer.py", "optimiser steps, beside memory bandwidth and torch"},
    {"checkpoint", "checkpoint.py", "what checkpoints cost in throughput and bytes"},
};

// Benchmarks are scripts of the source tree: $DUCTILE_BENCH, else the bench/ folder of the
// repository this program was built in.
fs::path bench_folder() {
  const char* named = std::getenv("DUCTILE_BENCH");
  if (named != nullptr && *named != '\0') return named;
  std::error_code error;
  fs::path at = fs::read_symlink("/proc/self/exe", error);
  for (int up = 0; up < 5 && at.has_relative_path(); ++up) {
    at = at.parent_path();
    if (fs::exists(at / "bench" / "CMakeLists.txt", error)) return at / "bench";
  }
  fail(ErrorCode::not_found,
       "benchmarks run from the source tree: call the ductile built there, or set DUCTILE_BENCH to "
       "its bench folder");
}

}  // namespace

ExitCode bench(const BenchCommand& command, Context& context) {
  if (command.name.empty()) {
    std::vector<std::vector<std::string>> rows;
    for (const Benchmark& b : kBenchmarks)
      rows.push_back({std::string(b.name), std::string(b.help)});
    context.console.print("{}", table(rows));
    return kDone;
  }
  const Benchmark* chosen = nullptr;
  std::vector<std::string> names;
  for (const Benchmark& b : kBenchmarks) {
    if (b.name == command.name) chosen = &b;
    names.emplace_back(b.name);
  }
  if (chosen == nullptr) {
    const auto near = nearest_name(command.name, names);
    fail(ErrorCode::invalid_argument, "bench: unknown benchmark '{}'; {}", command.name,
         near ? "did you mean " + *near + "?" : "there are train, input, optimizer, checkpoint");
  }
  const fs::path script = bench_folder() / chosen->script;
  std::error_code error;
  if (!fs::exists(script, error)) {
    fail(ErrorCode::not_found, "{}: there is no such benchmark in this tree", script.string());
  }
  for (const auto& [name, value] : worker_environment(0)) setenv(name.c_str(), value.c_str(), 1);
  std::vector<std::string> words = {script.string()};
  words.insert(words.end(), command.arguments.begin(), command.arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  context.console.out().flush();
  execv(argv[0], argv.data());  // the benchmark takes this process over, exit code and all
  fail_errno(script.string(), errno);
}

}  // namespace ductile::cli
