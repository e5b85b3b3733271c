#pragma once

#include <mutex>

namespace ductile::nn {

// Held by whoever draws from libtorch's generator, or seeds it, keeps it or puts it back, where
// other threads of the process may do so, too: it is one for all threads.
std::mutex& generator_mutex();

}  // namespace ductile::nn
