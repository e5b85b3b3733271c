#include "ductile/nn/kernels/product.h"

#include <algorithm>

#include <omp.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "ductile/nn/kernels/isa.h"
#include "ductile/nn/kernels/scratch.h"

// Blocks as in Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (ACM
// Transactions on Mathematical Software, 2008): a panel of b in the L1 cache, a block of a in L2.
namespace ductile::nn::kernels {
namespace {

constexpr int64_t kPanel = 6144;       // floats of a panel of b: 24 KiB with 16 lanes, half with 8
constexpr int64_t kMostDepth = 256;    // of a block
constexpr int64_t kCols = 1024;        // of a block of b
constexpr int64_t kRows = 768;         // of a block of a
constexpr int64_t kGroup = 12;         // rows that a kernel computes at once, at most
constexpr int64_t kGroups = 8;         // of rows in a task, at most
constexpr int64_t kWhole = 1 << 18;    // floats that are packed at once, at most
constexpr int64_t kWholeDepth = 2048;  // with which rows of a stay in a cache between two panels
constexpr int64_t kFewRows = 8;        // with which a weight is not worth packing
constexpr int64_t kMostLanes = 16;     // of a vector
constexpr double kSerial = 1 << 20;    // multiply-adds below which a team costs more than it gives

constexpr int64_t pieces(int64_t n, int64_t size) { return (n + size - 1) / size; }

// out[k * width + i] = data[i * stride + k * depth_stride] for i < count, and 0 up to width.
void pack_scattered(const float* data, int64_t stride, int64_t depth_stride, int64_t count,
                    int64_t depth, int64_t width, float* out) {
  for (int64_t k = 0; k < depth; ++k) {
    const float* from = data + k * depth_stride;
    float* to = out + k * width;
    for (int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
    std::fill(to + count, to + width, 0.0F);
  }
}

// The same where k runs through adjacent floats: 4 x 4 blocks are transposed in registers.
void pack_transposed(const float* data, int64_t stride, int64_t count, int64_t depth, int64_t width,
                     float* out) {
  int64_t i = 0;
#if defined(__SSE2__)
  for (; i + 4 <= count; i += 4) {
    const float* from = data + i * stride;
    int64_t k = 0;
    for (; k + 4 <= depth; k += 4) {
      __m128 r0 = _mm_loadu_ps(from + k), r1 = _mm_loadu_ps(from + stride + k);
      __m128 r2 = _mm_loadu_ps(from + 2 * stride + k), r3 = _mm_loadu_ps(from + 3 * stride + k);
      _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
      float* to = out + k * width + i;
      _mm_storeu_ps(to, r0);
      _mm_storeu_ps(to + width, r1);
      _mm_storeu_ps(to + 2 * width, r2);
      _mm_storeu_ps(to + 3 * width, r3);
    }
    for (; k < depth; ++k)
      for (int64_t j = 0; j < 4; ++j) out[k * width + i + j] = from[j * stride + k];
  }
#endif
  for (; i < count; ++i)
    for (int64_t k = 0; k < depth; ++k) out[k * width + i] = data[i * stride + k];
  if (count < width)
    for (int64_t k = 0; k < depth; ++k)
      std::fill(out + k * width + count, out + (k + 1) * width, 0.0F);
}

// The same where i does.
void pack_adjacent(const float* data, int64_t depth_stride, int64_t count, int64_t depth,
                   int64_t width, float* out) {
  for (int64_t k = 0; k < depth; ++k) {
    const float* from = data + k * depth_stride;
    float* to = out + k * width;
    int64_t i = 0;
#if defined(__SSE2__)
    for (; i + 4 <= count; i += 4) _mm_storeu_ps(to + i, _mm_loadu_ps(from + i));
#endif
    for (; i < count; ++i) to[i] = from[i];
    for (; i < width; ++i) to[i] = 0;
  }
}

void pack(const float* data, int64_t stride, int64_t depth_stride, int64_t count, int64_t depth,
          int64_t width, float* out) {
  if (stride == 1) {
    pack_adjacent(data, depth_stride, count, depth, width, out);
  } else if (depth_stride == 1) {
    pack_transposed(data, stride, count, depth, width, out);
  } else {
    pack_scattered(data, stride, depth_stride, count, depth, width, out);
  }
}

// The rows of one block, in groups of nearly equal size: few rows at once leave the multipliers
// waiting for each other's results.
struct Groups {
  explicit Groups(int64_t rows) : number(pieces(rows, kGroup)), size(pieces(rows, number)) {}
  int64_t number, size;
};

// One block of a product, and where its operands are read: packed, or where they lie.
struct Block {
  int64_t row, rows, col, cols, k, depth;
  bool accumulate;
  Groups groups;
  int64_t panels;
  bool pack_a, pack_b;
};

// An operand that is read once needs no copy, nor does an a with adjacent values along the depth.
// Whole panels of b can be read in place where their columns are adjacent.
Block block_of(const Product& p, int64_t width, int64_t row, int64_t col, int64_t k,
               int64_t most_depth) {
  Block out{row,
            std::min(kRows, p.rows - row),
            col,
            std::min(kCols, p.cols - col),
            k,
            std::min(most_depth, p.depth - k),
            p.accumulate || k > 0,
            Groups(1),
            0,
            true,
            true};
  out.groups = Groups(out.rows);
  out.panels = pieces(out.cols, width);
  out.pack_a = out.panels > 2 && p.a.column != 1;
  out.pack_b = out.groups.number > 1 || p.b.column != 1;
  return out;
}

struct Packed {
  float *a, *b;
};

// Rows [row, ..) of the block times one panel of its columns.
void multiply_group(const Isa& isa, const Product& p, const Block& block, const Packed& packed,
                    int64_t group, int64_t panel) {
  const int64_t width = 2 * isa.lanes, row = group * block.groups.size, col = panel * width;
  const int64_t rows = std::min(block.groups.size, block.rows - row);
  const int64_t cols = std::min(width, block.cols - col);
  Gemm g{packed.a + row * block.depth,
         1,
         block.groups.size,
         0,
         packed.b + col * block.depth,
         width,
         0,
         p.c + (block.row + row) * p.c_row + (block.col + col) * p.c_column,
         p.c_row,
         rows,
         pieces(cols, isa.lanes) * isa.lanes,
         block.depth,
         1,
         block.accumulate};
  if (!block.pack_a) {
    g.a = p.a.data + (block.row + row) * p.a.row + block.k * p.a.column;
    g.a_row = p.a.row;
    g.a_depth = p.a.column;
  }
  if (!block.pack_b && cols == width) {
    g.b = p.b.data + block.k * p.b.row + block.col + col;
    g.b_depth = p.b.row;
  }
  if (g.cols == cols && p.c_column == 1) return isa.gemm(g);
  alignas(64) float tile[kGroup * 2 * kMostLanes];
  float* const c = g.c;
  if (block.accumulate) {
    std::fill(tile, tile + rows * width, 0.0F);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < cols; ++j) tile[r * width + j] = c[r * p.c_row + j * p.c_column];
  }
  g.c = tile;
  g.c_row = width;
  isa.gemm(g);
  for (int64_t j = 0; j < cols; ++j)
    for (int64_t r = 0; r < rows; ++r) c[r * p.c_row + j * p.c_column] = tile[r * width + j];
}

// What is packed of a block: panels of b, and behind them groups of rows of a.
int64_t packed_pieces(const Block& block) {
  return block.panels + (block.pack_a ? block.groups.number : 0);
}

void pack_piece(const Isa& isa, const Product& p, const Block& block, const Packed& packed,
                int64_t i) {
  const int64_t width = 2 * isa.lanes;
  const Groups& groups = block.groups;
  if (i < block.panels) {
    const int64_t col = i * width, cols = std::min(width, block.cols - col);
    if (block.pack_b || cols < width)
      pack(p.b.data + block.k * p.b.row + (block.col + col) * p.b.column, p.b.column, p.b.row, cols,
           block.depth, width, packed.b + col * block.depth);
  } else {
    const int64_t row = (i - block.panels) * groups.size;
    pack(p.a.data + (block.row + row) * p.a.row + block.k * p.a.column, p.a.row, p.a.column,
         std::min(groups.size, block.rows - row), block.depth, groups.size,
         packed.a + row * block.depth);
  }
}

// The groups of a block's rows, in nearly equal parts: one is a task.
int64_t parts_of(const Groups& groups) { return pieces(groups.number, kGroups); }

void multiply_part(const Isa& isa, const Product& p, const Block& block, const Packed& packed,
                   int64_t part, int64_t panel) {
  const int64_t parts = parts_of(block.groups), number = block.groups.number;
  for (int64_t g = part * number / parts; g < (part + 1) * number / parts; ++g)
    multiply_group(isa, p, block, packed, g, panel);
}

// Runs in every thread of the team.
void multiply_block(const Isa& isa, const Product& p, const Block& block, const Packed& packed) {
  // What a thread packs is read by all of them: each loop ends with a barrier.
#pragma omp for schedule(static)
  for (int64_t i = 0; i < packed_pieces(block); ++i) pack_piece(isa, p, block, packed, i);
#pragma omp for schedule(static)
  for (int64_t task = 0; task < parts_of(block.groups) * block.panels; ++task)
    multiply_part(isa, p, block, packed, task / block.panels, task % block.panels);
}

// The blocks of one set of rows and columns, over all of the depth.
struct Blocks {
  const Product& p;
  int64_t width, row, col, most_depth;

  int64_t number() const { return pieces(p.depth, most_depth); }
  Block at(int64_t n) const { return block_of(p, width, row, col, n * most_depth, most_depth); }
};

// As multiply_block for each of them, in memory for all that is packed of them: threads wait for
// each other twice, and not twice for each block. The sums of an element are in the same order.
void multiply_whole(const Isa& isa, const Blocks& blocks, const Packed& packed, int64_t a_floats,
                    int64_t b_floats) {
  const Product& p = blocks.p;
  const Block first = blocks.at(0);  // the others have the same rows and columns
  const int64_t each = packed_pieces(first), number = blocks.number();
  const auto packed_at = [&](int64_t n) -> Packed {
    return {packed.a + n * a_floats, packed.b + n * b_floats};
  };
#pragma omp for schedule(static)
  for (int64_t i = 0; i < number * each; ++i)
    pack_piece(isa, p, blocks.at(i / each), packed_at(i / each), i % each);
#pragma omp for schedule(static)
  for (int64_t task = 0; task < parts_of(first.groups) * first.panels; ++task)
    for (int64_t n = 0; n < number; ++n)
      multiply_part(isa, p, blocks.at(n), packed_at(n), task / first.panels, task % first.panels);
}

void clear(const Product& p) {
  for (int64_t i = 0; i < p.rows; ++i)
    for (int64_t j = 0; j < p.cols; ++j) p.c[i * p.c_row + j * p.c_column] = 0;
}

}  // namespace

bool product_supported() { return isa_for(kMostLanes) != nullptr; }

void product(const Product& p) {
  if (p.rows <= 0 || p.cols <= 0) return;
  if (p.depth <= 0) {
    if (!p.accumulate) clear(p);
    return;
  }
  // The few rows become the columns, of which only they are packed.
  if (p.rows <= kFewRows && p.cols > p.rows && p.b.column != 1) {
    return product({p.b.transposed(), p.a.transposed(), p.c, p.c_column, p.c_row, p.cols, p.rows,
                    p.depth, p.accumulate});
  }
  const Isa& isa = *isa_for(kMostLanes);
  const int64_t width = 2 * isa.lanes, most_depth = std::min(kMostDepth, kPanel / width);
  const int64_t depth = std::min(p.depth, most_depth);
  const auto room = [&](int64_t size, int64_t most, int64_t over) {
    return ScratchCutter::rounded((std::min(size, most) + over) * depth);
  };
  const double work =
      static_cast<double>(p.rows) * static_cast<double>(p.cols) * static_cast<double>(p.depth);
  const bool packs_a = block_of(p, width, 0, 0, 0, most_depth).pack_a;
  const int64_t a_floats = packs_a ? room(p.rows, kRows, kGroup) : 0;
  const int64_t b_floats = room(p.cols, kCols, width);
  const int64_t number = pieces(p.depth, most_depth);
  // One thread waits for nobody, and has what it packs in nearer caches.
  const bool alone = work <= kSerial || omp_get_max_threads() == 1 || omp_in_parallel() != 0;
  const bool whole = !alone && p.depth <= kWholeDepth && number * (a_floats + b_floats) <= kWhole;
  const int64_t held = whole ? number : 1;
  float* const a = scratch(ScratchKind::shared, held * (a_floats + b_floats));
  const Packed packed{a, a + held * a_floats};
#pragma omp parallel if (work > kSerial)
  for (int64_t col = 0; col < p.cols; col += kCols)
    for (int64_t row = 0; row < p.rows; row += kRows) {
      const Blocks blocks{p, width, row, col, most_depth};
      if (whole) {
        multiply_whole(isa, blocks, packed, a_floats, b_floats);
        continue;
      }
      for (int64_t n = 0; n < blocks.number(); ++n) multiply_block(isa, p, blocks.at(n), packed);
    }
}

void transpose_each(int64_t count, const float* from, int64_t rows, int64_t cols, float* to) {
  const int64_t size = rows * cols;
#pragma omp parallel for schedule(dynamic, 4) if (static_cast <double>(count * size) > kSerial / 16)
  for (int64_t n = 0; n < count; ++n)
    pack_transposed(from + n * size, cols, rows, cols, rows, to + n * size);
}

void column_sums(const Matrix& m, int64_t rows, int64_t cols, float* sums) {
  std::fill(sums, sums + cols, 0.0F);
  for (int64_t i = 0; i < rows; ++i) {
    const float* const row = m.data + i * m.row;
    if (m.column == 1) {
      for (int64_t j = 0; j < cols; ++j) sums[j] += row[j];
    } else {
      for (int64_t j = 0; j < cols; ++j) sums[j] += row[j * m.column];
    }
  }
}

}  // namespace ductile::nn::kernels
