#include "ductile/base/interruption.h"

#include <utility>

namespace ductile {
namespace {

constexpr std::chrono::milliseconds kPause{50};

thread_local Interruption* innermost = nullptr;

}  // namespace

Interruption::Interruption(std::function<void()> ask)
    : ask_(std::move(ask)), next_(std::chrono::steady_clock::now() + kPause), outer_(innermost) {
  innermost = this;
}

Interruption::~Interruption() { innermost = outer_; }

void ask_whether_wanted() {
  if (innermost == nullptr) return;
  Interruption& asked = *innermost;
  if (std::chrono::steady_clock::now() < asked.next_) return;
  asked.ask_();
  asked.next_ = std::chrono::steady_clock::now() + kPause;
}

}  // namespace ductile
