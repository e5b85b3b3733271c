#include "ductile/train/part_stream.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "ductile/base/error.h"

namespace ductile::train {
namespace {

constexpr size_t kMessageBytes = size_t{1} << 20;

}  // namespace

// The leader's place in the tensors.
class PartStream::Reading {
 public:
  Reading(parallel::Exchange& exchange, std::span<const Tensor> tensors)
      : exchange_(exchange), tensors_(tensors) {}

  void read(size_t index, int64_t offset, std::span<std::byte> into) {
    while (!into.empty()) {
      DUCTILE_CHECK(!ended(), "more than all tensors are read");
      DUCTILE_CHECK(tensor_ == index && offset_ == offset,
                    "tensor {} is read from byte {} on, not {} from byte {}", tensor_, offset_,
                    index, offset);
      const size_t size = std::min(into.size(), present_.size());
      std::memcpy(into.data(), present_.data(), size);
      present_ = present_.subspan(size);
      into = into.subspan(size);
      offset += static_cast<int64_t>(size);
      offset_ += static_cast<int64_t>(size);
    }
  }

  // What nobody has read is received all the same.
  void skip_rest() {
    while (!ended()) {
      offset_ += static_cast<int64_t>(present_.size());
      present_ = {};
    }
  }

 private:
  // Otherwise there are bytes in `present_`, of tensor `tensor_` from byte `offset_` on.
  bool ended() {
    while (present_.empty()) {
      if (tensor_ == tensors_.size()) return true;
      const std::vector<Part>& parts = tensors_[tensor_].parts;
      if (part_ == parts.size()) {
        ++tensor_;
        part_ = taken_ = 0;
        offset_ = 0;
        continue;
      }
      const Part& part = parts[part_];
      const size_t size = std::min(kMessageBytes, part.size - taken_);
      if (size == 0) {
        ++part_;
        taken_ = 0;
        continue;
      }
      if (part.rank == kLeader) {
        present_ = {part.data + taken_, size};
      } else {
        message_.resize(size);
        exchange_.receive(part.rank, message_);
        present_ = message_;
      }
      taken_ += size;
    }
    return false;
  }

  parallel::Exchange& exchange_;
  const std::span<const Tensor> tensors_;
  size_t tensor_ = 0, part_ = 0;
  size_t taken_ = 0;    // of the part
  int64_t offset_ = 0;  // in the tensor
  std::vector<std::byte> message_;
  std::span<const std::byte> present_;
};

PartStream::PartStream(parallel::Exchange& exchange, std::vector<Tensor> tensors)
    : exchange_(exchange), tensors_(std::move(tensors)) {
  std::ranges::sort(tensors_, {},
                    [](const Tensor& t) -> const std::string& { return t.info.name; });
  for (const Tensor& tensor : tensors_) {
    infos_.push_back(tensor.info);
    size_t size = 0;
    for (const Part& part : tensor.parts) size += part.size;
    DUCTILE_CHECK(static_cast<int64_t>(size) == tensor.info.num_bytes,
                  "the parts of tensor {} are {} of its {} bytes", tensor.info.name, size,
                  tensor.info.num_bytes);
  }
}

void PartStream::read(const Use& use) {
  if (exchange_.rank() != kLeader) return send();
  Reading reading(exchange_, tensors_);
  try {
    use(infos_, [&](size_t index, int64_t offset, std::span<std::byte> into) {
      reading.read(index, offset, into);
    });
  } catch (...) {
    reading.skip_rest();
    throw;
  }
  reading.skip_rest();
}

void PartStream::send() const {
  for (const Tensor& tensor : tensors_) {
    for (const Part& part : tensor.parts) {
      if (part.rank != exchange_.rank()) continue;
      for (size_t begin = 0; begin < part.size; begin += kMessageBytes) {
        exchange_.send(kLeader,
                       std::span(part.data + begin, std::min(kMessageBytes, part.size - begin)));
      }
    }
  }
}

}  // namespace ductile::train
