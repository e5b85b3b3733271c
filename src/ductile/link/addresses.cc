#include "ductile/link/addresses.h"

#include <cstdint>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"

namespace ductile::link {

fs::path addresses_file(const fs::path& run) { return run / "controller.json"; }

void write_addresses(const fs::path& run, const Addresses& addresses) {
  const nlohmann::json value = {{"controller", addresses.controller.to_string()},
                                {"store", addresses.store.to_string()}};
  write_file_atomic(addresses_file(run), dump_json(value) + "\n");
}

Addresses read_addresses(const fs::path& run) {
  const fs::path file = addresses_file(run);
  const nlohmann::json value = parse_json(read_file(file));
  const auto address = [&](const char* key) {
    if (!value.is_object() || !value.contains(key) || !value[key].is_string())
      fail(ErrorCode::data_loss, "{}: no address under '{}'", file.string(), key);
    return net::Address::parse(value[key].get<std::string>());
  };
  return {address("controller"), address("store")};
}

PeerAddress PeerAddress::here(std::string host) {
  std::string boot = read_file("/proc/sys/kernel/random/boot_id");
  while (!boot.empty() && boot.back() == '\n') boot.pop_back();
  std::string place = fmt::format("{}/{}", boot, geteuid());
  // Meeting takes the network namespace, watching each other the one of processes.
  for (const char* space : {"net", "pid"}) {
    std::error_code error;
    place += "/" + fs::read_symlink(fs::path("/proc/self/ns") / space, error).string();
  }
  return {std::move(host), std::move(place)};
}

std::string PeerAddress::to_string() const { return host + " " + place; }

PeerAddress PeerAddress::parse(std::string_view text) {
  const size_t blank = text.find(' ');
  if (blank == std::string_view::npos) return {std::string(text), std::string(text)};
  return {std::string(text.substr(0, blank)), std::string(text.substr(blank + 1))};
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
