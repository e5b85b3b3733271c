#include "ductile/base/error.h"
#include "ductile/train/step_method.h"

namespace ductile::train {
namespace {

// The ranks' parts come from a StageRunner; together they are the sums over the micro-batches.
class Pipelined final : public StepMethod {
 public:
  explicit Pipelined(const spec::JobOptions& job) : micro_batches_(spec::batch_parts(job)) {}

  bool runs_stages() const override { return true; }
  at::Tensor contribute(RankContext&) override {
    fail(ErrorCode::internal, "a stage has no loss of its own");
  }
  Verdict judge(const JobState&, const StepKind& kind, const std::map<std::string, double>& sums,
                int64_t /*num_ranks*/) const override {
    const auto parts = static_cast<float>(micro_batches_);
    return {kind.update, parts, static_cast<float>(sums.at(std::string(kLoss))) / parts};
  }

 private:
  const int64_t micro_batches_;  // of all pipelines
};

}  // namespace

std::unique_ptr<StepMethod> make_pipelined_method(const spec::JobOptions& job) {
  return std::make_unique<Pipelined>(job);
}

}  // namespace ductile::train
