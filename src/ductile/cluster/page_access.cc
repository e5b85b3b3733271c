#include "ductile/cluster/page_access.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "ductile/cluster/sha256_impl.h"
#include "ductile/link/boot_clock.h"
#include "ductile/net/secret.h"

namespace ductile::cluster {
namespace {

// A time of day that is set back must not make an old link good again.
double seconds_of_steady_time() { return std::chrono::duration<double>(link::boot_time()).count(); }

}  // namespace

PageAccess::PageAccess(std::function<double()> clock)
    : clock_(clock ? std::move(clock) : seconds_of_steady_time) {}

void PageAccess::add(Entries& entries, const std::string& secret, Entry entry, double seconds) {
  std::erase_if(entries, [&](const auto& e) { return e.second.made + seconds < entry.made; });
  const auto is_his = [&](const auto& e) { return e.second.who.name == entry.who.name; };
  if (static_cast<size_t>(std::ranges::count_if(entries, is_his)) >= kMostOfOne) {
    auto oldest = entries.end();
    for (auto it = entries.begin(); it != entries.end(); ++it) {
      if (!is_his(*it)) continue;
      if (oldest == entries.end() || it->second.number < oldest->second.number) oldest = it;
    }
    entries.erase(oldest);
  }
  entry.number = ++made_;
  entries.emplace(sha256(secret), std::move(entry));
}

std::string PageAccess::link_for(const Principal& who) {
  const std::string code = net::to_hex(net::random_nonce());
  const std::lock_guard lock(mutex_);
  add(links_, code, {who, "", clock_(), 0}, kLinkSeconds);
  // Behind the '#': browsers send it to nobody, and programs that look at links do not use it up.
  return fmt::format("http://127.0.0.1:{}/#login={}", port(), code);
}

std::optional<PageAccess::Pass> PageAccess::enter(std::string_view code) {
  const std::lock_guard lock(mutex_);
  const auto found = links_.find(sha256(code));
  if (found == links_.end()) return std::nullopt;
  const Entry link = std::move(found->second);
  links_.erase(found);
  const double now = clock_();
  if (now > link.made + kLinkSeconds) return std::nullopt;
  const Pass pass{net::to_hex(net::random_nonce()), net::to_hex(net::random_nonce())};
  add(passes_, pass.cookie, {link.who, pass.key, now, 0}, kPassSeconds);
  return pass;
}

std::optional<Principal> PageAccess::principal_of(std::string_view cookie, std::string_view key) {
  if (cookie.empty()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto found = passes_.find(sha256(cookie));
  if (found == passes_.end() || clock_() > found->second.made + kPassSeconds) return std::nullopt;
  if (!net::equal_in_constant_time(std::as_bytes(std::span(key)),
                                   std::as_bytes(std::span(found->second.key))))
    return std::nullopt;
  return found->second.who;
}

void PageAccess::leave(std::string_view cookie) {
  const std::lock_guard lock(mutex_);
  passes_.erase(sha256(cookie));
}

}  // namespace ductile::cluster
