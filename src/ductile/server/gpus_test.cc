#include "ductile/server/gpus.h"

#include <map>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "ductile/base/error.h"

// The machines are small copies of sysfs, procfs and /dev, in testdata/machines.
namespace ductile::server {
namespace {

fs::path machine(const std::string& name) {
  return fs::path(DUCTILE_SOURCE_DIR "/src/ductile/server/testdata/machines") / name;
}

std::map<std::string, Gpu> by_id(const std::vector<Gpu>& gpus) {
  std::map<std::string, Gpu> out;
  for (const Gpu& gpu : gpus) EXPECT_TRUE(out.emplace(gpu.id, gpu).second) << gpu.id;
  return out;
}

Gpu without_files(Gpu gpu) {
  gpu.files = {};
  return gpu;
}

std::vector<std::string> usable(const std::vector<Gpu>& gpus) {
  std::vector<std::string> out;
  for (const Gpu& gpu : gpus)
    if (gpu.trouble.empty()) out.push_back(gpu.visible);
  return out;
}

TEST(Gpus, ThoseOfNvidiaAreFoundInTheFilesOfBusAndDriver) {
  const std::vector<Gpu> gpus = find_gpus(machine("four_h100"));
  ASSERT_EQ(gpus.size(), 4u) << "neither a network card nor the sound of a GPU is one";
  const Gpu expected{GpuVendor::nvidia,
                     "0000:9b:00.0",
                     "NVIDIA H100 80GB HBM3",
                     "GPU-00000002-1111-2222-3333-444444444444",
                     0,
                     1,
                     ""};
  EXPECT_EQ(without_files(gpus[2]), expected) << gpus[2].name << gpus[2].visible << gpus[2].trouble;
}

TEST(Gpus, ThoseOfAmdAreFoundInTheFilesOfKfd) {
  const std::vector<Gpu> gpus = find_gpus(machine("two_mi210"));
  ASSERT_EQ(gpus.size(), 2u);
  const Gpu first{GpuVendor::amd,
                  "0000:c1:00.0",
                  "AMD Instinct MI210",
                  "GPU-1234567890abcdef",
                  68702699520,
                  0,
                  ""};
  EXPECT_EQ(without_files(gpus[0]), first) << gpus[0].name << gpus[0].visible << gpus[0].trouble;
  EXPECT_EQ(gpus[1].name, "AMD aldebaran") << "the bus does not name it";
  EXPECT_EQ(gpus[1].visible, "1") << "it has no number of its own, so its place counts";
}

TEST(Gpus, InAContainerOnesDevicesAreThoseThatWereGivenToIt) {
  const std::vector<Gpu> gpus = find_gpus(machine("masked"));
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].trouble, "there is no /dev/nvidia0 here");
  EXPECT_EQ(gpus[1].trouble, "");
  EXPECT_EQ(gpus[1].numa_node, -1);
}

TEST(Gpus, WhatIsWrongWithOneIsSaid) {
  const auto gpus = by_id(find_gpus(machine("odd")));
  ASSERT_EQ(gpus.size(), 5u);
  EXPECT_EQ(gpus.at("0000:01:00.0").trouble, "NVIDIA's driver does not show it");
  EXPECT_EQ(gpus.at("0000:02:00.0").trouble, "it is excluded from NVIDIA's driver");
  EXPECT_EQ(gpus.at("0000:03:00.0").trouble, "");
  EXPECT_EQ(gpus.at("0000:04:00.0").name, "NVIDIA H100 80GB HBM3 (MIG)");
  EXPECT_EQ(gpus.at("0000:05:00.0").trouble, "NVIDIA's driver does not say which device it is");
  EXPECT_EQ(gpus.at("0000:05:00.0").name, "NVIDIA GPU");
}

// A list of names and places at once would be ambiguous.
TEST(Gpus, WhereOneHasNoNameAllAreCalledByTheirPlaces) {
  const auto gpus = by_id(find_gpus(machine("odd")));
  EXPECT_EQ(gpus.at("0000:03:00.0").visible, "0");
  EXPECT_EQ(gpus.at("0000:04:00.0").visible, "1");
}

TEST(Gpus, WhatCannotBeReadIsNotThere) {
  const TempFolder root;
  EXPECT_TRUE(find_gpus(root.path()).empty());
  EXPECT_TRUE(find_gpus(root.path() / "missing").empty());
  write_file_atomic(root.path() / "sys", "a file where a folder should be");
  fs::create_directories(root.path() / "proc/driver/nvidia/gpus/0000:01:00.0/information");
  ASSERT_EQ(find_gpus(root.path()).size(), 1u);
  EXPECT_NE(find_gpus(root.path())[0].trouble, "");
}

TEST(Gpus, ALaterLookAsksNoDriverButForThoseThatAreNew) {
  const TempFolder folder;
  const fs::path root = folder.path() / "root";
  fs::copy(machine("four_h100"), root, fs::copy_options::recursive);
  const fs::path driver = root / "proc/driver/nvidia/gpus";
  fs::rename(driver / "0000:db:00.0", root / "later");
  const std::vector<Gpu> first = find_gpus(root);
  EXPECT_EQ(first[3].trouble, "NVIDIA's driver does not show it");
  // A pipe that nobody writes to keeps whoever reads it.
  fs::remove(driver / "0000:19:00.0/information");
  ASSERT_EQ(::mkfifo((driver / "0000:19:00.0/information").c_str(), 0600), 0);
  EXPECT_EQ(look_again(first, root), first);
  fs::remove(root / "dev/nvidia1");
  EXPECT_EQ(look_again(first, root)[1].trouble, "there is no /dev/nvidia1 here");
  write_file_atomic(root / "dev/nvidia1", "");
  EXPECT_EQ(look_again(look_again(first, root), root), first);
  fs::remove(driver / "0000:19:00.0/information");
  fs::rename(root / "later", driver / "0000:db:00.0");
  EXPECT_EQ(look_again(first, root)[3].trouble, "");
}

// CUDA counts those alone that can be used.
TEST(Gpus, PlacesAreCountedAnewWhenOneGoes) {
  const TempFolder folder;
  const fs::path root = folder.path() / "root";
  fs::copy(machine("odd"), root, fs::copy_options::recursive);
  const std::vector<Gpu> first = find_gpus(root);
  EXPECT_EQ(by_id(first).at("0000:04:00.0").visible, "1");
  EXPECT_EQ(look_again(first, root), first);
  fs::remove(root / "dev/nvidia1");
  const auto later = by_id(look_again(first, root));
  EXPECT_NE(later.at("0000:03:00.0").trouble, "");
  EXPECT_EQ(later.at("0000:04:00.0").visible, "GPU-44444444-1111-2222-3333-444444444444");
}

TEST(Gpus, AnAgentGivesNoMoreThanItWasGiven) {
  const auto with = [](const char* cuda, const char* rocr = nullptr) {
    return usable(find_gpus(machine("four_h100"), {cuda, rocr}));
  };
  const auto name = [](int gpu) {
    return "GPU-0000000" + std::to_string(gpu) + "-1111-2222-3333-444444444444";
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(with(nullptr).size(), 4u);
  EXPECT_EQ(with("").size(), 0u);
  EXPECT_EQ(with("3, 1"), (Names{name(1), name(3)}));
  EXPECT_EQ(with("2,9,1"), Names{name(2)}) << "what follows a bad one counts for nothing";
  EXPECT_EQ(with("GPU-00000001,GPU-00000002-1111"), (Names{name(1), name(2)}));
  EXPECT_EQ(with("MIG-1234"), Names{});
  EXPECT_EQ(with(",,,"), Names{});
  EXPECT_EQ(with(nullptr, "").size(), 4u) << "that is of AMD's";
  EXPECT_EQ(usable(find_gpus(machine("two_mi210"), {nullptr, "1"})), Names{"1"});
}

TEST(Gpus, AProgramSeesThoseThatItWasGiven) {
  const std::vector<Gpu> nvidia = find_gpus(machine("four_h100"));
  const auto of = [](const std::vector<Gpu>& given) {
    const auto pairs = gpu_environment(given);
    return std::map<std::string, std::string>(pairs.begin(), pairs.end());
  };
  auto some = of({nvidia[1], nvidia[3]});
  EXPECT_EQ(some["CUDA_VISIBLE_DEVICES"],
            "GPU-00000001-1111-2222-3333-444444444444,GPU-00000003-1111-2222-3333-444444444444");
  EXPECT_EQ(some["CUDA_DEVICE_ORDER"], "PCI_BUS_ID");
  EXPECT_EQ(some["ROCR_VISIBLE_DEVICES"], "");
  EXPECT_EQ(some["HIP_VISIBLE_DEVICES"], "-1");
  EXPECT_EQ(some["DUCTILE_GPUS"], "0000:3b:00.0,0000:db:00.0");
  auto amd = of(find_gpus(machine("two_mi210")));
  EXPECT_EQ(amd["CUDA_VISIBLE_DEVICES"], "");
  EXPECT_EQ(amd["ROCR_VISIBLE_DEVICES"], "GPU-1234567890abcdef,1");
  EXPECT_EQ(amd["HIP_VISIBLE_DEVICES"], "0,1") << "of those that ROCR shows";
  auto none = of({});
  EXPECT_EQ(none["CUDA_VISIBLE_DEVICES"], "");
  EXPECT_EQ(none["HIP_VISIBLE_DEVICES"], "-1") << "an empty list would show all";
  for (const auto& [name, value] : none) EXPECT_TRUE(is_gpu_variable(name)) << name;
  EXPECT_FALSE(is_gpu_variable("PATH"));
}

TEST(Gpus, VendorsHaveNames) {
  for (const GpuVendor vendor : {GpuVendor::nvidia, GpuVendor::amd})
    EXPECT_EQ(gpu_vendor_from(to_string(vendor)), vendor);
  EXPECT_THROW(gpu_vendor_from("voodoo"), Error);
}

}  // namespace
}  // namespace ductile::server
