#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/server/agent_wire_impl.h"

namespace ductile::server {
namespace {

constexpr int kMostBlocks = 64;  // at once: who prints without end must not keep the others waiting
constexpr size_t kMostPlain = size_t{1} << 18;     // what login scripts print, and the greeting
constexpr size_t kMostMessage = size_t{64} << 20;  // a job's arguments, a census, a worker's line

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
  while (!seal_ && !bytes.empty()) {
    const auto end = std::ranges::find(bytes, static_cast<std::byte>('\n'));
    const auto part = bytes.first(static_cast<size_t>(end - bytes.begin()));
    line_.append(reinterpret_cast<const char*>(part.data()), part.size());
    plain_ += part.size() + 1;
    if (plain_ > kMostPlain)
      fail(ErrorCode::data_loss,
           "it said {} bytes and no agent's greeting was among them: does its login print without "
           "end?",
           kMostPlain);
    if (end == bytes.end()) return;
    bytes = bytes.subspan(part.size() + 1);
    on_text(std::exchange(line_, {}));
  }
  if (seal_) feed(bytes, on_text);
}

void AgentWire::feed(std::span<const std::byte> bytes, const OnText& on_text) {
  while (!seal_->done() && !bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), seal_->wanted()));
    bytes = bytes.subspan(part.size());
    seal_->feed(part);
    append(unsent_, seal_->take_output());
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
    seal_->append(bytes_of(text), unsent_);
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
  append(unsent_, seal_->take_output());
}

bool AgentWire::flush(int fd) {
  size_t done = 0;
  bool takes = true;
  while (done < unsent_.size()) {
    const ssize_t n = ::write(fd, unsent_.data() + done, unsent_.size() - done);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      takes = n < 0 && errno == EAGAIN;
      break;
    }
  }
  unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<ptrdiff_t>(done));
  return takes;
}

}  // namespace ductile::server
