#include "ductile/ckpt/digest.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"

namespace ductile::ckpt {
namespace {

class Hash {
 public:
  Hash() : state_(XXH3_createState(), &XXH3_freeState) {
    DUCTILE_CHECK(state_ && XXH3_128bits_reset(state_.get()) == XXH_OK, "no memory for a hash");
  }
  void add(std::span<const std::byte> bytes) {
    XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  // What a tensor is, in a form that its bytes cannot be mistaken for.
  void add(std::string_view name, DType dtype, const Shape& shape) {
    add(fmt::format("{}:{} {} [{}]\n", name.size(), name, to_string(dtype), fmt::join(shape, ",")));
  }
  void add(int64_t step, nlohmann::json values) {
    for (const char* outside : {"job", "cost", "metric_line"}) values.erase(outside);
    add(fmt::format("step {} {}", step, dump_json(values)));
  }
  std::string hex() const {
    const XXH128_hash_t h = XXH3_128bits_digest(state_.get());
    return fmt::format("{:016x}{:016x}", h.high64, h.low64);
  }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

template <class Tensor>
std::vector<const Tensor*> by_name(std::span<const Tensor> tensors) {
  std::vector<const Tensor*> sorted;
  for (const Tensor& t : tensors) sorted.push_back(&t);
  std::ranges::sort(sorted, {}, [](const Tensor* t) -> const std::string& { return t->name; });
  return sorted;
}

Hash hash_of(std::span<const TensorView> tensors) {
  Hash hash;
  for (const TensorView* t : by_name(tensors)) {
    hash.add(t->name, t->dtype, t->shape);
    hash.add(t->bytes);
  }
  return hash;
}

Hash hash_of(std::span<const TensorInfo> tensors, const TensorReader& read) {
  constexpr int64_t kFetched = int64_t{1} << 20;
  Hash hash;
  std::vector<std::byte> piece;
  for (const TensorInfo* t : by_name(tensors)) {
    hash.add(t->name, t->dtype, t->shape);
    for (int64_t offset = 0; offset < t->num_bytes; offset += kFetched) {
      piece.resize(static_cast<size_t>(std::min(kFetched, t->num_bytes - offset)));
      read(static_cast<size_t>(t - tensors.data()), offset, piece);
      hash.add(piece);
    }
  }
  return hash;
}

}  // namespace

std::string state_digest(int64_t step, const nlohmann::json& values,
                         std::span<const TensorInfo> tensors, const TensorReader& read) {
  Hash hash = hash_of(tensors, read);
  hash.add(step, values);
  return hash.hex();
}

std::string tensors_digest(std::span<const TensorInfo> tensors, const TensorReader& read) {
  return hash_of(tensors, read).hex();
}

std::string state_digest(int64_t step, const nlohmann::json& values,
                         std::span<const TensorView> tensors) {
  Hash hash = hash_of(tensors);
  hash.add(step, values);
  return hash.hex();
}

std::string tensors_digest(std::span<const TensorView> tensors) { return hash_of(tensors).hex(); }

std::string state_digest(const Checkpoint& checkpoint) {
  Hash hash;
  std::vector<std::byte> bytes;
  for (const TensorInfo* t : by_name(std::span(checkpoint.tensors()))) {
    hash.add(t->name, t->dtype, t->shape);
    bytes.resize(static_cast<size_t>(t->num_bytes));
    checkpoint.read(t->name, bytes);
    hash.add(bytes);
  }
  hash.add(checkpoint.step(), checkpoint.state());
  return hash.hex();
}

}  // namespace ductile::ckpt
