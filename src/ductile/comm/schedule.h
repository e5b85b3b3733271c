#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ductile::comm {

// Collective algorithms as data. An algorithm is a pure function from (rank, topology, options) to
// the list of steps of that rank. The engine runs a list, the checker proves it, the cost model
// prices it. Lists are made one rank at a time, so that one rank of very many costs little.

enum class Collective : uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
  barrier,
};
std::string_view to_string(Collective c);

enum class Algorithm : uint8_t {
  automatic,           // the cost model chooses by size
  ring,                // neighbours only; any number of ranks; most bandwidth
  recursive_doubling,  // whole vectors with partners 1, 2, 4 ... away; least latency
  halving_doubling,    // recursive halving, then doubling; other factors than 2 by direct exchange
  torus,               // rows and columns of a grid at once
  hierarchical,        // inside the hosts, between them, inside again
  direct,              // every rank with every other
  canonical,           // direct, summed in the order of the tree of canonical.h
};
std::string_view to_string(Algorithm a);
Algorithm algorithm_from_string(std::string_view name);  // throws invalid_argument
// The algorithms that make_schedule knows for `c`, without automatic and canonical.
std::vector<Algorithm> algorithms_of(Collective c);

// A rectangle of ranks: rank = row * num_columns + column. {0, 0}: choose.
struct Grid {
  int num_rows = 0;
  int num_columns = 0;
};

// Where the ranks are.
struct Topology {
  int num_ranks = 1;
  int ranks_per_host = 1;  // ranks r * ranks_per_host ... share a host; the last may have fewer
  std::vector<int> host;   // host of each rank, any numbers; overrides ranks_per_host
  Grid grid;               // for the torus; its row links are rail 0, its column links rail 1
  int num_rails = 1;       // links of one host that carry data at the same time
  bool both_directions = false;  // links that are point to point carry as much both ways at once

  int host_of(int rank) const { return host.empty() ? rank / ranks_per_host : host[rank]; }
};

enum class BufferName : uint8_t { in, out, scratch };

// Chunks begin .. begin + count - 1 of a buffer: one piece of memory.
struct Chunks {
  BufferName buffer = BufferName::out;
  int32_t begin = 0;
  int32_t count = 0;

  int32_t end() const { return begin + count; }
  friend bool operator==(const Chunks&, const Chunks&) = default;
};

enum class Op : uint8_t {
  send,            // a -> peer
  receive,         // peer -> dst
  receive_reduce,  // dst = a + what peer sent
  reduce,          // dst = a + b
  copy,            // dst = a
  round,           // dst = dst rounded to the wire format; nothing where data travel as they are
};

struct Step {
  Op op;
  uint8_t rail = 0;
  bool exact = false;  // send and receive: in full, also where others use the wire format
  int32_t peer = -1;
  Chunks dst{};
  Chunks a{};
  Chunks b{};
};

// The steps of one rank. Meaning: as if run one after the other, with sends that do not block.
// Steps that touch a common chunk, one of them writing it, keep their order; all others may
// overlap. The k-th send from rank x to rank y on a rail carries the k-th receive of y from x on
// that rail. The list order is also the order of preference among steps that could run.
//
// Buffers. `in` and `out` are blocks of equally many elements, each cut into chunks_per_block near
// equal chunks (see chunk_bounds): all_gather has one block in and P out, all_to_all P and P.
// Chunks are numbered through. Chunk i of scratch has the length of chunk mirror_begin + i %
// mirror_count of out. `in` is never written. Block 0 of `in` may be the same memory as block 0 of
// `out`, for collectives with one block out: the engine and the checker then see one buffer.
struct Schedule {
  int rank = 0;
  int num_ranks = 1;
  int in_blocks = 1;
  int out_blocks = 1;
  int chunks_per_block = 1;
  int scratch_chunks = 0;
  int mirror_begin = 0;
  int mirror_count = 1;
  Algorithm algorithm = Algorithm::ring;  // what was made; differs from what was asked on fallback
  std::string note;                       // why it fell back, for people; else empty
  std::vector<Step> steps;
};

struct ScheduleOptions {
  // Pieces into which each rank's share is cut, to overlap steps; at least 1. On a torus: pairs of
  // flows that are in different phases at a time.
  int pipeline = 1;
  int root = 0;  // of a broadcast
  // True where 4-byte floats travel as 2: lists then round such that all ranks end with the same
  // bits.
  bool wire = false;
  // canonical: the virtual ranks cut[r] .. cut[r + 1] - 1 are those of rank r; cut.front() == 0,
  // cut.back() == V, ascending; a rank may have none.
  std::vector<int64_t> cut;
};

// The list of `rank`. Throws invalid_argument on a rank, grid, root or cut that makes no sense, and
// for an algorithm that the collective does not have; falls back, with a note, where only the
// number of ranks or hosts does not suit the algorithm.
Schedule make_schedule(Collective collective, Algorithm algorithm, const Topology& topology,
                       int rank, const ScheduleOptions& options = {});

// The elements [first, second) of chunk `i` of `num_chunks` of a block of `num_elements`. Near
// equal; boundaries fall on multiples of 64 bytes where the chunks are at least that long.
std::pair<int64_t, int64_t> chunk_bounds(int64_t num_elements, size_t element_size, int num_chunks,
                                         int i);

// The grid for P ranks with the fewest steps: the most nearly square with both sides above 1, or
// {1, P} where there is none (P prime or below 4).
Grid choose_grid(int num_ranks);

// The share of the data that goes along rows first such that row and column links carry the same
// load: row load 2 (X-1)/X (f + (1-f)/Y), column load 2 (Y-1)/Y ((1-f) + f/X); X columns, Y rows.
double balanced_row_share(const Grid& grid);

}  // namespace ductile::comm
