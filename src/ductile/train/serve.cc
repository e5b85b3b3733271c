#include "ductile/train/serve.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/json_fields.h"
#include "ductile/link/addresses.h"
#include "ductile/net/loop.h"
#include "ductile/net/socket.h"
#include "ductile/train/environment.h"
#include "ductile/train/served_model.h"

namespace ductile::train {

using std::chrono::milliseconds;

ServeRequest ServeRequest::from_json(const nlohmann::json& value) {
  const JsonFields fields(value, "--serve");
  ServeRequest out;
  out.name = fields.text("name");
  out.threads = fields.integer("threads", 0, 4096);
  serving::ServingOptions& options = out.options;
  options.http.at = {fields.text("host"), static_cast<uint16_t>(fields.integer("port", 0, 65535))};
  options.batches = {fields.integer("max_batch", 1, 4096),
                     std::chrono::microseconds(fields.integer("max_delay_us", 0, 10'000'000)),
                     fields.integer("max_waiting", 1, 1 << 20)};
  options.follow = milliseconds(fields.integer("follow_ms", 0, 3'600'000));
  if (fields.has("run")) out.run = fields.text("run");
  out.alone = std::chrono::seconds(fields.integer_or("alone", 0, 0, int64_t{1} << 40));
  if (fields.has("front")) out.front = serving::FrontPlace::from_json(fields.at("front"));
  if (fields.has("version")) options.version = fields.integer("version", 0, int64_t{1} << 60);
  return out;
}

void serve(ServeRequest request, const run::RunFolder& folder, const spec::JobOptions& job,
           const std::function<void(const nlohmann::json&)>& tell,
           const std::function<bool()>& interrupted) {
  net::Loop loop;
  serving::ServingOptions& options = request.options;
  options.prepare_thread = prepare_thread;
  options.tell = [&](const std::string& line) { tell({{"told", line}}); };
  serving::InferenceServer server(loop, std::move(options), serve_run(folder, job, request.name));
  const std::string place = link::PeerAddress::here("").place;
  nlohmann::json where = {{"address", server.address().to_string()},
                          {"name", request.name},
                          {"version", server.version()},
                          {"place", place}};
  std::unique_ptr<serving::ReplicaDoor> door;
  if (request.front)
    door = serving::open_door(loop, *request.front, place, request.address, request.worker,
                              server.address());
  if (door) where["door"] = door->address().to_string();
  tell(where);
  bool ending = false;
  const auto watch = loop.every(milliseconds(50), [&] {
    const bool left =
        request.alone.count() > 0 && net::Clock::now() - server.last_asked() > request.alone;
    if (ending || !(left || interrupted())) return;
    ending = true;
    tell({{"told", left ? "nobody has asked anything for too long: it ends"
                        : "finishing what was accepted; once more ends at once"}});
    server.drain([&] { loop.stop(); });
  });
  loop.run();
}

}  // namespace ductile::train
