#include "ductile/optim/rate_control.h"

#include <array>

#include <nlohmann/json.hpp>

#include "ductile/base/error.h"
#include "ductile/optim/schedule.h"

namespace ductile::optim {
namespace {

// The learning rate follows [schedule]; everything else stays as the job file has it.
class Schedule final : public RateControl {
 public:
  explicit Schedule(const spec::JobOptions& job)
      : options_(job.schedule), hyper_(Hyper::of(job)) {}

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

constexpr std::array<RateControlEntry, 1> kControls{{
    {"schedule",
     [](const spec::JobOptions& job) -> std::unique_ptr<RateControl> {
       return std::make_unique<Schedule>(job);
     },
     "the learning rate is a function of the progress of the run ([schedule])"},
}};

}  // namespace

std::span<const RateControlEntry> rate_controls() { return kControls; }

std::unique_ptr<RateControl> make_rate_control(const spec::JobOptions& job) {
  std::string names;
  for (const RateControlEntry& entry : kControls) {
    if (entry.name == job.train.rate_control) return entry.make(job);
    names += names.empty() ? "" : ", ";
    names += entry.name;
  }
  fail(ErrorCode::invalid_argument, "train.rate_control = \"{}\" is unknown; known: {}",
       job.train.rate_control, names);
}

}  // namespace ductile::optim
