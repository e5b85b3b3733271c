#pragma once

#include "ductile/control/membership.h"
#include "ductile/spec/job.h"

namespace ductile::link {

// What control::Membership needs to know of a job: its virtual ranks, checkpoints and deadlines, as
// its file has them. Where it runs (hosts, how many workers fit) is for the caller to add.
control::MembershipOptions membership_options(const spec::JobOptions& job);

}  // namespace ductile::link
