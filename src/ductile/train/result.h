#pragma once

#include <optional>
#include <string>

#include "ductile/base/files.h"
#include "ductile/parallel/exchange.h"
#include "ductile/train/part_saver.h"
#include "ductile/train/replica.h"

// The end of a job: the file of the weights to deploy, and the digests that the report has.
namespace ductile::train {

struct Digests {
  std::string state;    // the whole of it state (ckpt/digest.h)
  std::string weights;  // those to deploy
};

// By a worker that holds all of the state. Where the disk has no room for the file now, that is
// logged if the file is written again later (`written_later`), and else thrown (unavailable).
Digests write_result(Replica& replica, const fs::path& model_file, bool written_later);

// All members together, where none need hold all of it and Replica::deploys_in_parts(): each hands
// over what is its to write (`shares`, PartSaver::writers), piece by piece. The same digests and
// the same file, on the leader alone. Throws unavailable there if the disk refuses the file; the
// others do not know of it.
std::optional<Digests> write_result_in_parts(Replica& replica, parallel::Exchange& exchange,
                                             const PartSaver::Shares& shares,
                                             const fs::path& model_file);

}  // namespace ductile::train
