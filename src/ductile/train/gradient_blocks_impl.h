#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>

#include "ductile/nn/operators.h"

namespace ductile::train {

// The memory of gradients that wait for the operators whose outputs they are of. Where several
// share a block (both inputs of a sum get the same gradient), it is of the one that waits longest:
// operators go backward in falling order. Parts of a block (of the gradient of a concatenation) are
// counted by themselves.
class GradientBlocks {
 public:
  struct Edge {
    nn::Source source;
    int reader = 0;
    auto operator<=>(const Edge&) const = default;
  };

  // Returns a copy, which is to stand for the gradient: what the operator itself keeps of it is
  // then all that stays of the block. Where it is part of a block, or an expanded one, itself.
  at::Tensor made(const Edge& edge, const at::Tensor& gradient) {
    const size_t whole = gradient.storage().nbytes();
    if (gradient.nbytes() < whole || !gradient.is_non_overlapping_and_dense()) {
      bytes_[edge] = static_cast<double>(std::min(gradient.nbytes(), whole));
      return gradient;
    }
    const int id = id_of(gradient);
    const auto [place, is_new] = blocks_.try_emplace(id, edge);
    bytes_[edge] = is_new ? static_cast<double>(whole) : 0;
    if (!is_new && edge.source.op < place->second.source.op)
      std::swap(bytes_[edge], bytes_[std::exchange(place->second, edge)]);
    copies_.push_back(at::empty_strided(gradient.sizes(), gradient.strides(), gradient.options()));
    copies_.back().copy_(gradient);
    ids_[copies_.back().storage().unsafeGetStorageImpl()] = id;
    return copies_.back();
  }
  // The operator has gone backward: the gradients of its outputs are used up.
  void used(int op) {
    std::erase_if(blocks_, [op](const auto& block) { return block.second.source.op == op; });
    fresh_.clear();
  }
  // Of all operators so far.
  const std::map<Edge, double>& bytes() const { return bytes_; }

 private:
  // Of a block that is known by a copy, or that the operator has made.
  int id_of(const at::Tensor& gradient) {
    const void* block = gradient.storage().unsafeGetStorageImpl();
    if (const auto known = ids_.find(block); known != ids_.end()) return known->second;
    const auto [place, is_new] = fresh_.try_emplace(block, next_);
    next_ += is_new ? 1 : 0;
    return place->second;
  }

  int next_ = 0;
  std::map<const void*, int> ids_, fresh_;  // blocks of copies, and of the last operator
  std::vector<at::Tensor> copies_;          // all of them, so that no other block lies there
  std::map<int, Edge> blocks_;
  std::map<Edge, double> bytes_;
};

}  // namespace ductile::train
