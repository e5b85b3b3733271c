#pragma once

#include "ductile/train/ingredients.h"

// Step methods and a rate control that use every freedom of their seams, for the tests of these.
namespace ductile::train::testing {

// Back-propagates the samples with large losses alone, judged by what it remembers of losses seen
// before: other counts in every step, a figure and an extra part of its own.
std::unique_ptr<StepMethod> make_selecting_method();

// Before every third update it evaluates the loss at three places along the last update's
// direction, in steps of their own that are no updates, and remembers the best; the next update
// goes a little way there.
std::unique_ptr<StepMethod> make_probing_method();

// Changes learning rate, momentum, weight decay and batch size as the run goes, by what it sees and
// remembers of the loss; in a job with staleness also that, between 0 and the job's.
std::unique_ptr<optim::RateControl> make_restless_control(const spec::JobOptions& job);

// Brings every live option that the job reads (spec/live_options.h) with other values as the run
// goes, and none with every fourth update.
std::unique_ptr<optim::RateControl> make_restless_options_control(const spec::JobOptions& job);

}  // namespace ductile::train::testing
