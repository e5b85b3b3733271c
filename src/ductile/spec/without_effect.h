#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/options.h"
#include "ductile/spec/job.h"

namespace ductile::spec {

// What of a job does nothing, a sentence for each with the option's name and origin: options that
// were given another value than their default and that the job does not read, and parts of the run
// that would begin behind train.epochs (what train.max_steps cuts off depends on the data, which
// are not open yet). It is no error, since a job file may hold the options of several rules, of
// which --set chooses one. `options` are those of `job`.
std::vector<std::string> without_effect(const JobOptions& job, const OptionSet& options);

// What the job would need in order to read the option, such as `optimizer.name = "lars"`; nullopt
// where it reads it, as far as is known here.
std::optional<std::string_view> needed_to_read(const JobOptions& job, std::string_view option);
// The same of jobs of which each has a part of what the option needs: what none of them has.
std::optional<std::string_view> needed_to_read(std::span<const JobOptions> jobs,
                                               std::string_view option);

}  // namespace ductile::spec
