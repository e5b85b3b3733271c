// Compiled with the flags of the AVX-512 kernels. The instructions on tiles are written out, since
// they take registers by number; may_use(IsaLevel::amx) says whether they may run.
#include "ductile/nn/kernels/amx_impl.h"

namespace ductile::nn::kernels {
namespace {

// The operand of ldtilecfg.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int height, int words) {
    if (height == 0 || words == 0) return;
    rows[tile] = static_cast<uint8_t>(height);
    row_bytes[tile] = static_cast<uint16_t>(4 * words);
  }
};
static_assert(sizeof(TileConfig) == 64);

// How the calling thread's registers are configured; all zeros: not at all.
struct Configured {
  TileShape shape = {};
  bool kept = false;  // from one product to the next
};
thread_local Configured configured;

void end_configuration(Configured& tiles) {
  tiles.shape = {};
  asm volatile("tilerelease" ::: "memory");
}

// The registers of the calling thread.
class AmxTiles {
 public:
  // Clears all registers where the shape is another one.
  void shape(const TileShape& s) {
    if (__builtin_memcmp(&s, &tiles_.shape, sizeof(s)) == 0) return;
    tiles_.shape = s;
    TileConfig config;
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) config.set(2 * i + j, s.rows[i], s.cols[j]);
      config.set(4 + i, s.rows[i], kTileSide);
      config.set(6 + i, s.cols[i] > 0 ? kTileSide : 0, s.cols[i]);
    }
    asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
  }
  void release() {
    if (!tiles_.kept) end_configuration(tiles_);
  }

  template <int T>
  void clear() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  template <int T>
  void load(const float* from, int64_t row) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(4 * row), "i"(T) : "memory");
  }
  template <int T>
  void store(float* to, int64_t row) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(4 * row), "i"(T) : "memory");
  }
  template <int C, int A, int B>
  void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }

 private:
  Configured& tiles_ = configured;
};

}  // namespace

void gemm_on_tiles(const Gemm& g);
void keep_tiles(bool keep);

void gemm_on_tiles(const Gemm& g) { TileGemm<AmxTiles>(g).run(); }

void keep_tiles(bool keep) {
  configured.kept = keep;
  if (!keep && configured.shape.rows[0] > 0) end_configuration(configured);
}

}  // namespace ductile::nn::kernels
