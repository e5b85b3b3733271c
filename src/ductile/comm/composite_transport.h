#pragma once

#include <memory>
#include <vector>

#include "ductile/comm/transport.h"

namespace ductile::comm {

// Makes one transport of two: messages between ranks on one host go through `inside`, all others
// through `between`. `between` spans all ranks, and numbers them as the result does; `inside` spans
// those of this host: rank k of `inside` is rank local_ranks[k] of `between`. Either may be any
// transport.
//
// A loss on either is a loss of the whole. If messages are under way on both, a wait polls them by
// turns, at most a millisecond each; otherwise it waits on the one that has messages.
std::unique_ptr<Transport> make_composite_transport(std::unique_ptr<Transport> inside,
                                                    std::vector<int> local_ranks,
                                                    std::unique_ptr<Transport> between);

}  // namespace ductile::comm
