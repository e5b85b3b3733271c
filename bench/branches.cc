// What a branch of a job's state costs: the time to make one and the bytes that it copies, of a
// state that is equal to another branch and of one that a step has changed; the time to take one
// over; and the bytes that a checkpoint with a branch writes beyond one without.
//
//   branches_bench [MODEL] [ROUNDS]      (resnet20 21)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/writer.h"
#include "ductile/train/replica.h"

namespace {

using namespace ductile;

double median_ms(int rounds, const std::function<void()>& work) {
  std::vector<double> out;
  for (int i = 0; i < rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    out.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::sort(out.begin(), out.end());
  return out[out.size() / 2];
}

void step(train::Replica& replica) {
  std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
  replica.compute(replica.num_ranks(), sum);
  replica.apply(sum);
}

int run(const std::string& model, int rounds) {
  spec::JobOptions job;
  job.data.format = "digits";
  job.data.train_limit = 256;
  job.data.test_limit = 16;
  job.model.name = model;
  job.train.batch_size = 16;
  job.train.threads = 1;
  train::Replica replica(job);
  replica.host_all();
  step(replica);
  train::JobState& state = replica.state();
  int64_t bytes = 0;
  for (const ckpt::TensorView& t : state.tensors()) bytes += static_cast<int64_t>(t.bytes.size());
  const double first = median_ms(1, [&] { state.save_branch("root", ""); });
  const double again = median_ms(rounds, [&] { state.save_branch("root", ""); });
  const double fresh = median_ms(rounds, [&] {
    state.drop_branch("other");
    state.save_branch("other", "");
  });
  const double take = median_ms(rounds, [&] { state.take_branch("root", ""); });
  std::vector<double> changed;
  for (int i = 0; i < rounds; ++i) {
    state.drop_branch("other");
    step(replica);
    changed.push_back(median_ms(1, [&] { state.save_branch("other", ""); }));
  }
  std::sort(changed.begin(), changed.end());
  const auto copied = static_cast<double>(state.branches().at("other").own_bytes()) / 1e6;
  std::printf("%s: %lld parameters, a state of %.2f MB\n", model.c_str(),
              static_cast<long long>(replica.num_parameters()), static_cast<double>(bytes) / 1e6);
  std::printf(
      "branch made: %.3f ms (the first one %.3f ms), made anew in place %.3f ms, taken over "
      "%.3f ms\n",
      fresh, first, again, take);
  std::printf("branch made after a step: %.3f ms, of which it copies %.2f MB\n",
              changed[changed.size() / 2], copied);
  const TempFolder folder;
  ckpt::CheckpointWriter writer(folder.path());
  const auto written = [&](int64_t at) {
    writer.save(at, replica.values(), state.tensors());
    writer.wait();
    return static_cast<double>(writer.take_result()->new_bytes) / 1e6;
  };
  state.drop_branch("root");
  state.drop_branch("other");
  const double alone = written(1);
  state.save_branch("root", "");
  const double branched = written(2);
  step(replica);
  const double moved = written(3);
  std::printf(
      "checkpoints write %.2f MB alone, then %.2f MB with a branch that is equal, then %.2f "
      "MB after a step\n",
      alone, branched, moved);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  return run(argc > 1 ? argv[1] : "resnet20", argc > 2 ? std::atoi(argv[2]) : 21);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
