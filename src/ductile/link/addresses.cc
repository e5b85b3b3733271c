#include "ductile/link/addresses.h"

#include <cstdint>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ductile/base/error.h"

namespace ductile::link {

fs::path addresses_file(const fs::path& run) { return run / "controller.json"; }

void write_addresses(const fs::path& run, const Addresses& addresses) {
  const nlohmann::json value = {{"controller", addresses.controller.to_string()},
                                {"store", addresses.store.to_string()}};
  write_file_atomic(addresses_file(run), value.dump() + "\n");
}

Addresses read_addresses(const fs::path& run) {
  const fs::path file = addresses_file(run);
  const nlohmann::json value = nlohmann::json::parse(read_file(file), nullptr, false);
  const auto address = [&](const char* key) {
    if (!value.is_object() || !value.contains(key) || !value[key].is_string())
      fail(ErrorCode::data_loss, "{}: no address under '{}'", file.string(), key);
    return net::Address::parse(value[key].get<std::string>());
  };
  return {address("controller"), address("store")};
}

std::string job_name(const fs::path& run) {
  constexpr size_t kLimit = 63;
  const std::string name = run.lexically_normal().filename().string();
  if (name.size() <= kLimit) return name;
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return fmt::format("{}-{:016x}", name.substr(0, kLimit - 17), hash);
}

net::Identity controller_identity(const std::string& job) { return {"control", job, 0, -1, 0}; }

net::Identity worker_identity(const std::string& job, control::WorkerId worker) {
  if (worker == 0 || worker > INT32_MAX)
    fail(ErrorCode::invalid_argument, "worker {}: ids go from 1 to {}", worker, INT32_MAX);
  return {"control", job, 0, static_cast<int32_t>(worker), 0};
}

std::string checkpoint_tag(control::WorkerId worker) { return fmt::format("w{}", worker); }

}  // namespace ductile::link
