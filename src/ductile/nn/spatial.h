#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "ductile/nn/batch_group.h"

// Images that are divided between workers: there are rows x cols cells, and one worker per cell
// runs the whole model on its part. While a split is current on a thread, the operators of ops.h
// take and return that cell's part of every [B,C,H,W] activation, and fetch from the neighbours the
// pixels beyond its edge that a window reaches (the "halo"). Nothing else in a model changes.
//
// Whatever its size, an axis of n pixels is cut over p cells at floor(i * n / p). So two tensors of
// the same height and width are always cut alike and can be added or concatenated, and each
// operator's output is one contiguous tile. What a cell must fetch for it follows, and may differ
// from side to side, be nothing, or reach beyond the next cell. Every cell must keep at least one
// row and column of every activation; else invalid_argument.
//
// Losses have the value of the whole images on every cell, and their gradients are shares: the sum
// over the cells of each parameter's gradient is the gradient. docs/design/009-spatial.md says why.
namespace ductile::nn {

// [begin, end)
struct Range {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Part `index` of `parts` of an axis of `size` pixels.
Range part_of(int64_t size, int parts, int index);

// The group of workers that hold the cells of the same images, as one of them sees it. It is the
// seam to the transport of their bytes. All cells run the same model, and so call the same
// functions in the same order. It is also a batch group, whose members normalise over the whole
// images.
//
// One thread at a time. Throws the error that ends the step (peer_lost if a worker is gone).
class SpatialSplit : public BatchGroup {
 public:
  // Cell row * cols + col of the grid.
  SpatialSplit(int rows, int cols, int cell);
  ~SpatialSplit() override;

  int rows() const { return rows_; }
  int cols() const { return cols_; }
  int num_cells() const { return rows_ * cols_; }
  int cell() const { return cell_; }

  // The part of an axis of the whole image that this cell holds.
  Range own_rows(int64_t height) const { return part_of(height, rows_, cell_ / cols_); }
  Range own_cols(int64_t width) const { return part_of(width, cols_, cell_ % cols_); }

  struct Outgoing {
    int cell;
    std::span<const std::byte> bytes;
  };
  struct Incoming {
    int cell;
    std::span<std::byte> bytes;
  };
  // Sends and receives messages: at most one in each direction between two cells, with equal
  // lengths on both sides. Calls `meanwhile` once while they travel. Returns when all messages have
  // arrived and the sent buffers may be changed.
  virtual void exchange(std::span<const Outgoing> out, std::span<const Incoming> in,
                        const std::function<void()>& meanwhile) = 0;

  struct Sizes;  // of activations, see halo.h
  Sizes& sizes() { return *sizes_; }

 private:
  int rows_, cols_, cell_;
  std::unique_ptr<Sizes> sizes_;
};

// The split in which forward passes on this thread run; nullptr: whole images. A backward pass runs
// in the split of its forward pass, which must live until then.
SpatialSplit* current_spatial_split();

// Makes `split` the current one of this thread for the life of the scope; nullptr, or a split of a
// single cell, means none. It also becomes the batch group, unless the thread already has one,
// which must then contain all cells.
class SpatialScope {
 public:
  explicit SpatialScope(SpatialSplit* split);
  SpatialScope(const SpatialScope&) = delete;
  SpatialScope& operator=(const SpatialScope&) = delete;
  ~SpatialScope();

 private:
  SpatialSplit* before_;
  BatchGroupScope group_;
};

}  // namespace ductile::nn
