#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "ductile/nn/kernels/gemm_impl.h"
#include "ductile/nn/kernels/isa.h"

// Gemm of bf16 pairs (Bf16Isa) on tiles: registers of 16 rows of 16 32-bit words, of which one
// instruction multiplies two and adds the product to a third. The sources that include this are
// compiled with AVX-512; Tiles has the registers, and the tests play them in memory.
//
// The pairs of all runs follow each other and are cut into blocks of 16, the last one filled up
// with zeros. Each block's products of first halves and those of second halves are summed apart,
// and the sum of both is added to the element, where AVX512-BF16 adds one product after the other:
// no order of instructions gives both the same bits. They depend on the operands alone, not on
// where an element lies, since rows and columns never meet.
namespace ductile::nn::kernels {
namespace {

constexpr int64_t kTileSide = 16;             // rows of a tile, words of its rows
constexpr int64_t kTileArea = 16 * 16;        // words
constexpr int64_t kTilePair = 2 * kTileSide;  // rows and columns of c that are computed together
constexpr int64_t kTileBlocks = 16;           // of the depth, from one visit to c to the next
constexpr int64_t kTileWords = kTileBlocks * kTileSide;

// Rows and columns of the two tiles of c in each direction; 0: there is none.
struct TileShape {
  int rows[2], cols[2];
};

// One block of the depth: its first word, and where whole tiles can be read where they lie.
struct TileBlock {
  int64_t run, d, words;
  int64_t a, b;  // offsets of the first word
  bool a_in_place, b_in_place;
};

// The rows of a tile, `row` words apart.
struct TileRows {
  const float* at;
  int64_t row;
};

__mmask16 first_lanes(int64_t n) {
  return static_cast<__mmask16>(n >= kTileSide ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
}

// Stores the transpose of 16 x 16 words.
void store_transposed(__m512 (&v)[16], float* to) {
  __m512 w[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(v[i], v[i + 1]));
    const __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(v[i], v[i + 1]));
    const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(v[i + 2], v[i + 3]));
    const __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(v[i + 2], v[i + 3]));
    // Lane l of w[i + j] has column 4 * l + j of rows i to i + 3.
    w[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23));
    w[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23));
    w[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23));
    w[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23));
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    // Lanes 0 and 2, and 1 and 3, of the rows 0 to 7 and 8 to 15.
    const __m512 even0 = _mm512_shuffle_f32x4(w[j], w[j + 4], 0x88);
    const __m512 even1 = _mm512_shuffle_f32x4(w[j + 8], w[j + 12], 0x88);
    const __m512 odd0 = _mm512_shuffle_f32x4(w[j], w[j + 4], 0xdd);
    const __m512 odd1 = _mm512_shuffle_f32x4(w[j + 8], w[j + 12], 0xdd);
    _mm512_storeu_ps(to + j * kTileSide, _mm512_shuffle_f32x4(even0, even1, 0x88));
    _mm512_storeu_ps(to + (j + 4) * kTileSide, _mm512_shuffle_f32x4(odd0, odd1, 0x88));
    _mm512_storeu_ps(to + (j + 8) * kTileSide, _mm512_shuffle_f32x4(even0, even1, 0xdd));
    _mm512_storeu_ps(to + (j + 12) * kTileSide, _mm512_shuffle_f32x4(odd0, odd1, 0xdd));
  }
}

// One product. Its work memory is on the stack, and the tiles are the calling thread's until
// run() returns.
template <class Tiles>
class TileGemm {
 public:
  explicit TileGemm(const Gemm& g) : g_(g), words_(g.depth * g.runs) {}

  void run() {
    if (words_ == 0) return clear();
    const bool whole_pairs = g_.panel == 0 || g_.panel >= g_.cols || g_.panel % kTilePair == 0;
    const int64_t step = whole_pairs ? kTilePair : kTileSide;
    for (int64_t first = 0; first < words_; first += kTileWords) {
      cut(first);
      accumulate_ = g_.accumulate || first > 0;
      for (int64_t row = 0; row < g_.rows; row += kTilePair) {
        const int64_t rows = least(kTilePair, g_.rows - row);
        find_a(row, rows);
        for (int64_t col = 0; col < g_.cols; col += step) {
          const int64_t cols = least(step, g_.cols - col);
          find_b(col, cols);
          multiply(row, rows, col, cols);
        }
      }
    }
    tiles_.release();
  }

 private:
  static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

  // Of an empty sum: 8 columns at a time, of which there are whole ones.
  void clear() {
    if (g_.accumulate) return;
    for (int64_t col = 0; col < g_.cols; col += 8) {
      float* const c = g_.c + panel_offset(col, g_.panel, g_.c_panel);
      for (int64_t r = 0; r < g_.rows; ++r) _mm256_storeu_ps(c + r * g_.c_row, _mm256_setzero_ps());
    }
  }

  // The blocks from this word of the depth on.
  void cut(int64_t first) {
    int64_t run = first / g_.depth, d = first % g_.depth;
    count_ = 0;
    for (int64_t at = first; at < words_ && count_ < kTileBlocks; at += kTileSide) {
      TileBlock& block = blocks_[count_++];
      block = {run,
               d,
               least(kTileSide, words_ - at),
               run * g_.a_run + d * g_.a_depth,
               run * g_.b_run + d * g_.b_depth,
               false,
               false};
      const bool full = block.words == kTileSide, one_run = d + kTileSide <= g_.depth;
      block.a_in_place = full && g_.a_depth == 1 && (one_run || g_.a_run == g_.depth);
      block.b_in_place = full && (one_run || g_.b_run == g_.depth * g_.b_depth);
      for (d += kTileSide; d >= g_.depth; d -= g_.depth) ++run;
    }
  }

  // Calls f(k, n, run, d) for the words [k, k + n) of a block that lie in one run.
  template <class F>
  void for_each_run(const TileBlock& block, const F& f) {
    int64_t run = block.run, d = block.d;
    for (int64_t k = 0; k < block.words; ++run, d = 0) {
      const int64_t n = least(block.words - k, g_.depth - d);
      f(k, n, run, d);
      k += n;
    }
  }

  void find_a(int64_t row, int64_t rows) {
    for (int64_t i = 0; i < count_; ++i) {
      const TileBlock& block = blocks_[i];
      if (block.a_in_place) {
        a_[i] = {g_.a + block.a + row * g_.a_row, g_.a_row};
        continue;
      }
      float* const to = packed_a_ + i * 2 * kTileArea;
      a_[i] = {to, kTileSide};
      if (g_.a_depth == 1) {
        pack_rows(block, row, rows, to);
      } else if (g_.a_row == 1) {
        for (int64_t r = 0; r < rows; r += kTileSide)
          pack_transposed(block, row + r, rows - r, to + r * kTileSide);
      } else {
        pack_scattered(block, row, rows, to);
      }
    }
  }

  void pack_rows(const TileBlock& block, int64_t row, int64_t rows, float* to) {
    for_each_run(block, [&](int64_t k, int64_t n, int64_t run, int64_t d) {
      const auto mask = static_cast<__mmask16>(first_lanes(n) << k);
      const float* from = g_.a + row * g_.a_row + run * g_.a_run + d;
      for (int64_t r = 0; r < rows; ++r) {
        const __m512 words = _mm512_maskz_expandloadu_ps(mask, from + r * g_.a_row);
        // The first run's store clears the rest of the row.
        if (k == 0) {
          _mm512_store_ps(to + r * kTileSide, words);
        } else {
          _mm512_mask_store_ps(to + r * kTileSide, mask, words);
        }
      }
    });
  }

  void pack_transposed(const TileBlock& block, int64_t row, int64_t rows, float* to) {
    __m512 v[kTileSide];
    const __mmask16 mask = first_lanes(rows);
    const float* from = g_.a + row + block.a;
    int64_t d = block.d;
    for (int64_t k = 0; k < kTileSide; ++k) {
      if (k >= block.words) {
        v[k] = _mm512_setzero_ps();
        continue;
      }
      v[k] = _mm512_maskz_loadu_ps(mask, from);
      from += g_.a_depth;
      if (++d == g_.depth) {
        d = 0;
        from += g_.a_run - g_.depth * g_.a_depth;
      }
    }
    store_transposed(v, to);
  }

  void pack_scattered(const TileBlock& block, int64_t row, int64_t rows, float* to) {
    for (int64_t r = 0; r < rows; ++r) _mm512_store_ps(to + r * kTileSide, _mm512_setzero_ps());
    for_each_run(block, [&](int64_t k, int64_t n, int64_t run, int64_t d) {
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < n; ++j)
          to[r * kTileSide + k + j] =
              g_.a[(row + r) * g_.a_row + run * g_.a_run + (d + j) * g_.a_depth];
    });
  }

  void find_b(int64_t col, int64_t cols) {
    const float* const b = g_.b + panel_offset(col, g_.panel, g_.b_panel);
    for (int64_t i = 0; i < count_; ++i) {
      const TileBlock& block = blocks_[i];
      if (block.b_in_place) {
        b_[i] = {b + block.b, g_.b_depth};
        continue;
      }
      float* const to = packed_b_ + i * 2 * kTileArea;
      b_[i] = {to, kTilePair};
      const __mmask16 left = first_lanes(cols), right = first_lanes(cols - kTileSide);
      for_each_run(block, [&](int64_t k, int64_t n, int64_t run, int64_t d) {
        const float* from = b + run * g_.b_run + d * g_.b_depth;
        for (int64_t j = 0; j < n; ++j, from += g_.b_depth) {
          float* const row = to + (k + j) * kTilePair;
          _mm512_store_ps(row, _mm512_maskz_loadu_ps(left, from));
          if (right != 0)
            _mm512_store_ps(row + kTileSide, _mm512_maskz_loadu_ps(right, from + kTileSide));
        }
      });
      for (int64_t k = block.words; k < kTileSide; ++k)
        for (int64_t j = 0; j < kTilePair; j += kTileSide)
          _mm512_store_ps(to + k * kTilePair + j, _mm512_setzero_ps());
    }
  }

  void multiply(int64_t row, int64_t rows, int64_t col, int64_t cols) {
    const auto first = [](int64_t n) { return static_cast<int>(least(n, kTileSide)); };
    const auto rest = [](int64_t n) { return static_cast<int>(n - least(n, kTileSide)); };
    tiles_.shape({{first(rows), rest(rows)}, {first(cols), rest(cols)}});
    float* const c = g_.c + panel_offset(col, g_.panel, g_.c_panel) + row * g_.c_row;
    if (rows > kTileSide) {
      cols > kTileSide ? multiply_tiles<2, 2>(c) : multiply_tiles<2, 1>(c);
    } else {
      cols > kTileSide ? multiply_tiles<1, 2>(c) : multiply_tiles<1, 1>(c);
    }
  }

  // c's tiles are registers 0 and 1, and 2 and 3 below them; a's are 4 and 5, b's 6 and 7.
  template <int M, int N>
  void multiply_tiles(float* c) {
    const int64_t c_row = g_.c_row, below = kTileSide * c_row;
    if (accumulate_) {
      tiles_.template load<0>(c, c_row);
      if constexpr (N == 2) tiles_.template load<1>(c + kTileSide, c_row);
      if constexpr (M == 2) tiles_.template load<2>(c + below, c_row);
      if constexpr (M == 2 && N == 2) tiles_.template load<3>(c + below + kTileSide, c_row);
    } else {
      tiles_.template clear<0>();
      if constexpr (N == 2) tiles_.template clear<1>();
      if constexpr (M == 2) tiles_.template clear<2>();
      if constexpr (M == 2 && N == 2) tiles_.template clear<3>();
    }
    for (int64_t i = 0; i < count_; ++i) {
      const TileRows a = a_[i], b = b_[i];
      tiles_.template load<6>(b.at, b.row);
      tiles_.template load<4>(a.at, a.row);
      tiles_.template multiply<0, 4, 6>();
      if constexpr (N == 2) {
        tiles_.template load<7>(b.at + kTileSide, b.row);
        tiles_.template multiply<1, 4, 7>();
      }
      if constexpr (M == 2) {
        tiles_.template load<5>(a.at + kTileSide * a.row, a.row);
        tiles_.template multiply<2, 5, 6>();
      }
      if constexpr (M == 2 && N == 2) tiles_.template multiply<3, 5, 7>();
    }
    tiles_.template store<0>(c, c_row);
    if constexpr (N == 2) tiles_.template store<1>(c + kTileSide, c_row);
    if constexpr (M == 2) tiles_.template store<2>(c + below, c_row);
    if constexpr (M == 2 && N == 2) tiles_.template store<3>(c + below + kTileSide, c_row);
  }

  const Gemm& g_;
  const int64_t words_;
  bool accumulate_ = false;
  int64_t count_ = 0;
  Tiles tiles_;
  TileBlock blocks_[kTileBlocks];
  TileRows a_[kTileBlocks], b_[kTileBlocks];
  alignas(64) float packed_a_[kTileBlocks * 2 * kTileArea];
  alignas(64) float packed_b_[kTileBlocks * 2 * kTileArea];
};

}  // namespace
}  // namespace ductile::nn::kernels
