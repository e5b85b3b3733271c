#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "ductile/net/loop.h"
#include "ductile/server/launcher.h"

namespace ductile::server {

// What a launcher has to tell, and whom it calls then.
class LauncherEvents {
 public:
  explicit LauncherEvents(net::Loop& loop) : loop_(loop) {}

  net::Loop& loop() const { return loop_; }
  void call_when_ready(std::function<void()> on_ready) { on_ready_ = std::move(on_ready); }
  void ready() const {
    if (on_ready_) on_ready_();
  }
  // take() may have something while `fd` is readable. To be ended before `fd` is closed.
  [[nodiscard]] net::Loop::Watch watch(int fd) {
    return loop_.watch(fd, net::Interest::read, [this](net::Ready) { ready(); });
  }

  // For the take() under way.
  void add(LauncherEvent event) { events_.push_back(std::move(event)); }
  // A process that is not there: nothing else would wake the controller.
  void gone(control::WorkerId id) {
    events_.emplace_back(control::WorkerExited{id, -1, 0});
    ready();
  }
  std::vector<LauncherEvent> take() { return std::exchange(events_, {}); }

 private:
  net::Loop& loop_;
  std::function<void()> on_ready_;
  std::vector<LauncherEvent> events_;
};

}  // namespace ductile::server
