#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace ductile::spec {

// The options in which a job that goes on differs from itself as it was saved (job.toml as JSON),
// but for those that affect only speed and output: with any of these the result would be another
// one. The number of threads is no such option if the model is `thread_invariant` (nn/threads.h).
// Of a list the option is named, not the element.
std::vector<std::string> changed_options(const nlohmann::json& saved, const nlohmann::json& now,
                                         bool thread_invariant);

// The job as this version would have saved it, of any earlier one: newer options have their
// defaults, and those that moved are where they are now. Throws invalid_argument, naming `where`,
// for what is no job.
nlohmann::json upgraded_job(const nlohmann::json& saved, const std::string& where);

}  // namespace ductile::spec
