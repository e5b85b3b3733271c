#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "ductile/net/loop.h"

namespace ductile::serving {

// How long whoever starts replicas waits, and for what.
//
// A lost replica is replaced after a pause, which doubles with each one that is lost until one is
// ready again. Others that are wanted meanwhile need not wait for that.
class ReplicaPace {
 public:
  // Of one that was told to end, until it is killed.
  static constexpr std::chrono::milliseconds kPatience{90'000};

  // `again`: there is more to start.
  ReplicaPace(net::Loop& loop, std::function<void()> again)
      : loop_(loop), again_(std::move(again)) {}

  void lost();
  void ready() { pause_ = kFirstPause; }
  // Nothing is replaced any more.
  void end() { timer_.cancel(); }

  // How many may start now, where `wanted` are wanted, and `there` are there or start.
  int64_t to_start(int64_t wanted, int64_t there) const;

 private:
  static constexpr std::chrono::milliseconds kFirstPause{200};
  static constexpr std::chrono::milliseconds kLongestPause{10'000};

  net::Loop& loop_;
  const std::function<void()> again_;
  std::chrono::milliseconds pause_ = kFirstPause;
  int64_t lost_ = 0;  // whose pause is not over
  net::Loop::Timer timer_;
};

}  // namespace ductile::serving
