// A worker without torch that also serves: the real server on the small model. The folder that is
// served says in `takes`, if it has such a file, how many microseconds a batch takes, and in
// `newest` which version is the newest. Without --serve it becomes the worker of module server's
// tests.
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/link/addresses.h"
#include "ductile/net/loop.h"
#include "ductile/run/progress.h"
#include "ductile/serving/inference_server.h"
#include "ductile/serving/replica_link.h"
#include "ductile/serving/testing/serve_until_ended.h"
#include "ductile/serving/testing/small_model.h"

namespace {

using namespace ductile;

int serve(int progress, const nlohmann::json& request, uint64_t worker,
          const std::string& address) {
  const fs::path run = request.at("run").get<std::string>();
  const auto number = [&](const char* file, int otherwise) {
    return fs::exists(run / file) ? std::atoi(read_file(run / file).c_str()) : otherwise;
  };
  if (fs::exists(run / "fails")) {
    run::write_line(progress, run::Failed{ErrorCode::data_loss, read_file(run / "fails")});
    return 3;
  }
  if (!fs::exists(run / "job.toml")) {
    run::write_line(progress, run::Failed{ErrorCode::not_found, run.string() + ": no such run"});
    return 3;
  }
  net::Loop loop;
  serving::testing::SmallModelOptions model;
  model.name = request.at("name").get<std::string>();
  model.takes = std::chrono::microseconds(number("takes", 0));
  const auto state = std::make_shared<serving::testing::SmallSource::State>();
  state->newest = number("newest", 1);
  serving::ServingOptions options;
  options.batches.max_batch = request.at("max_batch").get<int64_t>();
  options.version = request.value("version", state->newest.load());
  serving::InferenceServer server(loop, std::move(options),
                                  std::make_unique<serving::testing::SmallSource>(model, state));
  const std::string place = link::PeerAddress::here("").place;
  nlohmann::json where = {
      {"address", server.address().to_string()}, {"version", server.version()}, {"place", place}};
  std::unique_ptr<serving::ReplicaDoor> door;
  if (request.contains("front"))
    door = serving::open_door(loop, serving::FrontPlace::from_json(request["front"]), place,
                              address, worker, server.address());
  if (door) where["door"] = door->address().to_string();
  run::write_line(progress, run::Row{where});
  serving::testing::serve_until_ended(loop, server);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  int progress = -1;
  uint64_t worker = 0;
  std::string request, address;
  for (int i = 1; i + 1 < argc; ++i) {
    if (argv[i] == std::string("--progress-fd")) progress = std::atoi(argv[i + 1]);
    if (argv[i] == std::string("--worker")) worker = std::strtoull(argv[i + 1], nullptr, 10);
    if (argv[i] == std::string("--address")) address = argv[i + 1];
    if (argv[i] == std::string("--serve")) request = argv[i + 1];
  }
  if (request.empty()) {
    ::signal(SIGPIPE, SIG_DFL);
    ::execv(DUCTILE_TEST_WORKER, argv);
    return 127;
  }
  serving::testing::note_end();
  try {
    return serve(progress, parse_json(request, "--serve", ErrorCode::invalid_argument), worker,
                 address);
  } catch (const Error& error) {
    run::write_line(progress, run::Failed{error.code(), error.message()});
    return 3;
  }
}
