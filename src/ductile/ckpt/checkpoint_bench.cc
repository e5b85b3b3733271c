// What a save costs training: ductile_checkpoint_bench [folder [millions of parameters [rounds]]].
//
// State: parameters and two optimiser moments in float32, as 50 tensors each. Prints Markdown: what
// save() blocks, the background thread's time and CPU time, and bytes written, for states that did
// not change, half changed and wholly changed, interleaved; and the cost of one save every 10 s as
// a share of the machine's cores. The memcpy of the same bytes, measured in the same rounds, is the
// bound.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <sys/resource.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/writer.h"

namespace ductile::ckpt {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

class TrainingState {
 public:
  explicit TrainingState(int64_t parameters) {
    constexpr int64_t kTensors = 50;
    Rng rng(1);
    for (const char* section : {"model", "moment1", "moment2"}) {
      for (int64_t i = 0; i < kTensors; ++i) {
        std::vector<uint32_t> values(static_cast<size_t>(parameters / kTensors));
        for (uint32_t& v : values) v = rng.next();
        names_.push_back(fmt::format("{}/layer{}", section, i));
        values_.push_back(std::move(values));
      }
    }
  }

  // Every word of the first `share` of the tensors.
  void change(double share) {
    const auto n = static_cast<size_t>(share * static_cast<double>(values_.size()));
    for (size_t i = 0; i < n; ++i) {
      for (uint32_t& v : values_[i]) v += 0x9e3779b9U;
    }
  }

  std::vector<TensorView> views() const {
    std::vector<TensorView> all;
    for (size_t i = 0; i < values_.size(); ++i) {
      all.push_back({names_[i],
                     DType::f32,
                     {static_cast<int64_t>(values_[i].size())},
                     std::as_bytes(std::span(values_[i]))});
    }
    return all;
  }

  double memcpy_seconds(std::vector<std::byte>& room) const {
    size_t bytes = 0;
    for (const auto& v : values_) bytes += v.size() * sizeof(uint32_t);
    room.resize(bytes);
    const double begin = now();
    size_t done = 0;
    for (const auto& v : values_) {
      std::memcpy(room.data() + done, v.data(), v.size() * sizeof(uint32_t));
      done += v.size() * sizeof(uint32_t);
    }
    return now() - begin;
  }

 private:
  std::vector<std::string> names_;
  std::vector<std::vector<uint32_t>> values_;
};

struct Row {
  const char* name;
  double share;
  std::vector<double> copy, write, cpu;
  int64_t new_bytes = 0, total_bytes = 0, chunks = 0;
};

void run(const fs::path& folder, int64_t millions, int rounds) {
  TrainingState state(millions * 1000000);
  std::vector<Row> rows = {{"unchanged", 0, {}, {}, {}},
                           {"half changed", 0.5, {}, {}, {}},
                           {"all changed", 1, {}, {}, {}}};
  std::vector<double> bound;
  std::vector<std::byte> room;
  int64_t step = 0;
  for (const int64_t chunk_bytes : {int64_t{1} << 20, int64_t{4} << 20}) {
    for (Row& row : rows) row = Row{row.name, row.share, {}, {}, {}};
    bound.clear();
    {
      CheckpointWriter writer(folder / fmt::format("chunks-{}", chunk_bytes),
                              {.chunk_bytes = chunk_bytes});
      state.memcpy_seconds(room);
      for (int round = -1; round < rounds; ++round) {  // the first one warms up
        for (Row& row : rows) {
          state.change(row.share);
          writer.save(++step, nullptr, state.views());
          writer.wait();
          const SaveResult result = writer.take_result().value();
          if (round < 0) continue;
          row.copy.push_back(result.copy_seconds);
          row.write.push_back(result.write_seconds);
          row.cpu.push_back(result.write_cpu_seconds);
          row.new_bytes = result.new_bytes;
          row.total_bytes = result.total_bytes;
          row.chunks = result.new_chunks;
          bound.push_back(state.memcpy_seconds(room));
        }
      }
    }
    const double cores = std::max(1U, std::thread::hardware_concurrency());
    fmt::print(
        "\n{} M parameters x 3 (float32), chunks of {} KiB, {} rounds, medians; memcpy of the "
        "same bytes {:.1f} ms\n\n",
        millions, chunk_bytes >> 10, rounds, median(bound) * 1e3);
    fmt::print(
        "| State | Written MB | of MB | chunks | save() blocks ms | background s | "
        "background CPU ms | cost every 10 s |\n|---|---|---|---|---|---|---|---|\n");
    for (const Row& row : rows) {
      // Blocking stops all cores; the thread takes its CPU time from one of them.
      const double cost = (median(row.copy) + median(row.cpu) / cores) / 10;
      fmt::print("| {} | {:.1f} | {:.1f} | {} | {:.1f} | {:.3f} | {:.1f} | {:.2f} % |\n", row.name,
                 static_cast<double>(row.new_bytes) / 1e6,
                 static_cast<double>(row.total_bytes) / 1e6, row.chunks, median(row.copy) * 1e3,
                 median(row.write), median(row.cpu) * 1e3, cost * 100);
    }
  }
  const double begin = now();
  const LatestResult latest = open_latest(folder / "chunks-4194304");
  fmt::print("\nopen_latest with every chunk verified: {:.3f} s (step {})\n", now() - begin,
             latest.checkpoint ? latest.checkpoint->step() : -1);
}

}  // namespace
}  // namespace ductile::ckpt

int main(int argc, char** argv) {
  try {
    const ductile::TempFolder scratch("ductile-checkpoint-bench");
    ductile::ckpt::run(argc > 1 ? argv[1] : scratch.path(), argc > 2 ? std::atoll(argv[2]) : 25,
                       argc > 3 ? std::atoi(argv[3]) : 5);
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
