// Stages on ranks that are connected by each transport there is: the bits are those of the serial
// executor.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "ductile/base/rng.h"
#include "ductile/comm/arena.h"
#include "ductile/comm/communicator.h"
#include "ductile/comm/composite_transport.h"
#include "ductile/comm/inproc.h"
#include "ductile/comm/shm_transport.h"
#include "ductile/comm/tcp_transport.h"
#include "ductile/comm/ucx_transport.h"
#include "ductile/net/secret.h"
#include "ductile/net/store.h"
#include "ductile/nn/operators.h"
#include "ductile/parallel/message_memory.h"
#include "ductile/parallel/pipeline.h"
#include "ductile/parallel/tensor_split.h"
#include "ductile/parallel/testing/random_parts.h"
#include "ductile/parallel/testing/random_pipelines.h"
#include "ductile/parallel/testing/random_splits.h"

namespace ductile::parallel {
namespace {

using Transports = std::vector<std::unique_ptr<comm::Transport>>;
using Connect = std::function<std::unique_ptr<comm::Transport>(const comm::Group&, net::Store&,
                                                               const net::Secret&)>;

net::Deadline patience() { return net::Clock::now() + std::chrono::seconds(60); }

// Ranks that meet through a store, as processes do.
Communicators connected(int size, const Connect& connect) {
  const net::Secret secret = net::Secret::random();
  std::shared_ptr<net::Store> store = net::make_memory_store();
  std::vector<std::future<std::unique_ptr<comm::Transport>>> connecting;
  for (int r = 0; r < size; ++r) {
    connecting.push_back(std::async(std::launch::async, [&, r] {
      return connect({"pipeline", 1, r, size}, *store, secret);
    }));
  }
  Communicators out;
  for (auto& c : connecting) out.push_back(std::make_unique<comm::Communicator>(c.get()));
  return out;
}

Communicators tcp(int size) {
  return connected(size, [](const auto& group, net::Store& store, const net::Secret& secret) {
    return comm::connect_tcp(group, store, secret, {}, patience());
  });
}

Communicators ucx(int size) {
  return connected(size, [](const auto& group, net::Store& store, const net::Secret& secret) {
    comm::UcxOptions options;
    options.tls = "tcp";
    options.net_devices = "lo";
    return comm::connect_ucx(group, store, secret, options, patience());
  });
}

// `eager`: messages up to this many bytes are copied through rings.
Communicators shared_memory(int size, size_t eager) {
  Communicators out;
  for (auto& arena : comm::Arena::for_threads(size, {.region_bytes = 1 << 20})) {
    out.push_back(
        std::make_unique<comm::Communicator>(comm::make_shm_transport(std::move(arena), {eager})));
  }
  return out;
}

// Hosts of two ranks, neighbours by number on different ones.
Communicators hosts_of_two(int size) {
  Communicators out(static_cast<size_t>(size));
  Transports between = comm::make_inproc_transports(size);
  const int hosts = (size + 1) / 2;
  for (int h = 0; h < hosts; ++h) {
    std::vector<int> local{h};
    if (h + hosts < size) local.push_back(h + hosts);
    auto arenas = comm::Arena::for_threads(static_cast<int>(local.size()),
                                           {.region_bytes = 1 << 20, .labels = local});
    for (size_t k = 0; k < local.size(); ++k) {
      const auto r = static_cast<size_t>(local[k]);
      out[r] = std::make_unique<comm::Communicator>(comm::make_composite_transport(
          comm::make_shm_transport(std::move(arenas[k])), local, std::move(between[r])));
    }
  }
  return out;
}

struct Maker {
  std::string name;
  std::function<Communicators(int)> make;
};

std::vector<Maker> makers() {
  std::vector<Maker> out{
      {"inproc", inproc_communicators},
      {"tcp", tcp},
      {"shared_memory_eager", [](int n) { return shared_memory(n, 1 << 16); }},
      {"shared_memory_rendezvous", [](int n) { return shared_memory(n, 0); }},
      {"hosts_of_two", hosts_of_two},
  };
  if (comm::have_ucx()) out.push_back({"ucx", ucx});
  return out;
}

class PipelineTransports : public ::testing::TestWithParam<Maker> {};

TEST_P(PipelineTransports, OneTwoAndFourRanksHaveTheBitsOfTheSerialExecutor) {
  int stages_on_others = 0;
  for (const int num_ranks : {1, 2, 4}) {
    for (uint64_t seed = 1000; seed < 1010; ++seed) {
      Rng rng(seed, 4);
      RandomModel model(seed, seed % 2 == 0);
      const nn::OperatorGraph operators = nn::training_operators(model, 0);
      const graph::Graph graph = graph_of(operators, rng);
      plan::Plan plan = random_plan(graph, 4, 8, rng);
      while (static_cast<int>(plan.stages.size()) < num_ranks) {
        plan = random_plan(graph, 4, 8, rng);
      }
      const Pipeline pipeline =
          pipeline_of(plan, random_orders(graph, plan, rng), graph, operators);
      PipelineHost::Step step;
      step.inputs = inputs_of(seed, 4, 8);
      step.seed = seed;
      std::vector<int> hosts;
      for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s) {
        hosts.push_back(s % num_ranks);
        stages_on_others += hosts.back() > 0;
      }
      expect_equal(run_serial(model, operators, pipeline, step),
                   run_ranks(operators, pipeline, step, hosts, GetParam().make(num_ranks)),
                   fmt::format("seed {}, {} ranks", seed, num_ranks));
    }
  }
  EXPECT_GE(stages_on_others, 40);
}

// Stages in parts, each on a rank of its own as far as there are ranks.
TEST_P(PipelineTransports, PartsOfStagesHaveTheBitsOfTheSerialExecutor) {
  int parts_on_others = 0;
  for (uint64_t seed = 2000; seed < 2010; ++seed) {
    Rng rng(seed, 6);
    RandomModel model(seed, seed % 2 == 0);
    const nn::OperatorGraph operators = nn::training_operators(model, 0);
    const graph::Graph graph = graph_of(operators, rng);
    const plan::Plan plan = random_plan(graph, 4, 8, rng);
    const Pipeline whole = pipeline_of(plan, random_orders(graph, plan, rng), graph, operators);
    const TensorSplit divided =
        split_tensors(operators, whole, random_degrees(operators, whole, rng));
    PipelineHost::Step step;
    step.inputs = inputs_of(seed, 4, 8);
    step.seed = seed;
    const int num_ranks = std::min(4, divided.num_parts());
    std::vector<int> by_part;
    for (int p = 0; p < divided.num_parts(); ++p) {
      by_part.push_back(p % num_ranks);
      parts_on_others += by_part.back() > 0;
    }
    expect_equal(run_serial(model, divided.graph, divided.pipeline, step),
                 run_ranks(divided.graph, divided.pipeline, step, hosts_of(divided, by_part),
                           GetParam().make(num_ranks)),
                 fmt::format("seed {}, {} parts", seed, divided.num_parts()));
  }
  EXPECT_GE(parts_on_others, 15);
}

// Numbers of replicas of their own: stages meet in ranges of samples.
TEST_P(PipelineTransports, ReplicasOfStagesHaveTheBitsOfTheSerialExecutor) {
  for (const int num_ranks : {2, 4}) {
    for (uint64_t seed = 1000; seed < 1006; ++seed) {
      RandomJob job(seed, seed % 2 == 0);
      if (job.num_parts < num_ranks) continue;
      expect_same(run_serial_parts(job.operators, job.pipeline, job.step),
                  run_parts(job.operators, job.pipeline, job.step, job.random_hosts(num_ranks),
                            GetParam().make(num_ranks)),
                  fmt::format("seed {}, {} ranks", seed, num_ranks));
    }
  }
}

// Ranks of one host that post their receives in the arena.
struct PostingRanks {
  PostingRanks(int size, size_t bytes) {
    for (auto& arena : comm::Arena::for_threads(size, {.region_bytes = bytes})) {
      const std::span<std::byte> block(arena->allocate(bytes), bytes);
      memories.push_back(std::make_shared<MessageMemory>(ReceiveMemory{block, arena->memory()}));
      communicators.push_back(
          std::make_unique<comm::Communicator>(comm::make_shm_transport(std::move(arena))));
    }
  }
  Communicators communicators;
  Memories memories;
};

// Of the rank that most comes to.
size_t most_bytes(const nn::OperatorGraph& operators, const Pipeline& pipeline,
                  std::span<const PipelineHost::Placement> placements) {
  size_t most = 0;
  for (const auto& [rank, needed] : PipelineHost::receive_bytes(operators, pipeline, placements))
    most = std::max(most, needed);
  return most;
}

// Tensors of 80 to 128 KB between stages, one stage on each rank as far as there are ranks.
struct PostedCase {
  PostedCase(uint64_t seed, int ranks)
      : num_ranks(ranks),
        rng(seed, 4),
        model(seed, seed % 2 == 0),
        operators(nn::training_operators(model, 0)) {
    const graph::Graph graph = graph_of(operators, rng);
    plan::Plan plan = random_plan(graph, 4, 8, rng);
    while (static_cast<int>(plan.stages.size()) < num_ranks) plan = random_plan(graph, 4, 8, rng);
    pipeline = pipeline_of(plan, random_orders(graph, plan, rng), graph, operators);
    step.inputs = inputs_of(seed, 4, 4096);
    step.seed = seed;
    for (int s = 0; s < static_cast<int>(pipeline.stages.size()); ++s)
      hosts.push_back(s % num_ranks);
    PipelineHost::Placement placement;
    placement.hosts = hosts;
    placement.forms = tensor_forms(operators, step.inputs[0]);
    bytes = most_bytes(operators, pipeline, {&placement, 1});
  }

  const int num_ranks;
  Rng rng;
  RandomModel model;
  const nn::OperatorGraph operators;
  Pipeline pipeline;
  PipelineHost::Step step;
  std::vector<int> hosts;
  size_t bytes = 0;  // that a rank receives
};

TEST(PostedReceives, InTheArenaTheyHaveTheBitsOfTheSerialExecutorAndRoomForAll) {
  size_t taken_up = 0;
  for (const int num_ranks : {2, 4}) {
    for (uint64_t seed = 3000; seed < 3006; ++seed) {
      PostedCase c(seed, num_ranks);
      PostingRanks ranks(num_ranks, c.bytes);
      expect_equal(run_serial(c.model, c.operators, c.pipeline, c.step),
                   run_ranks(c.operators, c.pipeline, c.step, c.hosts,
                             std::move(ranks.communicators), ranks.memories),
                   fmt::format("seed {}, {} ranks", seed, num_ranks));
      for (const auto& memory : ranks.memories) {
        EXPECT_EQ(memory->refused(), 0) << "seed " << seed << ", " << num_ranks << " ranks";
        EXPECT_EQ(memory->lent(), 0U);
        taken_up += memory->taken_up();
      }
    }
  }
  EXPECT_GT(taken_up, size_t{1} << 20);
}

// The pieces of a tensor come to where they lie in it.
TEST(PostedReceives, OfStagesWithOtherNumbersOfReplicasHaveTheBitsOfTheSerialExecutor) {
  size_t taken_up = 0;
  for (const int num_ranks : {2, 4}) {
    for (uint64_t seed = 1000; seed < 1012; ++seed) {
      RandomJob job(seed, seed % 2 == 0);
      if (job.num_parts < num_ranks) continue;
      PipelineHost::Placement placement;
      placement.hosts = job.random_hosts(num_ranks);
      placement.forms = tensor_forms(job.operators, job.step.inputs[0]);
      placement.shares = share_forms(job.operators, job.pipeline, job.step.inputs[0]);
      const size_t bytes = most_bytes(job.operators, job.pipeline, {&placement, 1});
      PostingRanks ranks(num_ranks, bytes);
      const std::string what = fmt::format("seed {}, {} ranks", seed, num_ranks);
      expect_same(run_serial_parts(job.operators, job.pipeline, job.step),
                  run_parts(job.operators, job.pipeline, job.step, placement.hosts,
                            std::move(ranks.communicators), /*lost=*/-1, ranks.memories),
                  what);
      for (const auto& memory : ranks.memories) {
        EXPECT_EQ(memory->refused(), 0) << what;
        EXPECT_EQ(memory->lent(), 0U) << what;
        taken_up += memory->taken_up();
      }
    }
  }
  EXPECT_GT(taken_up, 0U);
}

// Each operator makes a tensor of another width.
struct WideningModel : nn::OperatorModel {
  WideningModel() : OperatorModel(args_of(1)) {
    const Source first = add_dense("first", add_linear("first", kWidth, 16), input(), true);
    const Source second = add_dense("second", add_linear("second", 16, 32), first, true);
    finish(add_dense("head", add_linear("head", 32, kClasses), second, false));
  }
};

// Pipelines side by side that the ranks divide between other stages, so that each rank receives
// tensors of other sizes for one than for the other.
TEST(PostedReceives, PipelinesThatTakeTurnsHaveRoomForTheBlocksOfAll) {
  constexpr int kRanks = 2;
  WideningModel model;
  const nn::OperatorGraph operators = nn::training_operators(model, 0);
  PipelineHost::Step step;
  step.inputs = inputs_of(1, 2, 4096);
  Pipeline pipeline;
  pipeline.num_micro_batches = std::ssize(step.inputs);
  for (const std::vector<int>& ops : std::vector<std::vector<int>>{{0}, {1}, {2, 3}}) {
    pipeline.stages.emplace_back();
    pipeline.stages.back().ops = ops;
    pipeline.stages.back().order = {spec::Task::forward, spec::Task::backward, spec::Task::forward,
                                    spec::Task::backward};
  }
  std::vector<PipelineHost::Placement> placements(2);
  placements[0].hosts = {0, 1, 1};
  placements[1].hosts = {0, 0, 1};
  placements[1].first_tag = PipelineHost::num_tags(operators, pipeline);
  for (PipelineHost::Placement& placement : placements)
    placement.forms = tensor_forms(operators, step.inputs[0]);
  const size_t bytes = most_bytes(operators, pipeline, placements);
  EXPECT_GT(bytes, std::max(most_bytes(operators, pipeline, {&placements[0], 1}),
                            most_bytes(operators, pipeline, {&placements[1], 1})));
  PostingRanks ranks(kRanks, bytes);
  std::vector<std::string> errors(kRanks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto r = static_cast<size_t>(rank);
      try {
        for (PipelineHost::Placement placement : placements) {
          placement.rank = rank;
          placement.communicator = ranks.communicators[r].get();
          placement.memory = ranks.memories[r];
          PipelineHost(operators, pipeline, std::move(placement)).run(step);
          ranks.communicators[r]->barrier();
        }
      } catch (const std::exception& e) {
        errors[r] = e.what();
      }
    });
  }
  threads.clear();
  for (size_t r = 0; r < kRanks; ++r) {
    EXPECT_EQ(errors[r], "");
    EXPECT_EQ(ranks.memories[r]->refused(), 0) << "rank " << r;
  }
}

// One that leaves in the middle of a step, whose receives others write to just then.
TEST(PostedReceives, OfARankThatIsLostNothingStays) {
  for (uint64_t seed = 3000; seed < 3010; ++seed) {
    PostedCase c(seed, 2);
    PostingRanks ranks(2, c.bytes);
    const int lost = c.hosts[0];  // reads the model's first input
    for (const RankOutcome& of_rank :
         run_threads(c.operators, c.pipeline, c.step, c.hosts, std::move(ranks.communicators), lost,
                     ranks.memories)) {
      EXPECT_NE(of_rank.error, "") << "seed " << seed;
    }
    for (const auto& memory : ranks.memories) EXPECT_EQ(memory->lent(), 0U);
  }
}

// The first stage is done with all micro-batches before the second one is with its first: what it
// has made waits with it, as the transport refuses so many bytes that nobody receives yet. (It
// reads on, since a gradient of the third stage, which is beside the first, may come, too.)
TEST(PostedReceives, ByTcpNoMoreIsSentThanThereAreReceivesFor) {
  constexpr int64_t kRows = 1024, kColumns = 640;  // 2.5 MiB
  constexpr int64_t kMicroBatches = 6;
  nn::OperatorGraph operators;
  const at::Tensor w = at::ones({kColumns}).requires_grad_();
  nn::Operator scaled, slow, lost;
  scaled.name = "scale";
  scaled.inputs = {{nn::kModelInput, 0}};
  scaled.parameters.push_back({.name = "w", .tensor = w});
  scaled.run = [w](std::span<const at::Tensor> in) { return Tensors{in[0] * w}; };
  slow.name = "slow";
  slow.inputs = {{operators.add(scaled), 0}};
  slow.run = [](std::span<const at::Tensor> in) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return Tensors{in[0].square()};
  };
  lost.name = "loss";
  lost.inputs = {{operators.add(slow), 0}};
  lost.run = [](std::span<const at::Tensor> in) { return Tensors{in[0].sum(1)}; };
  operators.set_results({{operators.add(lost), 0}});
  Pipeline pipeline;
  pipeline.num_micro_batches = kMicroBatches;
  pipeline.stages.resize(3);
  for (int s = 0; s < 3; ++s) {
    pipeline.stages[static_cast<size_t>(s)].ops = {s};
    pipeline.stages[static_cast<size_t>(s)].order = spec::order_from_letters("F6B6", s, 100);
  }
  PipelineHost::Step step;
  for (int64_t m = 0; m < kMicroBatches; ++m) {
    step.inputs.push_back({at::ones({kRows, kColumns}).mul_(static_cast<double>(1 + m))});
  }
  const auto strict = [](const auto& group, net::Store& store, const net::Secret& secret) {
    comm::TcpOptions options;
    options.unexpected_hard = size_t{6} << 20;
    return comm::connect_tcp(group, store, secret, options, patience());
  };
  expect_equal(run_ranks(operators, pipeline, step, {0, 0, 0}, inproc_communicators(1)),
               run_ranks(operators, pipeline, step, {0, 1, 0}, connected(2, strict)), "by tcp");
}

INSTANTIATE_TEST_SUITE_P(Every, PipelineTransports, ::testing::ValuesIn(makers()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ductile::parallel
