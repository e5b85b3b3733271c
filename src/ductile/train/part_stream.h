#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "ductile/ckpt/tensor.h"
#include "ductile/parallel/exchange.h"

namespace ductile::train {

// Tensors of which no worker has all, for a leader that reads them once, in the order of their
// names and each from front to back: to hash them, to write them to a file. The others send what
// they have as it is read, so nobody needs memory for more than a message of 1 MiB.
class PartStream {
 public:
  static constexpr int kLeader = 0;  // its rank

  // The next bytes of a tensor, which the worker `rank` has; `data` is read there alone.
  struct Part {
    int rank = 0;
    size_t size = 0;
    const std::byte* data = nullptr;
  };
  struct Tensor {
    ckpt::TensorInfo info;
    std::vector<Part> parts;  // in order, without gaps
  };

  // The same tensors and parts on all members, in any order. The exchange outlives this object.
  PartStream(parallel::Exchange& exchange, std::vector<Tensor> tensors);

  using Use = std::function<void(std::span<const ckpt::TensorInfo>, const ckpt::TensorReader&)>;
  // All members together, any number of times: the leader calls use(), which is to read these
  // tensors as is said above, as write_safetensors() and tensors_digest() of ckpt do where all have
  // one type. What use() throws comes out on the leader once the others have sent all they have.
  void read(const Use& use);

 private:
  class Reading;
  void send() const;

  parallel::Exchange& exchange_;
  std::vector<Tensor> tensors_;          // by name
  std::vector<ckpt::TensorInfo> infos_;  // of these
};

}  // namespace ductile::train
