#include <array>
#include <new>
#include <utility>

#include <fmt/ranges.h>

#include "ductile/base/error.h"
#include "ductile/comm/arena_impl.h"

// Collectives among some of the ranks of an arena: control words and staging memory of their own,
// the regions and the failure of the whole.
namespace ductile::comm {

Arena::Impl::Impl(std::shared_ptr<Arena> whole, std::vector<int> ranks, int own_rank, int number)
    : mapping(whole->impl_->mapping),
      layout(whole->impl_->layout),
      options(whole->impl_->options),
      rank(own_rank),
      size(static_cast<int>(ranks.size())),
      region_bytes(whole->impl_->region_bytes),
      spins(whole->impl_->spins),
      header(whole->impl_->header),
      parent(std::move(whole)),
      members(std::move(ranks)),
      group(group_at(number)),
      name(fmt::format(" among ranks [{}]", fmt::join(members, ", "))),
      pidfds(members.size(), -1) {
  auto* const base = reinterpret_cast<std::byte*>(group);
  slots = reinterpret_cast<RankSlot*>(base + layout.group_slots);
  tiles_done = group->tiles_done;
  staging_memory = base + layout.group_staging;
  staging_bytes = kGroupStagingBytes;
  for (size_t r = 0; r < members.size(); ++r) {
    pidfds[r] = parent->impl_->pidfds[static_cast<size_t>(members[r])];
  }
  slots[rank].joined.store(1);
}

int Arena::take_group(int num_ranks) {
  Impl& impl = *impl_;
  for (int number = 0; number < impl.layout.num_groups; ++number) {
    GroupHeader* const group = impl.group_at(number);
    uint32_t free = 0;
    if (!group->taken.compare_exchange_strong(free, 1)) continue;
    // The last group's members have all left, the new one's have not heard of it.
    auto* const slots = reinterpret_cast<std::byte*>(group) + impl.layout.group_slots;
    for (int r = 0; r < num_ranks; ++r) {
      new (slots + static_cast<size_t>(r) * sizeof(RankSlot)) RankSlot{};
    }
    for (Signal& done : group->tiles_done) new (&done) Signal{};
    group->present.store(static_cast<uint32_t>(num_ranks));
    return number;
  }
  return -1;
}

std::unique_ptr<Arena> Arena::group(std::shared_ptr<Arena> whole, std::vector<int> ranks,
                                    int own_rank, int number) {
  DUCTILE_CHECK(whole->impl_->parent == nullptr, "a group of a group: take that of the whole");
  DUCTILE_CHECK(number >= 0 && number < whole->impl_->layout.num_groups, "group {}", number);
  return std::unique_ptr<Arena>(
      new Arena(std::make_unique<Impl>(std::move(whole), std::move(ranks), own_rank, number)));
}

const std::shared_ptr<Arena>& Arena::whole() const { return impl_->parent; }

}  // namespace ductile::comm
