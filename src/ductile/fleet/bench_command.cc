#include <cerrno>
#include <cstdlib>

#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/table.h"
#include "ductile/cli/commands.h"
#include "ductile/page/terminal.h"
#include "ductile/process/worker.h"

namespace ductile::cli {
namespace {

struct Benchmark {
  std::string_view name, program, help;
};

constexpr Benchmark kBenchmarks[] = {
    {"all-reduce", "", "all-reduce algorithms between workers, predicted and measured"},
    {"train", "train_vs_torch.py", "samples/s of whole training runs, beside python3-torch"},
    {"input", "input_pipeline", "the input pipeline, beside bare libjpeg-turbo and torchvision"},
    {"optimizer", "optimizer.py", "optimiser steps, beside memory bandwidth and torch"},
    {"checkpoint", "ductile_checkpoint_bench", "what checkpoints cost in throughput and bytes"},
};
constexpr Table<Benchmark> kTable("bench:", kBenchmarks);

// Benchmarks are scripts of the source tree or programs beside this one: looked for in
// $DUCTILE_BENCH, in the folder this program lies in, and in bench/ of the repository around it.
fs::path find_benchmark(std::string_view program) {
  std::vector<fs::path> places;
  const char* named = std::getenv("DUCTILE_BENCH");
  if (named != nullptr && *named != '\0') places.emplace_back(named);
  std::error_code error;
  fs::path at = fs::read_symlink("/proc/self/exe", error).parent_path();
  places.push_back(at);
  for (int up = 0; up < 4 && at.has_relative_path(); ++up) {
    at = at.parent_path();
    if (fs::exists(at / "bench" / "CMakeLists.txt", error)) places.push_back(at / "bench");
  }
  for (const fs::path& place : places) {
    if (access((place / program).c_str(), X_OK) == 0) return place / program;
  }
  fail(ErrorCode::not_found,
       "there is no {} beside this program nor in a bench folder; benchmarks run from a built "
       "source tree (or set DUCTILE_BENCH to its bench folder)",
       program);
}

}  // namespace

ExitCode bench(const BenchCommand& command, Context& context) {
  if (command.name.empty()) {
    std::vector<std::vector<std::string>> rows;
    for (const Benchmark& b : kTable) rows.push_back({std::string(b.name), std::string(b.help)});
    context.console.print("{}", page::table(rows));
    return kDone;
  }
  const fs::path program = find_benchmark(kTable.at(command.name).program);
  for (const auto& [name, value] : process::worker_environment(0))
    setenv(name.c_str(), value.c_str(), 1);
  std::vector<std::string> words = {program.string()};
  words.insert(words.end(), command.arguments.begin(), command.arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  context.console.out().flush();
  execv(argv[0], argv.data());  // the benchmark takes this process over, exit code and all
  fail_errno(program.string(), errno);
}

}  // namespace ductile::cli
