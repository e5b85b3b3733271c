#pragma once

#include <chrono>
#include <csignal>

#include "ductile/net/loop.h"
#include "ductile/serving/inference_server.h"

namespace ductile::serving::testing {

inline volatile std::sig_atomic_t g_ended = 0;

// From now on SIGTERM is noted.
inline void note_end() {
  ::signal(SIGTERM, [](int) { g_ended = 1; });
}

// Serves until SIGTERM has come and what was accepted is answered.
inline void serve_until_ended(net::Loop& loop, InferenceServer& server) {
  bool ending = false;
  const auto watch = loop.every(std::chrono::milliseconds(5), [&] {
    if (g_ended == 0 || ending) return;
    ending = true;
    server.drain([&] { loop.stop(); });
  });
  loop.run();
}

}  // namespace ductile::serving::testing
