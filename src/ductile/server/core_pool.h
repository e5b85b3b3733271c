#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ductile/base/files.h"

namespace ductile::server {

// The cores that this process may run on, in an order in which neighbours are near each other: by
// NUMA node, then by core, so that the hardware threads of one core follow each other. Reads sysfs
// below `root`; what cannot be read leaves the order of their numbers.
std::vector<int> cores_by_nearness(const fs::path& root = "/");

// The devices of one machine: equal shares of its cores, of which one worker at a time has each, of
// whichever job. One thread uses a pool.
class CorePool {
 public:
  using Share = std::shared_ptr<const std::vector<int>>;  // is given back where the last copy ends

  // As many shares as there are devices; where there are more devices than cores, some have the
  // same core.
  explicit CorePool(int64_t devices, const std::vector<int>& cores = cores_by_nearness());

  // The first share that nobody has; null: all are taken.
  Share take();
  // So many, or as many as nobody has.
  std::vector<Share> take(int64_t devices);
  // The shares of a process that an earlier owner of the cores started: those that consist of just
  // these cores. None: no such shares are free.
  std::vector<Share> take_again(const std::vector<int>& cores);

  int64_t free() const;

 private:
  Share give(size_t at);

  std::vector<std::vector<int>> shares_;
  std::vector<std::weak_ptr<const std::vector<int>>> taken_;
};

}  // namespace ductile::server
