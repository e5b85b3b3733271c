#include "ductile/link/membership_options.h"

#include <chrono>

namespace ductile::link {
namespace {

control::Time seconds(double value) {
  return std::chrono::duration_cast<control::Time>(std::chrono::duration<double>(value));
}

}  // namespace

control::MembershipOptions membership_options(const spec::JobOptions& job) {
  control::MembershipOptions options;
  options.virtual_ranks = options.max_workers = job.train.virtual_ranks;
  options.heartbeat_deadline = seconds(job.elastic.peer_deadline);
  options.checkpoint_every = seconds(job.checkpoint.every_seconds);
  options.checkpoint_steps = job.checkpoint.every_steps;
  options.save_result = job.checkpoint.at_end;
  return options;
}

}  // namespace ductile::link
