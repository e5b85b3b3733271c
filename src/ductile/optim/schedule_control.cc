
#include "ductile/base/json_value.h"
#include "ductile/optim/rate_control.h"
#include "ductile/optim/schedule.h"

namespace ductile::optim {
namespace {

// The learning rate follows [schedule]; everything else stays as the job file has it.
class Schedule final : public RateControl {
 public:
  explicit Schedule(const spec::JobOptions& job) : options_(job.schedule), hyper_(Hyper::of(job)) {}

  Hyper next(const Observed& observed, nlohmann::json&) const override {
    Hyper hyper = hyper_;
    hyper.lr = learning_rate(options_, hyper_.lr, observed.position, observed.total,
                             observed.steps_per_epoch);
    return hyper;
  }

 private:
  spec::ScheduleOptions options_;
  Hyper hyper_;
};

}  // namespace

std::unique_ptr<RateControl> make_schedule_control(const spec::JobOptions& job) {
  return std::make_unique<Schedule>(job);
}

}  // namespace ductile::optim
