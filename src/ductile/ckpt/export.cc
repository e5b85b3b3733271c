#include "ductile/ckpt/export.h"

#include <unordered_set>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/ckpt/safetensors_impl.h"

namespace ductile::ckpt {

void export_safetensors(const Checkpoint& checkpoint, const ExportName& rename,
                        const fs::path& file) {
  std::vector<TensorInfo> infos;
  std::vector<std::string> sources;
  std::unordered_set<std::string> names;
  for (const TensorInfo& t : checkpoint.tensors()) {
    std::string name = rename(t.name);
    if (name.empty()) continue;
    if (!names.insert(name).second) {
      fail(ErrorCode::invalid_argument, "two tensors would be named '{}' in {}", name,
           file.string());
    }
    sources.push_back(t.name);
    infos.push_back({std::move(name), t.dtype, t.shape, t.num_bytes, 0});
  }
  write_safetensors(file, infos, {{"format", "pt"}, {"step", std::to_string(checkpoint.step())}},
                    [&](size_t index, int64_t offset, std::span<std::byte> into) {
                      checkpoint.read_range(sources[index], offset, into);
                    });
}

}  // namespace ductile::ckpt
