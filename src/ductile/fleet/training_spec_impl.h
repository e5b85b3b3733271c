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

// That the plans in `files`, with which `body`, the request of a job or of an array, was made, are
// of the model of each of its jobs, as far as this machine can tell; jobs that do not differ in
// what matters to a plan are looked at once. Throws invalid_argument, naming the file, the job of
// an array and the operator. Returns false where a signal ended it before all were looked at.
[[nodiscard]] bool require_plans_of_model(const nlohmann::json& body,
                                          const std::vector<fs::path>& files);

}  // namespace ductile::cli
