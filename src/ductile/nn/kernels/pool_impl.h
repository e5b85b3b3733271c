#pragma once

#include "ductile/nn/kernels/storage_impl.h"

// Max pooling of one NHWC image on a vector type V.
namespace ductile::nn::kernels {

// The part [begin, end) of a window's positions along one axis that lies inside the image.
struct PoolWindow {
  int64_t start;  // of position 0; may lie outside
  int64_t begin, end;
};

template <class V>
PoolWindow pool_window(int64_t output, int64_t size, const MaxPool& p) {
  const int64_t start = output * p.stride - p.padding;
  return {start, start < 0 ? -start : 0, size - start < p.kernel ? size - start : p.kernel};
}

// Whether each pixel of the image lies in one window.
template <class V>
bool has_tiles(const MaxPool& p) {
  return p.padding == 0 && p.stride == p.kernel && p.out_height * p.kernel == p.height &&
         p.out_width * p.kernel == p.width;
}

template <class V>
struct MaxPoolRun {
  const MaxPool& p;
  const void* x;
  void* y;
  uint8_t* index;

  // Windows of 2x2 that tile the image: positions are constants, and nothing is loaded again that a
  // store might have changed (for_pixel_blocks in norm_impl.h).
  template <Storage S>
  void run_pairs() const {
    const MaxPool q = p;
    const MaxPoolRun own = *this;
    const int64_t row = q.width * q.channels;
    const auto second = V::all(1.0F), third = V::all(2.0F), fourth = V::all(3.0F);
    for (int64_t i = 0; i < q.out_height; ++i) {
      for (int64_t j = 0; j < q.out_width; ++j) {
        const int64_t first = 2 * i * row + 2 * j * q.channels;
        const int64_t out = (i * q.out_width + j) * q.channels;
        for (int64_t c = 0; c < q.channels; c += V::lanes) {
          auto best = load_as<V, S>(own.x, first + c);
          auto where = V::zero();
          const auto take = [&](int64_t at, typename V::Reg position) {
            const auto v = load_as<V, S>(own.x, at + c);
            where = V::if_larger(v, best, position, where);
            best = V::if_larger(v, best, v, best);
          };
          take(first + q.channels, second);
          take(first + row, third);
          take(first + row + q.channels, fourth);
          store_as<V, S>(own.y, out + c, best);
          V::store_bytes(own.index + out + c, where);
        }
      }
    }
  }

  template <Storage S>
  void run() const {
    if (p.kernel == 2 && has_tiles<V>(p)) return run_pairs<S>();
    for (int64_t i = 0; i < p.out_height; ++i) {
      const PoolWindow rows = pool_window<V>(i, p.height, p);
      for (int64_t j = 0; j < p.out_width; ++j) {
        const PoolWindow cols = pool_window<V>(j, p.width, p);
        const int64_t out = (i * p.out_width + j) * p.channels;
        for (int64_t c = 0; c < p.channels; c += V::lanes) {
          const auto value = [&](int64_t r, int64_t q) {
            return load_as<V, S>(x, ((rows.start + r) * p.width + cols.start + q) * p.channels + c);
          };
          auto best = value(rows.begin, cols.begin);
          auto where = V::all(static_cast<float>(rows.begin * p.kernel + cols.begin));
          for (int64_t r = rows.begin; r < rows.end; ++r) {
            for (int64_t q = cols.begin; q < cols.end; ++q) {
              const auto v = value(r, q);
              where = V::if_larger(v, best, V::all(static_cast<float>(r * p.kernel + q)), where);
              best = V::if_larger(v, best, v, best);
            }
          }
          store_as<V, S>(y, out + c, best);
          V::store_bytes(index + out + c, where);
        }
      }
    }
  }
};

template <class V>
void max_pool(const MaxPool& p, const void* x, void* y, uint8_t* index) {
  with_storage(p.storage, MaxPoolRun<V>{p, x, y, index});
}

template <class V>
struct MaxPoolGradRun {
  const MaxPool& p;
  const void* dy;
  const uint8_t* index;
  float* dx;

  // Each pixel lies in one window, so nothing is read and added to. kKernel: that of the pool where
  // it is known here, or 0.
  template <Storage S, int64_t kKernel>
  void run_tiles() const {
    const MaxPool s = p;
    const MaxPoolGradRun own = *this;
    const int64_t kernel = kKernel > 0 ? kKernel : s.kernel, row = s.width * s.channels;
    for (int64_t i = 0; i < s.out_height; ++i) {
      for (int64_t j = 0; j < s.out_width; ++j) {
        const int64_t out = (i * s.out_width + j) * s.channels;
        float* const first = own.dx + i * kernel * row + j * kernel * s.channels;
        for (int64_t c = 0; c < s.channels; c += V::lanes) {
          const auto g = load_as<V, S>(own.dy, out + c);
          const auto where = V::load_bytes(own.index + out + c);
          for (int64_t r = 0; r < kernel; ++r) {
            for (int64_t q = 0; q < kernel; ++q) {
              const auto here = V::all(static_cast<float>(r * kernel + q));
              // The sum makes 0 of -0, as it does where windows overlap.
              V::store(first + r * row + q * s.channels + c,
                       V::add(V::zero(), V::where_equal(where, here, g)));
            }
          }
        }
      }
    }
  }

  template <Storage S>
  void run() const {
    if (has_tiles<V>(p)) return p.kernel == 2 ? run_tiles<S, 2>() : run_tiles<S, 0>();
    for (int64_t i = 0; i < p.height * p.width * p.channels; i += V::lanes)
      V::store(dx + i, V::zero());
    for (int64_t i = 0; i < p.out_height; ++i) {
      const PoolWindow rows = pool_window<V>(i, p.height, p);
      for (int64_t j = 0; j < p.out_width; ++j) {
        const PoolWindow cols = pool_window<V>(j, p.width, p);
        const int64_t out = (i * p.out_width + j) * p.channels;
        for (int64_t c = 0; c < p.channels; c += V::lanes) {
          const auto g = load_as<V, S>(dy, out + c);
          const auto where = V::load_bytes(index + out + c);
          for (int64_t r = rows.begin; r < rows.end; ++r) {
            for (int64_t q = cols.begin; q < cols.end; ++q) {
              float* at = dx + ((rows.start + r) * p.width + cols.start + q) * p.channels + c;
              const auto here = V::all(static_cast<float>(r * p.kernel + q));
              V::store(at, V::add(V::load(at), V::where_equal(where, here, g)));
            }
          }
        }
      }
    }
  }
};

template <class V>
void max_pool_grad(const MaxPool& p, const void* dy, const uint8_t* index, float* dx) {
  with_storage(p.storage, MaxPoolGradRun<V>{p, dy, index, dx});
}

}  // namespace ductile::nn::kernels
