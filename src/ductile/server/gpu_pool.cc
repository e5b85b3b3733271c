#include "ductile/server/gpu_pool.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace ductile::server {
namespace {

constexpr const char* kGone = "it was there before, and is gone";

}  // namespace

GpuPool::GpuPool(std::vector<Gpu> gpus) : gpus_(std::move(gpus)) {
  std::ranges::stable_sort(gpus_, {}, &Gpu::id);
}

GpuVendor GpuPool::vendor() const {
  const auto count = [&](GpuVendor vendor) {
    return std::ranges::count_if(
        gpus_, [&](const Gpu& gpu) { return gpu.vendor == vendor && gpu.trouble.empty(); });
  };
  return count(GpuVendor::amd) > count(GpuVendor::nvidia) ? GpuVendor::amd : GpuVendor::nvidia;
}

std::set<std::string> GpuPool::taken() const {
  std::set<std::string> out;
  for (const auto& given : given_)
    if (const Share share = given.lock())
      for (const Gpu& gpu : *share) out.insert(gpu.id);
  return out;
}

std::vector<Gpu> GpuPool::free_ones() const {
  const std::set<std::string> taken = this->taken();
  const GpuVendor vendor = this->vendor();
  std::vector<Gpu> out;
  for (const Gpu& gpu : gpus_)
    if (gpu.vendor == vendor && gpu.trouble.empty() && !taken.contains(gpu.id)) out.push_back(gpu);
  return out;
}

int64_t GpuPool::free() const { return static_cast<int64_t>(free_ones().size()); }

int64_t GpuPool::usable() const {
  const GpuVendor vendor = this->vendor();
  return std::ranges::count_if(
      gpus_, [&](const Gpu& gpu) { return gpu.vendor == vendor && gpu.trouble.empty(); });
}

int64_t GpuPool::lost() const {
  const std::set<std::string> taken = this->taken();
  const GpuVendor vendor = this->vendor();
  const int64_t good = std::ranges::count_if(gpus_, [&](const Gpu& gpu) {
    return gpu.vendor == vendor && gpu.trouble.empty() && taken.contains(gpu.id);
  });
  return static_cast<int64_t>(taken.size()) - good;
}

GpuPool::Share GpuPool::take(int64_t count) {
  std::vector<Gpu> free = free_ones();
  if (count <= 0 || count > static_cast<int64_t>(free.size())) return nullptr;
  std::map<int, int64_t> room;  // by NUMA node
  for (const Gpu& gpu : free) ++room[gpu.numa_node];
  // Of the fullest node that has enough; where none has, of those with most, so that they are few.
  std::ranges::stable_sort(free, {}, [&](const Gpu& gpu) {
    const int64_t here = room[gpu.numa_node];
    return std::tuple(here < count, here < count ? -here : here, gpu.numa_node);
  });
  free.resize(static_cast<size_t>(count));
  std::ranges::stable_sort(free, {}, &Gpu::id);
  return give(std::move(free));
}

GpuPool::Share GpuPool::take_again(const std::vector<std::string>& ids) {
  const std::set<std::string> taken = this->taken();
  std::vector<Gpu> out;
  for (const std::string& id : ids) {
    if (taken.contains(id)) continue;
    const auto known = std::ranges::find(gpus_, id, &Gpu::id);
    Gpu gpu;
    gpu.id = id;
    out.push_back(known == gpus_.end() ? gpu : *known);
  }
  return out.empty() ? nullptr : give(std::move(out));
}

GpuPool::Share GpuPool::give(std::vector<Gpu> gpus) {
  Share out = std::make_shared<const std::vector<Gpu>>(std::move(gpus));
  std::erase_if(given_, [](const auto& given) { return given.expired(); });
  given_.push_back(out);
  return out;
}

bool GpuPool::found(std::vector<Gpu> gpus) {
  for (const Gpu& known : gpus_) {
    if (std::ranges::find(gpus, known.id, &Gpu::id) != gpus.end()) continue;
    Gpu& gone = gpus.emplace_back(known);
    gone.trouble = kGone;
  }
  std::ranges::stable_sort(gpus, {}, &Gpu::id);
  return std::exchange(gpus_, std::move(gpus)) != gpus_;
}

}  // namespace ductile::server
