#include "ductile/comm/step_order.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ductile/base/error.h"

namespace ductile::comm {
namespace {

struct History {
  int32_t writer = -1;
  std::vector<int32_t> readers;  // since the last write
};

class Orderer {
 public:
  Orderer(const Schedule& list, bool aliased)
      : list_(list),
        aliased_(aliased),
        num_out_(list.out_blocks * list.chunks_per_block),
        history_(num_out_ + list.scratch_chunks) {}

  void read(int32_t step, const Chunks& chunks, std::vector<int32_t>& wait) {
    for (int c = chunks.begin; c < chunks.end(); ++c) {
      History* h = find(chunks.buffer, c);
      if (h == nullptr) continue;
      if (h->writer >= 0) wait.push_back(h->writer);
      h->readers.push_back(step);
    }
  }

  void write(int32_t step, const Chunks& chunks, std::vector<int32_t>& wait) {
    for (int c = chunks.begin; c < chunks.end(); ++c) {
      History* h = find(chunks.buffer, c);
      DUCTILE_CHECK(h != nullptr, "step {} of rank {} writes `in`", step, list_.rank);
      if (h->writer >= 0) wait.push_back(h->writer);
      wait.insert(wait.end(), h->readers.begin(), h->readers.end());
      h->writer = step;
      h->readers.clear();
    }
  }

 private:
  // nullptr: never written.
  History* find(BufferName buffer, int chunk) {
    switch (buffer) {
      case BufferName::in:
        DUCTILE_CHECK(chunk >= 0 && chunk < list_.in_blocks * list_.chunks_per_block,
                      "rank {} has no chunk {} of in", list_.rank, chunk);
        return aliased_ && chunk < list_.chunks_per_block ? &history_[chunk] : nullptr;
      case BufferName::out:
        DUCTILE_CHECK(chunk >= 0 && chunk < num_out_, "rank {} has no chunk {} of out", list_.rank,
                      chunk);
        return &history_[chunk];
      case BufferName::scratch:
        DUCTILE_CHECK(chunk >= 0 && chunk < list_.scratch_chunks,
                      "rank {} has no chunk {} of scratch", list_.rank, chunk);
        return &history_[num_out_ + chunk];
    }
    return nullptr;
  }

  const Schedule& list_;
  bool aliased_;
  int num_out_;
  std::vector<History> history_;
};

}  // namespace

StepOrder make_step_order(Schedule list, bool aliased) {
  DUCTILE_CHECK(!aliased || list.out_blocks == 1,
                "`in` and `out` are one buffer, out has {} blocks", list.out_blocks);
  StepOrder order;
  order.aliased = aliased;
  const auto num_steps = static_cast<int32_t>(list.steps.size());
  order.num_predecessors.resize(num_steps);
  order.message.resize(num_steps);
  Orderer orderer(list, aliased);
  std::map<std::pair<int, int>, uint32_t> sent;
  std::map<std::pair<int, int>, uint32_t> received;
  std::vector<std::pair<int32_t, int32_t>> edges;  // (before, after)
  std::vector<int32_t> wait;
  for (int32_t i = 0; i < num_steps; ++i) {
    const Step& step = list.steps[i];
    wait.clear();
    // Reads first: a step that reads and writes a chunk does not wait for itself.
    if (step.op != Op::receive && step.op != Op::round) orderer.read(i, step.a, wait);
    if (step.op == Op::reduce) orderer.read(i, step.b, wait);
    if (step.op != Op::send) orderer.write(i, step.dst, wait);
    std::sort(wait.begin(), wait.end());
    wait.erase(std::unique(wait.begin(), wait.end()), wait.end());
    std::erase(wait, i);
    order.num_predecessors[i] = static_cast<int32_t>(wait.size());
    for (const int32_t before : wait) edges.emplace_back(before, i);
    if (step.op == Op::send) order.message[i] = sent[{step.peer, step.rail}]++;
    if (step.op == Op::receive || step.op == Op::receive_reduce) {
      order.message[i] = received[{step.peer, step.rail}]++;
    }
  }
  std::sort(edges.begin(), edges.end());
  order.first_.assign(num_steps + 1, 0);
  for (const auto& [before, after] : edges) {
    ++order.first_[before + 1];
    order.successor_.push_back(after);
  }
  for (int32_t i = 0; i < num_steps; ++i) order.first_[i + 1] += order.first_[i];
  order.list = std::move(list);
  return order;
}

int64_t run_elements(const Schedule& list, const Chunks& run, int64_t block_elements,
                     size_t element_size) {
  const int k = list.chunks_per_block;
  if (run.buffer != BufferName::scratch) {  // ends of the run and whole blocks between
    const int last = run.end() - 1;
    return chunk_bounds(block_elements, element_size, k, last % k).second -
           chunk_bounds(block_elements, element_size, k, run.begin % k).first +
           (last / k - run.begin / k) * block_elements;
  }
  int64_t sum = 0;
  for (int c = run.begin; c < run.end(); ++c) {
    const auto [begin, end] =
        chunk_bounds(block_elements, element_size, k, shape_of(list, run.buffer, c));
    sum += end - begin;
  }
  return sum;
}

int shape_of(const Schedule& list, BufferName buffer, int i) {
  if (buffer == BufferName::scratch) i = list.mirror_begin + i % list.mirror_count;
  return i % list.chunks_per_block;
}

}  // namespace ductile::comm
