#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/cli/commands.h"

namespace ductile::cli {

// What a submission says of a Ductile job.
struct TrainingSpec {
  std::string name;
  int64_t ranks = 1;    // virtual ones, of the plan that has most
  int64_t least = 1;    // devices, by the memory of the plan that needs fewest
  nlohmann::json spec;  // cluster/service_spec_impl.h: work_of(), plans_of()
};

// The job of `request`, by command.plans where there are any. Throws as JobConfig::read(), or
// read_planned() and check_memory(), do; and invalid_argument for several plans of which one says
// no time.
TrainingSpec training_spec(const ServiceCommand& command, const JobRequest& request,
                           const Context& context);

// That the plans in `files`, with which `submitted`, a spec, was made, are of the job's model, as
// far as this machine can tell. Throws invalid_argument, naming the file and the operator. Returns
// false where a signal ended it before all of them were looked at.
[[nodiscard]] bool require_plans_of_model(const nlohmann::json& submitted,
                                          const std::vector<fs::path>& files);

}  // namespace ductile::cli
