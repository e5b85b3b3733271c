// Jobs that answer requests: their addresses, and what comes to them.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/log.h"
#include "ductile/cluster/front_impl.h"
#include "ductile/cluster/http_server.h"
#include "ductile/cluster/limits_impl.h"
#include "ductile/cluster/service_impl.h"
#include "ductile/run/folder.h"
#include "ductile/server/launcher.h"

namespace ductile::cluster {

FrontMemory Service::Impl::kept_front(JobId id) {
  const std::string text = reader_.memory(front_memory_name(id));
  if (text.empty()) return {};
  return FrontMemory::from_json(parse_json(text, front_memory_name(id), ErrorCode::data_loss));
}

// Of a job that cannot be started: an earlier service may have left replicas, which nobody can ask
// and whose devices others get.
void Service::Impl::end_replicas(const Live& live) {
  const JobId id = live.record.id;
  try {
    FrontMemory memory = live.front ? live.front->memory() : kept_front(id);
    if (memory.replicas.empty()) return;
    std::vector<server::EarlierWorker> left;
    for (const auto& [replica, known] : std::exchange(memory.replicas, {}))
      left.push_back({replica});
    auto launcher = engine_->launcher(run::RunFolder::open(live.run), /*python=*/false);
    launcher->adopt(left);
    for (const server::EarlierWorker& replica : left) launcher->kill(replica.worker);
    launcher->finish();
    leftovers_.push_back(std::move(launcher));
    if (live.front) live.front->memory().replicas.clear();
    writer_.write_newest(front_memory_name(id),
                         [id, text = dump_json(memory.to_json())](Change& change) {
                           if (!has_ended(change.job(id).phase))
                             change.set_memory(front_memory_name(id), text);
                         });
    look_at_leftovers();
  } catch (const Error& error) {
    log_line(
        fmt::format("job {}: replicas that were left could not be ended: {}", id, error.message()));
  }
}

void Service::Impl::look_at_leftovers() {
  constexpr std::chrono::milliseconds kLook{100};
  for (const auto& launcher : leftovers_) launcher->take();
  std::erase_if(leftovers_, [](const auto& launcher) { return launcher->finished(); });
  if (!leftovers_.empty()) leftovers_timer_ = loop_.after(kLook, [this] { look_at_leftovers(); });
}

// Whoever asks many questions at once must not take the descriptors of all other jobs: the limit of
// this process is raised as far as that may be, and a front has what is then left to it.
size_t Service::Impl::connections_of_front(JobId id) const {
  constexpr int kEach = Front::kDescriptorsOfARequest;
  constexpr int kLeast = 16;
  const int wanted = static_cast<int>(serving::HttpOptions{}.most_connections);
  int before = connections_for(HttpLimits{}.connections);
  for (const auto& [other, live] : live_)
    if (live.front) before += wanted * kEach;
  const int left = connections_for(before + wanted * kEach) - before;
  const int out = std::clamp(left / kEach, kLeast, wanted);
  if (out < wanted)
    log_line(
        fmt::format("job {}: {} clients at once instead of {}, since this process may open few "
                    "files: raise the hard limit (ulimit -Hn)",
                    id, out, wanted));
  return static_cast<size_t>(out);
}

// Where one was open before, this one has its port, and the replicas that still live.
void Service::Impl::open_front(Live& live, const ServeSpec& spec) {
  const JobId id = live.record.id;
  FrontMemory memory = kept_front(id);
  Front::Callbacks callbacks;
  callbacks.save = [this, id](const FrontMemory& kept, std::function<void()> then) {
    writer_.write_newest(
        front_memory_name(id),
        [id, text = dump_json(kept.to_json())](Change& change) {
          if (!has_ended(change.job(id).phase)) change.set_memory(front_memory_name(id), text);
        },
        std::move(then));
  };
  callbacks.on_load = [this, id] {
    const auto found = live_.find(id);
    if (found != live_.end() && found->second.front) follow_load(found->second);
  };
  callbacks.tell = [this, id](const std::string& line) {
    writer_.write_newest(fmt::format("serving {} {}", id, line),
                         [id, body = dump_json(nlohmann::json{{"text", line}})](Change& change) {
                           if (!has_ended(change.job(id).phase))
                             change.record(id, "serving", body, wall_seconds());
                         });
  };
  live.front = std::make_unique<Front>(loop_, spec, std::move(memory), options_.interval,
                                       std::move(callbacks), connections_of_front(id));
  reload_as_asked(live);
}

void Service::Impl::follow_reload(Live& live, const Event& event) {
  if (!live.front || event.kind != kReload) return;
  const nlohmann::json body =
      parse_json(event.body, fmt::format("event {}", event.seq), ErrorCode::data_loss);
  std::optional<int64_t> version;
  if (const auto& asked = body.at("version"); !asked.is_null()) version = asked.get<int64_t>();
  live.front->reload(event.seq, version);
}

void Service::Impl::reload_as_asked(Live& live) {
  constexpr int64_t kPage = 1000;
  std::optional<Event> newest;
  Revision seen = live.front->memory().reloaded;
  while (true) {
    std::vector<Event> events = reader_.events(seen, kPage, live.record.id);
    for (Event& event : events) {
      seen = event.seq;
      if (event.kind == kReload) newest = std::move(event);
    }
    if (static_cast<int64_t>(events.size()) < kPage) break;
  }
  if (newest) follow_reload(live, *newest);
}

void Service::Impl::close_front(Live& live) {
  if (!live.front) return;
  live.front.reset();
  view_.end_serving(live.record.id);
}

// More replicas are decided about at once, fewer in the next round.
void Service::Impl::follow_load(Live& live) {
  const JobId id = live.record.id;
  ServingFigures figures = live.front->figures();
  figures.name = live.record.submission.name;
  view_.set_serving(id, std::move(figures));
  if (!scheduler_.knows(id) || stopping_) return;
  if (scheduler_.served(id, live.front->load()))
    loop_.arm_once(decide_soon_, std::chrono::milliseconds(0), [this] { decide(); });
}

// For people: what comes, where that is news.
void Service::Impl::note_load(Live& live) {
  constexpr double kNews = 0.25, kLeast = 0.1;
  if (!live.front || !live.runner) return;
  const ServiceLoad load = live.front->load();
  const int64_t devices = sched::device_count(live.asked);
  if (live.noted_devices == devices &&
      std::abs(load.load - live.noted_speed) <= kNews * live.noted_speed + kLeast)
    return;
  live.noted_devices = devices;
  live.noted_speed = load.load;
  const nlohmann::json body = {{"devices", devices},
                               {"requests_per_second", load.load},
                               {"most_requests_per_second", load.peak},
                               {"replica_requests_per_second", load.rate}};
  const JobId id = live.record.id;
  writer_.write_newest(fmt::format("load {}", id), [id, body = dump_json(body)](Change& change) {
    change.record(id, "load", body, wall_seconds());
  });
}

// Fewer than these hold nothing. A service is better served by some replicas than by none.
int64_t Service::Impl::least_devices(const Live& live) const {
  if (std::holds_alternative<ServeSpec>(live.work)) return 1;
  if (const int32_t least = scheduler_.least_of_stages(live.record.id); least > 0) return least;
  return std::max<int64_t>(1, live.record.submission.min_devices);
}

}  // namespace ductile::cluster
