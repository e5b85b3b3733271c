#include "ductile/server/gpus.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "ductile/base/error.h"

namespace ductile::server {
namespace {

constexpr std::string_view kVendors[] = {"nvidia", "amd"};
constexpr const char* kCuda = "CUDA_VISIBLE_DEVICES";
constexpr const char* kRocr = "ROCR_VISIBLE_DEVICES";
constexpr const char* kHip = "HIP_VISIBLE_DEVICES";
constexpr const char* kOpenCl = "GPU_DEVICE_ORDINAL";  // of AMD's runtime
constexpr const char* kCudaOrder = "CUDA_DEVICE_ORDER";

constexpr size_t kMostText = 64 << 10;  // of one file
constexpr size_t kMostGpus = 256;

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

// As far as it can be read.
std::string text_in(const fs::path& file) {
  std::string out(kMostText, '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(out.data(), static_cast<std::streamsize>(out.size()));
  out.resize(static_cast<size_t>(std::max<std::streamsize>(0, in.gcount())));
  return out;
}

// One line that a person can read, whatever a driver wrote.
std::string name_in(std::string_view text) {
  std::string out;
  for (const char c : trimmed(text).substr(0, 100))
    out += static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f ? '?' : c;
  return out;
}

template <class T>
std::optional<T> number_in(std::string_view text, int base = 10) {
  const std::string word = trimmed(text);
  T out{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), out, base);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return out;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> out;
  std::error_code error;
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator();
       it.increment(error))
    out.push_back(it->path().filename().string());
  std::ranges::sort(out);
  return out;
}

// "0000:17:00.0"; some drivers write the domain with eight digits.
std::optional<std::string> address_in(std::string_view text) {
  const auto hex = [&](size_t begin, size_t count) {
    return number_in<uint32_t>(text.substr(begin, count), 16);
  };
  const size_t bus = text.find(':');
  if (bus == std::string_view::npos || bus == 0 || bus > 8 || text.size() != bus + 8 ||
      text[bus + 3] != ':' || text[bus + 6] != '.')
    return std::nullopt;
  const auto d = hex(0, bus), b = hex(bus + 1, 2), s = hex(bus + 4, 2), f = hex(bus + 7, 1);
  if (!d || !b || !s || !f) return std::nullopt;
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", *d, *b, *s, *f);
}

fs::path pci_folder(const fs::path& root, const std::string& address) {
  return root / "sys/bus/pci/devices" / address;
}

int numa_node_of(const fs::path& root, const std::string& address) {
  return std::max(-1,
                  number_in<int>(text_in(pci_folder(root, address) / "numa_node")).value_or(-1));
}

// Asks no driver.
std::string trouble_now(const fs::path& root, const GpuFiles& files) {
  std::error_code error;
  if (!fs::exists(root / files.driver, error)) return "its driver does not show it any more";
  for (const std::string& device : files.devices) {
    const fs::path file = root / device;
    if (!fs::exists(file, error)) return fmt::format("there is no /{} here", device);
    if (::access(file.c_str(), R_OK | W_OK) != 0)
      return fmt::format("/{} may not be used by this user", device);
  }
  return "";
}

void bar(Gpu& gpu, std::string why) {
  gpu.files.barred = true;
  gpu.trouble = std::move(why);
}

// "Key: \t value" lines, as the driver of NVIDIA writes them.
std::map<std::string, std::string> keyed_lines(const std::string& text, char separator) {
  std::map<std::string, std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    const size_t middle = line.find(separator);
    if (middle == std::string_view::npos) continue;
    out.emplace(trimmed(line.substr(0, middle)), trimmed(line.substr(middle + 1)));
  }
  return out;
}

bool is_partitioned(const fs::path& root, int minor) {
  return std::ranges::any_of(
      names_in(root / fmt::format("proc/driver/nvidia/capabilities/gpu{}/mig", minor)),
      [](const std::string& name) { return name.starts_with("gi"); });
}

// The folders of NVIDIA's driver, by address.
std::map<std::string, std::string> nvidia_folders(const fs::path& root) {
  const std::string all = "proc/driver/nvidia/gpus";
  std::map<std::string, std::string> out;
  for (const std::string& name : names_in(root / all))
    if (const auto address = address_in(name)) out.emplace(*address, all + "/" + name);
  return out;
}

// Those of KFD, the driver of AMD for computing, in the order of ROCm. Those of processors have no
// gpu_id.
std::vector<std::string> amd_folders(const fs::path& root) {
  const std::string all = "sys/class/kfd/kfd/topology/nodes";
  std::map<int, std::string> in_order;
  for (const std::string& name : names_in(root / all))
    if (const auto number = number_in<int>(name);
        number && number_in<uint64_t>(text_in(root / all / name / "gpu_id")).value_or(0) != 0)
      in_order.emplace(*number, all + "/" + name);
  std::vector<std::string> out;
  for (const auto& [number, folder] : in_order) out.push_back(folder);
  return out;
}

// The bus shows those without a driver, too, but may be masked in a container; the driver shows its
// own.
std::vector<Gpu> find_nvidia(const fs::path& root) {
  const std::map<std::string, std::string> folders = nvidia_folders(root);
  std::set<std::string> found;
  for (const auto& [address, folder] : folders) found.insert(address);
  for (const std::string& name : names_in(root / "sys/bus/pci/devices")) {
    const fs::path device = root / "sys/bus/pci/devices" / name;
    const auto address = address_in(name);
    if (address && text_in(device / "class").starts_with("0x03") &&  // a display controller
        trimmed(text_in(device / "vendor")) == "0x10de")
      found.insert(*address);
  }
  std::vector<Gpu> out;
  for (const std::string& address : found) {
    Gpu gpu;
    gpu.id = address;
    gpu.numa_node = numa_node_of(root, address);
    const auto folder = folders.find(address);
    const auto facts = folder == folders.end()
                           ? std::map<std::string, std::string>()
                           : keyed_lines(text_in(root / folder->second / "information"), ':');
    const auto fact = [&](const char* key) {
      const auto at = facts.find(key);
      return at == facts.end() ? std::string() : name_in(at->second);
    };
    gpu.name = fact("Model").empty() ? "NVIDIA GPU" : fact("Model");
    gpu.visible = fact("GPU UUID");
    // The driver learns it when the GPU is first used; until then it writes question marks.
    if (!gpu.visible.starts_with("GPU-") || gpu.visible.find('?') != std::string::npos)
      gpu.visible.clear();
    const auto minor = number_in<int>(fact("Device Minor"));
    if (minor && is_partitioned(root, *minor)) gpu.name += " (MIG)";
    if (folder == folders.end()) {
      bar(gpu, "NVIDIA's driver does not show it");
    } else {
      gpu.files.driver = folder->second;
      if (minor) gpu.files.devices = {fmt::format("dev/nvidia{}", *minor)};
      gpu.trouble = trouble_now(root, gpu.files);
      if (fact("GPU Excluded") == "Yes") bar(gpu, "it is excluded from NVIDIA's driver");
      if (!minor) bar(gpu, "NVIDIA's driver does not say which device it is");
    }
    out.push_back(std::move(gpu));
  }
  return out;
}

std::vector<Gpu> find_amd(const fs::path& root) {
  std::vector<Gpu> out;
  for (const std::string& folder : amd_folders(root)) {
    const fs::path node = root / folder;
    const auto facts = keyed_lines(text_in(node / "properties"), ' ');
    const auto fact = [&](const char* key) {
      const auto at = facts.find(key);
      return at == facts.end() ? 0 : number_in<uint64_t>(at->second).value_or(0);
    };
    const uint64_t location = fact("location_id");
    Gpu gpu;
    gpu.vendor = GpuVendor::amd;
    gpu.id = fmt::format("{:04x}:{:02x}:{:02x}.{:x}", fact("domain") & 0xffffffff,
                         location >> 8 & 0xff, location >> 3 & 0x1f, location & 7);
    gpu.name = name_in(text_in(pci_folder(root, gpu.id) / "product_name"));
    if (gpu.name.empty()) gpu.name = "AMD " + name_in(text_in(node / "name"));
    gpu.visible = fact("unique_id") != 0 ? fmt::format("GPU-{:016x}", fact("unique_id"))
                                         : std::to_string(out.size());
    gpu.numa_node = numa_node_of(root, gpu.id);
    for (const std::string& bank : names_in(node / "mem_banks")) {
      const auto said = keyed_lines(text_in(node / "mem_banks" / bank / "properties"), ' ');
      if (const auto size = said.find("size_in_bytes"); size != said.end())
        gpu.memory += std::max<int64_t>(0, number_in<int64_t>(size->second).value_or(0));
    }
    gpu.files.driver = folder;
    gpu.files.devices = {"dev/kfd"};
    if (fact("drm_render_minor") > 0)
      gpu.files.devices.push_back(fmt::format("dev/dri/renderD{}", fact("drm_render_minor")));
    gpu.trouble = trouble_now(root, gpu.files);
    out.push_back(std::move(gpu));
  }
  return out;
}

// As the runtimes read such lists: up to the first entry that is none of the GPUs. Places count
// those that can be used.
void limit(std::vector<Gpu>& gpus, const char* list, const char* variable) {
  if (list == nullptr) return;
  std::vector<Gpu*> usable;
  for (Gpu& gpu : gpus)
    if (gpu.trouble.empty()) usable.push_back(&gpu);
  std::set<const Gpu*> kept;
  std::string_view rest(list);
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string word = trimmed(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const Gpu* found = nullptr;
    if (const auto place = number_in<size_t>(word)) {
      if (*place < usable.size()) found = usable[*place];
    } else {
      for (const Gpu* gpu : usable)
        if (word.size() > 4 && gpu->visible.starts_with(word)) found = gpu;
    }
    if (found == nullptr) break;
    kept.insert(found);
  }
  for (Gpu& gpu : gpus) {  // also those that cannot be used only now
    if (kept.contains(&gpu)) continue;
    bar(gpu, gpu.trouble.empty() ? fmt::format("{} of the environment leaves it out", variable)
                                 : gpu.trouble);
  }
}

// Where the driver does not say how it calls one, all are called by their places on the bus.
void name_by_place(std::vector<Gpu>& gpus) {
  if (std::ranges::none_of(
          gpus, [](const Gpu& gpu) { return gpu.trouble.empty() && gpu.visible.empty(); }))
    return;
  int place = 0;
  for (Gpu& gpu : gpus)
    if (gpu.trouble.empty()) gpu.visible = std::to_string(place++);
}

}  // namespace

std::string_view to_string(GpuVendor vendor) { return kVendors[static_cast<size_t>(vendor)]; }

GpuVendor gpu_vendor_from(std::string_view text) {
  for (const GpuVendor vendor : {GpuVendor::nvidia, GpuVendor::amd})
    if (to_string(vendor) == text) return vendor;
  fail(ErrorCode::invalid_argument, "\"{}\" is no vendor of GPUs; nvidia and amd are", text);
}

std::vector<Gpu> find_gpus(const fs::path& root, const GpuLimits& limits) {
  std::vector<Gpu> out = find_nvidia(root), amd = find_amd(root);
  name_by_place(out);
  limit(out, limits.cuda, kCuda);
  limit(amd, limits.rocr, kRocr);
  out.insert(out.end(), std::make_move_iterator(amd.begin()), std::make_move_iterator(amd.end()));
  std::ranges::stable_sort(out, {}, &Gpu::id);
  if (out.size() > kMostGpus) out.resize(kMostGpus);
  return out;
}

std::vector<Gpu> look_again(std::vector<Gpu> known, const fs::path& root, const GpuLimits& limits) {
  std::set<std::string> folders;
  for (const Gpu& gpu : known) folders.insert(gpu.files.driver);
  std::vector<std::string> now = amd_folders(root);
  for (const auto& [address, folder] : nvidia_folders(root)) now.push_back(folder);
  const bool all_known =
      std::ranges::all_of(now, [&](const std::string& folder) { return folders.contains(folder); });
  bool names_hold = true;
  for (Gpu& gpu : known) {
    const bool had_trouble = !gpu.trouble.empty();
    if (!gpu.files.barred) gpu.trouble = trouble_now(root, gpu.files);
    // Places are other ones as soon as one of the GPUs cannot be used any more, or again.
    const bool by_place = gpu.vendor == GpuVendor::nvidia && !gpu.visible.starts_with("GPU-");
    if (by_place && !gpu.files.barred)
      names_hold = names_hold && had_trouble == !gpu.trouble.empty() &&
                   (had_trouble || !gpu.visible.empty());
  }
  return all_known && names_hold ? known : find_gpus(root, limits);
}

// HIP counts among those that ROCR shows, takes an empty list for none, and CUDA's list for its
// own.
std::vector<std::pair<std::string, std::string>> gpu_environment(const std::vector<Gpu>& given) {
  std::vector<std::string> ids, cuda, rocr, places;
  for (const Gpu& gpu : given) {
    ids.push_back(gpu.id);
    if (gpu.vendor == GpuVendor::amd) places.push_back(std::to_string(rocr.size()));
    (gpu.vendor == GpuVendor::nvidia ? cuda : rocr).push_back(gpu.visible);
  }
  const auto list = [](const std::vector<std::string>& words) {
    return fmt::format("{}", fmt::join(words, ","));
  };
  const std::string hip = places.empty() ? "-1" : list(places);
  return {{kGivenGpus, list(ids)},
          {kCudaOrder, "PCI_BUS_ID"},
          {kCuda, list(cuda)},
          {kRocr, list(rocr)},
          {kHip, hip},
          {kOpenCl, hip}};
}

bool is_gpu_variable(std::string_view name) {
  return std::ranges::any_of(gpu_environment({}),
                             [&](const auto& pair) { return pair.first == name; });
}

}  // namespace ductile::server
