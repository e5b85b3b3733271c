#include "ductile/data/decoded_cache.h"

#include "ductile/data/image_probe.h"

namespace ductile::data {
namespace {

constexpr int64_t kProbe = 64;

}  // namespace

std::unique_ptr<DecodedCache> DecodedCache::make(const Dataset& dataset, int64_t limit_bytes) {
  if (!dataset.info().images() || limit_bytes <= 0) return nullptr;
  if (dataset.in_memory()) return nullptr;
  const double bytes =
      probe_sizes(dataset, kProbe).mean_bytes * static_cast<double>(dataset.info().size);
  if (bytes > static_cast<double>(limit_bytes)) return nullptr;
  return std::make_unique<DecodedCache>(dataset.info().size, limit_bytes);
}

DecodedCache::DecodedCache(int64_t size, int64_t limit_bytes)
    : entries_(static_cast<size_t>(size)), left_(limit_bytes) {}

DecodedCache::~DecodedCache() {
  for (const auto& entry : entries_) delete entry.load(std::memory_order_relaxed);
}

ImageView DecodedCache::find(int64_t index) const {
  const Entry* e = entries_[static_cast<size_t>(index)].load(std::memory_order_acquire);
  if (e == nullptr) return {};
  return {e->pixels.data(), e->height, e->width, 3, 3, static_cast<size_t>(3 * e->width)};
}

void DecodedCache::store(int64_t index, const ImageView& image) {
  const size_t bytes = static_cast<size_t>(image.height) * image.row_bytes;
  if (left_.fetch_sub(static_cast<int64_t>(bytes)) < static_cast<int64_t>(bytes)) {
    left_.fetch_add(static_cast<int64_t>(bytes));
    return;
  }
  auto entry = std::make_unique<const Entry>(
      Entry{image.height, image.width, {image.data, image.data + bytes}});
  const Entry* expected = nullptr;
  if (entries_[static_cast<size_t>(index)].compare_exchange_strong(
          expected, entry.get(), std::memory_order_release, std::memory_order_relaxed)) {
    entry.release();
  } else {
    left_.fetch_add(static_cast<int64_t>(bytes));
  }
}

}  // namespace ductile::data
