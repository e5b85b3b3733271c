#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ductile/server/gpus.h"

namespace ductile::server {

// The GPUs of one machine, of which one process at a time has each. Where they are of two vendors,
// those of the one that has more are given. One thread uses a pool.
class GpuPool {
 public:
  using Share = std::shared_ptr<const std::vector<Gpu>>;  // is given back where the last copy ends

  explicit GpuPool(std::vector<Gpu> gpus);

  // So many, of as few NUMA nodes as the free ones allow; null: so many are not free.
  Share take(int64_t count);
  // Those of a process that an earlier owner of the pool started, by their addresses, whatever has
  // become of them; null: none of them is free.
  Share take_again(const std::vector<std::string>& ids);

  // What a later look has found. One that is not there any more stays, with that as its trouble.
  // Whether anything changed.
  bool found(std::vector<Gpu> gpus);

  const std::vector<Gpu>& all() const { return gpus_; }
  int64_t usable() const;  // that can be given, or are
  // That are given, and are not usable any more: they have failed since.
  int64_t lost() const;
  int64_t free() const;

 private:
  GpuVendor vendor() const;
  std::set<std::string> taken() const;
  std::vector<Gpu> free_ones() const;
  Share give(std::vector<Gpu> gpus);

  std::vector<Gpu> gpus_;  // by address
  std::vector<std::weak_ptr<const std::vector<Gpu>>> given_;
};

}  // namespace ductile::server
