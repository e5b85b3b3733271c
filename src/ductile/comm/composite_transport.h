#pragma once

#include <memory>
#include <vector>

#include "ductile/comm/transport.h"

namespace ductile::comm {

// One transport over two: messages between ranks of one host take `inside`, all others `between`.
// `between` spans all ranks, and numbers them as the result does; `inside` spans those of this
// host: rank k of `inside` is rank local_ranks[k] of `between`. Either may be any transport.
//
// A loss on either is a loss of the whole. Where messages are under way on both, a wait looks at
// each by turns, at most a millisecond at a time; else it waits on the one that has any.
std::unique_ptr<Transport> make_composite_transport(std::unique_ptr<Transport> inside,
                                                    std::vector<int> local_ranks,
                                                    std::unique_ptr<Transport> between);

}  // namespace ductile::comm
