#include "ductile/ckpt/export.h"

#include <cstring>
#include <unordered_set>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/ckpt/safetensors.h"

namespace ductile::ckpt {
namespace {

// out = sum of factor * tensor from byte `offset` on, rounded after each operation.
void read_sum(const Checkpoint& checkpoint, const std::vector<ExportTerm>& terms, int64_t offset,
              std::span<std::byte> out) {
  const size_t count = out.size() / sizeof(float);
  DUCTILE_CHECK(offset % 4 == 0 && out.size() % 4 == 0, "a part of a float is asked for");
  std::vector<float> sum(count), part(count);
  for (size_t t = 0; t < terms.size(); ++t) {
    checkpoint.read_range(terms[t].tensor, offset, std::as_writable_bytes(std::span(part)));
    const auto factor = static_cast<float>(terms[t].factor);
    for (size_t i = 0; i < count; ++i) {
      const float scaled = factor * part[i];
      sum[i] = t == 0 ? scaled : sum[i] + scaled;
    }
  }
  std::memcpy(out.data(), sum.data(), out.size());
}

}  // namespace

void export_safetensors(const Checkpoint& checkpoint, const ExportName& rename,
                        const fs::path& file, const ExportSum& sum) {
  std::vector<TensorInfo> infos;
  std::vector<std::vector<ExportTerm>> sources;
  std::unordered_set<std::string> names;
  for (const TensorInfo& t : checkpoint.tensors()) {
    std::string name = rename(t.name);
    if (name.empty()) continue;
    if (!names.insert(name).second) {
      fail(ErrorCode::invalid_argument, "two tensors would be named '{}' in {}", name,
           file.string());
    }
    sources.push_back(sum ? sum(t.name) : std::vector<ExportTerm>());
    if (sources.back().empty()) sources.back() = {{t.name, 1}};
    infos.push_back({std::move(name), t.dtype, t.shape, t.num_bytes, 0});
  }
  write_safetensors(file, infos, {{"format", "pt"}, {"step", std::to_string(checkpoint.step())}},
                    [&](size_t index, int64_t offset, std::span<std::byte> into) {
                      const std::vector<ExportTerm>& terms = sources[index];
                      if (terms.size() == 1 && terms[0].factor == 1) {
                        checkpoint.read_range(terms[0].tensor, offset, into);
                      } else {
                        read_sum(checkpoint, terms, offset, into);
                      }
                    });
}

}  // namespace ductile::ckpt
