#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ductile/server/core_map.h"

namespace ductile::server {

// The cores of one process.
struct CoreShare {
  std::vector<int> threads;  // hardware threads, rising; empty: nobody knows the cores
  int64_t cores = 0;         // how many they are
  std::vector<int> nodes;    // NUMA nodes, by the kernel's numbers
  int64_t devices = 1;       // that it stands for
};

// The devices of one machine: equal numbers of its cores, of which one process at a time has each,
// of whichever job. A core is a physical one, with all of its hardware threads; where there are
// more devices than cores, each hardware thread is one, and where there are more than these, some
// devices have the same. One thread uses a pool.
//
// A process gets cores of as few NUMA nodes as the free ones allow, of nodes that are near each
// other, and of the fullest nodes that have enough, so that others stay whole.
class CorePool {
 public:
  using Share = std::shared_ptr<const CoreShare>;  // is given back where the last copy ends

  explicit CorePool(int64_t devices, CoreMap map = core_map());

  // The cores of so many devices, or of as many as nobody has; null: all are taken. Where so many
  // cores have gone that none is left for a device, it gets those that the fewest have. Of the NUMA
  // nodes `near`, by the kernel's numbers, where they would do as well as others.
  Share take(int64_t devices = 1, const std::set<int>& near = {});
  // Those of a process that an earlier owner of the pool started, which runs on just these hardware
  // threads; also where others run on some of them, too. Null: there are no such.
  Share take_again(const std::vector<int>& threads);

  // The hardware threads that there are now. A core without any is given to nobody, until it has
  // some again; who has it keeps it. Whether anything changed.
  bool allow(const std::vector<int>& usable);

  int64_t free() const;     // devices
  int64_t missing() const;  // cores that have no hardware thread now
  const CoreMap& map() const { return map_; }

 private:
  struct Unit {  // what is not divided
    std::vector<int> threads, allowed;
    size_t node = 0;
  };
  struct Given {
    std::weak_ptr<const CoreShare> share;
    std::vector<size_t> units;
    int64_t large = 0, small = 0;  // devices of `size_ + 1` units, and of `size_`
  };
  struct Devices {
    int64_t large = 0, small = 0;
  };

  std::vector<int64_t> uses() const;  // by unit: how many have it
  bool any_unused() const;
  Devices free_devices() const;
  std::vector<size_t> choose(size_t count, const std::set<int>& near) const;
  std::vector<size_t> choose_nodes(const std::vector<size_t>& room, size_t count,
                                   const std::set<int>& near) const;
  Share give(std::vector<size_t> units, Devices devices);

  const CoreMap map_;
  std::vector<Unit> units_;
  bool shared_ = false;  // there are more devices than units
  int64_t size_ = 0;     // units of a device, rounded down
  Devices all_;
  std::vector<Given> given_;
};

}  // namespace ductile::server
