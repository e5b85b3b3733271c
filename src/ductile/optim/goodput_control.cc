#include <algorithm>
#include <memory>
#include <string>

#include "ductile/base/json_value.h"
#include "ductile/optim/batch_order.h"
#include "ductile/optim/grown_batch_impl.h"
#include "ductile/spec/methods.h"

namespace ductile::optim {

int64_t order_of(const spec::JobOptions& job, const nlohmann::json& memory, int64_t train_size,
                 int64_t updates, int64_t wish) {
  const int64_t first = job.train.batch_size, parts = spec::batch_parts(job);
  const int64_t most = std::min(spec::most_batch(job), train_size);
  wish = std::min(wish, most / parts * parts);  // who wishes does not know the training set
  const bool fits = wish >= first && wish % parts == 0 &&
                    static_cast<int64_t>(static_cast<float>(wish)) == wish;  // as a figure
  const int64_t since = memory.value("since", int64_t{0});
  const bool patient = updates + 1 - since >= job.train.noise.patience;
  return fits && patient && wish != memory.value("batch_size", first) ? wish : 0;
}

namespace {

// The batch is what was ordered last, and all that was ordered is remembered, so that a run can be
// repeated: "decisions" is [[updates, batch], ...], the number of updates done before the first one
// with this batch.
class GoodputBatches final : public RateControl {
 public:
  explicit GoodputBatches(const spec::JobOptions& job) : grown_(job) {}

  Hyper next(const Observed& observed, nlohmann::json& memory) const override {
    int64_t batch = memory.value("batch_size", grown_.first());
    const auto order = observed.figures.find(std::string(kBatchOrder));
    if (order != observed.figures.end() && order->second > 0) {
      batch = static_cast<int64_t>(order->second);
      memory["since"] = observed.updates;
      if (!memory.contains("decisions")) memory["decisions"] = nlohmann::json::array();
      memory["decisions"].push_back({observed.updates, batch});
    }
    memory["batch_size"] = batch;
    return grown_.hyper(observed, batch);
  }

 private:
  GrownBatch grown_;
};

}  // namespace

std::unique_ptr<RateControl> make_goodput_control(const spec::JobOptions& job) {
  return std::make_unique<GoodputBatches>(job);
}

}  // namespace ductile::optim
