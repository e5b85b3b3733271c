#pragma once

#include <memory>

#include "ductile/tune/trial_policy.h"

namespace ductile::tune {

using MadePolicy = std::unique_ptr<TrialPolicy>;
MadePolicy make_full(std::unique_ptr<Searcher> searcher, const PolicyOptions& options);
MadePolicy make_one_epoch(std::unique_ptr<Searcher> searcher, const PolicyOptions& options);
MadePolicy make_halving(std::unique_ptr<Searcher> searcher, const PolicyOptions& options);
MadePolicy make_hyperband(std::unique_ptr<Searcher> searcher, const PolicyOptions& options);
MadePolicy make_asha(std::unique_ptr<Searcher> searcher, const PolicyOptions& options);
MadePolicy make_mltuner(std::unique_ptr<Searcher> searcher, const PolicyOptions& options);
MadePolicy make_freeze_thaw(std::unique_ptr<Searcher> searcher, const PolicyOptions& options);

}  // namespace ductile::tune
