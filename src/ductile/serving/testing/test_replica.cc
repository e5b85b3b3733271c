// A replica without torch: the server on the small model. It ends as it should at SIGTERM.
//   test_replica --progress-fd N [--fails TEXT] [--takes MICROSECONDS] [--dies-of VALUE]
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>

#include "ductile/base/error.h"
#include "ductile/net/loop.h"
#include "ductile/run/progress.h"
#include "ductile/serving/inference_server.h"
#include "ductile/serving/testing/serve_until_ended.h"
#include "ductile/serving/testing/small_model.h"

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
    if (std::strcmp(argv[i], "--dies-of") == 0) model.dies_of = std::strtof(argv[i + 1], nullptr);
  }
  ::signal(SIGPIPE, SIG_IGN);
  serving::testing::note_end();
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
  run::write_line(progress, run::Row{{{"address", server.address().to_string()},
                                      {"version", server.version()}}});
  serving::testing::serve_until_ended(loop, server);
  return 0;
}
