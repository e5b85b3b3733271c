#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/link/addresses.h"
#include "ductile/link/boot_clock.h"
#include "ductile/server/notice_impl.h"

namespace ductile::server {
namespace {

constexpr size_t kMostBytes = 16384;
constexpr double kClocks = 3600;  // by which clocks of machines may differ

double boot_seconds() { return std::chrono::duration<double>(link::boot_time()).count(); }

fs::path folder_of_notices(const fs::path& folder) { return folder / "server" / "leaving"; }

// Long enough ago for any notice.
bool is_old(const fs::path& file) {
  std::error_code gone;
  const fs::file_time_type written = fs::last_write_time(file, gone);
  return !gone && fs::file_time_type::clock::now() - written >
                      std::chrono::duration<double>(kForget * kLongestNotice + kClocks);
}

bool is_over(const fs::path& file) {
  try {
    const std::optional<Notice> notice = read_notice(file);
    if (notice && notice->ends > 0) return wall_seconds() > notice->ends + kClocks;
  } catch (const std::exception&) {  // also what was set aside
  }
  return is_old(file);
}

}  // namespace

double Notice::left() const {
  if (machine != link::PeerAddress::here(host).place) return 0;
  return std::clamp(came + kForget * seconds - boot_seconds(), 0.0, kForget * seconds);
}

Notice notice_now(const std::string& host, double seconds) {
  return {host, link::PeerAddress::here(host).place, seconds, boot_seconds(),
          wall_seconds() + kForget * seconds};
}

// Letters, digits, '_', '-' and '.' stay, but for a dot in front. What is too long for a name is
// cut and ends in a hash, in small letters, which no other name has.
fs::path notice_file(const fs::path& folder, const std::string& host) {
  constexpr size_t kLimit = 150;
  std::string name;
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : host) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '-' || (c == '.' && !name.empty());
    name += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  if (name.empty()) name = "%";
  if (name.size() > kLimit) name = fmt::format("{}%{:016x}", name.substr(0, kLimit), hash);
  return folder_of_notices(folder) / name;
}

void write_notice(const fs::path& folder, const Notice& notice) {
  const fs::path file = notice_file(folder, notice.host);
  fs::create_directories(file.parent_path());
  const nlohmann::json value = {
      {"host", notice.host},
      {"machine", notice.machine},
      {"notice", notice.seconds},
      {"came", notice.came},
      {"until", notice.came + kForget * notice.seconds},  // for agents of earlier versions
      {"ends", notice.ends}};
  write_file_atomic(file, dump_json(value) + "\n");
}

std::optional<Notice> read_notice(const fs::path& file) {
  constexpr double kMostSeconds = 1e12;
  std::error_code none;
  const fs::file_status what = fs::symlink_status(file, none);
  if (what.type() == fs::file_type::not_found) return std::nullopt;
  std::vector<std::byte> bytes;
  read_regular_file(file, kMostBytes, bytes);
  const nlohmann::json value =
      parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file.string(),
                 ErrorCode::data_loss);
  const JsonFields fields(value, file.string());
  Notice out;
  if (fields.has("host")) out.host = fields.text("host");
  out.machine = fields.text("machine");
  out.seconds = fields.number("notice", 1e-9, kLongestNotice);
  const double until = fields.number("until", 0, kMostSeconds);
  out.came =
      fields.has("came") ? fields.number("came", 0, kMostSeconds) : until - kForget * out.seconds;
  if (fields.has("ends")) out.ends = fields.number("ends", 0, kMostSeconds);
  return out;
}

void remove_notice(const fs::path& folder, const std::string& host) {
  const fs::path file = notice_file(folder, host);
  try {
    const std::optional<Notice> notice = read_notice(file);
    if (notice && (notice->host.empty() || notice->host == host)) fs::remove(file);
  } catch (const std::exception&) {  // damaged since, or not to be removed now: it is over in time
  }
}

std::string set_aside(const fs::path& file) {
  fs::path to = file;
  to += "%damaged";
  std::error_code refused;
  fs::remove_all(to, refused);
  fs::rename(file, to, refused);
  if (!refused) return fmt::format("it is now {}", to.string());
  fs::remove(file, refused);
  return refused ? fmt::format("it cannot be removed ({})", refused.message()) : "it was removed";
}

void sweep_notices(const fs::path& folder) {
  std::vector<fs::path> over;
  std::error_code none;
  for (fs::directory_iterator it(folder_of_notices(folder), none), end; !none && it != end;
       it.increment(none))
    if (is_over(it->path())) over.push_back(it->path());
  for (const fs::path& file : over) fs::remove_all(file, none);
}

void forget_notice_of_stop(const fs::path& folder, const std::string& host, double began,
                           double late) {
  try {
    const std::optional<Notice> notice = read_notice(notice_file(folder, host));
    if (notice && notice->machine == link::PeerAddress::here(host).place &&
        notice->came > began - late - kSecondsOfAStop && notice->came < began + kSecondsOfAStop)
      remove_notice(folder, host);
  } catch (const std::exception&) {  // the next agent says what is wrong with it
  }
}

}  // namespace ductile::server
