#include "ductile/train/probing.h"

#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/json_value.h"
#include "ductile/train/replica.h"

namespace ductile::train {
namespace {

using Json = nlohmann::json;

// Probes after the third update, at two places.
class TwoProbes final : public optim::RateControl {
 public:
  explicit TwoProbes(const spec::JobOptions& job) : hyper_(optim::Hyper::of(job)) {}

  std::optional<Probing> probing() const override { return Probing{2}; }
  bool keeps_weights(const Json& memory) const override { return memory.value("keep", false); }
  std::optional<double> probe(const Json& memory) const override {
    return memory.contains("at") ? std::optional(memory["at"].get<double>()) : std::nullopt;
  }
  optim::Hyper next(const optim::Observed& observed, Json& memory) const override {
    memory["keep"] = observed.updates == 1;
    if (observed.probe_loss) memory["losses"].push_back(*observed.probe_loss);
    const size_t done = memory.contains("losses") ? memory["losses"].size() : 0;
    memory.erase("at");
    if (observed.updates == 3 && done < 3) memory["at"] = done == 0 ? 0.0 : done == 1 ? 1.0 : 0.0;
    return hyper_;
  }

 private:
  optim::Hyper hyper_;
};

spec::JobOptions probing_job() {
  spec::JobOptions job;
  job.data.train_limit = 96;
  job.data.test_limit = 16;
  job.model.name = "mlp";
  job.model.hidden = {8};
  job.loader.threads = 1;
  job.train.epochs = 2;
  job.train.batch_size = 24;
  job.train.virtual_ranks = 4;
  job.train.threads = 1;
  return job;
}

Recipe recipe(const spec::JobOptions& job, bool probing) {
  return [=] {
    Ingredients given;
    if (probing) given.rate_control = std::make_unique<TwoProbes>(job);
    return complete(std::move(given), job);
  };
}

void step(Replica& replica) {
  std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
  replica.compute(replica.num_ranks(), sum);
  replica.apply(sum);
}

std::vector<float> weights_of(Replica& replica) {
  const std::span<float> w = replica.state().flat.weights();
  return {w.begin(), w.end()};
}

TEST(Probing, LeavesTheWeightsAndTheBatchesAsTheyWere) {
  spec::JobOptions job = probing_job();
  job.schedule.name = "constant";
  Replica probed(job, recipe(job, true)), plain(job, recipe(job, false));
  probed.host_all();
  plain.host_all();
  for (int i = 0; i < 3; ++i) step(probed);
  const std::vector<float> before = weights_of(probed);
  for (int i = 0; i < 3; ++i) step(probed);
  EXPECT_EQ(probed.updates(), 3);
  EXPECT_EQ(probed.step(), 6);
  EXPECT_EQ(std::memcmp(before.data(), weights_of(probed).data(), before.size() * sizeof(float)),
            0);
  for (int i = 0; i < 3; ++i) step(probed);
  for (int i = 0; i < 6; ++i) step(plain);
  EXPECT_EQ(weights_of(probed), weights_of(plain));
  // Three probes of two mini-batches of 6 samples on each of 4 ranks.
  EXPECT_EQ(probed.state().counters.samples_forward,
            plain.state().counters.samples_forward + 3 * 2 * 24);
  EXPECT_EQ(probed.state().counters.samples_backward, plain.state().counters.samples_backward);
}

TEST(Probing, SeesTheSameSamplesInAllProbesOfARound) {
  const spec::JobOptions job = probing_job();
  Replica replica(job, recipe(job, true));
  replica.host_all();
  for (int i = 0; i < 6; ++i) step(replica);
  const Json& losses = replica.state().extras().at(std::string(kControlPart)).values.at("losses");
  ASSERT_EQ(losses.size(), 3U);
  EXPECT_EQ(losses[0], losses[2]);  // the same place
  EXPECT_NE(losses[0], losses[1]);
}

}  // namespace
}  // namespace ductile::train
