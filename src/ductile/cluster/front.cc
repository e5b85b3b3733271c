#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/cluster/front_impl.h"
#include "ductile/run/folder.h"

namespace ductile::cluster {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kQuiet{20};     // for what was accepted, where the front closes
constexpr double kLeastBusy = 0.2;             // replica-seconds of a look at the rate
constexpr int64_t kLeastAnswers = 10;          // in it
constexpr std::chrono::seconds kLoadAgain{1};  // where no replica can load weights just now

}  // namespace

ServeSpec serve_of(const json& spec) {
  const JsonFields fields(spec, "spec");
  fields.only({"run", "model", "port", "version", "follow", "max_batch", "max_waiting", "max_delay",
               "target"});
  ServeSpec out;
  out.run = fields.text("run");
  if (!out.run.is_absolute() || out.run.string().find('\0') != std::string::npos)
    fail(ErrorCode::invalid_argument, "spec: run = \"{}\": an absolute path is wanted",
         out.run.string());
  out.model = fields.text("model");
  if (out.model != run::file_name_of(out.model))
    fail(ErrorCode::invalid_argument,
         "spec: model = \"{}\": a model's name has letters, digits, . _ and -", out.model);
  out.port = static_cast<uint16_t>(fields.integer_or("port", 0, 0, 65535));
  if (fields.has("version")) out.version = fields.integer("version", 0, kMostVersion);
  if (fields.has("follow")) fields.read("follow", out.follow);
  out.max_batch = fields.integer_or("max_batch", out.max_batch, 1, 4096);
  out.max_waiting = fields.integer_or("max_waiting", out.max_waiting, 1, 1 << 20);
  if (fields.has("max_delay")) out.max_delay = fields.number("max_delay", 0, 10'000);
  if (fields.has("target")) out.target = fields.number("target", 0.001, 3600);
  return out;
}

void LoadMeter::add(double now, const serving::Router::Load& total, int64_t replicas) {
  readings_.push_back({now, total.arrived});
  while (readings_.size() > 2 && readings_[1].time <= now - smooth_) readings_.pop_front();
  const Reading& first = readings_.front();
  if (now > first.time)
    loads_.emplace_back(now,
                        static_cast<double>(total.arrived - first.arrived) / (now - first.time));
  while (loads_.size() > 1 && loads_.front().first < now - memory_) loads_.pop_front();

  if (since_) could_ += static_cast<double>(replicas) * (now - last_);
  last_ = now;
  const int64_t answers = total.answered - answered_;
  const double busy = total.replica_seconds - busy_;
  if (since_ && (busy < kLeastBusy || answers < kLeastAnswers)) return;
  if (since_) {
    const double seen = static_cast<double>(answers) / busy;
    if (rate_ == 0) {
      rate_ = seen;
    } else if (seen > rate_ || busy > could_ / 2) {
      rate_ += 0.5 * (seen - rate_);
    }
  }
  since_ = now;
  answered_ = total.answered;
  busy_ = total.replica_seconds;
  could_ = 0;
}

ServiceLoad LoadMeter::load() const {
  ServiceLoad out;
  if (!loads_.empty()) out.load = loads_.back().second;
  for (const auto& [time, load] : loads_) out.peak = std::max(out.peak, load);
  out.rate = rate_;
  return out;
}

std::string front_memory_name(JobId job) { return fmt::format("serving {}", job); }

json FrontMemory::to_json() const {
  json list = json::array();
  for (const auto& [id, replica] : replicas) {
    list.push_back({{"id", id}, {"address", replica.address}});
    if (replica.version) list.back()["version"] = *replica.version;
    if (replica.has_door) list.back()["door"] = true;
  }
  json out = {{"port", port}, {"last", last}, {"replicas", std::move(list)}};
  if (version) out["version"] = *version;
  if (reloaded > 0) out["reloaded"] = reloaded;
  return out;
}

FrontMemory FrontMemory::from_json(const json& value) try {
  const JsonFields fields(value, "what a service job keeps");
  fields.only({"port", "last", "replicas", "version", "reloaded"});
  FrontMemory out;
  out.port = static_cast<uint16_t>(fields.integer("port", 0, 65535));
  out.last = static_cast<uint64_t>(fields.integer("last", 0, INT64_MAX));
  for (const json& item : fields.array("replicas")) {
    const JsonFields one(item, "what a service job keeps: replicas");
    const auto id = static_cast<uint64_t>(one.integer("id", 1, INT64_MAX));
    Replica& replica = out.replicas[id];
    replica.address = one.text("address");
    if (!replica.address.empty()) net::Address::parse(replica.address);
    if (one.has("version")) replica.version = one.integer("version", 0, kMostVersion);
    if (one.has("door")) replica.has_door = one.boolean("door");
  }
  if (fields.has("version")) out.version = fields.integer("version", 0, kMostVersion);
  out.reloaded = fields.integer_or("reloaded", 0, 0, INT64_MAX);
  return out;
} catch (const Error& error) {
  fail(ErrorCode::data_loss, "{}", error.what());
}

namespace {

serving::RouterOptions router_options(const ServeSpec& spec, uint16_t port,
                                      size_t most_connections) {
  serving::RouterOptions out;
  out.http.most_connections = most_connections;
  out.http.at = {"127.0.0.1", spec.port != 0 ? spec.port : port};
  if (!spec.follow) out.model = spec.model;
  return out;
}

// What a server says is wrong.
std::string error_in(const serving::HttpResponse& answer) try {
  return parse_json(answer.body, "the answer", ErrorCode::data_loss).at("error").get<std::string>();
} catch (const std::exception&) {
  return fmt::format("a replica answered with status {}", answer.status);
}

}  // namespace

Front::Front(net::Loop& loop, ServeSpec spec, FrontMemory memory, double interval,
             Callbacks callbacks, size_t most_connections)
    : loop_(loop),
      spec_(std::move(spec)),
      memory_(std::move(memory)),
      callbacks_(std::move(callbacks)),
      router_(loop, router_options(spec_, memory_.port, most_connections)),
      meter_(interval) {
  memory_.port = router_.address().port;
  router_.want(spec_.follow ? std::nullopt : memory_.version);
  router_.call_when_changed([this](uint64_t id, int64_t version) {
    const auto found = memory_.replicas.find(id);
    if (found == memory_.replicas.end()) return;
    found->second.version = version;
    memory_.version = router_.wanted();
    save();
  });
  router_.call_when_loaded([this](int64_t version) {
    tell(fmt::format("all replicas have the weights of step {}", version));
  });
  look();
  look_ = loop_.every(
      std::chrono::milliseconds(static_cast<int64_t>(1000 * std::clamp(interval, 0.05, 1.0))),
      [this] { look(); });
}

Front::~Front() {
  closing_ = true;
  router_.refuse_waiting();
}

void Front::look() {
  meter_.add(std::chrono::duration<double>(loop_.now().time_since_epoch()).count(), router_.load(),
             ready_);
  if (callbacks_.on_load) callbacks_.on_load();
}

void Front::reload(Revision asked, std::optional<int64_t> version) {
  if (closing_ || asked <= std::max(memory_.reloaded, reloading_)) return;
  reloading_ = asked;
  try_reload(version);
}

void Front::try_reload(std::optional<int64_t> version) {
  const auto on_answer = [this, version, asked = reloading_](const serving::HttpResponse& answer) {
    if (closing_ || asked != reloading_) return;
    if (answer.status == 503 || answer.status == 409 || answer.status == 504) {
      reload_ = loop_.after(kLoadAgain, [this, version] { try_reload(version); });
      return;
    }
    if (answer.status != 200) tell("reload: " + error_in(answer));
    memory_.reloaded = asked;
    save();
  };
  router_.load_weights(spec_.model, version, on_answer);
}

void Front::save(std::function<void()> then) { callbacks_.save(memory_, std::move(then)); }

void Front::use_doors(const net::Secret& secret, const std::string& job) {
  if (links_) return;
  links_.emplace(loop_, secret, job, [this](uint64_t id, const std::string& text) {
    if (!memory_.replicas.contains(id) || !troubled_.insert(id).second) return;
    tell(fmt::format("replica {} cannot be reached: {}; its requests go to others", id, text));
  });
}

void Front::add(uint64_t id, const FrontMemory::Replica& replica) {
  const net::Address at = net::Address::parse(replica.address);
  if (!replica.has_door) return router_.add(id, at, replica.version);
  DUCTILE_CHECK(links_.has_value(), "replica {} has a door", id);
  router_.add(
      id, [this, id, at] { return links_->open(id, at); }, replica.version);
}

std::string Front::address() const {
  return fmt::format("http://{}/v2/models/{}", router_.address().to_string(), spec_.model);
}

ServingFigures Front::figures() const {
  const serving::Router::Load total = router_.load();
  const ServiceLoad load = meter_.load();
  ServingFigures out;
  out.address = address();
  out.ready = ready_;
  out.by_node = by_node_;
  out.trouble = trouble_;
  out.load = load.load;
  out.rate = load.rate;
  out.arrived = total.arrived;
  out.answered = total.answered;
  out.retried = total.retried;
  out.waiting = total.waiting;
  out.in_flight = total.in_flight;
  return out;
}

void Front::close() {
  if (std::exchange(closing_, true)) return;
  const auto quiet = [this] {
    quiet_ = true;
    patience_.cancel();
    if (on_quiet_) std::exchange(on_quiet_, {})();
  };
  patience_ = loop_.after(kQuiet, quiet);
  router_.drain(quiet);
}

void Front::call_when_quiet(std::function<void()> on_quiet) {
  if (quiet_) return loop_.post(std::move(on_quiet));
  on_quiet_ = std::move(on_quiet);
}

}  // namespace ductile::cluster
