#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ductile/base/dtype.h"
#include "ductile/comm/arena.h"
#include "ductile/comm/canonical.h"

namespace ductile::comm {

// Collectives of the ranks on one host, directly in the memory that they share: the ranks divide
// the vector into tiles, and each tile is read from all peers' memory, summed in rank order, and
// written to all of them. No message and no copy; each byte is read and written once per rank. The
// result has the same bits whatever the timing, because the timing decides only which rank makes a
// sum, never the order of the sum.
//
// All ranks call the same functions in the same order, with equal counts, types and offsets in
// their regions; otherwise Error conflict, on all. `data` lies in the own region, unless said
// otherwise. Blocking; the owner thread of the arena calls. Errors: peer_lost (see arena.h; the
// vectors then hold anything), invalid_argument for types without a sum.

// Sums `n` elements at `data` over the ranks, with the result on all ranks. `data` may lie outside
// the arena; it is then copied in and out.
void all_reduce(Arena& arena, DType type, std::byte* data, size_t n);

// `bounds` has size() + 1 ascending element numbers: slice r is [bounds[r], bounds[r + 1]). Rank r
// ends with the sums of its slice, in place; the rest of its vector keeps its own values.
void reduce_scatter(Arena& arena, DType type, std::byte* data, std::span<const size_t> bounds);

// Copies slice r of rank r to all ranks.
void all_gather(Arena& arena, DType type, std::byte* data, std::span<const size_t> bounds);

// Copies rank `root`'s bytes to all. `data` may lie outside of the arena.
void broadcast(Arena& arena, std::byte* data, size_t bytes, int root);

// Returns once all ranks have called it; what they wrote before is then visible to all.
void barrier(Arena& arena);

// A sum in an order of the caller's, such as combine_order() of canonical.h gives. `inputs` are
// vectors of `n` elements anywhere in the arena, given by their addresses in this process
// (Arena::peer()): the same vectors on every rank. Each step adds to value `left` the value
// `right`; values start as the inputs (which stay as they are, but for `out`), and value 0 in the
// end goes to `out` on every rank. `out` lies in the own region, and may be one of the inputs. For
// f16 and bf16 each addition rounds.
void all_reduce_combine(Arena& arena, DType type, std::span<const std::byte* const> inputs,
                        std::span<const Combine> steps, std::byte* out, size_t n);

}  // namespace ductile::comm
