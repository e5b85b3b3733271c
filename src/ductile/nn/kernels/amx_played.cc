// Compiled with the flags of the AVX-512 kernels.
#include "ductile/nn/kernels/amx_impl.h"
#include "ductile/nn/kernels/amx_twin.h"

namespace ductile::nn::kernels {
namespace {

// Eight tiles in memory. As those of the processor, they are shaped before they are used, and a new
// shape clears them.
struct PlayedTiles {
  void shape(const TileShape& s) {
    if (__builtin_memcmp(&s, &shape_, sizeof(s)) == 0) return;
    shape_ = s;
    __builtin_memset(words_, 0, sizeof(words_));
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) resize(2 * i + j, s.rows[i], s.cols[j]);
      resize(4 + i, s.rows[i], kTileSide);
      resize(6 + i, kTileSide, s.cols[i]);
    }
  }
  void release() { shape_ = {}; }
  template <int T>
  void clear() {
    __builtin_memset(words_[T], 0, sizeof(words_[T]));
  }
  template <int T>
  void load(const float* from, int64_t row) {
    clear<T>();
    for (int64_t r = 0; r < rows_[T]; ++r)
      __builtin_memcpy(words_[T] + r * kTileSide, from + r * row, columns_[T] * sizeof(float));
  }
  template <int T>
  void store(float* to, int64_t row) {
    for (int64_t r = 0; r < rows_[T]; ++r)
      __builtin_memcpy(to + r * row, words_[T] + r * kTileSide, columns_[T] * sizeof(float));
  }
  template <int C, int A, int B>
  void multiply() {
    const unsigned int before = _mm_getcsr();
    _mm_setcsr(0x9fc0);
    for (int64_t r = 0; r < rows_[C]; ++r)
      add_row(words_[A] + r * kTileSide, words_[B], words_[C] + r * kTileSide);
    _mm_setcsr(before);
  }

 private:
  [[gnu::noinline]] static void add_row(const float* a, const float* b, float* c) {
    const auto first = [](__m512 pair) {
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pair), 16));
    };
    const auto second = [](__m512 pair) {
      return _mm512_castsi512_ps(
          _mm512_and_si512(_mm512_castps_si512(pair), _mm512_set1_epi32(-65536)));
    };
    __m512 firsts = _mm512_setzero_ps(), seconds = _mm512_setzero_ps();
    for (int64_t k = 0; k < kTileSide; ++k) {
      const __m512 x = _mm512_set1_ps(a[k]), y = _mm512_load_ps(b + k * kTileSide);
      firsts = _mm512_fmadd_ps(first(x), first(y), firsts);
      seconds = _mm512_fmadd_ps(second(x), second(y), seconds);
    }
    _mm512_store_ps(c, _mm512_add_ps(_mm512_load_ps(c), _mm512_add_ps(firsts, seconds)));
  }
  void resize(int tile, int64_t rows, int64_t columns) {
    rows_[tile] = rows;
    columns_[tile] = columns;
  }

  TileShape shape_ = {};
  int64_t rows_[8] = {}, columns_[8] = {};
  alignas(64) float words_[8][kTileArea] = {};
};

}  // namespace

void gemm_on_played_tiles(const Gemm& g) { TileGemm<PlayedTiles>(g).run(); }

}  // namespace ductile::nn::kernels
