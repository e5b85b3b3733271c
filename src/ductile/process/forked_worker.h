#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

// The side of zygote.h that is in the process which forks, and in the workers that it forks. It is
// for a process with one thread.
namespace ductile::process {

// Becomes a zygote, whose launcher's socket is its input. Returns in each worker that is forked,
// once it is let go, with its words as main() would have them; in the zygote itself it never does:
// that ends with its launcher, or at once where it has threads already. `program`: argv[0].
std::vector<std::string> become_worker(const std::string& program);

// Where `ps` and whoever looks for workers read the command line of this process. It is written
// over main()'s arguments, and cut where these were shorter; its words may be divided by zero
// bytes.
void set_title(std::string_view title);

// fork(), as a child of this process's parent. -1 with errno where there is none.
pid_t fork_as_sibling();

}  // namespace ductile::process
