#pragma once

#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"
#include "ductile/cluster/engine_impl.h"
#include "ductile/cluster/records.h"
#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/service.h"
#include "ductile/run/folder.h"
#include "ductile/spec/cluster.h"
#include "ductile/spec/job.h"

namespace ductile::cluster {

// The job that a spec says. Throws invalid_argument for one that this program does not know.
spec::JobOptions job_of(const nlohmann::json& spec);

// What a job asks of a service with so many devices. `now`: of the clock of Scheduler::decide().
JobDemand demand_of(const JobRecord& record, const spec::JobOptions& job, int64_t devices,
                    double now);

// The cluster that the options name, or one of this machine alone.
spec::Cluster cluster_of(const ServiceOptions& options);
std::unique_ptr<Engine> engine_of(net::Loop& loop, const ServiceOptions& options);

// In a sentence, that the job needs more devices than there are; empty: it does not.
std::string lack_of_devices(const JobRecord& record, int64_t devices);

// The folder of the runs, made where it is missing.
fs::path runs_of(const ServiceOptions& options);

// A run directory of this name that nobody has used. There is one of the name itself already where
// an earlier store, which was lost, counted its jobs from 1, too.
fs::path unused(const fs::path& path);

// Makes the run directory if it is missing. One without a job in it, and with nothing else, is what
// a service that was killed while it made the directory has left.
run::RunFolder made_run(const fs::path& run, spec::JobOptions& job);

}  // namespace ductile::cluster
