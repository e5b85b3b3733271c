#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/plan/machines_impl.h"

namespace ductile::plan {
namespace {

DeviceGroup group_of(int nodes, int width, double speed = 1) {
  DeviceGroup group;
  group.nodes = nodes;
  group.devices_per_node = width;
  group.speed = speed;
  return group;
}

// Nodes and devices of each, group by group: what the planner sees of equal devices.
using Form = std::vector<std::pair<int, int>>;
Form form_of(const Devices& devices) {
  Form form;
  for (const DeviceGroup& group : devices.groups()) {
    form.emplace_back(group.nodes, group.devices_per_node);
  }
  return form;
}

std::vector<int> sizes_of_parts(const Devices& devices, bool further) {
  std::vector<int> sizes;
  for (const MachinePart& part : machine_parts(devices)) {
    if (part.further == further) sizes.push_back(machine_of(devices, part).devices.size());
  }
  return sizes;
}

TEST(MachineParts, AreDifferentDevicesOfTheMachineTheLargestFirst) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed, 61);
    std::vector<DeviceGroup> groups;
    const auto num = 1 + rng.below(3);
    for (uint32_t i = 0; i < num; ++i) {
      groups.push_back(group_of(1 + static_cast<int>(rng.below(3)),
                                1 + static_cast<int>(rng.below(6)), 0.5 * (1 + rng.below(4))));
    }
    const Devices devices(groups);
    const std::vector<MachinePart> parts = machine_parts(devices);
    EXPECT_EQ(machine_of(devices, parts[0]).devices.size(), devices.size());
    std::set<std::vector<int>> seen;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Machine machine = machine_of(devices, parts[i]);
      ASSERT_EQ(machine.numbers.size(), static_cast<size_t>(machine.devices.size()));
      EXPECT_TRUE(std::ranges::is_sorted(machine.numbers));
      EXPECT_TRUE(seen.insert(machine.numbers).second) << "part " << i << " is there twice";
      double capacity = 0;
      for (int d = 0; d < machine.devices.size(); ++d) {
        const int number = machine.numbers[d];
        ASSERT_LT(number, devices.size());
        capacity += machine.devices.group(d).speed;
        EXPECT_EQ(machine.devices.group(d).speed, devices.group(number).speed);
        // Neighbours in a node of the part are neighbours in one of the machine, and no others.
        if (d == 0) continue;
        EXPECT_EQ(machine.devices.node(d) == machine.devices.node(d - 1),
                  devices.node(number) == devices.node(machine.numbers[d - 1]));
      }
      EXPECT_DOUBLE_EQ(parts[i].capacity, capacity);
      if (i < 2) continue;
      EXPECT_LE(parts[i - 1].further, parts[i].further);
      if (parts[i - 1].further == parts[i].further) {
        EXPECT_GE(parts[i - 1].capacity, parts[i].capacity);
      }
    }
  }
}

TEST(MachineParts, OfANodeAreEachNumberOfItsDevicesPowersOfTwoFirst) {
  const Devices node({group_of(1, 8)});
  EXPECT_EQ(sizes_of_parts(node, false), (std::vector<int>{8, 4, 2, 1}));
  EXPECT_EQ(sizes_of_parts(node, true), (std::vector<int>{7, 6, 5, 3}));
  const Devices six({group_of(1, 6)});
  EXPECT_EQ(sizes_of_parts(six, false), (std::vector<int>{6, 4, 2, 1}));
  EXPECT_EQ(sizes_of_parts(six, true), (std::vector<int>{5, 3}));
  const Devices wide({group_of(1, 16)});
  EXPECT_EQ(sizes_of_parts(wide, true), (std::vector<int>{12, 7, 6, 5, 3}));
}

// Those that a number names (find_devices()) have the smaller ones as parts, nodes and all; of a
// large machine whole nodes and single ones alone are cut.
TEST(MachineParts, OfSmallMachinesCutANodeBesideWholeOnes) {
  for (int n = 2; n <= kSmallMachine; ++n) {
    const Devices devices = find_devices(std::to_string(n));
    std::set<Form> forms;
    for (const MachinePart& part : machine_parts(devices)) {
      forms.insert(form_of(machine_of(devices, part).devices));
    }
    for (int less = 1; less < n; ++less) {
      EXPECT_TRUE(forms.contains(form_of(find_devices(std::to_string(less)))))
          << less << " of " << n;
    }
  }
  const Devices large({group_of(5, 4)});
  EXPECT_EQ(sizes_of_parts(large, false), (std::vector<int>{20, 16, 12, 8, 4, 2, 1}));
  EXPECT_EQ(sizes_of_parts(large, true), std::vector<int>{3});
}

// So that no plan becomes slower with another node.
TEST(MachineParts, OfManyNodesAreThoseOfAFewLess) {
  const Devices eleven({group_of(11, 4)});
  EXPECT_EQ(sizes_of_parts(eleven, true), (std::vector<int>{40, 36, 3}));
  const Devices twenty({group_of(20, 1)});
  EXPECT_EQ(sizes_of_parts(twenty, false), (std::vector<int>{20, 16, 12, 8, 7, 6, 5, 4, 3, 2, 1}));
  EXPECT_EQ(sizes_of_parts(twenty, true), (std::vector<int>{19, 18, 17, 15, 14, 13}));
  for (const int other : {0, 3}) {
    for (int n = 2; n <= 40; ++n) {
      const auto machine = [&](int nodes) {
        std::vector<DeviceGroup> groups = {group_of(nodes, 1)};
        if (other > 0) groups.push_back(group_of(other, 1, 2));
        return Devices(groups);
      };
      std::set<Form> forms;
      const Devices devices = machine(n);
      for (const MachinePart& part : machine_parts(devices))
        forms.insert(form_of(machine_of(devices, part).devices));
      EXPECT_TRUE(forms.contains(form_of(machine(n - 1)))) << n;
    }
  }
}

}  // namespace
}  // namespace ductile::plan
