#pragma once

#include <mutex>

namespace at {
struct Generator;
}

namespace ductile::nn {

// What the built-in models draw from (dropout): a generator for each thread, since several workers
// of a job, and members of a batch norm group, may be threads of one process and each has numbers
// of its own. seed_step() seeds it together with libtorch's.
at::Generator& own_generator();

// Held by whoever draws from libtorch's generator, or seeds it, keeps it or puts it back, where
// other threads of the process may do so, too: it is one for all threads. Custom models draw from
// it.
std::mutex& generator_mutex();

}  // namespace ductile::nn
