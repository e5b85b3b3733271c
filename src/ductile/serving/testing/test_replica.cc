// A replica without torch: the server on the small model. It ends as it should at SIGTERM.
//   test_replica --progress-fd N [--fails TEXT] [--takes MICROSECONDS]
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>

#include "ductile/base/error.h"
#include "ductile/net/loop.h"
#include "ductile/run/progress.h"
#include "ductile/serving/inference_server.h"
#include "ductile/serving/testing/small_model.h"

namespace {
volatile std::sig_atomic_t g_ended = 0;
}

int main(int argc, char** argv) {
  using namespace ductile;
  int progress = -1;
  std::string fails;
  serving::testing::SmallModelOptions model;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--progress-fd") == 0) progress = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--fails") == 0) fails = argv[i + 1];
    if (std::strcmp(argv[i], "--takes") == 0)
      model.takes = std::chrono::microseconds(std::atoi(argv[i + 1]));
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGTERM, [](int) { g_ended = 1; });
  if (!fails.empty()) {
    run::write_line(progress, run::Failed{ErrorCode::not_found, fails});
    return 1;
  }
  net::Loop loop;
  const auto state = std::make_shared<serving::testing::SmallSource::State>();
  state->newest = 9;
  serving::ServingOptions options;
  options.version = 1;
  serving::InferenceServer server(loop, std::move(options),
                                  std::make_unique<serving::testing::SmallSource>(model, state));
  run::write_line(progress, run::Row{{{"address", server.address().to_string()}}});
  bool ending = false;
  const auto watch = loop.every(std::chrono::milliseconds(5), [&] {
    if (g_ended == 0 || ending) return;
    ending = true;
    server.drain([&] { loop.stop(); });
  });
  loop.run();
  return 0;
}
