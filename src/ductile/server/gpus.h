#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ductile/base/files.h"

// The GPUs of a machine, as the kernel and the drivers show them in files: no library of a vendor
// is needed, and none of the GPUs is woken up.
namespace ductile::server {

enum class GpuVendor : uint8_t { nvidia, amd };
std::string_view to_string(GpuVendor vendor);
GpuVendor gpu_vendor_from(std::string_view text);  // throws invalid_argument

// What shows that a GPU is there, by paths below the root.
struct GpuFiles {
  std::string driver;                // the folder in which its driver shows it; empty: none does
  std::vector<std::string> devices;  // without which it cannot be used
  bool barred = false;               // it has trouble whatever becomes of these
  bool operator==(const GpuFiles&) const = default;
};

struct Gpu {
  GpuVendor vendor = GpuVendor::nvidia;
  std::string id;       // its address on the PCI bus: "0000:17:00.0"
  std::string name;     // "NVIDIA H100 80GB HBM3"
  std::string visible;  // what CUDA_VISIBLE_DEVICES, or ROCR_VISIBLE_DEVICES, calls it
  int64_t memory = 0;   // bytes; 0: not known, as of NVIDIA's, whose driver alone knows
  int numa_node = -1;   // by the kernel's number; -1: not known, as where there is but one
  std::string trouble;  // why it is given to no job; empty: it may be
  GpuFiles files;       // of the machine that found it alone
  bool operator==(const Gpu&) const = default;
};

// What an agent is limited to itself, as by Slurm: CUDA_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES of
// its environment; nullptr: it is not.
struct GpuLimits {
  const char* cuda = nullptr;
  const char* rocr = nullptr;
};

// Reads sysfs, procfs and the device files below `root`, in the order of the addresses. What cannot
// be read is left out; nothing throws. A GPU of NVIDIA is one, whether it is partitioned (MIG) or
// not.
std::vector<Gpu> find_gpus(const fs::path& root = "/", const GpuLimits& limits = {});

// The same later, but asks the drivers only of those that are new: one whose GPU is sick may not
// answer any more, and whoever asks would wait for it. Those of `known` that are gone stay, with
// that as their trouble.
std::vector<Gpu> look_again(std::vector<Gpu> known, const fs::path& root = "/",
                            const GpuLimits& limits = {});

// Which GPUs a process may see, and by their addresses, for whoever comes to look.
inline constexpr const char* kGivenGpus = "DUCTILE_GPUS";

// The environment in which a program sees just these GPUs of one vendor; of none: no GPU at all.
std::vector<std::pair<std::string, std::string>> gpu_environment(const std::vector<Gpu>& given);
bool is_gpu_variable(std::string_view name);  // of that environment

}  // namespace ductile::server
