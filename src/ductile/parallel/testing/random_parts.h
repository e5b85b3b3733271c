#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/parallel/pipeline.h"
#include "ductile/parallel/testing/random_pipelines.h"

// Random pipelines whose stages have numbers of replicas of their own.
namespace ductile::parallel {

using PartOutcomes = std::map<int, PipelineHost::PartOutcome>;

// Each part on its rank; the ranks are threads that send messages. `lost`, if it is one of them,
// has the inputs of the first micro-batch alone, and leaves in the middle of the step.
inline PartOutcomes run_parts(const nn::OperatorGraph& operators, const Pipeline& pipeline,
                              const PipelineHost::Step& step, const std::vector<int>& hosts,
                              Communicators communicators, int lost = -1,
                              const Memories& memories = {}) {
  PipelineHost::Placement placement;
  placement.hosts = hosts;
  placement.forms = tensor_forms(operators, step.inputs[0]);
  placement.shares = share_forms(operators, pipeline, step.inputs[0]);
  std::vector<PartOutcomes> of_ranks(communicators.size());
  std::vector<std::string> errors(communicators.size());
  std::vector<std::jthread> threads;
  for (size_t r = 0; r < communicators.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        std::optional<PipelineHost> host;  // the communicator goes first
        const std::unique_ptr<comm::Communicator> communicator = std::move(communicators[r]);
        PipelineHost::Placement own = placement;
        own.rank = static_cast<int>(r);
        own.communicator = communicator.get();
        if (!memories.empty()) own.memory = memories[r];
        host.emplace(operators, pipeline, own);
        PipelineHost::Step inputs = step;
        if (own.rank == lost) {
          for (size_t m = 1; m < inputs.inputs.size(); ++m) inputs.inputs[m].clear();
        }
        EXPECT_TRUE(host->run(inputs).empty());
        for (size_t p = 0; p < hosts.size(); ++p) {
          const int part = static_cast<int>(p);
          if (hosts[p] == own.rank) of_ranks[r][part] = host->outcome(part);
        }
        communicator->barrier();
      } catch (const std::exception& e) {
        errors[r] = e.what();
      }
    });
  }
  threads.clear();
  PartOutcomes out;
  for (size_t r = 0; r < of_ranks.size(); ++r) {
    EXPECT_EQ(errors[r].empty(), lost < 0) << errors[r];
    out.merge(of_ranks[r]);
  }
  return out;
}

inline PartOutcomes run_serial_parts(const nn::OperatorGraph& operators, const Pipeline& pipeline,
                                     const PipelineHost::Step& step) {
  return run_parts(operators, pipeline, step, std::vector<int>(parts_of(pipeline).size(), 0),
                   inproc_communicators(1));
}

inline void expect_same(const PartOutcomes& a, const PartOutcomes& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (const auto& [part, own] : a) {
    const PipelineHost::PartOutcome& other = b.at(part);
    const Outcome left{own.results, own.gradients}, right{other.results, other.gradients};
    expect_equal(left, right, fmt::format("{}, part {}", what, part));
  }
}

// A pipeline of random stages, schedule and numbers of replicas; in every fourth all stages have as
// many.
struct RandomJob : RandomCase {
  RandomJob(uint64_t seed, bool dropout)
      : RandomCase(seed, /*stream=*/7, dropout, {1, 5}, /*samples=*/48) {
    constexpr int kReplicas[] = {1, 2, 3, 4, 6};
    is_even = seed % 4 == 1;
    const int even = 2 << rng.below(2);
    for (Pipeline::Stage& s : pipeline.stages)
      s.replicas = is_even ? even : kReplicas[rng.below(5)];
    if (!pipeline.is_replicated()) pipeline.stages.back().replicas = 2;
    num_parts = static_cast<int>(parts_of(pipeline).size());
    model.train(true);
  }

  // Every rank has a part.
  std::vector<int> random_hosts(int num_ranks) {
    std::vector<int> out;
    for (int p = 0; p < num_parts; ++p) {
      out.push_back(p < num_ranks ? p
                                  : static_cast<int>(rng.below(static_cast<uint32_t>(num_ranks))));
    }
    for (size_t i = out.size(); i > 1; --i) {
      std::swap(out[i - 1], out[rng.below(static_cast<uint32_t>(i))]);
    }
    return out;
  }

  bool is_even = false;
  int num_parts = 0;
};

}  // namespace ductile::parallel
