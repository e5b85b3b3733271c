#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/ckpt/tensor.h"

// The safetensors format: 8 bytes of header length, a JSON header, the tensors' bytes.
namespace ductile::ckpt {

using Metadata = std::map<std::string, std::string>;

// Writes atomically: after a crash the old file or the new one is there. Throws invalid_argument
// for bad views, unavailable when the file cannot be written; an old file is then untouched.
void write_safetensors(const fs::path& file, std::span<const TensorView> tensors,
                       const Metadata& metadata = {});
// The same of tensors that are fetched in pieces of at most 1 MiB: wider elements first, then in
// the order of their names, each from front to back. `tensors` need name, dtype, shape and
// num_bytes, already checked and unique. Throws what `read` throws, too; an old file is then
// untouched.
void write_safetensors(const fs::path& file, std::span<const TensorInfo> tensors,
                       const Metadata& metadata, const TensorReader& read);

// A file mapped for reading. The header is checked as if an enemy had written it: lengths, types,
// repeated names, and offsets that overlap, leave gaps or point outside. Throws data_loss, naming
// the file, and invalid_argument for an element type that Ductile does not have. The spans of
// tensors live as long as this object.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const fs::path& file);

  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // by offset
  const TensorInfo* find(std::string_view name) const;                 // null when there is none
  std::span<const std::byte> bytes(const TensorInfo& tensor) const;
  const Metadata& metadata() const { return metadata_; }

 private:
  void parse();

  MappedFile mapped_;
  size_t data_begin_ = 0;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t> index_;
  Metadata metadata_;
};

}  // namespace ductile::ckpt
