#pragma once

#include <string>

#include "ductile/control/protocol.h"
#include "ductile/net/socket.h"
#include "ductile/run/folder.h"
#include "ductile/spec/job.h"

namespace ductile::train {

// What ductile-worker is told on its command line when a controller starts it.
struct ElasticInput {
  run::RunFolder folder;  // holds job.toml
  spec::JobOptions job;   // resolved and checked
  control::WorkerId worker = 0;
  net::Address controller, store;
  std::string
      address;  // where workers of other hosts reach it; empty: as it reaches the controller
  int progress_fd = -1;  // lines of run/progress.h go here while this worker leads; -1: nowhere
};

// One worker of a job that several share: hosts the virtual ranks that the controller gives it, in
// one generation after the other, until the controller says to exit. Its peers are anywhere.
//
// The member of rank 0 leads: it evaluates, logs, draws progress, and writes what is left when the
// job is done. Weights after step t depend on the job, the data and t alone, whatever workers came,
// went or died on the way. The job's secret comes from the environment (net::Secret::load).
//
// Faults of the job (bad data, divergence) go to the controller, which ends the job with their
// text. Throws only what leaves it without a connection to report by.
void train_elastic(const ElasticInput& input);

}  // namespace ductile::train
