#include "ductile/server/node_devices.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/machine.h"

namespace ductile::server {
namespace {

using nlohmann::json;

// A machine of testdata/machines that a test may change.
class Machine : public ::testing::Test {
 protected:
  Machine() {
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    ::unsetenv("ROCR_VISIBLE_DEVICES");
    fs::copy(DUCTILE_SOURCE_DIR "/src/ductile/server/testdata/machines/four_h100", root(),
             fs::copy_options::recursive);
  }
  fs::path root() const { return folder_.path() / "root"; }

 private:
  TempFolder folder_;
};

TEST_F(Machine, HasTheCoresOfThisProcessAndTheGpusOfItsFiles) {
  const NodeDevices devices(2, root());
  const NodeHardware hardware = devices.hardware();
  EXPECT_EQ(hardware.threads, static_cast<int64_t>(usable_cores().size()));
  EXPECT_EQ(hardware.gpus.size(), 4u);
  EXPECT_EQ(hardware.usable_gpus, 4);
  EXPECT_EQ(hardware.trouble, "");
  EXPECT_EQ(devices.cores()->free(), 2);
  EXPECT_EQ(devices.gpus()->free(), 4);
}

TEST_F(Machine, SeesWhatGoesAndComesBack) {
  NodeDevices devices(1, root());
  EXPECT_FALSE(devices.look());
  const GpuPool::Share held = devices.gpus()->take(1);
  fs::remove(root() / "dev/nvidia0");
  fs::remove_all(root() / "proc/driver/nvidia/gpus/0000:3b:00.0");
  fs::remove_all(root() / "sys/bus/pci/devices/0000:3b:00.0");
  EXPECT_TRUE(devices.look());
  EXPECT_FALSE(devices.look());
  const NodeHardware hardware = devices.hardware();
  EXPECT_EQ(hardware.usable_gpus, 2);
  ASSERT_EQ(hardware.gpus.size(), 4u);
  EXPECT_EQ(hardware.gpus[0].trouble, "there is no /dev/nvidia0 here");
  EXPECT_EQ(hardware.gpus[1].trouble, "its driver does not show it any more");
  write_file_atomic(root() / "dev/nvidia0", "");
  EXPECT_TRUE(devices.look());
  EXPECT_EQ(devices.hardware().usable_gpus, 3);
}

TEST_F(Machine, TellsThatAJobHasGivenBackOneThatFailed) {
  NodeDevices devices(1, root());
  GpuPool::Share held = devices.gpus()->take(3);
  fs::remove(root() / "dev/nvidia0");
  EXPECT_TRUE(devices.look());
  EXPECT_EQ(devices.hardware().lost_gpus, 1);
  EXPECT_EQ(devices.hardware().free_gpus(3), 1);
  held.reset();
  EXPECT_TRUE(devices.look()) << "jobs come and go between two looks";
  EXPECT_FALSE(devices.look());
  EXPECT_EQ(devices.hardware().lost_gpus, 0);
  EXPECT_EQ(devices.hardware().free_gpus(0), 3);
}

TEST_F(Machine, GivesNoMoreThanItsOwnEnvironmentSays) {
  ::setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  EXPECT_EQ(NodeDevices(1, root()).hardware().usable_gpus, 1);
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(NodeDevices(1, root()).hardware().usable_gpus, 4);
}

TEST_F(Machine, IsToldByAnAgentAsItIs) {
  NodeHardware hardware = NodeDevices(1, root()).hardware();
  hardware.trouble = "a core is missing";
  hardware.gpus[1].trouble = "it is gone";
  hardware.gpus[2].memory = 1 << 30;
  hardware.gpus[3].numa_node = -1;
  hardware.usable_gpus = 3;
  for (Gpu& gpu : hardware.gpus) gpu.visible.clear(), gpu.files = {};  // are of the agent alone
  EXPECT_EQ(hardware_from(json(to_json(hardware))), hardware);
}

TEST_F(Machine, WhatNoAgentSaysIsRefused) {
  const json good = json(to_json(NodeDevices(1, root()).hardware()));
  EXPECT_NO_THROW(hardware_from(good));
  const auto refuses = [&](const char* key, const json& value) {
    json bad = good;
    bad[key] = value;
    EXPECT_THROW(hardware_from(bad), Error) << key << " = " << value;
  };
  refuses("cores", -1);
  refuses("cores", "many");
  refuses("threads", 1e300);
  refuses("trouble", nullptr);
  refuses("gpus", "all");
  refuses("gpus", json::array({1}));
  refuses("gpus", json(std::vector<json>(5000, good["gpus"][0])));
  refuses("usable_gpus", 5);
  EXPECT_THROW(hardware_from(json::array()), Error);
  json odd = good;
  odd["gpus"][0]["name"] = std::string(10000, 'x') + "\n";
  odd["trouble"] = "a\nb\x1b[2J";
  EXPECT_EQ(hardware_from(odd).gpus[0].name.size(), 500u);
  EXPECT_EQ(hardware_from(odd).trouble, "a?b?[2J") << "it is shown in terminals";
}

TEST_F(Machine, IsTextForPeople) {
  NodeHardware hardware = NodeDevices(1, root()).hardware();
  hardware.cores = 1;
  hardware.threads = hardware.numa_nodes = 2;
  hardware.gpus[1].trouble = "it is gone";
  EXPECT_EQ(cores_text(hardware), "1 core with 2 hardware threads, 2 NUMA nodes");
  EXPECT_EQ(gpus_text(hardware), "NVIDIA H100 80GB HBM3 (3), NVIDIA H100 80GB HBM3 [it is gone]");
  EXPECT_EQ(cores_text({.cores = 8, .threads = 8}), "8 cores");
  EXPECT_EQ(gpus_text({}), "");
}

}  // namespace
}  // namespace ductile::server
