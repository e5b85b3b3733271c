#include "ductile/train/minimum.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/data/dataset.h"
#include "ductile/data/sampler.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/meters.h"
#include "ductile/train/training_loss.h"

namespace ductile::train {
namespace {

using Json = nlohmann::json;
using run::json_number;

// What a forward and a backward pass take at once; the sums of batches are in double.
constexpr int64_t kBatch = 128;
constexpr uint64_t kSampleStream = 0x6d696e696d61;

// `count` samples of `size`, which the seed alone chooses.
std::vector<int64_t> draw(uint64_t seed, int64_t size, int64_t count) {
  const data::Permutation order(mix(seed, kSampleStream), 0, size);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(order[i]);
  return out;
}

TrainingLoss::Batches fetch(data::Loader& loader, std::span<const int64_t> samples, int64_t batch) {
  TrainingLoss::Batches out;
  while (!samples.empty()) {
    const size_t count = std::min(samples.size(), static_cast<size_t>(batch));
    out.push_back(loader.fetch(samples.first(count), 0));
    samples = samples.subspan(count);
  }
  return out;
}

void require_finite(const TrainingLoss& surface, int64_t step) {
  if (std::ranges::all_of(surface.weights(), [](float w) { return std::isfinite(w); })) return;
  fail(ErrorCode::conflict,
       "the weights of step {} are not finite, so they are no minimum to measure; name an earlier "
       "checkpoint with --checkpoint",
       step);
}

Json json_of(const minima::Spectrum& s) {
  return {{"largest", json_number(s.largest)},
          {"residual", json_number(s.residual)},
          {"smallest", json_number(s.smallest)},
          {"smallest_residual", json_number(s.smallest_residual)},
          {"converged", s.converged},
          {"products", s.products},
          {"step", json_number(s.step)},
          {"check", json_number(s.check)},
          {"check_residual", json_number(s.check_residual)}};
}

Json json_of(const minima::Slices& slices, const std::string& kind) {
  Json losses = Json::array();
  for (const std::vector<double>& row : slices.losses) {
    Json& out = losses.emplace_back(Json::array());
    for (const double loss : row) out.push_back(json_number(loss));
  }
  return {{"kind", kind}, {"places", slices.places}, {"losses", std::move(losses)}};
}

Json json_of(const minima::Measurement& m, const minima::Options& options) {
  Json out = {{"loss", json_number(m.loss)},
              {"gradient_norm", json_number(m.gradient_norm)},
              {"weight_norm", json_number(m.weight_norm)},
              {"subspace", options.subspace},
              {"steps", options.steps},
              {"seed", options.seed},
              {"sharpness", Json::array()}};
  for (const minima::Sharpness& s : m.sharpness) {
    out["sharpness"].push_back({{"epsilon", s.epsilon},
                                {"value", json_number(s.value)},
                                {"halfway", json_number(s.halfway)},
                                {"loss", json_number(s.loss)}});
  }
  if (m.hessian) out["hessian"] = json_of(*m.hessian);
  if (m.slices) out["slices"] = json_of(*m.slices, options.slices);
  return out;
}

}  // namespace

Json measure_minimum(Trained& trained, const minima::Options& options,
                     const std::function<void(double)>& each) {
  run::CostMeter meter;
  const spec::JobOptions& job = trained.job();
  const auto train_set = open_training_data(job, "the sharpness of a minimum");
  const int64_t size = train_set->info().size;
  const auto loader = load_samples(train_set, Origin::own, trained);
  const auto seed = static_cast<uint64_t>(options.seed);
  TrainingLoss surface(trained.model(), trained.flat(),
                       fetch(*loader, draw(seed, size, std::min(size, options.samples)),
                             std::min(kBatch, job.train.batch_size)));
  require_finite(surface, trained.step());
  const minima::Measurement found = minima::measure(surface, options, each);
  Json out = json_of(found, options);
  out["samples"] = surface.num_samples();
  out["train_size"] = size;
  const int64_t passes = found.losses + found.gradients;
  Json& cost = out["cost"] = run::to_json(meter.read());
  cost["losses"] = found.losses;
  cost["gradients"] = found.gradients;
  cost["samples_forward"] = passes * surface.num_samples();
  cost["samples_backward"] = found.gradients * surface.num_samples();
  if (const data::LoaderStats stats = loader->stats(); stats.bad_samples > 0)
    out["bad_samples"] = describe_bad(stats);
  return out;
}

}  // namespace ductile::train
