#include "ductile/nn/halo.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ductile/base/error.h"

namespace ductile::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

Range overlap(const Range& a, const Range& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

bool within(const Range& inner, const Range& outer) {
  return inner.begin >= outer.begin && inner.end <= outer.end;
}

std::vector<Range> parts_of(int64_t size, int parts) {
  std::vector<Range> all;
  for (int i = 0; i < parts; ++i) all.push_back(part_of(size, parts, i));
  return all;
}

struct Rectangle {
  Range rows, cols;

  bool empty() const { return rows.size() == 0 || cols.size() == 0; }
};

Rectangle overlap(const Rectangle& a, const Rectangle& b) {
  return {overlap(a.rows, b.rows), overlap(a.cols, b.cols)};
}

at::Tensor view(const at::Tensor& t, const Rectangle& all, const Rectangle& part) {
  return t.narrow(2, part.rows.begin - all.rows.begin, part.rows.size())
      .narrow(3, part.cols.begin - all.cols.begin, part.cols.size());
}

std::span<std::byte> bytes_of(const at::Tensor& t) {
  return {static_cast<std::byte*>(t.data_ptr()), static_cast<size_t>(t.nbytes())};
}

// Who holds and who needs what of one activation; travels from the forward pass to the backward.
struct HaloRoute : torch::CustomClassHolder {
  HaloRoute(SpatialSplit& s, const CutAxis& r, const CutAxis& c) : split(s), rows(r), cols(c) {}

  Rectangle held(int cell) const {
    return {rows.held[cell / split.cols()], cols.held[cell % split.cols()]};
  }
  Rectangle need(int cell) const {
    return {rows.need[cell / split.cols()], cols.need[cell % split.cols()]};
  }
  Rectangle held() const { return held(split.cell()); }
  Rectangle need() const { return need(split.cell()); }

  SpatialSplit& split;
  CutAxis rows, cols;
};

// Moves pieces of `from` (own rectangle `from_all`) to the cells that hold or need them: piece(c)
// goes to cell c, and place(c) comes from it, to be handed to take(cell, rectangle, tensor) in the
// order of the cells.
template <class Piece, class Place, class Meanwhile, class Take>
void move(SpatialSplit& split, const at::Tensor& from, const Rectangle& from_all,
          const Piece& piece, const Place& place, const Meanwhile& meanwhile, const Take& take) {
  struct Arrival {
    Rectangle rectangle;
    at::Tensor pixels;
  };
  std::vector<at::Tensor> sent;
  std::vector<Arrival> arrivals;
  std::vector<SpatialSplit::Outgoing> out;
  std::vector<SpatialSplit::Incoming> in;
  const auto layout = at::MemoryFormat::ChannelsLast;
  for (int c = 0; c < split.num_cells(); ++c) {
    if (c == split.cell()) continue;
    if (const Rectangle r = piece(c); !r.empty()) {
      sent.push_back(view(from, from_all, r).contiguous(layout));
      out.push_back({c, bytes_of(sent.back())});
    }
    if (const Rectangle r = place(c); !r.empty()) {
      arrivals.push_back({r, at::empty({from.size(0), from.size(1), r.rows.size(), r.cols.size()},
                                       from.options().memory_format(layout))});
      in.push_back({c, bytes_of(arrivals.back().pixels)});
    }
  }
  split.exchange(out, in, meanwhile);
  for (const Arrival& a : arrivals) take(a.rectangle, a.pixels);
}

// Fills what of t (all of it being `all`) lies outside of `inside`.
void fill_outside(const at::Tensor& t, const Rectangle& all, const Rectangle& inside, double fill) {
  if (inside.empty()) {
    t.fill_(fill);
    return;
  }
  const int64_t top = inside.rows.begin - all.rows.begin, left = inside.cols.begin - all.cols.begin;
  const int64_t bottom = all.rows.end - inside.rows.end, right = all.cols.end - inside.cols.end;
  if (top > 0) t.narrow(2, 0, top).fill_(fill);
  if (bottom > 0) t.narrow(2, t.size(2) - bottom, bottom).fill_(fill);
  if (left > 0) t.narrow(3, 0, left).fill_(fill);
  if (right > 0) t.narrow(3, t.size(3) - right, right).fill_(fill);
}

struct Fetch : Function<Fetch> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const c10::intrusive_ptr<HaloRoute>& e, double fill) {
    const Rectangle held = e->held(), need = e->need();
    const Rectangle image{{0, e->rows.size}, {0, e->cols.size}};
    const at::Tensor all = at::empty({x.size(0), x.size(1), need.rows.size(), need.cols.size()},
                                     x.options().memory_format(at::MemoryFormat::ChannelsLast));
    const auto own_pixels = [&] {
      fill_outside(all, need, overlap(need, image), fill);
      if (const Rectangle own = overlap(held, need); !own.empty())
        view(all, need, own).copy_(view(x, held, own));
    };
    move(
        e->split, x, held, [&](int c) { return overlap(held, e->need(c)); },
        [&](int c) { return overlap(e->held(c), need); }, own_pixels,
        [&](const Rectangle& r, const at::Tensor& pixels) { view(all, need, r).copy_(pixels); });
    ctx->saved_data["exchange"] = c10::IValue::make_capsule(e);
    return all;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto holder = ctx->saved_data["exchange"].toCapsule();
    const auto& e = static_cast<const HaloRoute&>(*holder);
    const Rectangle held = e.held(), need = e.need();
    const at::Tensor& dy = grads[0];
    const Rectangle own = overlap(held, need);
    at::Tensor dx;
    const auto own_gradients = [&] {
      dx = at::empty({dy.size(0), dy.size(1), held.rows.size(), held.cols.size()},
                     dy.options().memory_format(at::MemoryFormat::ChannelsLast));
      fill_outside(dx, held, own, 0);
      if (!own.empty()) view(dx, held, own).copy_(view(dy, need, own));
    };
    move(
        e.split, dy, need, [&](int c) { return overlap(e.held(c), need); },
        [&](int c) { return overlap(held, e.need(c)); }, own_gradients,
        [&](const Rectangle& r, const at::Tensor& pixels) { view(dx, held, r).add_(pixels); });
    return {dx, {}, {}};
  }
};

}  // namespace

CutAxis cut_window(int64_t size, int parts, int64_t kernel, int64_t stride, int64_t padding) {
  CutAxis a;
  a.size = size;
  a.out_size = size + 2 * padding < kernel ? 0 : (size + 2 * padding - kernel) / stride + 1;
  if (a.out_size < parts) {
    fail(ErrorCode::invalid_argument,
         "a window of {} pixels, stride {}, leaves {} of {} pixels, fewer than the {} workers that "
         "the images are cut over; cut them over fewer, or use larger images",
         kernel, stride, a.out_size, size, parts);
  }
  a.held = parts_of(size, parts);
  a.out = parts_of(a.out_size, parts);
  for (int i = 0; i < parts; ++i) {
    const int64_t first = a.out[i].begin * stride - padding;
    const int64_t least = (a.out[i].end - 1) * stride - padding + kernel;
    a.need.push_back({first, std::clamp(a.held[i].end, least, least + stride - 1)});
  }
  return a;
}

CutAxis cut_twice(int64_t size, int parts) {
  CutAxis a;
  a.size = size;
  a.out_size = 2 * size;
  a.held = parts_of(size, parts);
  a.out = parts_of(a.out_size, parts);
  for (const Range& out : a.out) a.need.push_back({out.begin / 2, (out.end + 1) / 2});
  return a;
}

CutAxis cut_whole(int64_t size, int parts) {
  CutAxis a;
  a.size = a.out_size = size;
  a.held = parts_of(size, parts);
  a.need.assign(parts, {0, size});
  a.out = a.need;
  return a;
}

at::Tensor own_part(const SpatialSplit& split, const at::Tensor& whole) {
  const Range rows = split.own_rows(whole.size(-2)), cols = split.own_cols(whole.size(-1));
  return whole.narrow(-2, rows.begin, rows.size()).narrow(-1, cols.begin, cols.size());
}

at::Tensor remember(SpatialSplit& split, const at::Tensor& x, const WholeSize& whole) {
  auto& known = split.sizes().known;
  std::erase_if(known, [](const auto& k) { return k.tensor.expired(); });
  known.push_back({c10::weak_intrusive_ptr<c10::TensorImpl>(x.getIntrusivePtr()), whole});
  return x;
}

WholeSize whole_size(SpatialSplit& split, const at::Tensor& x) {
  for (const auto& k : split.sizes().known)
    if (k.tensor._unsafe_get_target() == x.unsafeGetTensorImpl()) return k.whole;
  double sums[2] = {static_cast<double>(x.size(-2)), static_cast<double>(x.size(-1))};
  split.sum(sums);
  const WholeSize whole{std::llround(sums[0]) / split.cols(), std::llround(sums[1]) / split.rows()};
  const Range rows = split.own_rows(whole.height), cols = split.own_cols(whole.width);
  if (rows.size() != x.size(-2) || cols.size() != x.size(-1)) {
    fail(ErrorCode::conflict,
         "cell {} of {}x{} holds {}x{} pixels of an activation of {}x{}, whose part would be "
         "{}x{}; cut images with own_part() and change sizes with the operators of ops.h only",
         split.cell(), split.rows(), split.cols(), x.size(-2), x.size(-1), whole.height,
         whole.width, rows.size(), cols.size());
  }
  remember(split, x, whole);
  return whole;
}

at::Tensor fetch(SpatialSplit& split, const at::Tensor& x, const CutAxis& rows, const CutAxis& cols,
                 double fill) {
  const auto enough = [](const CutAxis& a) {
    for (size_t i = 0; i < a.need.size(); ++i)
      if (!within(a.need[i], a.held[i])) return false;
    return true;
  };
  const auto e = c10::make_intrusive<HaloRoute>(split, rows, cols);
  if (!enough(rows) || !enough(cols)) return Fetch::apply(x, e, fill);
  const Rectangle held = e->held(), need = e->need();
  return held.rows == need.rows && held.cols == need.cols ? x : view(x, held, need);
}

}  // namespace ductile::nn
