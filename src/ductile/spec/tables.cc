// The halves of the tables that every layer may read: names and help.
#include "ductile/spec/datasets.h"
#include "ductile/spec/methods.h"
#include "ductile/spec/models.h"
#include "ductile/spec/optimizers.h"
#include "ductile/spec/schedules.h"

namespace ductile::spec {
namespace {

#define DUCTILE_HELP(name, make, ...) {name, __VA_ARGS__},
#define DUCTILE_MODEL_HELP(name, make, threads, ...) {name, __VA_ARGS__},

constexpr Named kOptimizers[] = {DUCTILE_OPTIMIZERS(DUCTILE_HELP)};
constexpr DatasetHelp kDatasets[] = {DUCTILE_DATASETS(DUCTILE_HELP)};
constexpr ModelHelp kModels[] = {DUCTILE_MODELS(DUCTILE_MODEL_HELP)};
constexpr Named kStepMethods[] = {DUCTILE_STEP_METHODS(DUCTILE_HELP)};
constexpr Named kRateControls[] = {DUCTILE_RATE_CONTROLS(DUCTILE_HELP)};
constexpr Named kSchedules[] = {
    {"constant", "the peak rate throughout"},
    {"step", "the peak, multiplied by schedule.step.gamma at each of schedule.step.milestones"},
    {"cosine", "half a cosine from the peak to the end"},
    {"linear", "a straight line from the peak to the end"},
    {"one_cycle", "half a cosine up to the peak, another down to the end"},
    {"knee", "stays at the peak to explore, then a straight line down"},
    {"trapezoid", "stays at the peak, and falls in the last schedule.trapezoid.decay of the run"},
    {"polynomial", "falls as (1 - share of the run) to the power of schedule.polynomial.power"},
};

constexpr Table<Named> kOptimizerTable("optimizer.name =", kOptimizers);
constexpr Table<Named> kScheduleTable("schedule.name =", kSchedules);
constexpr Table<DatasetHelp> kDatasetTable("data.format =", kDatasets);
constexpr Table<Named> kStepMethodTable("train.method =", kStepMethods);
constexpr Table<Named> kRateControlTable("train.rate_control =", kRateControls);
constexpr Table<ModelHelp> kModelTable("model.name =", kModels);

}  // namespace

Table<Named> optimizers() { return kOptimizerTable; }
Table<Named> schedules() { return kScheduleTable; }
Table<Named> step_methods() { return kStepMethodTable; }
Table<Named> rate_controls() { return kRateControlTable; }
Table<DatasetHelp> datasets() { return kDatasetTable; }
Table<ModelHelp> models() { return kModelTable; }

}  // namespace ductile::spec
