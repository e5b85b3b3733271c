#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <unistd.h>

#include "ductile/base/base64.h"
#include "ductile/base/error.h"
#include "ductile/base/text.h"
#include "ductile/server/agent_wire_impl.h"

namespace ductile::server {
namespace {

constexpr int kMostBlocks = 64;  // at once: who prints without end must not keep the others waiting
constexpr size_t kMostPlain = size_t{1} << 18;     // what login scripts print, and the greeting
constexpr size_t kMostMessage = size_t{64} << 20;  // a job's arguments, a census, a worker's line
constexpr size_t kBytesOfALine = 3000;  // sealed; 4000 letters, which fit into a terminal's line
constexpr size_t kMostLetters = kBytesOfALine / 3 * 4;
constexpr size_t kMostQuoted = 80;

void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

bool AgentWire::read(int fd, const OnText& on_text) {
  std::array<std::byte, 16384> block;
  for (int blocks = 0; blocks < kMostBlocks;) {
    const ssize_t n = ::read(fd, block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return true;  // nothing now
    if (n == 0) return false;
    take(std::span(block).first(static_cast<size_t>(n)), on_text);
    ++blocks;
  }
  return true;
}

void AgentWire::take(std::span<const std::byte> bytes, const OnText& on_text) {
  while (!bytes.empty()) {
    const auto end = std::ranges::find(bytes, static_cast<std::byte>('\n'));
    const auto part = bytes.first(static_cast<size_t>(end - bytes.begin()));
    line_.append(reinterpret_cast<const char*>(part.data()), part.size());
    if (!seal_) plain_ += part.size() + 1;
    check(line_);
    if (end == bytes.end()) return;
    bytes = bytes.subspan(part.size() + 1);
    const std::string line = std::exchange(line_, {});
    if (!seal_) {
      on_text(line);
    } else if (const auto sealed = from_base64(line)) {
      feed(bytes_of(*sealed), on_text);
    } else {
      fail(ErrorCode::data_loss,
           "among its encrypted lines is '{}': a launcher must print nothing of its own to stdout",
           to_utf8(line.substr(0, kMostQuoted)));
    }
  }
}

void AgentWire::check(const std::string& line) {
  if (plain_ > kMostPlain)
    fail(ErrorCode::data_loss,
         "it said {} bytes and no agent's greeting was among them: does its login print without "
         "end?",
         kMostPlain);
  if (seal_ && line.size() > kMostLetters)
    fail(ErrorCode::data_loss, "an encrypted line has more than {} letters", kMostLetters);
}

void AgentWire::feed(std::span<const std::byte> bytes, const OnText& on_text) {
  while (!seal_->done() && !bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), seal_->wanted()));
    bytes = bytes.subspan(part.size());
    seal_->feed(part);
    send(seal_->take_output());
    if (seal_->done())
      for (const std::string& text : std::exchange(waiting_, {})) say(text);
  }
  if (!seal_->done()) return;
  seal_->feed(bytes);
  while (const auto message = seal_->next())
    on_text({reinterpret_cast<const char*>(message->data()), message->size()});
}

void AgentWire::say(std::string_view text) {
  if (ready()) {
    std::vector<std::byte> sealed;
    seal_->append(bytes_of(text), sealed);
    send(sealed);
  } else if (seal_) {
    waiting_.emplace_back(text);
  } else {
    append(unsent_, bytes_of(text));
    unsent_.push_back(static_cast<std::byte>('\n'));
  }
}

void AgentWire::seal(net::Seal::Side side, const net::Mac& key) {
  seal_.emplace(side, key);
  seal_->set_max_payload(kMostMessage);
  send(seal_->take_output());
}

void AgentWire::send(std::span<const std::byte> sealed) {
  while (!sealed.empty()) {
    const auto part = sealed.first(std::min(sealed.size(), kBytesOfALine));
    sealed = sealed.subspan(part.size());
    append(unsent_, bytes_of(to_base64(part) + '\n'));
  }
}

bool AgentWire::flush(int fd) {
  bool takes = true;
  while (has_unsent()) {
    const ssize_t n = ::write(fd, unsent_.data() + sent_, unsent());
    if (n > 0) {
      sent_ += static_cast<size_t>(n);
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      takes = n < 0 && errno == EAGAIN;
      break;
    }
  }
  if (2 * sent_ >= unsent_.size()) {  // a long rest is not moved for each part of it
    unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<ptrdiff_t>(sent_));
    sent_ = 0;
  }
  return takes;
}

}  // namespace ductile::server
