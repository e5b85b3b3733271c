#include <algorithm>
#include <memory>

#include "ductile/base/json_value.h"
#include "ductile/noise/noise_scale.h"
#include "ductile/optim/batch_order.h"
#include "ductile/optim/rate_control.h"
#include "ductile/spec/methods.h"

namespace ductile::optim {

int64_t order_of(const spec::JobOptions& job, const nlohmann::json& memory, int64_t train_size,
                 int64_t updates, int64_t wish) {
  const int64_t first = job.train.batch_size;
  const bool fits = wish >= first && wish <= std::min(spec::most_batch(job), train_size) &&
                    wish % spec::batch_parts(job) == 0;
  const int64_t since = memory.value("since", int64_t{0});
  const bool patient = updates + 1 - since >= job.train.noise.patience;
  return fits && patient && wish != memory.value("batch_size", first) ? wish : 0;
}

nlohmann::json decisions_of(const nlohmann::json& memory) {
  const auto found = memory.find("decisions");
  return found == memory.end() ? nlohmann::json::array() : *found;
}

namespace {

// The batch is what was ordered last, and all that was ordered is remembered, so that a run can be
// repeated. The learning rate follows [schedule], times what the larger batch permits.
class GoodputBatches final : public RateControl {
 public:
  explicit GoodputBatches(const spec::JobOptions& job)
      : schedule_(make_schedule_control(job)),
        first_(job.train.batch_size),
        sgd_(job.optimizer.name == "sgd") {}

  Hyper next(const Observed& observed, nlohmann::json& memory) const override {
    int64_t batch = memory.value("batch_size", first_);
    const auto order = observed.figures.find(std::string(kBatchOrder));
    if (order != observed.figures.end() && order->second > 0) {
      batch = static_cast<int64_t>(order->second);
      memory["since"] = observed.updates;
      if (!memory.contains("decisions")) memory["decisions"] = nlohmann::json::array();
      memory["decisions"].push_back({observed.updates, batch});
    }
    memory["batch_size"] = batch;
    nlohmann::json none;
    Hyper hyper = schedule_->next(observed, none);
    hyper.batch_size = batch;
    const double scale = static_cast<double>(batch) / static_cast<double>(first_);
    if (scale > 1 && observed.noise)
      hyper.lr *=
          sgd_ ? noise::adascale_factor(*observed.noise, scale) : noise::square_root_factor(scale);
    return hyper;
  }

 private:
  std::unique_ptr<RateControl> schedule_;
  int64_t first_;  // batch
  bool sgd_;
};

}  // namespace

std::unique_ptr<RateControl> make_goodput_control(const spec::JobOptions& job) {
  return std::make_unique<GoodputBatches>(job);
}

}  // namespace ductile::optim
