#pragma once

#include "ductile/control/membership.h"
#include "ductile/spec/job.h"

namespace ductile::link {

// What control::Membership needs to know of a job: its virtual ranks, checkpoints and deadlines,
// taken from the job file. The caller adds where the job runs (hosts, how many workers fit).
control::MembershipOptions membership_options(const spec::JobOptions& job);

}  // namespace ductile::link
