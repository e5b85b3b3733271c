#include "ductile/server/core_pool.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "ductile/base/machine.h"

namespace ductile::server {
namespace {

int number_in(const fs::path& file) {
  int number = 0;
  std::ifstream(file) >> number;
  return number;
}

// "cpuN/nodeM" is a link for the node M of the core N.
int numa_node_of(const fs::path& cpu) {
  std::error_code error;
  for (auto it = fs::directory_iterator(cpu, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with("node") && name.find_first_not_of("0123456789", 4) == std::string::npos &&
        name.size() > 4 && name.size() < 10)
      return std::stoi(name.substr(4));
  }
  return 0;
}

}  // namespace

std::vector<int> cores_by_nearness(const fs::path& root) {
  std::vector<int> cores = usable_cores();
  std::map<int, std::tuple<int, int, int>> place;
  for (const int core : cores) {
    const fs::path cpu = root / "sys/devices/system/cpu" / ("cpu" + std::to_string(core));
    place[core] = {numa_node_of(cpu), number_in(cpu / "topology/physical_package_id"),
                   number_in(cpu / "topology/core_id")};
  }
  std::ranges::stable_sort(cores, {}, [&](int core) { return place[core]; });
  return cores;
}

CorePool::CorePool(int64_t devices, const std::vector<int>& cores) {
  for (int64_t d = 0; d < std::max<int64_t>(1, devices); ++d) {
    std::vector<int> share = core_share(d, devices, cores);
    if (share.empty() && !cores.empty()) {
      if (devices <= 1)
        share = cores;
      else
        share = {cores[static_cast<size_t>(d) % cores.size()]};
    }
    shares_.push_back(std::move(share));
  }
  taken_.resize(shares_.size());
}

CorePool::Share CorePool::give(size_t at) {
  auto share = std::make_shared<const std::vector<int>>(shares_[at]);
  taken_[at] = share;
  return share;
}

CorePool::Share CorePool::take() {
  for (size_t s = 0; s < shares_.size(); ++s)
    if (taken_[s].expired()) return give(s);
  return nullptr;
}

std::vector<CorePool::Share> CorePool::take(int64_t devices) {
  std::vector<Share> out;
  while (static_cast<int64_t>(out.size()) < devices) {
    Share share = take();
    if (!share) break;
    out.push_back(std::move(share));
  }
  return out;
}

// Where there are more devices than cores, several shares have the same cores: one of them is
// enough.
std::vector<CorePool::Share> CorePool::take_again(const std::vector<int>& cores) {
  const std::set<int> wanted(cores.begin(), cores.end());
  std::set<int> have;
  std::vector<Share> out;
  for (size_t s = 0; s < shares_.size() && have != wanted; ++s) {
    const auto is_wanted = [&](int core) { return wanted.contains(core) && !have.contains(core); };
    if (shares_[s].empty() || !taken_[s].expired() || !std::ranges::all_of(shares_[s], is_wanted))
      continue;
    have.insert(shares_[s].begin(), shares_[s].end());
    out.push_back(give(s));
  }
  return have == wanted ? out : std::vector<Share>();
}

int64_t CorePool::free() const {
  return std::ranges::count_if(taken_, [](const auto& share) { return share.expired(); });
}

}  // namespace ductile::server
