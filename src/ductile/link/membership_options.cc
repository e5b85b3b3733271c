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
  // Another plan may have other numbers of stages (`ductile train --resume RUN --plan`), and the
  // one before comes back where the workers refuse it. A checkpoint knows of which plan it is.
  options.may_change_ranks = spec::is_pipelined(job);
  // In a job by stages no worker need have room for all of the state.
  options.all_read = spec::is_pipelined(job) && job.train.shard_optimizer;
  return options;
}

}  // namespace ductile::link
