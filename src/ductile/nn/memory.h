#pragma once

namespace ductile::nn {

// Lets the C allocator keep what is freed instead of returning it to the system. A training step
// frees and allocates the same large activations again and again; without this each one costs fresh
// zeroed pages (8 % of a ResNet-20 step). The process's memory then shrinks by give_back_freed()
// (base/pages.h) alone. Call once, at the start of a training process, before other threads run.
// Does nothing where the C library is not glibc.
void keep_freed_memory();

}  // namespace ductile::nn
