#include "ductile/optim/rate_control.h"

#include "ductile/base/json_value.h"

namespace ductile::optim {
namespace {

constexpr RateControlEntry kControls[] = {DUCTILE_RATE_CONTROLS(DUCTILE_TABLE_ROW)};

}  // namespace

Table<RateControlEntry> rate_controls() { return {"train.rate_control =", kControls}; }

std::unique_ptr<RateControl> make_rate_control(const spec::JobOptions& job) {
  return rate_controls().at(job.train.rate_control).make(job);
}

}  // namespace ductile::optim
