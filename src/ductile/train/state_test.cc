#include "ductile/train/state.h"

#include <algorithm>
#include <functional>
#include <thread>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/digest.h"
#include "ductile/ckpt/writer.h"
#include "ductile/comm/arena.h"
#include "ductile/train/replica.h"

namespace ductile::train {
namespace {

spec::JobOptions small_job() {
  spec::JobOptions job;
  job.data.train_limit = 96;
  job.data.test_limit = 16;
  job.model.name = "resnet8";
  job.loader.threads = 1;
  job.optimizer.name = "adamw";
  job.optimizer.lr = 0.01;
  job.train.epochs = 4;
  job.train.batch_size = 24;
  job.train.virtual_ranks = 2;
  job.train.ema_decay = 0.9;
  return job;
}

void train(Replica& replica, int steps) {
  replica.host_all();
  std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
  for (int i = 0; i < steps; ++i) {
    replica.compute(replica.num_ranks(), sum);
    replica.apply(sum);
    if (replica.evaluation_due()) replica.record(replica.evaluate([](int64_t) {}));
  }
}

std::string digest(Replica& replica) { return replica.state().digest().value(); }

TEST(JobState, HasOneDigestForEqualStatesAndAnotherForEveryOther) {
  Replica a(small_job()), b(small_job());
  EXPECT_EQ(digest(a), digest(b));
  train(a, 3);
  EXPECT_NE(digest(a), digest(b));
  train(b, 3);
  EXPECT_EQ(digest(a), digest(b));
  const std::string whole = digest(a);
  JobState& state = a.state();
  // Each part counts: one bit of it makes another state.
  const std::vector<std::function<float&()>> places = {
      [&]() -> float& { return state.flat.weights()[3]; },
      [&]() -> float& { return state.flat.buffer_values()[1]; },
      [&]() -> float& { return state.average.span()[3]; },
      [&]() -> float& { return state.buffer_average.span()[1]; },
      [&]() -> float& { return state.optimizer->state()[0].values[3]; },
      [&]() -> float& { return state.optimizer->state()[1].values[3]; },
  };
  for (const auto& place : places) {
    const float before = place();
    place() = std::nextafter(before, 1e9F);
    EXPECT_NE(digest(a), whole);
    place() = before;
  }
  EXPECT_EQ(digest(a), whole);
  const std::vector<std::function<void(JobState&)>> changes = {
      [](JobState& s) { ++s.counters.cursor; },
      [](JobState& s) { ++s.counters.samples_forward; },
      [](JobState& s) { s.hyper.momentum += 0.01; },
      [](JobState& s) { s.window.sums["loss"] += 1; },
      [](JobState& s) { s.evaluated_at = 1; },
      [](JobState& s) { s.extra("tuner").values["branch"] = 2; },
      [](JobState& s) { s.extra_array("tuner", "mask", 4)[1] = 1; },
  };
  state.line = Window{{{"loss", 1.0}}, 3};
  EXPECT_EQ(digest(a), whole) << "it decides nothing";
  EXPECT_EQ(a.state().fork().values().at("metric_line").at("steps"), 3);
  state.line.reset();
  for (const auto& change : changes) {
    const StateImage image = state.fork();
    change(state);
    EXPECT_NE(digest(a), whole);
    a.take(image);
    EXPECT_EQ(digest(a), whole);
  }
}

TEST(JobState, ComesBackFromACheckpointToTheBitWithItsExtraParts) {
  const TempFolder folder;
  Replica a(small_job());
  train(a, 5);
  a.state().extra("method").values = {{"percentiles", {0.5, 0.25}}};
  a.state().extra_array("method", "history", 100)[7] = 0.125F;
  {
    ckpt::CheckpointWriter writer(folder.path(), ckpt::WriterOptions{});
    nlohmann::json values = a.values();
    values["cost"] = {{"wall_seconds", 12}};
    writer.save(a.step(), values, a.state().tensors());
    writer.wait();
  }
  const ckpt::Checkpoint saved = ckpt::Checkpoint::open(folder.path(), 5);
  EXPECT_EQ(ckpt::state_digest(saved), digest(a)) << "the file has the digest of the state";
  Replica b(small_job());
  train(b, 2);
  b.state().extra_array("method", "history", 3)[0] = 1;  // of another size, from another life
  b.state().extra("other").values = {1};
  b.restore(saved);
  EXPECT_EQ(digest(b), digest(a));
  EXPECT_EQ(b.state().extra_array("method", "history", 100)[7], 0.125F);
  train(a, 4);
  train(b, 4);
  EXPECT_EQ(digest(b), digest(a));
}

// The state of a version that counted steps alone.
TEST(JobState, TakesUpACheckpointFromBeforeTheCounters) {
  const TempFolder folder;
  Replica a(small_job());
  train(a, 6);
  {
    ckpt::CheckpointWriter writer(folder.path(), ckpt::WriterOptions{});
    nlohmann::json values = a.values();
    values["evaluated_step"] = values["evaluated_at"];
    for (const char* newer : {"counters", "hyper", "last_hyper", "evaluated_at", "evaluation",
                              "loss", "figures", "extra"})
      values.erase(newer);
    for (const char* newer : {"method", "rate_control"}) values["job"]["train"].erase(newer);
    writer.save(a.step(), values, a.state().tensors());
    writer.wait();
  }
  Replica b(small_job());
  b.restore(ckpt::Checkpoint::open(folder.path(), 6));
  EXPECT_EQ(b.state().counters, a.state().counters);
  EXPECT_EQ(b.state().hyper, a.state().hyper);
  train(a, 5);
  train(b, 5);
  // The noise of the gradients is not in such a checkpoint, and what is known of it is no weight.
  EXPECT_EQ(b.state().counters, a.state().counters);
  EXPECT_TRUE(std::ranges::equal(b.state().flat.weights(), a.state().flat.weights()));
}

TEST(JobState, TravelsToAnotherWorkerWhole) {
  auto arenas = comm::Arena::for_threads(2, {.region_bytes = size_t{8} << 20});
  Replica a(small_job()), b(small_job());
  train(a, 3);
  a.state().extra("method").values = {{"seen", 3}};
  a.state().extra_array("method", "history", 10)[2] = 2;
  const parallel::ExchangeLayout layout{{0, 1, 2}, 16};
  const Replica::Blocks all = {{0, a.shards().num_blocks()}};
  const std::vector<Replica::Blocks> have = {all, {}}, want = {all, all};
  std::jthread sender([&] {
    const auto exchange = parallel::make_exchange(std::shared_ptr(std::move(arenas[0])), layout);
    a.shards().enter(exchange->layout(), exchange->rank());
    a.send_state(*exchange, 1);
    a.transfer(*exchange, have, want);
  });
  const auto exchange = parallel::make_exchange(std::shared_ptr(std::move(arenas[1])), layout);
  b.shards().enter(exchange->layout(), exchange->rank());
  b.shards().hold({});
  b.receive_state(*exchange, 0, 3);
  b.transfer(*exchange, have, want);
  sender.join();
  EXPECT_EQ(digest(b), digest(a));
}

TEST(JobState, RefusesACheckpointOfAnotherModelNamingTheTensor) {
  const TempFolder folder;
  spec::JobOptions other = small_job();
  other.optimizer.name = "sgd";
  Replica a(small_job()), b(other);
  {
    ckpt::CheckpointWriter writer(folder.path(), ckpt::WriterOptions{});
    writer.save(0, a.values(), a.state().tensors());
    writer.wait();
  }
  const ckpt::Checkpoint saved = ckpt::Checkpoint::open(folder.path(), 0);
  try {
    b.state().restore(saved, saved.state());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(e.what()).find("optimizer/momentum_buffer/"), std::string::npos)
        << e.what();
  }
  EXPECT_THROW(b.restore(saved), Error);  // the job says so before the tensors do
  other = small_job();
  other.train.ema_decay = 0;
  Replica c(other);
  try {
    c.state().restore(saved, saved.state());
    FAIL() << "a tensor too many";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(e.what()).find("average/"), std::string::npos) << e.what();
  }
}

// Branches of a tuner: each goes its own way from the fork and back.
TEST(StateImage, BranchesGoTheirOwnWaysAndJoinToTheBit) {
  Replica live(small_job()), straight(small_job());
  train(live, 2);
  train(straight, 2);
  const StateImage parent = live.state().fork();
  std::vector<StateImage> branches;
  std::vector<std::string> ends;
  for (const double lr : {0.001, 0.1}) {
    live.take(parent);
    live.state().hyper.lr = lr;
    train(live, 2);
    branches.push_back(live.state().fork(&parent));
    ends.push_back(digest(live));
  }
  EXPECT_NE(ends[0], ends[1]);
  for (size_t i = 0; i < branches.size(); ++i) {
    live.take(branches[i]);
    EXPECT_EQ(digest(live), ends[i]);
  }
  live.take(parent);
  EXPECT_EQ(digest(live), digest(straight));
  train(live, 3);
  train(straight, 3);
  EXPECT_EQ(digest(live), digest(straight)) << "trials leave no trace";
}

// One of a worker that holds a part of the optimiser's state.
TEST(StateImage, BringsBackWhatWasHeld) {
  Replica replica(small_job());
  train(replica, 2);
  optim::Optimizer& optimizer = *replica.state().optimizer;
  const std::string whole = digest(replica);
  const StateImage all = replica.state().fork();
  optimizer.hold({{0, optimizer.num_blocks() / 2}});
  const StateImage half = replica.state().fork();
  replica.state().take(all);
  EXPECT_EQ(digest(replica), whole);
  replica.state().take(half);
  ASSERT_EQ(optimizer.held().size(), 1U);
  EXPECT_EQ(optimizer.held()[0].end, optimizer.num_blocks() / 2);
  EXPECT_FALSE(replica.state().digest());
}

TEST(StateImage, SharesWhatDidNotChange) {
  Replica replica(small_job());
  train(replica, 1);  // before it the average equals the weights
  const StateImage first = replica.state().fork();
  const size_t whole = first.own_bytes();
  EXPECT_GT(whole, size_t{4} * 4 * static_cast<size_t>(replica.num_parameters()));
  const StateImage same = replica.state().fork(&first);
  EXPECT_EQ(same.own_bytes(), 0U);
  const StateImage copy = first;  // NOLINT: costs no memory
  EXPECT_EQ(copy.own_bytes(), 0U);
  replica.state().flat.weights()[0] += 1;
  EXPECT_LT(replica.state().fork(&first).own_bytes(), whole / 2);
}

TEST(StateImage, ABranchCopiesThePiecesThatChangedAndNoOther) {
  spec::JobOptions job = small_job();
  job.model.name = "resnet20";
  Replica replica(job);
  train(replica, 1);
  JobState& state = replica.state();
  const auto own_bytes = [&](const std::string& branch) {
    state.save_branch(branch, "");
    return state.branches().at(branch).own_bytes();
  };
  const size_t whole = own_bytes("root");
  const size_t piece = StateImage::kPieceSize * sizeof(float);
  EXPECT_GT(whole, 15 * piece)
      << "weights, their average, and two moments, of four pieces and more";
  EXPECT_EQ(own_bytes("same"), 0U);
  state.flat.weights()[0] += 1;
  EXPECT_EQ(own_bytes("a_weight"), piece);
  std::span<float> moments = state.optimizer->state().back().values;
  moments.back() += 1;
  EXPECT_EQ(own_bytes("a_moment"), moments.size() * sizeof(float) % piece);
  EXPECT_EQ(own_bytes("a_moment"), moments.size() * sizeof(float) % piece) << "made anew";
  EXPECT_EQ(own_bytes("root"), 0U) << "all of it is in the others";
}

}  // namespace
}  // namespace ductile::train
